//! Casts between element types: those that NumPy's `same_kind` rule allows, to the values that
//! NumPy gives.
//!
//! An element is loaded into the widest type of its kind, which holds it exactly, and stored from
//! there, so every value is rounded at most as often as NumPy rounds it.

use half::f16;

use crate::spec::DType;

/// Elements at equal distances in memory.
#[derive(Clone, Copy, Debug)]
pub struct Strided<'a> {
    /// Memory that holds them all.
    pub memory: &'a [u8],
    /// Where in it the first one begins.
    pub start: usize,
    /// How many bytes after the start of one element the next one begins.
    pub stride: isize,
    /// Their type.
    pub dtype: DType,
    /// Whether their bytes are in big-endian order.
    pub big_endian: bool,
}

/// Whether `same_kind` allows a cast: within a kind, or to one further on in bool, unsigned and
/// signed integers, floats, complex numbers.
pub fn is_allowed(from: DType, to: DType) -> bool {
    kind(from) <= kind(to)
}

fn kind(dtype: DType) -> u8 {
    match dtype {
        DType::Bool => 0,
        DType::UInt8 | DType::UInt16 | DType::UInt32 | DType::UInt64 => 1,
        DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 => 2,
        DType::Float16 | DType::Float32 | DType::Float64 => 3,
        DType::Complex64 | DType::Complex128 => 4,
    }
}

/// Casts as many elements as fill `out` with values of type `to`, which [`is_allowed`].
pub fn cast(from: Strided<'_>, to: DType, out: &mut [u8]) {
    match from.dtype {
        same if same == to => copy(from, out),
        DType::Bool | DType::UInt8 => unsigned(from, to, out, |[byte]| byte.into()),
        DType::UInt16 => unsigned(from, to, out, |bytes| u16::from_le_bytes(bytes).into()),
        DType::UInt32 => unsigned(from, to, out, |bytes| u32::from_le_bytes(bytes).into()),
        DType::UInt64 => unsigned(from, to, out, u64::from_le_bytes),
        DType::Int8 => signed(from, to, out, |bytes| i8::from_le_bytes(bytes).into()),
        DType::Int16 => signed(from, to, out, |bytes| i16::from_le_bytes(bytes).into()),
        DType::Int32 => signed(from, to, out, |bytes| i32::from_le_bytes(bytes).into()),
        DType::Int64 => signed(from, to, out, i64::from_le_bytes),
        DType::Float16 => float(from, to, out, |bytes| f16::from_le_bytes(bytes).to_f64()),
        DType::Float32 => float(from, to, out, |bytes| f32::from_le_bytes(bytes).into()),
        DType::Float64 => float(from, to, out, f64::from_le_bytes),
        DType::Complex64 => complex(from, to, out, |bytes: [u8; 8]| {
            let [real, imaginary] = halves(bytes);
            (
                f32::from_le_bytes(real).into(),
                f32::from_le_bytes(imaginary).into(),
            )
        }),
        DType::Complex128 => complex(from, to, out, |bytes: [u8; 16]| {
            let [real, imaginary] = halves(bytes);
            (f64::from_le_bytes(real), f64::from_le_bytes(imaginary))
        }),
    }
}

fn copy(from: Strided<'_>, out: &mut [u8]) {
    match from.dtype.size() {
        1 => each(from, out, |bytes: [u8; 1]| bytes),
        2 => each(from, out, |bytes: [u8; 2]| bytes),
        4 => each(from, out, |bytes: [u8; 4]| bytes),
        8 => each(from, out, |bytes: [u8; 8]| bytes),
        _ => each(from, out, |bytes: [u8; 16]| bytes),
    }
}

fn unsigned<const N: usize>(
    from: Strided<'_>,
    to: DType,
    out: &mut [u8],
    load: impl Fn([u8; N]) -> u64,
) {
    match to {
        DType::Bool | DType::UInt8 => each(from, out, |bytes| (load(bytes) as u8).to_le_bytes()),
        DType::UInt16 => each(from, out, |bytes| (load(bytes) as u16).to_le_bytes()),
        DType::UInt32 => each(from, out, |bytes| (load(bytes) as u32).to_le_bytes()),
        DType::UInt64 => each(from, out, |bytes| load(bytes).to_le_bytes()),
        DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 => {
            signed(from, to, out, |bytes| load(bytes).cast_signed());
        }
        DType::Float16 | DType::Float32 | DType::Complex64 => {
            float(from, to, out, |bytes| (load(bytes) as f32).into());
        }
        DType::Float64 | DType::Complex128 => float(from, to, out, |bytes| load(bytes) as f64),
    }
}

fn signed<const N: usize>(
    from: Strided<'_>,
    to: DType,
    out: &mut [u8],
    load: impl Fn([u8; N]) -> i64,
) {
    match to {
        DType::Int8 => each(from, out, |bytes| (load(bytes) as i8).to_le_bytes()),
        DType::Int16 => each(from, out, |bytes| (load(bytes) as i16).to_le_bytes()),
        DType::Int32 => each(from, out, |bytes| (load(bytes) as i32).to_le_bytes()),
        DType::Float64 | DType::Complex128 => float(from, to, out, |bytes| load(bytes) as f64),
        DType::Float16 | DType::Float32 | DType::Complex64 => {
            float(from, to, out, |bytes| (load(bytes) as f32).into());
        }
        _ => each(from, out, |bytes| load(bytes).to_le_bytes()),
    }
}

