//! Every way a command of `ebb` can end other than well: its text, its exit code and what its user can do next.
//!
//! Decides nothing; commands return a [`Failure`], `lib.rs` prints it and exits with its code.

use gateway_client::ClientError;
use loadtest_harness::HarnessError;
use std::error::Error;
use std::io::Write;
use std::time::Duration;
use workers_agent_client::AgentClientError;

/// Exit codes beside 0; shown by `ebb --help`.
pub mod exit_code {
    /// The command failed.
    pub const FAILED: u8 = 1;
    /// The arguments make no sense (clap's own code).
    pub const USAGE: u8 = 2;
    /// No service answers at the URL.
    pub const UNREACHABLE: u8 = 3;
    /// The service refused the request and said why.
    pub const REFUSED: u8 = 4;
    /// The job that was waited for failed.
    pub const JOB_FAILED: u8 = 5;
    /// The job that was waited for was cancelled.
    pub const JOB_CANCELLED: u8 = 6;
    /// The job that was waited for is suspended, which only its user ends.
    pub const JOB_SUSPENDED: u8 = 7;
    /// What was waited for did not come in time.
    pub const TIMED_OUT: u8 = 8;
    /// A load ran, and a threshold of its scenario does not hold.
    pub const THRESHOLD: u8 = 9;
    /// There is no such thing, as typed.
    pub const NOT_FOUND: u8 = 10;
    /// A job was trained once more, and something of it differs.
    pub const DIFFERENT: u8 = 11;
    /// A job cannot be verified, or nothing could be compared.
    pub const NOT_VERIFIED: u8 = 12;
    /// Ctrl-C or its like; the shell's code for it.
    pub const INTERRUPTED: u8 = 130;
}

/// The phase of a job that waits for its user.
const SUSPENDED: &str = "suspended";
/// The phase of a job that its user ended.
const CANCELLED: &str = "cancelled";

