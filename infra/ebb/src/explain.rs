//! `ebb explain JOB`: every decision about a job, with its reason and what else was decided at the same moment.
//!
//! All of it is read from the log's public events. What is decided together is one batch there, so its events have one time and one OFFSET in
//! their ids: that is what "the same moment" means, and nothing here guesses. Decisions are told as they are read: a page of events and one
//! moment are held at a time, however many decisions there are.

use crate::args::ExplainArgs;
use crate::failure::Failure;
use crate::find;
use crate::output::{Output, bytes, line};
use crate::sentences::{kind, sentence};
use crate::wire::{Job, Sentence, Speed, TypeTime, WaitCause, words};
use gateway_api::pages::BEGINNING;
use gateway_client::{Answer, Client, EventPages, Events};
use serde_json::{Value, json};
use std::collections::VecDeque;

/// What else happened at one moment, told to people; a plan may move thousands of jobs.
const ALSO_SHOWN: usize = 8;

/// Types that say that something was decided about a job. The others say what then happened.
const DECISIONS: &[&str] = &[
    "job.accepted",
    "job.planned",
    "job.suspending",
    "job.suspended",
    "job.resumed",
    "job.cancelled",
    "job.failed",
    "job.finished",
    "job.restarted",
    "job.stalled",
    "job.slot_avoided",
    "job.growth_paused",
    "generation.member_lost",
    "generation.abandoned",
    "checkpoint.damaged",
    "checkpoint.unreadable",
    "executor.stuck",
];

/// Types of what causes decisions: said first among what else happened.
const CAUSES: &[&str] = &["fleet.", "slot.", "agent.", "executor.gone", "generation.peers_missing"];

/// `ebb explain JOB`.
pub async fn explain(client: &Client, output: Output, args: &ExplainArgs) -> Result<(), Failure> {
    let id = find::job(client, &args.id).await?;
    let job = client.job(&id).await?;
    let of_job = Events::of_job(&id);
    let earlier = match args.newest {
        Some(newest) => count(client, &of_job).await?.saturating_sub(newest),
        None => 0,
    };
    let mut story = Story::begin(output, &job, earlier);
    let mut decisions = Decisions::new(client, &of_job, earlier);
    while let Some((decision, also)) = decisions.next().await? {
        story.tell(&decision, &also);
    }
    story.end();
    Ok(())
}

fn is_decision(event: &Value) -> bool {
    DECISIONS.contains(&kind(event))
}

/// How many decisions are among these events.
async fn count(client: &Client, events: &Events) -> Result<u64, Failure> {
    let mut count = 0;
    client.each_event(events, None, |event| count += u64::from(is_decision(event))).await?;
    Ok(count)
}

/// The decisions about one job, oldest first.
struct Decisions<'a> {
    of_job: EventPages<'a>,
    /// Read and not yet given.
    page: VecDeque<Value>,
    moments: Moments<'a>,
    /// Decisions still to be passed over.
    earlier: u64,
}

impl<'a> Decisions<'a> {
    /// Of the job of these events, behind so many earlier ones.
    fn new(client: &'a Client, of_job: &Events, earlier: u64) -> Self {
        let moments = Moments { client, pages: client.event_pages(&Events::all(), None), read: VecDeque::new() };
        Self { of_job: client.event_pages(of_job, None), page: VecDeque::new(), moments, earlier }
    }

    /// The next one, and what else was decided at its moment.
    async fn next(&mut self) -> Result<Option<(Value, Vec<Value>)>, Failure> {
        loop {
            let Some(decision) = self.page.pop_front() else {
                let Some(page) = self.of_job.next().await? else { return Ok(None) };
                self.page.extend(page.into_iter().filter(is_decision));
                continue;
            };
            if self.earlier == 0 {
                let also = others(&decision, self.moments.of(&decision).await?);
                return Ok(Some((decision, also)));
            }
            self.earlier -= 1;
        }
    }
}

/// The OFFSET of an event's id: events of one moment share it.
fn moment(event: &Value) -> Option<u64> {
    event["id"].as_str()?.split_once('-')?.0.parse().ok()
}

/// Moments of the log, asked for in its order: decisions that follow each other closely are on one page.
struct Moments<'a> {
    client: &'a Client,
    pages: EventPages<'a>,
    /// Events read, in order, from the moment asked for last on.
    read: VecDeque<Value>,
}

impl Moments<'_> {
    /// All events of the moment of this one.
    async fn of(&mut self, event: &Value) -> Result<Vec<Value>, Failure> {
        let Some(wanted) = moment(event) else { return Ok(Vec::new()) };
        while self.read.front().is_some_and(|event| moment(event) < Some(wanted)) {
            self.read.pop_front();
        }
        if self.read.is_empty() {
            // Nothing that was read reaches so far; between two decisions there may be a month of other jobs' events.
            self.pages = self.client.event_pages(&Events::all(), Some(just_before(wanted)));
        }
        // It is whole when something later was read, or there is nothing more.
        while self.read.back().is_none_or(|last| moment(last) <= Some(wanted)) {
            let Some(page) = self.pages.next().await? else { break };
            self.read.extend(page);
        }
        Ok(self.read.iter().take_while(|event| moment(event) == Some(wanted)).cloned().collect())
    }
}

