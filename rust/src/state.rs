//! The mapped state file: reading the record in force, and writing the next one.
//!
//! Two records alternate, so while one is being written the other stays whole. A reader takes the
//! valid record with the larger generation. A record's generation is its sequence lock: it is 0
//! while the rest is written, so a reader in another process never combines two records; the
//! checksum does the same for what a crash leaves.
//!
//! Each record is followed by a copy of it in another sector. What a power failure leaves of a
//! record may be any mixture of it and the one before; the copy is then still the one before.

use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};

use crate::error::{Error, Result};
use crate::format::{
    COPY_AT, HEADER_WORDS, MANIFEST_FILE, MANIFEST_WORD, MIRRORED_WORD, RECORD_AT, RECORD_WORDS,
    Record, STATE_FILE, STATE_WORDS, check_header, encode_header,
};
use crate::map::{Identity, ReadMap, WriteMap};
use crate::ring::Seq;

/// The state file's length in bytes.
pub const STATE_BYTES: usize = STATE_WORDS * 8;

/// A writer replaces a record in well under a microsecond; this many looks find both at rest.
const ATTEMPTS: usize = 100_000;

/// A new state file's bytes, with `record` in force, for a manifest of that checksum. Both places
/// hold it, so that a power failure while one is overwritten for the first time finds its copy.
pub fn encode(capacity: usize, manifest: u64, record: &Record) -> Vec<u8> {
    let mut words = [0; STATE_WORDS];
    words[..HEADER_WORDS].copy_from_slice(&encode_header(capacity));
    words[MIRRORED_WORD] = record.generation;
    words[MANIFEST_WORD] = manifest;
    let before = Record {
        generation: record.generation - 1,
        ..*record
    };
    for record in [&before, record] {
        for at in [RECORD_AT, COPY_AT] {
            words[at[record.place()]..][..RECORD_WORDS].copy_from_slice(&record.encode());
        }
    }
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Whether a state file's content is [`encode`]d from that record, for whatever manifest.
pub fn is_for(content: &[u8], capacity: usize, record: &Record) -> bool {
    let manifest = content.as_chunks::<8>().0.get(MANIFEST_WORD);
    manifest.is_some_and(|word| content == encode(capacity, u64::from_le_bytes(*word), record))
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
    pub fn open(directory: &Path, capacity: usize, manifest: u64) -> Result<Self> {
        let path = directory.join(STATE_FILE);
        let map = ReadMap::open(&path, STATE_BYTES)?;
        let header = std::array::from_fn(|word| map.word(word, Ordering::Relaxed));
        check_header(&path, header, capacity)?;
        match map.word(MANIFEST_WORD, Ordering::Relaxed) {
            0 => {} // made before there was a checksum
            stored if stored == manifest => {}
            stored => {
                let what = format!(
                    "expected the checksum {stored:x} that _state has of it, got {manifest:x}: \
                     one of the two files was changed"
                );
                return Err(Error::damaged(&directory.join(MANIFEST_FILE), what));
            }
        }
        let state = Self {
            map,
            path,
            capacity,
        };
        state.load()?;
        Ok(state)
    }

    /// The same file, for writing, with both records and their copies made whole.
    pub fn open_for_writing(&self) -> Result<StateWriter> {
        let map = WriteMap::open_same(&self.path, &self.map)?;
        let mut writer = StateWriter { map };
        for place in [0, 1] {
            let Some(record) = self.at_place(place, self.generation(place))? else {
                continue;
            };
            // Only the one that is not whole, so that the other is whole meanwhile.
            if self.record_words(RECORD_AT[place]) != record.encode() {
                writer.store(&record);
            } else if self.record_words(COPY_AT[place]) != record.encode() {
                writer.store_copy(&record);
            }
        }
        Ok(writer)
    }

    /// Which file it is.
    pub fn identity(&self) -> Identity {
        self.map.identity()
    }

    /// Returns once the file is on the disk.
    pub fn sync(&self) -> Result<()> {
        self.map.sync(&self.path)
    }

    /// The places of records that are damaged and replaced by their copies.
    pub fn damaged_places(&self) -> impl Iterator<Item = usize> {
        [0, 1].into_iter().filter(|&place| self.is_damaged(place))
    }

    /// Whether the record at a place is damaged: not one that is just being written.
    fn is_damaged(&self, place: usize) -> bool {
        let generation = self.generation(place);
        let words = self.record_words(RECORD_AT[place]);
        fence(Ordering::Acquire);
        let stood_still = self.generation(place) == generation && generation != 0;
        stood_still && Record::decode(&words, self.capacity).is_none()
    }

    /// The generation up to which `_next_index` and `_occupancy_mask` are known to be written.
    pub fn mirrored(&self) -> u64 {
        self.map.word(MIRRORED_WORD, Ordering::Acquire)
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
    fn newest(&self) -> Result<Option<Record>> {
        let generations = [0, 1].map(|place| self.generation(place));
        let records = [0, 1].map(|place| self.at_place(place, generations[place]));
        fence(Ordering::Acquire);
        if [0, 1].map(|place| self.generation(place)) != generations {
            return Ok(None);
        }
        let [even, odd] = records;
        let records = [even?, odd?].into_iter().flatten();
        Ok(records.max_by_key(|record| record.generation))
    }

    fn generation(&self, place: usize) -> u64 {
        self.map.word(RECORD_AT[place], Ordering::Acquire)
    }

    /// The record at a place, or its copy where it is not whole: the one before, if a power failure
    /// or a kill came while it was written, or the same, if it was damaged later.
    /// A record whose generation is 0 is being written, or was when its writer was killed. No kill
    /// leaves any other record without its checksum.
    fn at_place(&self, place: usize, generation: u64) -> Result<Option<Record>> {
        let mut words = self.record_words(RECORD_AT[place]);
        words[0] = generation;
        let decoded = |words: [u64; RECORD_WORDS]| Record::decode(&words, self.capacity);
        let record = decoded(words).or_else(|| decoded(self.record_words(COPY_AT[place])));
        if record.is_none() && generation != 0 {
            let what = "a commit record's checksum is wrong, and so is that of its copy";
            return Err(Error::damaged(&self.path, what));
        }
        Ok(record)
    }

    fn record_words(&self, at: usize) -> [u64; RECORD_WORDS] {
        std::array::from_fn(|word| self.map.word(at + word, Ordering::Relaxed))
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
        let at = RECORD_AT[record.place()];
        let words = record.encode();
        // The columns written before must be seen by whoever sees this record.
        fence(Ordering::Release);
        self.map.store(at, 0, Ordering::Relaxed);
        fence(Ordering::Release);
        for (offset, value) in words.into_iter().enumerate().skip(1) {
            self.map.store(at + offset, value, Ordering::Relaxed);
        }
        self.map.store(at, words[0], Ordering::Release);
        // This record must be seen by whoever sees the columns written after.
        fence(Ordering::Release);
    }

    /// Copies `record`, the one in force, to where it is looked for if it gets damaged.
    pub fn store_copy(&mut self, record: &Record) {
        for (offset, value) in record.encode().into_iter().enumerate() {
            let at = COPY_AT[record.place()] + offset;
            self.map.store(at, value, Ordering::Relaxed);
        }
    }

    /// Returns once the file is on the disk.
    pub fn sync(&self) -> Result<()> {
        self.map.sync_all()
    }

    /// Notes that `_next_index` and `_occupancy_mask` agree with this generation.
    pub fn set_mirrored(&mut self, generation: u64) {
        self.map.store(MIRRORED_WORD, generation, Ordering::Release);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ring::Frames;

    fn state_in(directory: &Path) -> (State, StateWriter) {
        std::fs::write(directory.join(STATE_FILE), encode(8, 1, &Record::empty())).unwrap();
        let state = State::open(directory, 8, 1).unwrap();
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
        for generation in 3..7 {
            writer.store(&record(generation));
            assert_eq!(state.load().unwrap(), record(generation));
        }
        // Killed while writing generation 7: its place holds parts of two records.
        writer.map.store(RECORD_AT[1], 0, Ordering::Relaxed);
        writer.map.store(RECORD_AT[1] + 3, 99, Ordering::Relaxed);
        assert_eq!(state.load().unwrap(), record(6));
    }

    #[test]
    fn a_damaged_header_or_no_record_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(STATE_FILE);
        let good = encode(8, 1, &Record::empty());
        let said = |bytes: &[u8], capacity| {
            std::fs::write(&path, bytes).unwrap();
            State::open(directory.path(), capacity, 1)
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
        assert!(said(&good, 9).contains("capacity 8 that _state has, got 9"));
        let mut bytes = flipped(RECORD_AT[1] * 8 + 8);
        bytes[COPY_AT[1] * 8 + 8] ^= 1;
        assert!(said(&bytes, 8).contains("record's checksum"));
        let manifest = State::open(directory.path(), 8, 2).unwrap_err().to_string();
        assert!(manifest.contains("_manifest.json"), "{manifest}");
        assert!(said(&good[1..], 8).contains("expected 4096 bytes, got 4095"));
    }

    #[test]
    fn a_damaged_record_is_replaced_by_its_copy_for_good() {
        let directory = tempfile::tempdir().unwrap();
        let (state, mut writer) = state_in(directory.path());
        for generation in 3..5 {
            writer.store(&record(generation));
            writer.store_copy(&record(generation));
        }
        for at in [RECORD_AT, COPY_AT].concat() {
            writer.map.store(at + 3, 99, Ordering::Relaxed);
            assert_eq!(state.load().unwrap(), record(4));
            state.open_for_writing().unwrap();
            assert_eq!(state.damaged_places().count(), 0);
        }
        let expected = [4, 3, 4, 3].map(|generation| record(generation).encode());
        let words = [RECORD_AT, COPY_AT].concat();
        assert!(words.iter().map(|&at| state.record_words(at)).eq(expected));
        assert_eq!(state.load().unwrap(), record(4));
    }

    #[test]
    fn readers_never_combine_two_records() {
        let directory = tempfile::tempdir().unwrap();
        let (state, mut writer) = state_in(directory.path());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for generation in 3..20_000 {
                    writer.store(&record(generation));
                    writer.store_copy(&record(generation));
                }
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
