//! The one place where the core's errors become Python exceptions.

use pyo3::exceptions::{
    PyFileNotFoundError, PyIndexError, PyKeyError, PyMemoryError, PyOSError, PyRuntimeError,
    PyValueError,
};
use pyo3::prelude::*;

use crate::error::Error;

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::Argument { .. }
            | Error::Contradiction { .. }
            | Error::NoBuffer { .. }
            | Error::Damaged { .. } => PyValueError::new_err(message),
            Error::NotABuffer { .. } => PyFileNotFoundError::new_err(message),
            Error::UnknownKey { .. } => PyKeyError::new_err(message),
            Error::OutOfRange { .. } => PyIndexError::new_err(message),
            Error::Overtaken { .. } | Error::Stopped => PyRuntimeError::new_err(message),
            Error::OutOfMemory { .. } => PyMemoryError::new_err(message),
            Error::Tolerance { .. } => {
                python_error("fastbuffer.errors", "TimestampToleranceError", message)
            }
            Error::ReadOnly { .. } => python_error("io", "UnsupportedOperation", message),
            Error::Locked { .. } => python_error("fastbuffer.errors", "BufferLockedError", message),
            Error::Io { path, source } => match source.raw_os_error() {
                // With these arguments Python picks the subclass and words the message.
                Some(code) => PyOSError::new_err((code, reason(&source), path.into_os_string())),
                None => Self::from(std::io::Error::new(source.kind(), message)),
            },
        }
    }
}

/// The system's words without the "(os error N)" that Rust adds.
fn reason(source: &std::io::Error) -> String {
    let text = source.to_string();
    text.split(" (os error")
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// An exception that is defined in Python.
fn python_error(module: &str, name: &str, message: String) -> PyErr {
    Python::attach(|py| {
        let class = py.import(module).and_then(|module| module.getattr(name));
        match class.and_then(|class| class.call1((message,))) {
            Ok(exception) => PyErr::from_value(exception),
            Err(error) => error,
        }
    })
}
