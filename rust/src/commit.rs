//! Writing: the protocol that puts a batch into the files.
//!
//! (1) A record says that the frames about to be overwritten are no longer live, (2) the columns
//! are written, (3) the next record says that the new frames are. A process killed in between leaves
//! a buffer with every committed frame that was not about to be overwritten, and with none that is
//! half written. With [`Durability::Fsync`] each step is on the disk before the next begins, so the
//! same holds for a power failure, and what was acknowledged stays.

use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::batch::Batch;
use crate::directory::{Directory, Durability};
use crate::error::Result;
use crate::format::{NEXT_INDEX_FILE, OCCUPANCY_MASK_FILE, Record};
use crate::lock::WriterLock;
use crate::map::WriteMap;
use crate::ring::{Frames, Ring, Seq};
use crate::rows::Rows;
use crate::spec::{DType, OwnColumns};
use crate::state::StateWriter;

/// What was added to the batch's `index` and `episode_index`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shift {
    /// Added to `index`.
    pub index: i64,
    /// Added to `episode_index`.
    pub episode: i64,
}

/// What was found of an insert whose writer had died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// The frames that it was writing. They are gone.
    pub lost: Frames,
    /// What is live.
    pub live: Frames,
}

/// The right to write a directory, with its files mapped for that.
#[derive(Debug)]
pub struct Writer {
    lock: WriterLock,
    ring: Ring,
    columns: Vec<WriteColumn>,
    own: OwnColumns,
    state: StateWriter,
    next_index: WriteMap,
    occupancy_mask: WriteMap,
    recovery: Option<Recovery>,
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
            lock,
            ring: Ring::new(capacity),
            columns: columns.collect::<Result<_>>()?,
            own: spec.own(),
            state: directory.state.open_for_writing()?,
            next_index: WriteMap::open(&path.join(NEXT_INDEX_FILE), 8)?,
            occupancy_mask: WriteMap::open(&path.join(OCCUPANCY_MASK_FILE), capacity)?,
            recovery: None,
        };
        let record = directory.state.load()?;
        if !record.writing.is_empty() {
            writer.recover(&record)?;
        } else if directory.state.mirrored() != record.generation {
            writer.rebuild_mirror(&record)?;
        }
        Ok(writer)
    }

    /// What the last writer left undone, told once.
    pub fn take_recovery(&mut self) -> Option<Recovery> {
        self.recovery.take()
    }

    /// Whether the right to write is gone, as the lock's file was removed.
    pub fn is_void(&self) -> bool {
        self.lock.is_removed()
    }

    /// Inserts a batch after the frames of `record`, the one in force.
    pub fn append(
        &mut self,
        record: &Record,
        mut batch: Batch<'_>,
        durability: Durability,
    ) -> Result<Shift> {
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
        let evicted = Frames {
            first: record.live.first,
            end: publish.live.first,
        };
        self.reserve(publish.writing)?;
        match durability {
            Durability::Process => {
                self.publish(&publish, evicted);
                self.write_columns(publish.writing, &batch);
                self.commit(&publish, &next);
            }
            Durability::Fsync => self.append_synced(&publish, evicted, &batch, &next)?,
        }
        Ok(shift)
    }

    /// As [`Self::append`], waiting for the disk after each step. A copy of a record need not be
    /// there before the next step is, only before its record is overwritten.
    fn append_synced(
        &mut self,
        publish: &Record,
        evicted: Frames,
        batch: &Batch<'_>,
        next: &Record,
    ) -> Result<()> {
        // Not true on the disk until `flush` says so.
        self.state.set_mirrored(0);
        self.state.store(publish);
        self.mirror(evicted, false);
        let written = self.state.sync().and_then(|()| {
            self.state.store_copy(publish);
            self.write_columns(publish.writing, batch);
            self.sync_columns(publish.writing)?;
            self.state.sync()
        });
        if let Err(error) = written {
            // Nothing more is known of the disk, but the buffer stays one for those who have it open.
            self.state.store(&Record {
                generation: next.generation,
                ..publish.without_writing()
            });
            return Err(error);
        }
        self.state.store(next);
        self.mirror(publish.writing, true);
        self.set_next_index(next);
        self.state.sync()?;
        self.state.store_copy(next);
        Ok(())
    }

    /// Says that `evicted` are no longer live.
    fn publish(&mut self, publish: &Record, evicted: Frames) {
        self.state.store(publish);
        self.state.store_copy(publish);
        self.mirror(evicted, false);
    }

    /// Says that the frames that were written are live.
    fn commit(&mut self, publish: &Record, next: &Record) {
        self.state.store(next);
        self.state.store_copy(next);
        self.mirror(publish.writing, true);
        self.finish_mirror(next);
    }

    /// Returns once what other implementations read is on the disk, and a note that it is.
    pub fn sync_mirror(&mut self, record: &Record) -> Result<()> {
        self.next_index.sync_all()?;
        self.occupancy_mask.sync_all()?;
        self.state.set_mirrored(record.generation);
        self.state.sync()
    }

    /// Puts a record in force that says that nothing is being written, and remembers what was.
    fn recover(&mut self, record: &Record) -> Result<()> {
        self.reserve_mirror()?; // what may fail comes first
        let recovered = Record {
            generation: record.generation + 1,
            ..record.without_writing()
        };
        self.state.sync()?; // the copies, before a record is overwritten
        self.state.store(&recovered);
        self.state.sync()?;
        self.state.store_copy(&recovered);
        self.rebuild_mirror(&recovered)?;
        self.recovery = Some(Recovery {
            lost: record.writing,
            live: record.live,
        });
        Ok(())
    }

    /// Makes sure that there is space for the rows of `frames`, before anything is changed.
    fn reserve(&mut self, frames: Frames) -> Result<()> {
        for run in self.ring.runs(frames.first, frames.len()) {
            for column in &mut self.columns {
                let row_bytes = column.row_bytes;
                column
                    .map
                    .reserve(run.start * row_bytes, run.len() * row_bytes)?;
            }
            self.occupancy_mask.reserve(run.start, run.len())?;
        }
        self.next_index.reserve(0, 8)
    }

    fn sync_columns(&self, frames: Frames) -> Result<()> {
        for run in self.ring.runs(frames.first, frames.len()) {
            for column in self.columns.iter().filter(|_| !run.is_empty()) {
                let row_bytes = column.row_bytes;
                column
                    .map
                    .sync(run.start * row_bytes, run.len() * row_bytes)?;
            }
        }
        Ok(())
    }

    /// The record that will follow `record` and `batch`, if their numbers fit.
    fn plan(&self, record: &Record, batch: &Batch<'_>) -> Result<(Shift, Record)> {
        let shift = Shift {
            index: record.next_index,
            episode: record.next_episode,
        };
        let next = Record {
            generation: record.generation + 2,
            live: self.ring.live_after(record.live, batch.len() as u64),
            episodes: record.episodes + batch.episodes,
            next_index: batch.next_index(shift.index)?,
            next_episode: batch.next_episode(shift.episode)?,
            writing: Frames::none_at(Seq(record.live.end.0 + batch.len() as u64)),
        };
        Ok((shift, next))
    }

    /// Writes the last `frames.len()` frames of the batch into the slots of `frames`.
    fn write_columns(&mut self, frames: Frames, batch: &Batch<'_>) {
        let mut first = batch.len() - frames.len();
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
        self.set_next_index(record);
        self.state.set_mirrored(record.generation);
    }

    fn set_next_index(&mut self, record: &Record) {
        let next = self.ring.slot(record.live.end).0 as u64;
        self.next_index.store(0, next, Ordering::Release);
    }

    fn reserve_mirror(&mut self) -> Result<()> {
        self.occupancy_mask.reserve(0, self.ring.capacity())?;
        self.next_index.reserve(0, 8)
    }

    fn rebuild_mirror(&mut self, record: &Record) -> Result<()> {
        self.reserve_mirror()?;
        self.occupancy_mask.fill(0, self.ring.capacity(), 0);
        self.mirror(record.live, true);
        self.set_next_index(record);
        self.sync_mirror(record)
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    //! Whatever moment the power fails or the writer is killed in, and whatever of what was not yet
    //! on the disk happens to be there, the buffer opens with the frames that it must have.

    use super::*;
    use crate::buffer::tests::{CAPACITY, append, open_with, values};
    use crate::map::tests::trace::{Event, watched};
    use proptest::prelude::RngExt;
    use proptest::test_runner::{RngAlgorithm, TestRng};
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::env;
    use std::io::{BufRead, BufReader};
    use std::path::{Path, PathBuf};
    use std::process::{Command, Stdio};
    use std::rc::Rc;
    use std::thread;
    use std::time::Duration;

    /// Lengths of the episodes that are inserted: the ring wraps, once with more than it holds.
    const LENGTHS: [i64; 6] = [3, 4, 2, 11, 1, 6];

    /// The first value of each, and of the one that would be next.
    fn starts() -> impl Iterator<Item = i64> {
        (0..=LENGTHS.len()).map(|inserts| LENGTHS[..inserts].iter().sum())
    }

    /// How many of the states are tried that a power failure can leave.
    const SAMPLES: usize = 4;

    type Files = BTreeMap<PathBuf, Vec<u8>>;

    fn files(directory: &Path) -> Files {
        let paths = std::fs::read_dir(directory).unwrap();
        let paths = paths.map(|entry| entry.unwrap().path());
        paths
            .map(|path| (path.clone(), std::fs::read(path).unwrap()))
            .collect()
    }

    /// What inserting `LENGTHS` does to files.
    struct Recorded {
        files: Files,
        events: Vec<Event>,
        /// How many events there were once each insert's buffer was open.
        opened: Vec<usize>,
        /// How many there were once each insert had returned.
        acknowledged: Vec<usize>,
    }

    /// Records inserts, each by a buffer of its own.
    fn recorded(directory: &Path, durabilities: [Durability; LENGTHS.len()]) -> Recorded {
        drop(open_with(directory, durabilities[0]));
        let files = files(directory);
        let events = Rc::new(RefCell::new(Vec::new()));
        let (sink, seen) = (Rc::clone(&events), Rc::clone(&events));
        let (mut opened, mut acknowledged) = (Vec::new(), Vec::new());
        watched(
            move |event| sink.borrow_mut().push(event),
            || {
                for ((first, len), durability) in starts().zip(LENGTHS).zip(durabilities) {
                    let buffer = open_with(directory, durability);
                    opened.push(seen.borrow().len());
                    append(&buffer, first, len);
                    acknowledged.push(seen.borrow().len());
                }
            },
        );
        let events = events.borrow().clone();
        Recorded {
            files,
            events,
            opened,
            acknowledged,
        }
    }

    /// Makes a buffer of these files and checks it.
    fn check(files: &Files, done: usize) {
        let directory = tempfile::tempdir().unwrap();
        for (path, content) in files {
            std::fs::write(directory.path().join(path.file_name().unwrap()), content).unwrap();
        }
        check_buffer(directory.path(), done);
    }

    /// Opens a buffer whose writer ended after `done` inserts or in the next one; checks its frames.
    fn check_buffer(directory: &Path, done: usize) {
        let buffer = open_with(directory, Durability::Process);
        let mut live = values(&buffer);
        live.sort_unstable();
        let ended = |inserts: usize| starts().nth(inserts).unwrap();
        let capacity = CAPACITY as i64;
        let oldest_after = |inserts: usize| (ended(inserts) - capacity).max(0);
        let next = (done + 1).min(LENGTHS.len());
        // The newest frame is that of the last insert that returned, or of the one under way; the
        // latter may have evicted what it overwrites.
        let first = live.first().copied().unwrap_or(ended(done));
        let end = live.last().map_or(ended(done), |last| last + 1);
        assert!(live.iter().copied().eq(first..end), "{live:?}");
        assert!(
            [ended(done), ended(next)].contains(&end),
            "{live:?} after {done} inserts"
        );
        assert!(
            oldest_after(done) <= first && first <= oldest_after(next).min(end),
            "{live:?}"
        );
        append(&buffer, end, 2);
        let mut after = values(&buffer);
        after.sort_unstable();
        assert_eq!(after.last(), Some(&(end + 1)));
        let first = (end + 2 - capacity).max(first);
        assert!(
            after.iter().copied().eq(first..end + 2),
            "{after:?} after {live:?}"
        );
    }

    fn apply(files: &mut Files, path: &Path, offset: usize, bytes: &[u8]) {
        files.get_mut(path).unwrap()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    #[test]
    fn a_kill_between_any_two_writes_leaves_what_was_acknowledged() {
        for durability in [Durability::Process, Durability::Fsync] {
            let directory = tempfile::tempdir().unwrap();
            let recorded = recorded(directory.path(), [durability; LENGTHS.len()]);
            let (mut files, events) = (recorded.files, recorded.events);
            let acknowledged = recorded.acknowledged;
            for (number, event) in events.iter().enumerate() {
                check(&files, acknowledged.partition_point(|&end| end <= number));
                if let Event::Wrote(path, offset, bytes) = event {
                    apply(&mut files, path, *offset, bytes);
                }
            }
            check(&files, LENGTHS.len());
        }
    }

    /// Tells a process that it is to insert, and after how many changes of a file to stop.
    const STOP_AFTER: &str = "FASTBUFFER_TEST_STOP_AFTER";
    const DIRECTORY: &str = "FASTBUFFER_TEST_DIRECTORY";
    /// What it says then, and whenever an insert has returned.
    const WAITING: &str = "waiting to be killed";
    const RETURNED: &str = "an insert has returned";

    #[test]
    fn a_process_killed_between_any_two_writes_leaves_what_was_acknowledged() {
        kill_after_each_change(Durability::Process);
    }

    #[test]
    fn a_process_killed_between_any_two_steps_of_fsync_leaves_what_was_acknowledged() {
        kill_after_each_change(Durability::Fsync);
    }

    /// Runs the calling test in processes of its own, and kills each of them one change later.
    fn kill_after_each_change(durability: Durability) {
        if let Ok(stop_after) = env::var(STOP_AFTER) {
            return insert_and_stop(stop_after.parse().unwrap(), durability);
        }
        let mut kills = 0;
        loop {
            let directory = tempfile::tempdir().unwrap();
            match kill_after(kills, directory.path()) {
                Some(done) => check_buffer(directory.path(), done),
                None => break,
            }
            kills += 1;
        }
        assert!(kills > 100, "{kills}");
    }

    /// Inserts `LENGTHS`, tells of each insert that returns, and waits after so many changes.
    fn insert_and_stop(stop_after: usize, durability: Durability) {
        let buffer = open_with(Path::new(&env::var(DIRECTORY).unwrap()), durability);
        let mut left = stop_after;
        let wait_in_turn = move |_| {
            if left == 0 {
                eprintln!("{WAITING}");
                thread::sleep(Duration::from_secs(60));
            }
            left -= 1;
        };
        watched(wait_in_turn, || {
            for (first, len) in starts().zip(LENGTHS) {
                append(&buffer, first, len);
                eprintln!("{RETURNED}");
            }
        });
    }

    /// Kills a process after so many changes of its files; how many inserts had returned. `None` if
    /// there are not so many changes.
    fn kill_after(changes: usize, directory: &Path) -> Option<usize> {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "--nocapture"])
            .arg(thread::current().name().unwrap()) // that of the test
            .env(STOP_AFTER, changes.to_string())
            .env(DIRECTORY, directory)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut done = 0;
        let stopped = lines.any(|line| {
            let line = line.unwrap();
            done += usize::from(line == RETURNED);
            line == WAITING
        });
        child.kill().unwrap();
        assert!(child.wait().unwrap().success() != stopped);
        stopped.then_some(done)
    }

    #[test]
    fn a_power_failure_at_any_moment_leaves_what_was_acknowledged() {
        let directory = tempfile::tempdir().unwrap();
        // What was inserted without waiting is safe once a buffer is opened that waits.
        let unsynced = [Durability::Process; 2];
        let durabilities = std::array::from_fn(|insert| match insert < unsynced.len() {
            true => unsynced[insert],
            false => Durability::Fsync,
        });
        let recorded = recorded(directory.path(), durabilities);
        let (events, acknowledged) = (recorded.events, recorded.acknowledged);
        let safe_from = recorded.opened[unsynced.len()];
        let mut rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let mut disk = recorded.files;
        let mut pending: Vec<(PathBuf, usize, Vec<u8>)> = Vec::new();
        let mut cases = 0;
        for (number, event) in events.iter().enumerate() {
            let done = acknowledged.partition_point(|&end| end <= number);
            let samples = if number < safe_from { 0 } else { SAMPLES };
            for _ in 0..samples {
                // Each word that is on its way to the disk is there or not, in whatever order.
                let mut files = disk.clone();
                let share = rng.random_range(0.0..1.0);
                for (path, offset, bytes) in &pending {
                    for (word, bytes) in bytes.chunks(8).enumerate() {
                        if rng.random_bool(share) {
                            apply(&mut files, path, offset + word * 8, bytes);
                        }
                    }
                }
                check(&files, done);
                cases += 1;
            }
            match event {
                Event::Wrote(path, offset, bytes) => {
                    pending.push((path.clone(), *offset, bytes.clone()));
                }
                Event::Synced(path, start, len) => pending.retain(|(other, offset, bytes)| {
                    let synced = other == path && start <= offset && *offset < start + len;
                    if synced {
                        assert!(offset + bytes.len() <= start + len);
                        apply(&mut disk, other, *offset, bytes);
                    }
                    !synced
                }),
            }
        }
        assert!(cases > 1000, "{cases}");
    }
}
