//! Deltas as fixed numbers of frames, where that provably answers as the search would, to the bit.
//!
//! An episode is *uniform* if every timestamp lies within [`JITTER`] of a line through its first
//! one that rises by `1/fps` per frame. Let a delta be `k` frames and `r` seconds. Then, for a frame
//! `j` frames after the item, the distance `|query - t|` is `|k - j| / fps` give or take
//!
//! `E = |r| + 2 JITTER + ROUNDING`.
//!
//! If `2 E < 1 / fps`, the frame with `j = k` is the nearest, with no tie; and if the episode does
//! not reach that far, the end of it that is closest to `k` is, the query lies outside, and the
//! distance is that of `x = |k - j|` frames. It is padding if `x / fps - E` exceeds the tolerance
//! and none if `x / fps + E` does not; offsets are *proven* if every `x` is one or the other.

use crate::error::Result;
use crate::memory::collected;

/// What is asked for, where there is no memory.
pub const DELTAS: &str = "deltas";
/// How far, in seconds, a uniform episode's timestamps may be from their line. Enough for
/// timestamps that were rounded to `float32` within the first eight minutes of an episode.
const JITTER: f64 = 2.5e-5;
/// Timestamps and deltas up to this many seconds are considered.
const LARGEST: f64 = (1u64 << 31) as f64;
/// Bounds the sum of all rounding errors, for numbers up to `LARGEST`: about eight operations whose
/// results are below `4 LARGEST`, each off by at most half a unit in the last place, 4.8e-7.
const ROUNDING: f64 = 5e-6;
/// No two numbers that are considered are further apart.
const FURTHEST: f64 = 4.0 * LARGEST;

/// The line that an episode's timestamps are compared with.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    start: f64,
    step: f64,
}

impl Line {
    /// From `start` on, `step` seconds per frame.
    pub fn new(start: f64, step: f64) -> Self {
        Self { start, step }
    }

    /// Whether timestamps, the first of them `frames` after the start, are on the line as those
    /// of a uniform episode must be.
    pub fn holds(&self, frames: u64, timestamps: &[f64]) -> bool {
        let hold = timestamps.iter().zip(0u32..).map(|(timestamp, frame)| {
            let expected = self.start + (frames as f64 + f64::from(frame)) * self.step;
            (timestamp.abs() <= LARGEST) & ((timestamp - expected).abs() <= JITTER)
        });
        hold.fold(true, |all, holds| all & holds)
    }
}

/// Consecutive offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first.
    pub start: i64,
    /// How many.
    pub len: usize,
}

/// The deltas of one window as offsets in frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offsets {
    each: Vec<i64>,
    runs: Vec<Run>,
    lowest: i64,
    highest: i64,
    /// An end of the episode answers queries up to this many frames beyond it without being
    /// padding. None if the offsets are not proven.
    reach: Option<u64>,
}

impl Offsets {
    /// The offsets nearest to `deltas`.
    pub fn new(deltas: &[f64], fps: f64, tolerance: f64) -> Result<Self> {
        // Out of range these saturate, and are not proven.
        let each = deltas.iter().map(|delta| (delta * fps).round() as i64);
        let each: Vec<i64> = collected(each, DELTAS)?;
        Ok(Self {
            reach: reach(deltas, &each, 1.0 / fps, tolerance),
            runs: runs(&each)?,
            lowest: each.iter().copied().min().unwrap_or(0),
            highest: each.iter().copied().max().unwrap_or(0),
            each,
        })
    }

    /// For each delta, the offset nearest to it.
    pub fn each(&self) -> &[i64] {
        &self.each
    }

    /// Whether the offsets answer as the search would, in uniform episodes.
    pub fn are_proven(&self) -> bool {
        self.reach.is_some()
    }

    /// The offsets as runs, if an item with so many frames of its episode before and after it has
    /// them all.
    pub fn within(&self, before: usize, after: usize) -> Option<&[Run]> {
        let inside = self.lowest >= -(before as i64) && self.highest <= after as i64;
        inside.then_some(&self.runs)
    }

    /// For each delta, the offset of the frame that answers it and whether that is padding.
    pub fn clamped(&self, before: usize, after: usize) -> impl Iterator<Item = (i64, bool)> + '_ {
        let (before, after) = (-(before as i64), after as i64);
        let reach = self.reach.unwrap_or(0);
        self.each.iter().map(move |&offset| {
            let answer = offset.clamp(before, after);
            (answer, offset.abs_diff(answer) > reach)
        })
    }
}

/// The largest number of frames beyond an end that surely is no padding, if one more surely is.
fn reach(deltas: &[f64], offsets: &[i64], step: f64, tolerance: f64) -> Option<u64> {
    if !deltas.iter().all(|delta| delta.abs() <= LARGEST) {
        return None;
    }
    let remainders = deltas
        .iter()
        .zip(offsets)
        .map(|(delta, &offset)| (delta - offset as f64 * step).abs());
    let error = remainders.fold(0.0, f64::max) + 2.0 * JITTER + ROUNDING;
    if 2.0 * error >= step {
        return None;
    }
    if tolerance > FURTHEST {
        return Some(u64::MAX);
    }
    let reach = ((tolerance - error) / step).floor();
    let decided = reach >= 0.0
        && reach * step + error <= tolerance
        && (reach + 1.0) * step - error > tolerance;
    decided.then_some(reach as u64)
}

