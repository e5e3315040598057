//! A job that is measured: submitted to a service, or computed in this process.

use crate::torch_code::Device;
use events_schema::JobId;
use events_schema::job::JobSpec;
use events_schema::orders::JobOrder;
use gateway_api::Job;
use gateway_client::{Body, Client};
use loadtest_harness::HarnessError;
use loadtest_harness::service::ServiceOptions;
use serde_json::{Value, json};
use std::path::Path;

/// What is measured, and what its service needs for it.
#[derive(Debug, Clone)]
pub struct Subject {
    /// As submitted.
    pub document: Value,
    /// For a model in PyTorch: the Python that runs it, and its packed code with its name.
    pub torch: Option<TorchNeeds>,
}

/// What a job in PyTorch needs beside its document.
#[derive(Debug, Clone)]
pub struct TorchNeeds {
    /// The Python of its service.
    pub python: String,
    /// Where it trains.
    pub device: Device,
    /// The digest of `packed`.
    pub digest: String,
    /// Its code.
    pub packed: Vec<u8>,
}

impl Subject {
    /// A residual network of Ebb's own on the digits, with no checkpoint while it is looked at.
    #[must_use]
    pub fn native(workers: u16, rows: u16, steps: u64) -> Self {
        let model = json!({"kind": "cnn", "channels": [16, 32], "blocks": 1, "groups": 4});
        Self { document: document(&model, workers, rows, steps), torch: None }
    }

    /// The same with so many logical workers.
    #[must_use]
    pub fn of_workers(&self, workers: u16) -> Self {
        let mut other = self.clone();
        other.document["workers"] = json!({"min": 1, "max": workers});
        other
    }

    /// Options of a service that can run it.
    pub fn service(&self, data: &Path, slots: u16) -> Result<ServiceOptions, HarnessError> {
        let python = self.torch.as_ref().map(|torch| torch.python.as_str());
        let on_gpu = self.torch.as_ref().is_some_and(|torch| torch.device == Device::Cuda);
        let devices = on_gpu.then(|| vec!["0"; usize::from(slots)].join(","));
        Ok(ServiceOptions::new(data, slots)?.with("--python", python).with("--devices", devices.as_deref()))
    }

    /// Submits it; `key` makes doing so again the same.
    pub async fn submit(&self, client: &Client, key: &str) -> Result<Job, HarnessError> {
        if let Some(torch) = &self.torch {
            client.upload_code(&torch.digest, torch.packed.clone()).await?;
        }
        Ok(client.submit(&Body::json(&self.document), key).await?.into_typed())
    }

    /// For computing it in this process: its id, its order and the address of the store that its data is in.
    pub async fn order(&self, folder: &Path) -> Result<(JobId, JobOrder, String), HarnessError> {
        let address = format!("file://{}", folder.join("plain-store").display());
        let store =
            storage::open_store(&address).map_err(|e| HarnessError::local("the bench's store cannot be opened", e))?;
        let digits = storage::dataset::register_digits(&store)
            .await
            .map_err(|e| HarnessError::local("the digits cannot be written", e))?;
        let order = JobOrder::alone(spec(&self.document)?, Some(digits.dataset), None);
        let job = JobId::parse("job-bench").map_err(|e| HarnessError::plain(e.to_string()))?;
        Ok((job, order, address))
    }
}

/// A job on the digits that is left alone: every step has its whole batch, and no checkpoint comes.
#[must_use]
pub fn document(model: &Value, workers: u16, rows: u16, steps: u64) -> Value {
    json!({
        "name": "bench",
        "model": model,
        "dataset": "digits",
        "workers": {"min": 1, "max": workers},
        "batch_size": rows,
        "steps": steps,
        "tail": "drop",
        "checkpoint": {"every_steps": 1_000_000_000u64},
    })
}

/// A valid spec.
pub fn spec(document: &Value) -> Result<JobSpec, HarnessError> {
    JobSpec::parse(document).map_err(|e| HarnessError::plain(e.to_string()))
}
