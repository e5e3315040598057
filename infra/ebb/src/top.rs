//! `ebb top`: fleets, slots and jobs at a glance, again and again on a terminal, once elsewhere. [`Picture`] is pure; the rest asks and prints.

use crate::args::TopArgs;
use crate::failure::Failure;
use crate::output::{Output, bytes, json, line, table};
use crate::wire::{self, Fleet, Job, Slot, words};
use gateway_api::JobPhase;
use gateway_client::{Answer, Client, WantedJobs, WantedSlots};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::time::Duration;

/// Jobs on the screen: those that train first.
const JOBS_SHOWN: usize = 30;
/// Failed looks in a row before giving up: about the time a restart takes.
const LOOKS_FAILED_MAX: u32 = 15;
/// Least time between two screens: a service is not asked more often by somebody who looks.
const EVERY_MIN: Duration = Duration::from_millis(200);
/// Home and clear what is below: nothing flickers.
const REDRAW: &str = "\x1b[H\x1b[J";
/// Clears the screen once.
const CLEAR: &str = "\x1b[2J";

/// `ebb top`.
pub async fn top(client: &Client, output: Output, args: &TopArgs) -> Result<(), Failure> {
    let live = output == Output::Table && !args.once && std::io::stdout().is_terminal();
    if !live {
        let picture = Picture::take(client).await?;
        match output {
            Output::Json => json(&picture.document()),
            Output::Name => picture.jobs.iter().for_each(|job| line(&job.id)),
            Output::Table => line(picture.text()),
        }
        return Ok(());
    }
    let mut failed_looks = 0;
    bytes(CLEAR.as_bytes());
    loop {
        match Picture::take(client).await {
            Ok(picture) => {
                failed_looks = 0;
                bytes(format!("{REDRAW}{}\n", picture.text()).as_bytes());
            }
            Err(failure) if failure.may_pass() && failed_looks < LOOKS_FAILED_MAX => failed_looks += 1,
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(args.every.max(EVERY_MIN)).await;
    }
}

/// What there is at one moment.
struct Picture {
    fleets: Vec<Answer<Fleet>>,
    slots: Vec<Answer<Slot>>,
    /// Those that are not over.
    jobs: Vec<Answer<Job>>,
}

impl Picture {
    async fn take(client: &Client) -> Result<Self, Failure> {
        let fleets = client.fleets(None).await?;
        let slots = client.slots(&WantedSlots::default()).await?;
        let mut jobs = Vec::new();
        // One phase at a time, so that those that are over, which are most, are never sent.
        for phase in JobPhase::ALL.iter().filter(|phase| !phase.is_over()) {
            jobs.extend(client.jobs(&WantedJobs::in_phase(*phase)).await?);
        }
        Ok(Self { fleets, slots, jobs })
    }

    fn document(&self) -> Value {
        json!({"fleets": self.fleets, "slots": self.slots, "jobs": self.jobs, "totals": self.totals()})
    }

    fn totals(&self) -> Value {
        let in_state = |states: &[&str]| self.slots.iter().filter(|slot| states.contains(&slot.state.as_str())).count();
        json!({
            "slots": self.slots.len(),
            "lent": in_state(&["offered", "borrowed"]),
            "used": self.slots.iter().filter(|slot| slot.executor.is_some()).count(),
            "leaving": in_state(&["reclaimed"]),
            "running": self.jobs.iter().filter(|job| job.phase == "running").count(),
            // The sum of nothing is -0, which nobody wants to read.
            "steps_per_second": self.jobs.iter().filter_map(|job| steps_per_second(job.progress?.step_us)).sum::<f64>().abs(),
        })
    }

    fn text(&self) -> String {
        let totals = self.totals();
        let total = |name: &str| words(&totals[name]);
        let mut text = format!(
            "{} slots: {} lent, {} used, {} leaving   {} jobs: {} running, {:.1} steps/s\n\n",
            total("slots"),
            total("lent"),
            total("used"),
            total("leaving"),
            self.jobs.len(),
            total("running"),
            totals["steps_per_second"].as_f64().unwrap_or_default()
        );
        let fleets: Vec<Vec<String>> = self.fleets.iter().map(|fleet| fleet_row(fleet)).collect();
        text.push_str(&table(&["FLEET", "SLOTS", "NEEDED", "LENT", "LEAVING", "SLOTS IN ORDER"], &fleets));
        let mut jobs: Vec<&Answer<Job>> = self.jobs.iter().collect();
        jobs.sort_by_key(|job| (job.progress.is_none(), job.slots.is_empty()));
        let rows: Vec<Vec<String>> = jobs.iter().take(JOBS_SHOWN).map(|job| job_row(job)).collect();
        text.push_str("\n\n");
        text.push_str(&table(
            &["JOB", "NAME", "PHASE", "SLOTS", "STEP", "STEPS/S", "SAMPLES/S", "LOSS", "WAITS FOR"],
            &rows,
        ));
        if jobs.len() > JOBS_SHOWN {
            text.push_str(&format!("\nand {} more: `ebb jobs` lists all", jobs.len() - JOBS_SHOWN));
        }
        text
    }
}

fn steps_per_second(step_us: u64) -> Option<f64> {
    (step_us > 0).then(|| Duration::from_secs(1).as_secs_f64() / Duration::from_micros(step_us).as_secs_f64())
}

/// A letter a slot: `.` the fleet's own, `o` lent and idle, `#` used, `<` leaving, `?` unknown.
fn letter(state: &str) -> char {
    match state {
        "unoffered" => '.',
        "offered" => 'o',
        "borrowed" => '#',
        "reclaimed" => '<',
        _ => '?',
    }
}

fn fleet_row(fleet: &Fleet) -> Vec<String> {
    let count =
        |states: &[&str]| fleet.slots.iter().filter(|slot| states.contains(&slot.state.as_str())).count().to_string();
    let recalled = fleet.recalled.map(|held| format!(" (recalled: {held})")).unwrap_or_default();
    vec![
        fleet.name.clone(),
        fleet.slots.len().to_string(),
        format!("{}{recalled}", fleet.needed.map(|n| n.to_string()).unwrap_or_default()),
        count(&["offered", "borrowed"]),
        count(&["reclaimed"]),
        fleet.slots.iter().map(|slot| letter(slot.state.as_str())).collect(),
    ]
}

fn job_row(job: &Job) -> Vec<String> {
    let of_progress = |shown: &dyn Fn(&wire::Progress) -> String| job.progress.as_ref().map(shown).unwrap_or_default();
    vec![
        job.id.clone(),
        job.name.clone(),
        job.phase.to_string(),
        format!("{}/{}", job.slots.len(), job.workers.max),
        of_progress(&|p| format!("{}/{}", p.step, p.steps_total)),
        of_progress(&|p| steps_per_second(p.step_us).map(|rate| format!("{rate:.1}")).unwrap_or_default()),
        of_progress(&|p| format!("{:.0}", p.samples_per_second)),
        of_progress(&|p| format!("{:.4}", p.loss)),
        job.reason.as_ref().map(|reason| words(&reason.waits)).unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde::de::DeserializeOwned;

    fn read<T: DeserializeOwned>(came: Value) -> T {
        serde_json::from_value(came).unwrap()
    }

    #[test]
    fn a_picture_says_what_is_lent_used_and_trained() {
        let slot = |state: &str, executor: Value| json!({"slot": "gpu/0", "state": state, "executor": executor});
        let slots =
            vec![slot("borrowed", json!("job-a/e0")), slot("offered", Value::Null), slot("unoffered", Value::Null)];
        let job = json!({"id": "job-a", "name": "n", "phase": "running", "slots": ["gpu/0"], "workers": {"min": 1, "max": 4},
            "progress": {"step": 5, "steps_total": 10, "epoch": 1, "loss": 0.5, "samples_per_second": 64.0, "step_us": 250_000, "members": 1}});
        let queued =
            json!({"id": "job-b", "name": "m", "phase": "queued", "reason": {"waits": {"slots": {"missing": 2}}}});
        let fleet = json!({"name": "chat", "slots": slots, "needed": 1, "recalled": 1});
        let (fleets, slots) = (json!([fleet]), json!(slots));
        let picture = Picture { fleets: read(fleets), slots: read(slots), jobs: read(json!([queued, job])) };
        let text = picture.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "3 slots: 2 lent, 1 used, 0 leaving   2 jobs: 1 running, 4.0 steps/s");
        assert!(lines[3].starts_with("chat   3      1 (recalled: 1)  2") && lines[3].ends_with("#o."), "{text}");
        assert!(lines[6].contains("5/10  4.0      64"), "who trains comes first: {text}");
        assert!(lines[7].ends_with("slots missing 2"), "{text}");
        assert_eq!(picture.document()["totals"]["steps_per_second"], 4.0);
        let nothing = Picture { fleets: vec![], slots: vec![], jobs: vec![] }.text();
        assert!(
            nothing.starts_with("0 slots: 0 lent, 0 used, 0 leaving   0 jobs: 0 running, 0.0 steps/s"),
            "{nothing}"
        );
    }
}
