//! Files and folders that only their owner may read: logs hold what programs of users print, records hold what marks their processes.
//! Next file: `record.rs`.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Makes a folder with all above it. One that is there is closed to others, and with it whatever an earlier version left in it.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o700))
}

/// For writing from the start, or for appending.
pub(crate) fn open(path: &Path, append: bool) -> io::Result<fs::File> {
    OpenOptions::new().create(true).write(true).append(append).truncate(!append).mode(0o600).open(path)
}

/// Writes a whole file. Not synced.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    open(path, false)?.write_all(bytes)
}
