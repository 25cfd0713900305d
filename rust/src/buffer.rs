//! The core's facade: one open buffer, for any number of readers and at most one writer.
//!
//! Reads follow the commits of whichever process writes. Each read works on one record: it copies
//! rows, then looks whether a frame that it touched was evicted meanwhile, and starts over if so.
//! That is why a torn row is never returned, and why errors found in torn data are never reported.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::thread;
use std::time::{Duration, Instant};

use crate::batch::Batch;
use crate::commit::{Recovery, Shift, Writer};
use crate::directory::{Directory, Durability, Mode, Request};
use crate::episodes::Episodes;
use crate::error::{Error, Result};
use crate::fork::PerProcess;
use crate::format::{Manifest, Record};
use crate::gather::{BatchOut, Out, Source};
use crate::index;
use crate::memory::{collected, with_room};
use crate::nstep::{NStep, Return};
use crate::plan::{Plan, Planner, Touched};
use crate::ring::{Frames, LiveBySlot, Ring, Seq, Slot};
use crate::window::Windows;
use crate::writers::{WriterShare, unpoisoned};

/// How long a read waits for an insert that is under way.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long it does so without sleeping: most inserts take less.
const SPINNING: Duration = Duration::from_micros(200);
/// How often a read is tried before the writer is taken to be faster than it.
const ATTEMPTS: usize = 1000;

/// An open buffer.
#[derive(Debug)]
pub struct Buffer {
    directory: Directory,
    ring: Ring,
    own: PerProcess<Own>,
    /// The generation of an insert that took longer than `PATIENCE`: its writer may be dead.
    overdue: AtomicU64,
    mode: Mode,
    durability: Durability,
}

/// The live episodes of a buffer. Their frames lie one after the other, in slot order, around the end.
#[derive(Clone, Debug)]
pub struct LiveEpisodes {
    /// The oldest frame.
    pub first: Seq,
    /// Its position among the live frames in slot order.
    pub position: usize,
    /// How many live frames each episode has.
    pub lengths: Vec<usize>,
}

/// What a forked child must not share with its parent.
#[derive(Debug)]
struct Own {
    episodes: RwLock<Episodes>,
    writer: Mutex<Option<WriterShare>>,
    recovery: Mutex<Option<Recovery>>,
}

impl Own {
    fn new(episodes: Episodes) -> Self {
        Self {
            episodes: RwLock::new(episodes),
            writer: Mutex::new(None),
            recovery: Mutex::new(None),
        }
    }
}

impl Buffer {
    /// Opens the buffer at `path`, or creates it as `request` says.
    pub fn open(path: &Path, request: &Request) -> Result<Self> {
        let directory = Directory::open_or_create(path, request)?;
        let ring = Ring::new(directory.manifest.capacity);
        let fps = directory.manifest.fps;
        let buffer = Self {
            directory,
            ring,
            own: PerProcess::new(Own::new(Episodes::empty_at(Seq(0), fps))),
            overdue: AtomicU64::new(0),
            mode: request.mode,
            durability: request.durability,
        };
        buffer.recover()?;
        drop(buffer.episodes()?); // a damaged column is found now, not at the first read
        Ok(buffer)
    }

    /// Finishes what a writer that died left undone, if this buffer may write.
    fn recover(&self) -> Result<()> {
        let interrupted = !self.directory.state.load()?.writing.is_empty();
        if !interrupted || self.mode == Mode::Read {
            return Ok(());
        }
        let result = self.with_writer(|_| Ok(()));
        self.release();
        match result {
            // It is alive, or we may only read: the record says all that a reader needs.
            Err(Error::Locked { .. }) => Ok(()),
            Err(Error::Io { source, .. }) if forbids_writing(source.kind()) => Ok(()),
            result => result,
        }
    }

    /// What was found of an insert whose writer had died, told once.
    pub fn take_recovery(&self) -> Option<Recovery> {
        unpoisoned(&self.own().recovery).take()
    }

    /// The buffer's directory.
    pub fn path(&self) -> &Path {
        &self.directory.path
    }

    /// What the buffer holds.
    pub fn manifest(&self) -> &Manifest {
        &self.directory.manifest
    }

    /// Where a frame lives.
    pub fn slot(&self, seq: Seq) -> Slot {
        self.ring.slot(seq)
    }

    /// The ring that frames live in.
    pub fn ring(&self) -> Ring {
        self.ring
    }

