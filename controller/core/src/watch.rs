//! Which jobs make no progress, and who holds them up: from what every executor says of itself twice a second. Pure, and not part of the
//! state: what is heard is never logged, and a controller that takes over begins to watch anew.
//!
//! One report comes out, `JobStalled`; what is done about it is decided in `decide/stalls.rs`. Who waits for others is never blamed, and
//! silence is no stall: an executor that is not heard is for its agent, and an agent for its lease.

use crate::hosts::Hosts;
use crate::limits::COPY_BYTES_PER_MS_ADMITTED;
use crate::pace::Paces;
use crate::state::{Job, JobPhase, State};
use crate::straggle::Stragglers;
use crate::survey::Survey;
use crate::types::TypeTimes;
use events_schema::control::{Gradients, Phase, Progress, WaitsFor};
use events_schema::fact::{Blamed, StallCause};
use events_schema::job::{Determinism, Types};
use events_schema::report::Report;
use events_schema::{ExecutorId, JobId, Rank, SlotId, Step, TimeMs};
use std::collections::BTreeMap;

/// All members wait for each other and nothing moves: far longer than any message takes, far shorter than anybody waits for a job.
pub const PEERS_STALL_MS: u64 = 5_000;
/// A round whose members link up and begin: they name whom they cannot link within six seconds, which is more exact.
pub const ROUND_STALL_MS: u64 = 20_000;
/// Shortest time after which a unit of computing that is not the first counts as hung.
pub const UNIT_STALL_MS_MIN: u64 = 60_000;
/// A unit may take so many times the slowest one of its job before it counts as hung.
pub const UNIT_STALL_FACTOR: u64 = 8;
/// Whether an executor computes is seen over so long: several words of it.
pub const PROCESSOR_LOOK_MS: u64 = 5_000;
/// Who computes, if slowly, has at least one in so many parts of a processor; the threads that listen and say that it lives use far less.
pub const PROCESSOR_PARTS: u64 = 20;
/// Who is on a guest slot has what its host leaves, of which one part in seventy was seen (docs/decisions, 35), and computes as long as it has any: a tick of
/// the kernel's in each look.
pub const PROCESSOR_PARTS_OF_GUEST: u64 = 1_000;
/// Its unit may take so many times its limit meanwhile: more than the host made it slower, and still an end.
pub const GUEST_TIMES: u64 = 100;
/// A copy of which not one byte arrives; one that is slow is judged by what arrives in so long, in which no short trouble of a link counts.
pub const BYTES_STALL_MS: u64 = 30_000;
/// A copy may be so many times slower than the rate that its job was let grow with.
pub const COPY_SLOWER_MAX: u64 = 10;
/// Said of a store that a job stands still for, long before anything is done: longer than a request is tried again.
pub const STORE_STALL_MS: u64 = 150_000;
/// What was not heard for so long is not known; its agent kills an executor that says nothing for as long.
pub const HEARD_MS: u64 = 3_000;
/// From one report of a job to the next: what is done about it takes a few seconds to show.
pub const REPORT_AGAIN_MS: u64 = 10_000;

/// What is known of one executor.
#[derive(Debug, Clone)]
struct Heard {
    progress: Progress,
    /// When its last word came.
    at_ms: u64,
    /// Since when it does what it does: its phase, step or totals changed then.
    since_ms: u64,
    /// When its use of the processor was looked at, and how much it had used by then.
    looked: (u64, u64),
    /// Whether it computed before that look, and whether as much as a guest has to.
    computes: bool,
    crawls: bool,
    /// Its unit was seen to use processor time after its limit: it has three times the limit, once.
    lenient: bool,
    /// The part of its copy that is judged now.
    copy: Stretch,
}

/// What arrives of a copy.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    /// Since when nothing else explains that nothing arrives.
    undisturbed_ms: u64,
    /// Since when its rate is judged, and what had arrived by then.
    since_ms: u64,
    bytes_done: u64,
}

impl Stretch {
    fn new(now_ms: u64, progress: &Progress) -> Self {
        Self { undisturbed_ms: now_ms, since_ms: now_ms, bytes_done: progress.bytes_done }
    }
}

/// What is known of one job.
#[derive(Debug, Clone, Default)]
struct Watched {
    /// The slowest unit of each sort that was seen.
    slowest_unit_ms: BTreeMap<Sort, u64>,
    quiet_until_ms: u64,
}

impl Watched {
    /// How long the slowest unit of a sort took; before there was one, the slowest of any.
    fn slowest_ms(&self, sort: Sort) -> Option<u64> {
        self.slowest_unit_ms.get(&sort).or_else(|| self.slowest_unit_ms.values().max()).copied()
    }
}

/// Sorts of units, which take unlike times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sort {
    Gradient,
    Evaluation,
    Update,
}

impl Sort {
    fn of(progress: &Progress) -> Self {
        match progress.phase {
            Phase::Evaluating(_) => Self::Evaluation,
            Phase::Updating => Self::Update,
            _ => Self::Gradient,
        }
    }
}

/// What all executors say of themselves.
#[derive(Debug, Clone, Default)]
pub struct Watch {
    executors: BTreeMap<ExecutorId, Heard>,
    jobs: BTreeMap<JobId, Watched>,
    stragglers: Stragglers,
    types: TypeTimes,
    paces: Paces,
    hosts: Hosts,
}

