//! The Python package `ebb`: part of this program, laid out in a folder for the child to import. Nothing has to be installed on a server.

use events_schema::Digest;
use std::io;
use std::path::{Path, PathBuf};

include!(concat!(env!("OUT_DIR"), "/package.rs"));

/// The folder to put on Python's path; laid out once for each content.
pub fn lay_out(folder: &Path) -> io::Result<PathBuf> {
    let content: Vec<u8> =
        FILES.iter().flat_map(|(name, text)| [name.as_bytes(), b"\0", text.as_bytes(), b"\0"].concat()).collect();
    storage::code::once(folder, &format!("ebb-{}", Digest::of(&content)), |whole| {
        let package = whole.join("ebb");
        std::fs::create_dir_all(&package)?;
        FILES.iter().try_for_each(|(name, text)| std::fs::write(package.join(name), text))
    })
}
