//! The writer lock: at most one process writes a directory.
//!
//! The lock belongs to the open file, so the system releases it when its process dies. The file
//! holds the owner's process id, for the message that a second writer gets.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process;

use crate::error::{AtPath, Error, Result};
use crate::map::check_regular;

/// The lock file's name.
pub const LOCK_FILE: &str = "_lock";

/// The lock, held until dropped.
#[derive(Debug)]
pub struct WriterLock {
    file: File,
    owner: u32,
}

impl WriterLock {
    /// Takes the lock of `directory` or says who has it.
    pub fn acquire(directory: &Path) -> Result<Self> {
        let path = directory.join(LOCK_FILE);
        check_regular(&path)?;
        loop {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .at(&path)?;
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => return Err(locked(directory, &mut file)),
                Err(TryLockError::Error(source)) => return Err(Error::Io { path, source }),
                Ok(()) if !is_at(&file, &path) => continue, // removed between open and lock
                // What is written below must be nobody else's.
                Ok(()) if names(&file) > 1 => {
                    return Err(Error::damaged(
                        &path,
                        "expected a file of one name, got links to one",
                    ));
                }
                Ok(()) => {}
            }
            let owner = process::id();
            // For the message only: a full disk must not keep anybody from writing to space that
            // is reserved.
            let _ = file.set_len(0).and_then(|()| write!(file, "{owner}"));
            return Ok(Self { file, owner });
        }
    }

    /// Whether the lock's file was removed: then another one may be held by someone else.
    pub fn is_removed(&self) -> bool {
        names(&self.file) == 0
    }

    /// Whether this process took the lock: a forked child inherits the file but not the right.
    pub fn is_ours(&self) -> bool {
        self.owner == process::id()
    }
}

impl Drop for WriterLock {
    fn drop(&mut self) {
        // Unlocking works through every copy of the file, so a forked child must not do it; and the
        // owner must, or a living child's copy would keep the lock. Failing is the same as exiting.
        if self.is_ours() {
            let _ = self.file.unlock();
        }
    }
}

fn locked(directory: &Path, file: &mut File) -> Error {
    let mut text = String::new();
    let pid = file
        .read_to_string(&mut text)
        .ok()
        .and_then(|_| text.trim().parse().ok());
    Error::Locked {
        path: PathBuf::from(directory),
        pid,
    }
}

/// How many names a file has.
#[cfg(unix)]
fn names(file: &File) -> u64 {
    use std::os::unix::fs::MetadataExt;
    file.metadata().map_or(0, |metadata| metadata.nlink())
}

/// How many names a file has: an open one cannot be removed.
#[cfg(not(unix))]
fn names(_file: &File) -> u64 {
    1
}

#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), path.metadata()) {
        (Ok(open), Ok(named)) => identity(open) == identity(named),
        _ => false,
    }
}

#[cfg(not(unix))]
fn is_at(_file: &File, path: &Path) -> bool {
    path.exists()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_second_owner_is_told_who_the_first_is() {
        let directory = tempfile::tempdir().unwrap();
        let first = WriterLock::acquire(directory.path()).unwrap();
        let refused = WriterLock::acquire(directory.path()).unwrap_err();
        assert!(matches!(refused, Error::Locked { pid: Some(pid), .. } if pid == process::id()));
        drop(first);
        assert!(WriterLock::acquire(directory.path()).unwrap().is_ours());
    }
}
