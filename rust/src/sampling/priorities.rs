//! Prioritised replay: frames are drawn in proportion to a power of their priorities (Schaul et al.
//! 2016, "Prioritized Experience Replay").
//!
//! The priorities themselves are in a file ([`crate::priority_file`]), which processes share. Each
//! has the powers of them in a tree of its own, and brings that up to date before each call: frames
//! that were evicted have lost theirs, new ones have got the largest ever given, and what another
//! process has changed is read anew.

use std::sync::Mutex;

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::fork::PerProcess;
use crate::memory::{collected, out_of_memory, with_room};
use crate::plan::position;
use crate::priority_file::{PriorityFile, is_priority};
use crate::ring::{Frames, Ring, Seq, Slot};
use crate::sampling::sum_tree::SumTree;
use crate::writers::unpoisoned;

/// What powers are kept below, so that there is a finite sum of as many as there can be.
const LARGEST_POWER: f64 = 1e200;

/// The priorities of a buffer's frames.
#[derive(Debug)]
pub struct Priorities {
    alpha: f64,
    /// None after a fork, and after an error half way.
    own: PerProcess<Mutex<Option<Known>>>,
}

impl Priorities {
    /// Those of `buffer`, which has to be open for writing; the exponent `alpha` is finite and not
    /// negative.
    pub fn open(buffer: &Buffer, alpha: f64) -> Result<Self> {
        buffer.check_writable()?;
        let priorities = Self {
            alpha,
            own: PerProcess::new(Mutex::default()),
        };
        priorities.with(buffer, |_| Ok(()))?; // what is wrong with the file is said now
        Ok(priorities)
    }

    /// Draws a position by each of some numbers from 0 to below 1, all of them in proportion to the
    /// powers. With an exponent `beta` and a place for them also gives the weights that make up for
    /// how often frames are drawn, at most 1.
    pub fn draw(
        &self,
        buffer: &Buffer,
        shares: &mut [f64],
        out: &mut [i64],
        weights: Option<(f64, &mut [f32])>,
    ) -> Result<()> {
        self.with(buffer, |known| {
            known.tree.take_in_changes()?;
            known.tree.draw(shares, out, weights)
        })
    }

    /// Gives the frames at some positions new priorities, all of them or, if one cannot be, none. Of
    /// a position that is there twice the last counts. A frame that was overwritten after it was drawn
    /// with its weight is left out, once.
    pub fn update(&self, buffer: &Buffer, indices: &[i64], priorities: &[f64]) -> Result<()> {
        check_priorities(priorities)?;
        self.with(buffer, |known| {
            known.tree.update(&mut known.file, indices, priorities)
        })
    }

    /// The priorities of the frames at some positions, or of all in slot order.
    pub fn get(&self, buffer: &Buffer, indices: Option<&[i64]>) -> Result<Vec<f64>> {
        self.with(buffer, |known| {
            let live = known.tree.live;
            let by_slot = buffer.ring().by_slot(live);
            let get = |position| known.file.get(by_slot.nth(position).1);
            let priorities: Result<Vec<Result<f64>>> = match indices {
                None => collected((0..live.len()).map(get), "priorities"),
                Some(indices) => {
                    let positions = indices.iter().map(|&index| get(position(index, live)?));
                    collected(positions, "priorities")
                }
            };
            priorities?.into_iter().collect()
        })
    }

    /// The sum of the live frames' powers, and the least of them above 0, which is infinite if there is
    /// none. Several buffers are drawn from in proportion to their sums.
    pub fn mass(&self, buffer: &Buffer) -> Result<(f64, f64)> {
        self.with(buffer, |known| {
            known.tree.take_in_changes()?;
            Ok((known.tree.sums.total(), known.tree.sums.least()))
        })
    }

    /// Makes the priority of new frames at least this one, as if a frame had been given it.
    pub fn raise_largest(&self, buffer: &Buffer, priority: f64) -> Result<()> {
        check_priorities(&[priority])?;
        self.with(buffer, |known| {
            known.file.raise_largest(priority);
            Ok(())
        })
    }

    fn with<T>(&self, buffer: &Buffer, work: impl FnOnce(&mut Known) -> Result<T>) -> Result<T> {
        let mut own = unpoisoned(self.own.get(|_| Mutex::default()));
        // Put back once it is as the buffer is.
        let mut known = match own.take() {
            Some(known) => known,
            None => Known::open(buffer, self.alpha)?,
        };
        known.catch_up(buffer)?;
        let result = work(&mut known);
        *own = Some(known);
        result
    }
}

fn check_priorities(priorities: &[f64]) -> Result<()> {
    match priorities.iter().position(|&number| !is_priority(number)) {
        None => Ok(()),
        Some(at) => Err(Error::argument(
            "priorities",
            "finite numbers, none negative",
            format!("{} at position {at}", priorities[at]),
        )),
    }
}

