//! A folder of code as one object: a gzipped tar, named by its content. Packed where a job is submitted, unpacked once on each server.

use events_schema::Digest;
use flate2::read::GzDecoder;
use flate2::{Compression, GzBuilder};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use tar::{Archive, Builder, EntryType, Header};

/// Most bytes of a packed folder: it is code, and what is data has a better place in the store.
pub const PACKED_BYTES_MAX: usize = 32 << 20;
/// Most bytes of what it unpacks to, so that a small object cannot fill a server's disk.
const UNPACKED_BYTES_MAX: u64 = 256 << 20;
/// Most files of it.
const FILES_MAX: usize = 10_000;

/// Why a folder cannot be packed. All: refuse, the folder has to change.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum PackError {
    /// It cannot be read.
    #[error("`{path}` cannot be read")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Rules of a `.gitignore` or a folder below.
    #[error("the folder `{path}` cannot be listed")]
    List {
        path: PathBuf,
        #[source]
        source: ignore::Error,
    },
    /// Nothing in it.
    #[error("`{path}` holds no file; name the folder of the code, for example `code: ./`")]
    Empty { path: PathBuf },
    /// More than code should be.
    #[error("the folder `{path}` has more than {limit}; list data and outputs in its .gitignore, code alone is packed")]
    TooLarge {
        path: PathBuf,
        /// What there is too much of.
        limit: String,
    },
}

/// Packs a folder. What its `.gitignore` files name is left out, like hidden files and `__pycache__`. Equal files give equal bytes: names are
/// sorted, and owners and times left out.
pub fn pack(folder: &Path) -> Result<Vec<u8>, PackError> {
    let too_large = |limit: String| PackError::TooLarge { path: folder.to_owned(), limit };
    let mut archive = Builder::new(GzBuilder::new().mtime(0).write(Vec::new(), Compression::default()));
    let mut unpacked = 0u64;
    let paths = files_of(folder)?;
    if paths.len() > FILES_MAX {
        return Err(too_large(format!("{FILES_MAX} files")));
    }
    for path in &paths {
        let failed = |source| PackError::Read { path: path.clone(), source };
        let file = std::fs::File::open(path).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(UNPACKED_BYTES_MAX - unpacked + 1).read_to_end(&mut bytes).map_err(failed)?;
        unpacked += bytes.len() as u64;
        if unpacked > UNPACKED_BYTES_MAX {
            return Err(too_large(format!("{} MiB", UNPACKED_BYTES_MAX >> 20)));
        }
        let mut header = Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_entry_type(EntryType::Regular);
        let name = path.strip_prefix(folder).unwrap_or(path);
        archive.append_data(&mut header, name, bytes.as_slice()).map_err(failed)?;
    }
    let packed = archive.into_inner().and_then(flate2::write::GzEncoder::finish);
    let packed = packed.map_err(|source| PackError::Read { path: folder.to_owned(), source })?;
    if packed.len() > PACKED_BYTES_MAX {
        return Err(too_large(format!("{} MiB, packed", PACKED_BYTES_MAX >> 20)));
    }
    Ok(packed)
}

fn files_of(folder: &Path) -> Result<Vec<PathBuf>, PackError> {
    let mut walk = ignore::WalkBuilder::new(folder);
    // A folder without a repository around it has rules too; those of its parents and of the user are about other things.
    walk.require_git(false).parents(false).git_global(false).git_exclude(false).follow_links(true);
    let mut paths = Vec::new();
    for entry in walk.build() {
        let entry = entry.map_err(|source| PackError::List { path: folder.to_owned(), source })?;
        let compiled = entry.path().components().any(|part| part.as_os_str() == "__pycache__");
        if entry.file_type().is_some_and(|kind| kind.is_file()) && !compiled {
            paths.push(entry.into_path());
        }
        if paths.len() > FILES_MAX {
            break;
        }
    }
    paths.sort();
    if paths.is_empty() { Err(PackError::Empty { path: folder.to_owned() }) } else { Ok(paths) }
}

/// Why packed code cannot be unpacked. All: refuse, the object is not what `pack` makes.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// Other bytes than its name says.
    #[error("the code {expected} has other bytes than its name says ({found}); submit the job again")]
    Content {
        /// By its name.
        expected: Digest,
        /// Of its bytes.
        found: Digest,
    },
    /// More than is ever taken in.
    #[error("the code has {bytes} bytes, and packed code has at most {PACKED_BYTES_MAX}; submit the job again")]
    TooLarge {
        /// As they are in the store.
        bytes: u64,
    },
    /// Not an archive, or the disk is full.
    #[error("the code cannot be unpacked")]
    Io(#[from] io::Error),
}

/// Unpacks the archive of this name into an empty folder.
pub fn unpack(packed: &[u8], digest: Digest, folder: &Path) -> Result<(), UnpackError> {
    let found = Digest::of(packed);
    if found != digest {
        return Err(UnpackError::Content { expected: digest, found });
    }
    Ok(unpack_into(packed, folder)?)
}

/// Checks that bytes are an archive that can be unpacked, without writing any.
pub fn verify(packed: &[u8]) -> io::Result<()> {
    each_file(packed, |_, entry| io::copy(entry, &mut io::sink()).map(drop))
}

