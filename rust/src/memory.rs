//! Memory whose size the caller's data decide: that there is none is an error, not the end of the
//! process.

use crate::error::{Error, Result};

/// An empty vector with room for `len` elements; `what` they are is for the error.
pub fn with_room<T>(len: usize, what: &str) -> Result<Vec<T>> {
    let mut items = Vec::new();
    match items.try_reserve_exact(len) {
        Ok(()) => Ok(items),
        Err(_) => Err(out_of_memory(format!("{what} ({len} of them)"))),
    }
}

/// All of `items`, however many come.
pub fn collected<T>(items: impl Iterator<Item = T>, what: &str) -> Result<Vec<T>> {
    let mut all = with_room(items.size_hint().0, what)?;
    for item in items {
        push(&mut all, item, what)?;
    }
    Ok(all)
}

/// Appends to a vector that grows as needed.
pub fn push<T>(items: &mut Vec<T>, item: T, what: &str) -> Result<()> {
    if items.try_reserve(1).is_err() {
        let len = items.len();
        return Err(out_of_memory(format!("{what} (more than {len} of them)")));
    }
    items.push(item);
    Ok(())
}

/// An [`Error::OutOfMemory`].
pub fn out_of_memory(what: impl Into<String>) -> Error {
    Error::OutOfMemory { what: what.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_had_is_an_error_that_says_what_for() {
        let refused = with_room::<u64>(usize::MAX / 8, "indices").map(drop);
        let message = refused.map_err(|error| error.to_string());
        let expected = format!("out of memory for indices ({} of them)", usize::MAX / 8);
        assert_eq!(message, Err(expected));
    }
}
