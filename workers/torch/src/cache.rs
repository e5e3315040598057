//! What executors of one server share on its disk: unpacked code and built environments, each made once for its name, kept as long as
//! somebody uses it, and afterwards until all of them together need more than their bound.
//!
//! An entry is a folder `NAME` and a file `NAME.lock` beside it. Whoever uses the folder holds a shared lock on the file, whoever makes or removes
//! it an exclusive one; locks end with their process, however that ends. The file holds the folder's size once it is whole, so what a killed
//! process left is seen as such. When it was last used is the file's time.

use rustix::fs::syncfs;
use rustix::io::{FdFlags, fcntl_setfd};
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Bound where nobody says one: some environments with a PyTorch of their own.
pub const CACHE_MIB_DEFAULT: u64 = 50 << 10;
const LOCK: &str = "lock";

/// The shared folders.
#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
    bytes_max: u64,
}

/// A folder that is whole and stays while this lives.
#[derive(Debug)]
pub struct Held {
    path: PathBuf,
    _lock: File,
}

impl Held {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Cache {
    /// Below `folder`. All of it may take so many MiB, what is in use included; but only what nobody uses is ever removed for that.
    pub fn open(folder: &Path, mib_max: Option<u64>) -> io::Result<Self> {
        // Programs that run in it may go elsewhere.
        let folder = std::path::absolute(folder)?.join("cache");
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        Ok(Self { folder, bytes_max: mib_max.unwrap_or(CACHE_MIB_DEFAULT).saturating_mul(1 << 20) })
    }

