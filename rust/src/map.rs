//! Files as shared memory: the only place where the core touches mapped bytes.
//!
//! Mapped bytes may change at any time, since another process may write the same file. Therefore no
//! reference to them is ever handed out: bytes are copied in and out by bounds-checked calls, and
//! 64-bit words are accessed atomically. A copied-out row can be torn; callers find out by the
//! commit protocol (see [`crate::buffer`]). Maps never outgrow their file: lengths are checked when
//! a map is made, and space is reserved when a file is.

#![allow(unsafe_code)]

use std::fs::{File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use crate::error::{AtPath, Error, Result};
use crate::space;
#[cfg(test)]
pub(crate) use tests::trace;

/// Which file something is. On Unix that is its device and inode, whatever its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity(u64, u64);

impl Identity {
    /// That of an open file; `path` is where it was opened.
    pub fn of(file: &File, path: &Path) -> Result<Self> {
        Ok(identity(&file.metadata().at(path)?, path))
    }
}

/// A whole file, mapped for reading.
#[derive(Debug)]
pub struct ReadMap(MmapRaw, Identity);

impl ReadMap {
    /// Maps a regular file of exactly `len` bytes.
    pub fn open(path: &Path, len: usize) -> Result<Self> {
        let (file, identity) = open_checked(path, OpenOptions::new().read(true), len)?;
        let map = MmapOptions::new().len(len).map_raw_read_only(&file);
        map.map(|map| Self(map, identity)).at(path)
    }

    /// Which file it is.
    pub fn identity(&self) -> Identity {
        self.1
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the file is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the bytes from `offset` on into all of `out`.
    pub fn read(&self, offset: usize, out: &mut [MaybeUninit<u8>]) {
        assert_within(offset, out.len(), self.len());
        // SAFETY: the source range lies within the map (asserted), which lives as long as `self`;
        // the destination is exclusively borrowed, so they cannot overlap. Bytes that another
        // process changes meanwhile are copied as they are: nothing is assumed of their values.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.0.as_ptr().add(offset),
                out.as_mut_ptr().cast::<u8>(),
                out.len(),
            );
        }
    }

    /// Copies `len` bytes, at most 8, from `offset` on; zeros follow them.
    pub fn few(&self, offset: usize, len: usize) -> [u8; 8] {
        let mut bytes = [MaybeUninit::new(0); 8];
        self.read(offset, &mut bytes[..len]);
        // SAFETY: all of them were initialised above, and `read` only overwrites.
        bytes.map(|byte| unsafe { byte.assume_init() })
    }

    /// The 64-bit word at `position`, counted in words.
    pub fn word(&self, position: usize, ordering: Ordering) -> u64 {
        assert!(
            position < self.len() / 8,
            "word {position} of {} bytes",
            self.len()
        );
        // SAFETY: the word lies within the map (asserted) and is aligned, since maps begin at a
        // page. Loads through the reference are atomic, so concurrent writers do no harm, and
        // nothing is ever stored through it.
        unsafe { (*self.0.as_ptr().cast::<AtomicU64>().add(position)).load(ordering) }
    }

    /// Returns once what the file holds is on the disk, whoever wrote it.
    pub fn sync(&self, path: &Path) -> Result<()> {
        self.0.flush().at(path)?;
        trace::synced(path, 0, self.len());
        Ok(())
    }

    /// Copies some of the file's 64-bit words, by their positions, counted in words.
    pub fn words(&self, positions: Range<usize>) -> Vec<u64> {
        assert!(positions.start <= positions.end && positions.end <= self.len() / 8);
        let mut words = Vec::with_capacity(positions.len());
        // SAFETY: the words lie within the map (asserted), which is aligned, since it begins at a
        // page, and lives as long as `self`; the vector has room for them and is ours alone. After
        // the copy they are initialised, to whatever another process may be writing meanwhile.
        unsafe {
            let first = self.0.as_ptr().cast::<u64>().add(positions.start);
            std::ptr::copy_nonoverlapping(first, words.as_mut_ptr(), positions.len());
            words.set_len(positions.len());
        }
        words
    }
}

/// A whole file, mapped for writing. Bytes are only written by the process that holds the writer
/// lock; what is shared otherwise is written in words.
#[derive(Debug)]
pub struct WriteMap {
    map: MmapRaw,
    path: PathBuf,
    holes: Option<Holes>,
}

/// Where a file lacks the space for its content, and its handle.
#[derive(Debug)]
struct Holes {
    file: File,
    /// Bytes that have their space.
    reserved: Range<usize>,
}

/// Space is reserved in pieces of at least this many bytes.
const RESERVE_AT_LEAST: usize = 1 << 20;

impl WriteMap {
    /// Maps a regular file of exactly `len` bytes.
    pub fn open(path: &Path, len: usize) -> Result<Self> {
        Self::open_identified(path, len).map(|(map, _)| map)
    }

