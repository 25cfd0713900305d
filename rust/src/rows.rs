//! The rows of one column of an insert, as the caller has them: of any type that casts to the
//! column's, in any memory order. They are cast on their way into the column, without a copy of
//! the whole.

use std::borrow::Cow;
use std::ops::Range;

use crate::cast::{Strided, cast};
use crate::error::Result;
use crate::memory::with_room;
use crate::spec::DType;

/// Cast elements are handed on in pieces of up to this many bytes, which stay in the cache.
const BLOCK: usize = 4096;

/// An array of rows: its first dimension counts them.
#[derive(Clone, Debug)]
pub struct Rows<'a> {
    memory: Cow<'a, [u8]>,
    origin: usize,
    dims: Vec<Dim>,
    dtype: DType,
    big_endian: bool,
}

/// One dimension of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dim {
    /// How many elements, or rows.
    pub len: usize,
    /// From one to the next, in bytes.
    pub stride: isize,
}

impl<'a> Rows<'a> {
    /// An array whose first element begins at `origin` of `memory`, or `None` if an element lies
    /// outside of that. `dims` is not empty.
    pub fn new(
        memory: &'a [u8],
        origin: usize,
        dims: Vec<Dim>,
        dtype: DType,
        big_endian: bool,
    ) -> Option<Self> {
        let (low, high) = extent(&dims)?;
        let start = origin.checked_sub(low)?;
        let end = origin.checked_add(high)?.checked_add(dtype.size())?;
        let empty = dims.iter().any(|dim| dim.len == 0);
        let inside = empty || start <= end && end <= memory.len();
        (inside && !dims.is_empty()).then_some(Self {
            memory: Cow::Borrowed(memory),
            origin,
            dims,
            dtype,
            big_endian,
        })
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.dims[0].len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The type of the elements, as they are now.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The number of elements in a row.
    pub fn row_len(&self) -> usize {
        self.dims[1..].iter().map(|dim| dim.len).product()
    }

    /// A copy of the rows as elements of type `to`, one after the other.
    pub fn converted(&self, to: DType) -> Result<Rows<'static>> {
        let stride = self.row_len().saturating_mul(to.size());
        let mut memory = with_room(self.len().saturating_mul(stride), "bytes of cast frames")?;
        self.for_each_block(0..self.len(), to, |block| memory.extend_from_slice(block));
        Ok(Rows {
            origin: 0,
            dims: vec![
                Dim {
                    len: self.len(),
                    stride: stride as isize,
                },
                Dim {
                    len: stride / to.size(),
                    stride: to.size() as isize,
                },
            ],
            memory: Cow::Owned(memory),
            dtype: to,
            big_endian: false,
        })
    }

    /// The elements of rows that were [`Self::converted`] to a type of 8 bytes.
    pub fn words(&self) -> &[[u8; 8]] {
        self.memory.as_chunks().0
    }

    /// Adds `shift` to every element of rows that were [`Self::converted`] to int64.
    pub fn add(&mut self, shift: i64) {
        for word in self.memory.to_mut().as_chunks_mut::<8>().0 {
            *word = i64::from_le_bytes(*word).wrapping_add(shift).to_le_bytes();
        }
    }

    /// Hands on some of the rows, cast to `to`, as consecutive pieces.
    pub fn for_each_block(&self, rows: Range<usize>, to: DType, mut use_block: impl FnMut(&[u8])) {
        if let Some(bytes) = self.as_they_are(rows.clone(), to) {
            return use_block(bytes);
        }
        let mut block = [0; BLOCK];
        let mut filled = 0;
        self.for_each_run(rows, |mut run, mut len| {
            while len > 0 {
                let count = len.min((BLOCK - filled) / to.size());
                let end = filled + count * to.size();
                cast(run, to, &mut block[filled..end]);
                (filled, len) = (end, len - count);
                run.start = run.start.wrapping_add_signed(run.stride * count as isize);
                if filled == BLOCK {
                    use_block(&block);
                    filled = 0;
                }
            }
        });
        use_block(&block[..filled]);
    }

