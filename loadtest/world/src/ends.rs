//! What the world checks of ends: of a job that is done, of what it leaves behind, of a controller that refuses to go on, and of
//! computations that hang. How long a job may stand still follows from the last.

use crate::checks::{TAKE_OVER_MS, patience_ms, patience_with_ms};
use crate::executor::Executor;
use crate::numbers::Element;
use crate::time::At;
use crate::world::{CONTROL, Pid, World};
use controller_cell::CellFailure;
use controller_core::watch::{UNIT_STALL_FACTOR, UNIT_STALL_MS_MIN};
use events_rule::Stream;
use events_schema::fact::{Blamed, Fault, StallCause, StallRemedy, Verdict};
use events_schema::report::Outcome;
use events_schema::{ExecutorId, JobId, Rank, SlotId, Step};
use std::collections::{BTreeMap, BTreeSet};

/// An executor of a job that has ended is gone after so long: told at once, killed two seconds later, reaped.
const GONE_MS: u64 = 10_000;
/// The objects of a checkpoint that was retired are gone after so long: a deletion that is tried again, or two sweeps.
const DELETED_MS: u64 = 20_000;
/// A controller that leads has seen that an input is short after so long: eight looks, two seconds from one to the next, and what is
/// under way.
const SHORT_SEEN_MS: u64 = 8 * 2_000 + 4_000;
/// Who waits for the store for longer has said so to whoever leads, if anybody does: its word of life, its agent's, and a decision about it that may
/// wait for the log.
const HEARD_MS: u64 = 30_000;
/// Until the first words about units have come to a controller that leads.
const FIRST_WORDS_MS: u64 = 3_000;
/// Time for the first unit of a job, where its spec does not say.
pub const FIRST_UNIT_STALL_MS: u64 = 600_000;
/// Longest unit that a watch may have measured where nothing hung: the slowest server, or an executor that was stopped for as long as its
/// agent allows.
const SLOWEST_UNIT_MS: u64 = 12_000;

/// A unit that never ends.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hung {
    job: JobId,
    at: Option<(Step, Rank)>,
    slot: SlotId,
}

/// What is remembered of ends.
#[derive(Debug, Default)]
pub struct Ends {
    hung: Vec<Hung>,
    /// How often somebody else ended an executor of a job, as a failure of its program.
    program_failures: BTreeMap<JobId, u32>,
    /// Executors that ended because of the store.
    for_store: BTreeSet<ExecutorId>,
    jobs: BTreeMap<JobId, At>,
    /// Manifests that ever counted.
    accepted: BTreeSet<String>,
    retired: BTreeMap<String, (JobId, At)>,
    short: Option<(Stream, At)>,
    /// Who led last, and since when.
    led: Option<(Pid, At)>,
}

impl World {
    /// A controller has said what counts for it.
    pub fn note_leader(&mut self, pid: Pid) {
        let now = self.now();
        if self.checks.ends.led.is_none_or(|(known, _)| known != pid) {
            self.checks.ends.led = Some((pid, now));
        }
    }

    /// An executor begins a unit that never ends.
    pub fn note_hung(&mut self, pid: Pid, at: Option<(Step, Rank)>) {
        let Some(place) = self.processes.get(&pid).map(|process| process.place) else { return };
        let Some((job, index)) = self.executor(pid).map(|e| (e.id.job.clone(), e.slot)) else { return };
        let slot = SlotId { server: Self::server_at(place), index };
        self.checks.ends.hung.push(Hung { job, at, slot });
    }

    /// An executor is ended in a way that is taken for a failure of its program.
    pub fn note_program_fails(&mut self, pid: Pid) {
        if let Some(job) = self.executor(pid).map(|executor| executor.id.job.clone()) {
            *self.checks.ends.program_failures.entry(job).or_default() += 1;
        }
    }

    /// An executor ends because of the store.
    pub fn note_store_exit(&mut self, pid: Pid) {
        if let Some(id) = self.executor(pid).map(|executor| executor.id.clone()) {
            self.checks.ends.for_store.insert(id);
        }
    }

    /// What ended for the store's sake is no failure of a program: those end the job by name.
    pub fn check_gone(&mut self, executor: &ExecutorId, verdict: Option<&Verdict>) {
        let of_program = matches!(verdict, Some(Verdict::Failure(failure)) if failure.fault == Fault::Program);
        if of_program && self.checks.ends.for_store.contains(executor) {
            self.found("what the store did is no failure of a program", executor.to_string());
        }
    }