    /// Refuses a buffer that is only open for reading.
    pub fn check_writable(&self) -> Result<()> {
        match self.mode {
            Mode::Append => Ok(()),
            Mode::Read => Err(Error::ReadOnly {
                path: self.path().to_owned(),
            }),
        }
    }

    /// The live frames.
    pub fn live(&self) -> Result<Frames> {
        Ok(self.record()?.live)
    }

    /// The number of live frames.
    pub fn len(&self) -> Result<usize> {
        Ok(self.live()?.len())
    }

    /// Whether no frame is live.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// The number of live episodes, a partly evicted one included.
    pub fn num_episodes(&self) -> Result<usize> {
        Ok(self.episodes()?.len())
    }

    /// Inserts whole episodes and says how their numbers were shifted.
    pub fn append(&self, batch: Batch<'_>) -> Result<Shift> {
        self.check_writable()?;
        self.with_writer(|writer| {
            writer.append(&self.directory.state.load()?, batch, self.durability)
        })
    }

    /// Returns once all that was inserted, by whichever process, is on the disk.
    pub fn flush(&self) -> Result<()> {
        self.directory.sync()?;
        self.sync_mirror()
    }

    /// Gives up the writer lock, with all that belongs to what was inserted on the disk if that is
    /// this buffer's durability.
    pub fn close(&self) -> Result<()> {
        let synced = match self.durability {
            Durability::Fsync => self.sync_mirror(),
            Durability::Process => Ok(()),
        };
        self.release();
        synced
    }

    fn sync_mirror(&self) -> Result<()> {
        if let Some(share) = &*self.writer_slot() {
            share.with_open(|writer| writer.sync_mirror(&self.directory.state.load()?))?;
        }
        Ok(())
    }

    /// Gives up the writer lock, if this buffer has it. Reading goes on; writing takes it again.
    pub fn release(&self) {
        if let Some(share) = self.writer_slot().take() {
            share.give_up();
        }
    }

    /// Copies the items at `indices`, each a position among the live frames in slot order or, if
    /// negative, from their end, on up to `threads` threads. Nothing is copied if that fails.
    pub fn gather(
        &self,
        indices: &[i64],
        windows: &Windows,
        out: &mut BatchOut<'_>,
        threads: usize,
    ) -> Result<()> {
        self.read(|buffer, touched| {
            let plan = buffer
                .with_planner(|planner| planner.plan(planner.frames(indices), windows, touched))?;
            buffer.copy(&plan, windows, out, threads);
            Ok(())
        })
    }

    /// Copies the items at `indices` and behind them their bootstrap frames, which are as many, as
    /// [`Self::gather`] does, and says what follows each item.
    pub fn gather_nstep(
        &self,
        indices: &[i64],
        windows: &Windows,
        nstep: &NStep,
        out: &mut BatchOut<'_>,
        threads: usize,
    ) -> Result<Vec<Return>> {
        self.read(|buffer, touched| {
            let (plan, returns) = buffer.with_planner(|planner| {
                let mut frames = with_room(2 * indices.len(), "the items of a batch")?;
                for frame in planner.frames(indices) {
                    frames.push(frame?);
                }
                let after = frames.iter().map(|&(seq, _)| nstep.after(planner, seq));
                let after = collected(after, "returns")?;
                frames.extend(after.iter().map(|(_, bootstrap)| *bootstrap));
                let returns = after.into_iter().map(|(follows, _)| follows).collect();
                let plan = planner.plan(frames.into_iter().map(Ok), windows, touched)?;
                Ok((plan, returns))
            })?;
            buffer.copy(&plan, windows, out, threads);
            Ok(returns)
        })
    }

    fn copy(&self, plan: &Plan, windows: &Windows, out: &mut BatchOut<'_>, threads: usize) {
        let source = Source {
            columns: &self.directory.columns,
            ring: self.ring,
            windows,
            plan,
        };
        source.copy(out.reborrow(), threads);
    }

