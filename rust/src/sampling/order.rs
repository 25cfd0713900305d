//! One epoch over the frames of a buffer's episodes, in order or shuffled.
//!
//! Frames are counted back from the newest one that the epoch has. That count stays what it is when
//! frames are evicted or added, so an epoch can be gone on with later, and in another process, from
//! its end, its length and the place reached.

use crate::buffer::Buffer;
use crate::episodes::Episode;
use crate::error::{Error, Result};
use crate::memory::collected;
use crate::ring::{Frames, Seq};
use crate::sampling::kept::{Ranges, kept_frames};
use crate::sampling::permutation::Permutation;

/// Which frames of a buffer's episodes are drawn.
#[derive(Clone, Debug)]
pub struct Choice {
    /// How many frames at the beginning of each episode are not: what is left of it, if it has lost some.
    pub drop_n_first: u64,
    /// How many frames at the end of each episode are not.
    pub drop_n_last: u64,
    /// The numbers of the episodes, in order. None for all.
    pub episodes: Option<Vec<i64>>,
}

impl Choice {
    fn has(&self, number: i64) -> bool {
        let numbers = self.episodes.as_ref();
        numbers.is_none_or(|numbers| numbers.binary_search(&number).is_ok())
    }

    /// The frames of an episode.
    fn of(&self, episode: Episode) -> Frames {
        match self.has(episode.number) {
            true => kept_frames(episode.frames, self.drop_n_first, self.drop_n_last),
            false => Frames::none_at(episode.frames.first),
        }
    }

    /// How many frames of a buffer are drawn now.
    pub fn count(&self, buffer: &Buffer) -> Result<u64> {
        buffer.with_episodes(|episodes, _| {
            let counts = episodes.iter().map(|episode| self.of(episode).len() as u64);
            counts.sum()
        })
    }
}

/// An epoch.
#[derive(Clone, Debug)]
pub struct Order {
    /// As its choice of frames has it.
    drop_n_first: u64,
    /// The frame after the newest one.
    end: Seq,
    /// The number of frames.
    len: u64,
    /// Those of them that are live, by how far before `end - 1` they are.
    ages: Ranges,
    /// None where they come in order.
    permutation: Option<Permutation>,
}

/// Where an epoch ends, and how many frames it has.
pub type Extent = (u64, u64);

impl Order {
    /// The epoch that begins now, or the one that once began with `extent`; shuffled by a seed and
    /// its number, if they are given.
    pub fn new(
        buffer: &Buffer,
        choice: &Choice,
        extent: Option<Extent>,
        shuffled: Option<(u64, u64)>,
    ) -> Result<Self> {
        let (live, ages) = buffer.with_episodes(|episodes, _| {
            let live = episodes.live();
            let end = extent.map_or(live.end.0, |(end, _)| end);
            let newest_first = episodes.iter().rev();
            let of_the_epoch = newest_first.filter(|episode| episode.frames.end.0 <= end);
            let ages = Ranges::new(of_the_epoch.map(|episode| {
                let kept = choice.of(episode);
                end - kept.end.0..end - kept.first.0
            }));
            (live, ages)
        })?;
        let ages = ages?;
        let (end, len) = extent.unwrap_or((live.end.0, ages.len()));
        if end > live.end.0 || ages.len() > len {
            return Err(Error::argument(
                "state",
                "one of an epoch over this buffer, drawn by the same arguments",
                format!(
                    "{len} frames before frame {end} in a buffer that has {} of them now, and ends \
                     with frame {}",
                    ages.len(),
                    live.end.0,
                ),
            ));
        }
        let permutation = shuffled.map(|(seed, epoch)| Permutation::new(len, seed, epoch));
        Ok(Self {
            drop_n_first: choice.drop_n_first,
            end: Seq(end),
            len,
            ages,
            permutation: permutation.transpose()?,
        })
    }

    /// Where it ends, and how many frames it has.
    pub fn extent(&self) -> Extent {
        (self.end.0, self.len)
    }

    /// The positions of the frames at some places below the length, as the buffer has them now,
    /// without those that were evicted.
    pub fn positions(
        &self,
        buffer: &Buffer,
        places: impl Iterator<Item = u64>,
    ) -> Result<Vec<i64>> {
        buffer.with_episodes(|episodes, by_slot| {
            let first_live = episodes.live().first.0;
            let positions = places.filter_map(|place| {
                let number = self.permutation.as_ref().map_or(place, |p| p.at(place));
                let age = self.ages.nth(self.len - 1 - number)?;
                let frame = self.end.0 - 1 - age;
                // One at the beginning of an episode has to have its frames before it, too.
                let is_kept = first_live.saturating_add(self.drop_n_first) <= frame;
                is_kept.then(|| by_slot.position(Seq(frame)) as i64)
            });
            collected(positions, "draws")
        })?
    }
}
