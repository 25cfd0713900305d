//! Returns over several steps: what an item's rewards add up to, and from which frame on the value
//! of a state has to stand for the rest.

use crate::cast::{Strided, cast};
use crate::error::{Error, Result};
use crate::gather::Column;
use crate::plan::Planner;
use crate::ring::{Seq, Slot};
use crate::spec::{ColumnSpec, DType, Spec};

/// The reward that follows a frame.
const REWARD_KEY: &str = "next.reward";
/// Whether the state after a frame is terminal: the first of these that a buffer has.
const TERMINAL_KEYS: [&str; 2] = ["next.terminated", "next.done"];

/// How many steps, at which discount.
#[derive(Clone, Copy, Debug)]
pub struct NStep {
    steps: usize,
    gamma: f64,
    reward: Scalar,
    terminal: Option<Scalar>,
}

/// What follows an item.
#[derive(Clone, Copy, Debug)]
pub struct Return {
    /// The discounted sum of its rewards.
    pub reward: f64,
    /// What the value of the bootstrap frame is multiplied by; 0 after a terminal state.
    pub discount: f64,
}

/// A column of single numbers.
#[derive(Clone, Copy, Debug)]
struct Scalar {
    column: usize,
    dtype: DType,
}

impl NStep {
    /// `steps` at least 1, `gamma` from 0 to 1, for buffers of that spec.
    pub fn new(spec: &Spec, steps: usize, gamma: f64) -> Result<Self> {
        let reward = Scalar::of(spec, REWARD_KEY)?;
        let terminal = TERMINAL_KEYS.map(|key| Scalar::of(spec, key));
        Ok(Self {
            steps,
            gamma,
            reward: reward.ok_or_else(|| {
                let expected = format!("None for a buffer without the key {REWARD_KEY:?}");
                Error::argument("n_step", expected, steps.to_string())
            })?,
            terminal: terminal
                .into_iter()
                .find_map(Result::transpose)
                .transpose()?,
        })
    }

    /// What follows a live frame, and its bootstrap frame: the one `steps` later; the one that a
    /// terminal state follows, if that comes before; or else the last one that its episode has.
    pub fn after(&self, planner: &Planner<'_>, seq: Seq) -> (Return, (Seq, Slot)) {
        let last = planner.episodes.of(seq).frames.end.0 - 1;
        let number = |scalar: Scalar, seq: u64| {
            let slot = planner.ring.slot(Seq(seq));
            scalar.get(&planner.columns[scalar.column], slot)
        };
        let (mut reward, mut discount, mut at) = (0.0, 1.0, seq.0);
        for _ in 0..self.steps {
            let is_terminal = self.terminal.is_some_and(|flag| number(flag, at) != 0.0);
            if at == last && !is_terminal {
                break; // the state that its reward led to is not there
            }
            reward += discount * number(self.reward, at);
            discount *= self.gamma;
            if is_terminal {
                discount = 0.0;
                break;
            }
            at += 1;
        }
        let bootstrap = Seq(at);
        (
            Return { reward, discount },
            (bootstrap, planner.ring.slot(bootstrap)),
        )
    }
}

impl Scalar {
    /// That column of a spec, if there is one.
    fn of(spec: &Spec, key: &str) -> Result<Option<Self>> {
        let Ok(column) = spec.position(key) else {
            return Ok(None);
        };
        let ColumnSpec { field, .. } = &spec.columns()[column];
        let is_complex = matches!(field.dtype, DType::Complex64 | DType::Complex128);
        if field.shape.iter().any(|&len| len != 1) || is_complex {
            let expected = "one real number per frame, for n_step";
            return Err(Error::argument(key, expected, field.to_string()));
        }
        let dtype = field.dtype;
        Ok(Some(Self { column, dtype }))
    }

    fn get(self, column: &Column, slot: Slot) -> f64 {
        let mut number = [0; 8];
        let from = Strided {
            memory: &column.small_row(slot),
            start: 0,
            stride: 0,
            dtype: self.dtype,
            big_endian: false,
        };
        cast(from, DType::Float64, &mut number);
        f64::from_le_bytes(number)
    }
}
