//! The tasks of one part of a process. A part works whole or not at all: when one of its tasks ends, asked or not, all are asked to end, stage by
//! stage, each stage seen to its end before the next is asked. Whoever started the part holds it as a [`Running`] and learns how it ended.
//!
//! What a part does is its own; nothing here is tried again.

use std::fmt;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::{CancellationToken, DropGuard};

/// How a task ended otherwise than asked.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum TaskFailure<E> {
    /// It said why.
    Own { task: &'static str, error: E },
    /// It panicked.
    Panicked { task: &'static str, panic: String },
    /// Nobody had asked it to end, and it gave no reason: perhaps it follows one that ended with one.
    ByItself { task: &'static str },
    /// It was asked, and dropped when its time was over.
    Late { task: &'static str, within: Duration },
}

impl<E> TaskFailure<E> {
    /// What says least of the cause comes last.
    fn rank(&self) -> u8 {
        match self {
            Self::Own { .. } | Self::Panicked { .. } => 0,
            Self::ByItself { .. } => 1,
            Self::Late { .. } => 2,
        }
    }
}

impl<E: fmt::Display> fmt::Display for TaskFailure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own { task, error } => write!(f, "{task}: {error}"),
            Self::Panicked { task, panic } => write!(f, "{task}: {panic}"),
            Self::ByItself { task } => write!(f, "{task}: ended by itself"),
            Self::Late { task, within } => write!(f, "{task}: did not end within {} s", within.as_secs()),
        }
    }
}

type Ended<E> = Result<(Id, Result<(), E>), JoinError>;

/// Tasks that end together.
pub struct Stage<E> {
    asked: CancellationToken,
    within: Duration,
    tasks: JoinSet<Result<(), E>>,
    /// Those that have not ended.
    open: Vec<(Id, &'static str)>,
}

impl<E: Send + 'static> Stage<E> {
    /// One whose tasks have so long to end once they are asked.
    #[must_use]
    pub fn new(within: Duration) -> Self {
        Self { asked: CancellationToken::new(), within, tasks: JoinSet::new(), open: Vec::new() }
    }

    /// Cancelled when its tasks are to end.
    #[must_use]
    pub fn asked(&self) -> CancellationToken {
        self.asked.clone()
    }

    /// Starts one of its tasks.
    pub fn spawn(&mut self, task: &'static str, run: impl Future<Output = Result<(), E>> + Send + 'static) {
        self.open.push((self.tasks.spawn(run).id(), task));
    }

    /// What the end of a task was, if it is a failure.
    fn judge(&mut self, ended: Ended<E>, asked: bool) -> Option<TaskFailure<E>> {
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let place = self.open.iter().position(|(open, _)| *open == id)?;
        let (_, task) = self.open.swap_remove(place);
        match ended {
            Ok((_, Ok(()))) => (!asked).then_some(TaskFailure::ByItself { task }),
            Ok((_, Err(error))) => Some(TaskFailure::Own { task, error }),
            Err(panic) => Some(TaskFailure::Panicked { task, panic: panic.to_string() }),
        }
    }

    /// Asks its tasks to end and sees to it.
    async fn end(&mut self, failures: &mut Vec<TaskFailure<E>>) {
        self.asked.cancel();
        let within = tokio::time::sleep(self.within);
        tokio::pin!(within);
        loop {
            tokio::select! {
                ended = self.tasks.join_next_with_id() => match ended {
                    Some(ended) => failures.extend(self.judge(ended, true)),
                    None => return,
                },
                () = &mut within => break,
            }
        }
        self.tasks.abort_all();
        let late = self.open.drain(..).map(|(_, task)| TaskFailure::Late { task, within: self.within });
        failures.extend(late);
    }
}

/// Runs stages until it is asked to end them, or one of their tasks ends: then all end, in their order. Why, unless they were asked and did; of
/// several reasons the first that says a cause.
pub async fn run_stages<E: Send + 'static>(
    mut stages: Vec<Stage<E>>,
    asked: CancellationToken,
) -> Result<(), TaskFailure<E>> {
    let mut failures = Vec::new();
    tokio::select! {
        () = asked.cancelled() => {}
        early = first_end(&mut stages) => failures.extend(early),
    }
    for stage in &mut stages {
        stage.end(&mut failures).await;
    }
    failures.into_iter().min_by_key(TaskFailure::rank).map_or(Ok(()), Err)
}

