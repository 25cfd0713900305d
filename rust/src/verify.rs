//! Checks of all that a directory's files say of each other, and what can be made of damaged ones.
//!
//! Verifying reads only, also beside a writer. Repairing keeps the frames that the files agree on:
//! the longest run of consecutive frames whose rows are all there and whose episodes follow one
//! another.

use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, ErrorKind, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::directory::{Stored, adopted_live, files_of, open_columns, record_of};
use crate::episodes::Episodes;
use crate::error::{AtPath, Error, Result};
use crate::files::{overwrite, replace};
use crate::format::{
    MANIFEST_FILE, Manifest, NEXT_INDEX_FILE, OCCUPANCY_MASK_FILE, PRIORITIES_FILE, Record,
    STATE_FILE,
};
use crate::gather::Column;
use crate::index;
use crate::lock::{LOCK_FILE, WriterLock};
use crate::map::{ReadMap, check_regular};
use crate::memory::{push, with_room};
use crate::priority_file;
use crate::ring::{Frames, Ring, Seq, Slot};
use crate::space;
use crate::spec::ColumnSpec;
use crate::state::State;

/// Of one kind of damage, at most this many instances are listed.
const MOST_FINDINGS: usize = 20;
/// How often frames are checked anew if a writer changes them meanwhile.
const ATTEMPTS: usize = 100;
/// How many frames are checked between two words on progress: some milliseconds' worth.
const FRAMES_BETWEEN_WORDS: u64 = 1 << 20;

/// Hears how many live frames are checked, and of how many; to break ends with [`Error::Stopped`].
pub type Listener<'a> = &'a mut (dyn FnMut(usize, usize) -> ControlFlow<()> + Send);

/// Something that is wrong with a file, or what was done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file.
    pub file: PathBuf,
    /// What.
    pub what: String,
}

impl Finding {
    fn new(file: PathBuf, what: impl Into<String>) -> Self {
        let what = what.into();
        Self { file, what }
    }

    /// The finding that an error is; one that says nothing of the file's content stays an error.
    fn of(error: Error) -> Result<Self> {
        match error {
            Error::Damaged { path, what } => Ok(Self::new(path, what)),
            Error::Io { path, source } if source.kind() == ErrorKind::NotFound => {
                Ok(Self::new(path, "is missing"))
            }
            other => Err(other),
        }
    }
}

/// What is wrong with the buffer at `path`: with its bookkeeping or, where that is sound, with the
/// columns, up to a number of findings. A path without a buffer is [`Error::NotABuffer`].
pub fn verify(path: &Path, listener: Listener<'_>) -> Result<Vec<Finding>> {
    let path = &std::path::absolute(path).at(path)?;
    match path.metadata() {
        Ok(found) if found.is_dir() => {}
        Err(source) if source.kind() == ErrorKind::PermissionDenied => {
            return Err(source).at(path);
        }
        _ => return Err(Error::not_a_buffer(path)),
    }
    let stored = match Stored::read(path) {
        Ok(Some(stored)) => stored,
        Ok(None) if path.join(STATE_FILE).exists() => {
            return Ok(vec![Finding::new(path.join(MANIFEST_FILE), "is missing")]);
        }
        Ok(None) => return Err(Error::not_a_buffer(path)),
        Err(error) => return Ok(vec![Finding::of(error)?]),
    };
    let mut findings = Vec::new();
    for (name, len) in files_of(&stored.manifest) {
        if let Err(error) = ReadMap::open(&path.join(name), len) {
            findings.push(Finding::of(error)?);
        }
    }
    if let Err(error) = check_regular(&path.join(LOCK_FILE)) {
        findings.push(Finding::of(error)?);
    }
    let priorities = priority_file::check(path, stored.manifest.capacity);
    let priorities = priorities.map_or_else(|error| Finding::of(error).map(Some), |()| Ok(None))?;
    match State::open(path, stored.manifest.capacity, stored.checksum) {
        Err(error) => findings.push(Finding::of(error)?),
        Ok(state) => {
            findings.extend(state.damaged_places().map(|place| {
                let parity = ["even", "odd"][place];
                let what = format!("the commit record of {parity} generations is damaged");
                Finding::new(path.join(STATE_FILE), format!("{what}; its copy is used"))
            }));
            if findings.is_empty() {
                let columns = open_columns(path, &stored.manifest)?;
                findings =
                    Content::new(path, &stored.manifest, &columns).at_rest(&state, listener)?;
            }
        }
    }
    findings.extend(priorities);
    Ok(findings)
}

