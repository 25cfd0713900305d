//! The classes `Buffer` and `Windows`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use numpy::{PyArrayDescr, PyReadonlyArray1, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::arrays::{NewArray, Rows};
use super::detach;
use crate::buffer::{self, BatchOut};
use crate::commit::Batch;
use crate::directory::Request;
use crate::error::{Error, Result};
use crate::spec::{ColumnSpec, DType, Field, IS_PAD_POSTFIX};
use crate::window;

/// An open buffer directory.
#[pyclass(frozen, module = "fastbuffer._core")]
pub struct Buffer {
    pub(super) inner: buffer::Buffer,
    /// The columns' dtypes and keys, made once.
    dtypes: Vec<Py<PyArrayDescr>>,
    keys: Vec<Py<PyString>>,
}

/// The delta timestamps of some keys, resolved for one buffer.
#[pyclass(frozen, module = "fastbuffer._core")]
pub struct Windows {
    inner: window::Windows,
    masks: Vec<Py<PyString>>,
}

/// A column as Python sees it: key, dtype name, shape of one frame's value.
type PyField = (String, String, Vec<usize>);

#[pymethods]
impl Buffer {
    #[new]
    fn new(
        py: Python<'_>,
        write_dir: PathBuf,
        data_spec: Option<Vec<PyField>>,
        buffer_capacity: Option<usize>,
        fps: Option<f64>,
        deltas: Vec<(String, Vec<f64>)>,
        preallocate: bool,
    ) -> PyResult<Self> {
        let fields = data_spec.map(fields).transpose()?;
        let request = Request {
            fields,
            capacity: buffer_capacity,
            fps,
            deltas,
            preallocate,
        };
        let inner = detach(py, || buffer::Buffer::open(&write_dir, &request))?;
        let columns = inner.manifest().spec.columns();
        let dtype = |column: &ColumnSpec| PyArrayDescr::new(py, column.field.dtype.name());
        let dtypes = columns.iter().map(|column| Ok(dtype(column)?.unbind()));
        let keys = columns
            .iter()
            .map(|column| PyString::intern(py, &column.key).unbind());
        Ok(Self {
            dtypes: dtypes.collect::<PyResult<_>>()?,
            keys: keys.collect(),
            inner,
        })
    }

    /// The directory.
    #[getter]
    fn write_dir(&self) -> &Path {
        self.inner.path()
    }

    /// The number of slots.
    #[getter]
    fn buffer_capacity(&self) -> usize {
        self.inner.manifest().capacity
    }

    /// Frames per second, if known.
    #[getter]
    fn fps(&self) -> Option<f64> {
        self.inner.manifest().fps
    }

    /// All columns, in key order.
    #[getter]
    fn columns(&self) -> Vec<PyField> {
        let columns = self.inner.manifest().spec.columns().iter();
        let field = |column: &ColumnSpec| {
            (
                column.key.clone(),
                column.field.dtype.name().to_owned(),
                column.field.shape.clone(),
            )
        };
        columns.map(field).collect()
    }

    /// The number of live frames.
    #[getter]
    fn num_frames(&self, py: Python<'_>) -> PyResult<usize> {
        detach(py, || self.inner.len())
    }

    /// The number of live episodes.
    #[getter]
    fn num_episodes(&self, py: Python<'_>) -> PyResult<usize> {
        detach(py, || self.inner.num_episodes())
    }

    /// Inserts one array per column; returns what was added to `index` and `episode_index`.
    fn append(&self, py: Python<'_>, data: &Bound<'_, PyDict>) -> PyResult<(i64, i64)> {
        let arrays = self.arrays(data)?;
        let len = common_length(self.columns_with(&arrays))?;
        if len == 0 {
            return Ok((0, 0));
        }
        let rows = self
            .columns_with(&arrays)
            .zip(&self.dtypes)
            .map(|((column, array), dtype)| Rows::new(column, dtype.bind(py), array));
        let rows = rows.collect::<PyResult<Vec<_>>>()?;
        let bytes: Vec<&[u8]> = rows.iter().map(Rows::bytes).collect();
        let shift = detach(py, || {
            self.inner
                .append(&Batch::new(&self.inner.manifest().spec, bytes, len)?)
        })?;
        Ok((shift.index, shift.episode))
    }

    /// The items at `indices` as one batch, with windows and pad masks.
    fn gather<'py>(
        &self,
        py: Python<'py>,
        indices: PyReadonlyArray1<'py, i64>,
        windows: &Windows,
        tolerance_s: f64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let indices = indices.as_array().to_vec();
        self.collect(py, &indices, &[indices.len()], windows, tolerance_s)
    }

    /// The item at `index`, without a batch dimension.
    fn item<'py>(
        &self,
        py: Python<'py>,
        index: i64,
        windows: &Windows,
        tolerance_s: f64,
    ) -> PyResult<Bound<'py, PyDict>> {
        self.collect(py, &[index], &[], windows, tolerance_s)
    }

    /// All live frames of a key, in slot order.
    fn column<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyUntypedArray>> {
        let position = self.inner.manifest().spec.position(key)?;
        loop {
            let len = detach(py, || self.inner.len())?;
            let mut array = self.rows(py, position, &[len])?;
            let out = array.bytes();
            if detach(py, || self.inner.copy_live(position, out))? {
                return Ok(array.into_array());
            }
        }
    }

    /// Gives up the writer lock.
    fn release(&self, py: Python<'_>) {
        py.detach(|| self.inner.release());
    }
}

