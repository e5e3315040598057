//! Objects in a real store: a checkpoint is deleted when it is retired, and what nothing counts is swept up and said.

use crate::support::{Agent, CELL, Folded, Secrets, WAIT_MAX, config, demand, job, lend_and_submit};
use controller_server::{Controller, ControllerConfig, start};
use events_log::{EventLog, MemoryLog, Stream};
use events_schema::fact::Fact;
use events_schema::report::Report;
use events_schema::{Digest, Generation, JobId, Step, WriterToken};
use object_store::ObjectStore;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use storage::keys::{self, CheckpointName};

/// More than anything has to be old for.
const LONG_AGO: Duration = Duration::from_secs(3 * 86_400);

struct Cell {
    log: Arc<dyn EventLog>,
    secrets: Secrets,
    folder: tempfile::TempDir,
    store: Arc<dyn ObjectStore>,
}

impl Cell {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = storage::open_store(&format!("file://{}", folder.path().display())).unwrap();
        Self { log: Arc::new(MemoryLog::new()), secrets: Secrets::new(), folder, store }
    }

    async fn controller(&self) -> Controller {
        let config = ControllerConfig { store: Arc::clone(&self.store), ..config(&self.log, "a", &self.secrets) };
        start(config).await.unwrap()
    }

    fn name(&self, step: u64) -> CheckpointName {
        let generation = Generation(1);
        let writer = Some(self.secrets.cell.writer(&job(), generation));
        CheckpointName { job: job(), generation, step: Step(step), writer }
    }

    /// Objects as members would have written them, and how long ago.
    fn put(&self, keys: &[String], ago: Duration) {
        for key in keys {
            let path = self.folder.path().join(key);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, b"12345").unwrap();
            std::fs::File::options().write(true).open(&path).unwrap().set_modified(SystemTime::now() - ago).unwrap();
        }
    }

    fn has(&self, key: &str) -> bool {
        Path::new(self.folder.path()).join(key).exists()
    }

    fn saved(&self, step: u64) -> Report {
        let CheckpointName { job, generation, step, writer } = self.name(step);
        let (writer, replica_digest) = (writer.unwrap(), Digest::of(b"replica"));
        let (written_in, bytes, stands_still) = (generation, 10, None);
        Report::CheckpointSaved { job, generation, step, written_in, writer, replica_digest, bytes, stands_still }
    }

    /// Waits until so many objects were swept up; how many bytes.
    async fn until_swept(&self, wanted: u64) -> u64 {
        loop {
            let end = self.log.end(Stream::Events, CELL).await.unwrap();
            let swept = Folded::read(&self.log).await;
            let swept = swept.facts().filter_map(|fact| match fact {
                Fact::ObjectsSwept { objects, bytes } => Some((*objects, *bytes)),
                _ => None,
            });
            let (objects, bytes) = swept.fold((0, 0), |sum, more| (sum.0 + more.0, sum.1 + more.1));
            if objects >= wanted {
                assert_eq!(objects, wanted);
                return bytes;
            }
            tokio::time::timeout(WAIT_MAX, self.log.wait(Stream::Events, CELL, end)).await.unwrap().unwrap();
        }
    }
}

fn objects(name: &CheckpointName) -> Vec<String> {
    vec![name.shard(0), name.shard(1), name.manifest()]
}

#[tokio::test]
async fn what_is_retired_is_deleted_and_what_nothing_counts_is_swept_up_after_a_restart() {
    let cell = Cell::new();
    let controller = cell.controller().await;
    let mut agent = Agent::connect(&controller, &cell.secrets, 7).await;
    agent.join(1).await;
    agent.taken(1).await;
    lend_and_submit(&controller, &cell.log, 1).await;
    demand(&cell.log, 1, 0).await;
    let orders = agent.orders(|orders| orders.executors.len() == 1).await;
    let executor = orders.executors[0].executor.clone();
    agent
        .report(
            2,
            Report::ExecutorReady {
                executor,
                address: "127.0.0.1:1".to_owned(),
                class: None,
                replica_bytes: None,
                gradient_bytes: None,
            },
        )
        .await;
    let orders = agent.orders(|orders| orders.executors.iter().any(|order| order.job.proposal.is_some())).await;
    assert_eq!(
        orders.executors[0].job.writer,
        cell.name(0).writer,
        "the order says by what its executor names what it writes"
    );
    let active = Report::GenerationActive { job: job(), generation: Generation(1), step: Step(0), pause_us: 1 };
    agent.report(3, active).await;
    let retired = objects(&cell.name(10));
    cell.put(&retired, Duration::ZERO);
    for (number, step) in [(4, 10), (5, 20), (6, 30)] {
        agent.report(number, cell.saved(step)).await;
    }
    agent.taken(6).await;
    let deleted = async {
        while retired.iter().any(|key| cell.has(key)) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(WAIT_MAX, deleted).await.expect("two are kept, so the first is deleted");
    controller.shutdown().await;

    // A controller that died before it had deleted; uploads that came to nothing, and one that is on its way.
    let counted: Vec<String> = [20, 30].iter().flat_map(|step| objects(&cell.name(*step))).collect();
    let of_another_job = JobId::parse("job-b").unwrap();
    let never_reported = CheckpointName { writer: Some(WriterToken([3; 16])), ..cell.name(15) };
    let kept = [
        counted,
        vec![cell.name(40).shard(0), keys::model(&job()), keys::model(&of_another_job)],
        objects(&CheckpointName { job: of_another_job, ..cell.name(15) }),
        vec![format!("jobs/{}/notes.txt", job()), "datasets/d/part-0.parquet".to_owned()],
    ];
    let young = cell.name(5).shard(0);
    let rubbish = vec![cell.name(25).shard(1), never_reported.shard(0), never_reported.manifest()];
    cell.put(&kept.concat(), LONG_AGO);
    cell.put(std::slice::from_ref(&young), Duration::ZERO);
    cell.put(&rubbish, LONG_AGO);
    cell.put(&retired, Duration::ZERO);
    let controller = cell.controller().await;
    assert_eq!(cell.until_swept(6).await, 6 * 5);
    for gone in retired.iter().chain(&rubbish) {
        assert!(!cell.has(gone), "{gone} is still there");
    }
    for left in kept.iter().flatten().chain([&young]) {
        assert!(cell.has(left), "{left} is gone");
    }
    controller.shutdown().await;
}
