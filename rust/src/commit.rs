//! Writing: the checked batch, and the protocol that puts it into the files.
//!
//! A batch is checked as a whole before the first byte is written. Then (1) a record says that the
//! frames about to be overwritten are no longer live, (2) the columns are written, (3) the next
//! record says that the new frames are. A process killed in between leaves a buffer with every
//! committed frame that was not about to be overwritten, and with none that is half written.

use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::directory::{Directory, NEXT_INDEX_FILE, OCCUPANCY_MASK_FILE};
use crate::episodes::{Episodes, Misfit};
use crate::error::{Error, Result};
use crate::format::Record;
use crate::lock::WriterLock;
use crate::map::WriteMap;
use crate::ring::{Frames, Ring, Seq};
use crate::spec::{EPISODE_INDEX_KEY, INDEX_KEY, Spec, TIMESTAMP_KEY};
use crate::state::StateWriter;

/// Whole episodes to insert: for each column, in the spec's order, the rows' bytes.
pub struct Batch<'a> {
    rows: Vec<&'a [u8]>,
    len: usize,
    episodes: u64,
    last_index: i64,
    largest_index: i64,
    last_episode: i64,
}

impl<'a> Batch<'a> {
    /// Checks `len` frames, given as one run of bytes per column of `spec`.
    pub fn new(spec: &Spec, rows: Vec<&'a [u8]>, len: usize) -> Result<Self> {
        for (column, bytes) in spec.columns().iter().zip(&rows) {
            if bytes.len() != column.row_bytes * len {
                return Err(Error::argument(
                    format!("data[{:?}]", column.key),
                    format!("{} bytes for {len} frames", column.row_bytes * len),
                    bytes.len().to_string(),
                ));
            }
        }
        let own = spec.own();
        let mut batch = Self {
            rows,
            len,
            episodes: 0,
            last_index: -1,
            largest_index: -1,
            last_episode: -1,
        };
        if len == 0 {
            return Ok(batch);
        }
        check_first(INDEX_KEY, int64s(batch.rows[own.index]))?;
        check_first(EPISODE_INDEX_KEY, int64s(batch.rows[own.episode_index]))?;
        batch.last_index = int64s(batch.rows[own.index]).last().unwrap_or(-1);
        batch.largest_index = int64s(batch.rows[own.index]).max().unwrap_or(-1);
        let episodes = check_episodes(batch.rows[own.episode_index], batch.rows[own.timestamp])?;
        batch.episodes = episodes.len() as u64;
        batch.last_episode = episodes.iter().last().map_or(-1, |episode| episode.number);
        Ok(batch)
    }

    /// The number of frames.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no frames.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

fn int64s(bytes: &[u8]) -> impl Iterator<Item = i64> + '_ {
    bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|bytes| i64::from_le_bytes(*bytes))
}

fn check_first(key: &str, mut values: impl Iterator<Item = i64>) -> Result<()> {
    match values.next() {
        Some(0) | None => Ok(()),
        Some(other) => Err(Error::argument(
            format!("data[{key:?}]"),
            "0 for the first frame",
            other.to_string(),
        )),
    }
}

/// Indexes the frames as if they were alone, which is what they must be fit for.
fn check_episodes(numbers: &[u8], timestamps: &[u8]) -> Result<Episodes> {
    let mut episodes = Episodes::empty_at(Seq(0), None);
    let timestamps = int64s(timestamps).map(|bits| f64::from_bits(bits.cast_unsigned()));
    for (frame, (number, timestamp)) in int64s(numbers).zip(timestamps).enumerate() {
        episodes
            .push(number, timestamp)
            .map_err(|misfit| match misfit {
                Misfit::EpisodeDecreases { before, found } => Error::argument(
                    format!("data[{EPISODE_INDEX_KEY:?}]"),
                    "whole episodes in order, so that no value is less than the one before",
                    format!("{found} after {before} at frame {frame}"),
                ),
                Misfit::TimestampNotFinite(timestamp) => Error::argument(
                    format!("data[{TIMESTAMP_KEY:?}]"),
                    "finite seconds",
                    format!("{timestamp} at frame {frame}"),
                ),
            })?;
    }
    Ok(episodes)
}

/// What was added to the batch's `index` and `episode_index`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shift {
    /// Added to `index`.
    pub index: i64,
    /// Added to `episode_index`.
    pub episode: i64,
}

/// The right to write a directory, with its files mapped for that.
#[derive(Debug)]
pub struct Writer {
    lock: WriterLock,
    ring: Ring,
    columns: Vec<WriteMap>,
    row_bytes: Vec<usize>,
    /// Positions of `index` and `episode_index`.
    shifted: [usize; 2],
    state: StateWriter,
    next_index: WriteMap,
    occupancy_mask: WriteMap,
}

