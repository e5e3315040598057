//! Which jobs make no progress, and who holds them up: from what every executor says of itself twice a second. Pure, and not part of the
//! state: what is heard is never logged, and a controller that takes over begins to watch anew.
//!
//! One report comes out, `JobStalled`; what is done about it is decided in `decide/stalls.rs`. Who waits for others is never blamed, and
//! silence is no stall: an executor that is not heard is for its agent, and an agent for its lease.

use crate::state::{Job, JobPhase, State};
use events_schema::control::{Phase, Progress, WaitsFor};
use events_schema::fact::{Blamed, StallCause};
use events_schema::report::Report;
use events_schema::{ExecutorId, JobId, Rank, Step};
use std::collections::BTreeMap;

/// All members wait for each other and nothing moves: far longer than any message takes, far shorter than anybody waits for a job.
pub const PEERS_STALL_MS: u64 = 5_000;
/// A round whose members link up and begin: they name whom they cannot link within six seconds, which is more exact.
pub const ROUND_STALL_MS: u64 = 20_000;
/// Shortest time after which a unit of computing that is not the first counts as hung.
pub const UNIT_STALL_MS_MIN: u64 = 60_000;
/// A unit may take so many times the slowest one of its job before it counts as hung.
pub const UNIT_STALL_FACTOR: u64 = 8;
/// The first unit of a job, of which nobody knows how long one takes: compilation, warm-up, the largest batch.
pub const FIRST_UNIT_STALL_MS: u64 = 600_000;
/// A copy of which not one byte arrives.
pub const BYTES_STALL_MS: u64 = 30_000;
/// A store that does not answer: outages of stores last minutes, and a restart needs the store too.
pub const STORE_PATIENCE_MS: u64 = 1_800_000;
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
    /// Processor time at the last look, while it is in one unit.
    looked_processor_ms: u64,
    /// Its unit was seen to use processor time after its limit: it has three times the limit, once.
    lenient: bool,
}

/// What is known of one job.
#[derive(Debug, Clone, Default)]
struct Watched {
    slowest_unit_ms: Option<u64>,
    quiet_until_ms: u64,
}

/// What all executors say of themselves.
#[derive(Debug, Clone, Default)]
pub struct Watch {
    executors: BTreeMap<ExecutorId, Heard>,
    jobs: BTreeMap<JobId, Watched>,
}

impl Watch {
    /// An executor said what it is at.
    pub fn heard(&mut self, now_ms: u64, executor: &ExecutorId, progress: Progress) {
        let Some(known) = self.executors.get_mut(executor) else {
            let looked_processor_ms = progress.processor_ms;
            let heard = Heard { progress, at_ms: now_ms, since_ms: now_ms, looked_processor_ms, lenient: false };
            self.executors.insert(executor.clone(), heard);
            return;
        };
        known.at_ms = now_ms;
        let units = progress.units_done.saturating_sub(known.progress.units_done);
        if let Some(unit_ms) = now_ms.saturating_sub(known.since_ms).checked_div(units) {
            let job = self.jobs.entry(executor.job.clone()).or_default();
            job.slowest_unit_ms = Some(job.slowest_unit_ms.map_or(unit_ms, |slowest| slowest.max(unit_ms)));
        }
        if moved(&known.progress, &progress) {
            (known.since_ms, known.lenient) = (now_ms, false);
            known.looked_processor_ms = progress.processor_ms;
        }
        known.progress = progress;
    }

    /// Nothing counts as standing still before now: after a standstill of the controller, or a time in which its log was unwell.
    pub fn forgive(&mut self, now_ms: u64) {
        self.executors.values_mut().for_each(|heard| heard.since_ms = now_ms);
    }

