//! An executor's standard error in a file that never grows beyond a bound: when full it becomes `….log.1`, replacing an older
//! one, and a new one begins. Next file: `direct.rs`.

use crate::private;
use std::io;
use std::path::{Path, PathBuf};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

/// Size at which a log is put aside; so at most twice this much is kept per executor.
pub(crate) const LOG_BYTES_MAX: u64 = 8 << 20;

pub(crate) struct LogFile {
    path: PathBuf,
    file: File,
    written_bytes: u64,
    broken: bool,
}

impl LogFile {
    /// Opens it for appending; creates its folder.
    pub fn open(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            private::make_folder(folder)?;
        }
        let file = private::open(path, true)?;
        let written_bytes = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file: File::from_std(file), written_bytes, broken: false })
    }

    /// Appends; a failure is told once and otherwise without effect.
    pub async fn append(&mut self, bytes: &[u8]) {
        if let Err(error) = self.try_append(bytes).await
            && !self.broken
        {
            self.broken = true;
            tracing::error!(path = %self.path.display(), %error, "cannot write an executor's log");
        }
    }

    async fn try_append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.written_bytes >= LOG_BYTES_MAX {
            let mut aside = self.path.clone().into_os_string();
            aside.push(".1");
            tokio::fs::rename(&self.path, aside).await?;
            self.file = File::from_std(private::open(&self.path, false)?);
            self.written_bytes = 0;
        }
        self.written_bytes += bytes.len() as u64;
        self.file.write_all(bytes).await?;
        self.file.flush().await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_full_log_is_put_aside_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job-a").join("0.log");
        let mut log = LogFile::open(&path).unwrap();
        let block = vec![b'x'; 1 << 20];
        for _ in 0..20 {
            log.append(&block).await;
        }
        let len = |name: &str| std::fs::metadata(folder.path().join("job-a").join(name)).unwrap().len();
        assert_eq!((len("0.log.1"), len("0.log")), (LOG_BYTES_MAX, 4 << 20));
        assert_eq!(std::fs::read_dir(folder.path().join("job-a")).unwrap().count(), 2);
    }
}
