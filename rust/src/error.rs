//! Everything that can go wrong in the core, as data.
//!
//! A message names the argument, key or file, what was expected and what was found. The bindings
//! turn each variant into one Python exception.

use std::io;
use std::path::{Path, PathBuf};

/// The core's result.
pub type Result<T> = std::result::Result<T, Error>;

/// One variant per kind of failure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An argument, or a key of one, has a value that is not allowed.
    #[error("{argument}: expected {expected}, got {got}")]
    Argument {
        /// Which argument or key.
        argument: String,
        /// What is allowed.
        expected: String,
        /// What was given.
        got: String,
    },
    /// An argument contradicts what the directory stores.
    #[error("{argument}: expected {stored} as stored in {path}, got {got}", path = path.display())]
    Contradiction {
        /// Which argument.
        argument: String,
        /// The buffer's directory.
        path: PathBuf,
        /// The stored value.
        stored: String,
        /// The given value.
        got: String,
    },
    /// There is no buffer to open, and not enough was given to make one.
    #[error(
        "{argument}: expected a value, got None: there is no buffer in {path} to open, \
         and data_spec and buffer_capacity are needed to make one",
        path = path.display()
    )]
    NoBuffer {
        /// The missing argument.
        argument: &'static str,
        /// The directory.
        path: PathBuf,
    },
    /// The directory holds no buffer.
    #[error("{path}: there is no buffer: _manifest.json is missing", path = path.display())]
    NotABuffer {
        /// The directory.
        path: PathBuf,
    },
    /// A key that the buffer does not have.
    #[error("{key:?} is not a key of this buffer, which has {known:?}")]
    UnknownKey {
        /// The key asked for.
        key: String,
        /// The keys there are.
        known: Vec<String>,
    },
    /// A position outside the live frames.
    #[error("index {index} is out of range for a buffer of {len} frames")]
    OutOfRange {
        /// The index as given.
        index: i64,
        /// The number of live frames.
        len: usize,
    },
    /// A frame that should exist, by its episode's own time range, is missing.
    #[error(
        "{key}: no frame of episode {episode} is within {tolerance} s of the query at {query} s, \
         which lies inside the episode: the nearest is {distance} s away"
    )]
    Tolerance {
        /// The windowed key.
        key: String,
        /// The episode's number.
        episode: i64,
        /// The time asked for, in seconds.
        query: f64,
        /// How far the nearest frame is, in seconds.
        distance: f64,
        /// The tolerance in force, in seconds.
        tolerance: f64,
    },
    /// The buffer was opened for reading.
    #[error("{path}: expected a buffer opened with mode=\"a\", got one with mode=\"r\"", path = path.display())]
    ReadOnly {
        /// The buffer's directory.
        path: PathBuf,
    },
    /// Another writer holds the directory.
    #[error("{path} is being written by {}", owner(*pid), path = path.display())]
    Locked {
        /// The buffer's directory.
        path: PathBuf,
        /// The owner, where the lock file names it.
        pid: Option<u32>,
    },
    /// A file does not hold what it must.
    #[error("{path}: {what}", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The operating system refused.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Its reason.
        source: io::Error,
    },
    /// Who is told of the progress ended the work.
    #[error("stopped by who is told of its progress")]
    Stopped,
    /// There is not as much memory.
    #[error("out of memory for {what}")]
    OutOfMemory {
        /// What for.
        what: String,
    },
    /// The writer overtook a read again and again.
    #[error("{path}: the frames being read were overwritten in each of {attempts} attempts", path = path.display())]
    Overtaken {
        /// The buffer's directory.
        path: PathBuf,
        /// How often the read was tried.
        attempts: usize,
    },
}

fn owner(pid: Option<u32>) -> String {
    pid.map_or_else(
        || "another process".into(),
        |pid| format!("process {pid}, or by one that it forked if it has ended"),
    )
}

impl Error {
    /// An [`Error::Argument`] from anything printable.
    pub fn argument(
        argument: impl Into<String>,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) -> Self {
        Self::Argument {
            argument: argument.into(),
            expected: expected.into(),
            got: got.into(),
        }
    }

    /// An [`Error::NotABuffer`].
    pub fn not_a_buffer(path: &Path) -> Self {
        Self::NotABuffer {
            path: path.to_owned(),
        }
    }

    /// An [`Error::Damaged`] about a file.
    pub fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            what: what.into(),
        }
    }
}

/// Adds the file's name to an I/O error.
pub trait AtPath<T> {
    /// Names `path` in the error.
    fn at(self, path: &Path) -> Result<T>;
}

impl<T> AtPath<T> for io::Result<T> {
    fn at(self, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io {
            path: path.to_owned(),
            source,
        })
    }
}