    /// The jobs that make no progress, each at most once in a while. Forgets who is gone.
    pub fn look(&mut self, now_ms: u64, state: &State) -> Vec<Report> {
        self.executors.retain(|executor, _| state.executor(executor).is_some());
        self.jobs.retain(|job, _| state.job(job).is_some_and(|job| !job.phase.is_terminal()));
        let mut stalls = Vec::new();
        for job in state.placed.keys() {
            let works = |known: &&Job| matches!(known.phase, JobPhase::Starting(_) | JobPhase::Running(..));
            let Some(known) = state.job(job).filter(works) else { continue };
            if self.jobs.get(job).is_some_and(|watched| now_ms < watched.quiet_until_ms) {
                continue;
            }
            if let Some(stall) = self.stall(now_ms, job, known, state) {
                self.jobs.entry(job.clone()).or_default().quiet_until_ms = now_ms + REPORT_AGAIN_MS;
                for (_, heard) in self.executors.iter_mut().filter(|(executor, _)| executor.job == *job) {
                    heard.since_ms = now_ms;
                }
                stalls.push(stall);
            }
        }
        stalls
    }

    /// Who has to get on: the members of the generation in force. Of a job that starts, those that are in a unit of one that is over: they
    /// are to come together with the others and cannot before it ends.
    fn watched_members(&self, id: &JobId, job: &Job, state: &State) -> Vec<ExecutorId> {
        if let Some(active) = job.active() {
            return active.members.iter().cloned().collect();
        }
        let computes = |number: &ExecutorId| {
            self.executors.get(number).is_some_and(|heard| matches!(kind(&heard.progress), Kind::Unit(_)))
        };
        let there = state.executors_of(id).filter(|(number, executor)| executor.leaving.is_none() && computes(number));
        there.map(|(number, _)| number.clone()).collect()
    }

    fn stall(&mut self, now_ms: u64, id: &JobId, job: &Job, state: &State) -> Option<Report> {
        let members = self.watched_members(id, job, state);
        let stays = |executor: &ExecutorId| state.executor(executor).is_some_and(|executor| executor.leaving.is_none());
        // One that is not heard may be doing anything.
        let all_heard = members.iter().all(|member| {
            self.executors.get(member).is_some_and(|heard| now_ms.saturating_sub(heard.at_ms) <= HEARD_MS)
        });
        if members.is_empty() || !all_heard || !members.iter().all(stays) || state.is_parking(id) {
            return None;
        }
        let slowest_unit_ms = self.jobs.get(id).and_then(|watched| watched.slowest_unit_ms);
        let mut step = Step(0);
        let (mut working, mut blamed) = (false, Vec::new());
        let (mut cause, mut still_since_ms, mut linking) = (StallCause::Peers, 0, false);
        for member in &members {
            let Some(heard) = self.executors.get_mut(member) else { continue };
            step = step.max(heard.progress.step);
            still_since_ms = still_since_ms.max(heard.since_ms);
            // It has not said anything yet since a new round was proposed, which may be the help it needs.
            linking |= heard.progress.generation < job.round;
            let still_ms = now_ms.saturating_sub(heard.since_ms);
            let judged = match kind(&heard.progress) {
                Kind::Unit(rank) => {
                    working = true;
                    heard.hangs(still_ms, slowest_unit_ms).then_some((StallCause::Unit, rank))
                }
                Kind::Copying => {
                    working = true;
                    (still_ms >= BYTES_STALL_MS).then_some((StallCause::Bytes, None))
                }
                Kind::Store => {
                    working = true;
                    (still_ms >= STORE_PATIENCE_MS).then_some((StallCause::Store, None))
                }
                Kind::Idle => {
                    working = true;
                    None
                }
                Kind::Linking => {
                    linking = true;
                    None
                }
                Kind::Waiting => None,
            };
            if let Some((why, rank)) = judged {
                if why != StallCause::Store {
                    blamed.push(Blamed { executor: member.clone(), rank });
                }
                cause = why;
            }
        }
        let limit_ms = if linking { ROUND_STALL_MS } else { PEERS_STALL_MS };
        let all_wait = !working && now_ms.saturating_sub(still_since_ms) >= limit_ms;
        let stalls = all_wait || cause != StallCause::Peers;
        stalls.then(|| Report::JobStalled { job: id.clone(), step, cause, blamed })
    }
}