/// The last cursor before a moment.
fn just_before(offset: u64) -> String {
    match offset.checked_sub(1) {
        Some(before) => format!("{before}-{}", u32::MAX),
        None => BEGINNING.to_owned(),
    }
}

/// What else was decided at the moment of a decision: causes first.
fn others(decision: &Value, batch: Vec<Value>) -> Vec<Value> {
    let is_cause = |event: &Value| CAUSES.iter().any(|cause| kind(event).starts_with(cause));
    let others = batch.into_iter().filter(|event| event["id"] != decision["id"]);
    let (mut causes, rest): (Vec<Value>, Vec<Value>) = others.partition(|event| is_cause(event));
    causes.extend(rest);
    causes
}

/// What is printed, one decision after the other.
struct Story {
    output: Output,
    job: String,
    /// In a document, what stands before the next decision.
    separator: &'static str,
}

impl Story {
    /// The job as it is now, and how many decisions are left out.
    fn begin(output: Output, job: &Answer<Job>, earlier: u64) -> Self {
        match output {
            Output::Json => bytes(beginning(job.as_it_came(), earlier).as_bytes()),
            Output::Name => {}
            Output::Table => {
                let waits = job.reason.as_ref().and_then(|reason| reason.waits.as_ref()).map(WaitCause::sentence);
                let waits = waits.map(|waits| format!("; now it waits for {waits}")).unwrap_or_default();
                let (slots, of_slots) = (job.slots.len(), if job.slots.len() == 1 { "slot" } else { "slots" });
                let on = match job.slots.iter().any(|slot| slot.ends_with("-guest")) {
                    true => format!("{slots} guest {of_slots}, beside other jobs"),
                    false => format!("{slots} {of_slots}"),
                };
                line(format!("{} is {} on {on}{waits}", job.id, job.phase));
                if !job.speeds.is_empty() {
                    let speeds: Vec<String> = job.speeds.iter().map(Speed::sentence).collect();
                    line(format!("a step takes it {}", speeds.join(", ")));
                }
                if !job.type_times.is_empty() {
                    let times: Vec<String> = job.type_times.iter().map(TypeTime::sentence).collect();
                    line(format!("a rank's gradient takes it {}: faster types host more ranks", times.join(", ")));
                }
                if earlier > 0 {
                    line(format!("({earlier} earlier decisions: without --newest all are told)"));
                }
            }
        }
        Self { output, job: job.id.clone(), separator: "\n" }
    }

    fn tell(&mut self, decision: &Value, also: &[Value]) {
        match self.output {
            Output::Json => {
                bytes(format!("{}{}", self.separator, told(decision, also)).as_bytes());
                self.separator = ",\n";
            }
            Output::Name => line(words(&decision["id"])),
            Output::Table => self.print(decision, also),
        }
    }

    fn print(&self, decision: &Value, also: &[Value]) {
        line(format!("{}  {}", words(&decision["time"]), sentence(decision)));
        for event in also.iter().take(ALSO_SHOWN) {
            let about = event["subject"].as_str().filter(|subject| subject.starts_with("job-") && *subject != self.job);
            let about = about.map(|job| format!("{job}: ")).unwrap_or_default();
            line(format!("    at the same moment: {about}{}", sentence(event)));
        }
        if also.len() > ALSO_SHOWN {
            line(format!("    and {} more: -o json shows them", also.len() - ALSO_SHOWN));
        }
    }

    fn end(&self) {
        if self.output == Output::Json {
            line(END);
        }
    }
}

/// The document up to its decisions, which are written as they are read.
fn beginning(record: &Value, earlier: u64) -> String {
    let field = |name: &str| &record[name];
    format!(
        r#"{{"job":{},"phase":{},"reason":{},"earlier_decisions":{earlier},"decisions":["#,
        field("id"),
        field("phase"),
        field("reason")
    )
}

/// The document behind its decisions.
const END: &str = "\n]}";

