//! How training draws frames.

pub mod alias;
pub mod random;
pub mod weights;
