//! Rows out of columns and into a batch, each copied once, consecutive ones together.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;

use crate::error::Result;
use crate::map::{ReadMap, WriteMap};
use crate::plan::{Answers, Item, ItemWindows, Plan};
use crate::ring::{Ring, Slot};
use crate::threads::{for_each, parts, worth};
use crate::window::{Window, Windows};

/// Memory that a result is written to.
pub type Out<'a> = &'a mut [MaybeUninit<u8>];

/// One column, mapped for reading.
#[derive(Debug)]
pub struct Column {
    map: ReadMap,
    row_bytes: usize,
}

impl Column {
    /// A column whose rows have `row_bytes` bytes, not 0.
    pub fn new(map: ReadMap, row_bytes: usize) -> Self {
        Self { map, row_bytes }
    }

    /// The column, mapped for writing through its file's `path`.
    pub fn open_for_writing(&self, path: &Path) -> Result<WriteMap> {
        WriteMap::open_same(path, &self.map)
    }

    /// Returns once what the file at `path` holds is on the disk.
    pub fn sync(&self, path: &Path) -> Result<()> {
        self.map.sync(path)
    }

    /// The row of a column of float64 scalars.
    pub fn float64(&self, slot: Slot) -> f64 {
        f64::from_bits(self.map.word(slot.0, Ordering::Relaxed))
    }

    /// Consecutive rows of a column of int64 scalars.
    pub fn int64s(&self, slots: Range<usize>) -> Vec<i64> {
        let words = self.map.words(slots).into_iter();
        words.map(u64::cast_signed).collect()
    }

    /// Consecutive rows of a column of float64 scalars.
    pub fn float64s(&self, slots: Range<usize>) -> Vec<f64> {
        let words = self.map.words(slots).into_iter();
        words.map(f64::from_bits).collect()
    }

    /// The row of a column of int64 scalars.
    pub fn int64(&self, slot: Slot) -> i64 {
        self.map.word(slot.0, Ordering::Relaxed).cast_signed()
    }

    /// A row of at most 8 bytes; zeros follow them.
    pub fn small_row(&self, slot: Slot) -> [u8; 8] {
        self.map.few(slot.0 * self.row_bytes, self.row_bytes)
    }

    /// Copies the rows at `slots`, in their order, into `out`, which is exactly as long.
    fn gather(&self, slots: impl ExactSizeIterator<Item = Slot>, out: Out<'_>) {
        assert_eq!(out.len(), slots.len() * self.row_bytes);
        match self.row_bytes {
            1 => self.gather_small::<1>(slots, out),
            4 => self.gather_small::<4>(slots, out),
            8 => self.gather_small::<8>(slots, out),
            _ => slots
                .zip(out.chunks_exact_mut(self.row_bytes))
                .for_each(|(slot, row)| self.copy_from(slot, row)),
        }
    }

    /// As `gather`, with consecutive slots as one copy.
    fn gather_runs(&self, slots: impl Iterator<Item = Slot>, out: Out<'_>) {
        let mut slots = slots.peekable();
        let runs = std::iter::from_fn(|| {
            let first = slots.next()?;
            let mut len = 1;
            while slots.next_if(|slot| slot.0 == first.0 + len).is_some() {
                len += 1;
            }
            Some((first, len))
        });
        self.copy_runs(runs, out);
    }

    /// Copies runs of rows, each by its first slot and its length, one after the other into `out`,
    /// which is exactly as long.
    pub fn copy_runs(&self, runs: impl Iterator<Item = (Slot, usize)>, out: Out<'_>) {
        let mut rest = out;
        for (first, len) in runs {
            let (rows, others) = rest.split_at_mut(len * self.row_bytes);
            self.copy_from(first, rows);
            rest = others;
        }
        assert!(rest.is_empty());
    }

    /// Copies rows from `slot` on into all of `out`.
    pub fn copy_from(&self, slot: Slot, out: Out<'_>) {
        self.map.read(slot.0 * self.row_bytes, out);
    }

    /// As `gather`, for rows of `N` bytes: each copy is one instruction then.
    fn gather_small<const N: usize>(&self, slots: impl Iterator<Item = Slot>, out: Out<'_>) {
        for (slot, row) in slots.zip(out.as_chunks_mut::<N>().0) {
            self.map.read(slot.0 * N, row);
        }
    }
}

/// Where a batch goes: each slice exactly as long as its content.
#[derive(Default)]
pub struct BatchOut<'a> {
    /// Per column: one row per item, or one per item and delta if it is windowed.
    pub columns: Vec<Out<'a>>,
    /// Per window, in their order: a flag (0 or 1) for each of those rows.
    pub pads: Vec<Out<'a>>,
}

