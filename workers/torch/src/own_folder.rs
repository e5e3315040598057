//! A folder that is one process's own among those of its neighbours on a server, for what its program writes. It goes with the process, or with
//! the next one that looks. What looks runs without rules for files, so programs write within it, and not it.

use events_schema::Digest;
use events_schema::control::TorchHost;
use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// All of them of a server.
const ALL: &str = "scratch";
const LOCK: &str = "lock";
const HOME: &str = "home";
/// Names that are tried: a process of another container may have the same number, and share the folder.
const NAMES_MAX: u32 = 1_000;
/// Longest path to a folder for temporary files that is told as it is. A socket's path has 107 bytes at most, and Python's `multiprocessing`, by which
/// PyTorch's loaders hand over rows, makes some 45 of them below this folder.
const TEMPORARY_BYTES_MAX: usize = 60;

/// A folder, held.
#[derive(Debug)]
pub struct OwnFolder {
    folder: PathBuf,
    /// What its program is told of its folder for temporary files.
    temporary: PathBuf,
    /// Held for as long as this process lives: what nobody holds is left over.
    _lock: File,
}

impl OwnFolder {
    /// Makes one of this name, and removes what killed processes left.
    pub fn make(all: &Path, name: &str) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(all)?;
        // Where only one makes a folder at a time, one that nobody holds is left over, whatever is in it.
        let making = File::create(all.join(LOCK))?;
        making.lock()?;
        sweep(all)?;
        let folder = all.join(name);
        DirBuilder::new().mode(0o700).create(&folder)?;
        let lock = File::create(folder.join(LOCK))?;
        lock.lock()?;
        let temporary = folder.join(HOME).join("tmp");
        fs::create_dir_all(&temporary)?;
        let temporary =
            if temporary.as_os_str().len() > TEMPORARY_BYTES_MAX { shortened(&folder, temporary) } else { temporary };
        Ok(Self { folder, temporary, _lock: lock })
    }

    /// One on this server, of any name.
    pub fn of(host: &TorchHost) -> io::Result<Self> {
        Self::any(&std::path::absolute(&host.folder)?.join(ALL))
    }

    /// The same in any place.
    pub fn any(all: &Path) -> io::Result<Self> {
        static NUMBERS: AtomicU32 = AtomicU32::new(0);
        for _ in 0..NAMES_MAX {
            let name = format!("{}-{}", std::process::id(), NUMBERS.fetch_add(1, Ordering::Relaxed));
            match Self::make(all, &name) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                done => return done,
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Where it is. Nothing but its own folders is for a program.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// The home of its program, which may write there.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.folder.join(HOME)
    }

    /// Where its program is told to put temporary files: in its home, by a path that is short enough for sockets.
    #[must_use]
    pub fn temporary(&self) -> &Path {
        &self.temporary
    }
}

/// A short name for a folder's temporary files. Another user may have taken it: then they have their long one.
fn shortened(folder: &Path, temporary: PathBuf) -> PathBuf {
    let link = link_to(folder);
    // Of a folder of this name that was.
    drop(fs::remove_file(&link));
    match symlink(&temporary, &link) {
        Ok(()) => link,
        Err(error) => {
            tracing::warn!(link = %link.display(), %error, "programs are told a long path for temporary files, in which sockets find no place");
            temporary
        }
    }
}

/// One for each folder, so that whoever removes the folder knows it; in a place whose name is always short.
fn link_to(folder: &Path) -> PathBuf {
    let digest = Digest::of(folder.as_os_str().as_bytes()).to_string();
    Path::new("/tmp").join(format!("ebb-{}", &digest[..16]))
}

/// Removes a folder, also where a program left folders in it that nobody may write.
fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open_folders(folder)?;
            fs::remove_dir_all(folder)
        }
        done => done,
    }
}

fn open_folders(folder: &Path) -> io::Result<()> {
    let mut left = vec![folder.to_owned()];
    while let Some(folder) = left.pop() {
        fs::set_permissions(&folder, Permissions::from_mode(0o700))?;
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                left.push(entry.path());
            }
        }
    }
    Ok(())
}

impl Drop for OwnFolder {
    fn drop(&mut self) {
        if !self.temporary.starts_with(&self.folder) {
            drop(fs::remove_file(&self.temporary));
        }
        if let Err(error) = remove(&self.folder) {
            tracing::warn!(folder = %self.folder.display(), %error, "cannot remove the folder of a program; the next one on this server will");
        }
    }
}

fn sweep(all: &Path) -> io::Result<()> {
    for entry in fs::read_dir(all)? {
        let folder = entry?.path();
        let held = match File::open(folder.join(LOCK)) {
            Ok(lock) => match lock.try_lock() {
                // Kept until the folder is removed.
                Ok(()) => Some(lock),
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(error)) => {
                    passed_over(&folder, &error);
                    continue;
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // The lock of all of them.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => continue,
            Err(error) => {
                passed_over(&folder, &error);
                continue;
            }
        };
        drop(fs::remove_file(link_to(&folder)));
        match remove(&folder) {
            // Whoever ends may be removing it too.
            Err(error) if error.kind() != io::ErrorKind::NotFound => passed_over(&folder, &error),
            _ => {}
        }
        drop(held);
    }
    Ok(())
}

/// It costs room only, and no job its start.
fn passed_over(folder: &Path, error: &io::Error) {
    tracing::warn!(folder = %folder.display(), %error, "the folder that a program left cannot be removed");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_a_killed_process_left_is_removed_by_the_next_one() {
        let all = tempfile::tempdir().unwrap();
        let lives = OwnFolder::make(all.path(), "1").unwrap();
        fs::create_dir(all.path().join("0")).unwrap();
        File::create(all.path().join("0").join(LOCK)).unwrap();
        // As one leaves it that was killed before it held it.
        fs::create_dir_all(all.path().join("9").join("work")).unwrap();
        let next = OwnFolder::make(all.path(), "2").unwrap();
        assert!(lives.path().is_dir() && next.path().is_dir());
        assert!(!all.path().join("0").exists() && !all.path().join("9").exists());
        assert_eq!(OwnFolder::make(all.path(), "1").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        drop(lives);
        assert!(!all.path().join("1").exists());
        fs::write(next.home().join("tmp").join("row"), b"1").unwrap();
        assert!(next.temporary().join("row").exists());
        // As a cache of modules is left, which nobody but root may write.
        let (path, closed) = (next.path().to_owned(), next.home().join("closed"));
        fs::create_dir_all(closed.join("inner")).unwrap();
        fs::set_permissions(&closed, Permissions::from_mode(0o500)).unwrap();
        drop(next);
        assert!(!path.exists());
        let (one, other) = (OwnFolder::any(all.path()).unwrap(), OwnFolder::any(all.path()).unwrap());
        assert_ne!(one.path(), other.path());
    }

    #[test]
    fn sockets_find_a_place_however_long_the_path_is() {
        let all = tempfile::tempdir().unwrap();
        let long = all.path().join("l".repeat(90));
        let own = OwnFolder::make(&long, "1").unwrap();
        let told = own.temporary().to_owned();
        assert!(told.as_os_str().len() <= TEMPORARY_BYTES_MAX, "{}", told.display());
        std::os::unix::net::UnixListener::bind(told.join("pymp-12345678").with_extension("listener-12345678")).unwrap();
        assert_eq!(fs::read_dir(own.home().join("tmp")).unwrap().count(), 1);
        drop(own);
        assert!(fs::symlink_metadata(&told).is_err(), "the short name goes too");
    }
}
