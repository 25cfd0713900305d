//! The classes `Buffer` and `Windows`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use numpy::{
    IntoPyArray, PyArray1, PyArrayDescr, PyReadonlyArray1, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::arrays::{InArray, OutArray, check_apart};
use super::detach;
use crate::batch::Batch;
use crate::buffer;
use crate::commit::Recovery;
use crate::directory::{Durability, Mode, Request};
use crate::error::{Error, Result};
use crate::gather::BatchOut;
use crate::memory::collected;
use crate::nstep::{NStep, Return};
use crate::spec::{ColumnSpec, DType, Field, IS_PAD_POSTFIX};
use crate::threads;
use crate::window;
use crate::writers;

/// How long to wait for another process that makes the same buffer.
const CREATION_PATIENCE: Duration = Duration::from_secs(30);
/// How often to look whether it is done.
const CREATION_POLL: Duration = Duration::from_millis(5);

/// An open buffer directory.
#[pyclass(frozen, module = "fastbuffer._core")]
pub struct Buffer {
    pub(super) inner: buffer::Buffer,
    threads: usize,
    /// The columns' dtypes and keys, made once.
    dtypes: Vec<Py<PyArrayDescr>>,
    keys: Vec<Py<PyString>>,
}

/// The delta timestamps of some keys, resolved for one buffer.
#[pyclass(frozen, module = "fastbuffer._core")]
pub struct Windows {
    inner: window::Windows,
    /// The arrays of a batch: those of the columns, then those of the pad masks.
    arrays: Vec<BatchArray>,
}

/// What one array of a batch is.
struct BatchArray {
    key: Py<PyString>,
    dtype: Py<PyArrayDescr>,
    /// Its shape for one item.
    shape: Vec<usize>,
}

/// The deltas of a key as Python has them.
type Deltas<'py> = (String, PyReadonlyArray1<'py, f64>);

/// A batch, and two numbers per item.
type WithReturns<'py> = (
    Bound<'py, PyDict>,
    Bound<'py, PyArray1<f64>>,
    Bound<'py, PyArray1<f64>>,
);

/// A column as Python sees it: key, dtype name, shape of one frame's value.
type PyField = (String, String, Vec<usize>);

