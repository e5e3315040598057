//! A folder as bytes and back: what a program keeps of itself. Equal folders give equal bytes: names are sorted, owners and times left out. Files,
//! folders and links within it are kept, with who may execute them; sockets and pipes are not. Whoever writes to it may do so meanwhile, so nothing
//! is taken for what it was a moment ago. (Folders of code are `code.rs`'s.)

use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};
use tar::{Archive, Builder, EntryType, Header};

/// Most bytes of a folder: it is in memory twice while it is written.
pub const FOLDER_BYTES_MAX: u64 = 1 << 30;
/// Most entries of it.
const ENTRIES_MAX: usize = 100_000;
/// A folder in which nothing changed for so long is between two writes of whoever writes to it.
const SETTLED: Duration = Duration::from_secs(1);

/// Why a folder cannot be packed. [`FolderError::Io`]: try again. The others: refuse, what is in it has to change.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum FolderError {
    /// It cannot be read; it may have changed meanwhile.
    #[error("`{path}` cannot be read")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// More than can be kept.
    #[error("the folder holds more than {limit}; keep the newest checkpoint alone in it")]
    TooLarge {
        /// What there is too much of.
        limit: String,
    },
    /// A link that leads out of it would lead elsewhere on another server.
    #[error(
        "the link `{path}` leads to `{target}`, which is not below the folder; write a relative link, or the file itself"
    )]
    Outside { path: PathBuf, target: PathBuf },
}

/// What tells one state of an entry from another.
#[derive(Debug, PartialEq, Eq)]
struct Look {
    kind: EntryType,
    bytes: u64,
    inode: u64,
    changed: SystemTime,
    executable: bool,
}

/// Packs a folder whose writer has ended.
pub fn pack(folder: &Path) -> Result<Vec<u8>, FolderError> {
    pack_entries(folder, &look(folder)?, FOLDER_BYTES_MAX)
}

/// Packs a folder that somebody may be writing to; none if they are just now.
pub fn pack_settled(folder: &Path) -> Result<Option<Vec<u8>>, FolderError> {
    let before = look(folder)?;
    let settled = |at: SystemTime| at.elapsed().is_ok_and(|since| since >= SETTLED);
    if !before.values().all(|entry| settled(entry.changed)) {
        return Ok(None);
    }
    let packed = pack_entries(folder, &before, FOLDER_BYTES_MAX)?;
    Ok((look(folder)? == before).then_some(packed))
}

/// All entries below a folder, by their paths within it.
fn look(folder: &Path) -> Result<BTreeMap<PathBuf, Look>, FolderError> {
    let (mut found, mut bytes) = (BTreeMap::new(), 0u64);
    let mut waiting = vec![PathBuf::new()];
    while let Some(inside) = waiting.pop() {
        let path = folder.join(&inside);
        let failed = |source| FolderError::Io { path: path.clone(), source };
        for entry in fs::read_dir(&path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let metadata = entry.metadata().map_err(failed)?;
            let Some(seen) = seen(&metadata).map_err(failed)? else { continue };
            let inside = inside.join(entry.file_name());
            if seen.kind == EntryType::Directory {
                waiting.push(inside.clone());
            }
            bytes = bytes.saturating_add(seen.bytes);
            found.insert(inside, seen);
            if found.len() > ENTRIES_MAX {
                return Err(FolderError::TooLarge { limit: format!("{ENTRIES_MAX} files") });
            }
        }
    }
    if bytes > FOLDER_BYTES_MAX {
        return Err(too_many_bytes());
    }
    Ok(found)
}

fn too_many_bytes() -> FolderError {
    FolderError::TooLarge { limit: format!("{} MiB", FOLDER_BYTES_MAX >> 20) }
}

fn seen(metadata: &Metadata) -> io::Result<Option<Look>> {
    let (kind, bytes) = match metadata.file_type() {
        kind if kind.is_file() => (EntryType::Regular, metadata.len()),
        kind if kind.is_dir() => (EntryType::Directory, 0),
        kind if kind.is_symlink() => (EntryType::Symlink, 0),
        _ => return Ok(None),
    };
    let executable = metadata.permissions().mode() & 0o111 != 0;
    Ok(Some(Look { kind, bytes, inode: metadata.ino(), changed: metadata.modified()?, executable }))
}

fn pack_entries(folder: &Path, entries: &BTreeMap<PathBuf, Look>, mut bytes_left: u64) -> Result<Vec<u8>, FolderError> {
    let mut archive = Builder::new(Vec::new());
    for (inside, seen) in entries {
        let path = folder.join(inside);
        let failed = |source| FolderError::Io { path: path.clone(), source };
        let mut header = Header::new_gnu();
        header.set_mode(if seen.executable { 0o755 } else { 0o644 });
        header.set_entry_type(seen.kind);
        header.set_size(seen.bytes);
        match seen.kind {
            EntryType::Symlink => {
                let target = fs::read_link(&path).map_err(failed)?;
                if !stays_within(inside, &target) {
                    return Err(FolderError::Outside { path: inside.clone(), target });
                }
                archive.append_link(&mut header, inside, target).map_err(failed)?;
            }
            EntryType::Directory => archive.append_data(&mut header, inside, io::empty()).map_err(failed)?,
            _ => {
                let bytes = read(&path, bytes_left).map_err(failed)?;
                bytes_left = bytes_left.checked_sub(bytes.len() as u64).ok_or_else(too_many_bytes)?;
                header.set_size(bytes.len() as u64);
                archive.append_data(&mut header, inside, bytes.as_slice()).map_err(failed)?;
            }
        }
    }
    archive.into_inner().map_err(|source| FolderError::Io { path: folder.to_owned(), source })
}

