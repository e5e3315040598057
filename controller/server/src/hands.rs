//! What a cell's machine wants of the log and the object store, done: each request is a task that ends in one answer. Nothing
//! here judges an answer; it only says what an error means. Next file: `agents.rs`.

use crate::inputs::Inputs;
use controller_cell::{AppendFailure, In, ReadFailure, Ticket, record_presses};
use events_log::{Advice, AppendError, EventLog, ReadError, Record, Stream};
use events_schema::{Cell, Offset};
use object_store::ObjectStore;
use shell::Chain;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use storage::keys::CheckpointName;
use tokio::task::{AbortHandle, JoinSet};

/// Pause when a stream ends beyond a place where nothing stands: on Kafka the last offsets may belong to no record.
const NOTHING_THERE_PAUSE: Duration = Duration::from_millis(100);

/// The log and the store of one cell, and the requests on their way.
pub(crate) struct Hands {
    log: Arc<dyn EventLog>,
    store: Arc<dyn ObjectStore>,
    cell: Cell,
    inputs: Inputs,
    tasks: JoinSet<()>,
    /// A request that died.
    panic: Option<String>,
    /// A later one of the same stream replaces them.
    reads: BTreeMap<Stream, AbortHandle>,
    ends: BTreeMap<Stream, AbortHandle>,
}

impl Hands {
    pub fn new(log: Arc<dyn EventLog>, store: Arc<dyn ObjectStore>, cell: Cell, inputs: Inputs) -> Self {
        let (reads, ends) = (BTreeMap::new(), BTreeMap::new());
        Self { log, store, cell, inputs, tasks: JoinSet::new(), panic: None, reads, ends }
    }

    pub fn append(&mut self, ticket: Ticket, stream: Stream, record: Vec<u8>) {
        let (log, cell) = (Arc::clone(&self.log), self.cell);
        self.spawn(async move {
            let input = match log.append(stream, cell, record).await {
                Ok(offset) => In::Appended { ticket, offset },
                Err(error) => In::AppendFailed { ticket, failure: append_failure(&error) },
            };
            (input, false)
        });
    }

    pub fn read(&mut self, ticket: Ticket, stream: Stream, from: Offset, bytes_max: usize, wait: bool) {
        let (log, cell) = (Arc::clone(&self.log), self.cell);
        let task = self.spawn(async move {
            let read = async {
                if wait {
                    follow(&*log, stream, cell, from, bytes_max).await
                } else {
                    log.read(stream, cell, from, bytes_max).await
                }
            };
            match read.await {
                Ok(records) => {
                    let presses = records.iter().any(|record| record_presses(stream, &record.bytes));
                    (In::Read { ticket, records }, presses)
                }
                Err(error) => (In::ReadFailed { ticket, failure: read_failure(&error) }, false),
            }
        });
        if let Some(replaced) = self.reads.insert(stream, task) {
            replaced.abort();
        }
    }

    pub fn ask_end(&mut self, ticket: Ticket, stream: Stream) {
        let (log, cell) = (Arc::clone(&self.log), self.cell);
        let task = self.spawn(async move {
            let input = match log.end(stream, cell).await {
                Ok(end) => In::End { ticket, end },
                Err(error) => In::EndFailed { ticket, failure: read_failure(&error) },
            };
            (input, false)
        });
        if let Some(replaced) = self.ends.insert(stream, task) {
            replaced.abort();
        }
    }

    pub fn delete(&mut self, number: u64, name: CheckpointName) {
        let store = Arc::clone(&self.store);
        self.spawn(async move {
            let input = match storage::checkpoint::delete(&store, &name).await {
                Ok(()) => In::Deleted { number },
                Err(error) => {
                    tracing::warn!(manifest_key = name.manifest(), error = %Chain(&error), "the store did not delete a checkpoint");
                    In::DeleteFailed { number }
                }
            };
            (input, false)
        });
    }

    /// Waits for a task that panicked; forgets those that ended.
    pub async fn panicked(&mut self) -> String {
        if let Some(panic) = self.panic.take() {
            return panic;
        }
        loop {
            match self.tasks.join_next().await {
                Some(Err(error)) if error.is_panic() => return error.to_string(),
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// A request ends in an answer, and in whether that presses.
    fn spawn(&mut self, request: impl Future<Output = (In, bool)> + Send + 'static) -> AbortHandle {
        // While inputs flow without a pause nobody waits for the tasks; what has ended must not pile up.
        while let Some(ended) = self.tasks.try_join_next() {
            if let Err(panic) = ended
                && panic.is_panic()
            {
                self.panic.get_or_insert(panic.to_string());
            }
        }
        let inputs = self.inputs.clone();
        self.tasks.spawn(async move {
            let (input, presses) = request.await;
            // A loop that is gone needs no answer.
            let _ = inputs.send(input, presses).await;
        })
    }
}

/// What stands at an offset and after it, as soon as something does.
async fn follow(
    log: &dyn EventLog,
    stream: Stream,
    cell: Cell,
    from: Offset,
    bytes_max: usize,
) -> Result<Vec<Record>, ReadError> {
    loop {
        log.wait(stream, cell, from).await?;
        let records = log.read(stream, cell, from, bytes_max).await?;
        if !records.is_empty() {
            return Ok(records);
        }
        tokio::time::sleep(NOTHING_THERE_PAUSE).await;
    }
}

fn append_failure(error: &AppendError) -> AppendFailure {
    let reason = Chain(error).to_string();
    match error.advice() {
        Advice::Recover => AppendFailure::Unknown(reason),
        Advice::Retry => AppendFailure::Unavailable(reason),
        Advice::Refuse if matches!(error, AppendError::TooLarge { .. }) => AppendFailure::TooLarge(reason),
        Advice::Refuse | Advice::Stop => AppendFailure::Stopped(reason),
    }
}

fn read_failure(error: &ReadError) -> ReadFailure {
    match error {
        ReadError::Trimmed { first, .. } => ReadFailure::Trimmed { first: *first },
        error if error.advice() == Advice::Retry => ReadFailure::Unavailable(Chain(error).to_string()),
        error => ReadFailure::Stopped(Chain(error).to_string()),
    }
}