fn runs(offsets: &[i64]) -> Result<Vec<Run>> {
    let runs = offsets.chunk_by(|offset, next| offset + 1 == *next);
    let runs = runs.map(|run| Run {
        start: run[0],
        len: run.len(),
    });
    collected(runs, DELTAS)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::window::nearest_of_all;
    use proptest::prelude::*;
    use proptest::sample::select;

    /// As far off the line as a uniform episode's timestamps may be.
    fn jitter() -> impl Strategy<Value = f64> {
        select(vec![0.0, 1e-9, -1e-9, 2e-5, -2e-5, 2.4999e-5, -2.4999e-5])
    }

    /// How far off a whole number of frames: up to where doubts begin, and beyond.
    fn remainder() -> impl Strategy<Value = f64> {
        select(vec![0.0, 1e-9, -2e-5, -4e-5, 4.5e-5, -5e-5, 5.5e-5, 1.1e-4])
    }

    fn tolerance() -> impl Strategy<Value = (f64, f64)> {
        let frames = select(vec![0.0, 0.5, 1.0, 2.0, 2.5, 3.0, f64::INFINITY]);
        (frames, select(vec![-1.1e-4, -1e-4, -5e-5, 0.0, 5e-5, 1e-4]))
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 20_000,
            max_global_rejects: 200_000,
            ..ProptestConfig::default()
        })]

        #[test]
        fn proven_offsets_answer_as_the_rule_does(
            fps in select(vec![1.0, 10.0, 29.97, 30.0, 50.0, 60.0, 1000.0, 5000.0]),
            start in select(vec![0.0, 0.1, -7.3, 12_345.678, 1.7e9, LARGEST - 0.01]),
            jitter in proptest::collection::vec(jitter(), 0..12),
            delta in (-8i32..14, remainder()),
            tolerance in tolerance(),
        ) {
            let frames = std::iter::once(0.0).chain(jitter).enumerate();
            let times: Vec<f64> = frames.map(|(i, off)| start + i as f64 / fps + off).collect();
            let line = Line::new(start, 1.0 / fps);
            prop_assume!(line.holds(0, &times));
            let delta = f64::from(delta.0) / fps + delta.1;
            let tolerance = tolerance.0 / fps + tolerance.1;
            let offsets = Offsets::new(&[delta], fps, tolerance).unwrap();
            prop_assume!(offsets.are_proven());
            let (first, last) = (times[0], times[times.len() - 1]);
            for (item, time) in times.iter().enumerate() {
                let query = time + delta;
                let (nearest, distance) = nearest_of_all(times.iter().copied(), query);
                let is_pad = distance > tolerance;
                prop_assert!(!(is_pad && first <= query && query <= last));
                let (before, after) = (item, times.len() - 1 - item);
                let answers: Vec<_> = offsets.clamped(before, after).collect();
                prop_assert_eq!(&answers, &[(nearest as i64 - item as i64, is_pad)]);
                if let Some(runs) = offsets.within(before, after) {
                    prop_assert_eq!(runs, &[Run { start: answers[0].0, len: 1 }]);
                    prop_assert!(!is_pad);
                }
            }
        }
    }

    #[test]
    fn common_deltas_are_proven() {
        for fps in [10.0, 24.0, 29.97, 30.0, 50.0, 60.0, 100.0, 1000.0] {
            let deltas: Vec<f64> = (-2..17).map(|k| f64::from(k) / fps).collect();
            let offsets = Offsets::new(&deltas, fps, 1.0 / fps - 1e-4).unwrap();
            assert_eq!(offsets.runs, [Run { start: -2, len: 19 }]);
            assert_eq!(offsets.reach, Some(0));
        }
        let offsets = Offsets::new(&[-0.0333, 0.0], 30.0, 1.0 / 30.0 - 1e-4).unwrap();
        assert_eq!(offsets.each, [-1, 0]);
        assert!(offsets.are_proven());
    }

    #[test]
    fn what_leaves_a_doubt_is_not_proven() {
        let tolerance = 1.0 / 50.0 - 1e-4;
        for (delta, fps, tolerance) in [
            (0.009, 50.0, tolerance),
            (0.0, 50.0, 0.0),
            (0.0, 50.0, 0.02), // one frame beyond is a matter of rounding
            (1e300, 50.0, tolerance),
            (0.0, 9_999.0, 1.0),
            (0.0, 50.0, f64::NAN),
        ] {
            assert!(
                !Offsets::new(&[delta], fps, tolerance).unwrap().are_proven(),
                "{delta} {fps} {tolerance}"
            );
        }
    }

    #[test]
    fn a_line_holds_what_is_near_it() {
        let line = Line::new(10.0, 0.02);
        assert!(line.holds(0, &[10.0, 10.02]) && line.holds(5, &[10.1, 10.120_024]));
        assert!(!line.holds(5, &[10.1, 10.120_026]) && !line.holds(4, &[10.1]));
        assert!(!Line::new(2.0 * LARGEST, 0.02).holds(0, &[2.0 * LARGEST]));
    }

    #[test]
    fn the_ends_answer_what_lies_beyond() {
        let offsets = Offsets::new(&[-0.04, 0.0, 0.02, 0.1], 50.0, 0.03).unwrap();
        assert_eq!(offsets.reach, Some(1));
        assert_eq!(offsets.within(1, 5), None);
        assert_eq!(offsets.within(2, 5).unwrap().len(), 3);
        let answers: Vec<_> = offsets.clamped(1, 3).collect();
        assert_eq!(answers, [(-1, false), (0, false), (1, false), (3, true)]);
    }
}
