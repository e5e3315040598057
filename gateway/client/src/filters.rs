//! What is wanted of a list or of events: the parameters of their queries, as types.

use gateway_api::{JobPhase, SlotState, paths};

/// Parameters of a query.
pub(crate) type Parameters = Vec<(&'static str, String)>;

/// A path with parameters.
pub(crate) fn with_query(path: String, parameters: &[(&'static str, String)]) -> String {
    if parameters.is_empty() {
        return path;
    }
    let query = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
    format!("{path}?{query}")
}

/// Those that are given.
fn given<const N: usize>(all: [(&'static str, Option<String>); N]) -> Parameters {
    all.into_iter().filter_map(|(name, value)| value.map(|value| (name, value))).collect()
}

/// Which jobs are wanted; all by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WantedJobs {
    /// In this phase.
    pub phase: Option<JobPhase>,
    /// Whose id begins so.
    pub prefix: Option<String>,
    /// That their users call so.
    pub name: Option<String>,
    /// That train on this dataset.
    pub dataset: Option<String>,
    /// Of this tenant.
    pub tenant: Option<String>,
}

impl WantedJobs {
    /// Those in this phase.
    #[must_use]
    pub fn in_phase(phase: JobPhase) -> Self {
        Self { phase: Some(phase), ..Self::default() }
    }

    pub(crate) fn parameters(&self) -> Parameters {
        let Self { phase, prefix, name, dataset, tenant } = self.clone();
        let phase = phase.map(|phase| phase.as_str().to_owned());
        given([("phase", phase), ("prefix", prefix), ("name", name), ("dataset", dataset), ("tenant", tenant)])
    }
}

/// Which slots are wanted; all by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WantedSlots {
    /// Of this fleet.
    pub fleet: Option<String>,
    /// Of this server.
    pub server: Option<String>,
    /// That this job is on.
    pub job: Option<String>,
    /// In this state.
    pub state: Option<SlotState>,
}

impl WantedSlots {
    pub(crate) fn parameters(&self) -> Parameters {
        let Self { fleet, server, job, state } = self.clone();
        let state = state.map(|state| state.as_str().to_owned());
        given([("fleet", fleet), ("server", server), ("job", job), ("state", state)])
    }
}

/// A stretch of numbers, both ends in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stretch {
    /// The first; 0 if nothing is said.
    pub from: Option<u64>,
    /// The last; all that there are if nothing is said.
    pub to: Option<u64>,
}

impl Stretch {
    pub(crate) fn parameters(self, from: &'static str, to: &'static str) -> Parameters {
        given([(from, self.from.map(|n| n.to_string())), (to, self.to.map(|n| n.to_string()))])
    }
}

/// Which logs are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WantedLogs {
    /// Of one executor.
    pub executor: Option<u32>,
    /// That grew at this time (RFC 3339) or later.
    pub changed_since: Option<String>,
}

impl WantedLogs {
    pub(crate) fn parameters(&self) -> Parameters {
        let executor = self.executor.map(|number| number.to_string());
        given([("executor", executor), ("changed_since", self.changed_since.clone())])
    }
}

/// Which events are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Events {
    path: String,
    parameters: Parameters,
}

impl Events {
    fn at(path: impl Into<String>) -> Self {
        Self { path: path.into(), parameters: Vec::new() }
    }

    /// All that there are.
    #[must_use]
    pub fn all() -> Self {
        Self::at(paths::EVENTS)
    }

    /// Those of a job.
    #[must_use]
    pub fn of_job(id: &str) -> Self {
        Self::at(paths::job_events(id))
    }

    /// Those of a fleet and its slots.
    #[must_use]
    pub fn of_fleet(name: &str) -> Self {
        Self::at(paths::fleet_events(name))
    }

    /// Only these types, each whole or with a `*` at its end: `job.scaled.v1`, `slot.*`.
    #[must_use]
    pub fn of_types(self, types: &[&str]) -> Self {
        self.with("type", types.join(","))
    }

    /// Only what is about this job, fleet, slot, dataset or server.
    #[must_use]
    pub fn about(self, subject: &str) -> Self {
        self.with("subject", subject.to_owned())
    }

    fn with(mut self, name: &'static str, value: String) -> Self {
        self.parameters.push((name, value));
        self
    }

    /// As a stream is asked for.
    pub(crate) fn stream(&self) -> String {
        with_query(self.path.clone(), &self.parameters)
    }

    /// As a page is asked for.
    pub(crate) fn page(&self, limit: usize, from: Option<&str>) -> String {
        let page = given([("limit", Some(limit.to_string())), ("from", from.map(str::to_owned))]);
        with_query(self.path.clone(), &[self.parameters.clone(), page].concat())
    }
}