impl Heard {
    /// Whether the unit it is in takes too long. One that still uses the processor when its time is over gets three times as much, once:
    /// a slow machine is no hung one.
    fn hangs(&mut self, still_ms: u64, slowest_unit_ms: Option<u64>) -> bool {
        let limit_ms = slowest_unit_ms
            .map_or(FIRST_UNIT_STALL_MS, |slowest| UNIT_STALL_MS_MIN.max(slowest.saturating_mul(UNIT_STALL_FACTOR)));
        let used = self.progress.processor_ms > self.looked_processor_ms;
        self.looked_processor_ms = self.progress.processor_ms;
        if still_ms >= limit_ms && used && !self.lenient {
            self.lenient = true;
        }
        let factor = if self.lenient { 3 } else { 1 };
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
    let place = |p: &Progress| (p.generation, p.revision, p.step, p.phase, p.units_done, p.bytes_done);
    place(before) != place(now)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::policy::policy_by_name;
    use crate::world::World;
    use events_schema::Generation;
    use events_schema::fact::Fact;
    use events_schema::job::JobSpec;
    use serde_json::json;

    /// A job that trains on two slots, and a clock.
    struct Story {
        world: World,
        job: JobId,
        watch: Watch,
        now_ms: u64,
    }

    impl Story {
        fn new() -> Self {
            let mut world = World::local(policy_by_name("ebb").unwrap(), 2);
            let spec = json!({
                "name": "digits", "model": {"kind": "cnn"}, "dataset": "digits", "workers": {"min": 1, "max": 2},
                "batch_size": 8, "steps": 1000,
            });
            let job = world.submit(JobSpec::parse(&spec).unwrap());
            world.run();
            Self { world, job, watch: Watch::default(), now_ms: 1_000 }
        }

        /// Both are there, and no generation is in force any more.
        fn starts_anew(&mut self) {
            let restarted = Fact::JobRestarted { job: self.job.clone(), from: Step(0) };
            let at = self.world.state.at;
            self.world.state.apply(at, &restarted);
            assert!(self.world.state.job(&self.job).unwrap().active().is_none());
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
            };
            self.watch.heard(self.now_ms, &ExecutorId { job: self.job.clone(), number }, progress);
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
                if let Some(stall) = self.watch.look(self.now_ms, &self.world.state).pop() {
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

    #[test]
    fn silence_is_no_stall() {
        let mut story = Story::new();
        story.say(0, 7, Phase::Reducing, WaitsFor::Peers(vec![1]), (0, 0, 0));
        story.now_ms += 60_000;
        assert_eq!(story.watch.look(story.now_ms, &story.world.state), []);
    }

    #[test]
    fn a_copy_without_bytes_and_a_store_without_answer_are_told_apart() {
        let mut story = Story::new();
        let copying = (7, Phase::Copying, WaitsFor::Peers(vec![0]), (0, 500, 5));
        let (after_ms, stall) = story.until_stall(100, &|_| [reducing(1), copying.clone()]).unwrap();
        assert_eq!(blamed(&stall), (StallCause::Bytes, vec![(1, None)]));
        assert!((30_000..=31_000).contains(&after_ms), "{after_ms}");
        let mut story = Story::new();
        let saving = (7, Phase::Saving, WaitsFor::Store, (9, 500, 5));
        let (after_ms, stall) = story.until_stall(4_000, &|_| [saving.clone(), saving.clone()]).unwrap();
        assert_eq!(blamed(&stall), (StallCause::Store, vec![]));
        assert!((1_800_000..=1_801_000).contains(&after_ms), "{after_ms}");
    }
}
