//! Event streams and pages: nothing lost, nothing twice, whatever happens to the connection and whatever else stands in the log.

use crate::support::{Listening, Rig, Script, Sent, job_with, quick};
use events_log::MemoryLog;
use events_schema::command::OfferMode;
use events_schema::fact::Fact;
use events_schema::job::JobSpec;
use events_schema::orders::Telemetry;
use events_schema::*;
use gateway::Limits;
use reqwest::StatusCode;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn demand(sequence: u64) -> Fact {
    Fact::DemandAccepted { fleet: FleetId::parse("chat").unwrap(), sequence, needed: 1, forecast: None }
}

fn fleet() -> Fact {
    Fact::FleetDeclared {
        fleet: FleetId::parse("chat").unwrap(),
        slots: vec![],
        offers: OfferMode::ByDemand,
        reclaim_deadline_ms: 1_000,
    }
}

/// Sequences of the demand events among some.
fn sequences(events: &[Sent]) -> Vec<u64> {
    events
        .iter()
        .filter(|event| event.kind == "dev.ebb.fleet.demand.v1")
        .map(|event| event.data["data"]["sequence"].as_u64().unwrap())
        .collect()
}

/// A log with `count` demand facts, one to three a batch, some in parts, between claims, zombies and repeats.
async fn busy_log(count: u64) -> (Arc<MemoryLog>, Script) {
    let log = Arc::new(MemoryLog::new());
    let mut script = Script::new(&log).await;
    script.batch(vec![fleet()]).await;
    let mut next = 1;
    while next <= count {
        let size = (next % 3 + 1).min(count - next + 1);
        let facts: Vec<Fact> = (next..next + size).map(demand).collect();
        match next % 7 {
            0 => drop(script.parts(facts.iter().map(|fact| vec![fact.clone()]).collect(), &[demand(9_000_000)]).await),
            _ => drop(script.batch(facts).await),
        }
        next += size;
        match next % 11 {
            0 | 1 => script.zombie(vec![demand(9_000_001)]).await,
            2 | 3 => script.repeat(vec![demand(9_000_002)]).await,
            4 => script.claim().await,
            _ => {}
        }
    }
    (log, script)
}

#[tokio::test]
async fn a_stream_from_the_beginning_shows_what_counts_as_cloudevents() {
    let (log, mut script) = busy_log(40).await;
    let rig = Rig::without_controller(log, quick()).await;
    let mut stream = Listening::open(&rig, "/v1/events?from=0-0", None).await;
    let events = stream.take(41).await;
    assert_eq!(sequences(&events), (1..=40).collect::<Vec<_>>());
    let first = &events[0];
    assert_eq!((first.kind.as_str(), first.id.as_str()), ("dev.ebb.fleet.declared.v1", "1-0"));
    let expected = json!({
        "specversion": "1.0", "id": "1-0", "source": "/ebb/0000000000000001/cells/0", "type": "dev.ebb.fleet.declared.v1", "subject": "chat",
        "time": "1970-01-01T00:00:01.001Z", "datacontenttype": "application/json",
        "data": {"fleet": "chat", "slots": [], "offers": "by_demand", "reclaim_deadline_ms": 1000},
    });
    assert_eq!(first.data, expected);
    // And goes on live.
    script.batch(vec![demand(41), demand(42)]).await;
    assert_eq!(sequences(&stream.take(2).await), [41, 42]);
}

#[tokio::test]
async fn resuming_after_any_event_loses_and_repeats_nothing() {
    let (log, _script) = busy_log(60).await;
    let rig = Rig::without_controller(log, quick()).await;
    let all = Listening::open(&rig, "/v1/events?from=0-0", None).await.take(61).await;
    for (place, event) in all.iter().enumerate().take(60) {
        let mut stream = Listening::open(&rig, "/v1/events?from=0-0", Some(&event.id)).await;
        assert_eq!(stream.take(1).await, all[place + 1..place + 2], "after {}", event.id);
        let from = Listening::open(&rig, &format!("/v1/events?from={}", event.id), None).await.take(60 - place).await;
        assert_eq!(from, all[place + 1..]);
    }
}

