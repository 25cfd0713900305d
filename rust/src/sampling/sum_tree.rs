//! Sums over groups of leaves, and over groups of those: drawing by weights that change.
//!
//! A node is always computed from its children, never adjusted by a difference, so sums do not
//! drift however often leaves change. Nodes have as many children as a cache line has numbers. Many
//! leaves are found or changed level by level: what is done for one does not wait for another then.

use std::hint::black_box;
use std::ops::Range;

use crate::error::Result;
use crate::memory::{collected, with_room};

/// How many children a node has.
const FANOUT: usize = 8;
/// What memory is asked for.
const NODES: &str = "the nodes of a sum tree";

/// The numbers below a node. The last nodes of a level have some that stand for nothing.
type Children = [f64; FANOUT];

/// Numbers that are not negative, with their sum.
#[derive(Clone, Debug)]
pub struct SumTree {
    leaves: Vec<Children>,
    /// From the parents of the leaves to the children of the root.
    levels: Vec<Level>,
    /// The root.
    total: f64,
    least: f64,
}

/// Nodes of one height.
#[derive(Clone, Debug)]
struct Level {
    sums: Vec<Children>,
    /// For each sum, that of it and those before it with the same parent.
    upto: Vec<Children>,
    /// The least number above 0 below each, infinity if there is none.
    least: Vec<Children>,
}

impl Level {
    fn of(nodes: usize) -> Result<Self> {
        Ok(Self {
            sums: filled(nodes, 0.0)?,
            upto: filled(nodes, 0.0)?,
            least: filled(nodes, f64::INFINITY)?,
        })
    }
}

impl SumTree {
    /// A tree of `len` leaves, all 0.
    pub fn new(len: usize) -> Result<Self> {
        let leaves = filled(len, 0.0)?;
        let mut levels = Vec::new();
        let mut nodes = leaves.len();
        while nodes > 1 {
            let level = Level::of(nodes)?;
            nodes = level.sums.len();
            levels.push(level);
        }
        Ok(Self {
            leaves,
            levels,
            total: 0.0,
            least: f64::INFINITY,
        })
    }

    /// The sum of all leaves.
    pub fn total(&self) -> f64 {
        self.total
    }

    /// The least leaf above 0, infinity if there is none.
    pub fn least(&self) -> f64 {
        self.least
    }

    /// A leaf.
    pub fn leaf(&self, position: usize) -> f64 {
        self.leaves[position / FANOUT][position % FANOUT]
    }

    /// Changes some leaves, of one that is there twice to the last; none if memory is short. None is
    /// negative or NaN, and the sum of all stays finite.
    pub fn set(&mut self, leaves: impl Iterator<Item = (usize, f64)> + Clone) -> Result<()> {
        let mut parents = collected(leaves.clone().map(|(leaf, _)| leaf / FANOUT), NODES)?;
        for (leaf, value) in leaves {
            self.leaves[leaf / FANOUT][leaf % FANOUT] = value;
        }
        parents.sort_unstable();
        self.refresh(parents);
        Ok(())
    }

    /// Changes consecutive leaves, each to what `value` says; none if memory is short.
    pub fn set_range(
        &mut self,
        leaves: Range<usize>,
        mut value: impl FnMut(usize) -> f64,
    ) -> Result<()> {
        let parents = leaves.start / FANOUT..leaves.end.div_ceil(FANOUT);
        let parents = collected(parents, NODES)?;
        for leaf in leaves {
            self.leaves[leaf / FANOUT][leaf % FANOUT] = value(leaf);
        }
        self.refresh(parents);
        Ok(())
    }

