//! `ebb explain JOB`: every decision about a job, with its reason and what else was decided at the same moment.
//!
//! All of it is read from the log's public events. What is decided together is one batch there, so its events have one time and one OFFSET in
//! their ids: that is what "the same moment" means, and nothing here guesses.

use crate::failure::Failure;
use crate::find;
use crate::output::{Output, json, line, listed};
use crate::sentences::{kind, sentence};
use crate::wire::{self, Job, words};
use gateway_api::pages::BEGINNING;
use gateway_api::paths;
use gateway_client::Client;
use serde_json::{Value, json};

/// Decisions told, the newest of them: a screen or two; each costs a request at most.
const DECISIONS_MAX: usize = 200;
/// What else happened at one moment, told to people; a plan may move thousands of jobs.
const ALSO_SHOWN: usize = 8;
/// Events asked for per page.
const PAGE_LIMIT: usize = 500;

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
pub async fn explain(client: &Client, output: Output, id: &str) -> Result<(), Failure> {
    let id = find::job(client, id).await?;
    let record: Value = client.get(&paths::job(&id)).await?;
    let events = client.all_events(&paths::job_events(&id)).await?;
    let decisions: Vec<&Value> = events.iter().filter(|event| DECISIONS.contains(&kind(event))).collect();
    let earlier = decisions.len().saturating_sub(DECISIONS_MAX);
    let mut batches = Batches::new(client);
    let mut told = Vec::new();
    for decision in &decisions[earlier..] {
        let also = others(decision, &batches.of(decision).await?);
        told.push((*decision, also));
    }
    match output {
        Output::Json => json(&document(&record, earlier, &told)),
        Output::Name => told.iter().for_each(|(decision, _)| line(words(&decision["id"]))),
        Output::Table => print(&record, earlier, &told)?,
    }
    Ok(())
}

/// The OFFSET of an event's id: events of one moment share it.
fn moment(event: &Value) -> Option<u64> {
    event["id"].as_str()?.split_once('-')?.0.parse().ok()
}

/// Batches of the log, read page by page: decisions that follow each other closely are on one page.
struct Batches<'a> {
    client: &'a Client,
    /// Every event of the moments from `first` to before `behind`, in order.
    page: Vec<Value>,
    first: u64,
    behind: u64,
}

impl<'a> Batches<'a> {
    fn new(client: &'a Client) -> Self {
        Self { client, page: Vec::new(), first: 0, behind: 0 }
    }

    /// All events of the moment of this one.
    async fn of(&mut self, event: &Value) -> Result<Vec<Value>, Failure> {
        let Some(moment_wanted) = moment(event) else { return Ok(Vec::new()) };
        if !(self.first..self.behind).contains(&moment_wanted) {
            self.read_from(moment_wanted).await?;
        }
        Ok(self.page.iter().filter(|event| moment(event) == Some(moment_wanted)).cloned().collect())
    }

    async fn read_from(&mut self, offset: u64) -> Result<(), Failure> {
        let before = match offset.checked_sub(1) {
            Some(before) => format!("{before}-{}", u32::MAX),
            None => BEGINNING.to_owned(),
        };
        let page: Value = self.client.get(&format!("{}?limit={PAGE_LIMIT}&from={before}", paths::EVENTS)).await?;
        self.page = listed(&page["events"]).to_vec();
        let last = self.page.last().and_then(moment).unwrap_or(offset);
        // The last moment of a full page may go on beyond it; if it is the only one, what was read of it has to do.
        let cut = self.page.len() == PAGE_LIMIT && last > offset;
        (self.first, self.behind) = (offset, if cut { last } else { last.max(offset) + 1 });
        Ok(())
    }
}

/// What else was decided at the moment of a decision: causes first.
fn others(decision: &Value, batch: &[Value]) -> Vec<Value> {
    let is_cause = |event: &Value| CAUSES.iter().any(|cause| kind(event).starts_with(cause));
    let others = batch.iter().filter(|event| event["id"] != decision["id"]);
    let (mut causes, rest): (Vec<Value>, Vec<Value>) = others.cloned().partition(|event| is_cause(event));
    causes.extend(rest);
    causes
}

fn document(record: &Value, earlier: usize, told: &[(&Value, Vec<Value>)]) -> Value {
    let decisions: Vec<Value> = told
        .iter()
        .map(|(decision, also)| {
            json!({"at": decision["time"], "id": decision["id"], "type": decision["type"], "decision": sentence(decision),
                "data": decision["data"], "also": also})
        })
        .collect();
    json!({"job": record["id"], "phase": record["phase"], "reason": record["reason"], "earlier_decisions": earlier, "decisions": decisions})
}

fn print(record: &Value, earlier: usize, told: &[(&Value, Vec<Value>)]) -> Result<(), Failure> {
    let job: Job = wire::read(record)?;
    let waits = job.reason.as_ref().map(|reason| words(&reason.waits)).filter(|waits| !waits.is_empty());
    let waits = waits.map(|waits| format!("; now it waits for {waits}")).unwrap_or_default();
    line(format!("{} is {} on {} slots{waits}", job.id, job.phase, job.slots.len()));
    if earlier > 0 {
        line(format!("({earlier} earlier decisions: `ebb events {}` has all)", job.id));
    }
    for (decision, also) in told {
        line(format!("{}  {}", words(&decision["time"]), sentence(decision)));
        for event in also.iter().take(ALSO_SHOWN) {
            let about = event["subject"].as_str().filter(|subject| subject.starts_with("job-") && *subject != job.id);
            let about = about.map(|job| format!("{job}: ")).unwrap_or_default();
            line(format!("    at the same moment: {about}{}", sentence(event)));
        }
        if also.len() > ALSO_SHOWN {
            line(format!("    and {} more: -o json shows them", also.len() - ALSO_SHOWN));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: &str, kind: &str) -> Value {
        json!({"id": id, "type": format!("dev.ebb.{kind}.v1"), "subject": "x", "data": {}})
    }

    #[test]
    fn what_else_was_decided_begins_with_what_caused_it() {
        let batch = [
            event("7-0", "job.planned"),
            event("7-1", "executor.leaving"),
            event("7-2", "fleet.demand"),
            event("7-3", "slot.reclaimed"),
        ];
        let also = others(&batch[0], &batch);
        assert_eq!(also.iter().map(kind).collect::<Vec<_>>(), ["fleet.demand", "slot.reclaimed", "executor.leaving"]);
        assert_eq!((moment(&batch[0]), moment(&json!({"id": "progress-x"}))), (Some(7), None));
    }
}