    /// Copies all live rows of a column, in slot order, into `out`. False, with nothing copied, if
    /// `out` is not as long as that.
    pub fn copy_live(&self, column: usize, out: Out<'_>) -> Result<bool> {
        let row_bytes = self.manifest().spec.columns()[column].row_bytes;
        let column = &self.directory.columns[column];
        let mut copied = Seq(0);
        for _ in 0..ATTEMPTS {
            let live = self.record()?.live;
            if out.len() != live.len() * row_bytes {
                return Ok(false);
            }
            if live.len() == self.ring.capacity() {
                // Rows lie in `out` as in the column, so only new ones need another copy.
                let first = live.first.max(copied);
                for run in self.ring.runs(first, (live.end.0 - first.0) as usize) {
                    let bytes = run.start * row_bytes..run.end * row_bytes;
                    column.copy_from(Slot(run.start), &mut out[bytes]);
                }
                copied = live.end;
            } else {
                let mut ranges = self.ring.runs(live.first, live.len());
                ranges.sort_by_key(|range| range.start);
                let runs = ranges.iter();
                column.copy_runs(runs.map(|run| (Slot(run.start), run.len())), out);
            }
            if self.directory.state.first_live_after_reads()? <= live.first {
                return Ok(true);
            }
        }
        Err(self.overtaken())
    }

    /// What `work` makes of the live episodes, and of their frames in slot order.
    pub fn with_episodes<T>(&self, work: impl FnOnce(&Episodes, &LiveBySlot) -> T) -> Result<T> {
        let episodes = self.episodes()?;
        Ok(work(&episodes, &self.ring.by_slot(episodes.live())))
    }

    /// The live episodes, in insertion order.
    pub fn live_episodes(&self) -> Result<LiveEpisodes> {
        self.with_episodes(|episodes, by_slot| {
            let live = episodes.live();
            let lengths = episodes.iter().map(|episode| episode.frames.len());
            Ok(LiveEpisodes {
                first: live.first,
                position: match live.is_empty() {
                    true => 0,
                    false => by_slot.position(live.first),
                },
                lengths: collected(lengths, "the lengths of episodes")?,
            })
        })?
    }

    fn own(&self) -> &Own {
        self.own.get(|parents| {
            // Its index, unless a thread of the parent was just changing it or memory is short. Not
            // its writer.
            let known = parents.episodes.try_read().ok();
            let copy = known.and_then(|known| known.try_clone());
            let empty = || Episodes::empty_at(Seq(0), self.manifest().fps);
            Own::new(copy.unwrap_or_else(empty))
        })
    }

    fn with_writer<T>(&self, work: impl FnOnce(&mut Writer) -> Result<T>) -> Result<T> {
        let mut slot = self.writer_slot();
        let share = slot
            .take()
            .unwrap_or_else(|| WriterShare::of(&self.directory));
        let mut is_writer = false;
        let result = share.with(&self.directory, |writer| {
            is_writer = true;
            if let Some(recovery) = writer.take_recovery() {
                *unpoisoned(&self.own().recovery) = Some(recovery);
            }
            work(writer)
        });
        // Where another process has the lock, nothing is left that would take it later.
        *slot = is_writer.then_some(share);
        result
    }

