//! What can go wrong with a service that is started to be looked at. None of it is worth a retry: whoever started it stops and is told.

use gateway_client::ClientError;
use std::error::Error;
use workers_agent_client::AgentClientError;

/// Why a demo, a benchmark or a test ended before its end. Stop.
#[derive(Debug, thiserror::Error)]
pub enum HarnessError {
    /// The service did not do what it was asked.
    #[error(transparent)]
    Service(#[from] ClientError),
    /// The agent did not do what it was asked.
    #[error(transparent)]
    Agent(#[from] AgentClientError),
    /// A job ended without a model.
    #[error("job {job} ended without a model, as {phase}{}", .reason.as_ref().map(|r| format!(": {r}")).unwrap_or_default())]
    NoModel {
        /// Its id.
        job: String,
        /// The phase it ended in.
        phase: String,
        /// Why it failed.
        reason: Option<String>,
    },
    /// What was asked for makes no sense.
    #[error("{0}")]
    Options(String),
    /// Something on this machine, or a wait that came to its end.
    #[error("{what}")]
    Local {
        /// What could not be done.
        what: String,
        /// What the system said.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
}

impl HarnessError {
    /// With its cause.
    pub fn local(what: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Local { what: what.into(), source: Some(source.into()) }
    }

    /// One that is its own cause.
    pub fn plain(what: impl Into<String>) -> Self {
        Self::Local { what: what.into(), source: None }
    }
}