fn float<const N: usize>(
    from: Strided<'_>,
    to: DType,
    out: &mut [u8],
    load: impl Fn([u8; N]) -> f64,
) {
    match to {
        DType::Float16 => each(from, out, |bytes| half_from(load(bytes)).to_le_bytes()),
        DType::Float32 => each(from, out, |bytes| (load(bytes) as f32).to_le_bytes()),
        DType::Complex64 | DType::Complex128 => complex(from, to, out, |bytes| (load(bytes), 0.0)),
        _ => each(from, out, |bytes| load(bytes).to_le_bytes()),
    }
}

/// Rounds once. (`f16::from_f64` rounds to `f32` on the way where the processor helps it.)
fn half_from(value: f64) -> f16 {
    let near = value as f32;
    let back = f64::from(near);
    let odd = near.to_bits() & 1 == 1;
    if odd || back == value || value.is_nan() {
        return f16::from_f32(near);
    }
    // Not exact, so the odd neighbour on the value's side stands for it: it is no tie of halves.
    let toward = if back.abs() > value.abs() {
        near.to_bits() - 1
    } else {
        near.to_bits() + 1
    };
    f16::from_f32(f32::from_bits(toward))
}

fn complex<const N: usize>(
    from: Strided<'_>,
    to: DType,
    out: &mut [u8],
    load: impl Fn([u8; N]) -> (f64, f64),
) {
    match to {
        DType::Complex64 => each(from, out, |bytes| -> [u8; 8] {
            let (real, imaginary) = load(bytes);
            joined([real, imaginary].map(|part| (part as f32).to_le_bytes()))
        }),
        _ => each(from, out, |bytes| -> [u8; 16] {
            let (real, imaginary) = load(bytes);
            joined([real, imaginary].map(f64::to_le_bytes))
        }),
    }
}

fn halves<const N: usize, const M: usize>(bytes: [u8; N]) -> [[u8; M]; 2] {
    std::array::from_fn(|half| std::array::from_fn(|byte| bytes[half * M + byte]))
}

fn joined<const N: usize, const M: usize>(parts: [[u8; N]; 2]) -> [u8; M] {
    std::array::from_fn(|byte| parts[byte / N][byte % N])
}

/// The one loop: converts elements of `N` bytes to ones of `M` bytes, until `out` is full.
fn each<const N: usize, const M: usize>(
    from: Strided<'_>,
    out: &mut [u8],
    convert: impl Fn([u8; N]) -> [u8; M],
) {
    let out = out.as_chunks_mut::<M>().0;
    if from.big_endian {
        let part = if kind(from.dtype) == 4 { N / 2 } else { N };
        each_at(from, out, |mut bytes: [u8; N]| {
            bytes.chunks_exact_mut(part).for_each(<[u8]>::reverse);
            convert(bytes)
        });
    } else if from.stride == N as isize {
        let elements = from.memory[from.start..].as_chunks::<N>().0;
        for (element, out) in elements.iter().zip(out) {
            *out = convert(*element);
        }
    } else {
        each_at(from, out, convert);
    }
}

fn each_at<const N: usize, const M: usize>(
    from: Strided<'_>,
    out: &mut [[u8; M]],
    convert: impl Fn([u8; N]) -> [u8; M],
) {
    let mut at = from.start;
    for out in out {
        let mut element = [0; N];
        element.copy_from_slice(&from.memory[at..at + N]);
        *out = convert(element);
        at = at.wrapping_add_signed(from.stride);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The nearest half, the even one on a tie, by trying them all.
    fn nearest_half(value: f64) -> f16 {
        let halves = (0..=u16::MAX)
            .map(f16::from_bits)
            .filter(|half| half.is_finite());
        let same_sign = halves.filter(|half| half.is_sign_negative() == value.is_sign_negative());
        let key = |half: &f16| ((half.to_f64() - value).abs(), half.to_bits() & 1);
        let best = same_sign.min_by(|a, b| {
            key(a)
                .partial_cmp(&key(b))
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        best.unwrap_or(f16::NAN)
    }

    proptest! {
        #[test]
        fn halves_are_rounded_once(half in 0u16..0x7bff, part in 0u32..5, nudge in -2i64..3, negative in any::<bool>()) {
            // At, near and between the ties of two neighbouring halves.
            let (low, high) = (f16::from_bits(half).to_f64(), f16::from_bits(half + 1).to_f64());
            let value = low + (high - low) * f64::from(part) / 4.0;
            let value = f64::from_bits(value.to_bits().saturating_add_signed(nudge));
            let value = if negative { -value } else { value };
            prop_assert_eq!(half_from(value).to_bits(), nearest_half(value).to_bits());
        }
    }

    #[test]
    fn halves_overflow_and_keep_what_is_no_number() {
        for (value, expected) in [
            (65_519.999, f16::MAX),
            (65_520.0, f16::INFINITY),
            (1e300, f16::INFINITY),
            (f64::NEG_INFINITY, f16::NEG_INFINITY),
            (1e-300, f16::ZERO),
        ] {
            assert_eq!(half_from(value), expected);
        }
        assert!(half_from(f64::NAN).is_nan());
    }
}