#[pymethods]
impl Buffer {
    #[new]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        write_dir: PathBuf,
        data_spec: Option<Vec<PyField>>,
        buffer_capacity: Option<usize>,
        fps: Option<f64>,
        deltas: Vec<Deltas<'_>>,
        preallocate: bool,
        read_only: bool,
        fsync: bool,
    ) -> PyResult<Self> {
        let threads = threads::allowed()?;
        let fields = data_spec.map(fields).transpose()?;
        let request = Request {
            fields,
            capacity: buffer_capacity,
            fps,
            deltas: owned(&deltas)?,
            preallocate,
            mode: if read_only { Mode::Read } else { Mode::Append },
            durability: match fsync {
                true => Durability::Fsync,
                false => Durability::Process,
            },
        };
        let inner = open_patiently(py, &write_dir, &request)?;
        let columns = inner.manifest().spec.columns();
        let dtype = |column: &ColumnSpec| PyArrayDescr::new(py, column.field.dtype.name());
        let dtypes = columns.iter().map(|column| Ok(dtype(column)?.unbind()));
        let keys = columns
            .iter()
            .map(|column| PyString::intern(py, &column.key).unbind());
        Ok(Self {
            threads,
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

    /// How many threads a copy may use, by the environment or the machine.
    #[getter]
    fn num_threads(&self) -> usize {
        self.threads
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

    /// Refuses a buffer that is only open for reading.
    fn check_writable(&self) -> PyResult<()> {
        Ok(self.inner.check_writable()?)
    }

    /// Inserts one array per column; returns what was added to `index` and `episode_index`.
    fn append(&self, py: Python<'_>, data: &Bound<'_, PyDict>) -> PyResult<(i64, i64)> {
        let arrays = self.arrays(data)?;
        let len = common_length(self.columns_with(&arrays))?;
        if len == 0 {
            return Ok((0, 0));
        }
        let arrays = self
            .columns_with(&arrays)
            .zip(&self.dtypes)
            .map(|((column, array), dtype)| InArray::new(column, dtype.bind(py), array))
            .collect::<PyResult<Vec<_>>>()?;
        let rows = arrays.iter().map(InArray::rows).collect::<PyResult<_>>()?;
        let shift = detach(py, || {
            self.inner
                .append(Batch::new(&self.inner.manifest().spec, rows)?)
        })?;
        Ok((shift.index, shift.episode))
    }

    /// The items at `indices` as one batch, with windows and pad masks: new arrays, or those of
    /// `out` filled.
    #[pyo3(signature = (indices, windows, threads, out=None))]
    fn gather<'py>(
        &self,
        py: Python<'py>,
        indices: PyReadonlyArray1<'py, i64>,
        windows: &Windows,
        threads: usize,
        out: Option<Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let indices = collected(indices.as_array().iter().copied(), "indices")?;
        let leading = [indices.len()];
        match out {
            None => {
                let mut arrays = windows.new_arrays(py, &leading)?;
                self.fill(py, &indices, windows, threads, &mut arrays)?;
                windows.named(py, arrays)
            }
            Some(out) => {
                let mut arrays = windows.arrays_of(&out, &leading)?;
                self.fill(py, &indices, windows, threads, &mut arrays)?;
                Ok(out)
            }
        }
    }

    /// The items at `indices` and, behind them, as many bootstrap frames as one batch; the discounted
    /// sums of the items' rewards; and the discounts of the bootstrap frames.
    fn gather_nstep<'py>(
        &self,
        py: Python<'py>,
        indices: PyReadonlyArray1<'py, i64>,
        windows: &Windows,
        threads: usize,
        n_step: usize,
        gamma: f64,
    ) -> PyResult<WithReturns<'py>> {
        let nstep = NStep::new(&self.inner.manifest().spec, n_step, gamma)?;
        let indices = collected(indices.as_array().iter().copied(), "indices")?;
        let mut arrays = windows.new_arrays(py, &[2 * indices.len()])?;
        let mut out = self.out_of(&mut arrays);
        let returns = detach(py, || {
            let windows = &windows.inner;
            self.inner
                .gather_nstep(&indices, windows, &nstep, &mut out, threads)
        })?;
        let column = |number: fn(&Return) -> f64| -> Result<_> {
            Ok(collected(returns.iter().map(number), "returns")?.into_pyarray(py))
        };
        Ok((
            windows.named(py, arrays)?,
            column(|follows| follows.reward)?,
            column(|follows| follows.discount)?,
        ))
    }

    /// The item at `index`, without a batch dimension.
    fn item<'py>(
        &self,
        py: Python<'py>,
        index: i64,
        windows: &Windows,
    ) -> PyResult<Bound<'py, PyDict>> {
        let mut arrays = windows.new_arrays(py, &[])?;
        self.fill(py, &[index], windows, 1, &mut arrays)?;
        windows.named(py, arrays)
    }

    /// All live frames of a key, in slot order.
    fn column<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyUntypedArray>> {
        let position = self.inner.manifest().spec.position(key)?;
        loop {
            let len = detach(py, || self.inner.len())?;
            let shape = &self.inner.manifest().spec.columns()[position].field.shape;
            let dtype = self.dtypes[position].bind(py);
            let mut array = OutArray::empty(&[len], shape, dtype)?;
            let out = array.bytes();
            if detach(py, || self.inner.copy_live(position, out))? {
                return Ok(array.into_array());
            }
        }
    }

    /// The number of the oldest live frame among all ever added, its position among the live frames
    /// in slot order, and the number of live frames of each episode, the oldest one first.
    fn live_episodes<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(u64, usize, Bound<'py, PyArray1<usize>>)> {
        let live = detach(py, || self.inner.live_episodes())?;
        let lengths = live.lengths.into_pyarray(py);
        Ok((live.first.0, live.position, lengths))
    }

    /// Returns once all that was inserted is on the disk.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        detach(py, || self.inner.flush())
    }

    /// Slots of the frames that a dead writer was writing, first and number, and how many frames
    /// are live without them; told once.
    fn take_recovery(&self) -> Option<(usize, usize, usize)> {
        let Recovery { lost, live } = self.inner.take_recovery()?;
        let first = self.inner.slot(lost.first).0;
        Some((first, lost.len(), live.len()))
    }

    /// Gives up the writer lock.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        detach(py, || self.inner.close())
    }
}

