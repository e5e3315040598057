//! `ebb fleet ledger FLEET`: which slot was lent to which job from when to when, and how long each return took against what was asked.
//!
//! Made of the log's public events alone: a job is on a slot from `executor.assigned` to `executor.gone`, and a slot is on its way back from
//! `slot.reclaimed` to `slot.returned`. [`Ledger`] is pure; the rest reads and prints.

use crate::args::LedgerArgs;
use crate::failure::Failure;
use crate::output::{Output, json, line, pairs, table};
use crate::sentences::{kind, time_ms};
use events_schema::{FleetId, TimeMs};
use gateway_api::rfc3339;
use gateway_client::{Client, Events};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// What a ledger is made of.
const TYPES: &[&str] =
    &["slot.reclaimed.v1", "slot.returned.v1", "executor.assigned.v1", "executor.gone.v1", "fleet.declared.v1"];
/// Why a slot comes back that its fleet asked the agent for.
const DIRECT: &str = "direct";
/// Rows shown to people, the newest of them; -o json has all.
const ROWS_SHOWN: usize = 500;

/// `ebb fleet ledger FLEET`.
pub async fn ledger(client: &Client, output: Output, args: &LedgerArgs) -> Result<(), Failure> {
    // Also says whether there is such a fleet.
    client.fleet(args.fleet.as_str()).await?;
    let mut ledger = Ledger::new(args.fleet.clone());
    client.each_event(&Events::all().of_types(TYPES), None, |event| ledger.take(event)).await?;
    let now_ms = shell::wall_clock().0;
    let since_ms = args.since.map(|since| since.ms(now_ms));
    let rows = ledger.rows(since_ms.unwrap_or(0));
    let totals = Totals::of(&rows, since_ms.unwrap_or(0), now_ms);
    match output {
        Output::Json => {
            json(&json!({"fleet": args.fleet, "since": since_ms.map(shown), "rows": rows, "totals": totals}))
        }
        Output::Name => rows.iter().for_each(|row| line(&row.slot)),
        Output::Table => print(&rows, &totals),
    }
    Ok(())
}

/// One stay of one job on one slot, or a return of a slot that nobody was on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// `SERVER/INDEX`.
    pub slot: String,
    /// Who had it; nobody if it was idle when it was asked back.
    pub job: Option<String>,
    /// The process.
    pub executor: Option<String>,
    /// When it came.
    #[serde(serialize_with = "as_time")]
    pub from: u64,
    /// When it was gone; not yet if absent.
    #[serde(serialize_with = "as_maybe_time")]
    pub to: Option<u64>,
    /// The return that ended it, if the fleet took the slot back meanwhile.
    #[serde(rename = "return")]
    pub returned: Option<Return>,
}

/// A slot asked back.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Return {
    /// When it was asked for.
    #[serde(serialize_with = "as_time")]
    pub asked: u64,
    /// Why: `demand`, `named`, `direct`, `recall`, …
    pub cause: String,
    /// Within what time it was to be free.
    pub deadline_ms: u64,
    /// After what time it was; not yet if absent, or nobody knows: the agent that was asked ended before it said so.
    pub took_ms: Option<u64>,
    /// Whether that was in time.
    pub in_time: Option<bool>,
    /// Whether is known when it was asked for.
    #[serde(skip)]
    is_told: bool,
    /// Whether whoever was on it did not leave by itself, and was killed.
    pub killed: bool,
}

/// A fleet's loans, as its events tell them one after the other.
#[derive(Debug)]
pub struct Ledger {
    fleet: FleetId,
    /// Slots that it declared last of all fleets.
    slots: BTreeSet<String>,
    rows: Vec<Row>,
    /// The row of who is on a slot.
    open: BTreeMap<String, usize>,
    /// The row of the return that is under way on a slot.
    returning: BTreeMap<String, usize>,
}

impl Ledger {
    /// Of no events yet.
    #[must_use]
    pub fn new(fleet: FleetId) -> Self {
        Self { fleet, slots: BTreeSet::new(), rows: Vec::new(), open: BTreeMap::new(), returning: BTreeMap::new() }
    }