    /// For each of `masses`, which lie from 0 to below the total, the leaf at which the sum of all
    /// leaves up to it exceeds it. A leaf of 0 is never found, unless all are.
    pub fn find(&self, masses: &mut [f64], found: &mut [usize]) {
        found.fill(0);
        for level in self.levels.iter().rev() {
            fetch(&level.upto, found);
            for (node, mass) in found.iter_mut().zip(&mut *masses) {
                let child = descend(&level.sums[*node], &level.upto[*node], mass);
                *node = *node * FANOUT + child;
            }
        }
        fetch(&self.leaves, found);
        for (node, mass) in found.iter_mut().zip(masses) {
            let leaves = &self.leaves[*node];
            let child = descend(leaves, &upto(leaves), mass);
            *node = *node * FANOUT + child;
        }
    }

    /// Computes all nodes above some others anew, `nodes` being the sorted parents of leaves.
    fn refresh(&mut self, mut nodes: Vec<usize>) {
        let Self { leaves, levels, .. } = self;
        let mut below: Option<&mut Level> = None;
        for level in levels {
            nodes.dedup();
            for node in &mut nodes {
                let (sum, least) = summary(leaves, &mut below, *node);
                level.sums[*node / FANOUT][*node % FANOUT] = sum;
                level.least[*node / FANOUT][*node % FANOUT] = least;
                *node /= FANOUT;
            }
            below = Some(level);
        }
        (self.total, self.least) = summary(leaves, &mut below, 0);
    }
}

/// The sum of what is below a node, whose children are leaves or nodes of the level `below`, and the
/// least number above 0 there.
fn summary(leaves: &[Children], below: &mut Option<&mut Level>, node: usize) -> (f64, f64) {
    match below {
        Some(level) => {
            level.upto[node] = upto(&level.sums[node]);
            (level.upto[node][FANOUT - 1], least(&level.least[node]))
        }
        None => {
            let leaves = &leaves[node];
            let positive = leaves.map(|leaf| if leaf > 0.0 { leaf } else { f64::INFINITY });
            (upto(leaves)[FANOUT - 1], least(&positive))
        }
    }
}

/// For each number, the sum of it and those before it.
fn upto(children: &Children) -> Children {
    let mut sum = 0.0;
    children.map(|child| {
        sum += child;
        sum
    })
}

fn least(children: &Children) -> f64 {
    fold(children, |a, b| if a < b { a } else { b })
}

fn most(children: &Children) -> f64 {
    fold(children, |a, b| if a > b { a } else { b })
}

/// By halves, so that most steps need not wait for others.
fn fold(children: &Children, of: impl Fn(f64, f64) -> f64) -> f64 {
    let mut rest = *children;
    let mut len = FANOUT;
    while len > 1 {
        len /= 2;
        for child in 0..len {
            rest[child] = of(rest[child], rest[child + len]);
        }
    }
    rest[0]
}

/// The child in which `mass` lies; what lies before it is taken off.
fn descend(children: &Children, upto: &Children, mass: &mut f64) -> usize {
    // Counted instead of searched, since no processor can guess where a random number lies.
    let child: usize = upto.iter().map(|end| usize::from(*end <= *mass)).sum();
    if child == FANOUT {
        // Rounding has left more than there is: it lies in the last leaf that is not 0.
        *mass = f64::INFINITY;
        return children.iter().rposition(|value| *value > 0.0).unwrap_or(0);
    }
    let before = upto.map(|end| if end <= *mass { end } else { 0.0 });
    *mass -= most(&before);
    child
}

/// Brings some nodes into the cache. They are waited for together here, and one after the other where
/// more is done with each.
fn fetch(nodes: &[Children], which: &[usize]) {
    let touched: f64 = which
        .iter()
        .map(|&node| nodes[node][0] + nodes[node][FANOUT - 1])
        .sum();
    black_box(touched);
}