/// All of a file, or one byte more than is wanted. What is no file any more is refused, and not waited for.
fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file any more"));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether a link leads to what is below the folder, wherever that lies. Upwards only at its beginning: after the name of another link it would lead
/// up from where that leads.
fn stays_within(inside: &Path, target: &Path) -> bool {
    let mut folders = inside.components().count().saturating_sub(1);
    let mut named = false;
    for part in target.components() {
        match part {
            Component::CurDir => {}
            Component::Normal(_) => named = true,
            Component::ParentDir if !named && folders > 0 => folders -= 1,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    true
}

/// Makes a folder what was packed, whatever it held before. Nothing is written outside it, whatever the bytes say.
pub fn unpack(packed: &[u8], folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => fs::create_dir_all(folder)?,
    }
    let mut archive = Archive::new(packed);
    archive.set_preserve_mtime(false);
    archive.unpack(folder)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::fs::{FileType, Mode};
    use std::os::unix::fs::symlink;

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("step-3/empty")).unwrap();
        fs::write(at("step-3/model.pt"), b"weights").unwrap();
        fs::write(at(".hidden"), b"too").unwrap();
        fs::write(at("run.sh"), b"#!").unwrap();
        fs::set_permissions(at("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
        symlink("step-3", at("latest")).unwrap();
        symlink("../../run.sh", at("step-3/empty/back")).unwrap();
        folder
    }

    #[test]
    fn a_folder_survives_the_way_whole() {
        let from = folder();
        let packed = pack(from.path()).unwrap();
        assert_eq!(packed, pack(folder().path()).unwrap(), "equal folders give equal bytes");
        let to = tempfile::tempdir().unwrap();
        let whole = to.path().join("whole");
        fs::create_dir(&whole).unwrap();
        fs::write(whole.join("left over"), b"of before").unwrap();
        unpack(&packed, &whole).unwrap();
        assert_eq!(fs::read(whole.join("latest/model.pt")).unwrap(), b"weights");
        assert_eq!(fs::read(whole.join("latest/empty/back")).unwrap(), b"#!");
        assert!(whole.join("step-3/empty").is_dir() && !whole.join("left over").exists());
        assert_eq!(fs::metadata(whole.join("run.sh")).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(pack(&whole).unwrap(), packed);
        unpack(&pack(tempfile::tempdir().unwrap().path()).unwrap(), &whole).unwrap();
        assert_eq!(fs::read_dir(&whole).unwrap().count(), 0, "an empty folder is one too");
    }

    #[test]
    fn what_is_just_being_written_is_not_packed() {
        let folder = folder();
        assert_eq!(pack_settled(folder.path()).unwrap(), None, "it was written this moment");
        for link in ["latest", "step-3/empty/back"] {
            fs::remove_file(folder.path().join(link)).unwrap();
        }
        let long_ago = SystemTime::now() - Duration::from_secs(60);
        for name in ["step-3/model.pt", ".hidden", "run.sh", "step-3/empty", "step-3"] {
            fs::File::open(folder.path().join(name)).unwrap().set_modified(long_ago).unwrap();
        }
        assert_eq!(pack_settled(folder.path()).unwrap(), Some(pack(folder.path()).unwrap()));
    }

    #[test]
    fn a_link_that_leads_out_is_named() {
        for (link, target) in [
            ("latest", "/etc/passwd"),
            ("latest", "../outside"),
            ("a/b/latest", "../../../outside"),
            ("a/b/latest", "up/../.."),
        ] {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir_all(folder.path().join("a/b")).unwrap();
            symlink(target, folder.path().join(link)).unwrap();
            let said = pack(folder.path()).unwrap_err().to_string();
            assert!(said.contains(&format!("`{link}`")) && said.contains(target), "{said}");
        }
    }

    #[test]
    fn what_becomes_another_thing_after_it_was_seen_is_neither_waited_for_nor_followed_nor_read_beyond_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, b"1234").unwrap();
        let seen = look(folder.path()).unwrap();
        pack_entries(folder.path(), &seen, 4).unwrap();
        let grown = pack_entries(folder.path(), &seen, 3).unwrap_err();
        assert!(matches!(grown, FolderError::TooLarge { .. }), "{grown}");
        fs::remove_file(&file).unwrap();
        // Nobody writes to it: opened as a file is, it would be waited for for ever.
        rustix::fs::mknodat(rustix::fs::CWD, &file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(matches!(pack_entries(folder.path(), &seen, 4), Err(FolderError::Io { .. })));
        assert!(look(folder.path()).unwrap().is_empty());
        fs::remove_file(&file).unwrap();
        symlink("/etc/hostname", &file).unwrap();
        assert!(matches!(pack_entries(folder.path(), &seen, 1 << 20), Err(FolderError::Io { .. })));
    }
}
