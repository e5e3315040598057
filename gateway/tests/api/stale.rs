//! A gateway that is behind its log, as one of several is: what it knows is not taken for what is so.

use crate::support::{CELL, Rig, Script, datasets, quick, script_one_job};
use events_log::{AppendError, BoxFuture, EventLog, MemoryLog, ReadError, Record, Stream};
use events_schema::fact::Fact;
use events_schema::{Cell, JobId, Offset};
use reqwest::Method;
use std::sync::Arc;
use tokio::sync::watch;

/// A log of which nothing new is read for as long as its gate is closed.
struct Gated {
    log: Arc<MemoryLog>,
    is_open: watch::Sender<bool>,
}

impl EventLog for Gated {
    fn append(&self, stream: Stream, cell: Cell, record: Vec<u8>) -> BoxFuture<'_, Result<Offset, AppendError>> {
        self.log.append(stream, cell, record)
    }

    fn read(
        &self,
        stream: Stream,
        cell: Cell,
        from: Offset,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Record>, ReadError>> {
        Box::pin(async move {
            self.is_open.subscribe().wait_for(|is_open| *is_open).await.map_err(|_| ReadError::Closed)?;
            self.log.read(stream, cell, from, bytes_max).await
        })
    }

    fn end(&self, stream: Stream, cell: Cell) -> BoxFuture<'_, Result<Offset, ReadError>> {
        self.log.end(stream, cell)
    }

    fn wait(&self, stream: Stream, cell: Cell, from: Offset) -> BoxFuture<'_, Result<(), ReadError>> {
        self.log.wait(stream, cell, from)
    }

    fn trim(&self, stream: Stream, cell: Cell, below: Offset) -> BoxFuture<'_, Result<(), AppendError>> {
        self.log.trim(stream, cell, below)
    }
}

/// The change that is asked for stands on what was read before another one, which the gateway has not read yet.
#[tokio::test]
async fn a_condition_is_compared_with_what_is_in_the_log() {
    let memory = Arc::new(MemoryLog::new());
    script_one_job(&memory).await;
    let mut script = Script::new(&memory).await;
    let [dataset, _] = datasets();
    script.batch(vec![Fact::DatasetRegistered { dataset: dataset.clone() }]).await;
    let gated = Arc::new(Gated { log: memory.clone(), is_open: watch::Sender::new(true) });
    let rig = Rig::on(gated.clone(), memory.clone(), quick()).await;
    let (job, digits) = ("/v1/jobs/job-a", "/v1/datasets/digits");
    let tags = [rig.get(job).await.headers["etag"].clone(), rig.get(digits).await.headers["etag"].clone()];

    gated.is_open.send_replace(false);
    let other = events_schema::dataset::DatasetInfo { rows: 7, ..dataset };
    let suspended = Fact::JobSuspended { job: JobId::parse("job-a").unwrap() };
    script.batch(vec![suspended, Fact::DatasetRegistered { dataset: other }]).await;
    for (path, tag) in [job, digits].into_iter().zip(&tags) {
        let behind = rig.send(Method::DELETE, path, &[("if-match", tag)], None).await;
        assert_eq!((behind.status.as_u16(), behind.slug()), (503, "not-ready"), "{path}: {}", behind.text);
    }
    assert_eq!(memory.end(Stream::Commands, CELL).await.unwrap(), Offset(0), "nothing was asked for");
    gated.is_open.send_replace(true);
    for (path, tag) in [job, digits].into_iter().zip(&tags) {
        let changed = rig.send(Method::DELETE, path, &[("if-match", tag)], None).await;
        assert_eq!(changed.slug(), "precondition-failed", "{path}: {}", changed.text);
    }
}