    fn writer_slot(&self) -> MutexGuard<'_, Option<WriterShare>> {
        unpoisoned(&self.own().writer)
    }

    /// The record in force, once no insert is under way. Meanwhile the frames that an insert evicts
    /// are gone and its new ones not there yet, so there would be fewer frames than before and after.
    /// An insert that does not end, as its writer died or its disk is slow, is waited for once.
    fn record(&self) -> Result<Record> {
        let mut begun = None;
        loop {
            let record = self.directory.state.load()?;
            let overdue = self.overdue.load(Ordering::Relaxed) == record.generation;
            if record.writing.is_empty() || overdue {
                return Ok(record);
            }
            let waited = begun.get_or_insert_with(Instant::now).elapsed();
            if waited > PATIENCE {
                self.overdue.store(record.generation, Ordering::Relaxed);
            }
            match waited < SPINNING {
                true => thread::yield_now(),
                false => thread::sleep(SPINNING),
            }
        }
    }

    /// Runs `attempt` until no frame that it touched was evicted meanwhile.
    fn read<T>(&self, mut attempt: impl FnMut(&Self, &mut Touched) -> Result<T>) -> Result<T> {
        for _ in 0..ATTEMPTS {
            let mut touched = Touched::default();
            let result = attempt(self, &mut touched);
            if touched.all_live_from(self.directory.state.first_live_after_reads()?) {
                return result;
            }
        }
        Err(self.overtaken())
    }

    fn overtaken(&self) -> Error {
        Error::Overtaken {
            path: self.path().to_owned(),
            attempts: ATTEMPTS,
        }
    }

    fn with_planner<T>(&self, work: impl FnOnce(&Planner<'_>) -> Result<T>) -> Result<T> {
        work(&Planner {
            spec: &self.manifest().spec,
            columns: &self.directory.columns,
            ring: self.ring,
            episodes: &*self.episodes()?,
        })
    }

    /// The episode index, in step with the record in force.
    fn episodes(&self) -> Result<RwLockReadGuard<'_, Episodes>> {
        for _ in 0..ATTEMPTS {
            let record = self.record()?;
            // An index that a panic left half made would be out of step or empty; both heal here.
            let episodes = &self.own().episodes;
            let episodes = episodes.read().unwrap_or_else(PoisonError::into_inner);
            if episodes.live() == record.live {
                return Ok(episodes);
            }
            drop(episodes);
            self.catch_up(&record)?;
        }
        Err(self.overtaken())
    }

    /// Indexes the frames that `record` has and the index has not.
    fn catch_up(&self, record: &Record) -> Result<()> {
        let episodes = &self.own().episodes;
        let mut episodes = episodes.write().unwrap_or_else(PoisonError::into_inner);
        let known = episodes.live();
        if known.end > record.live.end {
            return Ok(()); // another thread was faster
        }
        if known.end < record.live.first {
            episodes.restart_at(record.live.first);
        }
        let from = episodes.live().end;
        let fresh = Frames {
            first: from,
            end: record.live.end,
        };
        let Directory {
            path,
            manifest,
            columns,
            ..
        } = &self.directory;
        let result = index::extend(
            &mut episodes,
            fresh,
            path,
            &manifest.spec,
            columns,
            self.ring,
        );
        let first_live = self.directory.state.first_live_after_reads()?;
        if from < first_live && from < record.live.end {
            episodes.restart_at(first_live.min(record.live.end)); // read too late
            return Ok(());
        }
        if result.is_err() {
            episodes.restart_at(record.live.first);
        }
        episodes.evict_before(record.live.first);
        result
    }
}