    /// Takes in the next event.
    pub fn take(&mut self, event: &Value) {
        let data = &event["data"];
        let at = time_ms(&event["time"]).unwrap_or(0);
        let of_fleet = data["fleet"].as_str() == Some(self.fleet.as_str());
        if kind(event) == "fleet.declared" {
            let declared = data["slots"].as_array().into_iter().flatten().filter_map(Value::as_str);
            if of_fleet {
                self.slots.extend(declared.map(str::to_owned));
            } else {
                // What another fleet declares from now on is lent by that one.
                for slot in declared {
                    self.slots.remove(slot);
                }
            }
            return;
        }
        let Some(slot) = data["slot"].as_str() else { return };
        let ours = if data["fleet"].is_string() { of_fleet } else { self.slots.contains(slot) };
        // A stay or a return that began while the slot was ours is told to its end.
        let ends = matches!(kind(event), "executor.gone" | "slot.returned");
        if !ours && !ends {
            return;
        }
        match kind(event) {
            "executor.assigned" => {
                let text = |name: &str| data[name].as_str().map(str::to_owned);
                let row = Row {
                    slot: slot.to_owned(),
                    job: text("job"),
                    executor: text("executor"),
                    from: at,
                    to: None,
                    returned: None,
                };
                self.open.insert(slot.to_owned(), self.rows.len());
                self.rows.push(row);
            }
            "executor.gone" => {
                let known = self
                    .open
                    .get(slot)
                    .copied()
                    .filter(|row| self.rows[*row].executor.as_deref() == data["executor"].as_str());
                if let Some(row) = known {
                    self.rows[row].to = Some(at);
                    if let Some(returned) = &mut self.rows[row].returned {
                        returned.killed = data["exit"] == "killed";
                    }
                    self.open.remove(slot);
                }
            }
            "slot.reclaimed" => self.reclaimed(slot, at, data),
            "slot.returned" => {
                let Some(row) = self.returning.remove(slot) else { return };
                if let Some(returned) = &mut self.rows[row].returned {
                    let took_ms = data["took_ms"].as_u64().unwrap_or(at.saturating_sub(returned.asked));
                    returned.took_ms = Some(took_ms).filter(|_| returned.is_told);
                    returned.in_time = returned.took_ms.map(|took_ms| took_ms <= returned.deadline_ms);
                }
                // What nobody was on is over when it is free. What an agent was asked for was free then, however late its word comes.
                let row = &mut self.rows[row];
                let direct = row.returned.as_ref().filter(|returned| returned.cause == DIRECT);
                let free_at = direct.and_then(|returned| Some(returned.asked + returned.took_ms?)).unwrap_or(at);
                row.to = Some(row.to.map_or(free_at, |to| to.min(free_at)).max(row.from));
            }
            _ => {}
        }
    }

    fn reclaimed(&mut self, slot: &str, at: u64, data: &Value) {
        // What a fleet asked of an agent stands in the log when it is done.
        let is_told = data["asked"].is_string() || data["cause"] != DIRECT;
        let at = time_ms(&data["asked"]).unwrap_or(at);
        let by = time_ms(&data["deadline"]).unwrap_or(at);
        if let Some(returned) = self.returning.get(slot).and_then(|row| self.rows[*row].returned.as_mut()) {
            if data["asked"].is_string() && returned.cause == DIRECT {
                // Known from the job's leader before; what was asked, the agent says.
                (returned.asked, returned.deadline_ms, returned.is_told) = (at, by.saturating_sub(at), true);
                return;
            }
            // Asked again: the earlier deadline holds, and the time still counts from the first.
            returned.deadline_ms = returned.deadline_ms.min(by.saturating_sub(returned.asked));
            return;
        }
        let row = match self.open.get(slot) {
            Some(row) => *row,
            None => {
                let idle = Row { slot: slot.to_owned(), job: None, executor: None, from: at, to: None, returned: None };
                self.rows.push(idle);
                self.rows.len() - 1
            }
        };
        let cause = data["cause"].as_str().unwrap_or_default().to_owned();
        let deadline_ms = by.saturating_sub(at);
        self.rows[row].returned =
            Some(Return { asked: at, cause, deadline_ms, took_ms: None, in_time: None, is_told, killed: false });
        self.returning.insert(slot.to_owned(), row);
    }

