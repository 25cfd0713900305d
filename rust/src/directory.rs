//! A buffer's directory: opening one, creating one, and adopting one that NumPy wrote.
//!
//! A directory is a buffer once `_manifest.json` is in it; that file comes last, by a rename. A
//! creation that fails removes what it made; one that was killed leaves a marker that names what it
//! made, and the next creation begins with removing that.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::episodes::Episodes;
use crate::error::{AtPath, Error, Result};
use crate::files::{Made, exists, replace, sync_directory, sync_file, sync_parent};
use crate::format::{
    MANIFEST_FILE, Manifest, NEXT_INDEX_FILE, OCCUPANCY_MASK_FILE, PRIORITIES_FILE, Record,
    STATE_FILE, check_fps, manifest_checksum,
};
use crate::gather::Column;
use crate::index;
use crate::lock::{LOCK_FILE, WriterLock};
use crate::map::{ReadMap, check_regular};
use crate::ring::{Frames, Ring, Seq};
use crate::space;
use crate::spec::Field;
use crate::state::{self, State};
use crate::window::Windows;

/// The manifest of a directory that is being created.
const CREATING_FILE: &str = "_manifest.json.creating";

/// How often a directory is made that others, whose creations fail, remove again.
const LOCK_ATTEMPTS: usize = 100;
/// No sensible manifest is longer.
const LONGEST_MANIFEST: u64 = 1 << 24;

/// What a buffer is opened for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Reading only: nothing is made or changed.
    Read,
    /// Reading and inserting; it is made if it does not exist.
    #[default]
    Append,
}

/// What an insert that has returned survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The end of the process, however it comes.
    #[default]
    Process,
    /// A power failure too.
    Fsync,
}

/// What the caller says about the buffer; `None` is "as stored".
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// What for.
    pub mode: Mode,
    /// The user's columns.
    pub fields: Option<BTreeMap<String, Field>>,
    /// Slots per column.
    pub capacity: Option<usize>,
    /// Frames per second.
    pub fps: Option<f64>,
    /// Windows that the buffer must be able to give, or opening fails.
    pub deltas: Vec<(String, Vec<f64>)>,
    /// Whether to reserve the columns' space when creating.
    pub preallocate: bool,
    /// With [`Durability::Fsync`], all that is there is on the disk before it is opened for writing.
    pub durability: Durability,
}

/// An open directory: its manifest, and its files mapped for reading.
#[derive(Debug)]
pub struct Directory {
    /// Where it is.
    pub path: PathBuf,
    /// What it holds.
    pub manifest: Manifest,
    /// The columns, in the spec's order.
    pub columns: Vec<Column>,
    /// The commit records.
    pub state: State,
}

impl Directory {
    /// Opens the buffer at `path`, or makes one there of what NumPy left or of nothing. While another
    /// process is making it, that is [`Error::Locked`].
    pub fn open_or_create(path: &Path, request: &Request) -> Result<Self> {
        // Made absolute, or a change of the working directory would change which one is meant.
        let path = &std::path::absolute(path).at(path)?;
        if let Some(stored) = Stored::read(path)? {
            return Self::open(path, stored, request, &[]);
        }
        if request.mode == Mode::Read {
            return Err(Error::not_a_buffer(path));
        }
        let wanted = Stored::new(request.manifest(path)?);
        let (lock, new) = lock_made(path)?;
        if let Some(stored) = Stored::read(path)? {
            return Self::open(path, stored, request, &new); // made meanwhile
        }
        adopt_or_create(path, &wanted, request).inspect_err(|_| {
            // All that is left of the attempt goes too.
            let _ = fs::remove_file(path.join(LOCK_FILE));
            new.iter().for_each(|dir| drop(fs::remove_dir(dir)));
        })?;
        drop(lock);
        Self::open(path, wanted, request, &new)
    }