fn told(decision: &Value, also: &[Value]) -> Value {
    json!({"at": decision["time"], "id": decision["id"], "type": decision["type"], "decision": sentence(decision),
        "data": decision["data"], "also": also})
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use axum::Json;
    use axum::extract::{Path, Query, State};
    use axum::routing::get;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    fn event(id: &str, kind: &str, subject: &str) -> Value {
        json!({"id": id, "type": format!("dev.ebb.{kind}.v1"), "subject": subject, "data": {}})
    }

    #[test]
    fn what_else_was_decided_begins_with_what_caused_it() {
        let batch = [
            event("7-0", "job.planned", "x"),
            event("7-1", "executor.leaving", "x"),
            event("7-2", "fleet.demand", "x"),
            event("7-3", "slot.reclaimed", "x"),
        ];
        let also = others(&batch[0], batch.to_vec());
        assert_eq!(also.iter().map(kind).collect::<Vec<_>>(), ["fleet.demand", "slot.reclaimed", "executor.leaving"]);
        assert_eq!((moment(&batch[0]), moment(&json!({"id": "progress-x"}))), (Some(7), None));
    }

    #[test]
    fn what_is_written_in_pieces_is_one_document() {
        let record = json!({"id": "job-a", "phase": "running", "reason": {"waits": {"slots": 2}}});
        let decision = event("7-0", "job.planned", "job-a");
        let decisions = [told(&decision, &[]), told(&decision, std::slice::from_ref(&decision))].map(|d| d.to_string());
        let written = format!("{}\n{}{END}", beginning(&record, 3), decisions.join(",\n"));
        let read: Value = serde_json::from_str(&written).unwrap();
        assert_eq!(
            (&read["job"], &read["reason"], &read["earlier_decisions"]),
            (&record["id"], &record["reason"], &json!(3))
        );
        assert_eq!(read["decisions"][1]["also"][0], decision);
    }

    type Log = Arc<Vec<Value>>;
    type Parameters = Query<BTreeMap<String, String>>;

    /// A page of what stands behind `from`, as the service gives it.
    fn page(events: impl Iterator<Item = Value>, asked: &BTreeMap<String, String>) -> Json<Value> {
        let cursor = |text: &str| {
            let (offset, index) = text.split_once('-').unwrap();
            (offset.parse::<u64>().unwrap(), index.parse::<u32>().unwrap())
        };
        let from = asked.get("from").map(|from| cursor(from));
        let limit: usize = asked["limit"].parse().unwrap();
        let mut behind = events.filter(|event| Some(cursor(event["id"].as_str().unwrap())) > from);
        let events: Vec<Value> = behind.by_ref().take(limit).collect();
        let next = behind.next().and_then(|_| events.last().map(|event| event["id"].clone()));
        Json(json!({"events": events, "next_cursor": next}))
    }

    async fn service(log: Vec<Value>) -> Client {
        let all = async |State(log): State<Log>, Query(asked): Parameters| page(log.iter().cloned(), &asked);
        let of_job = async |State(log): State<Log>, Path(job): Path<String>, Query(asked): Parameters| {
            page(log.iter().filter(|event| event["subject"] == *job).cloned(), &asked)
        };
        let routes = axum::Router::new().route("/v1/events", get(all)).route("/v1/jobs/{job}/events", get(of_job));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, routes.with_state(Arc::new(log))).await });
        Client::new(&url).unwrap()
    }

    async fn all(client: &Client, earlier: u64) -> Vec<(Value, Vec<Value>)> {
        let mut decisions = Decisions::new(client, &Events::of_job("job-a"), earlier);
        let mut told = Vec::new();
        while let Some(decision) = decisions.next().await.unwrap() {
            told.push(decision);
        }
        told
    }

    /// A moment of more than two pages, the decision in the midst of it and another one behind; both are decisions about the job.
    #[tokio::test]
    async fn a_moment_is_whole_however_many_pages_it_is_on() {
        let mut log: Vec<Value> = (0..600).map(|n| event(&format!("3-{n}"), "job.planned", "job-b")).collect();
        log.push(event("7-0", "fleet.recalled", "local"));
        log.extend((1..1_200).map(|n| event(&format!("7-{n}"), "slot.reclaimed", &format!("local/{n}"))));
        log[900] = event("7-300", "job.planned", "job-a");
        log.push(event("7-1200", "job.suspending", "job-a"));
        log.push(event("8-0", "slot.returned", "local/1"));
        let told = all(&service(log).await, 0).await;
        let also: Vec<usize> = told.iter().map(|(_, also)| also.len()).collect();
        assert_eq!(also, [1_200, 1_200]);
        assert_eq!(kind(&told[0].1[0]), "fleet.recalled");
    }

    /// More decisions than a page holds, far apart from each other.
    #[tokio::test]
    async fn all_decisions_are_told_or_the_newest() {
        let decisions = 1_100_u64;
        let moments = (1..=decisions).flat_map(|n| {
            [event(&format!("{n}-0"), "fleet.demand", "local"), event(&format!("{n}-1"), "job.planned", "job-a")]
        });
        let client = service(moments.collect()).await;
        assert_eq!(count(&client, &Events::of_job("job-a")).await.unwrap(), decisions);
        let told = all(&client, 0).await;
        assert!(told.iter().all(|(_, also)| also.len() == 1 && kind(&also[0]) == "fleet.demand"));
        assert_eq!(told.len() as u64, decisions);
        let newest = all(&client, decisions - 2).await;
        assert_eq!(newest, told[told.len() - 2..]);
    }
}