/// Whether an error says that this process, or anybody now, may not write there.
fn forbids_writing(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::StorageFull
            | ErrorKind::QuotaExceeded
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;
    use crate::map::tests::initialised;
    use crate::rows::{Dim, Rows};
    use crate::spec::{DType, Field};
    use std::collections::BTreeMap;
    use std::mem::MaybeUninit;

    pub(crate) const CAPACITY: usize = 8;

    fn open(path: &Path) -> Buffer {
        open_with(path, Durability::Process)
    }

    pub(crate) fn open_with(path: &Path, durability: Durability) -> Buffer {
        let field = Field {
            dtype: DType::Int64,
            shape: vec![3],
        };
        let request = Request {
            fields: Some(BTreeMap::from([("value".to_owned(), field)])),
            capacity: Some(CAPACITY),
            fps: Some(10.0),
            durability,
            ..Request::default()
        };
        Buffer::open(path, &request).unwrap()
    }

    fn int64s(values: impl Iterator<Item = i64>) -> Vec<u8> {
        values.flat_map(i64::to_le_bytes).collect()
    }

    /// Inserts an episode of `len` frames whose values are all `first`, `first + 1`, and so on.
    pub(crate) fn append(buffer: &Buffer, first: i64, len: i64) {
        let times = (0..len)
            .flat_map(|i| (i as f64 / 10.0).to_le_bytes())
            .collect();
        let columns = [
            int64s((0..len).map(|_| 0)), // episode_index
            int64s(0..len),              // frame_index
            int64s(0..len),              // index
            times,                       // timestamp
            int64s((first..first + len).flat_map(|value| [value; 3])), // value
        ];
        let rows = columns.iter().zip(buffer.manifest().spec.columns());
        let rows = rows.map(|(bytes, column)| {
            let strides = [column.row_bytes, 8].map(|stride| stride as isize);
            let lens = [len as usize, column.row_bytes / 8];
            let dims = lens.into_iter().zip(strides);
            let dims = dims.map(|(len, stride)| Dim { len, stride }).collect();
            Rows::new(bytes, 0, dims, column.field.dtype, false).unwrap()
        });
        let batch = Batch::new(&buffer.manifest().spec, rows.collect()).unwrap();
        buffer.append(batch).unwrap();
    }

    fn words(bytes: &[MaybeUninit<u8>]) -> Vec<i64> {
        let bytes: Vec<u8> = bytes.iter().map(initialised).collect();
        bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| i64::from_le_bytes(*word))
            .collect()
    }

    /// All live values, in slot order, each once.
    pub(crate) fn values(buffer: &Buffer) -> Vec<i64> {
        let mut out = vec![MaybeUninit::new(0); buffer.len().unwrap() * 24];
        assert!(buffer.copy_live(4, &mut out).unwrap());
        let words = words(&out);
        assert!(
            words
                .chunks(3)
                .all(|row| row.iter().all(|word| *word == row[0])),
            "{words:?}"
        );
        words.chunks(3).map(|row| row[0]).collect()
    }

    #[test]
    fn a_writer_killed_before_its_commit_costs_only_what_it_was_overwriting() {
        let directory = tempfile::tempdir().unwrap();
        let buffer = open(directory.path());
        append(&buffer, 0, 5);
        append(&buffer, 5, 3);
        buffer.release();
        let record = buffer.directory.state.load().unwrap();
        // What `Writer::append` of 2 frames leaves if it dies after its first step.
        let publish = Record {
            generation: record.generation + 1,
            live: Frames {
                first: Seq(2),
                end: Seq(8),
            },
            writing: Frames {
                first: Seq(8),
                end: Seq(10),
            },
            ..record
        };
        let mut state = buffer.directory.state.open_for_writing().unwrap();
        state.store(&publish);
        for reader in [&buffer, &open(directory.path())] {
            assert_eq!(values(reader), [2, 3, 4, 5, 6, 7]);
            assert_eq!(reader.num_episodes().unwrap(), 2);
        }
        append(&buffer, 8, 4);
        assert_eq!(values(&buffer), [8, 9, 10, 11, 4, 5, 6, 7]);
        let mask = std::fs::read(directory.path().join("_occupancy_mask")).unwrap();
        assert_eq!(mask, [1; CAPACITY]);
    }

    #[test]
    fn the_next_writer_completes_what_others_read() {
        let directory = tempfile::tempdir().unwrap();
        let buffer = open(directory.path());
        append(&buffer, 0, 5);
        buffer.release();
        // Killed after the commit: the mask and the next index are those from before.
        let mask = directory.path().join("_occupancy_mask");
        std::fs::write(&mask, [0; CAPACITY]).unwrap();
        let mut state = buffer.directory.state.open_for_writing().unwrap();
        state.set_mirrored(0);
        append(&open(directory.path()), 5, 1);
        assert_eq!(std::fs::read(&mask).unwrap(), [1, 1, 1, 1, 1, 1, 0, 0]);
        let next = std::fs::read(directory.path().join("_next_index")).unwrap();
        assert_eq!(next, 6i64.to_le_bytes());
    }

    #[test]
    fn readers_of_a_wrapping_buffer_see_whole_frames_of_one_moment() {
        let directory = tempfile::tempdir().unwrap();
        let (buffer, reader) = (open(directory.path()), open(directory.path()));
        let deltas = vec![("value".to_owned(), vec![-0.1, 0.0, 0.1])];
        let windows = Windows::new(&buffer.manifest().spec, Some(10.0), &deltas, 0.01).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for first in 0..20_000 {
                    append(&buffer, first * 3, 3);
                }
            });
            while !writer.is_finished() {
                let mut columns = [8, 8, 8, 8, 3 * 24].map(|len| vec![MaybeUninit::new(0); len]);
                let mut pads = vec![MaybeUninit::new(0); 3];
                let mut out = BatchOut {
                    columns: columns.iter_mut().map(Vec::as_mut_slice).collect(),
                    pads: vec![&mut pads],
                };
                if reader.len().unwrap() < CAPACITY {
                    continue; // not yet full
                }
                reader.gather(&[7], &windows, &mut out, 1).unwrap();
                let [frame, index, value] = [1, 2, 4].map(|column| words(&columns[column]));
                let first = index[0] - frame[0];
                for (row, got) in value.chunks(3).enumerate() {
                    let wanted = (index[0] + row as i64 - 1).clamp(first, first + 2);
                    // The oldest episode may have lost frames at its front.
                    assert!(got.iter().all(|word| *word == got[0]), "{value:?}");
                    assert!(
                        got[0] == wanted || row == 0 && got[0] == wanted + 1,
                        "{value:?}"
                    );
                }
            }
        });
    }
}
