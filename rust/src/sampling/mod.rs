//! How training draws frames.

pub mod alias;
pub mod kept;
pub mod mixture;
pub mod order;
pub mod permutation;
pub mod priorities;
pub mod random;
pub mod sum_tree;
pub mod weights;
