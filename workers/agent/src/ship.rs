//! What executors say goes into the store, beside the log file of this machine: so it can be read after the machine is gone. What is written
//! when is decided in `workers/agent-core/src/log_chunks.rs`; here are the store and the clock. Whatever becomes of it, no executor waits, and
//! none ends for it.

use events_schema::ExecutorId;
use object_store::ObjectStore;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use storage::logs::{delete_piece, write_piece};
use storage::retry::StoreFault;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use workers_agent_core::{LogChunks, LogWrite};

/// Pieces of a pipe (8 KiB each) that wait to be looked at; they are looked at at once.
const PIECES_WAITING_MAX: usize = 64;

/// One task for each executor.
#[derive(Debug, Default)]
pub(crate) struct Shippers(JoinSet<()>);

impl Shippers {
    /// A way into the store for what an executor says; it ends when the sender is dropped and all is there, or given up.
    pub fn begin(&mut self, store: Arc<dyn ObjectStore>, executor: ExecutorId) -> mpsc::Sender<Vec<u8>> {
        let (sender, said) = mpsc::channel(PIECES_WAITING_MAX);
        self.0.spawn(ship(store, executor, said));
        sender
    }

    /// Waits until one has ended; false if there is none. A panic of one is told and goes no further: what executors say is in their log files,
    /// and no training is worth less for it.
    pub async fn ended(&mut self) -> bool {
        let Some(ended) = self.0.join_next().await else { return false };
        if let Err(error) = ended {
            tracing::error!(%error, "what an executor says goes into the store no more; it is in this machine's log file");
        }
        true
    }
}

type Writing = Pin<Box<dyn Future<Output = Result<(), StoreFault>> + Send>>;

/// Writes what comes until its sender is gone and all of it is in the store, or given up.
async fn ship(store: Arc<dyn ObjectStore>, executor: ExecutorId, mut said: mpsc::Receiver<Vec<u8>>) {
    let begun = Instant::now();
    let now_ms = || u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let mut log = LogChunks::default();
    let (mut open, mut told) = (true, false);
    let mut writing: Option<Writing> = None;
    while !log.is_over() {
        if writing.is_none() {
            writing = log.next(now_ms()).map(|write| perform(store.clone(), executor.clone(), write));
        }
        let wake_at = log.wake_at_ms().and_then(|ms| begun.checked_add(Duration::from_millis(ms)));
        tokio::select! {
            piece = said.recv(), if open => match piece {
                Some(bytes) => log.take(&bytes),
                None => {
                    open = false;
                    log.end();
                }
            },
            written = async { Some(writing.as_mut()?.await) }, if writing.is_some() => {
                writing = None;
                log.done(!matches!(written, Some(Err(_))));
                if let Some(Err(error)) = written && !std::mem::replace(&mut told, true) {
                    tracing::warn!(%executor, %error, "what an executor says cannot be kept in the store; it is in this machine's log file");
                }
            }
            () = sleep_until(wake_at.unwrap_or(begun)), if wake_at.is_some() => {}
        }
    }
}

fn perform(store: Arc<dyn ObjectStore>, executor: ExecutorId, write: LogWrite) -> Writing {
    Box::pin(async move {
        match write {
            LogWrite::Put { chunk, bytes } => write_piece(&store, &executor, chunk, bytes.into()).await,
            LogWrite::Delete { chunk } => delete_piece(&store, &executor, chunk).await,
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::JobId;
    use object_store::memory::InMemory;
    use storage::logs::{pieces_of_executor, read_piece};

    #[tokio::test]
    async fn what_was_said_is_in_the_store_when_the_executor_is_gone() {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let executor = ExecutorId { job: JobId::parse("job-a").unwrap(), number: 3 };
        let mut shippers = Shippers::default();
        let sender = shippers.begin(store.clone(), executor.clone());
        for _ in 0..70 {
            sender.send(vec![b'x'; 4 << 10]).await.unwrap();
        }
        drop(sender);
        assert!(shippers.ended().await);
        let pieces = pieces_of_executor(&store, &executor).await.unwrap();
        assert_eq!(pieces.iter().map(|piece| piece.bytes).collect::<Vec<_>>(), [256 << 10, 24 << 10]);
        assert_eq!(read_piece(&store, &executor, 1).await.unwrap().unwrap().len(), 24 << 10);
        assert_eq!(read_piece(&store, &executor, 2).await.unwrap(), None);
    }
    /// Shipping logs is a convenience: a panic there that ended the agent would end every executor of the server.
    #[tokio::test]
    async fn one_that_panics_takes_nobody_along() {
        let mut shippers = Shippers::default();
        shippers.0.spawn(async { panic!("a bug") });
        assert!(shippers.ended().await);
        assert!(!shippers.ended().await, "there is no other");
    }
}
