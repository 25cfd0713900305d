//! NumPy arrays as bytes: what goes into the core, and what it fills.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;

use crate::error::{Error, Result};
use crate::spec::ColumnSpec;

/// A new C-contiguous array that nobody else has seen, to be filled as bytes.
pub struct NewArray<'py>(Bound<'py, PyUntypedArray>);

impl<'py> NewArray<'py> {
    /// An array of `shape`, its content still to be written.
    pub fn empty(shape: &[usize], dtype: &Bound<'py, PyArrayDescr>) -> PyResult<Self> {
        static EMPTY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = dtype.py();
        let shape = PyTuple::new(py, shape)?;
        let array = EMPTY.import(py, "numpy", "empty")?.call1((shape, dtype))?;
        Ok(Self(array.cast_into()?))
    }

    /// The array's memory.
    pub fn bytes(&mut self) -> &mut [MaybeUninit<u8>] {
        let len = self.0.len() * self.0.dtype().itemsize();
        // SAFETY: `empty` made the array, so it owns `len` contiguous bytes from `data` on, and no
        // one else holds it until `into_array`; `&mut self` keeps other slices away. They need not
        // be initialised.
        unsafe {
            let data = (*self.0.as_array_ptr()).fields.data;
            std::slice::from_raw_parts_mut(data.cast(), len)
        }
    }

    /// The array, for Python.
    pub fn into_array(self) -> Bound<'py, PyUntypedArray> {
        self.0
    }
}

/// The rows of one column of an insert, C-contiguous and of the column's dtype.
pub struct Rows<'py>(Bound<'py, PyUntypedArray>);

impl<'py> Rows<'py> {
    /// `array` as rows of `column`, cast and copied only where it must be.
    pub fn new(
        column: &ColumnSpec,
        dtype: &Bound<'py, PyArrayDescr>,
        array: &Bound<'py, PyUntypedArray>,
    ) -> PyResult<Self> {
        check_shape(column, array.shape())?;
        if array.is_c_contiguous() && array.dtype().is_equiv_to(dtype) {
            return Ok(Self(array.clone()));
        }
        check_cast(column, dtype, array)?;
        let converted = array.call_method1(intern!(array.py(), "astype"), (dtype, "C"))?;
        Ok(Self(converted.cast_into()?))
    }

    /// The rows' memory.
    pub fn bytes(&self) -> &[u8] {
        let len = self.0.len() * self.0.dtype().itemsize();
        if len == 0 {
            return &[];
        }
        // SAFETY: `new` made sure that the array is C-contiguous, so `len` initialised bytes begin
        // at `data`, and `self` keeps it alive. Python code that writes to the array meanwhile
        // changes values only; any value is valid.
        unsafe {
            let data = (*self.0.as_array_ptr()).fields.data;
            std::slice::from_raw_parts(data.cast_const().cast(), len)
        }
    }
}

fn check_shape(column: &ColumnSpec, shape: &[usize]) -> Result<()> {
    if !shape.is_empty() && shape[1..] == column.field.shape {
        return Ok(());
    }
    let dims = column.field.shape.iter().map(|dim| format!(", {dim}"));
    Err(Error::argument(
        format!("data[{:?}]", column.key),
        format!("shape (n{})", dims.collect::<String>()),
        format!("{shape:?}"),
    ))
}

fn check_cast(
    column: &ColumnSpec,
    dtype: &Bound<'_, PyArrayDescr>,
    array: &Bound<'_, PyUntypedArray>,
) -> PyResult<()> {
    static CAN_CAST: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let can_cast = CAN_CAST.import(array.py(), "numpy", "can_cast")?;
    if can_cast
        .call1((array.dtype(), dtype, "same_kind"))?
        .extract()?
    {
        return Ok(());
    }
    Err(Error::argument(
        format!("data[{:?}]", column.key),
        format!(
            "a dtype that casts to {} within its kind",
            column.field.dtype.name()
        ),
        array.dtype().to_string(),
    )
    .into())
}