impl Watch {
    /// An executor said what it is at.
    pub fn heard(&mut self, now_ms: u64, executor: &ExecutorId, progress: Progress) {
        let Some(known) = self.executors.get_mut(executor) else {
            let looked = (now_ms, progress.processor_ms);
            let copy = Stretch::new(now_ms, &progress);
            let (at_ms, since_ms) = (now_ms, now_ms);
            let heard =
                Heard { progress, at_ms, since_ms, looked, computes: false, crawls: false, lenient: false, copy };
            self.executors.insert(executor.clone(), heard);
            return;
        };
        // One that waited at its last word has begun since: how long it waited for others is no unit's time.
        let begun_ms = if matches!(kind(&known.progress), Kind::Unit(_)) { known.since_ms } else { known.at_ms };
        known.at_ms = now_ms;
        let units = progress.units_done.saturating_sub(known.progress.units_done);
        if let Some(unit_ms) = now_ms.saturating_sub(begun_ms).checked_div(units) {
            let job = self.jobs.entry(executor.job.clone()).or_default();
            let slowest_ms = job.slowest_unit_ms.entry(Sort::of(&known.progress)).or_default();
            *slowest_ms = unit_ms.max(*slowest_ms);
        }
        if moved(&known.progress, &progress) {
            (known.since_ms, known.lenient) = (now_ms, false);
        }
        known.progress = progress;
        known.look_at_processor(now_ms);
        if known.progress.phase != Phase::Copying {
            known.copy = Stretch::new(now_ms, &known.progress);
        }
    }

    /// Nothing counts as standing still before now: after a standstill of the controller, or a time in which its log was unwell.
    pub fn forgive(&mut self, now_ms: u64) {
        self.executors.values_mut().for_each(|heard| heard.forgive(now_ms));
    }

    /// The jobs that make no progress, each at most once in a while, and who straggles. Forgets who is gone.
    pub fn look(&mut self, now_ms: u64, state: &State) -> Vec<Report> {
        self.executors.retain(|executor, _| state.executor(executor).is_some());
        self.jobs.retain(|job, _| state.job(job).is_some_and(|job| !job.phase.is_terminal()));
        let running = |job: &JobId| state.job(job).is_some_and(|job| matches!(job.phase, JobPhase::Running(..)));
        self.stragglers.retain(running, |executor| state.executor(executor).is_some());
        self.types.retain(running);
        let mut reports = Vec::new();
        for job in state.placed.keys() {
            let works = |known: &&Job| matches!(known.phase, JobPhase::Starting(_) | JobPhase::Running(..));
            let Some(known) = state.job(job).filter(works) else { continue };
            if self.jobs.get(job).is_some_and(|watched| now_ms < watched.quiet_until_ms) {
                continue;
            }
            if let Some(stall) = self.stall(now_ms, job, known, state) {
                self.jobs.entry(job.clone()).or_default().quiet_until_ms = now_ms + REPORT_AGAIN_MS;
                // A store is waited for until the patience of the spec is over, whatever was said before.
                if !matches!(stall, Report::JobStalled { cause: StallCause::Store, .. }) {
                    let members = self.executors.iter_mut().filter(|(executor, _)| executor.job == *job);
                    members.for_each(|(_, heard)| heard.forgive(now_ms));
                }
                reports.push(stall);
                continue;
            }
            let mixes = known.spec.types == Types::Any;
            if (mixes || self.stragglers.is_due(now_ms, job))
                && let Some(totals) = self.gradients(now_ms, known)
            {
                let of_types = mixes.then(|| self.types.look(now_ms, (job, known), &totals, state)).flatten();
                reports.extend(of_types);
                // Before its types are known, whoever is slow may be of a slow one.
                if !state.has_unmeasured_type(known) {
                    reports.extend(self.stragglers.look(now_ms, (job, known), totals, state));
                }
            }
        }
        reports
    }

    /// Who uses how much of its slot, where somebody could be its guest.
    pub fn look_at_hosts(&mut self, now_ms: u64, state: &State) -> Vec<Report> {
        let executors = &self.executors;
        let heard = |executor: &ExecutorId| {
            executors.get(executor).filter(|heard| now_ms.saturating_sub(heard.at_ms) <= HEARD_MS)
        };
        self.hosts.look(now_ms, state, |executor| heard(executor)?.progress.busy_percent)
    }

    /// Whose link has made the steps of its job longer, or does no more; what is not known of links, the survey is asked for.
    pub fn look_at_links(&mut self, now_ms: u64, at: TimeMs, state: &State, survey: &mut Survey) -> Vec<Report> {
        let running = |job: &JobId| state.job(job).is_some_and(|job| matches!(job.phase, JobPhase::Running(..)));
        self.paces.retain(running);
        let mut reports = Vec::new();
        for (id, job) in state.placed_jobs().filter(|(id, _)| running(id)) {
            let members = job.active().into_iter().flat_map(|active| &active.members);
            let heard = members.filter_map(|member| Some((member, self.executors.get(member)?)));
            let just_now = heard.filter(|(_, heard)| now_ms.saturating_sub(heard.at_ms) <= HEARD_MS);
            let said = just_now.map(|(member, heard)| (member, &heard.progress)).collect();
            reports.extend(self.paces.look((now_ms, at), (id, job), &said, (state, &mut *survey)));
        }
        reports
    }

    /// Who has to get on: the members of the generation in force. Of a job that starts, those that are in a unit of one that is over, and those that
    /// wait for the store: they are to come together with the others and cannot before that ends.
    fn watched_members(&self, id: &JobId, job: &Job, state: &State) -> Vec<ExecutorId> {
        if let Some(active) = job.active() {
            return active.members.iter().cloned().collect();
        }
        let computes = |number: &ExecutorId| {
            self.executors.get(number).is_some_and(|heard| matches!(kind(&heard.progress), Kind::Unit(_) | Kind::Store))
        };
        let there = state.executors_of(id).filter(|(number, executor)| executor.leaving.is_none() && computes(number));
        there.map(|(number, _)| number.clone()).collect()
    }