    fn open(path: &Path, stored: Stored, request: &Request, new: &[PathBuf]) -> Result<Self> {
        let mut manifest = stored.manifest;
        request.check_against(path, &manifest)?;
        manifest.fps = manifest.fps.or(request.fps);
        request.check_windows(&manifest)?;
        let columns = open_columns(path, &manifest)?;
        let state = State::open(path, manifest.capacity, stored.checksum)?;
        let directory = Self {
            path: path.to_owned(),
            manifest,
            columns,
            state,
        };
        if request.durability == Durability::Fsync && request.mode == Mode::Append {
            directory.sync()?; // what later records build on
            new.iter().try_for_each(|dir| sync_parent(dir))?;
        }
        Ok(directory)
    }

    /// Returns once all files are on the disk, with their names.
    pub fn sync(&self) -> Result<()> {
        for (column, spec) in self.columns.iter().zip(self.manifest.spec.columns()) {
            column.sync(&self.path.join(spec.file_name()))?;
        }
        for name in [OCCUPANCY_MASK_FILE, NEXT_INDEX_FILE] {
            sync_file(&self.path.join(name))?;
        }
        self.state.sync()?;
        sync_file(&self.path.join(MANIFEST_FILE))?;
        sync_directory(&self.path)?;
        sync_parent(&self.path)
    }
}

/// A manifest with the checksum of its file.
#[derive(Clone, Debug)]
pub struct Stored {
    /// What the file says.
    pub manifest: Manifest,
    /// As the state file has it.
    pub checksum: u64,
}

impl Stored {
    /// The content of the state file that goes with it.
    pub fn state(&self, record: &Record) -> Vec<u8> {
        state::encode(self.manifest.capacity, self.checksum, record)
    }

    fn new(manifest: Manifest) -> Self {
        let checksum = manifest_checksum(&manifest.encode());
        Self { manifest, checksum }
    }

    /// The manifest in the directory at `path`, if there is one.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        Self::read_file(&path.join(MANIFEST_FILE))
    }

    fn read_file(file: &Path) -> Result<Option<Self>> {
        check_regular(file)?;
        let metadata = match file.metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            result => result.at(file)?,
        };
        if metadata.len() > LONGEST_MANIFEST {
            let got = metadata.len();
            let what = format!("expected at most {LONGEST_MANIFEST} bytes, got {got}");
            return Err(Error::damaged(file, what));
        }
        let bytes = fs::read(file).at(file)?;
        let manifest = Manifest::decode(file, &bytes)?;
        let checksum = manifest_checksum(&bytes);
        Ok(Some(Self { manifest, checksum }))
    }
}

impl Request {
    /// The manifest of a new buffer, if enough was said.
    fn manifest(&self, path: &Path) -> Result<Manifest> {
        let missing = |argument| Error::NoBuffer {
            argument,
            path: path.to_owned(),
        };
        let fields = self.fields.clone().ok_or_else(|| missing("data_spec"))?;
        let capacity = self.capacity.ok_or_else(|| missing("buffer_capacity"))?;
        let manifest = Manifest::new(capacity, self.fps, fields)?;
        self.check_windows(&manifest)?;
        Ok(manifest)
    }

    fn check_windows(&self, manifest: &Manifest) -> Result<()> {
        if self.deltas.is_empty() {
            return Ok(());
        }
        Windows::new(&manifest.spec, manifest.fps, &self.deltas, 0.0).map(drop)
    }

    fn check_against(&self, path: &Path, stored: &Manifest) -> Result<()> {
        let contradiction = |argument: &str, stored: String, got: String| Error::Contradiction {
            argument: argument.to_owned(),
            path: path.to_owned(),
            stored,
            got,
        };
        if let Some((key, stored, got)) = self.differing_field(stored) {
            let show = |field: Option<&Field>| field.map_or("no such key".into(), Field::to_string);
            let argument = format!("data_spec[{key:?}]");
            return Err(contradiction(&argument, show(stored), show(got)));
        }
        if let Some(got) = self.capacity.filter(|&got| got != stored.capacity) {
            let stored = stored.capacity.to_string();
            return Err(contradiction("buffer_capacity", stored, got.to_string()));
        }
        match (stored.fps, self.fps) {
            (Some(stored), Some(got)) if stored != got => {
                Err(contradiction("fps", stored.to_string(), got.to_string()))
            }
            (None, Some(got)) => check_fps(got),
            _ => Ok(()),
        }
    }

