//! The requests that there are, with the types of their answers.

use crate::client::{Body, Client};
use crate::error::ClientError;
use bytes::Bytes;
use futures::stream;
use gateway_api::{
    BINARY, Code, Dataset, DatasetFile, DeclareFleet, DemandTaken, Fleet, Job, Log, NameSlots, PublishDemand, Server,
    Slot, UploadedModel, headers, paths,
};
use reqwest::Method;

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

impl Client {
    /// A job.
    pub async fn job(&self, id: &str) -> Result<Job, ClientError> {
        self.get(&paths::with(paths::JOB, id)).await
    }

    /// Ends a job.
    pub async fn cancel(&self, id: &str) -> Result<Job, ClientError> {
        self.ask(Method::DELETE, &paths::with(paths::JOB, id), None, &[]).await
    }

    /// Uploads packed code; gives what a job's `model.code` is to say.
    pub async fn upload_code(&self, digest: &str, packed: Vec<u8>) -> Result<Code, ClientError> {
        let body = Body { bytes: packed, content_type: BINARY };
        self.ask(Method::PUT, &paths::with(paths::CODE, digest), Some(body), &[]).await
    }

    /// Uploads a safetensors file, given in chunks; gives what a job's `model.from.upload` is to say.
    pub async fn upload_model(
        &self,
        digest: &str,
        bytes: u64,
        chunks: impl Iterator<Item = std::io::Result<Bytes>> + Send + Sync + 'static,
    ) -> Result<UploadedModel, ClientError> {
        self.put_stream(&paths::with(paths::INITIAL, digest), bytes, reqwest::Body::wrap_stream(stream::iter(chunks)))
            .await
    }

    /// The files of a dataset, with links to those in the service's store.
    pub async fn dataset_links(&self, name: &str) -> Result<Vec<DatasetFile>, ClientError> {
        self.pages(&paths::with(paths::DATASET_LINKS, name), "files").await
    }

    /// What is kept of what a job's executors said, by executor.
    pub async fn logs(&self, id: &str) -> Result<Vec<Log>, ClientError> {
        self.pages(&paths::with(paths::JOB_LOGS, id), "logs").await
    }

    /// What one executor said from a place on, as much as one answer holds; nothing if nothing of it is kept.
    pub async fn log(&self, id: &str, executor: u32, from: u64) -> Result<Option<LogPart>, ClientError> {
        let path = format!("{}/{executor}?from={from}", paths::with(paths::JOB_LOGS, id));
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
        self.find(&paths::with(paths::DATASET, name)).await
    }

    /// A fleet, if it is declared.
    pub async fn fleet(&self, name: &str) -> Result<Option<Fleet>, ClientError> {
        self.find(&paths::with(paths::FLEET, name)).await
    }

    /// Declares a fleet, or declares it anew.
    pub async fn declare_fleet(&self, name: &str, fleet: &DeclareFleet) -> Result<Fleet, ClientError> {
        self.ask(Method::PUT, &paths::with(paths::FLEET, name), Some(Body::json(fleet)), &[]).await
    }

    /// Lends slots of a fleet.
    pub async fn offer(&self, fleet: &str, slots: &NameSlots) -> Result<Fleet, ClientError> {
        self.ask(Method::POST, &paths::with(paths::FLEET_OFFERS, fleet), Some(Body::json(slots)), &[]).await
    }

    /// Says how many of its slots a fleet needs.
    pub async fn demand(&self, fleet: &str, demand: &PublishDemand) -> Result<DemandTaken, ClientError> {
        self.ask(Method::POST, &paths::with(paths::FLEET_DEMAND, fleet), Some(Body::json(demand)), &[]).await
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
