//! From delta timestamps to frames: which frame of an episode answers each query, and whether it
//! is padding. No I/O of its own; timestamps come through [`Timeline`].
//!
//! The rule: with `q = t_item + delta`, the frame whose `|q - t|` is smallest answers, the earliest
//! on a tie, and is padding if that distance exceeds the tolerance. [`nearest`] is that rule to the
//! bit, also when it does not look at every frame; [`crate::offsets`] spares it for uniform episodes.

use crate::error::{Error, Result};
use crate::gather::Column;
use crate::memory::collected;
use crate::offsets::{DELTAS, Offsets};
use crate::ring::{Ring, Slot};
use crate::search::first_where;
use crate::spec::{IS_PAD_POSTFIX, Spec};

/// The deltas of one column.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// The column's position in the spec.
    pub column: usize,
    /// What is added to the item's timestamp, in seconds, each finite.
    pub deltas: Vec<f64>,
    /// The deltas in frames: the answers where that is proven, and else where to look first.
    pub offsets: Offsets,
}

/// The windows of some columns, in the order in which they were asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Windows {
    windows: Vec<Window>,
    tolerance: f64,
}

impl Windows {
    /// Windows over columns of `spec`, in a buffer of `fps` frames per second, whose answers are
    /// padding if they are more than `tolerance` seconds off.
    pub fn new(
        spec: &Spec,
        fps: Option<f64>,
        deltas: &[(String, Vec<f64>)],
        tolerance: f64,
    ) -> Result<Self> {
        let Some(fps) = fps else {
            return Err(Error::argument(
                "delta_timestamps",
                "None for a buffer without fps",
                "deltas",
            ));
        };
        let windows = deltas
            .iter()
            .map(|(key, deltas)| window(spec, fps, key, deltas, tolerance))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { windows, tolerance })
    }

    /// One per windowed column.
    pub fn iter(&self) -> std::slice::Iter<'_, Window> {
        self.windows.iter()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }

    /// The deltas of a column, if it has any.
    pub fn of(&self, column: usize) -> Option<&Window> {
        self.iter().find(|window| window.column == column)
    }

    /// How far, in seconds, an answer that is not padding may be from its query.
    pub fn tolerance(&self) -> f64 {
        self.tolerance
    }

    /// Whether in uniform episodes the offsets of all windows answer as the search would.
    pub fn are_proven(&self) -> bool {
        self.iter().all(|window| window.offsets.are_proven())
    }
}

fn window(spec: &Spec, fps: f64, key: &str, deltas: &[f64], tolerance: f64) -> Result<Window> {
    let argument = || format!("delta_timestamps[{key:?}]");
    let Ok(column) = spec.position(key) else {
        let known: Vec<&str> = spec
            .columns()
            .iter()
            .map(|column| column.key.as_str())
            .collect();
        return Err(Error::argument(
            "delta_timestamps",
            format!("keys of {known:?}"),
            format!("{key:?}"),
        ));
    };
    if let Some(delta) = deltas.iter().find(|delta| !delta.is_finite()) {
        return Err(Error::argument(
            argument(),
            "finite seconds",
            delta.to_string(),
        ));
    }
    let mask = format!("{key}{IS_PAD_POSTFIX}");
    if spec.position(&mask).is_ok() {
        return Err(Error::argument(
            argument(),
            format!("a key whose mask {mask:?} is not itself a key"),
            format!("{key:?}"),
        ));
    }
    Ok(Window {
        column,
        offsets: Offsets::new(deltas, fps, tolerance)?,
        deltas: collected(deltas.iter().copied(), DELTAS)?,
    })
}

/// The timestamps of one episode's live frames, in insertion order.
#[derive(Clone, Copy)]
pub struct Timeline<'a> {
    column: &'a Column,
    ring: Ring,
    first: Slot,
    len: usize,
    sorted: bool,
}

impl<'a> Timeline<'a> {
    /// `len` (at least 1) timestamps from slot `first` on; `sorted` if none is below the one before.
    pub fn new(column: &'a Column, ring: Ring, first: Slot, len: usize, sorted: bool) -> Self {
        Self {
            column,
            ring,
            first,
            len,
            sorted,
        }
    }

    fn slot(&self, position: usize) -> Slot {
        self.ring.moved(self.first, position as i64)
    }

    fn at(&self, position: usize) -> f64 {
        self.column.float64(self.slot(position))
    }
}