    /// The folder of this name; filled by `make` if it is not there. `make` gets it empty, and a descriptor: a program that it starts inherits
    /// that, so that nobody else begins before the program has ended too, should this process be killed.
    pub fn hold<E: From<io::Error>>(
        &self,
        name: &str,
        mut make: impl FnMut(&Path) -> Result<(), E>,
    ) -> Result<Held, E> {
        let path = self.folder.join(name);
        loop {
            let mut lock = self.lock_file(name)?;
            match lock.try_lock_shared() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    tracing::info!(name, "another executor prepares it; waiting for that");
                    lock.lock_shared()?;
                }
                Err(TryLockError::Error(error)) => return Err(error.into()),
            }
            if size(&mut lock)?.is_some() && self.is_at(&lock, name)? {
                lock.set_modified(SystemTime::now())?;
                return Ok(Held { path, _lock: lock });
            }
            lock.unlock()?;
            // Never waited for: whoever made it meanwhile and uses it now does so for as long as its job lives.
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    std::thread::yield_now();
                    continue;
                }
                Err(TryLockError::Error(error)) => return Err(error.into()),
            }
            // Meanwhile it may have been made, or removed together with the file.
            if size(&mut lock)?.is_some() || !self.is_at(&lock, name)? {
                continue;
            }
            remove(&path)?;
            fs::create_dir(&path)?;
            let for_programs = Inherited::of(&lock)?;
            let made = make(&path);
            drop(for_programs);
            if let Err(error) = made {
                // What is left costs room only, until the next attempt removes it.
                let _ = remove(&path);
                return Err(error);
            }
            syncfs(&lock).map_err(io::Error::from)?;
            write!(lock, "{}", bytes_below(&path)?)?;
            lock.sync_all()?;
            // Not only closed: a program that went its own way may have inherited it.
            lock.unlock()?;
            self.trim(name);
        }
    }

    /// Removes what was not used for longest until the rest has room. What is in use stays, and so does `newest`. That it cannot be done is
    /// said and harms nobody yet.
    fn trim(&self, newest: &str) {
        if let Err(error) = self.try_trim(newest) {
            tracing::warn!(folder = %self.folder.display(), %error, "what nobody uses cannot be removed");
        }
    }

    fn try_trim(&self, newest: &str) -> io::Result<()> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == LOCK)
                && let Some(name) = path.file_stem().and_then(|stem| stem.to_str())
                && let Ok(mut lock) = File::open(&path)
            {
                // One that is not whole is made now, or was left behind: it goes first, if nobody holds it.
                let bytes = size(&mut lock)?;
                let used = if bytes.is_some() { lock.metadata()?.modified()? } else { SystemTime::UNIX_EPOCH };
                entries.push((used, bytes.unwrap_or(0), name.to_owned()));
            }
        }
        entries.sort();
        let mut total: u64 = entries.iter().map(|(_, bytes, _)| bytes).sum();
        for (used, bytes, name) in entries {
            let unfinished = used == SystemTime::UNIX_EPOCH;
            if name != newest && (total > self.bytes_max || unfinished) && self.remove_unused(&name)? {
                tracing::info!(name, bytes, "removed: it was not used for longest");
                total -= bytes;
            }
        }
        Ok(())
    }

    /// Whether it was removed: not while anybody holds it.
    fn remove_unused(&self, name: &str) -> io::Result<bool> {
        let lock = self.lock_file(name)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        if !self.is_at(&lock, name)? {
            return Ok(false);
        }
        // First it is no longer whole, then it goes.
        lock.set_len(0)?;
        remove(&self.folder.join(name))?;
        fs::remove_file(self.lock_path(name))?;
        Ok(true)
    }

    fn lock_path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.{LOCK}"))
    }

    fn lock_file(&self, name: &str) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).open(self.lock_path(name))
    }

    /// Whether the file is still the one of this name: who removed an entry has removed its file.
    fn is_at(&self, lock: &File, name: &str) -> io::Result<bool> {
        let ours = lock.metadata()?;
        match fs::metadata(self.lock_path(name)) {
            Ok(there) => Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// A lock that programs inherit while this lives.
struct Inherited(#[expect(dead_code, reason = "it is closed when this goes")] OwnedFd);

impl Inherited {
    fn of(lock: &File) -> io::Result<Self> {
        // The same open file, so the same lock.
        let copy = OwnedFd::from(lock.try_clone()?);
        fcntl_setfd(&copy, FdFlags::empty())?;
        Ok(Self(copy))
    }
}

/// What the folder takes, if it is whole.
fn size(lock: &mut File) -> io::Result<Option<u64>> {
    let mut text = String::new();
    lock.rewind()?;
    lock.read_to_string(&mut text)?;
    lock.rewind()?;
    Ok(text.parse().ok())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn bytes_below(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { bytes_below(&entry.path())? } else { metadata.blocks() * 512 };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Barrier, mpsc};
    use std::time::Duration;

    fn cache(mib_max: u64) -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path(), Some(mib_max)).unwrap();
        (folder, cache)
    }

    fn fill(cache: &Cache, name: &str, bytes: usize) -> Held {
        let made = cache.hold(name, |path| fs::write(path.join("file"), vec![1; bytes]));
        made.unwrap()
    }

    /// Executors of one job begin together, and use what they find for as long as the job lives.
    #[test]
    fn who_comes_while_it_is_made_does_not_wait_for_those_who_use_it() {
        let (_folder, cache) = cache(100);
        let cache = Arc::new(cache);
        for round in 0..100 {
            let (all, (holds, held)) = (Arc::new(Barrier::new(5)), mpsc::channel());
            for _ in 0..4 {
                let (cache, all, holds) = (Arc::clone(&cache), Arc::clone(&all), holds.clone());
                std::thread::spawn(move || {
                    let used = cache.hold(&format!("a{round}"), |path| fs::write(path.join("file"), "x"));
                    holds.send(used.is_ok()).unwrap();
                    all.wait();
                });
            }
            for _ in 0..4 {
                assert_eq!(held.recv_timeout(Duration::from_secs(60)), Ok(true), "round {round}");
            }
            all.wait();
        }
    }

    #[test]
    fn two_at_once_make_it_once() {
        let (_folder, cache) = cache(100);
        let made = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let held = cache.hold("a", |path| {
                        made.fetch_add(1, Ordering::Relaxed);
                        fs::write(path.join("file"), "x")
                    });
                    assert_eq!(fs::read_to_string(held.unwrap().path().join("file")).unwrap(), "x");
                });
            }
        });
        assert_eq!(made.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn what_was_left_unfinished_is_made_anew() {
        let (_folder, cache) = cache(100);
        let failed = cache.hold("a", |path| {
            fs::write(path.join("half"), "x")?;
            Err::<(), _>(io::Error::other("no network"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "no network");
        // As a killed process leaves it.
        let path = cache.folder.join("a");
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("half"), "x").unwrap();
        let held = fill(&cache, "a", 1);
        assert_eq!(fs::read_dir(held.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_was_used_least_lately_goes_first_and_what_is_in_use_never() {
        let (_folder, cache) = cache(2);
        let used = fill(&cache, "used", 900 << 10);
        drop(fill(&cache, "old", 900 << 10));
        drop(fill(&cache, "new", 100 << 10));
        let there = |name: &str| cache.folder.join(name).exists();
        assert!(there("used") && there("old") && there("new"));
        let oldest = File::options().write(true).open(cache.lock_path("old")).unwrap();
        oldest.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(9)).unwrap();
        drop(fill(&cache, "newest", 900 << 10));
        assert!(there("used") && !there("old") && there("new") && there("newest"));
        drop(fill(&cache, "huge", 3 << 20));
        assert!(
            there("used") && !there("new") && !there("newest") && there("huge"),
            "what was just made is for somebody"
        );
        drop(used);
        drop(fill(&cache, "small", 1));
        assert!(!there("huge") && there("small"));
        drop(fill(&cache, "old", 1));
    }
}