impl Drop for Buffer {
    /// Gives up the writer lock without the GIL: a thread that forks may hold the one and need the
    /// other.
    fn drop(&mut self) {
        Python::attach(|py| py.detach(|| self.inner.release()));
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

    /// Where the arrays of a batch are.
    fn out_of<'a>(&self, arrays: &'a mut [OutArray<'_>]) -> BatchOut<'a> {
        let (columns, masks) = arrays.split_at_mut(self.keys.len());
        BatchOut {
            columns: columns.iter_mut().map(OutArray::bytes).collect(),
            pads: masks.iter_mut().map(OutArray::bytes).collect(),
        }
    }

    fn fill(
        &self,
        py: Python<'_>,
        indices: &[i64],
        windows: &Windows,
        threads: usize,
        arrays: &mut [OutArray<'_>],
    ) -> PyResult<()> {
        let mut out = self.out_of(arrays);
        detach(py, || {
            self.inner
                .gather(indices, &windows.inner, &mut out, threads)
        })
    }
}

#[pymethods]
impl Windows {
    /// `deltas` in seconds for keys of `buffer`; none at all where it is empty. Answers more than
    /// `tolerance_s` off are padding.
    #[new]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        buffer: &Buffer,
        deltas: Vec<Deltas<'_>>,
        tolerance_s: f64,
    ) -> PyResult<Self> {
        let manifest = buffer.inner.manifest();
        let inner = match deltas.is_empty() {
            true => window::Windows::default(),
            false => {
                window::Windows::new(&manifest.spec, manifest.fps, &owned(&deltas)?, tolerance_s)?
            }
        };
        let columns = manifest.spec.columns().iter().enumerate();
        let mut arrays: Vec<BatchArray> = columns
            .map(|(position, column)| {
                let deltas = inner.of(position).map(|window| window.deltas.len());
                BatchArray {
                    key: buffer.keys[position].clone_ref(py),
                    dtype: buffer.dtypes[position].clone_ref(py),
                    shape: deltas
                        .into_iter()
                        .chain(column.field.shape.clone())
                        .collect(),
                }
            })
            .collect();
        arrays.extend(inner.iter().map(|window| {
            let key = &manifest.spec.columns()[window.column].key;
            BatchArray {
                key: PyString::intern(py, &format!("{key}{IS_PAD_POSTFIX}")).unbind(),
                dtype: numpy::dtype::<bool>(py).unbind(),
                shape: vec![window.deltas.len()],
            }
        }));
        Ok(Self { inner, arrays })
    }

    /// Arrays for a batch of `batch_size` items, their content undefined.
    fn empty<'py>(&self, py: Python<'py>, batch_size: usize) -> PyResult<Bound<'py, PyDict>> {
        self.named(py, self.new_arrays(py, &[batch_size])?)
    }
}

impl Windows {
    fn new_arrays<'py>(&self, py: Python<'py>, leading: &[usize]) -> PyResult<Vec<OutArray<'py>>> {
        let new = |array: &BatchArray| OutArray::empty(leading, &array.shape, array.dtype.bind(py));
        self.arrays.iter().map(new).collect()
    }

    /// The arrays of `out`, if they are those of such a batch and no others.
    fn arrays_of<'py>(
        &self,
        out: &Bound<'py, PyDict>,
        leading: &[usize],
    ) -> PyResult<Vec<OutArray<'py>>> {
        if out.len() != self.arrays.len() {
            let keys: Vec<String> = self
                .arrays
                .iter()
                .map(|array| array.key.to_string())
                .collect();
            let got = out.keys().to_string();
            return Err(Error::argument("out", format!("the keys {keys:?}"), got).into());
        }
        let arrays = self.arrays.iter().map(|array| {
            let name = || format!("out[{:?}]", array.key.to_string());
            let dtype = array.dtype.bind(out.py());
            match out.get_item(&array.key)? {
                Some(value) => OutArray::of_caller(name, &value, leading, &array.shape, dtype),
                None => Err(Error::argument(name(), "an array", "no such key").into()),
            }
        });
        let arrays = arrays.collect::<PyResult<Vec<_>>>()?;
        check_apart(&arrays)?;
        Ok(arrays)
    }

    fn named<'py>(
        &self,
        py: Python<'py>,
        arrays: Vec<OutArray<'py>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let batch = PyDict::new(py);
        for (BatchArray { key, .. }, array) in self.arrays.iter().zip(arrays) {
            batch.set_item(key, array.into_array())?;
        }
        Ok(batch)
    }
}

/// Waits for inserts before a fork. The GIL is not needed for them to end.
#[pyfunction]
pub fn before_fork() {
    writers::before_fork();
}

/// Lets inserts go on.
#[pyfunction]
pub fn after_fork_in_parent() {
    writers::after_fork_in_parent();
}

/// Closes, in a forked child, the lock files of its parent.
#[pyfunction]
pub fn after_fork_in_child() {
    writers::after_fork_in_child();
}

/// Opens a buffer; waits for another process that is making it, as long as no signal comes.
fn open_patiently(py: Python<'_>, path: &Path, request: &Request) -> PyResult<buffer::Buffer> {
    let begun = Instant::now();
    loop {
        match py.detach(|| buffer::Buffer::open(path, request)) {
            Err(Error::Locked { .. }) if begun.elapsed() < CREATION_PATIENCE => {
                py.detach(|| thread::sleep(CREATION_POLL));
                py.check_signals()?;
            }
            result => return Ok(result?),
        }
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

fn owned(deltas: &[Deltas<'_>]) -> Result<Vec<(String, Vec<f64>)>> {
    let owned = |(key, values): &Deltas<'_>| {
        let values = collected(values.as_array().iter().copied(), "deltas")?;
        Ok((key.clone(), values))
    };
    deltas.iter().map(owned).collect()
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