    /// What the members of a job have computed so far, if all of them were heard just now.
    fn gradients(&self, now_ms: u64, job: &Job) -> Option<BTreeMap<ExecutorId, Gradients>> {
        let said = |member: &ExecutorId| {
            let heard = self.executors.get(member).filter(|heard| now_ms.saturating_sub(heard.at_ms) <= HEARD_MS)?;
            Some((member.clone(), heard.progress.gradients?))
        };
        job.active()?.members.iter().map(said).collect()
    }

    /// Whether a job stalls. That somebody hangs in a unit is seen whatever the others do; of the rest nothing is judged unless all of its
    /// members are there, were heard just now and are to stay.
    fn stall(&mut self, now_ms: u64, id: &JobId, job: &Job, state: &State) -> Option<Report> {
        let members = self.watched_members(id, job, state);
        let stays = |executor: &ExecutorId| state.executor(executor).is_some_and(|executor| executor.leaving.is_none());
        // One that is not heard may be doing anything.
        let is_heard = |member: &ExecutorId| {
            self.executors.get(member).is_some_and(|heard| now_ms.saturating_sub(heard.at_ms) <= HEARD_MS)
        };
        let all_heard = members.iter().all(is_heard);
        let there: Vec<ExecutorId> =
            members.iter().filter(|member| is_heard(member) && stays(member)).cloned().collect();
        // Who is in a unit, or waits for its data, takes nothing in and gives nothing out meanwhile: a copy is judged while nobody is.
        let computes = |heard: &Heard| matches!(kind(&heard.progress), Kind::Unit(_) | Kind::Store);
        if !all_heard || members.iter().filter_map(|member| self.executors.get(member)).any(computes) {
            for member in &members {
                let Some(heard) = self.executors.get_mut(member) else { continue };
                heard.copy = Stretch::new(now_ms, &heard.progress);
            }
        }
        if there.is_empty() || state.is_parking(id) {
            return None;
        }
        let step = there.iter().filter_map(|member| self.executors.get(member)).map(|heard| heard.progress.step).max();
        let step = step.unwrap_or(Step(0));
        // Whoever is lost, leaves or is not heard may be whom the others wait for; who is in a unit waits for nobody.
        let all = there.len() == members.len();
        let (cause, blamed) = self.judge(now_ms, id, job, (&there, all), step)?;
        Some(Report::JobStalled { job: id.clone(), step, cause, blamed })
    }

    /// What the members of a job wait for that does not come, if so, and who holds them up. If these are not all, only who is in a unit is judged.
    fn judge(
        &mut self,
        now_ms: u64,
        id: &JobId,
        job: &Job,
        (members, all): (&[ExecutorId], bool),
        step: Step,
    ) -> Option<(StallCause, Vec<Blamed>)> {
        let copying = |member: &&ExecutorId| {
            self.executors.get(*member).is_some_and(|heard| heard.progress.phase == Phase::Copying)
        };
        let copies = members.iter().filter(copying).count() as u64;
        let watched = self.jobs.get(id);
        let limit_ms = |slowest: u64| UNIT_STALL_MS_MIN.max(slowest.saturating_mul(UNIT_STALL_FACTOR));
        // How long the first one of a job takes nobody but its user can know; and who has just taken over knows how long a whole update took.
        let first_ms = job.spec.unit_timeout_ms.ms();
        // One gradient of all that an executor hosts takes longer the fewer they are and the more steps an update takes, whatever those before took.
        let stride = job.active().map_or(job.spec.stride_max(), |active| active.proposal.stride);
        let gradient_ms = first_ms.saturating_mul(stride.steps());
        let varies = |sort| sort == Sort::Gradient && job.spec.determinism == Determinism::None;
        let unit_limit_ms = |sort| match (watched.and_then(|watched| watched.slowest_ms(sort)), job.update_us()) {
            (Some(slowest), _) if varies(sort) => limit_ms(slowest).max(gradient_ms),
            (Some(slowest), _) => limit_ms(slowest),
            (None, _) if varies(sort) => gradient_ms,
            (None, Some(update_us)) => limit_ms(update_us / 1_000).min(first_ms),
            (None, None) => first_ms,
        };
        let (mut working, mut blamed, mut cause) = (false, Vec::new(), None);
        let (mut still_since_ms, mut store_ms, mut linking) = (0, 0, false);
        // What a program of the user's does in its own time is not known, so nobody can say that it hangs.
        let unknown = job.spec.gang().is_some();
        let are_guests = job.slots().first().is_some_and(SlotId::is_guest);
        for member in members {
            let Some(heard) = self.executors.get_mut(member) else { continue };
            still_since_ms = still_since_ms.max(heard.since_ms);
            let still_ms = now_ms.saturating_sub(heard.since_ms);
            let kind = kind(&heard.progress);
            working |= !matches!(kind, Kind::Linking | Kind::Waiting);
            // It may not have said anything yet since a new round was proposed, which may be the help it needs.
            linking |= matches!(kind, Kind::Linking) || heard.progress.generation < job.round;
            let judged = match kind {
                Kind::Unit(_) if unknown => None,
                Kind::Unit(rank) => {
                    let limit_ms = unit_limit_ms(Sort::of(&heard.progress));
                    heard.hangs(still_ms, limit_ms, are_guests).then_some((StallCause::Unit, rank))
                }
                Kind::Copying if all => heard.copies_slowly(now_ms, copies).then_some((StallCause::Bytes, None)),
                Kind::Store => {
                    store_ms = store_ms.max(still_ms);
                    None
                }
                Kind::Copying | Kind::Linking | Kind::Idle | Kind::Waiting => None,
            };
            if let Some((why, rank)) = judged {
                blamed.push(Blamed { executor: member.clone(), rank });
                cause = Some(why);
            }
        }
        let limit_ms = if linking { ROUND_STALL_MS } else { PEERS_STALL_MS };
        let all_wait = !working && now_ms.saturating_sub(still_since_ms) >= limit_ms;
        let patience_ms = if job.waits_for_store_at(step) { job.spec.store_patience_ms.ms() } else { STORE_STALL_MS };
        let cause = cause
            // Whoever else is lost or silent meanwhile, needs the store too.
            .or_else(|| (store_ms >= patience_ms).then_some(StallCause::Store))
            .or_else(|| (all && all_wait).then_some(StallCause::Peers))?;
        Some((cause, blamed))
    }
}

