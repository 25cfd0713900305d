//! What building something beside its place needs: a lock, and the exchange of two names.

use std::path::PathBuf;
use std::sync::Mutex;

use pyo3::prelude::*;

use super::detach;
use crate::directory::lock_made;
use crate::exchange;
use crate::lock::WriterLock;
use crate::writers::unpoisoned;

/// A directory, made if it does not exist, that this process holds until it is released or ends.
#[pyclass(frozen, module = "fastbuffer._core")]
pub struct HeldDirectory(Mutex<Option<WriterLock>>);

#[pymethods]
impl HeldDirectory {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let (lock, _) = detach(py, || lock_made(&path))?;
        Ok(Self(Mutex::new(Some(lock))))
    }

    /// Lets others have it.
    fn release(&self) {
        *unpoisoned(&self.0) = None;
    }
}

/// Exchanges what two paths stand for, at once where the system can do that.
#[pyfunction]
pub fn exchange_paths(py: Python<'_>, a: PathBuf, b: PathBuf) -> PyResult<()> {
    detach(py, || exchange::exchange(&a, &b))
}
