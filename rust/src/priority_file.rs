//! The file of a buffer's priorities: a number per slot, kept between processes.
//!
//! Several processes may change it at the same time, and one at a time adds frames. Each number is
//! one word, so what a killed process or a power failure leaves of a change is some of its numbers.
//! Priorities say how often frames are drawn and nothing about what frames are, so losing the last
//! of them does no harm.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::error::{AtPath, Error, Result};
use crate::format::PRIORITIES_FILE;
use crate::map::{Identity, ReadMap, WriteMap, check_regular};
use crate::memory::out_of_memory;
use crate::ring::{Frames, Ring, Seq, Slot};
use crate::space;
use crate::writers::{NotForking, not_forking};

/// "fastprio", as a word.
const MAGIC: u64 = u64::from_le_bytes(*b"fastprio");
const VERSION: u64 = 1;
/// What the first words are; the slots' priorities come after `HEADER_WORDS`.
const MAGIC_WORD: usize = 0;
const VERSION_WORD: usize = 1;
const CAPACITY_WORD: usize = 2;
const END_WORD: usize = 3;
const LARGEST_WORD: usize = 4;
const UPDATES_WORD: usize = 5;
const HEADER_WORDS: usize = 16;

/// The file, open.
#[derive(Debug)]
pub struct PriorityFile {
    map: WriteMap,
    path: PathBuf,
    identity: Identity,
}

impl PriorityFile {
    /// Opens that of a buffer's directory, or makes it there.
    pub fn open(directory: &Path, capacity: usize) -> Result<Self> {
        let path = directory.join(PRIORITIES_FILE);
        let lock = Lock::acquire(&path, true)?;
        let len = len_of(capacity)?;
        if is_unfinished(&lock.file, len).at(&path)? {
            lock.file.set_len(0).at(&path)?;
            space::make_room(&lock.file, len as u64, true)
                .inspect_err(|_| drop(lock.file.set_len(0)))
                .at(&path)?;
        }
        let mut map = WriteMap::open(&path, len)?;
        map.reserve(0, len)?;
        // The last word written of a new file: one that was killed before made nothing of it.
        if map.load(MAGIC_WORD, Relaxed) == 0 {
            map.store(VERSION_WORD, VERSION, Relaxed);
            map.store(CAPACITY_WORD, capacity as u64, Relaxed);
            map.store(LARGEST_WORD, 1.0f64.to_bits(), Relaxed);
            map.store(MAGIC_WORD, MAGIC, Release);
        }
        let file = Self {
            map,
            identity: lock.identity(&path)?,
            path,
        };
        check_header(capacity, &file.path, |word| file.map.load(word, Relaxed))?;
        Ok(file)
    }

    /// How often priorities were changed.
    pub fn updates(&self) -> u64 {
        self.map.load(UPDATES_WORD, Acquire)
    }

    /// The priority in a slot.
    pub fn get(&self, slot: Slot) -> Result<f64> {
        decode(
            self.map.load(HEADER_WORDS + slot.0, Relaxed),
            slot,
            &self.path,
        )
    }

    /// Changes priorities, of which all are finite and none negative. Says how often they had been
    /// changed before, to be compared with what is known: others may do the same meanwhile.
    pub fn update(&mut self, changes: impl Iterator<Item = (Slot, f64)>) -> u64 {
        let mut largest = 0.0f64;
        for (slot, priority) in changes {
            let priority = priority.abs(); // there is a -0.0
            let word = HEADER_WORDS + slot.0;
            self.map.store(word, priority.to_bits(), Relaxed);
            largest = largest.max(priority);
        }
        self.raise_largest(largest);
        // Last, so that whoever has seen this number has seen the priorities, too.
        self.map.fetch_add(UPDATES_WORD, 1, Release)
    }

    /// Makes the largest priority, which new frames get, at least this one, which is finite and not
    /// negative.
    pub fn raise_largest(&mut self, priority: f64) {
        // Numbers that are not negative are ordered as their bits are.
        let bits = priority.abs().to_bits(); // there is a -0.0
        self.map.fetch_max(LARGEST_WORD, bits, Relaxed);
    }

