//! NumPy arrays as bytes: what goes into the core, and what it fills.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use numpy::npyffi::array::PY_ARRAY_API;
use numpy::npyffi::{NPY_ARRAY_WRITEABLE, NpyTypes, get_type_object, npy_intp};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::cast::is_allowed;
use crate::error::{Error, Result};
use crate::rows::{Dim, Rows, extent};
use crate::spec::{ColumnSpec, DType};

/// A C-contiguous array to be filled as bytes.
pub struct OutArray<'py>(Bound<'py, PyUntypedArray>);

impl<'py> OutArray<'py> {
    /// A new array of these dimensions, its content still to be written.
    pub fn empty(
        leading: &[usize],
        shape: &[usize],
        dtype: &Bound<'py, PyArrayDescr>,
    ) -> PyResult<Self> {
        let py = dtype.py();
        let too_large = || {
            let shape = [leading, shape].concat();
            PyMemoryError::new_err(format!("no array can have shape {shape:?}"))
        };
        let dims: Vec<npy_intp> = (leading.iter().chain(shape))
            .map(|&dim| dim.try_into().map_err(|_| too_large()))
            .collect::<PyResult<_>>()?;
        let ndim = dims.len().try_into().map_err(|_| too_large())?;
        // SAFETY: `dims` holds `ndim` lengths, which NumPy only reads; without data and strides it
        // makes a C-contiguous array that owns its memory, or returns null with an exception set.
        // The call takes over one reference to the dtype, which `into_dtype_ptr` gives it.
        let array = unsafe {
            Bound::from_owned_ptr_or_err(
                py,
                PY_ARRAY_API.PyArray_NewFromDescr(
                    py,
                    get_type_object(py, NpyTypes::PyArray_Type),
                    dtype.clone().into_dtype_ptr(),
                    ndim,
                    dims.as_ptr().cast_mut(),
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                    0,
                    std::ptr::null_mut(),
                ),
            )?
        };
        Ok(Self(array.cast_into()?))
    }

    /// The caller's array `name`, if it can take values of this shape and dtype.
    pub fn of_caller(
        name: impl Fn() -> String,
        array: &Bound<'py, PyAny>,
        leading: &[usize],
        shape: &[usize],
        dtype: &Bound<'py, PyArrayDescr>,
    ) -> PyResult<Self> {
        let refused = |got: String| {
            let shape = [leading, shape].concat();
            let expected = format!("a writeable C-contiguous array of {dtype} and shape {shape:?}");
            Err(Error::argument(name(), expected, got).into())
        };
        let Ok(array) = array.cast::<PyUntypedArray>() else {
            return refused(array.get_type().to_string());
        };
        let fits = array.shape().iter().eq(leading.iter().chain(shape));
        if !fits || !array.dtype().is_equiv_to(dtype) {
            return refused(format!("{} and shape {:?}", array.dtype(), array.shape()));
        }
        if !array.is_c_contiguous() {
            return refused(format!("strides {:?}", array.strides()));
        }
        // SAFETY: the pointer is that of a live array object, whose flags are plain data.
        if unsafe { (*array.as_array_ptr()).fields.flags } & NPY_ARRAY_WRITEABLE == 0 {
            return refused("a read-only array".to_owned());
        }
        Ok(Self(array.clone()))
    }

    /// The addresses that the array covers.
    pub fn range(&self) -> std::ops::Range<usize> {
        let bytes = self.0.len() * self.0.dtype().itemsize();
        // SAFETY: the pointer is that of a live array object, whose data pointer is plain data.
        let start = unsafe { (*self.0.as_array_ptr()).fields.data } as usize;
        start..start + bytes
    }