    /// A stall for the store's sake is waited for, and at last the job is suspended; and who waits for the store is not blamed for anything.
    pub fn check_stalled(&mut self, job: &JobId, cause: StallCause, blamed: &[Blamed], remedy: StallRemedy) {
        let waits = cause == StallCause::Store;
        if waits && !matches!(remedy, StallRemedy::Wait | StallRemedy::Suspend) {
            self.found("nobody starts again for the store's sake", format!("{job}: {remedy:?}"));
        }
        let now = self.now();
        let is_blamed = |id: &ExecutorId| blamed.iter().any(|blamed| blamed.executor == *id);
        let waited = |executor: &Executor| executor.store_since.is_some_and(|since| now.since_ms(since) > HEARD_MS);
        let innocent = self.processes.keys().filter_map(|pid| self.executor(*pid));
        let innocent =
            innocent.filter(|executor| is_blamed(&executor.id) && waited(executor)).map(|e| e.id.clone()).next();
        if let Some(id) = innocent {
            self.found("nobody is blamed who waits for the store", format!("{id}: {cause:?}, {remedy:?}"));
        }
    }

    /// A job fails by itself only if the same computation hung on two slots, or its program failed more often than it allows.
    pub fn check_failed(&mut self, job: &JobId, reason: &str) {
        let ends = &self.checks.ends;
        let hung = &ends.hung;
        let again = |one: &Hung| hung.iter().any(|other| other.at == one.at && other.slot != one.slot);
        let failures = ends.program_failures.get(job).copied().unwrap_or_default();
        let of_program = failures > self.schedule.setup.max_restarts;
        if !of_program && !hung.iter().any(|one| one.job == *job && one.at.is_some() && again(one)) {
            self.found("no job fails for what its servers did", format!("{job}: {reason}"));
        }
        self.note_end(job);
    }

    /// A job is done: all its steps, with the model that one process alone would have made.
    pub fn check_finished(&mut self, job: &JobId, outcome: &Outcome) {
        let index = self.people.jobs.iter().position(|known| known == job).unwrap_or(0);
        let steps = Step(self.schedule.setup.jobs[index].steps);
        let (said, stored) = (outcome.model_digest, self.store.model(job));
        if outcome.step != steps || !self.is_model(job, steps, said) || stored != Some(said) {
            let stored = stored.map_or_else(|| "none".to_owned(), |stored| stored.to_string());
            let detail = format!("{job} of {steps} steps at {}, said {said}, stored {stored}", outcome.step);
            self.found("a finished job has computed what one process would have", detail);
        }
        self.note_end(job);
    }

    /// A job has ended.
    pub fn note_end(&mut self, job: &JobId) {
        let now = self.now();
        self.checks.ends.jobs.entry(job.clone()).or_insert(now);
    }

    /// A checkpoint counts from now on.
    pub fn check_accepted(&mut self, job: &JobId, manifest_key: &str) {
        if !self.store.is_whole(job, manifest_key) {
            self.found("a checkpoint that counts is there", manifest_key.to_owned());
        }
        self.checks.ends.accepted.insert(manifest_key.to_owned());
        let shards = self.store.shards(manifest_key);
        // One member alone has nobody to be compared with.
        if shards.len() < 2 {
            return;
        }
        let is_wrong = |(step, replica): &(Step, Vec<Element>)| !self.is_replica(job, *step, replica);
        let wrong = shards.into_iter().filter(is_wrong).count();
        if wrong > 0 {
            self.found("no checkpoint that counts holds a flipped bit", format!("{wrong} shards of {manifest_key}"));
        }
    }

    /// Somebody begins from a checkpoint.
    pub fn check_restored(&mut self, manifest_key: &str) {
        if !self.checks.ends.accepted.contains(manifest_key) {
            self.found("a job goes on from a checkpoint that was accepted", manifest_key.to_owned());
        }
    }

    /// A checkpoint does not count any more.
    pub fn note_retired(&mut self, job: &JobId, manifest_key: &str) {
        let now = self.now();
        self.checks.ends.retired.insert(manifest_key.to_owned(), (job.clone(), now));
    }