#[tokio::test]
async fn resuming_far_back_in_a_long_log_reads_the_log_again_with_the_right_counter() {
    // More facts than are kept in memory, more records than lie between two marks.
    const COUNT: u64 = 12_000;
    let (log, _script) = busy_log(COUNT).await;
    let rig = Rig::without_controller(log, quick()).await;
    let mut stream = Listening::open(&rig, "/v1/events?from=0-0", None).await;
    let all = stream.take(COUNT as usize + 1).await;
    assert_eq!(sequences(&all), (1..=COUNT).collect::<Vec<_>>());
    for place in (0..all.len() - 40).step_by(997) {
        let mut stream = Listening::open(&rig, "/v1/events", Some(&all[place].id)).await;
        assert_eq!(stream.take(39).await, all[place + 1..place + 40], "after {}", all[place].id);
    }
}

#[tokio::test]
async fn a_stream_begins_now_and_a_client_cut_off_before_the_first_event_misses_none() {
    let (log, mut script) = busy_log(10).await;
    let rig = Rig::without_controller(log, Limits { heartbeat: std::time::Duration::from_millis(20), ..quick() }).await;
    let mut stream = Listening::open(&rig, "/v1/events", None).await;
    script.batch(vec![demand(11)]).await;
    assert_eq!(sequences(&stream.take(1).await), [11]);
    let begun = {
        let mut stream = Listening::open(&rig, "/v1/events", None).await;
        script.batch(vec![fleet()]).await;
        stream.take(1).await;
        stream.last_id
    };
    script.batch(vec![demand(12)]).await;
    assert_eq!(sequences(&Listening::open(&rig, "/v1/events", Some(&begun)).await.take(1).await), [12]);
    // Silence is filled with comments.
    let mut quiet = Listening::open(&rig, "/v1/events", None).await;
    quiet.until_comment("heartbeat").await;
    script.batch(vec![demand(13)]).await;
    assert_eq!(sequences(&quiet.take(1).await), [13]);
}

