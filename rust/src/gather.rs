//! Rows out of a column and into a result, runs of consecutive slots as one copy.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::map::ReadMap;
use crate::ring::Slot;

/// One column, mapped for reading.
#[derive(Debug)]
pub struct Column {
    map: ReadMap,
    row_bytes: usize,
}

impl Column {
    /// A column whose rows have `row_bytes` bytes.
    pub fn new(map: ReadMap, row_bytes: usize) -> Self {
        Self { map, row_bytes }
    }

    /// The row of a column of int64 scalars.
    pub fn int64(&self, slot: Slot) -> i64 {
        self.map.word(slot.0, Ordering::Relaxed).cast_signed()
    }

    /// The row of a column of float64 scalars.
    pub fn float64(&self, slot: Slot) -> f64 {
        f64::from_bits(self.map.word(slot.0, Ordering::Relaxed))
    }

    /// Copies the rows at `slots`, in their order, into `out`, which is exactly as long.
    pub fn gather(&self, slots: &[Slot], out: &mut [MaybeUninit<u8>]) {
        assert_eq!(out.len(), slots.len() * self.row_bytes);
        let mut rest = out;
        for run in slots.chunk_by(|slot, next| slot.0 + 1 == next.0) {
            let (rows, others) = rest.split_at_mut(run.len() * self.row_bytes);
            self.map.read(run[0].0 * self.row_bytes, rows);
            rest = others;
        }
    }

    /// Copies ranges of slots one after the other into `out`, which is exactly as long.
    pub fn copy_ranges(&self, ranges: &[Range<usize>], out: &mut [MaybeUninit<u8>]) {
        let mut rest = out;
        for range in ranges {
            let (rows, others) = rest.split_at_mut(range.len() * self.row_bytes);
            self.map.read(range.start * self.row_bytes, rows);
            rest = others;
        }
        assert!(rest.is_empty());
    }
}