    /// After the healing: nobody works on for a job that has ended, and what was retired is deleted.
    pub fn check_left_behind(&mut self, healed_at: At) {
        let (now, able_at) = (self.now(), healed_at.plus_ms(TAKE_OVER_MS));
        let is_over = |at: At, ms: u64| now > at.max(able_at).plus_ms(ms);
        let core = self.schedule.setup.core_servers;
        let there = self.processes.iter().filter(|(_, process)| process.place <= core && !process.stopped);
        let late = there
            .filter_map(|(pid, _)| self.executor(*pid))
            .find(|executor| self.checks.ends.jobs.get(&executor.id.job).is_some_and(|at| is_over(*at, GONE_MS)));
        if let Some(executor) = late.map(|executor| executor.id.clone()) {
            self.found("nobody works for a job that has ended", executor.to_string());
        }
        let kept =
            self.checks.ends.retired.iter().find(|(key, (job, at))| {
                is_over(*at, DELETED_MS) && !self.store.is_damaged(job) && self.store.has(key)
            });
        if let Some(key) = kept.map(|(key, _)| key.clone()) {
            self.found("what is retired is deleted", key);
        }
    }

    /// Whether a controller may rightly refuse to go on.
    #[must_use]
    pub fn is_rightly_refused(&self, failure: &CellFailure) -> bool {
        match failure {
            CellFailure::InputShortened { stream, .. } => self.log.is_shortened(*stream, self.now()),
            // One that begins asks a bounded number of times, and then says what the log last said; somebody begins another.
            CellFailure::Attempts { .. } => true,
            _ => false,
        }
    }

    /// Nobody goes on for long behind an input that ends before what was taken of it: what is asked then would be passed over.
    pub fn check_short_inputs(&mut self) {
        let now = self.now();
        let Some(stream) = self.log.short_input() else {
            self.checks.ends.short = None;
            return;
        };
        let known = self.checks.ends.short.filter(|(known, _)| *known == stream);
        let (_, since) = *self.checks.ends.short.insert(known.unwrap_or((stream, now)));
        let Some((leader, led_since)) = self.checks.ends.led else { return };
        let quiet_since = [since, led_since, self.log.stalled_until, self.hosts[usize::from(CONTROL)].disturbed_at];
        let seen = quiet_since.into_iter().all(|at| now > at.plus_ms(SHORT_SEEN_MS));
        if seen && self.controller == Some(leader) && self.runs(leader) && self.leads(leader) {
            let detail = format!("`{stream}`, {leader}");
            self.found("no controller goes on behind an input that was shortened", detail);
        }
    }

    /// Longest time without a new highest step of a job.
    #[must_use]
    pub fn patience_ms(&self, job: &JobId) -> u64 {
        let setup = &self.schedule.setup;
        if !self.checks.ends.hung.iter().any(|hung| hung.job == *job) {
            return patience_ms(setup);
        }
        let led_since = self.checks.ends.led.map_or(At(0), |(_, since)| since);
        // Whoever leads may have seen no unit of it, and knows how long a step took, if one ever ended.
        let slowest_ms = if self.checks.stepped_at(job) <= led_since.plus_ms(FIRST_WORDS_MS) {
            let step_us = self.log.truth.job(job).and_then(|job| job.step_us);
            step_us.map_or(FIRST_UNIT_STALL_MS, |step_us| step_us / 1_000).max(SLOWEST_UNIT_MS)
        } else {
            SLOWEST_UNIT_MS
        };
        patience_with_ms(setup, UNIT_STALL_MS_MIN.max(UNIT_STALL_FACTOR * slowest_ms).min(FIRST_UNIT_STALL_MS))
    }

    /// The same of the job that may stand still longest.
    #[must_use]
    pub fn longest_patience_ms(&self) -> u64 {
        let jobs = self.people.jobs.iter().map(|job| self.patience_ms(job));
        jobs.max().unwrap_or_else(|| patience_ms(&self.schedule.setup))
    }

    /// Units that never ended, of a job or of all.
    #[must_use]
    pub fn hung_units(&self, job: Option<&JobId>) -> u64 {
        self.checks.ends.hung.iter().filter(|hung| job.is_none_or(|job| hung.job == *job)).count() as u64
    }
}