/// What this process knows of the priorities.
#[derive(Debug)]
struct Known {
    file: PriorityFile,
    tree: Tree,
}

impl Known {
    fn open(buffer: &Buffer, alpha: f64) -> Result<Self> {
        let ring = buffer.ring();
        let capacity = ring.capacity();
        let file = PriorityFile::open(buffer.path(), capacity)?;
        let tree = Tree {
            ring,
            powers: Powers::of(alpha),
            sums: SumTree::new(capacity)?,
            drawn: Slots::none_of(capacity)?,
            overwritten: Slots::none_of(capacity)?,
            live: Frames::none_at(Seq(0)),
            updates: file.updates(),
            changes: Vec::new(),
        };
        Ok(Self { file, tree })
    }

    /// Brings the file in step with the buffer, and the tree with both.
    fn catch_up(&mut self, buffer: &Buffer) -> Result<()> {
        if self.tree.updates == self.file.updates() && self.tree.live == buffer.live()? {
            return Ok(());
        }
        let live = self.file.add_missing(self.tree.ring, || buffer.live())?;
        self.tree.follow(&self.file, live)
    }
}

/// The powers of the live frames' priorities, by slot.
#[derive(Debug)]
struct Tree {
    ring: Ring,
    powers: Powers,
    /// 0 in slots without a live frame.
    sums: SumTree,
    /// Slots whose frames were drawn, and whose update has not come yet.
    drawn: Slots,
    /// Slots whose frames were overwritten after that: the update is not for the new ones.
    overwritten: Slots,
    /// The frames that are in it.
    live: Frames,
    /// How often the file was changed when it was read.
    updates: u64,
    /// What was changed here since the last draw: most often there are several changes of one node
    /// until then.
    changes: Vec<(Slot, f64)>,
}

impl Tree {
    /// Takes in what is live now, and what other processes have changed.
    fn follow(&mut self, file: &PriorityFile, live: Frames) -> Result<()> {
        self.take_in_changes()?; // before slots lose their frames
        // Read before the priorities, so that what is changed meanwhile is seen the next time.
        let updates = file.updates();
        if self.updates != updates {
            self.sums.set_range(0..self.ring.capacity(), |_| 0.0)?;
            self.load(file, live)?;
            self.updates = updates;
        }
        let gone = Frames {
            first: self.live.first,
            end: self.live.end.min(live.first).max(self.live.first),
        };
        for run in self.slots(gone) {
            self.sums.set_range(run, |_| 0.0)?;
        }
        let fresh = Frames {
            first: live.first.max(self.live.end),
            end: live.end,
        };
        self.load(file, fresh)?;
        for slot in self.slots(fresh).into_iter().flatten() {
            if self.drawn.remove(slot) {
                self.overwritten.insert(slot);
            }
        }
        self.live = live;
        Ok(())
    }

    fn slots(&self, frames: Frames) -> [std::ops::Range<usize>; 2] {
        self.ring.runs(frames.first, frames.len())
    }

    /// Takes in the priorities of some frames, as the file has them.
    fn load(&mut self, file: &PriorityFile, frames: Frames) -> Result<()> {
        for run in self.slots(frames) {
            let mut found = Ok(());
            self.sums.set_range(run, |slot| {
                let priority = file.get(Slot(slot)).unwrap_or_else(|error| {
                    found = Err(error);
                    0.0
                });
                self.powers.power(priority)
            })?;
            found?;
        }
        Ok(())
    }