    /// All that was not over before a time, in the order of their beginnings.
    #[must_use]
    pub fn rows(&self, since_ms: u64) -> Vec<Row> {
        self.rows.iter().filter(|row| row.to.is_none_or(|to| to >= since_ms)).cloned().collect()
    }
}

/// What the rows come to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Totals {
    /// Time that jobs were on slots, added up over the slots.
    pub used_slot_seconds: f64,
    /// Slots that came back.
    pub returns: usize,
    /// Of these, slots that a job was on; the others were idle, and free at once.
    pub returns_of_jobs: usize,
    /// Of all, in time.
    pub returns_in_time: usize,
    /// How long half of those that a job was on took at most.
    pub return_p50_ms: Option<u64>,
    /// How long the slowest of these took.
    pub return_max_ms: Option<u64>,
}

impl Totals {
    /// Of these rows between two times.
    #[must_use]
    pub fn of(rows: &[Row], since_ms: u64, now_ms: u64) -> Self {
        let of_jobs = rows.iter().filter(|row| row.job.is_some());
        let used_ms: u64 = of_jobs.map(|row| row.to.unwrap_or(now_ms).saturating_sub(row.from.max(since_ms))).sum();
        let is_over = |row: &&Row| row.returned.as_ref().is_some_and(|returned| returned.took_ms.is_some());
        let over: Vec<&Row> = rows.iter().filter(is_over).collect();
        let of_jobs = over.iter().filter(|row| row.job.is_some()).filter_map(|row| row.returned.as_ref()?.took_ms);
        let mut took: Vec<u64> = of_jobs.collect();
        took.sort_unstable();
        Self {
            used_slot_seconds: used_ms as f64 / 1e3,
            returns: over.len(),
            returns_of_jobs: took.len(),
            returns_in_time: over
                .iter()
                .filter_map(|row| row.returned.as_ref()?.in_time)
                .filter(|in_time| *in_time)
                .count(),
            return_p50_ms: took.get(took.len().saturating_sub(1) / 2).copied(),
            return_max_ms: took.last().copied(),
        }
    }
}

fn print(rows: &[Row], totals: &Totals) {
    if rows.is_empty() {
        line("nothing was lent in that time");
        return;
    }
    let earlier = rows.len().saturating_sub(ROWS_SHOWN);
    if earlier > 0 {
        line(format!("({earlier} earlier rows: -o json shows them)"));
    }
    let cells: Vec<Vec<String>> = rows[earlier..].iter().map(cells).collect();
    line(table(&["SLOT", "JOB", "FROM", "TO", "ASKED BACK", "BECAUSE", "WITHIN", "TOOK", "IN TIME"], &cells));
    let ms = |ms: Option<u64>| ms.map(|ms| format!("{ms} ms")).unwrap_or_default();
    line(pairs(&[
        ("used", format!("{:.1} slot-seconds", totals.used_slot_seconds)),
        ("returns", format!("{}, {} of them in time", totals.returns, totals.returns_in_time)),
        ("of slots in use", totals.returns_of_jobs.to_string()),
        ("of these, median", ms(totals.return_p50_ms)),
        ("of these, slowest", ms(totals.return_max_ms)),
    ]));
}

fn cells(row: &Row) -> Vec<String> {
    let returned = row.returned.as_ref();
    let killed = returned.is_some_and(|returned| returned.killed);
    let in_time = returned.and_then(|returned| returned.in_time).map(|yes| match (yes, killed) {
        (true, false) => "yes",
        (true, true) => "yes (killed)",
        (false, false) => "no",
        (false, true) => "no (killed)",
    });
    vec![
        row.slot.clone(),
        row.job.clone().unwrap_or_else(|| "(idle)".to_owned()),
        shown(row.from),
        row.to.map(shown).unwrap_or_default(),
        returned.map(|returned| shown(returned.asked)).unwrap_or_default(),
        returned.map(|returned| returned.cause.clone()).unwrap_or_default(),
        returned.map(|returned| format!("{} ms", returned.deadline_ms)).unwrap_or_default(),
        returned.and_then(|returned| returned.took_ms).map(|ms| format!("{ms} ms")).unwrap_or_default(),
        in_time.unwrap_or_default().to_owned(),
    ]
}

