//! How training draws frames.

pub mod weights;