    /// A key that is not the same here and in the stored spec, and what it is in each.
    fn differing_field<'a>(
        &'a self,
        stored: &'a Manifest,
    ) -> Option<(&'a str, Option<&'a Field>, Option<&'a Field>)> {
        let fields = self.fields.as_ref()?;
        let mut keys = fields.keys().chain(stored.fields.keys());
        keys.find_map(|key| {
            let (stored, got) = (stored.fields.get(key), fields.get(key));
            (stored != got).then_some((key.as_str(), stored, got))
        })
    }
}

/// The columns at `path`, mapped for reading.
pub fn open_columns(path: &Path, manifest: &Manifest) -> Result<Vec<Column>> {
    let open = |column: &crate::spec::ColumnSpec| {
        let file = path.join(column.file_name());
        let map = ReadMap::open(&file, column.row_bytes * manifest.capacity)?;
        Ok(Column::new(map, column.row_bytes))
    };
    manifest.spec.columns().iter().map(open).collect()
}

/// The directories that `create_dir` will make, innermost first.
fn new_dirs(path: &Path) -> Vec<PathBuf> {
    let missing = path.ancestors().take_while(|dir| !dir.exists());
    missing.map(Path::to_owned).collect()
}

/// Makes the directory, as far as it is missing, and takes its lock. Says which directories are new.
pub fn lock_made(path: &Path) -> Result<(WriterLock, Vec<PathBuf>)> {
    let mut attempts = 0..LOCK_ATTEMPTS;
    loop {
        let new = new_dirs(path);
        match create_dir(path).and_then(|()| WriterLock::acquire(path)) {
            // A creation that failed in another process took its directories away again.
            Err(Error::Io { source, .. })
                if source.kind() == ErrorKind::NotFound && attempts.next().is_some() => {}
            result => return result.map(|lock| (lock, new)),
        }
    }
}

fn create_dir(path: &Path) -> Result<()> {
    match fs::create_dir_all(path) {
        // Something else has a name on the way, or a directory that had it is gone again.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let is_other = |dir: &Path| dir.metadata().is_ok_and(|found| !found.is_dir());
            let kind = match path.ancestors().any(is_other) {
                true => ErrorKind::NotADirectory,
                false => ErrorKind::NotFound,
            };
            Err(io::Error::from(kind)).at(path)
        }
        result => result.at(path),
    }
}

fn adopt_or_create(path: &Path, wanted: &Stored, request: &Request) -> Result<()> {
    remove_half_made(path)?;
    if exists(&path.join(NEXT_INDEX_FILE))? && exists(&path.join(OCCUPANCY_MASK_FILE))? {
        adopt(path, wanted, request.preallocate)
    } else {
        create(path, wanted, request.preallocate)
    }
}

/// The files of a new buffer with their lengths: columns, then what other implementations need.
pub fn files_of(manifest: &Manifest) -> Vec<(String, usize)> {
    let columns = manifest.spec.columns().iter();
    let mut files: Vec<_> = columns
        .map(|column| (column.file_name(), column.row_bytes * manifest.capacity))
        .collect();
    files.push((NEXT_INDEX_FILE.to_owned(), 8));
    files.push((OCCUPANCY_MASK_FILE.to_owned(), manifest.capacity));
    files
}