impl Buffer {
    fn columns_with<'a, 'py>(
        &'a self,
        arrays: &'a [Bound<'py, PyUntypedArray>],
    ) -> impl Iterator<Item = (&'a ColumnSpec, &'a Bound<'py, PyUntypedArray>)> {
        self.inner.manifest().spec.columns().iter().zip(arrays)
    }

    /// The array of each column in `data`.
    fn arrays<'py>(&self, data: &Bound<'py, PyDict>) -> PyResult<Vec<Bound<'py, PyUntypedArray>>> {
        let array = |key: &Py<PyString>| {
            let value = data.get_item(key)?.ok_or_else(|| {
                Error::argument(
                    "data",
                    format!("the key {:?}", key.to_string()),
                    "no such key",
                )
            })?;
            Ok(value.cast_into()?)
        };
        self.keys.iter().map(array).collect()
    }

    /// An empty array of rows of a column.
    fn rows<'py>(
        &self,
        py: Python<'py>,
        column: usize,
        leading: &[usize],
    ) -> PyResult<NewArray<'py>> {
        let field = &self.inner.manifest().spec.columns()[column].field;
        NewArray::empty(
            &[leading, &field.shape].concat(),
            self.dtypes[column].bind(py),
        )
    }

    fn collect<'py>(
        &self,
        py: Python<'py>,
        indices: &[i64],
        leading: &[usize],
        windows: &Windows,
        tolerance_s: f64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let with_window = |window: &window::Window| [leading, &[window.deltas.len()]].concat();
        let mut columns = (0..self.keys.len())
            .map(|column| match windows.inner.of(column) {
                Some(window) => self.rows(py, column, &with_window(window)),
                None => self.rows(py, column, leading),
            })
            .collect::<PyResult<Vec<_>>>()?;
        let flag = numpy::dtype::<bool>(py);
        let mut pads = windows
            .inner
            .iter()
            .map(|window| NewArray::empty(&with_window(window), &flag))
            .collect::<PyResult<Vec<_>>>()?;
        let mut out = BatchOut {
            columns: columns.iter_mut().map(NewArray::bytes).collect(),
            pads: pads.iter_mut().map(NewArray::bytes).collect(),
        };
        detach(py, || {
            self.inner
                .gather(indices, &windows.inner, tolerance_s, &mut out)
        })?;
        let batch = PyDict::new(py);
        for (key, array) in self
            .keys
            .iter()
            .zip(columns)
            .chain(windows.masks.iter().zip(pads))
        {
            batch.set_item(key, array.into_array())?;
        }
        Ok(batch)
    }
}

#[pymethods]
impl Windows {
    /// `deltas` in seconds for keys of `buffer`; none at all where it is empty.
    #[new]
    fn new(py: Python<'_>, buffer: &Buffer, deltas: Vec<(String, Vec<f64>)>) -> PyResult<Self> {
        let mask = |(key, _): &(String, Vec<f64>)| {
            PyString::intern(py, &format!("{key}{IS_PAD_POSTFIX}")).unbind()
        };
        let masks = deltas.iter().map(mask).collect();
        let manifest = buffer.inner.manifest();
        let inner = match deltas.is_empty() {
            true => window::Windows::default(),
            false => window::Windows::new(&manifest.spec, manifest.fps, deltas)?,
        };
        Ok(Self { inner, masks })
    }
}

fn fields(fields: Vec<PyField>) -> Result<BTreeMap<String, Field>> {
    let field = |(key, dtype, shape): PyField| match DType::from_name(&dtype) {
        Some(dtype) => Ok((key, Field { dtype, shape })),
        None => Err(Error::argument(
            format!("data_spec[{key:?}][\"dtype\"]"),
            format!("one of {}", DType::names().join(", ")),
            dtype,
        )),
    };
    fields.into_iter().map(field).collect()
}

/// The number of frames that all arrays have.
fn common_length<'a, 'py: 'a>(
    mut arrays: impl Iterator<Item = (&'a ColumnSpec, &'a Bound<'py, PyUntypedArray>)>,
) -> Result<usize> {
    let length = |column: &ColumnSpec, array: &Bound<'py, PyUntypedArray>| {
        array.shape().first().copied().ok_or_else(|| {
            Error::argument(
                format!("data[{:?}]", column.key),
                "an array of frames",
                "a scalar",
            )
        })
    };
    let Some((first, array)) = arrays.next() else {
        return Ok(0);
    };
    let expected = length(first, array)?;
    for (column, array) in arrays {
        let got = length(column, array)?;
        if got != expected {
            return Err(Error::argument(
                format!("data[{:?}]", column.key),
                format!("{expected} frames as in data[{:?}]", first.key),
                got.to_string(),
            ));
        }
    }
    Ok(expected)
}