#[tokio::test]
async fn a_jobs_stream_holds_its_events_only() {
    let log = Arc::new(MemoryLog::new());
    let mut script = Script::new(&log).await;
    let accepted = |name: &str| Fact::JobAccepted {
        job: JobId::parse(name).unwrap(),
        tenant: TenantId::parse("local").unwrap(),
        command: CommandId::parse(&format!("c-{name}")).unwrap(),
        spec: Box::new(JobSpec::parse(&job_with(json!({}))).unwrap()),
        body_digest: Digest::of(b""),
    };
    let cancelled = |name: &str| Fact::JobCancelled { job: JobId::parse(name).unwrap() };
    script.batch(vec![fleet(), accepted("job-a"), accepted("job-b"), demand(1)]).await;
    script.batch(vec![cancelled("job-b")]).await;
    let rig = Rig::without_controller(log, quick()).await;
    let mut stream = Listening::open(&rig, "/v1/jobs/job-a/events?from=0-0", None).await;
    script.batch(vec![demand(2), cancelled("job-a")]).await;
    let events = stream.take(2).await;
    let kinds: Vec<_> = events.iter().map(|event| (event.kind.as_str(), event.id.as_str())).collect();
    assert_eq!(kinds, [("dev.ebb.job.accepted.v1", "1-1"), ("dev.ebb.job.cancelled.v1", "3-1")]);
    assert_eq!(events[0].data["data"].get("spec"), None, "specs are not for subscribers");
    assert_eq!(Listening::open(&rig, "/v1/jobs/job-a/events", Some("1-1")).await.take(1).await, events[1..]);
    let page = rig.get("/v1/jobs/job-b/events").await.json;
    assert_eq!(page["events"].as_array().unwrap().len(), 2);
    assert_eq!(rig.get("/v1/jobs/job-c/events").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn pages_of_events_are_complete() {
    let (log, _script) = busy_log(500).await;
    let rig = Rig::without_controller(log, quick()).await;
    let (mut seen, mut query) = (Vec::new(), "limit=37".to_owned());
    loop {
        let page = rig.get(&format!("/v1/events?{query}")).await.json;
        let events = page["events"].as_array().unwrap();
        assert!(events.len() <= 37);
        seen.extend(events.iter().filter_map(|event| event["data"]["sequence"].as_u64()));
        match page["next_cursor"].as_str() {
            Some(next) => query = format!("limit=37&from={next}"),
            None => break,
        }
    }
    assert_eq!(seen, (1..=500).collect::<Vec<_>>());
}

#[tokio::test]
async fn streams_are_bounded_and_end_with_a_word_when_the_service_stops() {
    let (log, _script) = busy_log(3).await;
    let rig = Rig::without_controller(log, Limits { streams_max: 2, ..quick() }).await;
    let mut first = Listening::open(&rig, "/v1/events", None).await;
    let second = Listening::open(&rig, "/v1/events", None).await;
    let third = rig.client.get(rig.url("/v1/events")).header("accept", "text/event-stream").send().await.unwrap();
    let third = crate::support::Answer::of(third).await;
    assert_eq!((third.status.as_u16(), third.slug()), (503, "overloaded"));
    drop(second);
    let Rig { gateway, .. } = rig;
    gateway.shutdown().await.unwrap();
    assert_eq!(first.next().await, None);
    assert!(first.comments.iter().any(|comment| comment.contains("the service stops")), "{:?}", first.comments);
}

#[tokio::test]
async fn events_that_were_trimmed_are_gone_and_said_to_be() {
    use events_log::{EventLog, Stream};
    const COUNT: u64 = 10_000;
    let (log, _script) = busy_log(COUNT).await;
    let rig = Rig::without_controller(log.clone(), quick()).await;
    let end = log.end(Stream::Events, crate::support::CELL).await.unwrap();
    log.trim(Stream::Events, crate::support::CELL, end).await.unwrap();
    let gone = rig.get("/v1/events?from=2-0").await;
    assert_eq!((gone.status.as_u16(), gone.slug()), (410, "cursor-expired"), "{}", gone.text);
    // A stream is refused as well, and not begun to be ended.
    let mut stream = rig.client.get(rig.url("/v1/events")).header("accept", "text/event-stream");
    stream = stream.header("last-event-id", "2-0");
    let gone = crate::support::Answer::of(stream.send().await.unwrap()).await;
    assert_eq!((gone.status.as_u16(), gone.slug()), (410, "cursor-expired"), "{}", gone.text);
    // What is in memory is still served.
    assert_eq!(rig.get(&format!("/v1/events?from={}-0", end.0 - 5)).await.status, StatusCode::OK);
}

/// A job that has ended gets nowhere: its last word with the present time would read as if it did.
#[tokio::test]
async fn progress_is_told_when_it_is_new_since_the_stream_began() {
    let log = Arc::new(MemoryLog::new());
    crate::support::script_one_job(&log).await;
    let looks = AtomicU64::new(0);
    let telemetry = move |job: &JobId| {
        // Stands at step 1 when the stream begins, and when it looks for the first time.
        let step = if looks.fetch_add(1, Ordering::SeqCst) < 2 { Step(1) } else { Step(2) };
        let (job, generation, steps_total, epoch, loss) = (job.clone(), Generation(1), 9, 0, 0.5);
        let (samples_per_second, step_us, members, data_wait_us) = (8.0, 7, 2, None);
        let telemetry = Telemetry {
            job,
            generation,
            step,
            steps_total,
            epoch,
            loss,
            samples_per_second,
            step_us,
            members,
            data_wait_us,
            checkpoint_every_ms: None,
        };
        Some(telemetry)
    };
    let rig = Rig::with_telemetry(log, quick(), Arc::new(telemetry)).await;
    let mut stream = Listening::open(&rig, "/v1/jobs/job-a/events", None).await;
    let told = stream.next().await.unwrap();
    assert_eq!((told.kind.as_str(), &told.data["data"]["step"]), ("dev.ebb.job.progress.v1", &json!(2)));
}
