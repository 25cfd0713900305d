//! Building the episode index from the columns.

use std::path::Path;

use crate::episodes::{Episodes, Misfit};
use crate::error::{Error, Result};
use crate::gather::Column;
use crate::memory::out_of_memory;
use crate::ring::{Frames, Ring, Slot};
use crate::spec::Spec;

/// What is asked for, where there is no memory.
pub const EPISODES: &str = "the index of episodes";
/// How many frames are indexed at once: what is read of them stays in the cache.
pub const BLOCK: usize = 1024;

/// Adds `frames`, which follow those in the index, as the columns of the buffer at `path` have them.
pub fn extend(
    episodes: &mut Episodes,
    frames: Frames,
    path: &Path,
    spec: &Spec,
    columns: &[Column],
    ring: Ring,
) -> Result<()> {
    let numbers = &columns[spec.own().episode_index];
    let timestamps = &columns[spec.own().timestamp];
    for run in ring.runs(frames.first, frames.len()) {
        for start in run.clone().step_by(BLOCK) {
            let slots = start..run.end.min(start + BLOCK);
            let (numbers, timestamps) = (numbers.int64s(slots.clone()), timestamps.float64s(slots));
            let extended = episodes.extend(&numbers, &timestamps);
            let next = ring.slot(episodes.live().end);
            extended.map_err(|misfit| error_of(path, spec, misfit, next))?;
        }
    }
    Ok(())
}

fn error_of(path: &Path, spec: &Spec, misfit: Misfit, slot: Slot) -> Error {
    let (column, what) = match misfit {
        Misfit::EpisodeDecreases { before, found } => (
            spec.own().episode_index,
            format!("expected at least {before}, the value before, got {found}"),
        ),
        Misfit::TimestampNotFinite(timestamp) => (
            spec.own().timestamp,
            format!("expected finite seconds, got {timestamp}"),
        ),
        Misfit::OutOfMemory => return out_of_memory(EPISODES),
    };
    let file = path.join(spec.columns()[column].file_name());
    Error::damaged(&file, format!("slot {}: {what}", slot.0))
}
