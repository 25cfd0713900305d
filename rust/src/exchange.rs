//! Putting something that was made beside a directory into its place.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{AtPath, Result};

/// Exchanges what two names of one file system stand for. On Linux that is one step, so that each
/// name always stands for one of the two, also if the process is killed.
pub fn exchange(a: &Path, b: &Path) -> Result<()> {
    if !exchange_at_once(a, b)? {
        // Beside `b`, where nobody removes it if that is as far as it comes.
        let mut between = b.as_os_str().to_owned();
        between.push(".exchanged");
        let between = PathBuf::from(between);
        fs::rename(b, &between).at(b)?;
        fs::rename(a, b)
            .inspect_err(|_| drop(fs::rename(&between, b)))
            .at(a)?;
        fs::rename(&between, a).at(&between)?;
    }
    Ok(())
}

/// False, with nothing done, where the system or the file system cannot do that.
#[cfg(target_os = "linux")]
fn exchange_at_once(a: &Path, b: &Path) -> Result<bool> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;
    match renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::NOSYS) => Ok(false),
        Err(error) => Err(std::io::Error::from(error)).at(b),
    }
}

#[cfg(not(target_os = "linux"))]
fn exchange_at_once(_: &Path, _: &Path) -> Result<bool> {
    Ok(false)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn two_directories_change_places() {
        let directory = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| directory.path().join(name));
        for path in [&a, &b] {
            fs::create_dir(path).unwrap();
            fs::write(
                path.join("was"),
                path.file_name().unwrap().as_encoded_bytes(),
            )
            .unwrap();
        }
        exchange(&a, &b).unwrap();
        assert_eq!(fs::read(a.join("was")).unwrap(), b"b");
        assert_eq!(fs::read(b.join("was")).unwrap(), b"a");
        assert!(exchange(&a, &directory.path().join("nothing")).is_err());
        assert_eq!(fs::read(a.join("was")).unwrap(), b"b");
    }
}
