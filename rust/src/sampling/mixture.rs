//! Drawing from a dataset and a buffer side by side, by the rule of [`crate::sampling::weights`] but
//! without a weight per frame, and by what is in the buffer at each draw.

use crate::buffer::Buffer;
use crate::episodes::Episodes;
use crate::error::{Error, Result};
use crate::ring::LiveBySlot;
use crate::sampling::kept::{Ranges, kept_positions};
use crate::sampling::random::Random;

/// How often a random live frame is looked at before all that may be drawn are counted: most often
/// nearly all may be, and then counting them is far more work.
const TRIES: usize = 64;

/// A dataset, and how it shares draws with a buffer.
#[derive(Clone, Debug)]
pub struct Mixture {
    /// The number of frames of the dataset.
    pub offline_len: usize,
    /// Those of them that are drawn.
    pub offline_kept: Ranges,
    /// The buffer's share of the draws.
    pub online_share: f64,
    /// How many frames at the end of each of the buffer's episodes are not drawn.
    pub online_drop_n_last: u64,
}

impl Mixture {
    /// The draws `start..start + out.len()` of an epoch: positions in the dataset, and behind them in
    /// the buffer.
    pub fn draw(
        &self,
        buffer: &Buffer,
        seed: u64,
        epoch: u64,
        start: u64,
        out: &mut [i64],
    ) -> Result<()> {
        buffer.with_episodes(|episodes, by_slot| {
            let total = self.offline_len + episodes.live().len();
            if total == 0 {
                return Err(Error::argument(
                    "offline and online",
                    "at least one frame",
                    "both sides empty",
                ));
            }
            let mut online = Online {
                episodes,
                by_slot,
                drop_n_last: self.online_drop_n_last,
                kept: None,
            };
            for (draw, position) in (start..).zip(out) {
                // Each has a generator of its own, since one does not know how many numbers it takes.
                let random = &mut Random::new(seed, epoch, draw);
                *position = match self.one(&mut online, random)? {
                    Some(position) => position,
                    None => random.below(total),
                } as i64;
            }
            Ok(())
        })?
    }

    /// A frame that may be drawn, of the side whose turn it is if that has any.
    fn one(&self, online: &mut Online<'_>, random: &mut Random) -> Result<Option<usize>> {
        let mut from_online = |random: &mut Random| -> Result<Option<usize>> {
            let position = online.draw(random)?;
            Ok(position.map(|position| self.offline_len + position))
        };
        if random.unit() <= self.online_share {
            let drawn = from_online(random)?;
            return Ok(drawn.or_else(|| one_of(&self.offline_kept, random)));
        }
        match one_of(&self.offline_kept, random) {
            None => from_online(random),
            drawn => Ok(drawn),
        }
    }
}

fn one_of(ranges: &Ranges, random: &mut Random) -> Option<usize> {
    if ranges.is_empty() {
        return None;
    }
    let position = ranges.nth(random.below(ranges.len() as usize) as u64);
    position.map(|position| position as usize)
}

/// The buffer's side at one moment.
struct Online<'a> {
    episodes: &'a Episodes,
    by_slot: &'a LiveBySlot,
    drop_n_last: u64,
    /// Counted only if a draw has to know.
    kept: Option<Ranges>,
}

impl Online<'_> {
    /// A frame that may be drawn, each as likely as another.
    fn draw(&mut self, random: &mut Random) -> Result<Option<usize>> {
        let len = self.episodes.live().len();
        if len == 0 {
            return Ok(None);
        }
        for _ in 0..TRIES {
            let position = random.below(len);
            let (seq, _) = self.by_slot.nth(position);
            let after = self.episodes.of(seq).frames.end.0 - 1 - seq.0;
            if after >= self.drop_n_last {
                return Ok(Some(position));
            }
        }
        let kept = match &self.kept {
            Some(kept) => kept,
            None => {
                let kept = kept_positions(self.episodes, self.by_slot, self.drop_n_last)?;
                self.kept.insert(kept)
            }
        };
        Ok(one_of(kept, random))
    }
}
