//! The data directory of one `ebb up`: what is where in it, its lock and its secrets.
//!
//! | path | what |
//! | --- | --- |
//! | `lock` | held while a service runs; holds its process id |
//! | `slots` | how many slots the server had when a service ran here last |
//! | `log.redb` | the embedded log (absent on Kafka) |
//! | `store/` | the local object store (absent with `--store`) |
//! | `secrets/` | tokens and keys, mode 600 |
//! | `agent/` | the node agent's records and its executors' logs |
//!
//! All of it is its owner's alone: models and rows of datasets lie in it as they are.

use crate::failure::Failure;
use rustix::fs::Mode;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Permissions that nobody but a file's owner gets, of all that this process and its executors make.
const KEPT_FROM_OTHERS: Mode = Mode::RWXG.union(Mode::RWXO);
/// Mode of a folder that only its owner may look into.
const PRIVATE_FOLDER: u32 = 0o700;
/// What of a data directory an earlier release may have made readable for others; files in its folders are closed with them.
const FOLDERS: [&str; 4] = ["store", AGENT_FOLDER, SECRETS_FOLDER, "executors"];
const FILES: [&str; 4] = ["log.redb", "lock", "agent.json", "service.stderr"];

/// How long the lock of a process that is gone is waited for. A child of it holds that from its fork until it becomes its program, and waits for nothing but
/// the processor there.
const CHILD_TIME_MAX: Duration = Duration::from_secs(5);
/// From one look at it to the next.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The agent's folder.
use workers_agent_client::AGENT_FOLDER;
const SECRETS_FOLDER: &str = "secrets";
const SLOTS_FILE: &str = "slots";

/// An open data directory; no other process has it while this lives.
#[derive(Debug)]
pub struct Home {
    folder: PathBuf,
    _lock: File,
}

impl Home {
    /// Makes the directory if it is missing and takes its lock.
    pub fn open(folder: &Path) -> Result<Self, Failure> {
        let cannot = |what: &str, e: std::io::Error| {
            Failure::local(format!("the data directory `{}` cannot be {what}", folder.display()), e)
                .advise("choose another with --data DIR")
        };
        keep_private(folder).map_err(|e| cannot("made", e))?;
        let folder = fs::canonicalize(folder).map_err(|e| cannot("found", e))?;
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(folder.join("lock"))
            .map_err(|e| cannot("locked", e))?;
        let begun = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                // A child that a killed service had just forked holds its files until it becomes the program it is to be.
                Err(TryLockError::WouldBlock) if !is_held_by_someone(&mut lock) && begun.elapsed() < CHILD_TIME_MAX => {
                    std::thread::sleep(LOOK_EVERY);
                }
                Err(TryLockError::WouldBlock) => return Err(in_use(&folder, &mut lock)),
                Err(TryLockError::Error(e)) => return Err(cannot("locked", e)),
            }
        }
        let written =
            lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| writeln!(lock, "{}", std::process::id()));
        written.map_err(|e| cannot("written to", e))?;
        let secrets = folder.join(SECRETS_FOLDER);
        if !secrets.is_dir() {
            DirBuilder::new().mode(0o700).create(&secrets).map_err(|e| cannot("written to", e))?;
        }
        Ok(Self { folder, _lock: lock })
    }

    /// The directory, absolute.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// File of a secret.
    #[must_use]
    pub fn secret(&self, name: &str) -> PathBuf {
        self.folder.join(SECRETS_FOLDER).join(name)
    }

    /// File of the embedded log.
    #[must_use]
    pub fn log_file(&self) -> PathBuf {
        log_file(&self.folder)
    }

    /// URL of the local object store.
    pub fn store_url(&self) -> Result<String, Failure> {
        let store = self.folder.join("store");
        let url = url::Url::from_directory_path(&store)
            .map_err(|()| Failure::plain(format!("`{}` is no absolute path", store.display())))?;
        Ok(url.as_str().trim_end_matches('/').to_owned())
    }

    /// How many slots the server had when a service was set up here last; `None` in a new directory, and in one of an earlier release.
    #[must_use]
    pub fn slots_before(&self) -> Option<u16> {
        fs::read_to_string(self.folder.join(SLOTS_FILE)).ok()?.trim().parse().ok()
    }

    /// Notes that for the next start.
    pub fn note_slots(&self, slots: u16) -> Result<(), Failure> {
        let path = self.folder.join(SLOTS_FILE);
        fs::write(&path, format!("{slots}\n"))
            .map_err(|e| Failure::local(format!("`{}` cannot be written", path.display()), e))
    }

    /// The agent's folder.
    #[must_use]
    pub fn agent_folder(&self) -> PathBuf {
        self.folder.join(AGENT_FOLDER)
    }
}