impl Heard {
    /// Nothing counts as standing still before now.
    fn forgive(&mut self, now_ms: u64) {
        self.since_ms = now_ms;
        self.copy = Stretch::new(now_ms, &self.progress);
    }

    /// Whether it computes now and then, once that can be said anew.
    fn look_at_processor(&mut self, now_ms: u64) {
        let (then_ms, used_ms) = self.looked;
        let passed_ms = now_ms.saturating_sub(then_ms);
        if passed_ms >= PROCESSOR_LOOK_MS {
            let used_ms = self.progress.processor_ms.saturating_sub(used_ms);
            self.computes = used_ms.saturating_mul(PROCESSOR_PARTS) >= passed_ms;
            self.crawls = used_ms.saturating_mul(PROCESSOR_PARTS_OF_GUEST) >= passed_ms;
            self.looked = (now_ms, self.progress.processor_ms);
        }
    }

    /// Whether its copy stands still, or goes on at less than a tenth of the rate it was admitted with, which all copies at a time share.
    fn copies_slowly(&mut self, now_ms: u64, copies: u64) -> bool {
        let silent = now_ms.saturating_sub(self.since_ms.max(self.copy.undisturbed_ms)) >= BYTES_STALL_MS;
        let judged_ms = now_ms.saturating_sub(self.copy.since_ms);
        if judged_ms < BYTES_STALL_MS {
            return silent;
        }
        let arrived = self.progress.bytes_done.saturating_sub(self.copy.bytes_done);
        self.copy = Stretch { undisturbed_ms: self.copy.undisturbed_ms, ..Stretch::new(now_ms, &self.progress) };
        silent || arrived < judged_ms.saturating_mul(COPY_BYTES_PER_MS_ADMITTED) / COPY_SLOWER_MAX / copies.max(1)
    }

    /// Whether the unit it is in takes too long. One that still uses the processor when its time is over gets three times as much, once:
    /// a slow machine is no hung one. Nor is a guest whose host leaves it next to nothing.
    fn hangs(&mut self, still_ms: u64, limit_ms: u64, is_guest: bool) -> bool {
        self.lenient |= still_ms >= limit_ms && self.computes;
        let factor = match self.lenient {
            _ if is_guest && self.crawls => GUEST_TIMES,
            true => 3,
            false => 1,
        };
        still_ms >= limit_ms.saturating_mul(factor)
    }
}

/// What kind of waiting or working a word tells of.
enum Kind {
    /// In a unit of computing, of this rank.
    Unit(Option<Rank>),
    /// Is sent the replica, or the gradient that it lacks.
    Copying,
    /// Waits for the store.
    Store,
    /// Waits for other members of a step.
    Waiting,
    /// A generation begins, or was to end.
    Linking,
    /// Nothing is wanted of it, or only the controller can say what.
    Idle,
}

fn kind(progress: &Progress) -> Kind {
    match (progress.phase, &progress.waits_for) {
        (_, WaitsFor::Store) => Kind::Store,
        (Phase::Computing(rank) | Phase::Evaluating(rank), WaitsFor::Nothing) => Kind::Unit(Some(rank)),
        (Phase::Updating | Phase::Loading | Phase::Building, WaitsFor::Nothing) => Kind::Unit(None),
        (Phase::Copying, _) => Kind::Copying,
        (Phase::Linking | Phase::Joining, _) => Kind::Linking,
        // All members of a running job stand still, and nobody wants that any more: only a new round makes them step.
        (Phase::Still, _) => Kind::Linking,
        (Phase::Broken | Phase::Idle | Phase::Building, _) | (_, WaitsFor::Controller) => Kind::Idle,
        (Phase::Computing(_) | Phase::Evaluating(_) | Phase::Reducing | Phase::Updating | Phase::Loading, _) => {
            Kind::Waiting
        }
        // It waits for what others write.
        (Phase::Saving, _) => Kind::Waiting,
    }
}