/// Makes a buffer of the damaged one at `path` again and says what was done. What the files do not
/// tell, such as a column that is missing, is an error.
pub fn repair(path: &Path, listener: Listener<'_>) -> Result<Vec<Finding>> {
    let path = &std::path::absolute(path).at(path)?;
    let findings = verify(path, listener)?;
    if findings.is_empty() {
        return Ok(findings);
    }
    let stored = Stored::read(path)?.ok_or_else(|| lost(&path.join(MANIFEST_FILE)))?;
    let _lock = WriterLock::acquire(path)?;
    let manifest = &stored.manifest;
    let state = match State::open(path, manifest.capacity, stored.checksum) {
        Ok(state) => Some(state),
        // The manifest was changed: its capacity and rows are not to be trusted.
        Err(Error::Damaged { path: file, what }) if file.ends_with(MANIFEST_FILE) => {
            return Err(Error::Damaged { path: file, what });
        }
        Err(error) => Finding::of(error).map(|_| None)?,
    };
    let intact = intact_slots(path, manifest)?;
    let mut done = restore_lengths(path, manifest)?;
    for column in bookkeeping_columns(manifest) {
        // All of them may be read, and reading a hole of a full disk can end the process.
        space::fill_holes(
            &path.join(column.file_name()),
            column.row_bytes * manifest.capacity,
        )?;
    }
    let columns = open_columns(path, manifest)?;
    let content = Content::new(path, manifest, &columns);
    let record = state.as_ref().map(State::load).transpose()?;
    let live = match record {
        Some(record) => record.live,
        None => content.live_without_state(&mut done),
    };
    let (runs, _) = content.runs(live, listener)?;
    let kept = runs
        .into_iter()
        .flat_map(|run| content.within(run.frames, intact));
    let none = Frames::none_at(live.end);
    let kept = kept.max_by_key(Frames::len).unwrap_or(none);
    if kept != live {
        let (lost, slot) = (live.len() - kept.len(), content.ring.slot(kept.first).0);
        let what = format!(
            "dropped {lost} frames; {} are live, from slot {slot} on",
            kept.len()
        );
        done.push(Finding::new(path.clone(), what));
    }
    let found = record_of(path, manifest, &columns, kept)?;
    let before = record.unwrap_or_else(Record::empty);
    let record = Record {
        generation: before.generation + 1,
        episodes: found.episodes.max(before.episodes),
        ..found
    };
    if let Err(error) = priority_file::check(path, manifest.capacity) {
        Finding::of(error)?;
        let file = path.join(PRIORITIES_FILE);
        fs::remove_file(&file).at(&file)?;
        done.push(Finding::new(file, "removed: priorities start anew"));
    }
    let next = content.ring.slot(kept.end).0 as u64;
    replace(&path.join(OCCUPANCY_MASK_FILE), &content.mask(kept)?)?;
    replace(&path.join(NEXT_INDEX_FILE), &next.to_le_bytes())?;
    overwrite(&path.join(STATE_FILE), &stored.state(&record))?; // readers follow
    let what = "written anew, from what the other files say";
    done.push(Finding::new(path.join(STATE_FILE), what));
    Ok(done)
}

/// Frames that can follow one another.
struct Run {
    frames: Frames,
    episodes: u64,
}

/// What the columns hold.
struct Content<'a> {
    path: &'a Path,
    manifest: &'a Manifest,
    columns: &'a [Column],
    ring: Ring,
}

impl<'a> Content<'a> {
    fn new(path: &'a Path, manifest: &'a Manifest, columns: &'a [Column]) -> Self {
        let ring = Ring::new(manifest.capacity);
        Self {
            path,
            manifest,
            columns,
            ring,
        }
    }

