//! Random orders of any number of places, each of which can be asked for by itself.
//!
//! Few places are shuffled in a table, so that every order is as likely as another. More are
//! numbered anew by a cipher, which takes no memory: a Feistel network (M. Luby and C. Rackoff,
//! 1988, "How to construct pseudorandom permutations from pseudorandom functions") over the next
//! power of 2, applied until it leads back below the number of places.

use crate::error::Result;
use crate::memory::collected;
use crate::sampling::random::Random;

/// Up to so many places are shuffled in a table. A cipher over few places reaches few orders.
const LARGEST_TABLE: u64 = 1 << 16;
/// Each of the two halves is changed by the other so many times.
const ROUNDS: usize = 5;

/// A random order of the numbers below some length.
#[derive(Clone, Debug)]
pub enum Permutation {
    /// The number at each place.
    Table(Vec<u64>),
    /// A cipher.
    Cipher(Cipher),
}

/// Numbers below a length, numbered anew.
#[derive(Clone, Debug)]
pub struct Cipher {
    len: u64,
    /// The bits of the right half, and of the left one, which has as many or one more.
    right_bits: u32,
    left_bits: u32,
    keys: [[u64; 2]; ROUNDS],
}

impl Permutation {
    /// The order of `len` places for an epoch.
    pub fn new(len: u64, seed: u64, epoch: u64) -> Result<Self> {
        let mut random = Random::new(seed, epoch, 0);
        if len > LARGEST_TABLE {
            return Ok(Self::Cipher(Cipher::new(len, &mut random)));
        }
        let mut numbers: Vec<u64> = collected(0..len, "the order of an epoch")?;
        for place in (1..numbers.len()).rev() {
            numbers.swap(place, random.below(place + 1));
        }
        Ok(Self::Table(numbers))
    }

    /// The number at `place`, which is below the length.
    pub fn at(&self, place: u64) -> u64 {
        match self {
            Self::Table(numbers) => numbers[place as usize],
            Self::Cipher(cipher) => cipher.at(place),
        }
    }
}

impl Cipher {
    fn new(len: u64, random: &mut Random) -> Self {
        let bits = u64::BITS - (len - 1).leading_zeros();
        Self {
            len,
            right_bits: bits / 2,
            left_bits: bits - bits / 2,
            keys: [(); ROUNDS].map(|()| [random.bits(), random.bits()]),
        }
    }

    fn at(&self, place: u64) -> u64 {
        let mut number = self.once(place);
        while number >= self.len {
            number = self.once(number); // ends, since going on leads back to `place`
        }
        number
    }

    fn once(&self, number: u64) -> u64 {
        let mut left = number >> self.right_bits;
        let mut right = number & ((1 << self.right_bits) - 1);
        for [one, other] in self.keys {
            left ^= mixed(right ^ one) >> (u64::BITS - self.left_bits);
            right ^= mixed(left ^ other) >> (u64::BITS - self.right_bits);
        }
        left << self.right_bits | right
    }
}

/// All bits of the result depend on all bits of the number (the finalizer of SplitMix64: G. Steele,
/// D. Lea and C. Flood, 2014, "Fast splittable pseudorandom number generators").
fn mixed(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(permutation: &Permutation, len: u64) -> Vec<u64> {
        (0..len).map(|place| permutation.at(place)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn each_number_has_one_place(
            len in prop_oneof![0u64..20, 60_000u64..70_000, 131_000u64..132_000], seed in any::<u64>(),
        ) {
            let mut numbers = all(&Permutation::new(len, seed, 3).unwrap(), len);
            numbers.sort_unstable();
            prop_assert!(numbers.into_iter().eq(0..len));
        }

        #[test]
        fn ciphers_of_any_length_permute(len in 2u64..3000, seed in any::<u64>()) {
            let cipher = Cipher::new(len, &mut Random::new(seed, 0, 0));
            let mut numbers: Vec<u64> = (0..len).map(|place| cipher.at(place)).collect();
            numbers.sort_unstable();
            prop_assert!(numbers.into_iter().eq(0..len));
        }
    }

    /// How far counts are from being equal, in standard deviations of chi-square.
    fn unevenness(counts: &[u32]) -> f64 {
        let freedom = counts.len() as f64 - 1.0;
        let mean = counts.iter().map(|&count| f64::from(count)).sum::<f64>() / counts.len() as f64;
        let terms = counts
            .iter()
            .map(|&count| (f64::from(count) - mean).powi(2) / mean);
        (terms.sum::<f64>() - freedom) / (2.0 * freedom).sqrt()
    }

    #[test]
    fn few_places_are_in_every_order_as_often() {
        let mut counts = [0; 120];
        for epoch in 0..60_000 {
            let order = all(&Permutation::new(5, 1, epoch).unwrap(), 5);
            let rank = |at: usize| {
                order[at + 1..]
                    .iter()
                    .filter(|&&later| later < order[at])
                    .count()
            };
            counts[(0..5).fold(0, |code, at| code * (5 - at) + rank(at))] += 1;
        }
        assert!(unevenness(&counts).abs() < 5.0, "{counts:?}");
    }

    #[test]
    fn many_places_are_anywhere_as_often_and_apart_from_their_neighbours() {
        let len = 100_000;
        let bins = 100;
        let (mut places, mut distances, mut both) = ([0; 100], [0; 100], [0; 100]);
        for epoch in 0..2000 {
            let permutation = Permutation::new(len, 2, epoch).unwrap();
            for start in [0, 1, 2, 50_000, 99_990] {
                let [a, b] = [0, 1].map(|offset| permutation.at(start + offset));
                places[(a * bins / len) as usize] += 1;
                distances[((b + len - a) % len * bins / len) as usize] += 1;
                both[(a * 10 / len * 10 + b * 10 / len) as usize] += 1;
            }
        }
        for counts in [places, distances, both] {
            assert!(unevenness(&counts).abs() < 5.0, "{counts:?}");
        }
    }

    #[test]
    fn orders_are_the_same_for_ever() {
        let order = |len| -> Vec<u64> {
            let permutation = Permutation::new(len, 7, 1).unwrap();
            (0..6).map(|place| permutation.at(place)).collect()
        };
        assert_eq!([order(6), order(1_000_000)].concat(), FROZEN);
    }

    /// What came out when this was written.
    const FROZEN: [u64; 12] = [
        1, 3, 0, 5, 2, 4, 450_947, 685_032, 846_946, 925_342, 596_818, 62_383,
    ];
}