    fn draw(
        &mut self,
        shares: &mut [f64],
        out: &mut [i64],
        weights: Option<(f64, &mut [f32])>,
    ) -> Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        let total = self.sums.total();
        if total == 0.0 {
            let (argument, expected, got) = match self.live.is_empty() {
                true => ("buffer", "at least one live frame to draw", "none"),
                false => (
                    "priorities",
                    "one above 0 among those of live frames",
                    "only zeros",
                ),
            };
            return Err(Error::argument(argument, expected, got));
        }
        for share in shares.iter_mut() {
            *share *= total;
        }
        let mut slots = filled(out.len(), 0)?;
        self.sums.find(shares, &mut slots);
        let is_awaited = weights.is_some();
        if let Some((beta, weights)) = weights {
            let least = self.sums.least();
            for (weight, &slot) in weights.iter_mut().zip(&slots) {
                *weight = power(self.sums.leaf(slot) / least, -beta) as f32;
            }
        }
        let by_slot = self.ring.by_slot(self.live);
        for (drawn, slot) in out.iter_mut().zip(slots) {
            if is_awaited {
                self.drawn.insert(slot);
                self.overwritten.remove(slot);
            }
            *drawn = by_slot.position(by_slot.in_slot(Slot(slot))) as i64;
        }
        Ok(())
    }

    fn update(
        &mut self,
        file: &mut PriorityFile,
        indices: &[i64],
        priorities: &[f64],
    ) -> Result<()> {
        let by_slot = self.ring.by_slot(self.live);
        let mut slots = with_room(indices.len(), "indices")?;
        for &index in indices {
            slots.push(by_slot.nth(position(index, self.live)?).1);
        }
        // Taken in without a draw, too, before there are so many that they need more than the tree.
        if self.changes.len() >= self.ring.capacity() {
            self.take_in_changes()?;
        }
        let more = self.changes.try_reserve(slots.len());
        more.map_err(|_| out_of_memory("changed priorities"))?;
        let before = self.changes.len();
        let changes = slots.iter().copied().zip(priorities.iter().copied());
        let is_there = |(slot, _): &(Slot, f64)| !self.overwritten.contains(slot.0);
        self.changes.extend(changes.filter(is_there));
        for slot in slots {
            self.drawn.remove(slot.0);
            self.overwritten.remove(slot.0);
        }
        let changes = &self.changes[before..];
        if !changes.is_empty() && file.update(changes.iter().copied()) == self.updates {
            self.updates = self.updates.wrapping_add(1);
        }
        Ok(())
    }

    /// Takes in what was changed since the last draw.
    fn take_in_changes(&mut self) -> Result<()> {
        let changes = self.changes.iter();
        let powers = changes.map(|&(slot, priority)| (slot.0, self.powers.power(priority)));
        let powers = collected(powers, "changed priorities")?;
        self.sums.set(powers.into_iter())?;
        self.changes.clear();
        Ok(())
    }
}

/// Powers of priorities.
#[derive(Debug)]
struct Powers {
    alpha: f64,
    /// The last priority and its power: new frames all have the same.
    last: (f64, f64),
}

impl Powers {
    fn of(alpha: f64) -> Self {
        let last = (1.0, 1.0);
        Self { alpha, last }
    }

    fn power(&mut self, priority: f64) -> f64 {
        if self.last.0 != priority {
            // 0 says that a frame is not to be drawn, and nothing else does.
            let power = match priority > 0.0 {
                true => power(priority, self.alpha).clamp(f64::MIN_POSITIVE, LARGEST_POWER),
                false => 0.0,
            };
            self.last = (priority, power);
        }
        self.last.1
    }
}

/// The power of a number that is not negative, to 12 digits and in less time than `libm::pow` takes.
fn power(base: f64, exponent: f64) -> f64 {
    match exponent {
        0.0 => 1.0,
        1.0 => base,
        _ => libm::exp2(exponent * libm::log2(base)),
    }
}

/// Some slots of a buffer.
#[derive(Debug)]
struct Slots(Vec<u64>);

impl Slots {
    fn none_of(capacity: usize) -> Result<Self> {
        Ok(Self(filled(capacity.div_ceil(64), 0)?))
    }

    fn contains(&self, slot: usize) -> bool {
        self.0[slot / 64] & (1 << (slot % 64)) != 0
    }

    fn insert(&mut self, slot: usize) {
        self.0[slot / 64] |= 1 << (slot % 64);
    }

    /// Whether it was among them.
    fn remove(&mut self, slot: usize) -> bool {
        let was = self.contains(slot);
        self.0[slot / 64] &= !(1 << (slot % 64));
        was
    }
}

fn filled<T: Clone>(len: usize, value: T) -> Result<Vec<T>> {
    let mut all = with_room(len, "priorities")?;
    all.resize(len, value);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn powers_have_12_digits(base in prop_oneof![1e-6..1e6f64, 1e-300..1e300], exponent in -1.0..2.0f64) {
            let expected = libm::pow(base, exponent);
            prop_assume!(expected.is_normal());
            prop_assert!((power(base, exponent) / expected - 1.0).abs() < 1e-12);
        }

        #[test]
        fn only_a_priority_of_0_is_never_drawn(priority in 0.0..f64::MAX, alpha in prop_oneof![Just(0.0), 1e-3..1e3f64]) {
            let mut powers = Powers::of(alpha);
            for priority in [priority, 0.0, f64::from_bits(1), f64::MAX, 1.0] {
                let power = powers.power(priority);
                prop_assert_eq!(power > 0.0, priority > 0.0);
                prop_assert!(power <= LARGEST_POWER);
            }
        }
    }

    #[test]
    fn without_an_exponent_all_are_alike_and_1_changes_nothing() {
        assert_eq!((power(0.0, 0.0), power(7.0, 0.0)), (1.0, 1.0));
        assert_eq!((power(0.0, 1.0), power(0.7, 1.0)), (0.0, 0.7));
        assert_eq!(power(0.0, 0.6), 0.0);
    }
}
