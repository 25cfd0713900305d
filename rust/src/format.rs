//! The bytes of the manifest and of the state file: encoding, decoding and checks. No I/O.
//!
//! Decoding trusts nothing: what comes back satisfies every invariant the rest of the core needs.
//! `docs/format.md` describes the same bytes for readers in other languages.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::ring::{Frames, Seq};
use crate::spec::{Field, Spec};

/// The manifest's name.
pub const MANIFEST_FILE: &str = "_manifest.json";
/// The state file's name.
pub const STATE_FILE: &str = "_state";
/// The slot of the next frame, an int64, for other implementations.
pub const NEXT_INDEX_FILE: &str = "_next_index";
/// Which slots are live, a bool each, for other implementations.
pub const OCCUPANCY_MASK_FILE: &str = "_occupancy_mask";
/// The priorities' file, which is there once frames are drawn by them.
pub const PRIORITIES_FILE: &str = "_priorities";

/// The version that this code writes, and the only one it reads.
pub const VERSION: u64 = 1;
/// Rates from here on leave no room for the tolerance `1/fps - 1e-4`.
pub const FPS_LIMIT: f64 = 10_000.0;

/// What a buffer is: the content of `_manifest.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// Slots per column, not 0.
    pub capacity: usize,
    /// Frames per second, if known: positive and below [`FPS_LIMIT`].
    pub fps: Option<f64>,
    /// The user's columns.
    pub fields: BTreeMap<String, Field>,
    /// All columns.
    pub spec: Spec,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ManifestJson {
    format: String,
    version: u64,
    capacity: usize,
    fps: Option<f64>,
    spec: BTreeMap<String, Field>,
}

#[derive(Deserialize)]
struct VersionJson {
    format: String,
    version: u64,
}

const FORMAT: &str = "fastbuffer";

impl Manifest {
    /// A manifest, if its parts are sound.
    pub fn new(capacity: usize, fps: Option<f64>, fields: BTreeMap<String, Field>) -> Result<Self> {
        if capacity == 0 {
            return Err(Error::argument("buffer_capacity", "at least 1", "0"));
        }
        if let Some(fps) = fps {
            check_fps(fps)?;
        }
        let spec = Spec::new(&fields, capacity)?;
        Ok(Self {
            capacity,
            fps,
            fields,
            spec,
        })
    }

    /// The manifest as JSON.
    pub fn encode(&self) -> Vec<u8> {
        let json = ManifestJson {
            format: FORMAT.to_owned(),
            version: VERSION,
            capacity: self.capacity,
            fps: self.fps,
            spec: self.fields.clone(),
        };
        // Serialising strings and numbers cannot fail, and an empty manifest would not open.
        serde_json::to_vec_pretty(&json).unwrap_or_default()
    }

    /// The manifest that `bytes`, read from `path`, hold.
    pub fn decode(path: &Path, bytes: &[u8]) -> Result<Self> {
        let malformed = |error: serde_json::Error| {
            Error::damaged(path, format!("not a fastbuffer manifest: {error}"))
        };
        let head: VersionJson = serde_json::from_slice(bytes).map_err(malformed)?;
        if head.format != FORMAT || head.version != VERSION {
            return Err(Error::damaged(
                path,
                format!(
                    "expected format {FORMAT:?} version {VERSION}, got {:?} version {}",
                    head.format, head.version
                ),
            ));
        }
        let json: ManifestJson = serde_json::from_slice(bytes).map_err(malformed)?;
        Self::new(json.capacity, json.fps, json.spec)
            .map_err(|error| Error::damaged(path, error.to_string()))
    }
}

/// Refuses rates that no window could be resolved at.
pub fn check_fps(fps: f64) -> Result<()> {
    if fps > 0.0 && fps < FPS_LIMIT {
        return Ok(());
    }
    Err(Error::argument(
        "fps",
        format!("more than 0 and less than {FPS_LIMIT} frames/s"),
        fps.to_string(),
    ))
}

/// Size of the state file, in 64-bit words.
pub const STATE_WORDS: usize = 512;
/// Words of its fixed header.
pub const HEADER_WORDS: usize = 4;
/// Where the checksum of the manifest is kept; 0 in files of before there was one.
pub const MANIFEST_WORD: usize = 5;
/// Where the generation is kept whose `_next_index` and `_occupancy_mask` are known to be written.
pub const MIRRORED_WORD: usize = 4;
/// Where the two commit records begin.
pub const RECORD_AT: [usize; 2] = [16, 32];
/// Where their copies begin, in another sector of the disk.
pub const COPY_AT: [usize; 2] = [144, 160];
/// Words of a commit record.
pub const RECORD_WORDS: usize = 16;

const MAGIC: u64 = u64::from_le_bytes(*b"fastbuf\0");

