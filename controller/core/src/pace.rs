//! Which jobs' steps became far longer though nobody's gradients did: a link that they go over has become slow, perhaps. Pure; part of the watch
//! (`watch.rs`), which hears what members are at. Whose link it is, the survey measures (`survey.rs`), and `decide/slow_members.rs` says what follows.
//!
//! Steps are compared with the fastest that the job was seen, or measured, to do with as many members. It suspects only: that a checkpoint, an evaluation
//! or a slow store makes steps longer costs a look at some links, and nobody straggles whose link was not measured to be slow.

use crate::decide::slow_members;
use crate::state::{Active, Job, State};
use crate::straggle::{GRADIENTS_MIN, SAID_AGAIN_MS, SLOWER_US_MIN, TIMES_SLOWER, WINDOWS};
use crate::survey::Survey;
use events_schema::control::{Gradients, Progress};
use events_schema::fact::StragglerCause;
use events_schema::report::Report;
use events_schema::stride::Stride;
use events_schema::{ExecutorId, Generation, JobId, ServerId, Step, TimeMs};
use std::collections::{BTreeMap, BTreeSet};

/// How long a window lasts at the least: two of them, behind what is left of a third, are a minute. Shorter than where gradients are compared (`straggle.rs`),
/// because nothing is done about a job for it: some links are measured, as seldom as the pauses below say.
const WINDOW_MS: u64 = 20_000;
/// From one look at the links of a job's servers to the next: a few MiB for each of them, beside its own steps. It doubles so often at most while steps stay
/// long, as where others have other links than those before: to an hour and twenty minutes.
const LOOK_AGAIN_MS: u64 = SAID_AGAIN_MS;
const DOUBLED_MAX: u32 = 3;
/// The same where steps were as short as ever since: what made them long then, an evaluation perhaps, may not be what does now. It doubles up to the first.
const LOOK_ANEW_MS: u64 = 120_000;
/// Longest that is waited for what the survey is to tell: a burst takes two seconds, or four where nothing comes, and a few are sent between each of some
/// servers. Agents that are away or measure nothing tell nothing.
const LOOK_MS: u64 = 45_000;
/// From the last word of the survey until it is judged: it is a fact by then, as far as it was slow.
const SETTLE_MS: u64 = 2_000;
/// Updates that a window in which steps are not long is to have: fewer say little.
const STEPS_MIN: u64 = GRADIENTS_MIN;
/// Sizes and strides of a job of which the fastest step is kept: more than it has in days.
const SIZES_MAX: usize = 64;

/// What members of a generation have done by a time.
#[derive(Debug, Clone, PartialEq)]
struct Done {
    generation: Generation,
    step: Step,
    gradients: BTreeMap<ExecutorId, Gradients>,
}

/// What a job's steps took in a stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Took {
    /// One step, in microseconds: as few as it may have been.
    step_us: u64,
    /// One rank's gradient, of the slowest member.
    unit_us: u64,
    /// All gradients of a step, of the member whose take longest. Those that are computed side by side count one by one.
    gradients_us: u64,
}

/// What is known of a job's steps.
#[derive(Debug, Clone, Default)]
struct Known {
    window: Option<(u64, Done)>,
    /// The fastest by members and stride.
    fastest: BTreeMap<(u16, Stride), Took>,
    /// For how many windows in a row steps were long, and what they took.
    long: u32,
    took_us: u64,
    /// When its servers' links were last asked after, how often so far, whether steps were short since then, and since when all was said.
    asked_ms: Option<u64>,
    looks: u32,
    anew: bool,
    said_ms: Option<u64>,
}

/// The steps of all jobs that are watched.
#[derive(Debug, Clone, Default)]
pub struct Paces(BTreeMap<JobId, Known>);

/// What members say just now, those of the generation in force of a job; nothing if one of them was not heard.
pub(crate) type Said<'a> = BTreeMap<&'a ExecutorId, &'a Progress>;

impl Paces {
    /// Forgets who is gone.
    pub fn retain(&mut self, job: impl Fn(&JobId) -> bool) {
        self.0.retain(|id, _| job(id));
    }

    /// Takes what the members of a job say. Who straggles because of its link now, or does no more.
    pub fn look(
        &mut self,
        (now_ms, at): (u64, TimeMs),
        (id, job): (&JobId, &Job),
        said: &Said<'_>,
        (state, survey): (&State, &mut Survey),
    ) -> Vec<Report> {
        let Some(active) = job.active().filter(|active| active.members.len() > 1) else { return Vec::new() };
        let mut reports = mended(state, at, id, job);
        let known = self.0.entry(id.clone()).or_default();
        if let Some(usual_us) = known.count(now_ms, job, active, said) {
            reports.extend(known.judge((now_ms, at), (id, job), usual_us, (state, survey)));
        }
        reports
    }
}