    /// What is wrong while no insert comes in between.
    fn at_rest(&self, state: &State, listener: Listener<'_>) -> Result<Vec<Finding>> {
        for _ in 0..ATTEMPTS {
            let record = state.load()?;
            let (runs, mut findings) = self.runs(record.live, listener)?;
            findings.extend(self.counters(&record));
            if let [Run { episodes, .. }] = runs[..]
                && episodes > record.episodes
            {
                let got = record.episodes;
                let what = format!("expected at least {episodes} episodes ever added, got {got}");
                findings.push(Finding::new(self.path.join(STATE_FILE), what));
            }
            if record.generation == state.mirrored() {
                findings.extend(self.mirror(record.live)?);
            }
            if findings.is_empty() || state.load()? == record {
                return Ok(findings);
            }
        }
        Err(Error::Overtaken {
            path: self.path.to_owned(),
            attempts: ATTEMPTS,
        })
    }

    /// The runs of frames that can follow one another, and what separates them.
    fn runs(&self, live: Frames, listener: Listener<'_>) -> Result<(Vec<Run>, Vec<Finding>)> {
        let (mut runs, mut findings) = (Vec::new(), Vec::new());
        let mut episodes = Episodes::empty_at(live.first, None);
        let timestamps = &self.columns[self.manifest.spec.own().timestamp];
        loop {
            let first = episodes.live().end;
            let checked = (first.0 - live.first.0) as usize;
            if listener(checked, live.len()).is_break() {
                return Err(Error::Stopped);
            }
            let end = Seq(live.end.0.min(first.0 + FRAMES_BETWEEN_WORDS));
            let result = index::extend(
                &mut episodes,
                Frames { first, end },
                self.path,
                &self.manifest.spec,
                self.columns,
                self.ring,
            );
            if result.is_ok() && end < live.end {
                continue;
            }
            let run = Run {
                frames: episodes.live(),
                episodes: episodes.len() as u64,
            };
            push(&mut runs, run, "runs of frames")?;
            let Err(error) = result else {
                return Ok((runs, findings));
            };
            if findings.len() < MOST_FINDINGS {
                findings.push(Finding::of(error)?);
            }
            let bad = episodes.live().end;
            // A frame whose episode is less than the one before may begin another run.
            let finite = timestamps.float64(self.ring.slot(bad)).is_finite();
            episodes.restart_at(Seq(bad.0 + u64::from(!finite)));
        }
    }

    /// Counters that differ from the newest frame's numbers.
    fn counters(&self, record: &Record) -> Vec<Finding> {
        let own = self.manifest.spec.own();
        let counters = [
            (own.index, record.next_index),
            (own.episode_index, record.next_episode),
        ];
        let wrong = counters.into_iter().filter_map(|(column, next)| {
            let last = record
                .live
                .end
                .0
                .checked_sub(1)
                .filter(|_| !record.live.is_empty())?;
            let last = self.columns[column].int64(self.ring.slot(Seq(last)));
            let file = self
                .path
                .join(self.manifest.spec.columns()[column].file_name());
            let what = format!(
                "expected {}, as _state has it, for the newest frame, got {last}",
                next.wrapping_sub(1)
            );
            (last.wrapping_add(1) != next).then(|| Finding::new(file, what))
        });
        wrong.collect()
    }

