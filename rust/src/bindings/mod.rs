//! The Python face of the core: the only code that knows Python.
//!
//! Calls into the core run with the GIL released, through [`detach`].

mod arrays;
mod buffer;
mod errors;
mod samplers;
mod sampling;
mod staging;
mod verify;

use pyo3::marker::Ungil;
use pyo3::prelude::*;

use crate::error::Result;

/// The one door out of the GIL: runs `work` without it and turns its error into an exception.
fn detach<T: Ungil + Send>(
    py: Python<'_>,
    work: impl Ungil + Send + FnOnce() -> Result<T>,
) -> PyResult<T> {
    Ok(py.detach(work)?)
}

#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use super::buffer::{Buffer, Windows, after_fork_in_child, after_fork_in_parent, before_fork};
    #[pymodule_export]
    use super::samplers::{EpisodeChoice, EpisodeOrder, Mixture, Priorities};
    #[pymodule_export]
    use super::sampling::{AliasTable, draw_without_replacement, sampler_weights};
    #[pymodule_export]
    use super::staging::{HeldDirectory, exchange_paths};
    #[pymodule_export]
    use super::verify::{repair_directory, verify_directory};
}
