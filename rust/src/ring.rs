//! The arithmetic of the ring: sequence numbers, slots and the live range. No I/O.
//!
//! Frame `s` (counted from the first ever added) lives in slot `s % capacity`. The live frames are
//! a range of sequence numbers no longer than the capacity, so each slot holds at most one.

use std::ops::Range;

/// A frame's sequence number: how many frames were added before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seq(pub u64);

/// A row of every column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot(pub usize);

/// Consecutive frames: those from `first` up to, not including, `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frames {
    /// The oldest.
    pub first: Seq,
    /// The frame after the newest.
    pub end: Seq,
}

impl Frames {
    /// None, before the frame `at`.
    pub fn none_at(at: Seq) -> Self {
        Self { first: at, end: at }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        (self.end.0 - self.first.0) as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.first == self.end
    }
}

/// A ring of a fixed number of slots, at least one.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    capacity: usize,
}

impl Ring {
    /// A ring of `capacity` slots; `capacity` is not 0 (the manifest guarantees it).
    pub fn new(capacity: usize) -> Self {
        debug_assert!(capacity > 0);
        Self { capacity }
    }

    /// The number of slots.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Where a frame lives.
    pub fn slot(&self, seq: Seq) -> Slot {
        Slot((seq.0 % self.capacity as u64) as usize)
    }

    /// The slot `offset` (nearer to 0 than the capacity is) from `slot`, around the ends.
    pub fn moved(&self, slot: Slot, offset: i64) -> Slot {
        let moved = slot.0 as i64 + offset;
        let capacity = self.capacity as i64;
        Slot(if moved < 0 {
            moved + capacity
        } else if moved >= capacity {
            moved - capacity
        } else {
            moved
        } as usize)
    }

    /// The slots of `len` (at most the capacity) frames from `first`: one or two ranges, the second
    /// empty unless the frames wrap.
    pub fn runs(&self, first: Seq, len: usize) -> [Range<usize>; 2] {
        let start = self.slot(first).0;
        let until_end = len.min(self.capacity - start);
        [start..start + until_end, 0..len - until_end]
    }

    /// What is live once `added` frames follow those of `live`.
    pub fn live_after(&self, live: Frames, added: u64) -> Frames {
        let end = Seq(live.end.0 + added);
        let first = live
            .first
            .max(Seq(end.0.saturating_sub(self.capacity as u64)));
        Frames { first, end }
    }

    /// The live frames in slot order.
    pub fn by_slot(&self, live: Frames) -> LiveBySlot {
        let lap = live.end.0 - live.end.0 % self.capacity as u64;
        LiveBySlot {
            newest: live.first.0.max(lap)..live.end.0,
            older: live.first.0.min(lap)..lap,
            lap,
            capacity: self.capacity as u64,
        }
    }
}

/// The live frames of one moment in slot order: the newest lap's, then those left of the one before.
#[derive(Clone, Debug)]
pub struct LiveBySlot {
    newest: Range<u64>,
    older: Range<u64>,
    /// The frame of the newest lap's slot 0.
    lap: u64,
    capacity: u64,
}

impl LiveBySlot {
    /// The frame at `position` (below the number of live frames), and its slot.
    pub fn nth(&self, position: usize) -> (Seq, Slot) {
        let newest_len = self.newest.end - self.newest.start;
        let position = position as u64;
        if position < newest_len {
            let seq = self.newest.start + position;
            (Seq(seq), Slot((seq - self.lap) as usize))
        } else {
            let seq = self.older.start + (position - newest_len);
            (Seq(seq), Slot((seq + self.capacity - self.lap) as usize))
        }
    }

    /// The position of a live frame: the inverse of `nth`.
    pub fn position(&self, seq: Seq) -> usize {
        let newest_len = self.newest.end - self.newest.start;
        let position = match seq.0 >= self.newest.start {
            true => seq.0 - self.newest.start,
            false => newest_len + (seq.0 - self.older.start),
        };
        position as usize
    }

    /// The live frame in a slot that has one.
    pub fn in_slot(&self, slot: Slot) -> Seq {
        let seq = self.lap + slot.0 as u64;
        match seq < self.newest.end {
            true => Seq(seq),
            false => Seq(seq - self.capacity),
        }
    }