/// Room for `len` numbers, all of that value.
fn filled(len: usize, value: f64) -> Result<Vec<Children>> {
    let len = len.div_ceil(FANOUT);
    let mut all = with_room(len, NODES)?;
    all.resize(len, [value; FANOUT]);
    Ok(all)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::sampling::random::Random;
    use proptest::prelude::*;

    fn of(leaves: &[f64]) -> SumTree {
        let mut tree = SumTree::new(leaves.len()).unwrap();
        tree.set_range(0..leaves.len(), |leaf| leaves[leaf])
            .unwrap();
        tree
    }

    fn find(tree: &SumTree, mass: f64) -> usize {
        let mut found = [0];
        tree.find(&mut [mass], &mut found);
        found[0]
    }

    fn leaf() -> impl Strategy<Value = f64> {
        prop_oneof![
            3 => (0u32..100).prop_map(f64::from),
            2 => Just(0.0),
        ]
    }

    /// Numbers of which all sums are exact, and changes of ranges of them.
    fn leaves_and_changes() -> impl Strategy<Value = (Vec<f64>, Vec<(Range<usize>, f64)>)> {
        proptest::collection::vec(leaf(), 1..700).prop_flat_map(|leaves| {
            let len = leaves.len();
            let range = (0..len, 0..=len).prop_map(|(a, b)| a.min(b)..a.max(b));
            let changes = proptest::collection::vec((range, leaf()), 0..10);
            (Just(leaves), changes)
        })
    }

    proptest! {
        #[test]
        fn a_tree_agrees_with_a_list((mut leaves, changes) in leaves_and_changes()) {
            let mut tree = of(&leaves);
            for (range, value) in changes {
                leaves[range.clone()].fill(value);
                tree.set_range(range.clone(), |_| value).unwrap();
                if let Some(leaf) = leaves.get_mut(range.start) {
                    *leaf += 1.0;
                    tree.set([(range.start, 7.0), (range.start, *leaf)].into_iter()).unwrap();
                }
                let total: f64 = leaves.iter().sum();
                prop_assert_eq!(tree.total(), total);
                let positive = leaves.iter().copied().filter(|leaf| *leaf > 0.0);
                prop_assert_eq!(tree.least(), positive.fold(f64::INFINITY, f64::min));
                let mut before = 0.0;
                for (position, leaf) in leaves.iter().copied().enumerate() {
                    prop_assert_eq!(tree.leaf(position), leaf);
                    if leaf > 0.0 {
                        prop_assert_eq!(find(&tree, before), position);
                        prop_assert_eq!(find(&tree, before + leaf - 0.5), position);
                        before += leaf;
                    }
                }
            }
        }

        #[test]
        fn a_leaf_of_0_is_never_found(
            leaves in proptest::collection::vec(prop_oneof![Just(0.0), 1e-300..1e200f64], 1..400),
            share in 0.0..1.0f64,
        ) {
            prop_assume!(leaves.iter().any(|leaf| *leaf > 0.0));
            let tree = of(&leaves);
            for mass in [share * tree.total(), tree.total(), 0.0] {
                prop_assert!(leaves[find(&tree, mass)] > 0.0);
            }
        }
    }

    #[test]
    fn a_million_changes_leave_no_error_in_the_sum() {
        const LEN: usize = 1 << 16;
        let mut tree = of(&[1.0; LEN]);
        let mut random = Random::new(0, 0, 0);
        for _ in 0..1_000_000 {
            let change = (random.below(LEN), random.unit() * 1e6);
            tree.set([change].into_iter()).unwrap();
        }
        let leaves: Vec<f64> = (0..LEN).map(|leaf| tree.leaf(leaf)).collect();
        let anew = of(&leaves);
        assert_eq!((tree.total(), tree.least()), (anew.total(), anew.least()));
        let total: f64 = leaves.iter().sum();
        assert!((tree.total() / total - 1.0).abs() < 1e-12);
    }

    #[test]
    fn all_that_lies_in_the_last_leaf_finds_it() {
        for len in [1, 15, 16, 17, 256, 257, 1 << 16] {
            let mut tree = SumTree::new(len).unwrap();
            assert_eq!((tree.total(), tree.least()), (0.0, f64::INFINITY));
            tree.set([(len - 1, 1e-3)].into_iter()).unwrap();
            for mass in [0.0, 1e-4, 1e-3] {
                assert_eq!(find(&tree, mass), len - 1);
            }
        }
    }
}
