//! What a batch is made of: its frames, found and checked before any of them is copied.

use crate::episodes::{Episode, Episodes};
use crate::error::{Error, Result};
use crate::gather::Column;
use crate::memory::{out_of_memory, with_room};
use crate::ring::{Frames, Ring, Seq, Slot};
use crate::spec::Spec;
use crate::window::{Timeline, Windows, resolve};

/// A batch to be copied.
#[derive(Debug)]
pub struct Plan {
    /// The items, in order.
    pub items: Vec<Item>,
    /// Per window, what was searched for.
    pub answers: Vec<Answers>,
}

/// One item of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    /// Where its frame is.
    pub slot: Slot,
    /// Where its windows are.
    pub windows: ItemWindows,
}

/// How an item's windows are answered.
#[derive(Clone, Copy, Debug)]
pub enum ItemWindows {
    /// By each window's offsets.
    Offsets {
        /// Frames of the episode before the item.
        before: usize,
        /// Frames of the episode after the item.
        after: usize,
    },
    /// By the plan's answers: those of its n-th item that needed them.
    Answers(usize),
}

/// The answers of one window, one item after the other.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// The answering frames.
    pub slots: Vec<Slot>,
    /// Whether they are padding.
    pub pads: Vec<bool>,
}

/// The oldest frame that a read has touched.
#[derive(Default)]
pub struct Touched(Option<Seq>);

impl Touched {
    /// Notes a frame.
    pub fn frame(&mut self, seq: Seq) {
        self.0 = Some(self.0.map_or(seq, |oldest| oldest.min(seq)));
    }

    /// Whether no frame was noted that is older than `first_live`.
    pub fn all_live_from(&self, first_live: Seq) -> bool {
        self.0.is_none_or(|oldest| oldest >= first_live)
    }
}

/// One buffer at one moment, for making plans.
pub struct Planner<'a> {
    /// What the columns are.
    pub spec: &'a Spec,
    /// The columns.
    pub columns: &'a [Column],
    /// Their ring.
    pub ring: Ring,
    /// The live episodes.
    pub episodes: &'a Episodes,
}

impl Planner<'_> {
    /// The frames at `indices`, each a position among the live frames in slot order or, if negative,
    /// from their end.
    pub fn frames(&self, indices: &[i64]) -> impl ExactSizeIterator<Item = Result<(Seq, Slot)>> {
        let live = self.episodes.live();
        let by_slot = self.ring.by_slot(live);
        let frame = move |&index: &i64| Ok(by_slot.nth(position(index, live)?));
        indices.iter().map(frame)
    }

    /// The plan for some live frames.
    pub fn plan(
        &self,
        frames: impl ExactSizeIterator<Item = Result<(Seq, Slot)>>,
        windows: &Windows,
        touched: &mut Touched,
    ) -> Result<Plan> {
        let mut plan = Plan {
            items: with_room(frames.len(), "the items of a batch")?,
            answers: vec![Answers::default(); windows.iter().len()],
        };
        let proven = windows.are_proven();
        let mut searched = 0;
        for frame in frames {
            let (seq, slot) = frame?;
            touched.frame(seq);
            let mut item = Item {
                slot,
                windows: ItemWindows::Answers(searched),
            };
            if !windows.is_empty() {
                let episode = self.episodes.of(seq);
                touched.frame(episode.frames.first);
                let before = (seq.0 - episode.frames.first.0) as usize;
                if episode.uniform && proven {
                    let after = episode.frames.len() - 1 - before;
                    item.windows = ItemWindows::Offsets { before, after };
                } else {
                    self.search(&episode, before, windows, &mut plan.answers)?;
                    searched += 1;
                }
            }
            plan.items.push(item);
        }
        Ok(plan)
    }

    /// Answers all windows of the item at `position` in its episode.
    fn search(
        &self,
        episode: &Episode,
        position: usize,
        windows: &Windows,
        answers: &mut [Answers],
    ) -> Result<()> {
        let timeline = Timeline::new(
            &self.columns[self.spec.own().timestamp],
            self.ring,
            self.ring.slot(episode.frames.first),
            episode.frames.len(),
            episode.sorted,
        );
        for (window, Answers { slots, pads }) in windows.iter().zip(answers) {
            let key = || self.spec.columns()[window.column].key.clone();
            let more = window.deltas.len();
            let reserved = slots
                .try_reserve(more)
                .and_then(|()| pads.try_reserve(more));
            reserved.map_err(|_| out_of_memory("the windows of a batch"))?;
            resolve(
                &timeline,
                position,
                window,
                windows.tolerance(),
                || (key(), episode.number),
                |slot, is_pad| {
                    slots.push(slot);
                    pads.push(is_pad);
                },
            )?;
        }
        Ok(())
    }
}

/// The position that `index` means.
pub fn position(index: i64, live: Frames) -> Result<usize> {
    let len = live.len();
    let position = if index < 0 {
        index.checked_add_unsigned(len as u64)
    } else {
        Some(index)
    };
    position
        .and_then(|position| usize::try_from(position).ok())
        .filter(|&position| position < len)
        .ok_or(Error::OutOfRange { index, len })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_mean_what_they_do_in_a_list() {
        let live = Frames {
            first: Seq(5),
            end: Seq(8),
        };
        let list = [0, 1, 2];
        for index in -4i64..4 {
            let expected = usize::try_from(index).or(usize::try_from(index + 3)).ok();
            let expected = expected.and_then(|position| list.get(position).copied());
            assert_eq!(position(index, live).ok(), expected, "{index}");
        }
        for index in [i64::MIN, i64::MAX] {
            assert!(matches!(
                position(index, live),
                Err(Error::OutOfRange { .. })
            ));
        }
    }
}
