//! The writers of this process: one per directory, shared by all buffers that write it.
//!
//! So a second buffer of the same directory may insert, too, one insert at a time. The directory's
//! lock is given up when the last buffer that has inserted is closed.

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use crate::commit::Writer;
use crate::directory::Directory;
use crate::error::Result;
use crate::fork::PerProcess;
use crate::map::Identity;

/// A directory's writer, once there was an insert.
type Shared = Mutex<Option<Writer>>;
type Known = Mutex<Vec<(Identity, Weak<Shared>)>>;

static KNOWN: LazyLock<PerProcess<Known>> = LazyLock::new(|| PerProcess::new(Known::default()));

/// A buffer's share in the writer of its directory.
#[derive(Debug)]
pub struct WriterShare(Arc<Shared>);

impl WriterShare {
    /// A share in what other buffers of this process write `directory` with.
    pub fn of(directory: &Directory) -> Self {
        let identity = directory.state.identity();
        let mut known = unpoisoned(known());
        known.retain(|(_, shared)| shared.strong_count() > 0);
        let mut same = known.iter().filter(|(other, _)| *other == identity);
        let shared = same.find_map(|(_, shared)| shared.upgrade());
        Self(shared.unwrap_or_else(|| {
            let shared = Arc::default();
            known.push((identity, Arc::downgrade(&shared)));
            shared
        }))
    }

    /// Lets `work` write. Takes the directory's lock for that, unless a share of this process has it
    /// and its file was not removed.
    pub fn with<T>(
        &self,
        directory: &Directory,
        work: impl FnOnce(&mut Writer) -> Result<T>,
    ) -> Result<T> {
        // A writer that panicked left a valid record in force, as a killed one would.
        let mut shared = unpoisoned(&self.0);
        work(match &mut *shared {
            Some(writer) if !writer.is_void() => writer,
            none => none.insert(Writer::open(directory)?),
        })
    }
}

impl Drop for WriterShare {
    fn drop(&mut self) {
        // Shares are only made with this locked, so the count is what it is.
        let known = unpoisoned(known());
        if Arc::strong_count(&self.0) == 1 {
            *unpoisoned(&self.0) = None;
        }
        drop(known);
    }
}

/// To be called in a forked child: closes the parent's lock files, or they would stay locked after
/// the parent's death.
pub fn after_fork() {
    known();
}

fn known() -> &'static Known {
    KNOWN.get(|parents| {
        // What a thread of the parent is just using stays open.
        for (_, shared) in parents.try_lock().iter().flat_map(|known| known.iter()) {
            let shared = shared.upgrade();
            if let Some(mut shared) = shared.as_ref().and_then(|shared| shared.try_lock().ok()) {
                *shared = None;
            }
        }
        Known::default()
    })
}

/// What a mutex guards, which is sound whenever it is not locked.
pub fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