fn create(path: &Path, stored: &Stored, preallocate: bool) -> Result<()> {
    let manifest = &stored.manifest;
    // Looked for first: what is there when the marker is could be taken for what it left behind.
    let names = files_of(manifest).into_iter().map(|(name, _)| name);
    for name in names.chain([PRIORITIES_FILE.to_owned()]) {
        if exists(&path.join(&name))? {
            return Err(io::Error::from(ErrorKind::AlreadyExists)).at(&path.join(name));
        }
    }
    let mut made = Made::default();
    let marker = path.join(CREATING_FILE);
    made.write(&marker, &manifest.encode())?;
    for (name, len) in files_of(manifest) {
        let file = path.join(name);
        space::make_room(&made.file(&file)?, len as u64, preallocate).at(&file)?;
    }
    made.write(&path.join(STATE_FILE), &stored.state(&Record::empty()))?;
    open_columns(path, manifest)?; // sparse ones may be too large to be mapped
    fs::rename(&marker, path.join(MANIFEST_FILE)).at(&marker)?;
    made.keep();
    Ok(())
}

/// Removes what a killed creation left, by the manifest that it wrote first.
fn remove_half_made(path: &Path) -> Result<()> {
    let marker = path.join(CREATING_FILE);
    if !exists(&marker)? {
        return Ok(());
    }
    check_regular(&marker)?;
    // A marker that cannot be read was cut short, so nothing came after it.
    if let Ok(Some(stored)) = Stored::read_file(&marker) {
        let files = files_of(&stored.manifest);
        let names = files.into_iter().map(|(name, _)| name);
        for name in names.chain([STATE_FILE.to_owned()]) {
            match fs::remove_file(path.join(&name)) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error).at(&path.join(name));
                }
                _ => {}
            }
        }
    }
    fs::remove_file(&marker).at(&marker)
}

/// Makes a buffer of a directory that the NumPy implementation wrote: its files stay as they are.
fn adopt(path: &Path, stored: &Stored, preallocate: bool) -> Result<()> {
    let manifest = &stored.manifest;
    let columns = open_columns(path, manifest)?;
    let live = adopted_live(path, manifest.capacity)?;
    let record = record_of(path, manifest, &columns, live)?;
    check_adoptable(path, manifest.capacity, &record)?;
    if preallocate {
        for (name, len) in files_of(manifest) {
            space::fill_holes(&path.join(name), len)?;
        }
    }
    let state = path.join(STATE_FILE);
    replace(&state, &stored.state(&record))?;
    replace(&path.join(MANIFEST_FILE), &manifest.encode())
        .inspect_err(|_| drop(fs::remove_file(state)))
}

/// Refuses a state file that is not one of an adoption that was interrupted before its last step.
fn check_adoptable(path: &Path, capacity: usize, record: &Record) -> Result<()> {
    let file = path.join(STATE_FILE);
    if !file.symlink_metadata().is_ok_and(|found| found.is_file()) {
        return Ok(());
    }
    let found = fs::read(&file).at(&file)?;
    if state::is_for(&found, capacity, record) {
        return Ok(());
    }
    let what = format!(
        "is missing, but {STATE_FILE} is there and says something else than {NEXT_INDEX_FILE} and \
         {OCCUPANCY_MASK_FILE}: if those are right, remove {STATE_FILE}"
    );
    Err(Error::damaged(&path.join(MANIFEST_FILE), what))
}

/// The record that says that the columns' frames `live` are.
pub fn record_of(
    path: &Path,
    manifest: &Manifest,
    columns: &[Column],
    live: Frames,
) -> Result<Record> {
    let ring = Ring::new(manifest.capacity);
    let own = manifest.spec.own();
    let value = |column: usize, seq: Seq| columns[column].int64(ring.slot(seq));
    let mut episodes = Episodes::empty_at(live.first, None);
    index::extend(&mut episodes, live, path, &manifest.spec, columns, ring)?;
    let next = |column: usize| -> Result<i64> {
        if live.is_empty() {
            return Ok(0);
        }
        value(column, Seq(live.end.0 - 1))
            .checked_add(1)
            .ok_or_else(|| {
                let file = path.join(manifest.spec.columns()[column].file_name());
                Error::damaged(&file, "the newest frame's value leaves no next one")
            })
    };
    Ok(Record {
        live,
        episodes: episodes.len() as u64,
        next_index: next(own.index)?,
        next_episode: next(own.episode_index)?,
        writing: Frames::none_at(live.end),
        ..Record::empty()
    })
}

