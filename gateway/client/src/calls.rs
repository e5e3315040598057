//! The requests that there are, with the types of their answers.

use crate::client::{Body, Client};
use crate::error::ClientError;
use bytes::Bytes;
use futures::stream;
use gateway_api::{
    BINARY, Checkpoint, Code, Dataset, DatasetFile, DeclareFleet, DemandTaken, Fleet, Job, Log, NameSlots,
    PublishDemand, Server, Slot, UploadedModel, headers, paths,
};
use reqwest::Method;
use serde::de::DeserializeOwned;

/// A part of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPart {
    /// Where it begins: later than asked for if what was there is gone.
    pub from: u64,
    /// Where to go on.
    pub next: u64,
    /// What was said.
    pub bytes: Bytes,
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
    fn parameters(self, from: &'static str, to: &'static str) -> Vec<(&'static str, String)> {
        let named = |name, bound: Option<u64>| bound.map(|bound| (name, bound.to_string()));
        named(from, self.from).into_iter().chain(named(to, self.to)).collect()
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

/// A path with parameters.
fn with_query(path: String, parameters: &[(&'static str, String)]) -> String {
    if parameters.is_empty() {
        return path;
    }
    let query = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
    format!("{path}?{query}")
}

impl Client {
    /// A job.
    pub async fn job(&self, id: &str) -> Result<Job, ClientError> {
        self.get(&paths::job(id)).await
    }

    /// Ends a job.
    pub async fn cancel(&self, id: &str) -> Result<Job, ClientError> {
        self.ask(Method::DELETE, &paths::job(id), None, &[]).await
    }

    /// Uploads packed code; gives what a job's `model.code` is to say.
    pub async fn upload_code(&self, digest: &str, packed: Vec<u8>) -> Result<Code, ClientError> {
        let body = Body { bytes: packed, content_type: BINARY };
        self.ask(Method::PUT, &paths::code(digest), Some(body), &[]).await
    }

    /// The same, if it was uploaded before; it is then kept for a week more.
    pub async fn uploaded_code(&self, digest: &str) -> Result<Option<Code>, ClientError> {
        self.find_upload(&paths::code(digest)).await
    }

    /// What [`Self::upload_model`] gave, if it was uploaded before; it is then kept for a week more.
    pub async fn uploaded_model(&self, digest: &str) -> Result<Option<UploadedModel>, ClientError> {
        self.find_upload(&paths::initial(digest)).await
    }

    /// What was uploaded, as far as the service says: one of an earlier build takes uploads, but does not say what it has.
    async fn find_upload<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, ClientError> {
        match self.find(path).await {
            Err(failure) if failure.is_not_served() => Ok(None),
            answer => answer,
        }
    }

    /// Uploads a safetensors file, given in chunks; gives what a job's `model.from.upload` is to say.
    pub async fn upload_model(
        &self,
        digest: &str,
        bytes: u64,
        chunks: impl Iterator<Item = std::io::Result<Bytes>> + Send + Sync + 'static,
    ) -> Result<UploadedModel, ClientError> {
        self.put_stream(&paths::initial(digest), bytes, reqwest::Body::wrap_stream(stream::iter(chunks))).await
    }

    /// The files of a dataset, with links to those in the service's store.
    pub async fn dataset_links(&self, name: &str, numbers: Stretch) -> Result<Vec<DatasetFile>, ClientError> {
        let asked = numbers.parameters("from_number", "to_number");
        self.pages(&with_query(paths::dataset_links(name), &asked), "files").await
    }

    /// Checkpoints of a job that count, by step, and of those so many of the newest.
    pub async fn checkpoints(
        &self,
        id: &str,
        steps: Stretch,
        newest: Option<u64>,
    ) -> Result<Vec<Checkpoint>, ClientError> {
        let mut asked = steps.parameters("from_step", "to_step");
        asked.extend(newest.map(|newest| ("newest", newest.to_string())));
        self.pages(&with_query(paths::job_checkpoints(id), &asked), "checkpoints").await
    }

    /// What is kept of what a job's executors said, by executor.
    pub async fn logs(&self, id: &str, wanted: &WantedLogs) -> Result<Vec<Log>, ClientError> {
        let executor = wanted.executor.map(|number| ("executor", number.to_string()));
        let since = wanted.changed_since.clone().map(|since| ("changed_since", since));
        let asked: Vec<_> = executor.into_iter().chain(since).collect();
        self.pages(&with_query(paths::job_logs(id), &asked), "logs").await
    }

    /// What one executor said from a place on, as much as one answer holds; nothing if nothing of it is kept.
    pub async fn log(&self, id: &str, executor: u32, from: u64) -> Result<Option<LogPart>, ClientError> {
        let path = format!("{}?from={from}", paths::job_log(id, executor));
        match self.part(&path).await {
            Ok((said, bytes)) => {
                let place = |name: &str| said.get(name)?.to_str().ok()?.parse::<u64>().ok();
                let from = place(headers::LOG_FROM).unwrap_or(from);
                Ok(Some(LogPart { from, next: place(headers::LOG_NEXT).unwrap_or(from), bytes }))
            }
            Err(failure) if failure.is_not_found() => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// A dataset, if it is registered.
    pub async fn dataset(&self, name: &str) -> Result<Option<Dataset>, ClientError> {
        self.find(&paths::dataset(name)).await
    }

    /// A fleet, if it is declared.
    pub async fn fleet(&self, name: &str) -> Result<Option<Fleet>, ClientError> {
        self.find(&paths::fleet(name)).await
    }

    /// Declares a fleet, or declares it anew.
    pub async fn declare_fleet(&self, name: &str, fleet: &DeclareFleet) -> Result<Fleet, ClientError> {
        self.ask(Method::PUT, &paths::fleet(name), Some(Body::json(fleet)), &[]).await
    }

    /// Lends slots of a fleet.
    pub async fn offer(&self, fleet: &str, slots: &NameSlots) -> Result<Fleet, ClientError> {
        self.ask(Method::POST, &paths::fleet_offers(fleet), Some(Body::json(slots)), &[]).await
    }

    /// Says how many of its slots a fleet needs.
    pub async fn demand(&self, fleet: &str, demand: &PublishDemand) -> Result<DemandTaken, ClientError> {
        self.ask(Method::POST, &paths::fleet_demand(fleet), Some(Body::json(demand)), &[]).await
    }

    /// All slots, by server and number.
    pub async fn slots(&self) -> Result<Vec<Slot>, ClientError> {
        self.pages(paths::SLOTS, "slots").await
    }

    /// What the service is.
    pub async fn server(&self) -> Result<Server, ClientError> {
        self.get(paths::SERVER).await
    }
}