/// Whether it got anywhere.
fn moved(before: &Progress, now: &Progress) -> bool {
    // Who waited for its data begins its unit when that is there.
    let stored = |p: &Progress| p.waits_for == WaitsFor::Store;
    let place = |p: &Progress| (p.generation, p.revision, p.step, p.phase, p.units_done, p.bytes_done);
    place(before) != place(now) || stored(before) != stored(now)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::{reported, training};
    use events_schema::fact::{Entry, Fact, PlanCause, PlanReason, Proposal};
    use events_schema::report::ExitCause;
    use events_schema::stride::Stride;
    use events_schema::{Generation, TimeMs};
    use serde_json::json;

    /// A job that trains on two slots, and a clock.
    struct Story {
        state: State,
        job: JobId,
        watch: Watch,
        now_ms: u64,
    }

    impl Story {
        fn new() -> Self {
            Self::with(json!({}))
        }

        /// Whose spec says this beside what it has to.
        fn with(said: serde_json::Value) -> Self {
            let job = JobId::parse("job-a").unwrap();
            Self { state: training(&job, 2, &said), job, watch: Watch::default(), now_ms: 1_000 }
        }

        /// The same on guest slots.
        fn of_guests() -> Self {
            let mut story = Self::new();
            let slots = [0, 1].map(|number| story.slot(number).guest()).to_vec();
            let reason = PlanReason { policy: "antman".to_owned(), cause: PlanCause::Gain, waits: None };
            let job = story.job.clone();
            story.state.apply(TimeMs(1), &Fact::PlanAdopted { job, slots, reason, from: None, attained_slot_ms: None });
            story
        }

        fn slot(&self, number: u32) -> SlotId {
            self.state.executor(&ExecutorId { job: self.job.clone(), number }).unwrap().slot.clone()
        }

        /// The same members are in a generation whose updates take so many steps.
        fn generation(&mut self, number: u64, stride: Stride) {
            let generation = Generation(number);
            let before = self.state.job(&self.job).unwrap().active().unwrap().proposal.clone();
            let entry = Entry::Switch { from: before.generation };
            let (job, proposal) = (self.job.clone(), Proposal { generation, entry, stride, ..before });
            let proposed = Fact::GenerationProposed { job: job.clone(), proposal };
            let active = Fact::GenerationActive { job, generation, step: Step(7), pause_us: 0 };
            [proposed, active].iter().for_each(|fact| self.state.apply(self.state.at, fact));
        }

        /// Both are there, and no generation is in force any more.
        fn starts_anew(&mut self) {
            let restarted = Fact::JobRestarted { job: self.job.clone(), from: Step(0), cause: None };
            self.state.apply(self.state.at, &restarted);
            assert!(self.state.job(&self.job).unwrap().active().is_none());
        }

        fn say(&mut self, number: u32, step: u64, phase: Phase, waits_for: WaitsFor, totals: (u64, u64, u64)) {
            let (units_done, bytes_done, processor_ms) = totals;
            let progress = Progress {
                generation: Generation(1),
                revision: 0,
                step: Step(step),
                phase,
                units_done,
                bytes_done,
                waits_for,
                processor_ms,
                gradients: None,
                busy_percent: None,
            };
            self.watch.heard(self.now_ms, &ExecutorId { job: self.job.clone(), number }, progress);
        }

        /// What is decided about a stall.
        fn decide(&mut self, report: Report) {
            reported(&mut self.state, TimeMs(self.now_ms), report);
        }

        /// Both say the same every half second for so long; when and what the first stall is.
        fn until_stall(&mut self, seconds: u64, words: &dyn Fn(u64) -> [Word; 2]) -> Option<(u64, Report)> {
            let begun_ms = self.now_ms;
            while self.now_ms < begun_ms + seconds * 1_000 {
                self.now_ms += 500;
                let passed_ms = self.now_ms - begun_ms;
                for (number, (step, phase, waits_for, totals)) in (0..).zip(words(passed_ms)) {
                    self.say(number, step, phase, waits_for, totals);
                }
                if let Some(stall) = self.watch.look(self.now_ms, &self.state).pop() {
                    return Some((passed_ms, stall));
                }
            }
            None
        }
    }

    type Word = (u64, Phase, WaitsFor, (u64, u64, u64));

    fn reducing(of: u32) -> Word {
        (7, Phase::Reducing, WaitsFor::Peers(vec![of]), (4, 1_000, 50))
    }

    fn computing(rank: u16, processor_ms: u64) -> Word {
        (7, Phase::Computing(Rank(rank)), WaitsFor::Nothing, (4, 1_000, processor_ms))
    }

    fn saving() -> Word {
        (7, Phase::Saving, WaitsFor::Store, (9, 500, 5))
    }

    fn blamed(report: &Report) -> (StallCause, Vec<(u32, Option<Rank>)>) {
        let Report::JobStalled { cause, blamed, .. } = report else { unreachable!() };
        (*cause, blamed.iter().map(|blamed| (blamed.executor.number, blamed.rank)).collect())
    }

    #[test]
    fn who_waits_for_each_other_stalls_after_five_seconds_and_nobody_is_blamed() {
        let mut story = Story::new();
        let (after_ms, stall) = story.until_stall(60, &|_| [reducing(1), reducing(0)]).unwrap();
        assert!((5_000..=6_000).contains(&after_ms), "{after_ms}");
        assert_eq!(blamed(&stall), (StallCause::Peers, vec![]));
        let again = story.until_stall(9, &|_| [reducing(1), reducing(0)]);
        assert!(again.is_none(), "not said again before what is done about it can show");
    }

    #[test]
    fn bytes_and_units_that_move_are_progress() {
        let mut story = Story::new();
        let moves = |passed_ms: u64| {
            let (_, phase, waits_for, _) = reducing(1);
            [(7, phase, waits_for, (4, passed_ms, 50)), reducing(0)]
        };
        assert!(story.until_stall(120, &moves).is_none());
    }

    #[test]
    fn the_one_in_a_unit_is_blamed_with_its_rank_and_never_who_waits_for_it() {
        let mut story = Story::new();
        // Units take a second at most.
        for unit in 0..5 {
            story.now_ms += 1_000;
            let phase = Phase::Computing(Rank(0));
            story.say(0, 7, phase, WaitsFor::Nothing, (unit, 0, unit));
        }
        let (after_ms, stall) = story.until_stall(300, &|_| [reducing(1), computing(1, 50)]).unwrap();
        assert_eq!(blamed(&stall), (StallCause::Unit, vec![(1, Some(Rank(1)))]));
        assert!((60_000..=61_000).contains(&after_ms), "{after_ms}");
    }

    #[test]
    fn a_unit_that_uses_the_processor_has_three_times_as_long_and_the_first_one_ten_minutes() {
        let mut story = Story::new();
        let (after_ms, _) = story.until_stall(3_000, &|ms| [reducing(1), computing(1, ms)]).unwrap();
        assert!((1_800_000..=1_801_000).contains(&after_ms), "{after_ms}");
        let mut story = Story::new();
        let (after_ms, _) = story.until_stall(3_000, &|_| [reducing(1), computing(1, 50)]).unwrap();
        assert!((600_000..=601_000).contains(&after_ms), "{after_ms}");
    }

    /// A gradient of a second takes one that has a seventieth of a processor more than a minute; it failed where its host had all of the others on two slots.
    #[test]
    fn a_guest_that_computes_now_and_then_does_not_hang() {
        let crawls = |ms: u64| [reducing(1), computing(1, ms / 70)];
        for guests in [false, true] {
            let mut story = if guests { Story::of_guests() } else { Story::new() };
            (0..5).for_each(|unit| {
                story.now_ms += 1_000;
                story.say(0, 7, Phase::Computing(Rank(0)), WaitsFor::Nothing, (unit, 0, unit));
            });
            assert_eq!(story.until_stall(900, &crawls).is_none(), guests);
            // And if it does not compute at all, it hangs.
            let stall = story.until_stall(900, &|_| [reducing(1), computing(1, 20_000)]);
            assert_eq!(stall.map(|(_, report)| blamed(&report).0), Some(StallCause::Unit));
        }
    }

    /// On one executor of eight workers its gradient takes eight times as long as it did on eight.
    #[test]
    fn without_determinism_every_gradient_may_take_as_long_as_the_first() {
        for (determinism, least_ms) in [("d1", 60_000), ("none", 600_000)] {
            let mut story = Story::with(json!({"determinism": determinism}));
            for unit in 0..5 {
                story.now_ms += 1_000;
                story.say(0, 7, Phase::Computing(Rank(0)), WaitsFor::Nothing, (unit, 0, unit));
            }
            let (after_ms, _) = story.until_stall(3_000, &|_| [reducing(1), computing(1, 50)]).unwrap();
            assert!((least_ms..=least_ms + 1_000).contains(&after_ms), "{determinism}: {after_ms}");
        }
    }

    /// Seen with a model in PyTorch: the threads that say that a process lives use some of the processor too, so one that hung had three times
    /// as long whenever that fell into the moment when its time was over.
    #[test]
    fn who_only_says_that_it_lives_does_not_compute() {
        let mut story = Story::new();
        let (after_ms, _) = story.until_stall(3_000, &|ms| [reducing(1), computing(1, ms / 100)]).unwrap();
        assert!((600_000..=601_000).contains(&after_ms), "{after_ms}");
    }

    /// Found by a random schedule: a newcomer that hung outlived the generation that it was to come into, and the job that started anew
    /// waited for it, one deadline after the other.
    #[test]
    fn who_hangs_in_a_unit_of_a_generation_that_is_over_is_blamed_while_its_job_starts() {
        let mut story = Story::new();
        story.starts_anew();
        let idle = (0, Phase::Joining, WaitsFor::Peers(vec![1]), (4, 0, 50));
        let (after_ms, stall) = story.until_stall(700, &|_| [idle.clone(), computing(1, 50)]).unwrap();
        assert_eq!(blamed(&stall), (StallCause::Unit, vec![(1, Some(Rank(1)))]));
        assert!((600_000..=601_000).contains(&after_ms), "{after_ms}");
    }

    /// Found by random schedules: a round waited for one that hung, over and over, because another was lost and nobody watched meanwhile.
    #[test]
    fn who_hangs_in_a_unit_is_blamed_also_while_another_is_lost() {
        let mut story = Story::with(json!({"unit_timeout_ms": 20_000}));
        let (executor, slot) = (ExecutorId { job: story.job.clone(), number: 0 }, story.slot(0));
        story.state.apply(
            story.state.at,
            &Fact::ExecutorGone { executor, slot, exit: ExitCause::Killed, awaited_until: None, verdict: None },
        );
        let waits = (7, Phase::Joining, WaitsFor::Peers(vec![0]), (4, 0, 50));
        assert!(story.until_stall(300, &|_| [reducing(1), waits.clone()]).is_none(), "it waits for who is lost");
        let (after_ms, stall) = story.until_stall(300, &|_| [reducing(1), computing(1, 50)]).unwrap();
        assert_eq!(blamed(&stall), (StallCause::Unit, vec![(1, Some(Rank(1)))]));
        assert!((20_000..=21_000).contains(&after_ms), "{after_ms}");
    }

    #[test]
    fn a_controller_that_takes_over_knows_by_the_steps_how_long_a_unit_may_take() {
        let mut story = Story::new();
        let (job, generation, step) = (story.job.clone(), Generation(1), Step(1));
        let (first_step_us, usual_step_us, members) = (10_000_000, None, Some(2));
        let stride = Stride::ONE;
        let stepped = Fact::GenerationStepped { job, generation, step, first_step_us, usual_step_us, members, stride };
        story.state.apply(story.state.at, &stepped);
        let (after_ms, _) = story.until_stall(3_000, &|_| [reducing(1), computing(1, 50)]).unwrap();
        assert!((80_000..=81_000).contains(&after_ms), "eight such steps: {after_ms}");
    }

    /// A gradient of sixteen steps takes sixteen times as long as one of a single step, after which nothing had been slower.
    #[test]
    fn a_gradient_of_several_steps_may_take_as_long_as_each_of_them() {
        let range = json!({"max": 128, "learning_rate_rule": "sqrt"});
        let mut story = Story::with(json!({"determinism": "none", "batch_range": range, "unit_timeout_ms": 20_000}));
        for unit in 0..5 {
            story.now_ms += 1_000;
            story.say(0, 7, Phase::Computing(Rank(0)), WaitsFor::Nothing, (unit, 0, unit));
        }
        story.generation(2, Stride::of(16));
        let (after_ms, _) = story.until_stall(3_000, &|_| [reducing(1), computing(1, 50)]).unwrap();
        assert!((320_000..=321_000).contains(&after_ms), "{after_ms}");
        story.generation(3, Stride::ONE);
        let (after_ms, _) = story.until_stall(3_000, &|_| [reducing(1), computing(1, 50)]).unwrap();
        assert!((60_000..=61_000).contains(&after_ms), "{after_ms}");
    }

    /// Who waited for others for long and then did a unit was taken for slow, and one that hung later had eight times as long.
    #[test]
    fn how_long_a_member_waited_is_no_units_time() {
        let mut story = Story::new();
        let late = |ms: u64| {
            let units = if ms < 30_000 { 4 } else { 5 };
            let mine = (7, Phase::Copying, WaitsFor::Peers(vec![1]), (units, 1_000 + ms * 5_000, 50));
            [mine, (7, Phase::Reducing, WaitsFor::Peers(vec![0]), (units, 1_000, 50))]
        };
        assert!(story.until_stall(31, &late).is_none());
        let (after_ms, _) = story.until_stall(3_000, &|_| [reducing(1), computing(1, 50)]).unwrap();
        assert!((60_000..=61_000).contains(&after_ms), "{after_ms}");
    }

    #[test]
    fn a_spec_says_how_long_its_first_unit_may_take_and_how_long_its_store_is_waited_for() {
        let said = json!({"unit_timeout_ms": 20_000, "store_patience_ms": 240_000});
        let mut story = Story::with(said.clone());
        let (after_ms, stall) = story.until_stall(3_000, &|_| [reducing(1), computing(1, 50)]).unwrap();
        assert_eq!(blamed(&stall), (StallCause::Unit, vec![(1, Some(Rank(1)))]));
        assert!((20_000..=21_000).contains(&after_ms), "{after_ms}");
        let mut story = Story::with(said);
        let (first_ms, stall) = story.until_stall(4_000, &|_| [saving(), saving()]).unwrap();
        story.decide(stall);
        let (more_ms, _) = story.until_stall(4_000, &|_| [saving(), saving()]).unwrap();
        assert!((240_000..=241_000).contains(&(first_ms + more_ms)), "{first_ms} {more_ms}");
    }

    #[test]
    fn silence_is_no_stall() {
        let mut story = Story::new();
        story.say(0, 7, Phase::Reducing, WaitsFor::Peers(vec![1]), (0, 0, 0));
        story.now_ms += 60_000;
        assert_eq!(story.watch.look(story.now_ms, &story.state), []);
    }

    #[test]
    fn a_copy_without_bytes_and_a_store_without_answer_are_told_apart() {
        let mut story = Story::new();
        let copying = (7, Phase::Copying, WaitsFor::Peers(vec![0]), (0, 500, 5));
        let (after_ms, stall) = story.until_stall(100, &|_| [reducing(1), copying.clone()]).unwrap();
        assert_eq!(blamed(&stall), (StallCause::Bytes, vec![(1, None)]));
        assert!((30_000..=31_000).contains(&after_ms), "{after_ms}");
        let mut story = Story::new();
        let (first_ms, stall) = story.until_stall(4_000, &|_| [saving(), saving()]).unwrap();
        assert_eq!(blamed(&stall), (StallCause::Store, vec![]));
        assert!((150_000..=151_000).contains(&first_ms), "said long before anything is done: {first_ms}");
        story.decide(stall);
        let (more_ms, stall) = story.until_stall(4_000, &|_| [saving(), saving()]).unwrap();
        assert_eq!(blamed(&stall), (StallCause::Store, vec![]));
        assert!((1_800_000..=1_801_000).contains(&(first_ms + more_ms)), "{more_ms}");
        story.decide(stall);
        assert!(story.until_stall(4_000, &|_| [saving(), saving()]).is_none(), "it is being suspended");
    }

    #[test]
    fn who_waits_for_its_data_is_not_in_a_unit_and_begins_it_when_they_are_there() {
        // One of the two reads what it trains on from a store that is away for twenty minutes.
        let reading = || (7, Phase::Computing(Rank(0)), WaitsFor::Store, (4, 1_000, 50));
        let mut story = Story::new();
        let (first_ms, stall) = story.until_stall(1_200, &|_| [reading(), reducing(0)]).unwrap();
        assert_eq!(blamed(&stall), (StallCause::Store, vec![]));
        assert!((150_000..=151_000).contains(&first_ms), "{first_ms}");
        story.decide(stall);
        assert!(story.until_stall(1_200, &|_| [reading(), reducing(0)]).is_none());
        // They are there: from now on it computes, and has as long as any unit.
        let working = |ms: u64| [computing(0, ms), reducing(0)];
        assert!(story.until_stall(59, &working).is_none());
        // What it waited is not what its unit took, by which others are judged.
        let done = |_: u64| [(7, Phase::Reducing, WaitsFor::Peers(vec![1]), (5, 1_000, 60)), computing(1, 50)];
        let (after_ms, stall) = story.until_stall(2_000, &done).unwrap();
        assert_eq!(blamed(&stall), (StallCause::Unit, vec![(1, Some(Rank(1)))]));
        assert!(after_ms < 8 * 60_000 + 1_000, "{after_ms}");
    }

    #[test]
    fn who_waits_for_the_store_is_said_so_before_there_is_a_generation_and_whoever_else_is_silent() {
        let loading = || (0, Phase::Loading, WaitsFor::Store, (0, 0, 5));
        let mut story = Story::new();
        story.starts_anew();
        let (after_ms, stall) = story.until_stall(4_000, &|_| [loading(), loading()]).unwrap();
        assert_eq!(blamed(&stall), (StallCause::Store, vec![]));
        assert!((150_000..=151_000).contains(&after_ms), "{after_ms}");
        let mut story = Story::new();
        let mut said = None;
        for _ in 0..400 {
            story.now_ms += 500;
            story.say(0, 7, Phase::Computing(Rank(0)), WaitsFor::Store, (4, 1_000, 50));
            said = said.or_else(|| story.watch.look(story.now_ms, &story.state).pop());
        }
        assert_eq!(said.as_ref().map(blamed), Some((StallCause::Store, vec![])), "the other one is not heard");
    }

    #[test]
    fn a_unit_is_judged_by_the_slowest_of_its_sort() {
        let mut story = Story::new();
        let evaluating =
            |units, processor_ms| (7, Phase::Evaluating(Rank(0)), WaitsFor::Nothing, (units, 0, processor_ms));
        // An evaluation of forty seconds, then gradients of half a second.
        assert!(story.until_stall(40, &|ms| [evaluating(4, ms), reducing(0)]).is_none());
        let gradients = |ms: u64| (8, Phase::Computing(Rank(0)), WaitsFor::Nothing, (5 + ms / 500, 0, ms));
        assert!(story.until_stall(20, &|ms| [gradients(ms), reducing(0)]).is_none());
        let hung = (8, Phase::Computing(Rank(0)), WaitsFor::Nothing, (45, 0, 20_000));
        let (after_ms, stall) = story.until_stall(600, &|_| [hung.clone(), reducing(0)]).unwrap();
        assert_eq!(blamed(&stall), (StallCause::Unit, vec![(0, Some(Rank(0)))]));
        assert!((60_000..=62_000).contains(&after_ms), "{after_ms}");
    }

    #[test]
    fn a_copy_is_not_judged_while_who_sends_it_waits_for_the_store() {
        let sender = || (7, Phase::Computing(Rank(0)), WaitsFor::Store, (4, 1_000, 50));
        let copying = (7, Phase::Copying, WaitsFor::Peers(vec![0]), (0, 500, 5));
        assert!(Story::new().until_stall(149, &|_| [sender(), copying.clone()]).is_none());
    }

    /// A copy that gets so many bytes a millisecond, beside one that stands and waits.
    fn copying(bytes_per_ms: u64) -> impl Fn(u64) -> [Word; 2] {
        move |ms| [reducing(1), (7, Phase::Copying, WaitsFor::Peers(vec![0]), (0, 500 + bytes_per_ms * ms, 5))]
    }

    /// Were one packet every half minute progress, the others would stand still for as long as anybody looked.
    #[test]
    fn a_copy_far_slower_than_its_job_was_let_grow_with_is_blamed_and_one_over_a_slow_link_is_not() {
        let mut story = Story::new();
        let (after_ms, stall) = story.until_stall(300, &copying(499)).unwrap();
        assert_eq!(blamed(&stall), (StallCause::Bytes, vec![(1, None)]));
        assert!((30_000..=31_000).contains(&after_ms), "{after_ms}");
        // 40 Mbit/s, and a tenth of it.
        for bytes_per_ms in [5_000, 500] {
            assert!(Story::new().until_stall(600, &copying(bytes_per_ms)).is_none(), "{bytes_per_ms}");
        }
        // Fast, then nothing more: half a minute after the last byte.
        let cut_off = |ms: u64| copying(5_000)(ms.min(40_000));
        let (after_ms, _) = Story::new().until_stall(300, &cut_off).unwrap();
        assert!((70_000..=71_000).contains(&after_ms), "{after_ms}");
    }

    #[test]
    fn a_copy_is_not_judged_while_a_member_computes_and_copies_at_a_time_share_the_rate() {
        let mut story = Story::new();
        let unit = |ms: u64| (7, Phase::Computing(Rank(0)), WaitsFor::Nothing, (4 + ms / 40_000, 1_000, ms));
        assert!(story.until_stall(300, &|ms| [unit(ms), copying(0)(ms)[1].clone()]).is_none());
        let (after_ms, _) = story.until_stall(300, &copying(0)).unwrap();
        assert!((30_000..=31_000).contains(&after_ms), "{after_ms}");
        let both = |ms: u64| [copying(300)(ms)[1].clone(), copying(300)(ms)[1].clone()];
        assert!(Story::new().until_stall(300, &both).is_none(), "300 and 300 are more than a tenth");
    }
}
