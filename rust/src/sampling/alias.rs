//! Drawing by weight: in constant time from a table, or without replacement in one pass.
//!
//! The table is that of Walker (1977), built in one pass without worklists: light and heavy entries
//! are met in order, and the heavy one that has just given away too much is light in turn. An entry
//! of weight 0 is never drawn.

use std::collections::BinaryHeap;

use crate::error::{Error, Result};
use crate::memory::{collected, with_room};
use crate::sampling::random::{BLOCK, Random, for_each_draw};

/// How often each of some entries is to be drawn, relative to the others.
#[derive(Clone, Copy, Debug)]
pub enum Weights<'a> {
    /// In float32.
    F32(&'a [f32]),
    /// In float64.
    F64(&'a [f64]),
}

impl Weights<'_> {
    /// The number of entries.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(weights) => weights.len(),
            Self::F64(weights) => weights.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn at(&self, entry: usize) -> f64 {
        match self {
            Self::F32(weights) => weights[entry].into(),
            Self::F64(weights) => weights[entry],
        }
    }

    /// What to divide them by to get numbers whose sum is finite, and that sum. Refuses what cannot
    /// be drawn by.
    fn checked(&self) -> Result<(f64, f64)> {
        let refused = |expected: &str, got| Err(Error::argument("weights", expected, got));
        if self.is_empty() {
            return refused("at least one", "none".to_owned());
        }
        let mut largest = 0.0f64;
        for entry in 0..self.len() {
            let weight = self.at(entry);
            if !(weight >= 0.0 && weight.is_finite()) {
                let got = format!("{weight} at position {entry}");
                return refused("finite numbers, none negative", got);
            }
            largest = largest.max(weight);
        }
        if largest == 0.0 {
            return refused("a number above 0", "only zeros".to_owned());
        }
        let scaled = (0..self.len()).map(|entry| self.at(entry) / largest);
        Ok((largest, sum(scaled)))
    }
}

/// The sum, by blocks, so that its error does not grow with the number of terms.
fn sum(mut terms: impl Iterator<Item = f64>) -> f64 {
    let (mut total, mut more) = (0.0, true);
    while more {
        let (mut block, mut count) = (0.0, 0);
        for term in terms.by_ref().take(1 << 16) {
            block += term;
            count += 1;
        }
        total += block;
        more = count > 0;
    }
    total
}

/// A table to draw from.
#[derive(Clone, Debug)]
pub struct AliasTable {
    /// Of 2^32 cases in which an entry is hit, how many are its own.
    thresholds: Vec<u32>,
    /// Whose the others are.
    aliases: Vec<u32>,
}

impl AliasTable {
    /// The table of some weights, fewer than 2^32.
    pub fn new(weights: Weights<'_>) -> Result<Self> {
        let len = weights.len();
        let Ok(count) = u32::try_from(len) else {
            let expected = format!("at most {} weights", u32::MAX);
            return Err(Error::argument("weights", expected, len.to_string()));
        };
        let (largest, total) = weights.checked()?;
        // How often an entry is drawn where each is hit once.
        let share = |entry: u32| weights.at(entry as usize) / largest * (len as f64 / total);
        let next = |from: u32, is_wanted: &dyn Fn(f64) -> bool| {
            (from..count).find(|&entry| is_wanted(share(entry)))
        };
        let is_heavy = |share: f64| share >= 1.0;
        let mut thresholds: Vec<u32> = with_room(len, "the table of weights")?;
        thresholds.resize(len, u32::MAX);
        let mut aliases = collected(0..count, "the table of weights")?;
        // There is a heavy entry: the largest share is not below the mean, but for rounding.
        let heaviest = next(0, &|share| share >= 1.0 - 1e-9).unwrap_or(0);
        let mut heavy = next(0, &is_heavy);
        let mut left = heavy.map_or(0.0, share);
        for light in 0..count {
            let own = share(light);
            if is_heavy(own) {
                continue;
            }
            let Some(giver) = heavy else {
                // Rounding took the last bits: this one keeps its place, unless it may not be drawn.
                if own == 0.0 {
                    thresholds[light as usize] = 0;
                    aliases[light as usize] = heaviest;
                }
                continue;
            };
            thresholds[light as usize] = threshold(own);
            aliases[light as usize] = giver;
            left -= 1.0 - own;
            let mut giver = giver;
            while left < 1.0 {
                heavy = next(giver + 1, &is_heavy);
                let Some(taker) = heavy else { break };
                thresholds[giver as usize] = threshold(left);
                aliases[giver as usize] = taker;
                left = share(taker) - (1.0 - left);
                giver = taker;
            }
        }
        Ok(Self {
            thresholds,
            aliases,
        })
    }

    /// The draws `start..start + out.len()` of an epoch.
    pub fn draw(&self, seed: u64, epoch: u64, start: u64, out: &mut [i64]) {
        for_each_draw(seed, epoch, start, out, 2, |random| {
            let entry = random.below(self.thresholds.len());
            let own = (random.bits() >> 32) as u32;
            match own < self.thresholds[entry] {
                true => entry as i64,
                false => i64::from(self.aliases[entry]),
            }
        });
    }
}

