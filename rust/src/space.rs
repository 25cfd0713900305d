//! Space on the disk: files get theirs before they are written through a map.
//!
//! Writing to a page of a mapped file for which the disk has no room kills the process; asking for
//! the room before turns that into an error.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::path::Path;

use crate::error::{AtPath, Result};

/// Gives a new file its length, and its space unless `preallocate` is off.
pub fn make_room(file: &File, len: u64, preallocate: bool) -> io::Result<()> {
    if !preallocate {
        return file.set_len(len);
    }
    match system_allocate(file, 0, len) {
        Err(error) if error.kind() == ErrorKind::Unsupported => fill_with_zeros(file, len),
        result => result,
    }
}

/// Gives a file of `len` bytes the space that its holes lack, where the system can do that.
pub fn fill_holes(path: &Path, len: usize) -> Result<()> {
    let file = OpenOptions::new().write(true).open(path).at(path)?;
    allocate(&file, 0..len).at(path)
}

/// Gives some bytes of a file their space, where the system can do that.
pub fn allocate(file: &File, bytes: Range<usize>) -> io::Result<()> {
    match system_allocate(file, bytes.start as u64, bytes.len() as u64) {
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(()),
        result => result,
    }
}

/// Whether a file has less space than its length asks for.
#[cfg(unix)]
pub fn has_holes(file: &File) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    const BLOCK: u64 = 512; // the unit of `blocks`, whatever the file system's is
    let metadata = file.metadata()?;
    Ok(metadata.blocks() * BLOCK < metadata.len())
}

/// Whether a file has less space than its length asks for.
#[cfg(not(unix))]
pub fn has_holes(_: &File) -> io::Result<bool> {
    Ok(false) // files are not sparse unless one asks for it there
}

#[cfg(target_os = "linux")]
fn system_allocate(file: &File, offset: u64, len: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    fallocate(file, FallocateFlags::empty(), offset, len).map_err(io::Error::from)
}

#[cfg(not(target_os = "linux"))]
fn system_allocate(_file: &File, _offset: u64, _len: u64) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

fn fill_with_zeros(mut file: &File, len: u64) -> io::Result<()> {
    io::copy(&mut io::repeat(0).take(len), &mut file).map(drop)
}
