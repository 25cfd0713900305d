//! Values that a forked process must not share with its parent: locks above all.
//!
//! A fork copies the memory of a process but only one of its threads. A lock that another thread
//! held stays locked in the copy for ever, so a child uses locks of its own.

use std::process;
use std::sync::OnceLock;

/// A value of which each process, forked from another one or not, has its own.
#[derive(Debug)]
pub struct PerProcess<T> {
    pid: u32,
    value: T,
    /// That of a child of the process `pid`, in the child's memory.
    child: OnceLock<Box<Self>>,
}

impl<T> PerProcess<T> {
    /// `value` for this process.
    pub fn new(value: T) -> Self {
        Self {
            pid: process::id(),
            value,
            child: OnceLock::new(),
        }
    }

    /// This process's value; in a new child, what `inherit` makes of its parent's.
    pub fn get(&self, inherit: impl Fn(&T) -> T) -> &T {
        let pid = process::id();
        let mut own = self;
        while own.pid != pid {
            let parent = own;
            own = parent.child.get_or_init(|| {
                Box::new(Self {
                    pid,
                    value: inherit(&parent.value),
                    child: OnceLock::new(),
                })
            });
        }
        &own.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_keeps_its_value() {
        let value = PerProcess::new(7);
        assert_eq!(*value.get(|_| 8), 7);
    }

    #[test]
    fn a_child_has_one_of_its_own() {
        // As it looks in the memory of a child.
        let inherited = PerProcess {
            pid: process::id() + 1,
            value: 7,
            child: OnceLock::new(),
        };
        assert_eq!(*inherited.get(|value| value + 1), 8);
        assert_eq!(*inherited.get(|value| value + 5), 8);
    }
}