    /// Maps the file at `path` that `read` maps, and no other that has taken its place.
    pub fn open_same(path: &Path, read: &ReadMap) -> Result<Self> {
        let (map, identity) = Self::open_identified(path, read.len())?;
        match identity == read.1 {
            true => Ok(map),
            false => Err(Error::damaged(
                path,
                "expected the file that was opened, got another in its place: open the buffer anew",
            )),
        }
    }

    fn open_identified(path: &Path, len: usize) -> Result<(Self, Identity)> {
        let mut options = OpenOptions::new();
        let (file, identity) = open_checked(path, options.read(true).write(true), len)?;
        let map = MmapOptions::new().len(len).map_raw(&file).at(path)?;
        let holes = space::has_holes(&file).at(path)?.then_some(Holes {
            file,
            reserved: 0..0,
        });
        let path = path.to_owned();
        Ok((Self { map, path, holes }, identity))
    }

    /// Reserves space for `len` bytes from `offset` on, if the file may lack it. Writing to them is
    /// safe then: without space, the system would kill the process.
    pub fn reserve(&mut self, offset: usize, len: usize) -> Result<()> {
        assert_within(offset, len, self.map.len());
        let Some(holes) = &mut self.holes else {
            return Ok(());
        };
        if holes.reserved.start <= offset && offset + len <= holes.reserved.end || len == 0 {
            return Ok(());
        }
        let end = self.map.len().min(offset + len.max(RESERVE_AT_LEAST));
        space::allocate(&holes.file, offset..end).at(&self.path)?;
        holes.reserved = offset..end;
        Ok(())
    }

    /// Copies all of `bytes` to `offset`.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert_within(offset, bytes.len(), self.map.len());
        // SAFETY: the destination range lies within the map (asserted), whose file has its space
        // reserved; `bytes` cannot overlap it, since no reference into it leaves `WriteMap`. `&mut
        // self` and the writer lock leave no other writer.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.map.as_mut_ptr().add(offset),
                bytes.len(),
            );
        }
        trace::wrote(&self.path, offset, bytes);
    }

    /// Sets `len` bytes from `offset` on to `value`.
    pub fn fill(&mut self, offset: usize, len: usize, value: u8) {
        assert_within(offset, len, self.map.len());
        // SAFETY: as in `write`: the range lies within the map (asserted) and there is no other
        // writer.
        unsafe { std::ptr::write_bytes(self.map.as_mut_ptr().add(offset), value, len) };
        trace::filled(&self.path, offset, len, value);
    }

    /// Sets the 64-bit word at `position`, counted in words.
    pub fn store(&mut self, position: usize, value: u64, ordering: Ordering) {
        self.words()[position].store(value, ordering);
        trace::wrote(&self.path, position * 8, &value.to_le_bytes());
    }

    /// Makes the 64-bit word at `position`, counted in words, `value` if that is more.
    pub fn fetch_max(&mut self, position: usize, value: u64, ordering: Ordering) {
        let before = self.words()[position].fetch_max(value, ordering);
        trace::wrote(&self.path, position * 8, &before.max(value).to_le_bytes());
    }

    /// Adds to the 64-bit word at `position`, counted in words, and says what it was.
    pub fn fetch_add(&mut self, position: usize, value: u64, ordering: Ordering) -> u64 {
        let before = self.words()[position].fetch_add(value, ordering);
        let after = before.wrapping_add(value);
        trace::wrote(&self.path, position * 8, &after.to_le_bytes());
        before
    }

    /// The 64-bit word at `position`, counted in words.
    pub fn load(&self, position: usize, ordering: Ordering) -> u64 {
        self.words()[position].load(ordering)
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the map is aligned (it begins at a page), at least that long and lives as long as
        // `self`. All access through the slice is atomic, so concurrent readers do no harm.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast(), self.map.len() / 8) }
    }

    /// Returns once `len` bytes from `offset` on are on the disk.
    pub fn sync(&self, offset: usize, len: usize) -> Result<()> {
        self.map.flush_range(offset, len).at(&self.path)?;
        trace::synced(&self.path, offset, len);
        Ok(())
    }

    /// Returns once the whole file is on the disk.
    pub fn sync_all(&self) -> Result<()> {
        self.sync(0, self.map.len())
    }
}

/// The bound that every copy's safety rests on.
fn assert_within(offset: usize, len: usize, map_len: usize) {
    assert!(
        offset.checked_add(len).is_some_and(|end| end <= map_len),
        "{len} bytes at {offset} of {map_len}"
    );
}

/// Opens a regular file after checking that it has exactly `len` bytes.
fn open_checked(path: &Path, options: &OpenOptions, len: usize) -> Result<(File, Identity)> {
    check_regular(path)?;
    let file = options.open(path).at(path)?;
    let metadata = file.metadata().at(path)?;
    if metadata.len() != len as u64 {
        return Err(Error::damaged(
            path,
            format!("expected {len} bytes, got {}", metadata.len()),
        ));
    }
    let identity = identity(&metadata, path);
    Ok((file, identity))
}

