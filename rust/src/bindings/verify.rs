//! The functions behind `OnlineBuffer.verify` and `fastbuffer verify`.

use std::path::PathBuf;

use pyo3::prelude::*;

use super::detach;
use crate::error::Result;
use crate::verify;

/// What is wrong with the buffer in a directory: pairs of a file and a text.
#[pyfunction]
pub fn verify_directory(py: Python<'_>, path: PathBuf) -> PyResult<Vec<(PathBuf, String)>> {
    detach(py, || pairs(verify::verify(&path)))
}

/// Repairs the buffer in a directory and says what was done.
#[pyfunction]
pub fn repair_directory(py: Python<'_>, path: PathBuf) -> PyResult<Vec<(PathBuf, String)>> {
    detach(py, || pairs(verify::repair(&path)))
}

fn pairs(findings: Result<Vec<verify::Finding>>) -> Result<Vec<(PathBuf, String)>> {
    let findings = findings?.into_iter();
    Ok(findings
        .map(|finding| (finding.file, finding.what))
        .collect())
}