    /// Some of the rows, if they lie in memory as a column of type `to` has them.
    fn as_they_are(&self, rows: Range<usize>, to: DType) -> Option<&[u8]> {
        let mut size = to.size();
        let in_order = self.dims.iter().rev().all(|dim| {
            let stride = size as isize;
            size *= dim.len;
            dim.len == 1 || dim.stride == stride
        });
        if self.dtype != to || self.big_endian || !in_order {
            return None;
        }
        let row_bytes = size.checked_div(self.len())?;
        Some(&self.memory[self.origin + rows.start * row_bytes..][..rows.len() * row_bytes])
    }

    /// Hands on the elements of some rows, as few runs at equal distances, in order.
    fn for_each_run(&self, rows: Range<usize>, mut use_run: impl FnMut(Strided<'_>, usize)) {
        let mut dims = self.dims.clone();
        dims[0].len = rows.len();
        if dims.iter().any(|dim| dim.len == 0) {
            return;
        }
        let mut outer = merged(&dims);
        let inner = outer.pop().unwrap_or(Dim { len: 1, stride: 0 });
        let first = self
            .origin
            .wrapping_add_signed(self.dims[0].stride * rows.start as isize);
        let runs: usize = outer.iter().map(|dim| dim.len).product();
        for run in 0..runs {
            let mut start = first;
            let mut rest = run;
            for dim in outer.iter().rev() {
                start = start.wrapping_add_signed(dim.stride * (rest % dim.len) as isize);
                rest /= dim.len;
            }
            let run = Strided {
                memory: &self.memory,
                start,
                stride: inner.stride,
                dtype: self.dtype,
                big_endian: self.big_endian,
            };
            use_run(run, inner.len);
        }
    }
}

/// The same elements in the same order, with as few dimensions as can be.
fn merged(dims: &[Dim]) -> Vec<Dim> {
    let mut merged: Vec<Dim> = Vec::with_capacity(dims.len());
    for &dim in dims.iter().filter(|dim| dim.len != 1) {
        match merged.last_mut() {
            Some(last) if last.stride == dim.stride * dim.len as isize => {
                last.len *= dim.len;
                last.stride = dim.stride;
            }
            _ => merged.push(dim),
        }
    }
    merged
}

/// How far the first bytes of elements lie below and above that of the first one, if that is a
/// number.
pub fn extent(dims: &[Dim]) -> Option<(usize, usize)> {
    let (mut low, mut high) = (0usize, 0usize);
    for dim in dims {
        let reach = dim
            .stride
            .unsigned_abs()
            .checked_mul(dim.len.saturating_sub(1))?;
        let side = if dim.stride < 0 { &mut low } else { &mut high };
        *side = side.checked_add(reach)?;
    }
    Some((low, high))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::error::Error;
    use proptest::prelude::*;

    /// A dimension as slicing makes it: every `step`-th element, backwards if that is negative.
    fn dims() -> impl Strategy<Value = Vec<(usize, isize)>> {
        let step = prop_oneof![Just(-2isize), Just(-1), Just(1), Just(1), Just(3)];
        proptest::collection::vec((1usize..6, step), 1..4)
    }

    fn words(bytes: &[u8]) -> Vec<i32> {
        let words = bytes.as_chunks::<4>().0.iter();
        words.map(|word| i32::from_le_bytes(*word)).collect()
    }

    proptest! {
        #[test]
        fn rows_come_in_order_from_any_strides(
            dims in dims(),
            reversed in any::<bool>(),
            big_endian in any::<bool>(),
            rows in (0usize..6, 0usize..6),
        ) {
            // An array of int16 that counts up, and every step-th element of each dimension of it.
            let full: Vec<usize> = dims.iter().map(|(len, step)| len * step.unsigned_abs()).collect();
            let count: usize = full.iter().product();
            let numbers = (0..count).map(|number| number as i16 - 100);
            let memory: Vec<u8> = numbers
                .flat_map(|number| if big_endian { number.to_be_bytes() } else { number.to_le_bytes() })
                .collect();
            let mut size = 2;
            let mut views: Vec<Dim> = dims.iter().zip(&full).rev().map(|((len, step), full)| {
                let stride = size * step;
                size *= *full as isize;
                Dim { len: *len, stride }
            }).collect();
            if !reversed {
                views.reverse(); // else as a transposed array has them
            }
            let origin: isize = views.iter().map(|dim| -dim.stride.min(0) * (dim.len as isize - 1)).sum();
            let len = views[0].len;
            let rows = rows.0.min(rows.1).min(len)..rows.0.max(rows.1).min(len);
            let mut expected = Vec::new();
            let mut index = vec![0; views.len()];
            index[0] = rows.start;
            while index[0] < rows.end {
                let at: isize = views.iter().zip(&index).map(|(dim, i)| dim.stride * *i as isize).sum();
                expected.push(((origin + at) / 2) as i32 - 100);
                for position in (0..index.len()).rev() {
                    index[position] += 1;
                    if position == 0 || index[position] < views[position].len {
                        break;
                    }
                    index[position] = 0;
                }
            }
            let array = Rows::new(&memory, origin as usize, views, DType::Int16, big_endian).unwrap();
            let mut got = Vec::new();
            array.for_each_block(rows.clone(), DType::Int32, |block| got.extend(words(block)));
            prop_assert_eq!(&got, &expected);
            let mut same_type = Vec::new();
            array.for_each_block(rows, DType::Int16, |block| same_type.extend_from_slice(block));
            let same_type: Vec<i32> = same_type
                .as_chunks::<2>().0.iter().map(|word| i16::from_le_bytes(*word).into()).collect();
            prop_assert_eq!(&same_type, &expected);
        }
    }

    #[test]
    fn rows_in_order_are_not_copied() {
        let memory = [7; 24];
        let dims = |stride| vec![Dim { len: 3, stride: 8 }, Dim { len: 2, stride }];
        let plain = Rows::new(&memory, 0, dims(4), DType::Int32, false).unwrap();
        assert_eq!(plain.as_they_are(0..3, DType::Int32), Some(&memory[..]));
        assert_eq!(plain.as_they_are(1..3, DType::Int32), Some(&memory[8..]));
        assert_eq!(plain.as_they_are(0..3, DType::Int64), None);
        let overlapping = Rows::new(&memory, 0, dims(2), DType::Int32, false).unwrap();
        assert_eq!(overlapping.as_they_are(0..3, DType::Int32), None);
        let converted = overlapping.converted(DType::Int64).unwrap();
        assert_eq!(converted.words().len(), 6);
        assert!(converted.as_they_are(0..3, DType::Int64).is_some());
    }

    #[test]
    fn rows_that_no_memory_can_hold_are_an_error() {
        let dims = vec![Dim {
            len: 1 << 60,
            stride: 0,
        }];
        let repeated = Rows::new(&[7; 8], 0, dims, DType::Int64, false).unwrap();
        assert!(matches!(
            repeated.converted(DType::Int64),
            Err(Error::OutOfMemory { .. })
        ));
    }

    #[test]
    fn elements_outside_of_the_memory_are_refused() {
        let memory = [0; 24];
        let fits = |origin, len, stride| {
            Rows::new(
                &memory,
                origin,
                vec![Dim { len, stride }],
                DType::Int32,
                false,
            )
            .is_some()
        };
        assert!(fits(0, 6, 4) && fits(20, 6, -4) && fits(20, 1, 99) && fits(24, 0, 4));
        assert!(!fits(0, 7, 4) && !fits(1, 6, 4) && !fits(16, 6, -4) && !fits(21, 1, 4));
        assert!(!fits(0, usize::MAX, isize::MAX) && !fits(usize::MAX, 1, 4));
        assert!(Rows::new(&memory, 0, Vec::new(), DType::Int32, false).is_none());
    }
}