    /// The positions of the live frames `first..end`: one or two ranges.
    pub fn positions(&self, first: Seq, end: Seq) -> [Range<usize>; 2] {
        let older_offset = self.newest.end - self.newest.start;
        let overlap = |part: &Range<u64>, offset: u64| {
            let start = part.start.max(first.0);
            let stop = part.end.min(end.0).max(start);
            (start - part.start + offset) as usize..(stop - part.start + offset) as usize
        };
        [overlap(&self.newest, 0), overlap(&self.older, older_offset)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The slots of a ring filled one frame at a time: the obvious model.
    fn filled(capacity: usize, live: Frames) -> Vec<Option<u64>> {
        let mut slots = vec![None; capacity];
        for seq in live.first.0..live.end.0 {
            slots[(seq % capacity as u64) as usize] = Some(seq);
        }
        slots
    }

    fn ring_and_live() -> impl Strategy<Value = (Ring, Frames)> {
        (1usize..40, 0u64..200).prop_flat_map(|(capacity, end)| {
            let most = (capacity as u64).min(end);
            (Just(capacity), Just(end), 0..=most).prop_map(|(capacity, end, len)| {
                (
                    Ring::new(capacity),
                    Frames {
                        first: Seq(end - len),
                        end: Seq(end),
                    },
                )
            })
        })
    }

    proptest! {
        #[test]
        fn nth_reads_the_slots_in_order((ring, live) in ring_and_live()) {
            let expected: Vec<u64> =
                filled(ring.capacity(), live).into_iter().flatten().collect();
            let by_slot = ring.by_slot(live);
            let got: Vec<u64> = (0..live.len()).map(|i| by_slot.nth(i).0.0).collect();
            prop_assert_eq!(got, expected);
            for (seq, slot) in (0..live.len()).map(|i| by_slot.nth(i)) {
                prop_assert_eq!(slot, ring.slot(seq));
                prop_assert_eq!(by_slot.in_slot(slot), seq);
            }
            let positions = (0..live.len()).map(|i| by_slot.position(by_slot.nth(i).0));
            prop_assert!(positions.eq(0..live.len()));
        }

        #[test]
        fn positions_invert_nth((ring, live) in ring_and_live(), a in 0usize..40, b in 0usize..40) {
            let (a, b) = (a.min(live.len()), b.min(live.len()));
            let (first, end) = (Seq(live.first.0 + a.min(b) as u64), Seq(live.first.0 + a.max(b) as u64));
            let by_slot = ring.by_slot(live);
            let mut got: Vec<u64> = by_slot
                .positions(first, end)
                .into_iter()
                .flatten()
                .map(|position| by_slot.nth(position).0.0)
                .collect();
            got.sort_unstable();
            prop_assert_eq!(got, (first.0..end.0).collect::<Vec<_>>());
        }

        #[test]
        fn runs_visit_the_slots_of_consecutive_frames(capacity in 1usize..40, first in 0u64..200, len in 0usize..40) {
            let ring = Ring::new(capacity);
            let len = len.min(capacity);
            let expected: Vec<usize> =
                (0..len as u64).map(|i| ((first + i) % capacity as u64) as usize).collect();
            let got: Vec<usize> = ring.runs(Seq(first), len).into_iter().flatten().collect();
            prop_assert_eq!(&got, &expected);
            for (offset, slot) in expected.iter().enumerate() {
                prop_assert_eq!(ring.moved(ring.slot(Seq(first)), offset as i64), Slot(*slot));
                prop_assert_eq!(ring.moved(Slot(*slot), -(offset as i64)), ring.slot(Seq(first)));
            }
        }

        #[test]
        fn live_after_keeps_the_newest((ring, live) in ring_and_live(), added in 0u64..100) {
            let after = ring.live_after(live, added);
            prop_assert_eq!(after.end.0, live.end.0 + added);
            prop_assert_eq!(
                after.len() as u64,
                (live.len() as u64 + added).min(ring.capacity() as u64)
            );
        }
    }
}
