//! `ebb take-back`: the direct way to a slot. Speaks only with the node agent, so it works with gateway, controller and log gone.
//!
//! The agent answers when the slots are free; what training then does about it is not this command's business.

use crate::args::TakeBackArgs;
use crate::failure::Failure;
use crate::output::{Output, json, line, table};
use clap::{Args, ValueHint};
use events_schema::FleetId;
use gateway_api::Problem;
use gateway_client::ClientError;
use serde::Deserialize;
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use storage::store::without_secrets;
use workers_agent::{Access, AgentToken, FleetToken, TAKE_BACK_DEADLINE_MS, TakeBackToken};

/// What an answer may take beyond the deadline: the agent waits up to 15 s for a killed process to be reaped.
const ANSWER_SLACK: Duration = Duration::from_secs(20);

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
    /// `free`, `running`, `leaving` or `taken_back`.
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

impl AgentClient {
    /// The agent that runs on a data directory of `ebb up` or `ebb agent`.
    pub fn of_directory(data: &Path) -> Result<Self, Failure> {
        let access = access(data)?;
        Self::new(&access.url, &access.token_file)
    }

    /// Where it listens.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The agent at an address.
    pub fn new(url: &str, token_file: &Path) -> Result<Self, Failure> {
        let token =
            TakeBackToken::read(token_file).map_err(|e| Failure::local("the agent's token cannot be read", e))?;
        let http = reqwest::Client::builder()
            .no_proxy()
            .build()
            .map_err(|e| Failure::local("the HTTP client cannot be set up", e))?;
        Ok(Self { url: url.trim_end_matches('/').to_owned(), bearer: token.bearer(), http })
    }

    /// What is on its slots.
    pub async fn slots(&self) -> Result<Vec<AgentSlot>, Failure> {
        let answer = self.answer(self.http.get(format!("{}/v1/slots", self.url)).timeout(ANSWER_SLACK)).await?;
        self.read(&answer["slots"])
    }

    /// Takes slots back; returns when they are free.
    pub async fn take_back(&self, slots: &[String], deadline_ms: Option<u64>) -> Result<Vec<FreedSlot>, Failure> {
        let within = Duration::from_millis(deadline_ms.unwrap_or(TAKE_BACK_DEADLINE_MS));
        let body = json!({"slots": slots, "deadline_ms": within.as_millis() as u64});
        let request = self
            .http
            .post(format!("{}/v1/take-back", self.url))
            .header("content-type", "application/json")
            .body(body.to_string());
        let answer = self.answer(request.timeout(within + ANSWER_SLACK)).await?;
        self.read(&answer["slots"])
    }

    async fn answer(&self, request: reqwest::RequestBuilder) -> Result<Value, Failure> {
        let unreachable = |e: reqwest::Error| {
            Failure::local(format!("the agent at {} does not answer", without_secrets(&self.url)), e)
                .advise("start it with `ebb up` or `ebb agent`; without an agent no slot of its machine is in use")
        };
        let response = request.header("authorization", &self.bearer).send().await.map_err(unreachable)?;
        let status = response.status();
        let bytes = response.bytes().await.map_err(unreachable)?;
        if !status.is_success() {
            let problem: Problem = serde_json::from_slice(&bytes).map_err(|e| self.strange(&e))?;
            return Err(ClientError::Refused(Box::new(problem)).into());
        }
        serde_json::from_slice(&bytes).map_err(|e| self.strange(&e))
    }

    fn read<T: serde::de::DeserializeOwned>(&self, value: &Value) -> Result<T, Failure> {
        serde_json::from_value(value.clone()).map_err(|e| self.strange(&e))
    }

    fn strange(&self, error: &serde_json::Error) -> Failure {
        ClientError::Answer { url: without_secrets(&self.url), what: error.to_string() }.into()
    }
}

/// Arguments of `ebb fleet token`.
#[derive(Debug, Clone, Args)]
pub struct FleetTokenArgs {
    /// The fleet, as it stands in answers and logs.
    pub name: FleetId,
    /// A slot that it may take back, as its number at that agent; once for each.
    #[arg(long = "slot", required = true, value_name = "INDEX")]
    pub slots: Vec<u16>,
    /// The file to make; it must not be there.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub to: PathBuf,
    /// Data directory of the `ebb up` or `ebb agent` that runs on this machine.
    #[arg(long, value_name = "DIR", default_value = "./ebb-data", value_hint = ValueHint::DirPath)]
    pub data: PathBuf,
}

/// As the agent of this data directory, or of an `ebb up` on it, last wrote it.
fn access(data: &Path) -> Result<Access, Failure> {
    let places = [data.join(crate::home::AGENT_FOLDER), data.to_path_buf()];
    let found = places.iter().find_map(|place| Access::read(place).ok());
    found.ok_or_else(|| {
        Failure::plain(format!("no agent is known in `{}`", data.display()))
            .advise("name the data directory of its `ebb up` with --data, or the agent with --agent and --token-file")
    })
}

/// `ebb fleet token`.
pub fn fleet_token(output: Output, args: &FleetTokenArgs) -> Result<(), Failure> {
    let access = access(&args.data)?;
    let operator = AgentToken::read(&access.token_file).map_err(|e| {
        Failure::local("the agent's token cannot be read", e).advise("run this as the user who runs the agent")
    })?;
    let token = FleetToken::derive(&operator, &access.server, args.name.clone(), args.slots.iter().copied().collect());
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&args.to)
        .map_err(|e| Failure::local(format!("`{}` cannot be made", args.to.display()), e))?;
    writeln!(file, "{}", token.expose())
        .map_err(|e| Failure::local(format!("`{}` cannot be written", args.to.display()), e))?;
    match output {
        Output::Json => {
            json(&json!({"fleet": args.name, "server": access.server, "slots": args.slots, "token_file": args.to}))
        }
        Output::Name => line(args.name.as_str()),
        Output::Table => line(format!(
            "`{}` may take back {} with --agent {} --token-file {}",
            args.name,
            args.slots.iter().map(|slot| format!("{}/{slot}", access.server)).collect::<Vec<_>>().join(", "),
            access.url,
            args.to.display()
        )),
    }
    Ok(())
}

/// `ebb take-back`.
pub async fn take_back(output: Output, args: &TakeBackArgs) -> Result<(), Failure> {
    let agent = match (&args.agent, &args.token_file) {
        (Some(url), Some(token_file)) => AgentClient::new(url, &PathBuf::from(token_file))?,
        _ => AgentClient::of_directory(&args.data)?,
    };
    let freed = agent.take_back(&args.slots, args.deadline_ms).await?;
    match output {
        Output::Json => json(
            &json!({"slots": freed.iter().map(|f| json!({"slot": f.slot, "elapsed_ms": f.elapsed_ms, "killed": f.killed})).collect::<Vec<_>>()}),
        ),
        Output::Name => freed.iter().for_each(|slot| line(&slot.slot)),
        Output::Table => {
            let rows: Vec<Vec<String>> = freed
                .iter()
                .map(|f| {
                    vec![
                        f.slot.clone(),
                        format!("{} ms", f.elapsed_ms),
                        if f.killed { "killed at the deadline".into() } else { "left by itself".into() },
                    ]
                })
                .collect();
            line(table(&["SLOT", "FREE AFTER", "ITS EXECUTOR"], &rows));
        }
    }
    Ok(())
}
