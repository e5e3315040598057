//! How a fleet on the same machine finds its agent when nothing else runs: `agent.json` in the data directory names the
//! listener and the file with the token it asks for. Next file: `direct.rs`.

use crate::private;
use controller_link::{AgentToken, SecretError};
use events_schema::ServerId;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// File in the data directory that names the agent's listener.
const ACCESS_FILE: &str = "agent.json";

/// File in the data directory with the token that the listener asks for.
const TOKEN_FILE: &str = "take-back.token";

/// Where an agent listens, and the file with the token it asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// The agent's server.
    pub server: ServerId,
    /// `http://HOST:PORT`.
    pub url: String,
    /// File with mode 600 that holds the token, absolute.
    pub token_file: PathBuf,
}

impl Access {
    /// As the agent of this data directory last wrote it; it may have ended since.
    pub fn read(data_dir: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(data_dir.join(ACCESS_FILE))?)?)
    }

    /// Makes the token if there is none and writes the file.
    pub(crate) fn publish(data_dir: &Path, server: ServerId, url: String) -> Result<AgentToken, AccessError> {
        let data_dir = fs::canonicalize(data_dir).map_err(AccessError::File)?;
        let token_file = data_dir.join(TOKEN_FILE);
        let token = AgentToken::read_or_create(&token_file)?;
        let draft = data_dir.join("agent.draft");
        let written = serde_json::to_vec(&Self { server, url, token_file }).map_err(io::Error::other);
        written.and_then(|bytes| private::write(&draft, &bytes)).map_err(AccessError::File)?;
        fs::rename(&draft, data_dir.join(ACCESS_FILE)).map_err(AccessError::File)?;
        Ok(token)
    }
}

/// Why the way to take slots back could not be prepared. Stop: a fleet could not get its slots without the controller.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The token.
    #[error("the token for taking slots back cannot be had")]
    Token(#[from] SecretError),
    /// The file that names the listener.
    #[error("the file that names the agent's listener cannot be written")]
    File(#[source] io::Error),
}