/// Stragglers of a job whose links keep nobody waiting any more.
fn mended(state: &State, at: TimeMs, id: &JobId, job: &Job) -> Vec<Report> {
    let of_link = job.stragglers.iter().filter(|(_, known)| known.cause == Some(StragglerCause::Network));
    let well = of_link.filter(|(executor, _)| !slow_members::is_slowed_by(state, at, id, job, executor));
    well.map(|(executor, _)| Report::MemberKeepsUp { executor: executor.clone() }).collect()
}

impl Known {
    /// Counts a window that is over; what a step usually takes, if steps are longer for some windows in a row.
    fn count(&mut self, now_ms: u64, job: &Job, active: &Active, said: &Said<'_>) -> Option<u64> {
        let size = (u16::try_from(active.members.len()).unwrap_or(u16::MAX), active.proposal.stride);
        let usual = self.usual(job, size);
        if self.window.take_if(|(_, before)| !before.is_of(active)).is_some() {
            self.long = 0;
        }
        if self.window.as_ref().is_none_or(|(since_ms, _)| now_ms.saturating_sub(*since_ms) >= WINDOW_MS)
            && let Some(done) = done(active, said)
        {
            match self.window.take() {
                Some((since_ms, before)) => self.look((since_ms, now_ms), (before, done), size, usual),
                None => self.window = Some((now_ms, done)),
            }
        }
        usual.map(|usual| usual.step_us).filter(|_| self.long >= WINDOWS)
    }

    /// A window has lasted: it is over once it tells, by steps or by how long none comes.
    fn look(
        &mut self,
        (since_ms, now_ms): (u64, u64),
        (before, done): (Done, Done),
        size: (u16, Stride),
        usual: Option<Took>,
    ) {
        let took = took(now_ms.saturating_sub(since_ms), &before, &done, size.1);
        let is_long = usual.is_some_and(|usual| took.is_longer_than(usual));
        if !is_long && done.steps_since(&before) < STEPS_MIN * size.1.steps() {
            self.window = Some((since_ms, before));
            return;
        }
        if is_long {
            (self.long, self.took_us) = (self.long.saturating_add(1), took.step_us);
        } else {
            (self.long, self.anew) = (0, true);
            self.note(size, took);
        }
        self.window = Some((now_ms, done));
    }

    /// The fastest step of a size: as it was seen, or as it was measured before.
    fn usual(&self, job: &Job, (members, stride): (u16, Stride)) -> Option<Took> {
        let placement = job.placement()?;
        let measured_us = match job.spec.batch_range {
            Some(_) => placement.update_us.get(&(members, stride)).map(|update_us| update_us / stride.steps()),
            None => placement.step_us_by_size.get(&members).copied(),
        };
        let measured = measured_us.map(|step_us| Took { step_us, unit_us: 0, gradients_us: 0 });
        let seen = self.fastest.get(&(members, stride)).copied();
        seen.into_iter()
            .chain(measured)
            .min_by_key(|took| (took.step_us, took.unit_us == 0))
            .map(|took| Took { unit_us: seen.map_or(0, |seen| seen.unit_us), ..took })
    }

    fn note(&mut self, size: (u16, Stride), took: Took) {
        let is_faster = match self.fastest.get(&size) {
            Some(fastest) => took.step_us < fastest.step_us,
            None => self.fastest.len() < SIZES_MAX,
        };
        if is_faster {
            self.fastest.insert(size, took);
        }
    }

    /// Steps are longer than they were: has the links of all members looked at, and says whose it is once that is known.
    fn judge(
        &mut self,
        (now_ms, at): (u64, TimeMs),
        (id, job): (&JobId, &Job),
        usual_us: u64,
        (state, survey): (&State, &mut Survey),
    ) -> Vec<Report> {
        let servers: BTreeSet<ServerId> = slow_members::servers_of(state, job).into_keys().cloned().collect();
        if servers.len() < 2 {
            return Vec::new();
        }
        let doubled = self.looks.saturating_sub(1).min(DOUBLED_MAX);
        let pause_ms = if self.anew { (LOOK_ANEW_MS << doubled).min(LOOK_AGAIN_MS) } else { LOOK_AGAIN_MS << doubled };
        if self.asked_ms.is_none_or(|asked_ms| now_ms.saturating_sub(asked_ms) >= pause_ms) {
            survey.hurry(now_ms, &servers);
            (self.asked_ms, self.said_ms, self.anew) = (Some(now_ms), None, false);
            self.looks = self.looks.saturating_add(1);
        }
        let waited_ms = self.asked_ms.map_or(0, |asked_ms| now_ms.saturating_sub(asked_ms));
        if self.said_ms.is_none() && (survey.has_measured(&servers) || waited_ms >= LOOK_MS) {
            self.said_ms = Some(now_ms);
        }
        if self.said_ms.is_none_or(|said_ms| now_ms.saturating_sub(said_ms) < SETTLE_MS) {
            return Vec::new();
        }
        let slow = slow_members::slowing((state, &*survey), at, (id, job), (usual_us, self.took_us));
        let members = job.active().into_iter().flat_map(|active| &active.members);
        let there = |number: &&ExecutorId| {
            let server = state.executor(number).map(|executor| &executor.slot.server);
            server.is_some_and(|server| slow.contains(server)) && !job.stragglers.contains_key(*number)
        };
        let straggles = |executor: &ExecutorId| Report::MemberStraggles {
            executor: executor.clone(),
            unit_us: self.took_us,
            peers_unit_us: usual_us,
            cause: Some(StragglerCause::Network),
        };
        members.filter(there).map(straggles).collect()
    }
}

