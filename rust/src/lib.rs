//! The core of `fastbuffer`: a circular buffer of robot-learning episodes on memory-mapped files.
//!
//! Frames go in by whole episodes and come out as windows around any live frame. Exactly one
//! process writes a directory; any number read it meanwhile, and no read ever returns a frame that
//! was only half written. The core knows no Python: the feature `python` adds the bindings.
//!
//! `unsafe` is confined to [`map`] (files as memory) and `bindings::arrays` (NumPy memory).

pub mod batch;
pub mod buffer;
pub mod cast;
pub mod commit;
pub mod directory;
pub mod episodes;
pub mod error;
pub mod exchange;
pub mod files;
pub mod fork;
pub mod format;
pub mod gather;
pub mod index;
pub mod lock;
pub mod map;
pub mod memory;
pub mod nstep;
pub mod offsets;
pub mod plan;
pub mod priority_file;
pub mod ring;
pub mod rows;
pub mod sampling;
pub mod search;
pub mod space;
pub mod spec;
pub mod state;
pub mod threads;
pub mod verify;
pub mod window;
pub mod writers;

#[cfg(feature = "python")]
mod bindings;

pub use buffer::Buffer;
pub use error::{Error, Result};

#[cfg(target_endian = "big")]
compile_error!("fastbuffer's files are little-endian and are mapped as they are");
