//! The index of live episodes: where each begins, kept in insertion order.
//!
//! It is not stored: it follows the commit records and is rebuilt from the columns `episode_index`
//! and `timestamp`. An episode is a run of consecutive frames with one `episode_index`; the numbers
//! grow from run to run. Eviction takes frames from the front, so the first episode may have lost
//! its oldest ones.

use std::collections::VecDeque;

use crate::offsets::Line;
use crate::ring::{Frames, Seq};
use crate::search::first_where;

/// An episode's first frame, number and what is known of its timestamps.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Entry {
    first: Seq,
    number: i64,
    sorted: bool,
    uniform: bool,
}

/// The live part of one episode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Episode {
    /// The `episode_index` of its frames.
    pub number: i64,
    /// Its live frames.
    pub frames: Frames,
    /// Whether no timestamp is smaller than the one before it. False claims nothing.
    pub sorted: bool,
    /// Whether the timestamps are uniform at the index's rate, as [`crate::offsets`] defines it.
    pub uniform: bool,
}

/// What is wrong with a frame that cannot follow the ones before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Misfit {
    /// `episode_index` is smaller than the frame's before.
    EpisodeDecreases {
        /// The number before.
        before: i64,
        /// The number found.
        found: i64,
    },
    /// `timestamp` is NaN or infinite.
    TimestampNotFinite(f64),
    /// There is no memory to index one more episode.
    OutOfMemory,
}

/// The live episodes.
#[derive(Debug)]
pub struct Episodes {
    entries: VecDeque<Entry>,
    live: Frames,
    /// Seconds per frame; without it no episode counts as uniform.
    step: Option<f64>,
    newest: Newest,
}

/// What the next frame of the newest episode is compared with.
#[derive(Clone, Copy, Debug)]
struct Newest {
    line: Line,
    frames: u64,
    last_timestamp: f64,
}

impl Episodes {
    /// No episodes, before the frame `at`, in a buffer of `fps` frames per second.
    pub fn empty_at(at: Seq, fps: Option<f64>) -> Self {
        Self {
            entries: VecDeque::new(),
            live: Frames::none_at(at),
            step: fps.map(|fps| 1.0 / fps),
            newest: Newest {
                line: Line::new(0.0, 0.0),
                frames: 0,
                last_timestamp: f64::NEG_INFINITY,
            },
        }
    }

    /// The same, if there is memory for it.
    pub fn try_clone(&self) -> Option<Self> {
        let mut entries = VecDeque::new();
        entries.try_reserve_exact(self.len()).ok()?;
        entries.extend(&self.entries);
        Some(Self { entries, ..*self })
    }

    /// Starts over with no episodes, before the frame `at`.
    pub fn restart_at(&mut self, at: Seq) {
        self.entries.clear();
        self.live = Frames::none_at(at);
    }

    /// The frames that are indexed.
    pub fn live(&self) -> Frames {
        self.live
    }

    /// The number of episodes.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no episodes.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Indexes the next frames by their numbers and timestamps, up to the first that cannot be.
    pub fn extend(&mut self, numbers: &[i64], timestamps: &[f64]) -> Result<(), Misfit> {
        let mut rest = timestamps;
        for run in numbers.chunk_by(|number, next| number == next) {
            let (timestamps, others) = rest.split_at(run.len());
            self.continue_or_begin(run[0], timestamps[0])?;
            self.follow(timestamps)?;
            rest = others;
        }
        Ok(())
    }

    /// Makes the newest episode the one whose next frame has this number.
    fn continue_or_begin(&mut self, number: i64, timestamp: f64) -> Result<(), Misfit> {
        match self.entries.back() {
            Some(newest) if newest.number == number => return Ok(()),
            Some(newest) if newest.number > number => {
                return Err(Misfit::EpisodeDecreases {
                    before: newest.number,
                    found: number,
                });
            }
            _ if !timestamp.is_finite() => return Err(Misfit::TimestampNotFinite(timestamp)),
            _ => {}
        }
        if self.entries.try_reserve(1).is_err() {
            return Err(Misfit::OutOfMemory);
        }
        self.entries.push_back(Entry {
            first: self.live.end,
            number,
            sorted: true,
            uniform: self.step.is_some(),
        });
        self.newest = Newest {
            line: Line::new(timestamp, self.step.unwrap_or(0.0)),
            frames: 0,
            last_timestamp: timestamp,
        };
        Ok(())
    }