/// The state file's fixed header: magic, version, capacity and their checksum.
pub fn encode_header(capacity: usize) -> [u64; HEADER_WORDS] {
    let words = [MAGIC, VERSION, capacity as u64];
    [words[0], words[1], words[2], checksum(&words)]
}

/// Checks the header read from `path`.
pub fn check_header(path: &Path, words: [u64; HEADER_WORDS], capacity: usize) -> Result<()> {
    let [magic, version, stored_capacity, stored_checksum] = words;
    if magic != MAGIC {
        return Err(Error::damaged(
            path,
            "expected a fastbuffer state file, got other content",
        ));
    }
    if stored_checksum != checksum(&words[..HEADER_WORDS - 1]) {
        return Err(Error::damaged(path, "the header's checksum is wrong"));
    }
    if version != VERSION {
        return Err(Error::damaged(
            path,
            format!("expected version {VERSION}, got {version}"),
        ));
    }
    if stored_capacity != capacity as u64 {
        // Of the two, this one has a checksum.
        return Err(Error::damaged(
            &path.with_file_name(MANIFEST_FILE),
            format!("expected the capacity {stored_capacity} that _state has, got {capacity}"),
        ));
    }
    Ok(())
}

/// One commit: which frames exist, and how the next ones are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Counts records; the valid record with the larger one is in force. Never 0.
    pub generation: u64,
    /// The live frames; `live.end` is also the number of frames ever added.
    pub live: Frames,
    /// The number of episodes ever added.
    pub episodes: u64,
    /// What is added to the `index` of the next frames.
    pub next_index: i64,
    /// What is added to the `episode_index` of the next frames.
    pub next_episode: i64,
    /// Frames being written, none of them live: empty between inserts.
    pub writing: Frames,
}

impl Record {
    /// The record of a new, empty buffer: there was one before it, the same.
    pub fn empty() -> Self {
        let none = Frames::none_at(Seq(0));
        Self {
            generation: 2,
            live: none,
            episodes: 0,
            next_index: 0,
            next_episode: 0,
            writing: none,
        }
    }

    /// The same, but nothing is being written.
    pub fn without_writing(&self) -> Self {
        Self {
            writing: Frames::none_at(self.live.end),
            ..*self
        }
    }

    /// Which of the two places this record is written to.
    pub fn place(&self) -> usize {
        (self.generation % 2) as usize
    }

    /// The record as words; the first is the generation, the last the checksum.
    pub fn encode(&self) -> [u64; RECORD_WORDS] {
        let mut words = [0; RECORD_WORDS];
        words[..8].copy_from_slice(&[
            self.generation,
            self.live.end.0,
            self.live.first.0,
            self.episodes,
            self.next_index.cast_unsigned(),
            self.next_episode.cast_unsigned(),
            self.writing.first.0,
            self.writing.end.0,
        ]);
        words[RECORD_WORDS - 1] = checksum(&words[..RECORD_WORDS - 1]);
        words
    }

    /// The record that `words` hold, if they are a whole and possible one.
    pub fn decode(words: &[u64; RECORD_WORDS], capacity: usize) -> Option<Self> {
        if words[RECORD_WORDS - 1] != checksum(&words[..RECORD_WORDS - 1]) {
            return None;
        }
        let record = Self {
            generation: words[0],
            live: Frames {
                first: Seq(words[2]),
                end: Seq(words[1]),
            },
            episodes: words[3],
            next_index: words[4].cast_signed(),
            next_episode: words[5].cast_signed(),
            writing: Frames {
                first: Seq(words[6]),
                end: Seq(words[7]),
            },
        };
        let bounded = |range: &Frames| {
            range
                .end
                .0
                .checked_sub(range.first.0)
                .is_some_and(|len| len <= capacity as u64)
        };
        // So far that no insert makes one of them overflow.
        let counters = [record.generation, record.writing.end.0, record.episodes];
        let possible = record.generation != 0
            && counters.iter().all(|&counter| counter < COUNTER_LIMIT)
            && bounded(&record.live)
            && bounded(&record.writing)
            && record.live.end <= record.writing.first;
        possible.then_some(record)
    }
}

/// No counter of a record reaches this.
const COUNTER_LIMIT: u64 = 1 << 62;

/// What [`MANIFEST_WORD`] says about a manifest of these bytes.
pub fn manifest_checksum(bytes: &[u8]) -> u64 {
    1 << 32 | u64::from(crc32fast::hash(bytes)) // never 0
}

