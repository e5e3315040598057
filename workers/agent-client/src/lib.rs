//! A client of an agent's own listener: the direct way to its slots, with gateway, controller and log gone. For `ebb take-back`, the demo, the
//! benchmarks and the tests; what training then does about it is none of its business.

use gateway_api::Problem;
pub use gateway_api::agent::{AgentSlot, FreedSlot};
use gateway_api::agent::{AgentSlots, FreedSlots, SlotOfAgent, TAKE_BACK_DEADLINE_MS, TakeBack, paths};
use gateway_client::ClientError;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::time::Duration;
use storage::store::without_secrets;
use workers_agent::{Access, SecretError, TakeBackToken};

/// Folder of the agent in the data directory of an `ebb up`.
pub const AGENT_FOLDER: &str = "agent";
/// What an answer may take beyond the deadline: the agent waits up to 15 s for a killed process to be reaped.
const ANSWER_SLACK: Duration = Duration::from_secs(20);

/// Why an agent did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum AgentClientError {
    /// No agent ever ran on this data directory. Stop.
    #[error("no agent is known in `{}`", .0.display())]
    Unknown(PathBuf),
    /// Its token cannot be read. Stop.
    #[error("the agent's token cannot be read")]
    Token(#[source] SecretError),
    /// The client cannot be set up on this machine. Stop.
    #[error("the HTTP client cannot be set up")]
    SetUp(#[source] reqwest::Error),
    /// It does not answer: retry once it runs; without an agent no slot of its machine is in use.
    #[error("the agent at {url} does not answer")]
    Unreachable {
        /// Where it was looked for.
        url: String,
        /// What the connection said.
        #[source]
        source: reqwest::Error,
    },
    /// It refused, or what answers is no agent. Stop.
    #[error(transparent)]
    Answer(#[from] ClientError),
}

/// A connection to one agent's own listener.
#[derive(Debug, Clone)]
pub struct AgentClient {
    url: String,
    bearer: String,
    http: reqwest::Client,
}

/// How the agent of this data directory (of an `ebb up` or `ebb agent`) is reached, as it last wrote it.
pub fn access(data: &Path) -> Result<Access, AgentClientError> {
    let places = [data.join(AGENT_FOLDER), data.to_path_buf()];
    let found = places.iter().find_map(|place| Access::read(place).ok());
    found.ok_or_else(|| AgentClientError::Unknown(data.to_path_buf()))
}

impl AgentClient {
    /// The agent that runs on a data directory of `ebb up` or `ebb agent`.
    pub fn of_directory(data: &Path) -> Result<Self, AgentClientError> {
        let access = access(data)?;
        Self::new(&access.url, &access.token_file)
    }

    /// The agent at an address.
    pub fn new(url: &str, token_file: &Path) -> Result<Self, AgentClientError> {
        let token = TakeBackToken::read(token_file).map_err(AgentClientError::Token)?;
        let http = reqwest::Client::builder().no_proxy().build().map_err(AgentClientError::SetUp)?;
        Ok(Self { url: url.trim_end_matches('/').to_owned(), bearer: token.bearer(), http })
    }

    /// Where it listens.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What is on its slots.
    pub async fn slots(&self) -> Result<Vec<AgentSlot>, AgentClientError> {
        let request = self.http.get(format!("{}{}", self.url, paths::SLOTS)).timeout(ANSWER_SLACK);
        Ok(self.answer::<AgentSlots>(request).await?.slots)
    }

    /// Takes slots back; returns when they are free.
    pub async fn take_back(
        &self,
        slots: &[String],
        deadline_ms: Option<u64>,
    ) -> Result<Vec<FreedSlot>, AgentClientError> {
        let within = Duration::from_millis(deadline_ms.unwrap_or(TAKE_BACK_DEADLINE_MS));
        let slots = slots.iter().cloned().map(SlotOfAgent::Name).collect();
        let body = TakeBack { slots, deadline_ms: Some(within.as_millis() as u64) };
        let request = self.http.post(format!("{}{}", self.url, paths::TAKE_BACK)).json(&body);
        Ok(self.answer::<FreedSlots>(request.timeout(within + ANSWER_SLACK)).await?.slots)
    }

    async fn answer<T: DeserializeOwned>(&self, request: reqwest::RequestBuilder) -> Result<T, AgentClientError> {
        let unreachable = |source| AgentClientError::Unreachable { url: without_secrets(&self.url), source };
        let response = request.header("authorization", &self.bearer).send().await.map_err(unreachable)?;
        let status = response.status();
        let bytes = response.bytes().await.map_err(unreachable)?;
        if !status.is_success() {
            let problem: Problem = serde_json::from_slice(&bytes).map_err(|e| self.strange(&e))?;
            return Err(ClientError::Refused(Box::new(problem)).into());
        }
        serde_json::from_slice(&bytes).map_err(|e| self.strange(&e))
    }

    fn strange(&self, error: &serde_json::Error) -> AgentClientError {
        ClientError::Answer { url: without_secrets(&self.url), what: error.to_string() }.into()
    }
}