    /// Adds frames, at least one, to the newest episode, and notes what they say of it.
    fn follow(&mut self, timestamps: &[f64]) -> Result<(), Misfit> {
        let (Some(entry), newest) = (self.entries.back_mut(), &mut self.newest) else {
            return Ok(());
        };
        entry.uniform &= newest.line.holds(newest.frames, timestamps);
        // Frames on the line are finite, and in order: it rises by more per frame than they may be
        // off it, as no buffer has a higher rate than `format::FPS_LIMIT`.
        let finite = match entry.uniform {
            true => timestamps.len(),
            false => finite_prefix(timestamps),
        };
        let (finite, others) = timestamps.split_at(finite);
        if let (false, Some(first)) = (entry.uniform, finite.first()) {
            entry.sorted &= newest.last_timestamp <= *first && finite.is_sorted();
        }
        if let Some(last) = finite.last() {
            newest.last_timestamp = *last;
        }
        newest.frames += finite.len() as u64;
        self.live.end = Seq(self.live.end.0 + finite.len() as u64);
        match others.first() {
            Some(&timestamp) => Err(Misfit::TimestampNotFinite(timestamp)),
            None => Ok(()),
        }
    }

    /// Forgets the frames before `first`.
    pub fn evict_before(&mut self, first: Seq) {
        let first = first.min(self.live.end);
        self.live.first = self.live.first.max(first);
        let gone = self
            .entries
            .iter()
            .skip(1)
            .take_while(|next| next.first <= first)
            .count();
        self.entries.drain(..gone);
        match self.entries.front_mut() {
            Some(_) if self.live.is_empty() => self.entries.clear(),
            Some(oldest) => oldest.first = oldest.first.max(first),
            None => {}
        }
    }

    /// The episode of a live frame.
    pub fn of(&self, seq: Seq) -> Episode {
        debug_assert!(self.live.first <= seq && seq < self.live.end);
        // Exact for episodes of one length, and the search is short where they differ little.
        let share = (seq.0 - self.live.first.0) as f64 / self.live.len() as f64;
        let guess = (share * self.entries.len() as f64) as usize;
        let after = first_where(self.entries.len(), guess + 1, |position| {
            self.entries[position].first > seq
        });
        self.at(after - 1)
    }

    /// All episodes, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Episode> + '_ {
        (0..self.entries.len()).map(|position| self.at(position))
    }

    fn at(&self, position: usize) -> Episode {
        let Entry {
            first,
            number,
            sorted,
            uniform,
        } = self.entries[position];
        let end = self
            .entries
            .get(position + 1)
            .map_or(self.live.end, |next| next.first);
        let frames = Frames { first, end };
        Episode {
            number,
            frames,
            sorted,
            uniform,
        }
    }
}

