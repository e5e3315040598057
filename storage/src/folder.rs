//! A folder as bytes and back: what a program keeps of itself. Equal folders give equal bytes: names are sorted, owners and times left out. Files,
//! folders and links within it are kept, with who may execute them; sockets and pipes are not. (Folders of code are `code.rs`'s.)

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
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
    pack_entries(folder, &look(folder)?)
}

/// Packs a folder that somebody may be writing to; none if they are just now.
pub fn pack_settled(folder: &Path) -> Result<Option<Vec<u8>>, FolderError> {
    let before = look(folder)?;
    let settled = |at: SystemTime| at.elapsed().is_ok_and(|since| since >= SETTLED);
    if !before.values().all(|entry| settled(entry.changed)) {
        return Ok(None);
    }
    let packed = pack_entries(folder, &before)?;
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
        return Err(FolderError::TooLarge { limit: format!("{} MiB", FOLDER_BYTES_MAX >> 20) });
    }
    Ok(found)
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

fn pack_entries(folder: &Path, entries: &BTreeMap<PathBuf, Look>) -> Result<Vec<u8>, FolderError> {
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
                if !target.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
                    return Err(FolderError::Outside { path: inside.clone(), target });
                }
                archive.append_link(&mut header, inside, target).map_err(failed)?;
            }
            EntryType::Directory => archive.append_data(&mut header, inside, io::empty()).map_err(failed)?,
            _ => {
                let bytes = fs::read(&path).map_err(failed)?;
                header.set_size(bytes.len() as u64);
                archive.append_data(&mut header, inside, bytes.as_slice()).map_err(failed)?;
            }
        }
    }
    archive.into_inner().map_err(|source| FolderError::Io { path: folder.to_owned(), source })
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
        let long_ago = SystemTime::now() - Duration::from_secs(60);
        for name in ["step-3/model.pt", ".hidden", "run.sh", "step-3/empty", "step-3"] {
            fs::File::open(folder.path().join(name)).unwrap().set_modified(long_ago).unwrap();
        }
        fs::remove_file(folder.path().join("latest")).unwrap();
        assert_eq!(pack_settled(folder.path()).unwrap(), Some(pack(folder.path()).unwrap()));
    }

    #[test]
    fn a_link_that_leads_out_is_named() {
        for target in ["/etc/passwd", "../outside"] {
            let folder = tempfile::tempdir().unwrap();
            symlink(target, folder.path().join("latest")).unwrap();
            let said = pack(folder.path()).unwrap_err().to_string();
            assert!(said.contains("`latest`") && said.contains(target), "{said}");
        }
    }
}