impl<'a> BatchOut<'a> {
    /// The same places, for a copy that may have to be repeated.
    pub fn reborrow(&mut self) -> BatchOut<'_> {
        BatchOut {
            columns: self.columns.iter_mut().map(|out| &mut **out).collect(),
            pads: self.pads.iter_mut().map(|out| &mut **out).collect(),
        }
    }

    /// `items` in `parts` parts or fewer, each with its places.
    fn split_evenly(self, items: &'a [Item], parts: usize) -> Vec<(&'a [Item], Self)> {
        let mut rest = self;
        let mut left = items.len();
        let mut split = Vec::with_capacity(parts);
        for items in items.chunks(items.len().div_ceil(parts).max(1)) {
            let (out, others) = rest.split(items.len(), left);
            split.push((items, out));
            rest = others;
            left -= items.len();
        }
        split
    }

    /// The places of the first `part` of `items` items, and those of the others.
    fn split(self, part: usize, items: usize) -> (Self, Self) {
        let halves = |outs: Vec<Out<'a>>| {
            let outs = outs.into_iter();
            outs.map(|out| {
                let bytes = out.len() / items * part;
                out.split_at_mut(bytes)
            })
            .unzip()
        };
        let (columns, other_columns) = halves(self.columns);
        let (pads, other_pads) = halves(self.pads);
        let others = Self {
            columns: other_columns,
            pads: other_pads,
        };
        (Self { columns, pads }, others)
    }
}

/// What a batch is copied from.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The columns.
    pub columns: &'a [Column],
    /// Their ring.
    pub ring: Ring,
    /// The windows of some of them.
    pub windows: &'a Windows,
    /// The frames.
    pub plan: &'a Plan,
}

impl Source<'_> {
    /// Copies the whole batch, on up to `threads` threads.
    pub fn copy(&self, out: BatchOut<'_>, threads: usize) {
        let items = self.plan.items.as_slice();
        let bytes = out.columns.iter().map(|rows| rows.len()).sum();
        let threads = worth(bytes, threads);
        let parts = out.split_evenly(items, parts(threads));
        for_each(parts, threads, |(items, out)| self.copy_items(items, out));
    }

    fn copy_items(&self, items: &[Item], mut out: BatchOut<'_>) {
        for ((window, answers), pads) in self.windows.iter().zip(&self.plan.answers).zip(out.pads) {
            let source = WindowSource {
                column: &self.columns[window.column],
                ring: self.ring,
                window,
                answers,
            };
            source.copy_items(items, std::mem::take(&mut out.columns[window.column]), pads);
        }
        for (position, (column, rows)) in self.columns.iter().zip(out.columns).enumerate() {
            if self.windows.of(position).is_none() {
                column.gather(items.iter().map(|item| item.slot), rows);
            }
        }
    }
}

/// One window of a batch.
struct WindowSource<'a> {
    column: &'a Column,
    ring: Ring,
    window: &'a Window,
    answers: &'a Answers,
}

impl WindowSource<'_> {
    fn copy_items(&self, items: &[Item], rows: Out<'_>, pads: Out<'_>) {
        let len = self.window.deltas.len();
        if len == 0 {
            return;
        }
        let rows = rows.chunks_exact_mut(len * self.column.row_bytes);
        for ((item, rows), pads) in items.iter().zip(rows).zip(pads.chunks_exact_mut(len)) {
            match item.windows {
                ItemWindows::Offsets { before, after } => {
                    self.copy_offsets(item.slot, before, after, rows, pads);
                }
                ItemWindows::Answers(nth) => {
                    let range = nth * len..(nth + 1) * len;
                    self.column
                        .gather_runs(self.answers.slots[range.clone()].iter().copied(), rows);
                    for (pad, &is_pad) in pads.iter_mut().zip(&self.answers.pads[range]) {
                        pad.write(is_pad.into());
                    }
                }
            }
        }
    }

    fn copy_offsets(&self, slot: Slot, before: usize, after: usize, rows: Out<'_>, pads: Out<'_>) {
        let offsets = &self.window.offsets;
        // Neither around the end of the ring nor beyond that of the episode.
        let [until_start, until_end] = [slot.0, self.ring.capacity() - 1 - slot.0];
        if let Some(runs) = offsets.within(before.min(until_start), after.min(until_end)) {
            let runs = runs.iter();
            let runs = runs.map(|run| (self.ring.moved(slot, run.start), run.len));
            self.column.copy_runs(runs, rows);
            pads.fill(MaybeUninit::new(0));
            return;
        }
        let answers = offsets.clamped(before, after).zip(pads);
        let slots = answers.map(|((offset, is_pad), pad)| {
            pad.write(is_pad.into());
            self.ring.moved(slot, offset)
        });
        self.column.gather_runs(slots, rows);
    }
}