fn threshold(share: f64) -> u32 {
    (share.max(0.0) * (1u64 << 32) as f64) as u32 // saturates
}

/// Draws `count` different entries, one after the other by the weights of those that are left, as
/// Efraimidis and Spirakis (2006) do in one pass: each gets a random time to arrive at.
pub fn draw_without_replacement(
    weights: Weights<'_>,
    count: usize,
    seed: u64,
    epoch: u64,
) -> Result<Vec<i64>> {
    let (largest, _) = weights.checked()?;
    let mut earliest: BinaryHeap<(u64, usize)> = BinaryHeap::from(with_room(
        count.saturating_add(1).min(weights.len()),
        "draws",
    )?);
    let mut possible = 0;
    let mut random = Random::new(seed, epoch, 0);
    for entry in 0..weights.len() {
        if (entry as u64).is_multiple_of(BLOCK) {
            random = Random::new(seed, epoch, entry as u64 / BLOCK);
        }
        let waited = -libm::log(random.unit());
        let rate = weights.at(entry) / largest;
        if rate == 0.0 {
            continue;
        }
        possible += 1;
        // Numbers that are not negative are ordered as their bits are.
        let arrival = ((waited / rate).to_bits(), entry);
        if earliest.len() < count {
            earliest.push(arrival);
        } else if earliest.peek().is_some_and(|latest| arrival < *latest) {
            earliest.pop();
            earliest.push(arrival);
        }
    }
    if possible < count {
        return Err(Error::argument(
            "num_samples",
            format!("at most {possible}, the number of weights above 0, without replacement"),
            count.to_string(),
        ));
    }
    let in_order = earliest.into_sorted_vec();
    collected(in_order.iter().map(|(_, entry)| *entry as i64), "draws")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// How often each entry is drawn, of a total of 1, exactly as the table says.
    fn shares(table: &AliasTable) -> Vec<f64> {
        let len = table.thresholds.len();
        let mut shares = vec![0.0; len];
        for entry in 0..len {
            let alias = table.aliases[entry] as usize;
            let own = match alias == entry {
                true => 1.0,
                false => f64::from(table.thresholds[entry]) / (1u64 << 32) as f64,
            };
            shares[entry] += own / len as f64;
            shares[alias] += (1.0 - own) / len as f64;
        }
        shares
    }

    fn weight() -> impl Strategy<Value = f64> {
        prop_oneof![
            3 => 0.0..10.0f64,
            1 => Just(0.0),
            1 => 0.0..1e-12f64,
            1 => Just(1e300),
            2 => Just(1.0),
        ]
    }

    proptest! {
        #[test]
        fn a_table_has_the_shares_of_its_weights(weights in proptest::collection::vec(weight(), 1..60)) {
            prop_assume!(weights.iter().any(|weight| *weight > 0.0));
            let table = AliasTable::new(Weights::F64(&weights)).unwrap();
            let largest = weights.iter().copied().fold(0.0, f64::max);
            let total: f64 = weights.iter().map(|weight| weight / largest).sum();
            for (weight, share) in weights.iter().zip(shares(&table)) {
                let expected = weight / largest / total;
                prop_assert!((share - expected).abs() < 1e-9, "{share} {expected}");
                prop_assert!(*weight > 0.0 || share == 0.0);
            }
        }

        #[test]
        fn draws_are_the_same_from_wherever_they_begin(start in 0u64..10_000, len in 0usize..6000) {
            let table = AliasTable::new(Weights::F32(&[1.0, 2.0, 0.0, 3.0])).unwrap();
            let mut all = vec![0; start as usize + len];
            table.draw(3, 1, 0, &mut all);
            let mut part = vec![0; len];
            table.draw(3, 1, start, &mut part);
            prop_assert_eq!(&all[start as usize..], &part);
        }

        #[test]
        fn without_replacement_entries_differ(
            weights in proptest::collection::vec(weight(), 1..40), seed in any::<u64>(),
        ) {
            let possible = weights.iter().filter(|weight| **weight > 0.0).count();
            prop_assume!(possible > 0);
            for count in 0..=possible {
                let mut drawn = draw_without_replacement(Weights::F64(&weights), count, seed, 0).unwrap();
                prop_assert!(drawn.iter().all(|&entry| weights[entry as usize] > 0.0));
                drawn.sort_unstable();
                drawn.dedup();
                prop_assert_eq!(drawn.len(), count);
            }
            prop_assert!(draw_without_replacement(Weights::F64(&weights), possible + 1, seed, 0).is_err());
        }
    }

    #[test]
    fn what_cannot_be_drawn_by_is_refused() {
        for weights in [
            &[][..],
            &[0.0, 0.0],
            &[1.0, f64::NAN],
            &[f64::INFINITY],
            &[-1.0, 2.0],
        ] {
            let error = AliasTable::new(Weights::F64(weights))
                .unwrap_err()
                .to_string();
            assert!(error.starts_with("weights: expected"), "{error}");
        }
    }
}
