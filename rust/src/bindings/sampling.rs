//! What is behind `compute_sampler_weights` and drawing by weight.

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::marker::Ungil;
use pyo3::prelude::*;

use super::buffer::Buffer;
use super::detach;
use crate::error::{Error, Result};
use crate::memory::{collected, with_room};
use crate::sampling::alias::{self, Weights};
use crate::sampling::kept::{kept_of_dataset, kept_positions};
use crate::sampling::weights::{Side, weights};

/// One float32 weight per frame of `[offline; online]`.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn sampler_weights<'py>(
    py: Python<'py>,
    offline_len: usize,
    offline_from: PyReadonlyArray1<'py, i64>,
    offline_to: PyReadonlyArray1<'py, i64>,
    offline_drop_n_last_frames: u64,
    online: Option<&Buffer>,
    online_sampling_ratio: f64,
    online_drop_n_last_frames: u64,
) -> PyResult<Bound<'py, PyArray1<f32>>> {
    let bounds = pairs(&offline_from, &offline_to)?;
    let weights = detach(py, || {
        let (name, len) = ("offline_dataset", offline_len);
        let kept = kept_of_dataset(name, len, bounds, offline_drop_n_last_frames)?;
        let offline = Side { len, kept };
        let online = online.map_or(Ok(Side::default()), |buffer| {
            buffer.inner.with_episodes(|episodes, by_slot| {
                let kept = kept_positions(episodes, by_slot, online_drop_n_last_frames)?;
                let len = episodes.live().len();
                Ok(Side { len, kept })
            })?
        })?;
        if offline.len == 0 && online.len == 0 {
            return Err(Error::argument(
                "offline_dataset and online_dataset",
                "at least one frame",
                "both sides empty",
            ));
        }
        weights(&offline, &online, online_sampling_ratio)
    })?;
    Ok(weights.into_pyarray(py))
}

/// Where each episode begins and ends.
pub(super) fn pairs(
    from: &PyReadonlyArray1<'_, i64>,
    to: &PyReadonlyArray1<'_, i64>,
) -> Result<Vec<(i64, i64)>> {
    let bounds = std::iter::zip(from.as_array(), to.as_array());
    collected(bounds.map(|(from, to)| (*from, *to)), "episode bounds")
}

/// `count` draws, as `draw` fills them in.
pub(super) fn drawn<'py>(
    py: Python<'py>,
    count: usize,
    draw: impl Ungil + Send + FnOnce(&mut [i64]) -> Result<()>,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let drawn = detach(py, || {
        let mut drawn = with_room(count, "draws")?;
        drawn.resize(count, 0);
        draw(&mut drawn)?;
        Ok(drawn)
    })?;
    Ok(drawn.into_pyarray(py))
}

/// Weights as Python has them.
#[derive(FromPyObject)]
pub enum PyWeights<'py> {
    /// In float32.
    F32(PyReadonlyArray1<'py, f32>),
    /// In float64.
    F64(PyReadonlyArray1<'py, f64>),
}

impl PyWeights<'_> {
    fn get(&self) -> PyResult<Weights<'_>> {
        Ok(match self {
            Self::F32(weights) => Weights::F32(weights.as_slice()?),
            Self::F64(weights) => Weights::F64(weights.as_slice()?),
        })
    }
}

/// A table to draw from by weight.
#[pyclass(frozen, module = "fastbuffer._core")]
pub struct AliasTable(alias::AliasTable);

#[pymethods]
impl AliasTable {
    #[new]
    fn new(py: Python<'_>, weights: PyWeights<'_>) -> PyResult<Self> {
        let weights = weights.get()?;
        Ok(Self(detach(py, || alias::AliasTable::new(weights))?))
    }

    /// The draws `start..start + count` of an epoch.
    fn draw<'py>(
        &self,
        py: Python<'py>,
        seed: u64,
        epoch: u64,
        start: u64,
        count: usize,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        drawn(py, count, |out| {
            self.0.draw(seed, epoch, start, out);
            Ok(())
        })
    }
}

/// Different entries, drawn one after the other by the weights of those that are left.
#[pyfunction]
pub fn draw_without_replacement<'py>(
    py: Python<'py>,
    weights: PyWeights<'py>,
    count: usize,
    seed: u64,
    epoch: u64,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let weights = weights.get()?;
    let drawn = detach(py, || {
        alias::draw_without_replacement(weights, count, seed, epoch)
    })?;
    Ok(drawn.into_pyarray(py))
}