    /// The array's memory. No other array that is being filled may overlap it.
    pub fn bytes(&mut self) -> &mut [MaybeUninit<u8>] {
        let range = self.range();
        if range.is_empty() {
            return &mut [];
        }
        // SAFETY: the array is C-contiguous and writeable (made so or checked), so it covers these
        // bytes, and `self` keeps it alive. They need not be initialised, and are only written.
        // New arrays are known to nobody else and the caller's do not overlap each other
        // (`check_apart`); a caller who reads or writes one in another thread meanwhile sees or
        // leaves a mixture of bytes, any of which is a valid value.
        unsafe { std::slice::from_raw_parts_mut(range.start as *mut MaybeUninit<u8>, range.len()) }
    }

    /// The array, for Python.
    pub fn into_array(self) -> Bound<'py, PyUntypedArray> {
        self.0
    }
}

/// Refuses arrays that share memory with each other.
pub fn check_apart(arrays: &[OutArray<'_>]) -> Result<()> {
    let mut ranges: Vec<_> = arrays.iter().map(OutArray::range).collect();
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    if ranges.is_sorted_by(|range, next| range.end <= next.start) {
        return Ok(());
    }
    Err(Error::argument(
        "out",
        "arrays with memory of their own",
        "arrays that overlap",
    ))
}

/// The caller's rows for one column of an insert.
pub struct InArray<'py>(Bound<'py, PyUntypedArray>, DType);

impl<'py> InArray<'py> {
    /// `array` as rows of `column`. One whose type the core does not know is cast by NumPy.
    pub fn new(
        column: &ColumnSpec,
        dtype: &Bound<'py, PyArrayDescr>,
        array: &Bound<'py, PyUntypedArray>,
    ) -> PyResult<Self> {
        check_shape(column, array.shape())?;
        let own = column.field.dtype;
        match dtype_of(&array.dtype()) {
            Some(from) if is_allowed(from, own) => Ok(Self(array.clone(), from)),
            None if can_cast(array, dtype)? => {
                let cast = array.call_method1(intern!(array.py(), "astype"), (dtype,))?;
                Ok(Self(cast.cast_into()?, own))
            }
            _ => Err(Error::argument(
                format!("data[{:?}]", column.key),
                format!("a dtype that casts to {} within its kind", own.name()),
                array.dtype().to_string(),
            )
            .into()),
        }
    }

    /// The rows' memory.
    pub fn rows(&self) -> PyResult<Rows<'_>> {
        let (array, dtype) = (&self.0, self.1);
        let dims: Vec<Dim> = std::iter::zip(array.shape(), array.strides())
            .map(|(&len, &stride)| Dim { len, stride })
            .collect();
        let outside = || PyValueError::new_err("an array that lies outside of its memory");
        let (below, above) = extent(&dims).ok_or_else(outside)?;
        let len = below + above + dtype.size();
        // SAFETY: NumPy's invariant is that every element of an array lies in its memory, so all
        // between the first and the last of them does; `self` keeps it alive. What lies between
        // elements is not read. Python code that writes to the array meanwhile changes values
        // only; any value is valid.
        let memory = unsafe {
            let data = (*array.as_array_ptr())
                .fields
                .data
                .cast_const()
                .cast::<u8>();
            match array.is_empty() {
                true => &[],
                false => std::slice::from_raw_parts(data.sub(below), len),
            }
        };
        let big_endian = array.dtype().byteorder() == b'>';
        Rows::new(memory, below, dims, dtype, big_endian).ok_or_else(outside)
    }
}

/// The core's name for a NumPy type, in either byte order.
fn dtype_of(dtype: &Bound<'_, PyArrayDescr>) -> Option<DType> {
    let (kind, size) = (dtype.kind(), dtype.itemsize());
    let mut known = DType::ALL.iter().map(|entry| entry.0);
    known.find(|own| own.kind_code() == kind && own.size() == size)
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

fn can_cast(array: &Bound<'_, PyUntypedArray>, dtype: &Bound<'_, PyArrayDescr>) -> PyResult<bool> {
    static CAN_CAST: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let can_cast = CAN_CAST.import(array.py(), "numpy", "can_cast")?;
    can_cast
        .call1((array.dtype(), dtype, "same_kind"))?
        .extract()
}
