//! Files as wholes: made so that they vanish unless they are kept, replaced, and brought to the disk.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::error::{AtPath, Error, Result};
use crate::map::trace;

/// What the name of a file that will replace another one ends in.
const TEMPORARY_POSTFIX: &str = ".new";

/// As `Path::try_exists`, but a dangling link exists.
pub fn exists(path: &Path) -> Result<bool> {
    match path.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(source) => Err(Error::Io {
            path: path.to_owned(),
            source,
        }),
    }
}

/// New files, removed again unless they are kept.
#[derive(Default)]
pub struct Made(Vec<PathBuf>);

impl Made {
    /// A new, empty file.
    pub fn file(&mut self, path: &Path) -> Result<File> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(path)
            .at(path)?;
        self.0.push(path.to_owned());
        Ok(file)
    }

    /// A new file of that content.
    pub fn write(&mut self, path: &Path, content: &[u8]) -> Result<()> {
        self.file(path)?.write_all(content).at(path)
    }

    /// They stay.
    pub fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

/// Puts a file of that content at `path`, whatever is there, or leaves what is there as it is.
pub fn replace(path: &Path, content: &[u8]) -> Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(TEMPORARY_POSTFIX);
    let temporary = PathBuf::from(name);
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).at(&temporary),
        _ => {} // left by one that was killed
    }
    let mut made = Made::default();
    made.write(&temporary, content)?;
    sync_file(&temporary)?;
    fs::rename(&temporary, path).at(path)?;
    made.keep();
    Ok(())
}

/// As [`replace`], but into the file that is there, if it has that length: who has it mapped sees it.
pub fn overwrite(path: &Path, content: &[u8]) -> Result<()> {
    let is_same = |found: fs::Metadata| found.is_file() && found.len() == content.len() as u64;
    if !path.symlink_metadata().is_ok_and(is_same) {
        return replace(path, content);
    }
    let mut file = OpenOptions::new().write(true).open(path).at(path)?;
    file.write_all(content).at(path)?;
    sync_file(path)
}

/// Returns once a file is on the disk.
pub fn sync_file(path: &Path) -> Result<()> {
    File::open(path).and_then(|file| file.sync_all()).at(path)?;
    trace::synced(path, 0, usize::MAX);
    Ok(())
}

/// Returns once the names in a directory are on the disk.
#[cfg(unix)]
pub fn sync_directory(path: &Path) -> Result<()> {
    sync_file(path)
}

/// Directories cannot be opened as files there, and names are written with their files.
#[cfg(not(unix))]
pub fn sync_directory(_: &Path) -> Result<()> {
    Ok(())
}

/// Returns once a directory's own name is on the disk.
pub fn sync_parent(path: &Path) -> Result<()> {
    path.parent().map_or(Ok(()), sync_directory)
}
