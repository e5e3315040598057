//! The code that `ebb bench --engine torch` trains (`torch/` of this crate), laid out in the bench's folder: as jobs, and as the plain loop that is
//! their baseline.

use crate::subject::{Subject, TorchNeeds, document};
use events_schema::control::TorchHost;
use events_schema::{Digest, JobId, orders::JobOrder};
use loadtest_harness::HarnessError;
use object_store::ObjectStoreExt;
use serde::Deserialize;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;
use tokio::process::Command;

/// Its files.
const FILES: [(&str, &str); 3] = [
    ("models.py", include_str!("../torch/models.py")),
    ("train.py", include_str!("../torch/train.py")),
    ("plain.py", include_str!("../torch/plain.py")),
];
/// Longest import of PyTorch, and longest plain loop: beyond it something hangs.
const PYTHON_TIMEOUT: Duration = Duration::from_secs(300);

/// A model of `models.py` and how it is trained.
#[derive(Debug, Clone, Copy)]
pub struct Model {
    /// Which kind.
    pub kind: &'static str,
    /// How wide.
    pub width: u32,
    /// Of its optimizer.
    pub momentum: f64,
    /// Rows of a step of one logical worker.
    pub rows: u16,
}

/// Where models are trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// The processor, one thread.
    Cpu,
    /// The first GPU, which all slots share.
    Cuda,
}

impl Device {
    /// As job files and PyTorch say it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }
}

/// The code, the Python that runs it, and where.
#[derive(Debug, Clone)]
pub struct TorchCode {
    folder: PathBuf,
    needs: TorchNeeds,
}

/// What the plain loop says.
#[derive(Debug, Deserialize)]
pub struct Plain {
    /// Duration of each step.
    pub step_ms: Vec<f64>,
    /// Processor time of a step.
    pub processor_ms: f64,
}

impl TorchCode {
    /// Lays the code out in `folder`. Fails, saying what to do, if this Python has no PyTorch.
    pub async fn lay_out(folder: &Path, python: &str, device: Device) -> Result<Self, HarnessError> {
        let folder = folder.join("torch-code");
        let cannot = |e| HarnessError::local(format!("`{}` cannot be written", folder.display()), e);
        std::fs::create_dir_all(&folder).map_err(cannot)?;
        for (name, text) in FILES {
            std::fs::write(folder.join(name), text).map_err(cannot)?;
        }
        let packed = storage::code::pack(&folder)
            .map_err(|e| HarnessError::local("the code of the bench's models cannot be packed", e))?;
        let digest = Digest::of(&packed).to_string();
        let code = Self { folder, needs: TorchNeeds { python: python.to_owned(), device, digest, packed } };
        code.import().await?;
        Ok(code)
    }

    /// How long a bare Python takes to start and to import PyTorch.
    pub async fn import(&self) -> Result<Duration, HarnessError> {
        let begun = std::time::Instant::now();
        let output = self.python(&["-c", "import torch, numpy"]).await?;
        if output.status.success() {
            return Ok(begun.elapsed());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().last().unwrap_or_default();
        Err(HarnessError::Options(format!(
            "`{}` cannot import torch and numpy ({last}); say with --python PROGRAM which Python can",
            self.needs.python
        )))
    }

    /// Where its jobs train.
    #[must_use]
    pub fn device(&self) -> Device {
        self.needs.device
    }

    /// A job that trains a model.
    pub fn job(&self, model: Model, workers: u16, steps: u64) -> Subject {
        let Model { kind, width, momentum, rows } = model;
        let parameters = json!({"kind": kind, "width": width, "momentum": momentum});
        let described = json!({
            "kind": "torch",
            "entry": "train:Job",
            "code": self.needs.digest,
            "parameters": parameters,
            "device": self.device().name(),
        });
        Subject { document: document(&described, workers, rows, steps), torch: Some(self.needs.clone()) }
    }

    /// What computes such a job in this process; its code is put into the store that it reads.
    pub async fn order(&self, subject: &Subject) -> Result<(JobId, JobOrder, String, TorchHost), HarnessError> {
        let host = self.folder.join("host");
        std::fs::create_dir_all(&host).map_err(|e| HarnessError::local("the bench's folder cannot be made", e))?;
        let (job, order, address) = subject.order(&self.folder).await?;
        let store =
            storage::open_store(&address).map_err(|e| HarnessError::local("the bench's store cannot be opened", e))?;
        let key = storage::keys::code(&Digest::of(&self.needs.packed));
        store
            .put(&key.as_str().into(), self.needs.packed.clone().into())
            .await
            .map_err(|e| HarnessError::local("the bench's code cannot be put into its store", e))?;
        let host = TorchHost {
            folder: host.display().to_string(),
            python: self.needs.python.clone(),
            secrets: None,
            cache_mib: None,
            warm: None,
            files: None,
        };
        Ok((job, order, address, host))
    }

    /// Trains a model in the plain loop, where so many batches make a gradient.
    pub async fn plain(&self, model: Model, batches: u16, steps: u64) -> Result<Plain, HarnessError> {
        let Model { kind, width, momentum, rows } = model;
        let [rows, batches] = [rows, batches].map(|count| count.to_string());
        let arguments = [width.to_string(), momentum.to_string(), rows, batches, steps.to_string()];
        let mut all = vec!["plain.py", kind];
        all.extend(arguments.iter().map(String::as_str));
        let output = self.python(&all).await?;
        serde_json::from_slice(&output.stdout).map_err(|e| {
            let said = String::from_utf8_lossy(&output.stderr);
            HarnessError::local(format!("the plain loop failed: {}", said.trim_end()), e)
        })
    }

    /// Runs Python as an executor's is: one thread, no GPU.
    async fn python(&self, arguments: &[&str]) -> Result<Output, HarnessError> {
        let python = &self.needs.python;
        let mut command = Command::new(python);
        command.args(arguments).current_dir(&self.folder).kill_on_drop(true);
        command.env("OMP_NUM_THREADS", "1").env("MKL_NUM_THREADS", "1").env("CUDA_VISIBLE_DEVICES", "");
        let ended = tokio::time::timeout(PYTHON_TIMEOUT, command.output()).await;
        let ended = ended.map_err(|_| {
            HarnessError::plain(format!("`{python} {}` did not end within {PYTHON_TIMEOUT:?}", arguments.join(" ")))
        })?;
        ended.map_err(|e| {
            HarnessError::local(
                format!("`{python}` cannot be started; say with --python PROGRAM which Python has torch"),
                e,
            )
        })
    }
}