    /// Gives the largest priority to the live frames that have none. `live` is asked while nobody else
    /// does the same, and returned.
    pub fn add_missing(
        &mut self,
        ring: Ring,
        live: impl FnOnce() -> Result<Frames>,
    ) -> Result<Frames> {
        let lock = Lock::acquire(&self.path, false)?;
        if lock.identity(&self.path)? != self.identity {
            let what = "expected the file that was opened, got another in its place";
            return Err(Error::damaged(&self.path, what));
        }
        let live = live()?;
        // More than there ever were, if a power failure took the newest frames.
        let end = self.map.load(END_WORD, Relaxed).min(live.end.0);
        let missing = Frames {
            first: live.first.max(Seq(end)),
            end: live.end,
        };
        let largest = self.map.load(LARGEST_WORD, Relaxed);
        for slot in ring
            .runs(missing.first, missing.len())
            .into_iter()
            .flatten()
        {
            self.map.store(HEADER_WORDS + slot, largest, Relaxed);
        }
        self.map.store(END_WORD, live.end.0, Release);
        Ok(live)
    }
}

/// Checks that file of a directory, if there is one, without changing it.
pub fn check(directory: &Path, capacity: usize) -> Result<()> {
    let path = &directory.join(PRIORITIES_FILE);
    check_regular(path)?;
    let len = len_of(capacity)?;
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        file => file.at(path)?,
    };
    if is_unfinished(&file, len).at(path)? {
        return Ok(());
    }
    let map = ReadMap::open(path, len)?;
    let word = |word| map.word(word, Acquire);
    if word(MAGIC_WORD) == 0 {
        return Ok(()); // as unfinished
    }
    check_header(capacity, path, word)?;
    for slot in (0..capacity).map(Slot) {
        decode(word(HEADER_WORDS + slot.0), slot, path)?;
    }
    Ok(())
}

/// Whether whoever made a file has not got so far as to give it its length.
fn is_unfinished(mut file: &File, len: usize) -> io::Result<bool> {
    let found = file.metadata()?.len();
    let mut first = [0; 8];
    let read = file.read(&mut first)?;
    Ok(found < len as u64 && first[..read] == [0; 8][..read])
}

fn check_header(capacity: usize, path: &Path, get: impl Fn(usize) -> u64) -> Result<()> {
    let expected = [
        (MAGIC_WORD, MAGIC),
        (VERSION_WORD, VERSION),
        (CAPACITY_WORD, capacity as u64),
    ];
    for (word, expected) in expected {
        let got = get(word);
        if got != expected {
            return Err(damaged(
                path,
                format!("word {word}: expected {expected}, got {got}"),
            ));
        }
    }
    let largest = f64::from_bits(get(LARGEST_WORD));
    match is_priority(largest) && largest >= 1.0 {
        true => Ok(()),
        false => Err(damaged(path, format!("the largest priority is {largest}"))),
    }
}

fn decode(word: u64, slot: Slot, path: &Path) -> Result<f64> {
    let priority = f64::from_bits(word);
    match is_priority(priority) {
        true => Ok(priority),
        false => {
            let expected = "expected a finite number, not negative";
            Err(damaged(
                path,
                format!("slot {}: {expected}, got {priority}", slot.0),
            ))
        }
    }
}

fn damaged(path: &Path, what: String) -> Error {
    Error::damaged(
        path,
        format!("{what}; without the file, priorities start anew"),
    )
}

/// Whether a frame can have such a priority.
pub fn is_priority(number: f64) -> bool {
    number.is_finite() && number >= 0.0
}

/// The file's length in bytes.
fn len_of(capacity: usize) -> Result<usize> {
    let words = HEADER_WORDS.checked_add(capacity);
    let len = words.and_then(|words| words.checked_mul(8));
    len.ok_or_else(|| out_of_memory(format!("{capacity} priorities")))
}

/// The right to make the file or to add frames, for a short time.
#[derive(Debug)]
struct Lock {
    file: File,
    /// A child that is forked meanwhile would have the right, too, and never give it up.
    _not_forking: NotForking,
}

impl Lock {
    fn acquire(path: &Path, create: bool) -> Result<Self> {
        let _not_forking = not_forking();
        check_regular(path)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(create);
        let file = options.open(path).at(path)?;
        file.lock().at(path)?;
        Ok(Self { file, _not_forking })
    }

    fn identity(&self, path: &Path) -> Result<Identity> {
        Identity::of(&self.file, path)
    }
}
