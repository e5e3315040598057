//! A gateway that is behind its log, as one of several is: what it knows is not taken for what is so.

use crate::support::{CELL, Rig, Script, datasets, quick, script_one_job};
use events_log::faults::FaultyLog;
use events_log::{EventLog, MemoryLog, Stream};
use events_schema::fact::Fact;
use events_schema::{JobId, Offset};
use reqwest::Method;
use std::sync::Arc;

/// The change that is asked for stands on what was read before another one, which the gateway has not read yet.
#[tokio::test]
async fn a_condition_is_compared_with_what_is_in_the_log() {
    let memory = Arc::new(MemoryLog::new());
    script_one_job(&memory).await;
    let mut script = Script::new(&memory).await;
    let [dataset, _] = datasets();
    script.batch(vec![Fact::DatasetRegistered { dataset: dataset.clone() }]).await;
    let log = Arc::new(FaultyLog::new(memory.clone()));
    let rig = Rig::on(log.clone(), memory.clone(), quick()).await;
    let (job, digits) = ("/v1/jobs/job-a", "/v1/datasets/digits");
    let tags = [rig.get(job).await.headers["etag"].clone(), rig.get(digits).await.headers["etag"].clone()];

    log.set_readable(false);
    let other = events_schema::dataset::DatasetInfo { rows: 7, ..dataset };
    let suspended = Fact::JobSuspended { job: JobId::parse("job-a").unwrap(), attained_slot_ms: None };
    script.batch(vec![suspended, Fact::DatasetRegistered { dataset: other }]).await;
    for (path, tag) in [job, digits].into_iter().zip(&tags) {
        let behind = rig.send(Method::DELETE, path, &[("if-match", tag)], None).await;
        assert_eq!((behind.status.as_u16(), behind.slug()), (503, "not-ready"), "{path}: {}", behind.text);
    }
    assert_eq!(memory.end(Stream::Commands, CELL).await.unwrap(), Offset(0), "nothing was asked for");
    log.set_readable(true);
    for (path, tag) in [job, digits].into_iter().zip(&tags) {
        let changed = rig.send(Method::DELETE, path, &[("if-match", tag)], None).await;
        assert_eq!(changed.slug(), "precondition-failed", "{path}: {}", changed.text);
    }
}
