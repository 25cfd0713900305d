//! The functions behind `OnlineBuffer.verify` and `fastbuffer verify`.

use std::ops::ControlFlow;
use std::path::PathBuf;

use pyo3::prelude::*;

use super::detach;
use crate::error::Result;
use crate::verify::{self, Finding, Listener};

type Pairs = Vec<(PathBuf, String)>;

/// What is wrong with the buffer in a directory: pairs of a file and a text.
///
/// `listener` is called with how many frames are checked and of how many; what it raises ends the
/// check.
#[pyfunction]
pub fn verify_directory(py: Python<'_>, path: PathBuf, listener: Py<PyAny>) -> PyResult<Pairs> {
    telling(py, &listener, |told| verify::verify(&path, told))
}

/// Repairs the buffer in a directory and says what was done; `listener` as in `verify_directory`.
#[pyfunction]
pub fn repair_directory(py: Python<'_>, path: PathBuf, listener: Py<PyAny>) -> PyResult<Pairs> {
    telling(py, &listener, |told| verify::repair(&path, told))
}

/// Runs `check` with a listener that calls `listener`, and raises what that raised.
fn telling(
    py: Python<'_>,
    listener: &Py<PyAny>,
    check: impl Send + FnOnce(Listener<'_>) -> Result<Vec<Finding>>,
) -> PyResult<Pairs> {
    let mut raised = None;
    let mut told = |checked: usize, of: usize| {
        raised = Python::attach(|py| listener.call1(py, (checked, of)).err());
        match raised {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    };
    let findings = detach(py, || check(&mut told));
    match raised {
        Some(error) => Err(error),
        None => Ok(findings?
            .into_iter()
            .map(|found| (found.file, found.what))
            .collect()),
    }
}
