//! How a service is reached: what its certificate is checked by, and who asks.

use crate::error::ClientError;
use std::fmt;
use std::path::{Path, PathBuf};

/// Longest file of a credential; a token is far shorter.
const TOKEN_LEN_MAX: usize = 16 << 10;

/// How a service is reached. The default asks nobody's leave and trusts the authorities that the system trusts.
#[derive(Clone, Default)]
pub struct ClientOptions {
    /// A file of certificates in PEM form, trusted beside the system's.
    pub(crate) ca_file: Option<PathBuf>,
    bearer: Option<String>,
}

impl fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bearer = self.bearer.as_ref().map(|_| "hidden");
        f.debug_struct("ClientOptions").field("ca_file", &self.ca_file).field("bearer", &bearer).finish()
    }
}

impl ClientOptions {
    /// With the authorities of a file in PEM form, which are trusted beside the system's.
    #[must_use]
    pub fn with_ca_file(self, file: &Path) -> Self {
        Self { ca_file: Some(file.to_owned()), ..self }
    }

    /// With a credential, which is sent as `Authorization: Bearer …`, and never over plain HTTP but to this machine.
    pub fn with_bearer(self, token: &str) -> Result<Self, ClientError> {
        let token = token.trim();
        // RFC 6750's b64token; anything else would break the header, or is the wrong file.
        let legal = |c: u8| c.is_ascii_alphanumeric() || b"-._~+/=".contains(&c);
        if token.is_empty() || token.len() > TOKEN_LEN_MAX || !token.bytes().all(legal) {
            return Err(ClientError::Options(format!(
                "the credential is no bearer token: expected 1 to {TOKEN_LEN_MAX} characters of A-Z, a-z, 0-9 and -._~+/="
            )));
        }
        Ok(Self { bearer: Some(token.to_owned()), ..self })
    }

    /// With the credential that a file holds.
    pub fn with_bearer_file(self, file: &Path) -> Result<Self, ClientError> {
        let token =
            std::fs::read_to_string(file).map_err(|source| ClientError::File { file: file.to_owned(), source })?;
        self.with_bearer(&token)
    }

    /// The value of the header, if there is a credential.
    pub(crate) fn authorization(&self) -> Option<String> {
        self.bearer.as_ref().map(|token| format!("Bearer {token}"))
    }
}
