//! A method for every operation of the API, with the types of what it takes and answers; a test holds them against the table of operations. How jobs
//! are submitted is in `submit.rs`, how events are read in `event_pages.rs` and `follow.rs`.

use crate::answer::Answer;
use crate::client::{Body, Client};
use crate::error::ClientError;
use crate::filters::{Parameters, Stretch, WantedJobs, WantedLogs, WantedSlots, with_query};
use bytes::Bytes;
use futures::stream;
use gateway_api::{
    BINARY, Checkpoint, Code, CommandStatus, Dataset, DatasetFile, DeclareFleet, DemandTaken, Fleet, Health, Job,
    LinkedFile, Log, NameSlots, PublishDemand, RecallFleet, RegisterDataset, Server, SetQuota, Slot, Tenant,
    UploadedModel, headers, paths,
};
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

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

/// Jobs, and what they left.
impl Client {
    /// A job.
    pub async fn job(&self, id: &str) -> Result<Answer<Job>, ClientError> {
        self.get(&paths::job(id)).await
    }

    /// Jobs, newest first.
    pub async fn jobs(&self, wanted: &WantedJobs) -> Result<Vec<Answer<Job>>, ClientError> {
        self.pages(paths::JOBS, "jobs", wanted.parameters()).await
    }

    /// The newest jobs, at most a page of so many.
    pub async fn newest_jobs(&self, wanted: &WantedJobs, limit: usize) -> Result<Vec<Answer<Job>>, ClientError> {
        self.page(paths::JOBS, "jobs", &wanted.parameters(), limit, None).await.map(|(jobs, _)| jobs)
    }

    /// Ends a job.
    pub async fn cancel(&self, id: &str) -> Result<Answer<Job>, ClientError> {
        self.ask(Method::DELETE, &paths::job(id), None, &[]).await
    }

    /// Has a job write a checkpoint and give its slots back.
    pub async fn suspend(&self, id: &str) -> Result<Answer<Job>, ClientError> {
        self.ask(Method::POST, &paths::job_suspend(id), None, &[]).await
    }

    /// Lets a suspended job run again.
    pub async fn resume(&self, id: &str) -> Result<Answer<Job>, ClientError> {
        self.ask(Method::POST, &paths::job_resume(id), None, &[]).await
    }

    /// Checkpoints of a job that count, by step, and of those so many of the newest.
    pub async fn checkpoints(
        &self,
        id: &str,
        steps: Stretch,
        newest: Option<u64>,
    ) -> Result<Vec<Answer<Checkpoint>>, ClientError> {
        let mut asked = steps.parameters("from_step", "to_step");
        asked.extend(newest.map(|newest| ("newest", newest.to_string())));
        self.pages(&paths::job_checkpoints(id), "checkpoints", asked).await
    }

    /// What is kept of what a job's executors said, by executor.
    pub async fn logs(&self, id: &str, wanted: &WantedLogs) -> Result<Vec<Answer<Log>>, ClientError> {
        self.pages(&paths::job_logs(id), "logs", wanted.parameters()).await
    }

    /// What one executor said from a place on, as much as one answer holds; nothing if nothing of it is kept.
    pub async fn log(&self, id: &str, executor: u32, from: u64) -> Result<Option<LogPart>, ClientError> {
        let path = with_query(paths::job_log(id, executor), &[("from", from.to_string())]);
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

    /// Writes the final model of a job to `sink`, piece by piece; the number of bytes.
    pub async fn download_model(&self, id: &str, sink: &mut impl std::io::Write) -> Result<u64, ClientError> {
        self.download(&paths::job_model(id), sink).await
    }

    /// Where the final model of a job can be read from the object store itself.
    pub async fn model_link(&self, id: &str) -> Result<Answer<LinkedFile>, ClientError> {
        self.get(&paths::job_model_link(id)).await
    }
}

/// What jobs begin with.
impl Client {
    /// Uploads packed code; gives what a job's `model.code` is to say.
    pub async fn upload_code(&self, digest: &str, packed: Vec<u8>) -> Result<Answer<Code>, ClientError> {
        let body = Body { bytes: packed, content_type: BINARY };
        self.ask(Method::PUT, &paths::code(digest), Some(body), &[]).await
    }

    /// The same, if it was uploaded before; it is then kept for a week more.
    pub async fn uploaded_code(&self, digest: &str) -> Result<Option<Answer<Code>>, ClientError> {
        self.find_upload(&paths::code(digest)).await
    }

    /// What [`Self::upload_model`] gave, if it was uploaded before; it is then kept for a week more.
    pub async fn uploaded_model(&self, digest: &str) -> Result<Option<Answer<UploadedModel>>, ClientError> {
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
    ) -> Result<Answer<UploadedModel>, ClientError> {
        self.put_stream(&paths::initial(digest), bytes, reqwest::Body::wrap_stream(stream::iter(chunks))).await
    }
}

/// What jobs are trained on.
impl Client {
    /// Registers a dataset, which may read the footers of thousands of files.
    pub async fn register_dataset(&self, dataset: &RegisterDataset) -> Result<Answer<Dataset>, ClientError> {
        self.ask_patiently(paths::DATASETS, Body::json(dataset)).await
    }

    /// Datasets, by name; those whose name begins so.
    pub async fn datasets(&self, prefix: Option<&str>) -> Result<Vec<Answer<Dataset>>, ClientError> {
        self.pages(paths::DATASETS, "datasets", beginning(prefix)).await
    }

    /// A dataset.
    pub async fn dataset(&self, name: &str) -> Result<Answer<Dataset>, ClientError> {
        self.get(&paths::dataset(name)).await
    }

