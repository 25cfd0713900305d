//! Sampling weights for a dataset and a buffer side by side, in one pass over the frames.

use crate::error::Result;
use crate::memory::with_room;
use crate::sampling::kept::Ranges;

/// One side: how many frames it has, and which of them may be drawn.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// The number of frames.
    pub len: usize,
    /// Those that may be drawn.
    pub kept: Ranges,
}

/// One weight per frame of `[offline; online]`. The drawn frames of a side weigh the same; the
/// online side's weights add up to `online_share`, the offline side's to the rest. A side with
/// nothing to draw gives its share to the other; if neither has anything, all frames weigh the same.
pub fn weights(offline: &Side, online: &Side, online_share: f64) -> Result<Vec<f32>> {
    let total = offline.len.saturating_add(online.len);
    let mut weights = with_room(total, "weights")?;
    let online_share = match (offline.kept.len(), online.kept.len()) {
        (0, 0) => {
            weights.resize(total, (1.0 / total as f64) as f32);
            return Ok(weights);
        }
        (0, _) => 1.0,
        (_, 0) => 0.0,
        _ => online_share,
    };
    weights.resize(total, 0.0);
    let (offline_weights, online_weights) = weights.split_at_mut(offline.len);
    fill(offline_weights, offline, 1.0 - online_share);
    fill(online_weights, online, online_share);
    Ok(weights)
}

fn fill(weights: &mut [f32], side: &Side, share: f64) {
    let weight = (share / side.kept.len() as f64) as f32;
    for range in side.kept.iter() {
        weights[range.start as usize..range.end as usize].fill(weight);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn side() -> impl Strategy<Value = Side> {
        proptest::collection::vec((0usize..4, 0usize..4), 0..5).prop_map(|parts| {
            let mut len = 0;
            let ranges = parts.into_iter().map(|(skipped, kept)| {
                let start = len + skipped;
                len = start + kept;
                start as u64..len as u64
            });
            let kept = Ranges::new(ranges).unwrap();
            Side { len, kept }
        })
    }

    proptest! {
        #[test]
        fn shares_are_kept_and_sum_to_one(offline in side(), online in side(), share in 0.0..=1.0f64) {
            prop_assume!(offline.len + online.len > 0);
            let weights = weights(&offline, &online, share).unwrap();
            let sum = |weights: &[f32]| weights.iter().map(|&w| f64::from(w)).sum::<f64>();
            prop_assert!((sum(&weights) - 1.0).abs() < 1e-6);
            if !offline.kept.is_empty() && !online.kept.is_empty() {
                prop_assert!((sum(&weights[offline.len..]) - share).abs() < 1e-6);
            }
        }
    }
}