/// Refuses what is there and is no regular file; to be asked before opening, since opening a FIFO
/// would wait for its other end and opening a link would reach outside of the directory.
pub fn check_regular(path: &Path) -> Result<()> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Ok(metadata) if !metadata.is_file() => Err(Error::damaged(
            path,
            "expected a regular file, got something else",
        )),
        result => result.map(drop).at(path),
    }
}

#[cfg(unix)]
fn identity(metadata: &Metadata, _: &Path) -> Identity {
    use std::os::unix::fs::MetadataExt;
    Identity(metadata.dev(), metadata.ino())
}

#[cfg(not(unix))]
fn identity(_: &Metadata, path: &Path) -> Identity {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    // An open file cannot be replaced there, so its path says which one it is.
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    Identity(hasher.hash_one(path), 0)
}

/// What tests replace to see each change of a file.
#[cfg(not(test))]
pub(crate) mod trace {
    use std::path::Path;

    pub fn wrote(_: &Path, _: usize, _: &[u8]) {}
    pub fn filled(_: &Path, _: usize, _: usize, _: u8) {}
    pub fn synced(_: &Path, _: usize, _: usize) {}
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;

    /// Each change of a mapped file, as it happens.
    pub(crate) mod trace {
        use std::cell::RefCell;
        use std::path::{Path, PathBuf};

        /// A change, or the end of waiting for the disk.
        #[derive(Clone, Debug)]
        pub(crate) enum Event {
            Wrote(PathBuf, usize, Vec<u8>),
            Synced(PathBuf, usize, usize),
        }

        type Watcher = Box<dyn FnMut(Event)>;

        thread_local! {
            static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) };
        }

        /// Calls `watcher` with all that this thread does, while `work` is done.
        pub(crate) fn watched<T>(
            watcher: impl FnMut(Event) + 'static,
            work: impl FnOnce() -> T,
        ) -> T {
            WATCHER.set(Some(Box::new(watcher)));
            let result = work();
            WATCHER.set(None);
            result
        }

        fn tell(event: impl FnOnce() -> Event) {
            WATCHER.with_borrow_mut(|watcher| {
                if let Some(watcher) = watcher {
                    watcher(event());
                }
            });
        }

        pub(crate) fn wrote(path: &Path, offset: usize, bytes: &[u8]) {
            tell(|| Event::Wrote(path.to_owned(), offset, bytes.to_owned()));
        }

        pub(crate) fn filled(path: &Path, offset: usize, len: usize, value: u8) {
            tell(|| Event::Wrote(path.to_owned(), offset, vec![value; len]));
        }

        pub(crate) fn synced(path: &Path, offset: usize, len: usize) {
            tell(|| Event::Synced(path.to_owned(), offset, len));
        }
    }

    /// A byte of memory that a test has initialised before it was read into.
    pub(crate) fn initialised(byte: &MaybeUninit<u8>) -> u8 {
        // SAFETY: the caller's memory was initialised when it was made.
        unsafe { byte.assume_init() }
    }

    fn file_of(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    fn read(map: &ReadMap, offset: usize, len: usize) -> Vec<u8> {
        let mut out = vec![MaybeUninit::new(0); len];
        map.read(offset, &mut out);
        out.iter().map(initialised).collect()
    }

    #[test]
    fn what_is_written_is_read_through_another_map() {
        let file = file_of(&[0; 32]);
        let mut writer = WriteMap::open(file.path(), 32).unwrap();
        let reader = ReadMap::open(file.path(), 32).unwrap();
        writer.write(3, &[1, 2, 3]);
        writer.fill(8, 2, 9);
        writer.store(3, 0x0102, Ordering::Relaxed);
        assert_eq!(read(&reader, 2, 8), [0, 1, 2, 3, 0, 0, 9, 9]);
        assert_eq!(reader.word(3, Ordering::Relaxed), 0x0102);
    }

    #[test]
    fn a_file_of_another_length_or_kind_is_refused() {
        let file = file_of(&[0; 7]);
        let error = ReadMap::open(file.path(), 8).unwrap_err();
        assert!(
            error.to_string().contains("expected 8 bytes, got 7"),
            "{error}"
        );
        assert!(WriteMap::open(file.path(), 6).is_err());
        assert!(matches!(
            ReadMap::open(Path::new("/"), 8),
            Err(Error::Damaged { .. })
        ));
        assert!(matches!(
            ReadMap::open(Path::new("/nothing"), 8),
            Err(Error::Io { .. })
        ));
    }

    #[test]
    #[should_panic(expected = "2 bytes at 7 of 8")]
    fn a_copy_past_the_end_does_not_happen() {
        let file = file_of(&[0; 8]);
        read(&ReadMap::open(file.path(), 8).unwrap(), 7, 2);
    }
}
