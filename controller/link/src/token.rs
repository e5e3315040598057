//! Secrets of 32 random bytes kept in a file that only its owner can read. A secret is never displayed, logged or compared
//! byte by byte. Next file: `codec.rs`.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why a secret could not be had. All of them: stop and tell the operator.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum SecretError {
    /// The operating system gave no random bytes.
    #[error("no random bytes from the operating system: {0}")]
    Random(String),
    /// The file cannot be read or written.
    #[error("secret file {path} cannot be read or written; check that it is this user's")]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Others can read the file.
    #[error("secret file {path} has mode {mode:03o}; expected 600 (chmod 600), so that only its owner can read it")]
    Mode {
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The text is not a secret.
    #[error("this is not a secret; expected 64 hexadecimal characters")]
    Form,
}

/// Reads a file that nobody else may read.
pub fn read_private(path: &Path) -> Result<String, SecretError> {
    let file_error = |source| SecretError::File { path: path.to_owned(), source };
    let mode = fs::metadata(path).map_err(file_error)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(SecretError::Mode { path: path.to_owned(), mode });
    }
    fs::read_to_string(path).map_err(file_error)
}

/// 32 random bytes; 64 hexadecimal characters as text.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// A new one.
    pub fn generate() -> Result<Self, SecretError> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|e| SecretError::Random(e.to_string()))?;
        Ok(Self(bytes))
    }

    /// Reads the text form; white space around it is allowed, because files end with a line feed.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let digits: events_schema::Digest = text.trim().parse().map_err(|_| SecretError::Form)?;
        Ok(Self(digits.0))
    }

    /// Reads it from a file that nobody else may read.
    pub fn read(path: &Path) -> Result<Self, SecretError> {
        Self::parse(&read_private(path)?)
    }

    /// Another secret that follows from this one and its purpose; it says nothing of this one.
    #[must_use]
    pub fn derive(&self, purpose: &str) -> Self {
        Self(*blake3::keyed_hash(&self.0, purpose.as_bytes()).as_bytes())
    }

    /// Reads it from a file, or writes a new one there first. Of several processes that start at once all get the same.
    pub fn read_or_create(path: &Path) -> Result<Self, SecretError> {
        if !path.try_exists().map_err(|source| SecretError::File { path: path.to_owned(), source })? {
            Self::generate()?.create(path)?;
        }
        Self::read(path)
    }

    /// The bytes, for deriving keys.
    #[must_use]
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The text form: for the wire and for files with mode 600 only.
    #[must_use]
    pub fn expose(&self) -> String {
        events_schema::Digest(self.0).to_string()
    }

    /// Whether a shown text is this secret. Digests are compared, in constant time, so the time taken says nothing.
    #[must_use]
    pub fn matches(&self, shown: &str) -> bool {
        blake3::hash(self.expose().as_bytes()) == blake3::hash(shown.as_bytes())
    }

    /// Writes a whole file under another name and links it, so that no reader ever sees half a secret.
    fn create(&self, path: &Path) -> Result<(), SecretError> {
        let draft = path.with_extension(format!("draft-{}", std::process::id()));
        let written = self.write(&draft).and_then(|()| match fs::hard_link(&draft, path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        });
        let removed = fs::remove_file(&draft);
        written.and(removed).map_err(|source| SecretError::File { path: path.to_owned(), source })?;
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)
            .and_then(|f| f.sync_all())
            .map_err(|source| SecretError::File { path: path.to_owned(), source })
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        writeln!(file, "{}", self.expose())?;
        file.sync_all()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// What an agent shows to a controller, and a fleet to an agent.
#[derive(Debug, Clone)]
pub struct AgentToken(Secret);

impl AgentToken {
    /// A new one.
    pub fn generate() -> Result<Self, SecretError> {
        Secret::generate().map(Self)
    }

    /// Reads the text form.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        Secret::parse(text).map(Self)
    }

    /// Reads it from a file that nobody else may read.
    pub fn read(path: &Path) -> Result<Self, SecretError> {
        Secret::read(path).map(Self)
    }

    /// Reads it from a file, or writes a new one there first.
    pub fn read_or_create(path: &Path) -> Result<Self, SecretError> {
        Secret::read_or_create(path).map(Self)
    }

    /// Another token that follows from this one and its purpose; it says nothing of this one.
    #[must_use]
    pub fn derive(&self, purpose: &str) -> Self {
        Self(self.0.derive(purpose))
    }

    /// The text form: for the wire only.
    #[must_use]
    pub fn expose(&self) -> String {
        self.0.expose()
    }

    /// The value of an `authorization` header that shows it.
    #[must_use]
    pub fn bearer(&self) -> String {
        format!("Bearer {}", self.expose())
    }

    /// Whether the value of an `authorization` header shows this token.
    #[must_use]
    pub fn accepts(&self, authorization: Option<&str>) -> bool {
        authorization.and_then(|value| value.strip_prefix("Bearer ")).is_some_and(|shown| self.0.matches(shown))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_token_accepts_itself_only() {
        let token = AgentToken::generate().unwrap();
        assert!(token.accepts(Some(&token.bearer())));
        let other = AgentToken::generate().unwrap();
        for wrong in [Some(other.bearer()), Some(token.expose()), Some("Bearer ".to_owned()), None] {
            assert!(!token.accepts(wrong.as_deref()));
        }
        assert!(!format!("{token:?}").contains(&token.expose()));
    }

    #[test]
    fn a_file_gives_the_same_secret_again_and_nobody_else_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.token");
        let first = Secret::read_or_create(&path).unwrap();
        assert!(first.matches(&Secret::read_or_create(&path).unwrap().expose()));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left behind");
    }

    #[test]
    fn a_file_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.token");
        Secret::read_or_create(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(Secret::read(&path), Err(SecretError::Mode { mode: 0o644, .. })));
    }

    #[test]
    fn only_64_hexadecimal_characters_are_a_secret() {
        assert!(Secret::parse(&format!("{}\n", "0a".repeat(32))).is_ok());
        for wrong in ["", "0a", &"0g".repeat(32), &"0a".repeat(33)] {
            assert!(matches!(Secret::parse(wrong), Err(SecretError::Form)), "{wrong:?}");
        }
    }
}
