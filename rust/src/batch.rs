//! What is inserted: whole episodes, checked as a whole before the first byte is written.

use crate::episodes::{Episodes, Misfit};
use crate::error::{Error, Result};
use crate::index;
use crate::memory::out_of_memory;
use crate::ring::Seq;
use crate::rows::Rows;
use crate::spec::{DType, EPISODE_INDEX_KEY, INDEX_KEY, Spec, TIMESTAMP_KEY};

/// Whole episodes to insert: for each column, in the spec's order, its rows.
pub struct Batch<'a> {
    /// The rows of each column.
    pub rows: Vec<Rows<'a>>,
    len: usize,
    /// How many episodes they are.
    pub episodes: u64,
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
            rows[column] = rows[column].converted(spec.columns()[column].field.dtype)?;
            if unsigned && column != own.timestamp {
                check_not_wrapped(&spec.columns()[column].key, &rows[column])?;
            }
        }
        let [index, episode_index] = [own.index, own.episode_index].map(|column| &rows[column]);
        check_first(INDEX_KEY, index)?;
        check_first(EPISODE_INDEX_KEY, episode_index)?;
        Ok(Self {
            len,
            episodes: count_episodes(episode_index, &rows[own.timestamp])?,
            index: Numbers::of(index),
            episode_index: Numbers::of(episode_index),
            rows,
        })
    }

    /// The number of frames.
    pub fn len(&self) -> usize {
        self.len
    }

    /// What follows the last `index` if `shift` is added to all of them, and if all of them fit.
    pub fn next_index(&self, shift: i64) -> Result<i64> {
        self.index.next(INDEX_KEY, shift)
    }

    /// As [`Self::next_index`] for `episode_index`.
    pub fn next_episode(&self, shift: i64) -> Result<i64> {
        self.episode_index.next(EPISODE_INDEX_KEY, shift)
    }

    /// Whether there are no frames.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Numbers {
    fn of(rows: &Rows<'_>) -> Self {
        Self {
            smallest: int64s(rows).min().unwrap_or(0),
            largest: int64s(rows).max().unwrap_or(0),
            last: int64s(rows).next_back().unwrap_or(0),
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

/// The values of rows that were converted to int64.
fn int64s(rows: &Rows<'_>) -> impl DoubleEndedIterator<Item = i64> {
    rows.words().iter().map(|bytes| i64::from_le_bytes(*bytes))
}

/// Refuses int64 rows that were made of uint64 values above their range.
fn check_not_wrapped(key: &str, rows: &Rows<'_>) -> Result<()> {
    match int64s(rows).find(|&value| value < 0) {
        None => Ok(()),
        Some(value) => Err(Error::argument(
            format!("data[{key:?}]"),
            "values that fit int64",
            value.cast_unsigned().to_string(),
        )),
    }
}

fn check_first(key: &str, rows: &Rows<'_>) -> Result<()> {
    match int64s(rows).next() {
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
fn count_episodes(numbers: &Rows<'_>, timestamps: &Rows<'_>) -> Result<u64> {
    let mut episodes = Episodes::empty_at(Seq(0), None);
    let blocks = numbers.words().chunks(index::BLOCK);
    let mut blocks = blocks.zip(timestamps.words().chunks(index::BLOCK));
    let extended = blocks.try_for_each(|(numbers, timestamps)| {
        let numbers = numbers.iter().map(|bytes| i64::from_le_bytes(*bytes));
        let timestamps = timestamps.iter().map(|bytes| f64::from_le_bytes(*bytes));
        episodes.extend(
            &numbers.collect::<Vec<_>>(),
            &timestamps.collect::<Vec<_>>(),
        )
    });
    extended.map_err(|misfit| {
        let frame = episodes.live().end.0;
        match misfit {
            Misfit::OutOfMemory => out_of_memory(index::EPISODES),
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
