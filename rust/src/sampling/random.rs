//! Random numbers that are the same on every platform, and can be had from any place on.
//!
//! They come in blocks. Each block has a generator of its own, made of seed, epoch and block, so
//! that whoever goes on in the middle need not draw what came before.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// How many draws belong to one block.
pub const BLOCK: u64 = 4096;

/// The random numbers of one block.
#[derive(Clone, Debug)]
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    /// Those of a block of an epoch.
    pub fn new(seed: u64, epoch: u64, block: u64) -> Self {
        let mut mixed = seed;
        for part in [epoch, block] {
            mixed = Xoshiro256PlusPlus::seed_from_u64(mixed).next_u64() ^ part;
        }
        Self(Xoshiro256PlusPlus::seed_from_u64(mixed))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `len`, which is not 0, each as likely as another but for 1 in `2^64 / len`.
    pub fn below(&mut self, len: usize) -> usize {
        ((u128::from(self.bits()) * len as u128) >> 64) as usize
    }

    /// A number from 0 to below 1.
    pub fn share(&mut self) -> f64 {
        1.0 - self.unit()
    }

    /// A number above 0 and up to 1.
    pub fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

/// Fills `out` with draws, each of which takes `numbers` numbers of its block.
pub fn for_each_draw<T>(
    seed: u64,
    epoch: u64,
    start: u64,
    out: &mut [T],
    numbers: u64,
    mut draw: impl FnMut(&mut Random) -> T,
) {
    let mut at = start;
    let mut rest = out;
    while !rest.is_empty() {
        let within = at % BLOCK;
        let mut random = Random::new(seed, epoch, at / BLOCK);
        for _ in 0..within * numbers {
            random.bits();
        }
        let len = rest.len().min((BLOCK - within) as usize);
        let (now, later) = rest.split_at_mut(len);
        now.fill_with(|| draw(&mut random));
        at += len as u64;
        rest = later;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_same_for_ever() {
        let mut random = Random::new(7, 1, 2);
        let bits: Vec<u64> = (0..3).map(|_| random.bits()).collect();
        assert_eq!(bits, FROZEN);
    }

    /// What came out when this was written.
    const FROZEN: [u64; 3] = [
        16_085_744_263_246_977_799,
        2_030_560_560_813_697_172,
        1_624_916_612_910_885_050,
    ];

    #[test]
    fn seeds_epochs_and_blocks_differ() {
        let first = |seed, epoch, block| Random::new(seed, epoch, block).bits();
        let mut all: Vec<u64> = (0..1000)
            .map(|n| first(n / 100, n / 10 % 10, n % 10))
            .collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 1000);
    }

    #[test]
    fn units_are_above_0_and_up_to_1() {
        let mut random = Random::new(0, 0, 0);
        for _ in 0..10_000 {
            let unit = random.unit();
            assert!(0.0 < unit && unit <= 1.0);
            let share = random.share();
            assert!((0.0..1.0).contains(&share));
            assert!(random.below(3) < 3);
        }
    }
}