impl Took {
    /// Whether a step takes far longer, and no gradient does. Where it is not known what one took, gradients take up less than half of the step.
    fn is_longer_than(self, usual: Took) -> bool {
        let is_longer = self.step_us.saturating_sub(usual.step_us) >= SLOWER_US_MIN
            && self.step_us >= usual.step_us.saturating_mul(TIMES_SLOWER);
        let computes = match usual.unit_us {
            0 => self.gradients_us > self.step_us / 2,
            // As halfway as who straggles is to keep up again, and at least half as much as the step: what else a host does lengthens a gradient by a half,
            // and that explains no step of ten times as long.
            unit_us => {
                let grew = self.unit_us >= unit_us.saturating_mul(3) / 2 + SLOWER_US_MIN;
                let product = |one: u64, other: u64| u128::from(one) * u128::from(other);
                grew && product(self.unit_us, usual.step_us) * 2 >= product(self.step_us, unit_us)
            }
        };
        is_longer && !computes
    }
}

impl Done {
    /// Whether it is of just these members, in this generation.
    fn is_of(&self, active: &Active) -> bool {
        let of_all = self.gradients.len() == active.members.len();
        self.generation == active.proposal.generation && of_all
    }

    fn steps_since(&self, before: &Self) -> u64 {
        self.step.0.saturating_sub(before.step.0)
    }
}

/// What the members of a generation in force have done, if all of them say so and are in it: a newcomer that has yet to begin says of what step it knows, and
/// a window that began there would have had all steps of the job.
fn done(active: &Active, said: &Said<'_>) -> Option<Done> {
    let begun =
        |progress: &&&Progress| progress.generation == active.proposal.generation && progress.step >= active.step;
    let of = |member: &ExecutorId| {
        let progress = said.get(member).filter(begun)?;
        Some((member.clone(), progress.gradients?, progress.step))
    };
    let all: Vec<_> = active.members.iter().map(of).collect::<Option<_>>()?;
    let step = all.iter().map(|(_, _, step)| *step).min()?;
    let generation = active.proposal.generation;
    let gradients = all.into_iter().map(|(number, done, _)| (number, done)).collect();
    Some(Done { generation, step, gradients })
}

fn took(passed_ms: u64, before: &Done, now: &Done, stride: Stride) -> Took {
    let steps = now.steps_since(before);
    // The update that is under way began before, or is not over.
    let step_us = passed_ms.saturating_mul(1_000) / (steps + stride.steps());
    let of = |(number, total): (&ExecutorId, &Gradients)| {
        let before = before.gradients.get(number).copied().unwrap_or_default();
        let took_us = total.took_us.saturating_sub(before.took_us);
        (took_us.checked_div(total.count.saturating_sub(before.count)).unwrap_or(0), took_us)
    };
    let unit_us = now.gradients.iter().map(|row| of(row).0).max().unwrap_or(0);
    let gradients_us = now.gradients.iter().map(|row| of(row).1).max().unwrap_or(0) / (steps + stride.steps());
    Took { step_us, unit_us, gradients_us }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::training;
    use events_schema::Rank;
    use events_schema::control::{Phase, WaitsFor};
    use serde_json::json;

    /// Found by a random schedule: by such a window the job had done a hundred steps in 20 s, so all later ones were long, and its newcomer went for a link that
    /// carried enough, again and again.
    #[test]
    fn a_window_begins_when_the_newcomers_of_a_generation_have() {
        let id = JobId::parse("job-a").unwrap();
        let state = training(&id, 2, &json!({}));
        let mut active = state.job(&id).unwrap().active().unwrap().clone();
        active.step = Step(73);
        let progress = |step| Progress {
            generation: active.proposal.generation,
            revision: 0,
            step: Step(step),
            phase: Phase::Computing(Rank(0)),
            units_done: 0,
            bytes_done: 0,
            waits_for: WaitsFor::Nothing,
            processor_ms: 0,
            gradients: Some(Gradients::default()),
            busy_percent: None,
        };
        let done_at = |steps: [u64; 2]| {
            let said = steps.map(progress);
            let said: Said<'_> = active.members.iter().zip(&said).collect();
            done(&active, &said).map(|done| done.step)
        };
        assert_eq!((done_at([73, 0]), done_at([73, 72])), (None, None));
        assert_eq!((done_at([74, 73]), done_at([80, 80])), (Some(Step(73)), Some(Step(80))));
    }
}
