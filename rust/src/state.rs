//! The mapped state file: reading the record in force, and writing the next one.
//!
//! Two records alternate, so while one is being written the other stays whole. A reader takes the
//! valid record with the larger generation. A record's generation is its sequence lock: it is 0
//! while the rest is written, so a reader in another process never combines two records; the
//! checksum does the same for what a crash leaves.

use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};

use crate::error::{Error, Result};
use crate::format::{
    HEADER_WORDS, MIRRORED_WORD, RECORD_AT, RECORD_WORDS, Record, STATE_WORDS, check_header,
    encode_header,
};
use crate::map::{ReadMap, WriteMap};
use crate::ring::Seq;

/// The state file's name.
pub const STATE_FILE: &str = "_state";
/// The state file's length in bytes.
pub const STATE_BYTES: usize = STATE_WORDS * 8;

/// A writer replaces a record in well under a microsecond; this many looks find both at rest.
const ATTEMPTS: usize = 100_000;

/// A new state file's bytes, with `record` in force.
pub fn encode(capacity: usize, record: &Record) -> Vec<u8> {
    let mut words = [0; STATE_WORDS];
    words[..HEADER_WORDS].copy_from_slice(&encode_header(capacity));
    words[MIRRORED_WORD] = record.generation;
    words[RECORD_AT[record.place()]..][..RECORD_WORDS].copy_from_slice(&record.encode());
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The state file, for reading.
#[derive(Debug)]
pub struct State {
    map: ReadMap,
    path: PathBuf,
    capacity: usize,
}

impl State {
    /// Opens the state file in `directory` and checks its header and records.
    pub fn open(directory: &Path, capacity: usize) -> Result<Self> {
        let path = directory.join(STATE_FILE);
        let map = ReadMap::open(&path, STATE_BYTES)?;
        let header = std::array::from_fn(|word| map.word(word, Ordering::Relaxed));
        check_header(&path, header, capacity)?;
        let state = Self {
            map,
            path,
            capacity,
        };
        state.load()?;
        Ok(state)
    }

    /// The same file, for writing.
    pub fn open_for_writing(&self) -> Result<StateWriter> {
        WriteMap::open_same(&self.path, &self.map).map(|map| StateWriter { map })
    }

    /// The record in force: never older than the one in force when the call began.
    pub fn load(&self) -> Result<Record> {
        for attempt in 0..ATTEMPTS {
            if let Some(newest) = self.newest()? {
                return Ok(newest);
            }
            if attempt % 64 == 63 {
                std::thread::yield_now();
            }
        }
        Err(Error::damaged(&self.path, "there is no commit record"))
    }

    /// The oldest frame that is still live, seen after everything read so far.
    pub fn first_live_after_reads(&self) -> Result<Seq> {
        // Pairs with the fence in `StateWriter::store`: if any byte read before came from a write
        // that followed a record, the record is seen here.
        fence(Ordering::Acquire);
        Ok(self.load()?.live.first)
    }

    /// The newer valid record, if neither changed while both were read.
    ///
    /// Both must stand still: a reader that is interrupted between the two could otherwise pair an
    /// old record with the gap in which the writer replaces the newer one.
    /// A record whose generation is 0 is being written, or was when its writer was killed: the
    /// other one is in force. No kill leaves any other record without its checksum.
    fn newest(&self) -> Result<Option<Record>> {
        let generations = RECORD_AT.map(|at| self.map.word(at, Ordering::Acquire));
        let records = [0, 1].map(|place| {
            let mut words = [generations[place]; RECORD_WORDS];
            for (offset, word) in words.iter_mut().enumerate().skip(1) {
                *word = self.map.word(RECORD_AT[place] + offset, Ordering::Relaxed);
            }
            words
        });
        fence(Ordering::Acquire);
        if RECORD_AT.map(|at| self.map.word(at, Ordering::Acquire)) != generations {
            return Ok(None);
        }
        let mut newest: Option<Record> = None;
        for words in records.iter().filter(|words| words[0] != 0) {
            let Some(record) = Record::decode(words, self.capacity) else {
                return Err(Error::damaged(
                    &self.path,
                    "a commit record's checksum is wrong",
                ));
            };
            newest = newest
                .into_iter()
                .chain([record])
                .max_by_key(|record| record.generation);
        }
        Ok(newest)
    }
}

/// The state file, for the one writer.
#[derive(Debug)]
pub struct StateWriter {
    map: WriteMap,
}

impl StateWriter {
    /// Puts `record` in force. Its generation must follow the one in force.
    pub fn store(&mut self, record: &Record) {
        let place = &self.map.words()[RECORD_AT[record.place()]..][..RECORD_WORDS];
        let words = record.encode();
        // The columns written before must be seen by whoever sees this record.
        fence(Ordering::Release);
        place[0].store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, value) in place.iter().zip(words).skip(1) {
            word.store(value, Ordering::Relaxed);
        }
        place[0].store(words[0], Ordering::Release);
        // This record must be seen by whoever sees the columns written after.
        fence(Ordering::Release);
    }

    /// Notes that `_next_index` and `_occupancy_mask` agree with this generation.
    pub fn set_mirrored(&mut self, generation: u64) {
        self.map.words()[MIRRORED_WORD].store(generation, Ordering::Release);
    }

    /// The generation last given to [`Self::set_mirrored`].
    pub fn mirrored(&self) -> u64 {
        self.map.words()[MIRRORED_WORD].load(Ordering::Acquire)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ring::Frames;

    fn state_in(directory: &Path) -> (State, StateWriter) {
        std::fs::write(directory.join(STATE_FILE), encode(8, &Record::empty())).unwrap();
        let state = State::open(directory, 8).unwrap();
        let writer = state.open_for_writing().unwrap();
        (state, writer)
    }

    fn record(generation: u64) -> Record {
        let at = Seq(generation * 3);
        let none = Frames { first: at, end: at };
        Record {
            generation,
            live: none,
            episodes: generation,
            next_index: generation.cast_signed() * 5,
            next_episode: 7,
            writing: none,
        }
    }

    #[test]
    fn the_newest_whole_record_is_in_force() {
        let directory = tempfile::tempdir().unwrap();
        let (state, mut writer) = state_in(directory.path());
        assert_eq!(state.load().unwrap(), Record::empty());
        for generation in 2..6 {
            writer.store(&record(generation));
            assert_eq!(state.load().unwrap(), record(generation));
        }
        // Killed while writing generation 6: its place holds parts of two records.
        writer.map.words()[RECORD_AT[0]].store(0, Ordering::Relaxed);
        writer.map.words()[RECORD_AT[0] + 3].store(99, Ordering::Relaxed);
        assert_eq!(state.load().unwrap(), record(5));
    }

    #[test]
    fn a_damaged_header_or_no_record_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(STATE_FILE);
        let good = encode(8, &Record::empty());
        let said = |bytes: &[u8], capacity| {
            std::fs::write(&path, bytes).unwrap();
            State::open(directory.path(), capacity)
                .unwrap_err()
                .to_string()
        };
        let flipped = |at: usize| {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            bytes
        };
        assert!(said(&flipped(0), 8).contains("state file"));
        assert!(said(&flipped(16), 8).contains("checksum"));
        assert!(said(&good, 9).contains("capacity 9, got 8"));
        assert!(said(&flipped(RECORD_AT[1] * 8 + 8), 8).contains("record's checksum"));
        assert!(said(&good[1..], 8).contains("expected 4096 bytes, got 4095"));
    }

    #[test]
    fn readers_never_combine_two_records() {
        let directory = tempfile::tempdir().unwrap();
        let (state, mut writer) = state_in(directory.path());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                (2..20_000).for_each(|generation| writer.store(&record(generation)))
            });
            let mut last = 1;
            while last < 19_999 {
                let seen = state.load().unwrap();
                assert!(seen.generation >= last);
                assert!(seen == record(seen.generation) || seen == Record::empty());
                last = seen.generation;
            }
        });
    }
}