    /// A dataset, if it is registered.
    pub async fn find_dataset(&self, name: &str) -> Result<Option<Answer<Dataset>>, ClientError> {
        self.find(&paths::dataset(name)).await
    }

    /// The files of a dataset, with links to those in the service's store.
    pub async fn dataset_links(&self, name: &str, numbers: Stretch) -> Result<Vec<Answer<DatasetFile>>, ClientError> {
        self.pages(&paths::dataset_links(name), "files", numbers.parameters("from_number", "to_number")).await
    }

    /// Forgets a dataset; its files stay.
    pub async fn remove_dataset(&self, name: &str) -> Result<(), ClientError> {
        self.ask(Method::DELETE, &paths::dataset(name), None, &[]).await
    }
}

/// Fleets and their slots.
impl Client {
    /// Fleets, by name; those whose name begins so.
    pub async fn fleets(&self, prefix: Option<&str>) -> Result<Vec<Answer<Fleet>>, ClientError> {
        self.pages(paths::FLEETS, "fleets", beginning(prefix)).await
    }

    /// A fleet and the state of its slots.
    pub async fn fleet(&self, name: &str) -> Result<Answer<Fleet>, ClientError> {
        self.get(&paths::fleet(name)).await
    }

    /// A fleet, if it is declared.
    pub async fn find_fleet(&self, name: &str) -> Result<Option<Answer<Fleet>>, ClientError> {
        self.find(&paths::fleet(name)).await
    }

    /// Declares a fleet, or declares it anew.
    pub async fn declare_fleet(&self, name: &str, fleet: &DeclareFleet) -> Result<Answer<Fleet>, ClientError> {
        self.ask(Method::PUT, &paths::fleet(name), Some(Body::json(fleet)), &[]).await
    }

    /// Lends slots of a fleet.
    pub async fn offer(&self, fleet: &str, slots: &NameSlots) -> Result<Answer<Fleet>, ClientError> {
        self.post(&paths::fleet_offers(fleet), slots).await
    }

    /// Takes slots of a fleet back.
    pub async fn reclaim(&self, fleet: &str, slots: &NameSlots) -> Result<Answer<Fleet>, ClientError> {
        self.post(&paths::fleet_reclaims(fleet), slots).await
    }

    /// Takes slots of a fleet back at once, and keeps them whatever demand is signalled.
    pub async fn recall(&self, fleet: &str, recall: &RecallFleet) -> Result<Answer<Fleet>, ClientError> {
        self.post(&paths::fleet_recall(fleet), recall).await
    }

    /// Lets the last demand signal of a recalled fleet count again.
    pub async fn release(&self, fleet: &str) -> Result<Answer<Fleet>, ClientError> {
        self.ask(Method::POST, &paths::fleet_release(fleet), None, &[]).await
    }

    /// Says how many of its slots a fleet needs.
    pub async fn demand(&self, fleet: &str, demand: &PublishDemand) -> Result<Answer<DemandTaken>, ClientError> {
        self.post(&paths::fleet_demand(fleet), demand).await
    }

    /// Slots, by server and number.
    pub async fn slots(&self, wanted: &WantedSlots) -> Result<Vec<Answer<Slot>>, ClientError> {
        self.pages(paths::SLOTS, "slots", wanted.parameters()).await
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ClientError> {
        self.ask(Method::POST, path, Some(Body::json(body)), &[]).await
    }
}

/// Tenants and their quotas.
impl Client {
    /// Tenants that have a quota or jobs, by name; those whose name begins so.
    pub async fn tenants(&self, prefix: Option<&str>) -> Result<Vec<Answer<Tenant>>, ClientError> {
        self.pages(paths::TENANTS, "tenants", beginning(prefix)).await
    }

    /// A tenant.
    pub async fn tenant(&self, name: &str) -> Result<Answer<Tenant>, ClientError> {
        self.get(&paths::tenant(name)).await
    }

    /// Says how many slots a tenant has guaranteed.
    pub async fn set_quota(&self, name: &str, quota: &SetQuota) -> Result<Answer<Tenant>, ClientError> {
        self.ask(Method::PUT, &paths::tenant(name), Some(Body::json(quota)), &[]).await
    }

    /// Takes a tenant's quota away.
    pub async fn remove_quota(&self, name: &str) -> Result<(), ClientError> {
        self.ask(Method::DELETE, &paths::tenant(name), None, &[]).await
    }
}

/// The service itself.
impl Client {
    /// What became of a command that was not decided at once.
    pub async fn command(&self, id: &str) -> Result<Answer<CommandStatus>, ClientError> {
        self.get(&paths::command(id)).await
    }

    /// What the service is.
    pub async fn server(&self) -> Result<Answer<Server>, ClientError> {
        self.get(paths::SERVER).await
    }

    /// The document of its API.
    pub async fn openapi(&self) -> Result<Value, ClientError> {
        self.get(paths::OPENAPI).await
    }

    /// An answer if it lives.
    pub async fn health(&self) -> Result<Answer<Health>, ClientError> {
        self.get(paths::HEALTHZ).await
    }

    /// An answer if it can do its work, and is to stay.
    pub async fn readiness(&self) -> Result<Answer<Health>, ClientError> {
        self.get(paths::READYZ).await
    }

    /// What its process counts and measures, as Prometheus reads it.
    pub async fn metrics(&self) -> Result<String, ClientError> {
        let (_, text) = self.part(paths::METRICS).await?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

fn beginning(prefix: Option<&str>) -> Parameters {
    prefix.map(|prefix| ("prefix", prefix.to_owned())).into_iter().collect()
}

#[cfg(test)]
#[path = "calls_tests.rs"]
mod tests;