/// The live frames by `_next_index` and `_occupancy_mask`: the slots before the next, around the
/// end, as many as are occupied.
pub fn adopted_live(path: &Path, capacity: usize) -> Result<Frames> {
    let file = path.join(NEXT_INDEX_FILE);
    let stored = ReadMap::open(&file, 8)?.word(0, std::sync::atomic::Ordering::Relaxed);
    let next = usize::try_from(stored.cast_signed())
        .ok()
        .filter(|&next| next <= capacity);
    let Some(next) = next else {
        return Err(Error::damaged(
            &file,
            format!("expected 0 to {capacity}, got {}", stored.cast_signed()),
        ));
    };
    let file = path.join(OCCUPANCY_MASK_FILE);
    ReadMap::open(&file, capacity)?; // a regular file of that length
    let mask = fs::read(&file).at(&file)?;
    let occupied = mask.iter().filter(|&&byte| byte != 0).count();
    // One lap more than needed keeps sequence numbers positive for frames before slot 0.
    let end = if occupied > next {
        capacity + next % capacity
    } else {
        next
    };
    let live = Frames {
        first: Seq((end - occupied) as u64),
        end: Seq(end as u64),
    };
    let ring = Ring::new(capacity);
    let runs = ring.runs(live.first, occupied);
    if runs.into_iter().flatten().any(|slot| mask[slot] == 0) {
        return Err(Error::damaged(
            &file,
            format!(
                "expected the {occupied} slots before _next_index = {next} to be set, got others"
            ),
        ));
    }
    Ok(live)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::spec::DType;

    #[test]
    fn a_creation_that_fails_does_not_disturb_another_one() {
        let field = Field {
            dtype: DType::UInt8,
            shape: vec![],
        };
        let request = |capacity| Request {
            fields: Some(BTreeMap::from([("x".to_owned(), field.clone())])),
            capacity: Some(capacity),
            preallocate: true,
            ..Request::default()
        };
        let directory = tempfile::tempdir().unwrap();
        for attempt in 0..100 {
            let path = &directory.path().join(attempt.to_string()).join("deeper");
            std::thread::scope(|scope| {
                // No file system has room for its columns.
                let failing = scope.spawn(|| Directory::open_or_create(path, &request(1 << 58)));
                loop {
                    match Directory::open_or_create(path, &request(4)) {
                        Err(Error::Locked { .. }) => continue,
                        made => break drop(made.unwrap()),
                    }
                }
                assert!(failing.join().unwrap().is_err());
            });
            assert!(Directory::open_or_create(path, &Request::default()).is_ok());
        }
    }

    fn live_of(next: i64, mask: &[u8]) -> Result<(u64, u64)> {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(NEXT_INDEX_FILE), next.to_le_bytes()).unwrap();
        fs::write(directory.path().join(OCCUPANCY_MASK_FILE), mask).unwrap();
        adopted_live(directory.path(), mask.len()).map(|live| (live.first.0, live.end.0))
    }

    #[test]
    fn live_frames_follow_from_the_next_index_and_the_mask() {
        assert_eq!(live_of(0, &[0, 0, 0]).unwrap(), (0, 0));
        assert_eq!(live_of(2, &[1, 1, 0]).unwrap(), (0, 2));
        assert_eq!(live_of(3, &[1, 1, 1]).unwrap(), (0, 3));
        assert_eq!(live_of(0, &[1, 1, 1]).unwrap(), (0, 3));
        assert_eq!(live_of(1, &[1, 1, 1]).unwrap(), (1, 4));
        assert_eq!(live_of(1, &[1, 0, 1]).unwrap(), (2, 4));
    }

    #[test]
    fn impossible_bookkeeping_is_refused() {
        for (next, mask) in [
            (4, [1, 1, 1]),
            (-1, [0, 0, 0]),
            (2, [1, 0, 1]),
            (1, [0, 1, 0]),
        ] {
            assert!(
                matches!(live_of(next, &mask), Err(Error::Damaged { .. })),
                "{next} {mask:?}"
            );
        }
    }
}