    /// What other implementations read, where it differs from what is live.
    fn mirror(&self, live: Frames) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        let file = self.path.join(NEXT_INDEX_FILE);
        let next = ReadMap::open(&file, 8)?.word(0, std::sync::atomic::Ordering::Relaxed);
        let (slot, capacity) = (self.ring.slot(live.end).0, self.ring.capacity());
        if next != slot as u64 && !(next == capacity as u64 && slot == 0) {
            findings.push(Finding::new(file, format!("expected {slot}, got {next}")));
        }
        let file = self.path.join(OCCUPANCY_MASK_FILE);
        let mask = BufReader::new(File::open(&file).at(&file)?).bytes();
        let runs = self.ring.runs(live.first, live.len());
        let (mut first, mut count) = (None, 0);
        for (slot, byte) in mask.enumerate() {
            let is_live = runs.iter().any(|run| run.contains(&slot));
            if (byte.at(&file)? != 0) != is_live {
                first.get_or_insert(slot);
                count += 1;
            }
        }
        if let Some(slot) = first {
            let what =
                format!("{count} slots are not marked as they are, the first of them {slot}");
            findings.push(Finding::new(file, what));
        }
        Ok(findings)
    }

    fn mask(&self, live: Frames) -> Result<Vec<u8>> {
        let mut mask = with_room(self.ring.capacity(), "slots")?;
        mask.resize(self.ring.capacity(), 0);
        for run in self.ring.runs(live.first, live.len()) {
            mask[run].fill(1);
        }
        Ok(mask)
    }

    /// The live frames by what other implementations read or, where that is damaged too, by the
    /// longest run of growing `index` that ends with the largest one.
    fn live_without_state(&self, done: &mut Vec<Finding>) -> Frames {
        match adopted_live(self.path, self.ring.capacity()) {
            Ok(live) if !live.is_empty() => return live,
            _ => {}
        }
        let index = self.manifest.spec.own().index;
        let value = |slot: usize| self.columns[index].int64(Slot(slot));
        let capacity = self.ring.capacity();
        let newest = (0..capacity).max_by_key(|&slot| value(slot)).unwrap_or(0);
        let largest = value(newest);
        let len = (0..capacity as i64)
            .take_while(|&back| {
                largest > 0 && value(self.ring.moved(Slot(newest), -back).0) == largest - back
            })
            .count();
        let file = self
            .path
            .join(self.manifest.spec.columns()[index].file_name());
        let what = format!(
            "took the {len} frames up to index {largest} for the live ones; \
             if an insert was under way, some of them may be half written"
        );
        done.push(Finding::new(file, what));
        let end = (capacity + newest + 1) as u64; // a lap more, so that no number is negative
        Frames {
            first: Seq(end - len as u64),
            end: Seq(end),
        }
    }

    /// The parts of a run whose slots are below `intact`.
    fn within(&self, run: Frames, intact: usize) -> Vec<Frames> {
        if intact >= self.ring.capacity() {
            return vec![run];
        }
        let mut first = run.first.0;
        let mut parts = Vec::new();
        for slots in self.ring.runs(run.first, run.len()) {
            let kept = intact.clamp(slots.start, slots.end) - slots.start;
            parts.push(Frames {
                first: Seq(first),
                end: Seq(first + kept as u64),
            });
            first += slots.len() as u64;
        }
        parts
    }
}

/// How many slots, from the first on, have their rows in every column; a missing column is an error.
fn intact_slots(path: &Path, manifest: &Manifest) -> Result<usize> {
    let mut intact = manifest.capacity;
    for column in manifest.spec.columns() {
        let file = path.join(column.file_name());
        check_regular(&file)?;
        let len = match file.metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(lost(&file)),
            result => result.at(&file)?.len() as usize,
        };
        intact = intact.min(len / column.row_bytes);
    }
    Ok(intact)
}

/// That a file is gone for good.
fn lost(file: &Path) -> Error {
    Error::damaged(file, "is missing, and nothing else tells what it held")
}

fn bookkeeping_columns(manifest: &Manifest) -> impl Iterator<Item = &ColumnSpec> {
    let columns = manifest.spec.columns().iter();
    columns.filter(|column| !manifest.fields.contains_key(&column.key))
}

/// Gives columns their lengths back.
fn restore_lengths(path: &Path, manifest: &Manifest) -> Result<Vec<Finding>> {
    let mut done = Vec::new();
    for column in manifest.spec.columns() {
        let name = path.join(column.file_name());
        let file = OpenOptions::new().write(true).open(&name).at(&name)?;
        let (got, expected) = (
            file.metadata().at(&name)?.len(),
            (column.row_bytes * manifest.capacity) as u64,
        );
        if got == expected {
            continue;
        }
        if got < expected {
            space::allocate(&file, got as usize..expected as usize).at(&name)?;
        }
        file.set_len(expected).at(&name)?;
        let what = format!("had {got} bytes, was given {expected}");
        done.push(Finding::new(name, what));
    }
    Ok(done)
}
