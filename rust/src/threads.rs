//! How many threads a copy is worth, and running it on them.
//!
//! Threads live for one copy only: none is left idle to be lost in a fork or to be waited for at
//! exit, and starting one costs some ten microseconds, which a copy that is shared repays.

use std::env;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use crate::error::{Error, Result};

/// The environment variable that overrides the number of threads.
pub const NUM_THREADS_VARIABLE: &str = "FASTBUFFER_NUM_THREADS";

/// The least that a thread is started for: at memory speed, a multiple of what starting it costs.
const BYTES_PER_THREAD: usize = 1 << 20;

/// The number of threads that a copy may use: as the environment says, or the processors that this
/// process may really use, by its affinity and its control group's quota.
pub fn allowed() -> Result<usize> {
    static AVAILABLE: OnceLock<usize> = OnceLock::new();
    match env::var(NUM_THREADS_VARIABLE) {
        Ok(text) => parse(&text),
        Err(env::VarError::NotUnicode(text)) => parse(&text.to_string_lossy()),
        Err(env::VarError::NotPresent) => {
            Ok(*AVAILABLE.get_or_init(|| thread::available_parallelism().map_or(1, usize::from)))
        }
    }
}

fn parse(text: &str) -> Result<usize> {
    text.trim()
        .parse()
        .ok()
        .filter(|&threads| threads > 0)
        .ok_or_else(|| {
            Error::argument(
                NUM_THREADS_VARIABLE,
                "a number of at least 1",
                format!("{text:?}"),
            )
        })
}

/// Each thread takes several parts in turn, so that none waits long for one that began late.
const PARTS_PER_THREAD: usize = 4;

/// How many of the allowed threads are worth it for so many bytes.
pub fn worth(bytes: usize, allowed: usize) -> usize {
    allowed.min(bytes / BYTES_PER_THREAD).max(1)
}

/// In how many parts to split what so many threads share.
pub fn parts(threads: usize) -> usize {
    if threads == 1 {
        1
    } else {
        threads * PARTS_PER_THREAD
    }
}

/// Does `work` on each part, on so many threads or on fewer where no more can be started.
pub fn for_each<T: Send>(parts: Vec<T>, threads: usize, work: impl Fn(T) + Sync) {
    let others = threads.min(parts.len()).saturating_sub(1);
    let queue = Mutex::new(parts);
    let take_turns = || {
        while let Some(part) = next(&queue) {
            work(part);
        }
    };
    thread::scope(|scope| {
        for _ in 0..others {
            if thread::Builder::new()
                .spawn_scoped(scope, take_turns)
                .is_err()
            {
                break;
            }
        }
        take_turns();
    });
}

fn next<T>(queue: &Mutex<Vec<T>>) -> Option<T> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).pop()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_part_is_worked_on_once() {
        for count in [0, 1, 2, 7] {
            let done: Vec<_> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            for_each((0..count).collect(), 3, |part: usize| {
                done[part].fetch_add(1, Ordering::Relaxed);
            });
            assert!(done.iter().all(|times| times.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn small_copies_are_not_shared() {
        assert_eq!(worth(0, 8), 1);
        assert_eq!(worth(BYTES_PER_THREAD * 2 - 1, 8), 1);
        assert_eq!(worth(BYTES_PER_THREAD * 2, 8), 2);
        assert_eq!(worth(BYTES_PER_THREAD * 100, 8), 8);
        assert_eq!(worth(BYTES_PER_THREAD * 100, 1), 1);
        assert_eq!(parts(1), 1);
    }

    #[test]
    fn only_positive_numbers_of_threads_are_allowed() {
        assert_eq!(parse(" 3 ").unwrap(), 3);
        for text in ["", "0", "-1", "1.5", "many", "99999999999999999999999"] {
            let error = parse(text).unwrap_err().to_string();
            assert!(
                error.starts_with(NUM_THREADS_VARIABLE) && error.contains(text),
                "{error}"
            );
        }
    }
}