/// Why a command ended without success.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum Failure {
    /// The service did not do what it was asked.
    #[error(transparent)]
    Service(#[from] ClientError),
    /// The agent did not do what it was asked.
    #[error(transparent)]
    Agent(AgentClientError),
    /// No such thing. Stop.
    #[error("there is no {kind} `{text}`")]
    NotFound {
        /// `job`, `slot`, …
        kind: &'static str,
        /// As typed.
        text: String,
        /// The nearest that exists.
        nearest: Option<String>,
    },
    /// An abbreviation fits several. Stop.
    #[error("`{text}` fits {} {kind}s: {}", .candidates.len(), shown(.candidates))]
    Ambiguous {
        /// `job`, …
        kind: &'static str,
        /// As typed.
        text: String,
        /// All that begin with it.
        candidates: Vec<String>,
    },
    /// A job ended, or was suspended, without a model. Stop.
    #[error("job {job} {}{phase}{}", if .phase == SUSPENDED { "is " } else { "" }, .reason.as_ref().map(|r| format!(": {r}")).unwrap_or_default())]
    NoModel {
        job: String,
        /// `failed`, `cancelled` or `suspended`.
        phase: String,
        /// Why it failed.
        reason: Option<String>,
    },
    /// A load ran, and thresholds of its scenario do not hold. Stop.
    #[error("what the scenario demands does not hold: {}", broken.join(", "))]
    Thresholds {
        /// Measure and figure of each.
        broken: Vec<String>,
    },
    /// A job was trained once more, and something of it differs from what was recorded. Stop; its document says where.
    #[error("job {job} is another one: {says}")]
    Different { job: String, says: String },
    /// Nothing can be said of a job by training it once more. Stop.
    #[error("job {job} cannot be verified: {because}")]
    NotVerified { job: String, because: String },
    /// What was waited for did not come in time; the job goes on. Wait again.
    #[error("{job} is {phase}; waited {within:?} for it to be {wanted}")]
    TimedOut {
        /// The first job that was not as wanted.
        job: String,
        /// What it is, as last heard.
        phase: String,
        /// What it was to be.
        wanted: String,
        /// How long that was waited for.
        within: Duration,
    },
    /// Something on this machine. Stop.
    #[error("{what}")]
    Local {
        /// What could not be done.
        what: String,
        /// What to do about it.
        next: Option<String>,
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// Ctrl-C or its like. Stop; what ran was stopped too.
    #[error("interrupted; what this command ran was stopped with it")]
    Interrupted,
    /// The arguments contradict each other or their values make no sense. Stop.
    #[error("{0}")]
    Usage(String),
}

impl Failure {
    /// A local failure with its cause.
    pub fn local(what: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Local { what: what.into(), next: None, source: Some(source.into()) }
    }

    /// A local failure that is its own cause.
    pub fn plain(what: impl Into<String>) -> Self {
        Self::Local { what: what.into(), next: None, source: None }
    }

    /// The same failure with advice.
    #[must_use]
    pub fn advise(self, advice: impl Into<String>) -> Self {
        match self {
            Self::Local { what, source, .. } => Self::Local { what, next: Some(advice.into()), source },
            other => other,
        }
    }

    /// The exit code of the process.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Service(ClientError::Unreachable { .. } | ClientError::Proxy { may_have_effect: false, .. }) => {
                exit_code::UNREACHABLE
            }
            Self::Service(failure) if failure.is_not_found() => exit_code::NOT_FOUND,
            Self::NotFound { .. } => exit_code::NOT_FOUND,
            Self::Service(ClientError::Refused(_)) => exit_code::REFUSED,
            Self::Service(ClientError::Options(_)) => exit_code::USAGE,
            Self::NoModel { phase, .. } => match phase.as_str() {
                CANCELLED => exit_code::JOB_CANCELLED,
                SUSPENDED => exit_code::JOB_SUSPENDED,
                _ => exit_code::JOB_FAILED,
            },
            Self::TimedOut { .. } => exit_code::TIMED_OUT,
            Self::Usage(_) => exit_code::USAGE,
            Self::Different { .. } => exit_code::DIFFERENT,
            Self::NotVerified { .. } => exit_code::NOT_VERIFIED,
            Self::Thresholds { .. } => exit_code::THRESHOLD,
            Self::Interrupted => exit_code::INTERRUPTED,
            Self::Service(_) | Self::Agent(_) | Self::Ambiguous { .. } | Self::Local { .. } => exit_code::FAILED,
        }
    }

    /// Whether the trouble may pass by itself (no connection, a proxy without its service, or a service that is not ready yet), so that a request that can be
    /// repeated may be.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Service(failure) if failure.may_pass())
    }

    /// What its user can do next.
    #[must_use]
    pub fn next_step(&self) -> Option<String> {
        match self {
            Self::Service(failure) => next_step_of(failure),
            Self::Agent(failure) => next_step_at_agent(failure).map(str::to_owned),
            Self::NotFound { nearest: Some(nearest), .. } => Some(format!("did you mean `{nearest}`?")),
            Self::NotFound { kind, .. } => Some(format!("`ebb {kind}s` lists what there is")),
            Self::Ambiguous { .. } => Some("type more of it".to_owned()),
            Self::NoModel { job, phase, .. } if phase == SUSPENDED => Some(format!("go on with `ebb resume {job}`")),
            Self::NoModel { job, .. } => Some(format!("`ebb explain {job}` tells why")),
            Self::TimedOut { job, .. } => {
                Some(format!("`ebb explain {job}` tells what it waits for; wait again, or longer"))
            }
            Self::Local { next, .. } => next.clone(),
            Self::Usage(_) => Some("`ebb help COMMAND` shows how it is used".to_owned()),
            Self::Different { .. } => Some(
                "keep the document and both jobs' checkpoints; verify it once more on other servers to tell which of them erred".to_owned(),
            ),
            Self::NotVerified { .. } | Self::Thresholds { .. } | Self::Interrupted => None,
        }
    }

    /// Writes the failure, its causes and the next step to standard error.
    pub fn print(&self) {
        let mut err = std::io::stderr().lock();
        let mut text = format!("ebb: {self}\n");
        for cause in causes(self) {
            text.push_str(&format!("  because: {cause}\n"));
        }
        if let Some(next) = self.next_step() {
            text.push_str(&format!("  next: {next}\n"));
        }
        // A closed standard error leaves the exit code to tell.
        let _ = err.write_all(text.as_bytes());
    }
}

/// What led to a failure, nearest first, without what was told already: some libraries put the text of their source into their own.
fn causes(failure: &dyn Error) -> Vec<String> {
    let (mut told, mut before) = (Vec::new(), failure.to_string());
    let mut cause = failure.source();
    while let Some(source) = cause {
        let text = source.to_string();
        if !before.contains(&text) {
            told.push(text.clone());
            before = text;
        }
        cause = source.source();
    }
    told
}

/// What to do where something else answers.
const OTHER_BUILD: &str = "check that --url or EBB_URL points to an Ebb of this version";