/// Resolves one window of one item: the answering slot and the padding flag of each delta.
///
/// `item` is the item's position in its episode; `describe` names the column's key and the
/// episode, for the error.
pub fn resolve(
    timeline: &Timeline<'_>,
    item: usize,
    window: &Window,
    tolerance: f64,
    describe: impl Fn() -> (String, i64),
    mut answer: impl FnMut(Slot, bool),
) -> Result<()> {
    let now = timeline.at(item);
    let (start, end) = (timeline.at(0), timeline.at(timeline.len - 1));
    for (delta, &offset) in window.deltas.iter().zip(window.offsets.each()) {
        let query = now + delta;
        let guess = item.saturating_add_signed(offset as isize);
        let (position, distance) = nearest(timeline, query, guess);
        let is_pad = distance > tolerance;
        if is_pad && start <= query && query <= end {
            let (key, episode) = describe();
            return Err(Error::Tolerance {
                key,
                episode,
                query,
                distance,
                tolerance,
            });
        }
        answer(timeline.slot(position), is_pad);
    }
    Ok(())
}

/// The position nearest to `query`, the earliest on a tie, and its distance. `guess` is where the
/// search begins; it cannot change the result.
fn nearest(timeline: &Timeline<'_>, query: f64, guess: usize) -> (usize, f64) {
    if timeline.sorted {
        nearest_sorted(timeline.len, |position| timeline.at(position), query, guess)
    } else {
        nearest_of_all(
            (0..timeline.len).map(|position| timeline.at(position)),
            query,
        )
    }
}

/// The rule, by looking at every frame.
pub fn nearest_of_all(times: impl Iterator<Item = f64>, query: f64) -> (usize, f64) {
    let distances = times.map(|time| (query - time).abs()).enumerate();
    distances
        .reduce(|best, next| if next.1 < best.1 { next } else { best })
        .unwrap_or((0, f64::NAN))
}

/// Rounding is monotone, so along sorted times the rounded distance falls until the first time at
/// or after the query and rises from there: only the frames around that point can be nearest.
fn nearest_sorted(len: usize, at: impl Fn(usize) -> f64, query: f64, guess: usize) -> (usize, f64) {
    let distance = |position| (query - at(position)).abs();
    let after = first_where(len, guess, |position| at(position) >= query);
    if after == 0 {
        return (0, distance(0));
    }
    let before = distance(after - 1);
    if after < len && distance(after) < before {
        return (after, distance(after));
    }
    // Equal times, or times that round to one distance: the earliest answers.
    (
        first_where(after - 1, after - 1, |position| {
            distance(position) <= before
        }),
        before,
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::spec::{DType, Field};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Times that tie, repeat, differ by a rounding error or lie far apart.
    fn time() -> impl Strategy<Value = f64> {
        prop_oneof![
            (-20i32..20).prop_map(|tenths| f64::from(tenths) / 10.0),
            (-3i32..3).prop_map(|ulps| 1.0 + f64::from(ulps) * f64::EPSILON),
            (-4i32..4).prop_map(|quarters| 1e17 + f64::from(quarters) * 4.0),
            prop_oneof![
                Just(-0.0),
                Just(f64::MAX),
                Just(f64::MIN),
                Just(f64::MIN_POSITIVE)
            ],
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn the_sorted_search_is_the_rule_to_the_bit(
            mut times in proptest::collection::vec(time(), 1..40),
            item in time(),
            delta in time(),
            guess in 0usize..60,
        ) {
            times.sort_by(f64::total_cmp);
            let query = item + delta;
            let (position, distance) = nearest_sorted(times.len(), |i| times[i], query, guess);
            let expected = nearest_of_all(times.iter().copied(), query);
            prop_assert_eq!((position, distance.to_bits()), (expected.0, expected.1.to_bits()));
        }
    }

    #[test]
    fn bad_windows_are_refused() {
        let field = || Field {
            dtype: DType::Bool,
            shape: Vec::new(),
        };
        let fields = BTreeMap::from([("a".to_owned(), field()), ("a_is_pad".to_owned(), field())]);
        let spec = Spec::new(&fields, 3).unwrap();
        let refused = |fps, key: &str, deltas: &[f64]| {
            let error = Windows::new(&spec, fps, &[(key.to_owned(), deltas.to_vec())], 0.0);
            error.unwrap_err().to_string()
        };
        assert!(refused(None, "index", &[0.0]).contains("without fps"));
        assert!(refused(Some(10.0), "b", &[0.0]).contains("\"b\""));
        assert!(refused(Some(10.0), "index", &[0.0, f64::NAN]).contains("NaN"));
        assert!(refused(Some(10.0), "a", &[0.0]).contains("a_is_pad"));
    }
}
