//! What is behind the samplers that follow a buffer.

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use super::buffer::Buffer;
use super::detach;
use super::sampling::{drawn, pairs};
use crate::error::Result;
use crate::memory::{collected, with_room};
use crate::sampling::kept::kept_of_dataset;
use crate::sampling::order::{Choice, Extent, Order};
use crate::sampling::priorities;
use crate::sampling::random::{Random, for_each_draw};
use crate::sampling::{mixture, order};

/// Which frames of a buffer's episodes are drawn.
#[pyclass(frozen, module = "fastbuffer._core")]
pub struct EpisodeChoice {
    buffer: Py<Buffer>,
    choice: Choice,
}

#[pymethods]
impl EpisodeChoice {
    #[new]
    fn new(
        buffer: Py<Buffer>,
        drop_n_first_frames: u64,
        drop_n_last_frames: u64,
        mut episodes: Option<Vec<i64>>,
    ) -> Self {
        if let Some(episodes) = &mut episodes {
            episodes.sort_unstable();
        }
        let choice = Choice {
            drop_n_first: drop_n_first_frames,
            drop_n_last: drop_n_last_frames,
            episodes,
        };
        Self { buffer, choice }
    }

    /// How many frames there are now.
    fn count(&self, py: Python<'_>) -> PyResult<u64> {
        detach(py, || self.choice.count(&self.buffer.get().inner))
    }

    /// The epoch that begins now, or the one that began with `extent`; shuffled by a seed and the
    /// number of the epoch, if they are given.
    fn order(
        &self,
        py: Python<'_>,
        extent: Option<Extent>,
        shuffled: Option<(u64, u64)>,
    ) -> PyResult<EpisodeOrder> {
        let order = detach(py, || {
            Order::new(&self.buffer.get().inner, &self.choice, extent, shuffled)
        })?;
        let buffer = self.buffer.clone_ref(py);
        Ok(EpisodeOrder { buffer, order })
    }
}

/// One epoch over the frames of a buffer's episodes.
#[pyclass(frozen, module = "fastbuffer._core")]
pub struct EpisodeOrder {
    buffer: Py<Buffer>,
    order: order::Order,
}

#[pymethods]
impl EpisodeOrder {
    /// The number of the frame after its newest one among all ever added, and how many it has.
    #[getter]
    fn extent(&self) -> Extent {
        self.order.extent()
    }

    /// The positions of the frames at `count` places, from `start` on and `step` apart, without those
    /// that were evicted.
    fn draw<'py>(
        &self,
        py: Python<'py>,
        start: u64,
        step: usize,
        count: usize,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let places = (start..).step_by(step).take(count);
        let buffer = &self.buffer.get().inner;
        let positions = detach(py, || self.order.positions(buffer, places))?;
        Ok(positions.into_pyarray(py))
    }
}

/// A dataset and a buffer that share draws.
#[pyclass(frozen, module = "fastbuffer._core")]
pub struct Mixture {
    buffer: Py<Buffer>,
    mixture: mixture::Mixture,
}

#[pymethods]
impl Mixture {
    #[new]
    #[allow(clippy::too_many_arguments)]
    fn new(
        offline_len: usize,
        offline_from: PyReadonlyArray1<'_, i64>,
        offline_to: PyReadonlyArray1<'_, i64>,
        offline_drop_n_last_frames: u64,
        online: Py<Buffer>,
        online_sampling_ratio: f64,
        online_drop_n_last_frames: u64,
    ) -> PyResult<Self> {
        let bounds = pairs(&offline_from, &offline_to)?;
        let drop = offline_drop_n_last_frames;
        let mixture = mixture::Mixture {
            offline_len,
            offline_kept: kept_of_dataset("offline", offline_len, bounds, drop)?,
            online_share: online_sampling_ratio,
            online_drop_n_last: online_drop_n_last_frames,
        };
        let buffer = online;
        Ok(Self { buffer, mixture })
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
            self.mixture
                .draw(&self.buffer.get().inner, seed, epoch, start, out)
        })
    }
}

/// The number of the epoch that `sample` draws from; counting epochs does not get there.
const ENDLESS_EPOCH: u64 = u64::MAX;

/// Positions and their weights.
type Weighted<'py> = (Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<f32>>);

/// The priorities of a buffer's frames.
#[pyclass(frozen, module = "fastbuffer._core")]
pub struct Priorities {
    buffer: Py<Buffer>,
    priorities: priorities::Priorities,
}

#[pymethods]
impl Priorities {
    #[new]
    fn new(py: Python<'_>, buffer: Py<Buffer>, alpha: f64) -> PyResult<Self> {
        let inner = &buffer.get().inner;
        let priorities = detach(py, || priorities::Priorities::open(inner, alpha))?;
        Ok(Self { buffer, priorities })
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
            let mut shares = room_for(count)?;
            for_each_draw(seed, epoch, start, &mut shares, 1, Random::share);
            let buffer = &self.buffer.get().inner;
            self.priorities.draw(buffer, &mut shares, out, None)
        })
    }

    /// `count` draws of their own for each `number`, with importance weights.
    fn sample<'py>(
        &self,
        py: Python<'py>,
        seed: u64,
        number: u64,
        count: usize,
        beta: f64,
    ) -> PyResult<Weighted<'py>> {
        let mut weights: Vec<f32> = room_for(count)?;
        let positions = drawn(py, count, |out| {
            let mut random = Random::new(seed, ENDLESS_EPOCH, number);
            let mut shares = room_for(count)?;
            shares.fill_with(|| random.share());
            let weights = Some((beta, &mut weights[..]));
            let buffer = &self.buffer.get().inner;
            self.priorities.draw(buffer, &mut shares, out, weights)
        })?;
        Ok((positions, weights.into_pyarray(py)))
    }

    /// Gives the frames at some positions new priorities.
    fn update(
        &self,
        py: Python<'_>,
        indices: PyReadonlyArray1<'_, i64>,
        priorities: PyReadonlyArray1<'_, f64>,
    ) -> PyResult<()> {
        let indices = collected(indices.as_array().iter().copied(), "indices")?;
        let priorities = collected(priorities.as_array().iter().copied(), "priorities")?;
        detach(py, || {
            self.priorities
                .update(&self.buffer.get().inner, &indices, &priorities)
        })
    }

    /// The sum of what is drawn in proportion to, and the least of it above 0, or infinity.
    fn mass(&self, py: Python<'_>) -> PyResult<(f64, f64)> {
        let buffer = &self.buffer.get().inner;
        detach(py, || self.priorities.mass(buffer))
    }

    /// Makes the priority of new frames at least this one.
    fn raise_largest(&self, py: Python<'_>, priority: f64) -> PyResult<()> {
        let buffer = &self.buffer.get().inner;
        detach(py, || self.priorities.raise_largest(buffer, priority))
    }

    /// The priorities of the frames at some positions, or of all in slot order.
    fn get<'py>(
        &self,
        py: Python<'py>,
        indices: Option<PyReadonlyArray1<'_, i64>>,
    ) -> PyResult<Bound<'py, PyArray1<f64>>> {
        let indices = indices
            .map(|indices| collected(indices.as_array().iter().copied(), "indices"))
            .transpose()?;
        let priorities = detach(py, || {
            self.priorities
                .get(&self.buffer.get().inner, indices.as_deref())
        })?;
        Ok(priorities.into_pyarray(py))
    }
}

fn room_for<T: Clone + Default>(count: usize) -> Result<Vec<T>> {
    let mut room = with_room(count, "draws")?;
    room.resize(count, T::default());
    Ok(room)
}