fn unpack_into(packed: &[u8], folder: &Path) -> io::Result<()> {
    each_file(packed, |name, entry| {
        let path = folder.join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        io::copy(entry, &mut std::fs::File::create_new(path)?).map(drop)
    })
}

fn each_file(packed: &[u8], mut with: impl FnMut(&Path, &mut dyn Read) -> io::Result<()>) -> io::Result<()> {
    let refused = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut archive = Archive::new(GzDecoder::new(packed).take(UNPACKED_BYTES_MAX));
    for (index, entry) in archive.entries()?.enumerate() {
        let mut entry = entry?;
        if index >= FILES_MAX {
            return Err(refused("it has too many files"));
        }
        let (name, kind) = (inside(&entry.path()?), entry.header().entry_type());
        match name {
            // `tar` writes them by itself where it is told a folder; files make theirs.
            Some(_) if kind == EntryType::Directory => {}
            Some(name) if kind == EntryType::Regular && !name.as_os_str().is_empty() => with(&name, &mut entry)?,
            _ => return Err(refused("an entry is no plain file below the folder")),
        }
    }
    Ok(())
}

/// The path without the `./` that `tar` begins names with; `None` if it leads out of the folder.
fn inside(path: &Path) -> Option<PathBuf> {
    let parts = path.components().filter(|part| *part != Component::CurDir);
    parts.map(|part| if let Component::Normal(name) = part { Some(name) } else { None }).collect()
}

/// Makes the folder `name` below `folder` unless it is there; whole or not at all, whoever else does the same at the same time.
pub fn once(folder: &Path, name: &str, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<PathBuf> {
    let whole = folder.join(name);
    if whole.is_dir() {
        return Ok(whole);
    }
    let part = folder.join(format!(".{name}.{}", std::process::id()));
    // Of a process of the same number that was killed in the middle of it; usually there is none.
    let _ = std::fs::remove_dir_all(&part);
    std::fs::create_dir_all(&part)?;
    let made = make(&part).and_then(|()| match std::fs::rename(&part, &whole) {
        Err(_) if whole.is_dir() => std::fs::remove_dir_all(&part),
        other => other,
    });
    if made.is_err() {
        // What is left over costs room only; the error that matters is the first.
        let _ = std::fs::remove_dir_all(&part);
    }
    made.map(|()| whole)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn code_survives_the_way_and_what_is_ignored_stays_behind() {
        let from = folder(&[
            ("train.py", "x = 1"),
            ("lib/net.py", "y = 2"),
            (".gitignore", "data/\n*.pt\n"),
            ("data/big.bin", "z"),
            ("last.pt", "z"),
            ("lib/__pycache__/net.pyc", "z"),
        ]);
        let packed = pack(from.path()).unwrap();
        assert_eq!(packed, pack(from.path()).unwrap(), "equal files give equal bytes");
        verify(&packed).unwrap();
        let to = tempfile::tempdir().unwrap();
        unpack(&packed, Digest::of(&packed), to.path()).unwrap();
        assert_eq!(std::fs::read_to_string(to.path().join("lib/net.py")).unwrap(), "y = 2");
        assert_eq!(files_of(to.path()).unwrap().len(), 2);
        let to = tempfile::tempdir().unwrap();
        assert!(matches!(unpack(&packed, Digest::of(b"other"), to.path()), Err(UnpackError::Content { .. })));
    }

    #[test]
    fn an_archive_that_leaves_its_folder_is_refused() {
        let archive = |name: &[u8], kind| {
            let mut archive = Builder::new(GzBuilder::new().write(Vec::new(), Compression::default()));
            let mut header = Header::new_gnu();
            header.as_old_mut().name[..name.len()].copy_from_slice(name);
            header.set_size(0);
            header.set_entry_type(kind);
            header.set_cksum();
            archive.append(&header, io::empty()).unwrap();
            archive.into_inner().unwrap().finish().unwrap()
        };
        for name in [&b"train.py"[..], b"./train.py", b"lib/./net.py"] {
            let (packed, to) = (archive(name, EntryType::Regular), tempfile::tempdir().unwrap());
            verify(&packed).unwrap();
            unpack(&packed, Digest::of(&packed), to.path()).unwrap();
            assert_eq!(files_of(to.path()).unwrap().len(), 1, "{name:?}");
        }
        for name in [&b"./"[..], b"lib/"] {
            verify(&archive(name, EntryType::Directory)).unwrap();
        }
        for packed in [
            archive(b"./", EntryType::Regular),
            archive(b"../lib/", EntryType::Directory),
            archive(b"./../train.py", EntryType::Regular),
            archive(b"../train.py", EntryType::Regular),
            archive(b"/etc/train.py", EntryType::Regular),
            archive(b"train.py", EntryType::Symlink),
            b"no archive".to_vec(),
        ] {
            let to = tempfile::tempdir().unwrap();
            verify(&packed).unwrap_err();
            unpack(&packed, Digest::of(&packed), to.path()).unwrap_err();
            assert_eq!(std::fs::read_dir(to.path()).unwrap().count(), 0, "nothing is left");
        }
    }

    #[test]
    fn a_folder_that_is_no_code_is_refused_by_name() {
        let error = pack(folder(&[]).path()).unwrap_err().to_string();
        assert!(error.contains("holds no file"), "{error}");
        let error = pack(Path::new("/nowhere/at/all")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/at/all"), "{error}");
    }
}
