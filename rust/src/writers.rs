//! The writers of this process: one per directory, shared by all buffers that write it.
//!
//! So a second buffer of the same directory may insert, too, one insert at a time. The directory's
//! lock is given up when the last buffer that has inserted is closed.
//!
//! A fork waits for what uses a writer, and that for a fork, but nothing waits for its own thread:
//! hooks that run around a fork may insert, close and collect garbage.

use std::cell::RefCell;
use std::sync::{
    Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
};

use crate::commit::Writer;
use crate::directory::Directory;
use crate::error::Result;
use crate::fork::PerProcess;
use crate::map::Identity;

/// Locked for reading by whoever uses a writer, and for writing by a fork.
static FORKING: RwLock<()> = RwLock::new(());

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
        let _not_forking = not_forking();
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

    /// Lets `work` use the writer, if there is one.
    pub fn with_open<T>(&self, work: impl FnOnce(&mut Writer) -> Result<T>) -> Result<Option<T>> {
        let _not_forking = not_forking();
        match &mut *unpoisoned(&self.0) {
            Some(writer) if !writer.is_void() => work(writer).map(Some),
            _ => Ok(None),
        }
    }

    /// Lets `work` write. Takes the directory's lock for that, unless a share of this process has it
    /// and its file was not removed.
    pub fn with<T>(
        &self,
        directory: &Directory,
        work: impl FnOnce(&mut Writer) -> Result<T>,
    ) -> Result<T> {
        let _not_forking = not_forking();
        // A writer that panicked left a valid record in force, as a killed one would.
        let mut shared = unpoisoned(&self.0);
        work(match &mut *shared {
            Some(writer) if !writer.is_void() => writer,
            none => none.insert(Writer::open(directory)?),
        })
    }

    /// Drops the share when no fork is under way.
    pub fn give_up(self) {
        let _not_forking = not_forking();
        drop(self);
    }
}

impl Drop for WriterShare {
    fn drop(&mut self) {
        // Whoever drops a value, like a garbage collector, may hold what a forking thread needs to
        // go on. So this does not wait for it; it may find the lock held by `give_up`, too.
        let _not_forking = FORKING.try_read();
        // Shares are only made with this locked, so the count is what it is.
        let known = unpoisoned(known());
        if Arc::strong_count(&self.0) == 1 {
            *unpoisoned(&self.0) = None;
        }
        drop(known);
    }
}

thread_local! {
    /// Held by the thread that forks, in the parent and in the child.
    static FORK: RefCell<Option<RwLockWriteGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// To be called before a fork: waits for inserts, so that the child can close what they use.
pub fn before_fork() {
    let guard = FORKING.write().unwrap_or_else(PoisonError::into_inner);
    FORK.set(Some(guard));
}

/// To be called after a fork, in the parent.
pub fn after_fork_in_parent() {
    FORK.set(None);
}

/// To be called after a fork, in the child: closes the parent's lock files, or they would stay
/// locked after the parent's death.
pub fn after_fork_in_child() {
    FORK.set(None);
    known();
}

fn known() -> &'static Known {
    KNOWN.get(|parents| {
        // After a fork that did not wait for inserts, what a thread was just using stays open.
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

/// Other threads do not fork as long as this is held.
#[derive(Debug)]
pub struct NotForking(#[expect(dead_code, reason = "held")] Option<RwLockReadGuard<'static, ()>>);

/// Waits until no other thread forks, and keeps them from it. Not to be asked for again meanwhile.
pub fn not_forking() -> NotForking {
    let is_this_thread = FORK.try_with(|fork| fork.borrow().is_some());
    NotForking(match is_this_thread {
        Ok(true) => None,
        // Without its local values, a thread is about to end, and forks no more.
        Ok(false) | Err(_) => Some(FORKING.read().unwrap_or_else(PoisonError::into_inner)),
    })
}
