//! What is behind `compute_sampler_weights` and the samplers.

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use super::buffer::Buffer;
use super::detach;
use crate::error::{Error, Result};
use crate::memory::{collected, with_room};
use crate::sampling::alias::{self, Weights};
use crate::sampling::weights::{Side, weights};

/// What is asked for, where there is no memory.
const EPISODE_BOUNDS: &str = "episode bounds";

/// One float32 weight per frame of `[offline; online]`.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn sampler_weights<'py>(
    py: Python<'py>,
    offline_len: usize,
    offline_from: PyReadonlyArray1<'py, i64>,
    offline_to: PyReadonlyArray1<'py, i64>,
    offline_drop_n_last_frames: usize,
    online: Option<&Buffer>,
    online_sampling_ratio: f64,
    online_drop_n_last_frames: usize,
) -> PyResult<Bound<'py, PyArray1<f32>>> {
    let bounds = std::iter::zip(offline_from.as_array(), offline_to.as_array());
    let mut bounds = collected(bounds.map(|(from, to)| (*from, *to)), EPISODE_BOUNDS)?;
    bounds.sort_unstable();
    let weights = detach(py, || {
        let offline = offline_side(offline_len, &bounds, offline_drop_n_last_frames)?;
        let online = online.map_or(Ok(Side::default()), |buffer| {
            let (len, drawn) = buffer
                .inner
                .positions_dropping_last(online_drop_n_last_frames)?;
            Ok(Side { len, drawn })
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

/// `bounds` in order.
fn offline_side(len: usize, bounds: &[(i64, i64)], drop_n_last: usize) -> Result<Side> {
    let mut side = Side {
        len,
        drawn: with_room(bounds.len(), EPISODE_BOUNDS)?,
    };
    let mut previous_end = 0;
    for &(from, to) in bounds {
        let range = usize::try_from(from).ok().zip(usize::try_from(to).ok());
        match range.filter(|&(from, to)| previous_end <= from && from <= to && to <= len) {
            Some((from, to)) => {
                side.drawn
                    .push(from..to.saturating_sub(drop_n_last).max(from));
                previous_end = to;
            }
            None => {
                return Err(Error::argument(
                    "offline_dataset",
                    format!("episodes that do not overlap, within its {len} frames"),
                    format!("an episode from {from} to {to}"),
                ));
            }
        }
    }
    Ok(side)
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
        let drawn = detach(py, || {
            let mut drawn = with_room(count, "draws")?;
            drawn.resize(count, 0);
            self.0.draw(seed, epoch, start, &mut drawn);
            Ok(drawn)
        })?;
        Ok(drawn.into_pyarray(py))
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