fn shown(ms: u64) -> String {
    rfc3339(TimeMs(ms))
}

fn as_time<S: serde::Serializer>(ms: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&shown(*ms))
}

fn as_maybe_time<S: serde::Serializer>(ms: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
    ms.map(shown).serialize(to)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn event(kind: &str, second: u64, data: Value) -> Value {
        json!({"type": format!("dev.ebb.{kind}.v1"), "time": format!("2026-01-01T00:00:{second:02}.000Z"), "data": data})
    }

    fn ledger(events: &[Value]) -> Ledger {
        let mut ledger = Ledger::new(FleetId::parse("chat").unwrap());
        events.iter().for_each(|event| ledger.take(event));
        ledger
    }

    fn story() -> Vec<Value> {
        let (slot, other) = (json!("gpu/0"), json!("gpu/1"));
        vec![
            event("fleet.declared", 0, json!({"fleet": "chat", "slots": [slot, other]})),
            event("executor.assigned", 1, json!({"job": "job-a", "executor": "job-a/e0", "slot": slot})),
            event("executor.assigned", 1, json!({"job": "job-z", "executor": "job-z/e0", "slot": "far/0"})),
            event("executor.gone", 5, json!({"job": "job-a", "executor": "job-a/e0", "slot": slot})),
            event("executor.assigned", 6, json!({"job": "job-b", "executor": "job-b/e0", "slot": slot})),
            event(
                "slot.reclaimed",
                10,
                json!({"slot": slot, "fleet": "chat", "deadline": "2026-01-01T00:00:20.000Z", "cause": "demand"}),
            ),
            event(
                "slot.reclaimed",
                11,
                json!({"slot": slot, "fleet": "chat", "deadline": "2026-01-01T00:00:12.000Z", "cause": "direct"}),
            ),
            event("executor.gone", 13, json!({"job": "job-b", "executor": "job-b/e0", "slot": slot})),
            event("slot.returned", 13, json!({"slot": slot, "fleet": "chat", "took_ms": 3000})),
            event(
                "slot.reclaimed",
                14,
                json!({"slot": other, "fleet": "chat", "deadline": "2026-01-01T00:00:24.000Z", "cause": "recall"}),
            ),
            event("slot.returned", 14, json!({"slot": other, "fleet": "chat", "took_ms": 0})),
        ]
    }

    #[test]
    fn each_stay_has_its_job_and_each_return_what_it_took() {
        let rows = ledger(&story()).rows(0);
        let jobs: Vec<Option<&str>> = rows.iter().map(|row| row.job.as_deref()).collect();
        assert_eq!(jobs, [Some("job-a"), Some("job-b"), None], "{rows:?}");
        assert_eq!(rows[0].returned, None, "it ended by itself");
        let returned = rows[1].returned.as_ref().unwrap();
        assert_eq!((returned.cause.as_str(), returned.deadline_ms, returned.took_ms), ("demand", 2_000, Some(3_000)));
        assert_eq!((returned.in_time, rows[2].returned.as_ref().unwrap().in_time), (Some(false), Some(true)));
    }

    #[test]
    fn a_slot_that_another_fleet_declares_is_no_longer_in_the_ledger() {
        let mut story = story();
        story.push(event("fleet.declared", 15, json!({"fleet": "search", "slots": ["gpu/0"]})));
        story.push(event("executor.assigned", 16, json!({"job": "job-c", "executor": "job-c/e0", "slot": "gpu/0"})));
        let deadline = "2026-01-01T00:00:24.000Z";
        let reclaimed = json!({"slot": "gpu/0", "fleet": "search", "deadline": deadline, "cause": "demand"});
        story.push(event("slot.reclaimed", 17, reclaimed));
        assert_eq!(ledger(&story).rows(0).len(), 3);
    }

    #[test]
    fn totals_are_of_the_time_asked_for() {
        let ledger = ledger(&story());
        let at = |second: &str| time_ms(&json!(format!("2026-01-01T00:00:{second}.000Z"))).unwrap();
        let all = Totals::of(&ledger.rows(0), 0, at("30"));
        assert_eq!((all.used_slot_seconds, all.returns, all.returns_in_time), (11.0, 2, 1));
        // What was idle came back at once, and says nothing of how fast jobs leave.
        assert_eq!((all.returns_of_jobs, all.return_p50_ms, all.return_max_ms), (1, Some(3_000), Some(3_000)));
        let late = Totals::of(&ledger.rows(at("12")), at("12"), at("30"));
        assert_eq!((ledger.rows(at("12")).len(), late.used_slot_seconds), (2, 1.0));
    }

    /// An agent tells of a direct take-back when it is over: counted from there, it took as long as it takes to say so.
    #[test]
    fn what_was_asked_of_an_agent_counts_from_when_it_was_asked() {
        let slot = json!("gpu/0");
        let mut story = story()[..6].to_vec();
        let (asked, deadline) = ("2026-01-01T00:00:07.000Z", "2026-01-01T00:00:09.000Z");
        story[5] = event(
            "slot.reclaimed",
            10,
            json!({"slot": slot, "fleet": "chat", "asked": asked, "deadline": deadline, "cause": "direct"}),
        );
        // The job's leader may have said it before, and knew no more than that.
        let unasked = json!({"slot": slot, "fleet": "chat", "deadline": "2026-01-01T00:00:19.500Z", "cause": "direct"});
        story.insert(5, event("slot.reclaimed", 9, unasked));
        let gone = json!({"job": "job-b", "executor": "job-b/e0", "slot": slot, "exit": "killed"});
        story.push(event("executor.gone", 10, gone));
        story.push(event("slot.returned", 10, json!({"slot": slot, "fleet": "chat", "took_ms": 3000})));
        let rows = ledger(&story).rows(0);
        let returned = rows[1].returned.as_ref().unwrap();
        assert_eq!((returned.deadline_ms, returned.took_ms, returned.in_time), (2_000, Some(3_000), Some(false)));
        assert!(returned.killed && shown(returned.asked) == asked, "{returned:?}");
    }

    /// While nobody decided the slot was its fleet's already.
    #[test]
    fn a_stay_ends_when_the_agent_had_the_slot_free_and_not_when_that_is_on_record() {
        let slot = json!("gpu/0");
        let mut story = story()[..5].to_vec();
        let (asked, deadline) = ("2026-01-01T00:00:07.000Z", "2026-01-01T00:00:09.000Z");
        let reclaimed = json!({"slot": slot, "fleet": "chat", "asked": asked, "deadline": deadline, "cause": "direct"});
        story.push(event("slot.reclaimed", 50, reclaimed));
        story.push(event("executor.gone", 50, json!({"job": "job-b", "executor": "job-b/e0", "slot": slot})));
        story.push(event("slot.returned", 50, json!({"slot": slot, "fleet": "chat", "took_ms": 400})));
        let rows = ledger(&story).rows(0);
        assert_eq!(rows[1].to.map(shown).as_deref(), Some("2026-01-01T00:00:07.400Z"), "{rows:?}");
        assert_eq!(rows[1].returned.as_ref().unwrap().in_time, Some(true));
    }

    /// An agent that ended meanwhile knows only that the slot is its fleet's.
    #[test]
    fn what_nobody_knows_the_beginning_of_is_not_called_in_time() {
        let slot = json!("gpu/0");
        let mut story = story()[..5].to_vec();
        let reclaimed =
            json!({"slot": slot, "fleet": "chat", "deadline": "2026-01-01T00:00:12.000Z", "cause": "direct"});
        story.push(event("slot.reclaimed", 7, reclaimed));
        story.push(event("slot.returned", 7, json!({"slot": slot, "fleet": "chat", "took_ms": 0})));
        let rows = ledger(&story).rows(0);
        let returned = rows[1].returned.as_ref().unwrap();
        assert_eq!((returned.took_ms, returned.in_time, rows[1].to.is_some()), (None, None, true), "{returned:?}");
    }

    #[test]
    fn what_is_under_way_has_no_end() {
        let rows = ledger(&story()[..6]).rows(0);
        assert_eq!((rows[1].to, rows[1].returned.as_ref().unwrap().took_ms), (None, None));
        assert_eq!(serde_json::to_value(&rows[1]).unwrap()["from"], "2026-01-01T00:00:06.000Z");
    }
}