/// File of the embedded log in a data directory.
#[must_use]
pub fn log_file(folder: &Path) -> PathBuf {
    folder.join("log.redb")
}

/// Makes a data directory if it is missing, and keeps what is in it, now and later, from everybody else. A directory that was
/// there before keeps its own mode: it may be shared, and is not ours.
pub fn keep_private(folder: &Path) -> std::io::Result<()> {
    rustix::process::umask(KEPT_FROM_OTHERS);
    DirBuilder::new().recursive(true).mode(PRIVATE_FOLDER).create(folder)?;
    let inside = FOLDERS.iter().chain(&FILES).map(|name| folder.join(name));
    for path in inside.filter(|path| path.symlink_metadata().is_ok_and(|there| !there.is_symlink())) {
        let mode = fs::metadata(&path)?.permissions().mode();
        let closed = mode & PRIVATE_FOLDER;
        if mode & 0o777 != closed {
            fs::set_permissions(&path, fs::Permissions::from_mode(closed))?;
        }
    }
    Ok(())
}

/// The number of the process that took the lock last.
fn holder(lock: &mut File) -> String {
    let mut holder = String::new();
    // Without its number the holder is only unnamed.
    let _ = lock.rewind().and_then(|()| lock.read_to_string(&mut holder));
    holder.trim().to_owned()
}

/// Whether that process lives, as far as can be seen.
fn is_held_by_someone(lock: &mut File) -> bool {
    let holder = holder(lock);
    holder.is_empty() || Path::new("/proc").join(holder).exists()
}

fn in_use(folder: &Path, lock: &mut File) -> Failure {
    let holder = holder(lock);
    let by = if holder.is_empty() { "another process".to_owned() } else { format!("process {holder}") };
    Failure::plain(format!("the data directory `{}` is in use by {by}", folder.display()))
        .advise("stop that one first, or choose another directory with --data DIR")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_directory_has_one_owner_and_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(folder.path()).unwrap();
        let refused = Home::open(folder.path()).unwrap_err().to_string();
        assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
        drop(home);
        Home::open(folder.path()).unwrap();
    }

    #[test]
    fn what_a_killed_service_left_of_its_lock_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let mut gone = std::process::Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        let path = folder.path().join("lock");
        fs::write(&path, format!("{}\n", gone.id())).unwrap();
        let left = File::open(&path).unwrap();
        left.lock().unwrap();
        let opened = std::thread::scope(|scope| {
            let opening = scope.spawn(|| Home::open(folder.path()).map(drop));
            // Long enough for it to have tried: without another try it would have ended.
            std::thread::sleep(10 * LOOK_EVERY);
            assert!(!opening.is_finished(), "it did not wait");
            drop(left);
            opening.join().unwrap()
        });
        opened.unwrap();
    }

    /// Every file and folder of a directory with a permission for others.
    fn open_to_others(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let open = |path: &PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o077 != 0;
        entries
            .flat_map(|path| {
                let inside = if path.is_dir() { open_to_others(&path) } else { Vec::new() };
                inside.into_iter().chain([path])
            })
            .filter(open)
            .collect()
    }

    #[test]
    fn a_data_directory_is_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("new/data");
        let home = Home::open(&data).unwrap();
        fs::create_dir(data.join("store")).unwrap();
        fs::write(data.join("store/model"), "").unwrap();
        assert_eq!(open_to_others(folder.path()), Vec::<PathBuf>::new());
        drop(home);
        // As an earlier release left it.
        for (path, mode) in [("store", 0o755), ("lock", 0o644)] {
            fs::set_permissions(data.join(path), fs::Permissions::from_mode(mode)).unwrap();
        }
        Home::open(&data).unwrap();
        assert_eq!(open_to_others(folder.path()), Vec::<PathBuf>::new());
        // What was there before belongs to somebody else.
        fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
        Home::open(&data).unwrap();
        assert_eq!(fs::metadata(&data).unwrap().permissions().mode() & 0o777, 0o755);
    }

    #[test]
    fn the_store_url_stands_for_any_folder_name() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(&folder.path().join("a b")).unwrap();
        assert!(home.store_url().unwrap().ends_with("/a%20b/store"));
    }
}