/// What its user can do about a service that did not do what it was asked.
fn next_step_of(failure: &ClientError) -> Option<String> {
    let text = match failure {
        ClientError::Unreachable { .. } => "start it with `ebb up`, or say where it runs with --url or EBB_URL",
        ClientError::NoAnswer { may_have_effect: true, .. } | ClientError::Proxy { may_have_effect: true, .. } => {
            "look whether it was done (`ebb jobs`, `ebb dataset list`, `ebb fleets`) before sending it again"
        }
        ClientError::NoAnswer { .. } => "try again; the service may be busy or just restarting",
        ClientError::Proxy { .. } => "try again; if it stays so, look whether Ebb runs behind what answers there",
        ClientError::Undecided { command, .. } => {
            return Some(format!(
                "it will be decided once a controller runs; GET /v1/commands/{command} tells, do not send it again"
            ));
        }
        ClientError::Answer { .. } => OTHER_BUILD,
        ClientError::Refused(_) if failure.is_not_served() => OTHER_BUILD,
        ClientError::Options(_) => "`ebb help COMMAND` shows how it is used",
        ClientError::File { .. } => "name a file that can be read",
        ClientError::Refused(_) | ClientError::SetUp(_) | ClientError::Sink(_) | ClientError::NoRandomness(_) => {
            return None;
        }
    };
    Some(text.to_owned())
}

/// What its user can do about an agent that did not do what it was asked.
fn next_step_at_agent(failure: &AgentClientError) -> Option<&'static str> {
    match failure {
        AgentClientError::Unknown(_) => {
            Some("name the data directory of its `ebb up` with --data, or the agent with --agent and --token-file")
        }
        AgentClientError::Token(_) => Some("run this as the user who runs the agent, or with its fleet's token file"),
        AgentClientError::Unreachable { .. } => {
            Some("start it with `ebb up` or `ebb agent`; without an agent no slot of its machine is in use")
        }
        AgentClientError::SetUp(_) | AgentClientError::Answer(_) => None,
    }
}

// What an agent answers reads, and ends the command, as what the service answers.
impl From<AgentClientError> for Failure {
    fn from(error: AgentClientError) -> Self {
        match error {
            AgentClientError::Answer(answer) => Self::Service(answer),
            other => Self::Agent(other),
        }
    }
}

impl From<HarnessError> for Failure {
    fn from(error: HarnessError) -> Self {
        match error {
            HarnessError::Service(failure) => failure.into(),
            HarnessError::Agent(failure) => failure.into(),
            HarnessError::NoModel { job, phase, reason } => Self::NoModel { job, phase, reason },
            HarnessError::Options(text) => Self::Usage(text),
            HarnessError::Local { what, source } => Self::Local { what, next: None, source },
        }
    }
}

/// Candidates of an ambiguous abbreviation that are shown.
const CANDIDATES_SHOWN: usize = 6;

fn shown(candidates: &[String]) -> String {
    let mut text = candidates.iter().take(CANDIDATES_SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if candidates.len() > CANDIDATES_SHOWN {
        text.push_str(", …");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Link {
        text: &'static str,
        source: Option<Box<Link>>,
    }

    #[test]
    fn a_cause_is_told_once() {
        let link = |text, source: Option<Link>| Link { text, source: source.map(Box::new) };
        let chain =
            link("PUT x failed: status 403: <page>", Some(link("status 403: <page>", Some(link("closed", None)))));
        let failure = Failure::local("the store does not answer", chain);
        assert_eq!(causes(&failure), ["PUT x failed: status 403: <page>", "closed"]);
    }

    #[test]
    fn each_kind_has_its_own_exit_code() {
        let ended =
            |phase: &str| Failure::NoModel { job: "job-a".into(), phase: phase.into(), reason: None }.exit_code();
        assert_eq!([ended("failed"), ended("cancelled"), ended("suspended")], [5, 6, 7]);
        let late = Failure::TimedOut {
            job: "job-a".into(),
            phase: "queued".into(),
            wanted: "running".into(),
            within: Duration::from_secs(3),
        };
        assert_eq!(late.to_string(), "job-a is queued; waited 3s for it to be running");
        assert_eq!(
            [late.exit_code(), Failure::Usage(String::new()).exit_code(), Failure::plain("x").exit_code()],
            [8, 2, 1]
        );
        let refused = |status| {
            let problem = gateway_api::Problem { status, ..gateway_api::Problem::default() };
            Failure::Service(ClientError::Refused(Box::new(problem))).exit_code()
        };
        let missing = Failure::NotFound { kind: "job", text: "x".into(), nearest: None };
        assert_eq!([refused(409), refused(404), missing.exit_code()], [4, 10, 10]);
        let no_path = gateway_api::ProblemKind::UnknownPath.document("there is no such path", Vec::new());
        let no_path = Failure::Service(ClientError::Refused(Box::new(no_path)));
        assert_eq!(no_path.exit_code(), 4, "it says nothing of jobs, fleets and datasets");
        assert!(no_path.next_step().is_some_and(|next| next.contains("an Ebb of this version")));
    }

    #[test]
    fn a_suspended_job_is_no_ended_one() {
        let suspended = Failure::NoModel { job: "job-a".into(), phase: "suspended".into(), reason: None };
        assert_eq!(suspended.to_string(), "job job-a is suspended");
        assert_eq!(suspended.next_step().as_deref(), Some("go on with `ebb resume job-a`"));
    }
}
