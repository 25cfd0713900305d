//! Which frames are drawn: those of whole episodes but for some at either end.

use std::ops::Range;

use crate::episodes::Episodes;
use crate::error::{Error, Result};
use crate::memory::{collected, with_room};
use crate::ring::{Frames, LiveBySlot, Seq};
use crate::search::first_where;

/// What an error says of where episodes begin and end.
const EPISODE_BOUNDS: &str = "episode bounds";

/// Disjoint ranges of numbers, counted through one after the other.
#[derive(Clone, Debug, Default)]
pub struct Ranges {
    ranges: Vec<Range<u64>>,
    /// How many numbers there are up to the end of each range.
    counts: Vec<u64>,
}

impl Ranges {
    /// These ranges, without the empty ones.
    pub fn new(ranges: impl Iterator<Item = Range<u64>>) -> Result<Self> {
        let ranges = collected(ranges.filter(|range| !range.is_empty()), EPISODE_BOUNDS)?;
        let mut counts = with_room(ranges.len(), EPISODE_BOUNDS)?;
        let mut count = 0;
        for range in &ranges {
            count += range.end - range.start;
            counts.push(count);
        }
        Ok(Self { ranges, counts })
    }

    /// How many numbers they hold.
    pub fn len(&self) -> u64 {
        self.counts.last().copied().unwrap_or(0)
    }

    /// Whether they hold none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The `n`-th number, if there are more than `n`.
    pub fn nth(&self, n: u64) -> Option<u64> {
        if n >= self.len() {
            return None;
        }
        // Exact for ranges of one length, and the search is short where they differ little.
        let guess = (n as f64 / self.len() as f64 * self.counts.len() as f64) as usize;
        let at = first_where(self.counts.len(), guess, |at| self.counts[at] > n);
        Some(self.ranges[at].end - (self.counts[at] - n))
    }

    /// The ranges, in their order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ranges.iter().cloned()
    }
}

/// The frames of an episode but some at either end.
pub fn kept_frames(frames: Frames, drop_n_first: u64, drop_n_last: u64) -> Frames {
    let (first, end) = (frames.first.0, frames.end.0);
    let first = first.saturating_add(drop_n_first).min(end);
    Frames {
        first: Seq(first),
        end: Seq(end.saturating_sub(drop_n_last).max(first)),
    }
}

/// The positions of all live frames but the last `drop_n_last` of each episode.
pub fn kept_positions(
    episodes: &Episodes,
    by_slot: &LiveBySlot,
    drop_n_last: u64,
) -> Result<Ranges> {
    Ranges::new(episodes.iter().flat_map(|episode| {
        let kept = kept_frames(episode.frames, 0, drop_n_last);
        let ranges = by_slot.positions(kept.first, kept.end);
        ranges.map(|range| range.start as u64..range.end as u64)
    }))
}

/// The frames of a dataset of `len` frames but the last `drop_n_last` of each episode. `bounds` are
/// where its episodes begin and end, in any order; `name` is the dataset's, for the error.
pub fn kept_of_dataset(
    name: &str,
    len: usize,
    mut bounds: Vec<(i64, i64)>,
    drop_n_last: u64,
) -> Result<Ranges> {
    bounds.sort_unstable();
    let mut previous_end = 0;
    for &(from, to) in &bounds {
        let fits = previous_end <= from && from <= to && to.cast_unsigned() <= len as u64;
        if !fits {
            return Err(Error::argument(
                name,
                format!("episodes that do not overlap, within its {len} frames"),
                format!("an episode from {from} to {to}"),
            ));
        }
        previous_end = to;
    }
    let bounds = bounds.into_iter();
    Ranges::new(bounds.map(|(from, to)| {
        let (from, to) = (from.cast_unsigned(), to.cast_unsigned());
        from..to.saturating_sub(drop_n_last).max(from)
    }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_count_like_their_numbers(parts in proptest::collection::vec((0u64..5, 0u64..5), 0..20)) {
            let mut end = 0;
            let ranges: Vec<_> = parts
                .into_iter()
                .map(|(skipped, len)| {
                    let start = end + skipped;
                    end = start + len;
                    start..end
                })
                .collect();
            let expected: Vec<u64> = ranges.iter().cloned().flatten().collect();
            let counted = Ranges::new(ranges.into_iter()).unwrap();
            prop_assert_eq!(counted.len(), expected.len() as u64);
            prop_assert_eq!(counted.is_empty(), expected.is_empty());
            let got: Vec<_> = (0..counted.len()).map(|n| counted.nth(n).unwrap()).collect();
            prop_assert_eq!(got, expected);
            prop_assert_eq!(counted.nth(counted.len()), None);
        }
    }
}