/// How many timestamps there are before the first that is NaN or infinite.
fn finite_prefix(timestamps: &[f64]) -> usize {
    // Looked at all together first, which takes far less time than one by one.
    if timestamps
        .iter()
        .fold(true, |all, time| all & time.is_finite())
    {
        return timestamps.len();
    }
    timestamps
        .iter()
        .take_while(|time| time.is_finite())
        .count()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The live frames as a plain list of (seq, number, timestamp).
    #[derive(Clone, Debug, Default)]
    struct Model(Vec<(u64, i64, f64)>);

    impl Model {
        fn episode_of(&self, seq: u64) -> Vec<(u64, i64, f64)> {
            let number = self.0.iter().find(|frame| frame.0 == seq).unwrap().1;
            self.0
                .iter()
                .copied()
                .filter(|frame| frame.1 == number)
                .collect()
        }

        fn numbers(&self) -> Vec<i64> {
            let mut numbers: Vec<i64> = self.0.iter().map(|frame| frame.1).collect();
            numbers.dedup();
            numbers
        }
    }

    fn assert_agree(index: &Episodes, model: &Model) {
        assert_eq!(index.live().len(), model.0.len());
        assert_eq!(
            index.iter().map(|e| e.number).collect::<Vec<_>>(),
            model.numbers()
        );
        for &(seq, number, _) in &model.0 {
            let episode = index.of(Seq(seq));
            let frames = model.episode_of(seq);
            assert_eq!(episode.number, number);
            assert_eq!(
                (episode.frames.first.0, episode.frames.len()),
                (frames[0].0, frames.len())
            );
            if episode.sorted {
                assert!(frames.is_sorted_by(|a, b| a.2 <= b.2));
            }
        }
    }

    proptest! {
        #[test]
        fn the_index_agrees_with_a_list(
            frames in proptest::collection::vec((0i64..2, -2i8..3), 1..120),
            capacity in 1usize..20,
        ) {
            let (mut index, mut model) = (Episodes::empty_at(Seq(0), None), Model::default());
            let mut number = 0;
            for (seq, (step, timestamp)) in frames.into_iter().enumerate() {
                number += step;
                index.extend(&[number], &[f64::from(timestamp)]).unwrap();
                model.0.push((seq as u64, number, f64::from(timestamp)));
                index.evict_before(Seq((seq + 1).saturating_sub(capacity) as u64));
                let excess = model.0.len().saturating_sub(capacity);
                model.0.drain(..excess);
                assert_agree(&index, &model);
            }
            let end = index.live().end;
            index.evict_before(Seq(end.0 + 5));
            prop_assert!(index.is_empty() && index.live().is_empty());
            prop_assert_eq!(index.live().end, end);
        }

        #[test]
        fn frames_may_come_in_blocks_of_any_size(
            frames in proptest::collection::vec((0i64..8, -1i8..10), 1..60),
            blocks in proptest::collection::vec(1usize..20, 60),
        ) {
            // Mostly episodes on a line, some off it, back in time, or without a time.
            let (mut number, mut frame) = (0, 0.0);
            let (numbers, timestamps): (Vec<i64>, Vec<f64>) = frames
                .into_iter()
                .map(|(next, off)| {
                    (number, frame) = if next == 0 { (number + 1, 0.0) } else { (number, frame + 1.0) };
                    let off = match off { -1 => f64::NAN, 9 => -0.3, 8 => 0.04, _ => 0.0 };
                    (number, frame / 10.0 + off)
                })
                .unzip();
            let mut one_by_one = Episodes::empty_at(Seq(3), Some(10.0));
            let frames = numbers.iter().zip(&timestamps);
            let expected = frames
                .map(|(number, timestamp)| one_by_one.extend(&[*number], &[*timestamp]))
                .find(Result::is_err);
            let mut in_blocks = Episodes::empty_at(Seq(3), Some(10.0));
            let mut at = 0;
            let got = blocks
                .iter()
                .map(|len| {
                    let block = at..numbers.len().min(at + len);
                    at = block.end;
                    in_blocks.extend(&numbers[block.clone()], &timestamps[block])
                })
                .find(Result::is_err);
            prop_assert_eq!(format!("{got:?}"), format!("{expected:?}"));
            prop_assert_eq!(in_blocks.live(), one_by_one.live());
            prop_assert_eq!(in_blocks.iter().collect::<Vec<_>>(), one_by_one.iter().collect::<Vec<_>>());
            for episode in in_blocks.iter() {
                let range = |seq: Seq| (seq.0 - 3) as usize;
                let times = &timestamps[range(episode.frames.first)..range(episode.frames.end)];
                let on_line = |(frame, time): (usize, &f64)| {
                    (time - (times[0] + frame as f64 / 10.0)).abs() < 1e-6
                };
                prop_assert_eq!(episode.sorted, times.is_sorted());
                let uniform = times.iter().enumerate().all(on_line);
                // After a frame that cannot be, nothing is claimed.
                prop_assert!(episode.uniform == uniform || expected.is_some() && uniform);
            }
        }

        #[test]
        fn growing_timestamps_are_known_to_be_sorted(times in proptest::collection::vec(-5.0..5.0f64, 1..30)) {
            let mut index = Episodes::empty_at(Seq(7), None);
            index.extend(&vec![3; times.len()], &times).unwrap();
            prop_assert_eq!(index.of(Seq(7)).sorted, times.is_sorted());
        }
    }

    #[test]
    fn misfits_are_refused() {
        let mut index = Episodes::empty_at(Seq(0), None);
        index.extend(&[4], &[0.0]).unwrap();
        assert_eq!(
            index.extend(&[4, 3, 5], &[0.1, 0.0, 0.0]),
            Err(Misfit::EpisodeDecreases {
                before: 4,
                found: 3
            })
        );
        assert!(matches!(
            index.extend(&[4], &[f64::NAN]),
            Err(Misfit::TimestampNotFinite(_))
        ));
        assert_eq!(index.live().len(), 2);
    }
}