fn checksum(words: &[u64]) -> u64 {
    let mut bytes = [0; RECORD_WORDS * 8];
    let (used, _) = bytes.split_at_mut(words.len() * 8);
    for (bytes, word) in used.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    u64::from(crc32fast::hash(used))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::spec::DType;
    use proptest::prelude::*;

    fn manifest() -> Manifest {
        let field = Field {
            dtype: DType::Float32,
            shape: vec![2],
        };
        Manifest::new(
            8,
            Some(30.0),
            BTreeMap::from([("action".to_owned(), field)]),
        )
        .unwrap()
    }

    fn record() -> impl Strategy<Value = Record> {
        (
            1u64..COUNTER_LIMIT,
            0u64..1000,
            0u64..8,
            0u64..COUNTER_LIMIT,
            any::<[i64; 2]>(),
            0u64..100,
            0u64..8,
        )
            .prop_map(
                |(generation, first, len, episodes, [next_index, next_episode], gap, writing)| {
                    let end = first + len;
                    Record {
                        generation,
                        live: Frames {
                            first: Seq(first),
                            end: Seq(end),
                        },
                        episodes,
                        next_index,
                        next_episode,
                        writing: Frames {
                            first: Seq(end + gap),
                            end: Seq(end + gap + writing),
                        },
                    }
                },
            )
    }

    #[test]
    fn other_versions_and_formats_are_refused_by_name() {
        let text = String::from_utf8(manifest().encode()).unwrap();
        for (from, to, said) in [
            ("\"version\": 1", "\"version\": 2", "version 2"),
            ("\"fastbuffer\"", "\"other\"", "other"),
            ("\"capacity\": 8", "\"capacity\": 0", "buffer_capacity"),
            (
                "\"capacity\": 8",
                "\"capacity\": 18446744073709551615",
                "2^63",
            ),
            ("30.0", "-30.0", "fps"),
            ("\"action\"", "\"_action\"", "_action"),
            ("\"float32\"", "\"object\"", "object"),
            ("\"fps\"", "\"extra\": 1, \"fps\"", "extra"),
        ] {
            let changed = text.replace(from, to);
            assert_ne!(changed, text);
            let error = Manifest::decode(Path::new("m"), changed.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
        }
    }

    proptest! {
        #[test]
        fn manifests_survive_their_json(capacity in 1usize..1 << 40, fps in proptest::option::of(1e-300..9999.0f64)) {
            let manifest = Manifest::new(capacity, fps, manifest().fields).unwrap();
            prop_assert_eq!(Manifest::decode(Path::new("m"), &manifest.encode()).unwrap(), manifest);
        }

        #[test]
        fn manifest_decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Manifest::decode(Path::new("m"), &bytes).is_err());
        }

        #[test]
        fn records_survive_their_words(record in record()) {
            prop_assert_eq!(Record::decode(&record.encode(), 8), Some(record));
        }

        #[test]
        fn a_changed_record_is_no_record(record in record(), word in 0usize..RECORD_WORDS, bit in 0u32..64) {
            let mut words = record.encode();
            words[word] ^= 1 << bit;
            prop_assert_eq!(Record::decode(&words, 8), None);
        }

        #[test]
        fn impossible_records_are_refused(mut record in record(), excess in 9u64..100) {
            record.live.end = Seq(record.live.first.0 + excess);
            record.writing = Frames { first: record.live.end, end: record.live.end };
            prop_assert_eq!(Record::decode(&record.encode(), 8), None);
        }

        #[test]
        fn what_decodes_from_any_words_leaves_room_for_an_insert(
            words in any::<[u64; RECORD_WORDS - 1]>(),
            small in any::<[bool; RECORD_WORDS - 1]>(),
        ) {
            // Random words are almost never possible, so most are made small; the checksum is right.
            let mut record = [0; RECORD_WORDS];
            for (to, (word, small)) in record.iter_mut().zip(words.into_iter().zip(small)) {
                *to = if small { word % 16 } else { word };
            }
            record[RECORD_WORDS - 1] = checksum(&record[..RECORD_WORDS - 1]);
            if let Some(record) = Record::decode(&record, 8) {
                prop_assert!(record.live.first <= record.live.end && record.live.len() <= 8);
                prop_assert!(record.live.end <= record.writing.first);
                let counters = [record.generation, record.writing.end.0, record.episodes];
                prop_assert!(counters.iter().all(|counter| counter.checked_add(1 << 62).is_some()));
            }
        }
    }

    #[test]
    fn counters_without_room_for_an_insert_are_refused() {
        for spoil in [
            |record: &mut Record| record.generation = COUNTER_LIMIT,
            |record: &mut Record| record.episodes = u64::MAX,
            |record: &mut Record| {
                record.live = Frames::none_at(Seq(u64::MAX));
                record.writing = record.live;
            },
        ] {
            let mut record = Record::empty();
            spoil(&mut record);
            assert_eq!(Record::decode(&record.encode(), 8), None, "{record:?}");
        }
    }
}