impl Writer {
    /// Takes the lock and maps the files; finishes what a killed writer left undone.
    pub fn open(directory: &Directory) -> Result<Self> {
        let lock = WriterLock::acquire(&directory.path)?;
        let (path, spec) = (&directory.path, &directory.manifest.spec);
        let capacity = directory.manifest.capacity;
        let columns = spec.columns().iter().map(|column| {
            WriteMap::open(&path.join(column.file_name()), column.row_bytes * capacity)
        });
        let mut writer = Self {
            lock,
            ring: Ring::new(capacity),
            columns: columns.collect::<Result<_>>()?,
            row_bytes: spec
                .columns()
                .iter()
                .map(|column| column.row_bytes)
                .collect(),
            shifted: [spec.own().index, spec.own().episode_index],
            state: StateWriter::open(path)?,
            next_index: WriteMap::open(&path.join(NEXT_INDEX_FILE), 8)?,
            occupancy_mask: WriteMap::open(&path.join(OCCUPANCY_MASK_FILE), capacity)?,
        };
        let record = directory.state.load()?;
        if writer.state.mirrored() != record.generation {
            writer.rebuild_mirror(&record);
        }
        Ok(writer)
    }

    /// Whether this process may write: a forked child may not use its parent's writer.
    pub fn is_ours(&self) -> bool {
        self.lock.is_ours()
    }

    /// Inserts a batch after the frames of `record`, the one in force.
    pub fn append(&mut self, record: &Record, batch: &Batch<'_>) -> Result<Shift> {
        if batch.is_empty() {
            return Ok(Shift::default());
        }
        let (shift, next) = self.plan(record, batch)?;
        let publish = Record {
            generation: record.generation + 1,
            live: Frames {
                first: next.live.first.min(record.live.end),
                end: record.live.end,
            },
            writing: Frames {
                first: next.live.first.max(record.live.end),
                end: next.live.end,
            },
            ..*record
        };
        self.state.store(&publish);
        self.mirror(
            Frames {
                first: record.live.first,
                end: publish.live.first,
            },
            false,
        );
        self.write_columns(publish.writing, batch, shift);
        self.state.store(&next);
        self.mirror(publish.writing, true);
        self.finish_mirror(&next);
        Ok(shift)
    }

    /// The record that will follow `record` and `batch`, if their numbers fit.
    fn plan(&self, record: &Record, batch: &Batch<'_>) -> Result<(Shift, Record)> {
        let shift = Shift {
            index: record.next_index,
            episode: record.next_episode,
        };
        let after = |key: &str, largest: i64, last: i64, shift: i64| {
            // The largest must fit, and so must the number after the last.
            largest
                .checked_add(shift)
                .and_then(|_| last.checked_add(shift)?.checked_add(1))
                .ok_or_else(|| {
                    Error::argument(
                        format!("data[{key:?}]"),
                        format!("values that fit int64 after {shift} is added"),
                        largest.max(last).to_string(),
                    )
                })
        };
        let next = Record {
            generation: record.generation + 2,
            live: self.ring.live_after(record.live, batch.len as u64),
            episodes: record.episodes + batch.episodes,
            next_index: after(
                INDEX_KEY,
                batch.largest_index,
                batch.last_index,
                shift.index,
            )?,
            next_episode: after(
                EPISODE_INDEX_KEY,
                batch.last_episode,
                batch.last_episode,
                shift.episode,
            )?,
            writing: Frames {
                first: Seq(record.live.end.0 + batch.len as u64),
                end: Seq(record.live.end.0 + batch.len as u64),
            },
        };
        Ok((shift, next))
    }

    /// Writes the last `frames.len()` frames of the batch into the slots of `frames`.
    fn write_columns(&mut self, frames: Frames, batch: &Batch<'_>, shift: Shift) {
        let runs = self.ring.runs(frames.first, frames.len());
        let skipped = batch.len - frames.len();
        for (position, rows) in batch.rows.iter().enumerate() {
            let row_bytes = self.row_bytes[position];
            let mut rest = &rows[skipped * row_bytes..];
            for run in &runs {
                let (rows, others) = rest.split_at(run.len() * row_bytes);
                match self.shifted.iter().position(|&shifted| shifted == position) {
                    Some(0) => write_shifted(&self.columns[position], run, rows, shift.index),
                    Some(_) => write_shifted(&self.columns[position], run, rows, shift.episode),
                    None => self.columns[position].write(run.start * row_bytes, rows),
                }
                rest = others;
            }
        }
    }

    fn mirror(&mut self, frames: Frames, live: bool) {
        for run in self.ring.runs(frames.first, frames.len()) {
            self.occupancy_mask.fill(run.start, run.len(), live.into());
        }
    }

    fn finish_mirror(&mut self, record: &Record) {
        let next = self.ring.slot(record.live.end).0 as u64;
        self.next_index.words()[0].store(next, Ordering::Release);
        self.state.set_mirrored(record.generation);
    }

    fn rebuild_mirror(&mut self, record: &Record) {
        self.occupancy_mask.fill(0, self.ring.capacity(), 0);
        self.mirror(record.live, true);
        self.finish_mirror(record);
    }
}

fn write_shifted(column: &WriteMap, run: &Range<usize>, rows: &[u8], shift: i64) {
    for (word, value) in column.words()[run.clone()].iter().zip(int64s(rows)) {
        word.store((value + shift).cast_unsigned(), Ordering::Relaxed);
    }
}
