//! A client of an agent's own listener: the direct way to its slots, with gateway, controller and log gone. For `ebb take-back`, the demo, the
//! benchmarks and the tests; what training then does about it is none of its business.

use gateway_api::Problem;
use gateway_client::ClientError;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;
use storage::store::without_secrets;
use workers_agent::{Access, SecretError, TAKE_BACK_DEADLINE_MS, TakeBackToken, paths};

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

/// A slot as its agent sees it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct AgentSlot {
    /// `SERVER/INDEX`.
    pub slot: String,
    /// `free`, `running`, `leaving`, `taken_back` or `quarantined`.
    pub state: String,
    /// The executor on it.
    pub executor: Option<String>,
    /// Its process.
    pub pid: Option<i32>,
}

/// A slot that is its fleet's again.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct FreedSlot {
    /// `SERVER/INDEX`.
    pub slot: String,
    /// From the request until its process was reaped.
    pub elapsed_ms: u64,
    /// Whether its executor had to be killed.
    pub killed: bool,
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
        let answer = self.answer(self.http.get(format!("{}{}", self.url, paths::SLOTS)).timeout(ANSWER_SLACK)).await?;
        self.read(&answer["slots"])
    }

    /// Takes slots back; returns when they are free.
    pub async fn take_back(
        &self,
        slots: &[String],
        deadline_ms: Option<u64>,
    ) -> Result<Vec<FreedSlot>, AgentClientError> {
        let within = Duration::from_millis(deadline_ms.unwrap_or(TAKE_BACK_DEADLINE_MS));
        let body = json!({"slots": slots, "deadline_ms": within.as_millis() as u64});
        let request = self
            .http
            .post(format!("{}{}", self.url, paths::TAKE_BACK))
            .header("content-type", "application/json")
            .body(body.to_string());
        let answer = self.answer(request.timeout(within + ANSWER_SLACK)).await?;
        self.read(&answer["slots"])
    }

    async fn answer(&self, request: reqwest::RequestBuilder) -> Result<Value, AgentClientError> {
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

    fn read<T: DeserializeOwned>(&self, value: &Value) -> Result<T, AgentClientError> {
        serde_json::from_value(value.clone()).map_err(|e| self.strange(&e))
    }

    fn strange(&self, error: &serde_json::Error) -> AgentClientError {
        ClientError::Answer { url: without_secrets(&self.url), what: error.to_string() }.into()
    }
}