/// The first end of any task: unasked, whatever it says.
async fn first_end<E: Send + 'static>(stages: &mut [Stage<E>]) -> Option<TaskFailure<E>> {
    poll_fn(|context| {
        for stage in &mut *stages {
            if let Poll::Ready(Some(ended)) = stage.tasks.poll_join_next_with_id(context) {
                return Poll::Ready(stage.judge(ended, false));
            }
        }
        Poll::Pending
    })
    .await
}

/// A part that runs. Dropped, it ends in the background.
#[derive(Debug)]
pub struct Running<End> {
    asked: CancellationToken,
    ended: watch::Receiver<Option<End>>,
    _guard: DropGuard,
}

impl<End: Clone + Send + Sync + 'static> Running<End> {
    /// Starts a part: `run` ends when its token is cancelled, and says how it ended.
    pub fn start<F: Future<Output = End> + Send + 'static>(run: impl FnOnce(CancellationToken) -> F) -> Self {
        let asked = CancellationToken::new();
        let (told, ended) = watch::channel(None);
        let run = run(asked.clone());
        // Its end is seen through `ended`, and a panic as a closed channel.
        tokio::spawn(async move {
            told.send_replace(Some(run.await));
        });
        Self { asked: asked.clone(), ended, _guard: asked.drop_guard() }
    }

    /// Resolves when the part has ended, asked or not; to nothing if it panicked.
    pub fn stopped(&self) -> impl Future<Output = Option<End>> + Send + 'static {
        let mut ended = self.ended.clone();
        async move { ended.wait_for(Option::is_some).await.ok().and_then(|end| end.clone()) }
    }

    /// Has it end.
    pub fn end(&self) {
        self.asked.cancel();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::future::pending;
    use std::sync::{Arc, Mutex};

    type Log = Arc<Mutex<Vec<&'static str>>>;

    /// A stage with one task, which writes down that it was asked to end.
    fn stage(task: &'static str, log: &Log) -> Stage<String> {
        let mut stage = Stage::new(Duration::from_secs(5));
        let (asked, log) = (stage.asked(), log.clone());
        stage.spawn(task, async move {
            asked.cancelled().await;
            log.lock().unwrap().push(task);
            Ok(())
        });
        stage
    }

    #[tokio::test]
    async fn stages_end_in_their_order_when_asked() {
        let log = Log::default();
        let stages = vec![stage("executors", &log), stage("listener", &log)];
        let running = Running::start(|asked| run_stages(stages, asked));
        running.end();
        assert_eq!(running.stopped().await, Some(Ok(())));
        assert_eq!(*log.lock().unwrap(), ["executors", "listener"]);
    }

    #[tokio::test]
    async fn a_task_that_ends_ends_all_and_whoever_knows_the_cause_is_heard() {
        let log = Log::default();
        let mut last = stage("listener", &log);
        last.spawn("follower", async { Ok(()) });
        let mut first = stage("executors", &log);
        let asked = first.asked();
        first.spawn("loop", async move {
            asked.cancelled().await;
            Err("the log is closed".to_owned())
        });
        let end = run_stages(vec![first, last], CancellationToken::new()).await.unwrap_err();
        assert_eq!(end.to_string(), "loop: the log is closed");
        assert_eq!(*log.lock().unwrap(), ["executors", "listener"]);
        let mut quiet = Stage::<String>::new(Duration::ZERO);
        quiet.spawn("follower", async { Ok(()) });
        let end = run_stages(vec![quiet], CancellationToken::new()).await.unwrap_err();
        assert_eq!(end.to_string(), "follower: ended by itself");
    }

    #[tokio::test]
    async fn a_panic_is_told_and_who_does_not_end_is_dropped() {
        let mut stuck = Stage::<String>::new(Duration::ZERO);
        stuck.spawn("stuck", pending());
        let mut broken = Stage::new(Duration::from_secs(5));
        broken.spawn("broken", async { panic!("oh") });
        let end = run_stages(vec![stuck, broken], CancellationToken::new()).await.unwrap_err();
        assert!(matches!(end, TaskFailure::Panicked { task: "broken", .. }), "{end}");
        let mut stuck = Stage::<String>::new(Duration::ZERO);
        stuck.spawn("stuck", pending());
        let asked = CancellationToken::new();
        asked.cancel();
        let end = run_stages(vec![stuck], asked).await.unwrap_err();
        assert_eq!(end.to_string(), "stuck: did not end within 0 s");
    }
}
