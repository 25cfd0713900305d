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
use crate::rows::Rows;
use crate::spec::{DType, EPISODE_INDEX_KEY, INDEX_KEY, OwnColumns, Spec, TIMESTAMP_KEY};
use crate::state::StateWriter;

/// Whole episodes to insert: for each column, in the spec's order, its rows.
pub struct Batch<'a> {
    rows: Vec<Rows<'a>>,
    len: usize,
    episodes: u64,
    index: Numbers,
    episode_index: Numbers,
}

/// What must be known of a column of numbers that will be shifted.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    smallest: i64,
    largest: i64,
    last: i64,
}

impl<'a> Batch<'a> {
    /// Checks rows, whose types cast to those of `spec`'s columns.
    pub fn new(spec: &Spec, mut rows: Vec<Rows<'a>>) -> Result<Self> {
        let len = rows.first().map_or(0, Rows::len);
        for (column, rows) in spec.columns().iter().zip(&rows) {
            let row_len = column.row_bytes / column.field.dtype.size();
            if (rows.len(), rows.row_len()) != (len, row_len) {
                return Err(Error::argument(
                    format!("data[{:?}]", column.key),
                    format!("{len} frames of {row_len} elements"),
                    format!("{} frames of {} elements", rows.len(), rows.row_len()),
                ));
            }
        }
        let own = spec.own();
        for column in [own.index, own.episode_index, own.timestamp] {
            let unsigned = rows[column].dtype() == DType::UInt64;
            // What is checked must be what is written, even if the caller changes it meanwhile.
            rows[column] = rows[column].converted(spec.columns()[column].field.dtype);
            if unsigned && column != own.timestamp {
                check_not_wrapped(&spec.columns()[column].key, &rows[column])?;
            }
        }
        let words = |column: usize| rows[column].bytes(spec.columns()[column].field.dtype);
        let index = int64s(&words(own.index));
        let episode_index = int64s(&words(own.episode_index));
        let timestamp = int64s(&words(own.timestamp));
        let timestamp: Vec<f64> = timestamp
            .into_iter()
            .map(|bits| f64::from_bits(bits as u64))
            .collect();
        check_first(INDEX_KEY, &index)?;
        check_first(EPISODE_INDEX_KEY, &episode_index)?;
        Ok(Self {
            rows,
            len,
            episodes: count_episodes(&episode_index, &timestamp)?,
            index: Numbers::of(&index),
            episode_index: Numbers::of(&episode_index),
        })
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

impl Numbers {
    fn of(values: &[i64]) -> Self {
        Self {
            smallest: values.iter().copied().min().unwrap_or(0),
            largest: values.iter().copied().max().unwrap_or(0),
            last: values.last().copied().unwrap_or(0),
        }
    }

    /// What the next batch's numbers begin with if these are shifted, and if all of them fit.
    fn next(&self, key: &str, shift: i64) -> Result<i64> {
        let fits = |value: i64| value.checked_add(shift).is_some();
        let next = self
            .last
            .checked_add(shift)
            .and_then(|last| last.checked_add(1));
        next.filter(|_| fits(self.smallest) && fits(self.largest))
            .ok_or_else(|| {
                Error::argument(
                    format!("data[{key:?}]"),
                    format!(
                        "values that fit int64 after {shift} is added, and the last one plus 1"
                    ),
                    format!("values from {} to {}", self.smallest, self.largest),
                )
            })
    }
}

fn int64s(bytes: &[u8]) -> Vec<i64> {
    let words = bytes.as_chunks::<8>().0.iter();
    words.map(|bytes| i64::from_le_bytes(*bytes)).collect()
}

/// Refuses int64 rows that were made of uint64 values above their range.
fn check_not_wrapped(key: &str, rows: &Rows<'_>) -> Result<()> {
    let values = int64s(&rows.bytes(DType::Int64));
    match values.into_iter().find(|&value| value < 0) {
        None => Ok(()),
        Some(value) => Err(Error::argument(
            format!("data[{key:?}]"),
            "values that fit int64",
            value.cast_unsigned().to_string(),
        )),
    }
}

fn check_first(key: &str, values: &[i64]) -> Result<()> {
    match values.first() {
        Some(0) | None => Ok(()),
        Some(other) => Err(Error::argument(
            format!("data[{key:?}]"),
            "0 for the first frame",
            other.to_string(),
        )),
    }
}

/// The number of episodes, found by indexing the frames as if they were alone, which is what they
/// must be fit for.
fn count_episodes(numbers: &[i64], timestamps: &[f64]) -> Result<u64> {
    let mut episodes = Episodes::empty_at(Seq(0), None);
    episodes.extend(numbers, timestamps).map_err(|misfit| {
        let frame = episodes.live().end.0;
        match misfit {
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
        }
    })?;
    Ok(episodes.len() as u64)
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
    _lock: WriterLock,
    ring: Ring,
    columns: Vec<WriteColumn>,
    own: OwnColumns,
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
        let columns = spec.columns().iter().zip(&directory.columns);
        let columns = columns.map(|(column, read)| {
            let file = path.join(column.file_name());
            Ok(WriteColumn {
                map: read.open_for_writing(&file)?,
                dtype: column.field.dtype,
                row_bytes: column.row_bytes,
            })
        });
        let mut writer = Self {
            _lock: lock,
            ring: Ring::new(capacity),
            columns: columns.collect::<Result<_>>()?,
            own: spec.own(),
            state: directory.state.open_for_writing()?,
            next_index: WriteMap::open(&path.join(NEXT_INDEX_FILE), 8)?,
            occupancy_mask: WriteMap::open(&path.join(OCCUPANCY_MASK_FILE), capacity)?,
        };
        let record = directory.state.load()?;
        if writer.state.mirrored() != record.generation {
            writer.rebuild_mirror(&record);
        }
        Ok(writer)
    }

    /// Inserts a batch after the frames of `record`, the one in force.
    pub fn append(&mut self, record: &Record, mut batch: Batch<'_>) -> Result<Shift> {
        if batch.is_empty() {
            return Ok(Shift::default());
        }
        let (shift, next) = self.plan(record, &batch)?;
        batch.rows[self.own.index].add(shift.index);
        batch.rows[self.own.episode_index].add(shift.episode);
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
        self.write_columns(publish.writing, &batch);
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
        let next = Record {
            generation: record.generation + 2,
            live: self.ring.live_after(record.live, batch.len as u64),
            episodes: record.episodes + batch.episodes,
            next_index: batch.index.next(INDEX_KEY, shift.index)?,
            next_episode: batch.episode_index.next(EPISODE_INDEX_KEY, shift.episode)?,
            writing: Frames {
                first: Seq(record.live.end.0 + batch.len as u64),
                end: Seq(record.live.end.0 + batch.len as u64),
            },
        };
        Ok((shift, next))
    }

    /// Writes the last `frames.len()` frames of the batch into the slots of `frames`.
    fn write_columns(&mut self, frames: Frames, batch: &Batch<'_>) {
        let mut first = batch.len - frames.len();
        for run in self.ring.runs(frames.first, frames.len()) {
            let rows = first..first + run.len();
            first = rows.end;
            for (column, source) in self.columns.iter_mut().zip(&batch.rows) {
                column.write(run.start, source, rows.clone());
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

/// One column, mapped for writing.
#[derive(Debug)]
struct WriteColumn {
    map: WriteMap,
    dtype: DType,
    row_bytes: usize,
}

impl WriteColumn {
    /// Writes some rows into the slots from `slot` on.
    fn write(&mut self, slot: usize, source: &Rows<'_>, rows: Range<usize>) {
        let mut at = slot * self.row_bytes;
        source.for_each_block(rows, self.dtype, |block| {
            self.map.write(at, block);
            at += block.len();
        });
    }
}
