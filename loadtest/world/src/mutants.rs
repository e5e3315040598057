//! Mended defects, switched on again one at a time: whether the world would find them. They live here, between the machines, so that
//! production holds nothing of them.

use crate::cell::AGENT_LEASE_MS;
use crate::executor::Executor;
use crate::log::Log;
use crate::numbers::{self, Element};
use crate::time::At;
use crate::world::{Host, Pid, World};
use controller_core::State;
use controller_core::policy::View;
use controller_core::state::Job;
use events_schema::batch::{EventRecord, from_bytes, to_bytes};
use events_schema::control::FromExecutor;
use events_schema::fact::{Fact, ReclaimCause};
use events_schema::orders::{AgentMessage, ControllerMessage};
use events_schema::report::{Report, ReportRecord};
use events_schema::{Digest, Generation, JobId, Offset, ServerId, SlotId, TimeMs};
use serde::{Deserialize, Serialize};
use workers_session::ReplicaChecksum;

/// A defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mutant {
    /// A member's word that it has lost another counts only in the generation that the controller takes for the one in force.
    StaleLossesAreDropped,
    /// A generation that newcomers come into is said to be in force only when they hold the replica.
    ActiveIsSaidLate,
    /// There is no watch over progress: what executors say of themselves is not heard. It makes other defects good.
    NobodyWatches,
    /// An order that has to leave later is started.
    LateOrdersStart,
    /// A deadline is converted by the wall clocks of two hosts.
    DeadlinesByTheWall,
    /// An agent's words are not heard while the log stalls, nor for a while after.
    LogStallGivesAgentsUp,
    /// A policy that panics takes the inputs with it that it was asked after.
    PanicsDiscardInputs,
    /// Nobody notices that the log has lost a report: the ones behind it are taken.
    LostReportsAreMissed,
    /// A controller's time stands still after its wall clock has jumped back, until that shows what it had shown before.
    TimeStandsStill,
    /// Nobody notices that an input topic ends before what was taken of it: what is written there is never read.
    ShortInputsAreMissed,
    /// Who restores a checkpoint takes the newest one that is listed, whether the controller has accepted it or not.
    RestoresWhatIsListed,
    /// Who reads from the store gives up after two minutes and ends as if its program had failed, and says meanwhile that it computes.
    StoreIsGivenUp,
    /// Replicas are not compared.
    NobodyCompares,
    /// A job stays on the slots of its policy's plan, also on those that it avoids.
    NobodyGoesElsewhere,
    /// Nobody hears how fast newcomers are sent the replica, nor what agents measure.
    NobodyMeasuresLinks,
    /// No agent measures links: newcomers alone find out what theirs carries.
    NobodySurveysLinks,
    /// Who computes a gradient hears of nothing before it is done.
    NobodyListensMeanwhile,
    /// That a forecast took a slot is not known of it, so that it is taken again whenever its fleet offers it.
    ForecastsTakeAgain,
    /// A policy is told of less in one half of each day of a fleet than in the other.
    PlansFollowTheDay,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 19] = [
        Mutant::StaleLossesAreDropped,
        Mutant::ActiveIsSaidLate,
        Mutant::NobodyWatches,
        Mutant::LateOrdersStart,
        Mutant::DeadlinesByTheWall,
        Mutant::LogStallGivesAgentsUp,
        Mutant::PanicsDiscardInputs,
        Mutant::LostReportsAreMissed,
        Mutant::TimeStandsStill,
        Mutant::ShortInputsAreMissed,
        Mutant::RestoresWhatIsListed,
        Mutant::StoreIsGivenUp,
        Mutant::NobodyCompares,
        Mutant::NobodyGoesElsewhere,
        Mutant::NobodyMeasuresLinks,
        Mutant::NobodySurveysLinks,
        Mutant::NobodyListensMeanwhile,
        Mutant::ForecastsTakeAgain,
        Mutant::PlansFollowTheDay,
    ];

    /// The one of this name, as schedules and commands write it.
    #[must_use]
    pub fn named(name: &str) -> Option<Mutant> {
        serde_json::from_value(serde_json::Value::from(name)).ok()
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> String {
        serde_json::to_value(self).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
    }
}

/// The defects that are switched on.
#[derive(Debug, Clone, Default)]
pub struct Mutants(pub Vec<Mutant>);

impl Mutants {
    fn has(&self, mutant: Mutant) -> bool {
        self.0.contains(&mutant)
    }

    /// What a controller hears of what an agent says.
    #[must_use]
    pub fn heard(&self, message: AgentMessage, log: &Log, now: At) -> Option<AgentMessage> {
        let truth = &log.truth;
        let stalled = log.stalled_for_ms > AGENT_LEASE_MS && now < log.stalled_until.plus_ms(2 * AGENT_LEASE_MS);
        if stalled && self.has(Mutant::LogStallGivesAgentsUp) && matches!(message, AgentMessage::Heartbeat) {
            return None;
        }
        if self.has(Mutant::NobodyWatches) && matches!(message, AgentMessage::Progress { .. }) {
            return None;
        }
        if let AgentMessage::Hello { server, incarnation, .. } = &message
            && (self.has(Mutant::NobodyMeasuresLinks) || self.has(Mutant::NobodySurveysLinks))
        {
            let (server, incarnation) = (server.clone(), *incarnation);
            return Some(AgentMessage::Hello { server, incarnation, far_end: None });
        }
        let AgentMessage::Report { number, at, report, .. } = &message else { return Some(message) };
        let is_dropped = match report {
            Report::PeersMissing { job, generation, begun: true, .. } => {
                let in_force = truth.job(job).and_then(Job::active).map(|active| active.proposal.generation);
                self.has(Mutant::StaleLossesAreDropped) && in_force != Some(*generation)
            }
            Report::LinkMeasured { .. } => self.has(Mutant::NobodyMeasuresLinks),
            _ => false,
        };
        // Its number still has to be taken, as of any report without effect.
        let slot = SlotId { server: nobody(), index: u16::MAX };
        let silent = Report::SlotTakenBack { slot, asked_ms: None, within_ms: None };
        let dropped = AgentMessage::Report { number: *number, at: *at, report: silent, trace: None };
        Some(if is_dropped { dropped } else { message })
    }

    /// For how much longer a controller's time stands still when its wall clock jumps.
    #[must_use]
    pub fn stands_still_ms(&self, jump_ms: i64) -> u64 {
        if self.has(Mutant::TimeStandsStill) { jump_ms.min(0).unsigned_abs() } else { 0 }
    }

    /// Where the log says that an input ends of which so much was taken.
    #[must_use]
    pub fn end(&self, end: Offset, taken: Offset) -> Offset {
        if self.has(Mutant::ShortInputsAreMissed) { end.max(taken) } else { end }
    }

    /// Whether nobody hears anything while a gradient is computed.
    #[must_use]
    pub fn hears_nothing(&self) -> bool {
        self.has(Mutant::NobodyListensMeanwhile)
    }

    /// Whether nobody waits for the store for long.
    #[must_use]
    pub fn gives_store_up(&self) -> bool {
        self.has(Mutant::StoreIsGivenUp)
    }

    /// Which manifests are read, of those that were named and those that are listed.
    #[must_use]
    pub fn restored(&self, named: Vec<String>, listed: impl FnOnce() -> Vec<String>) -> Vec<String> {
        if self.has(Mutant::RestoresWhatIsListed) { listed() } else { named }
    }

    /// What stands in the log of a batch, if that is not what its controller decided.
    #[must_use]
    pub fn written(&self, record: &[u8], policy_panics: bool, truth: &State) -> Option<Vec<u8>> {
        let others = || self.without_forecasts(record).or_else(|| self.without_inputs(record, policy_panics));
        self.without_exchanges(record, truth).or_else(others)
    }

    /// What goes back early does as if its fleet needed it.
    fn without_forecasts(&self, record: &[u8]) -> Option<Vec<u8>> {
        if !self.has(Mutant::ForecastsTakeAgain) {
            return None;
        }
        let Ok(EventRecord::Batch(mut batch)) = from_bytes(record) else { return None };
        let causes = batch.facts.iter_mut().filter_map(|fact| match fact {
            Fact::SlotReclaimed { cause, .. } if *cause == ReclaimCause::Forecast => Some(cause),
            _ => None,
        });
        let changed = causes.map(|cause| *cause = ReclaimCause::Demand).count();
        (changed > 0).then(|| to_bytes(&EventRecord::Batch(batch)))
    }

    /// What a policy is told instead of this, where fleets' days are so long: in half of each day that whoever has more than its fewest slots can use one less.
    #[must_use]
    pub fn told(&self, view: &View, day_ms: Option<u64>) -> Option<View> {
        day_ms.filter(|day_ms| self.has(Mutant::PlansFollowTheDay) && view.now_ms % day_ms < day_ms / 2)?;
        let mut told = view.clone();
        told.jobs.iter_mut().filter(|job| job.held > job.min).for_each(|job| job.max = job.max.min(job.held - 1));
        Some(told)
    }

    /// Nothing follows from the exchange of a slot, nor that itself.
    fn without_exchanges(&self, record: &[u8], truth: &State) -> Option<Vec<u8>> {
        if !self.has(Mutant::NobodyGoesElsewhere) {
            return None;
        }
        let Ok(EventRecord::Batch(mut batch)) = from_bytes(record) else { return None };
        let mut state = truth.clone();
        let kept = batch.facts.iter().take_while(|fact| {
            let exchanges = exchanges(&state, batch.at, fact);
            state.apply(batch.at, fact);
            !exchanges
        });
        let kept = kept.count();
        if kept == batch.facts.len() {
            return None;
        }
        batch.facts.truncate(kept);
        Some(to_bytes(&EventRecord::Batch(batch)))
    }

    /// Of inputs that something follows from nothing does.
    fn without_inputs(&self, record: &[u8], policy_panics: bool) -> Option<Vec<u8>> {
        if !policy_panics || !self.has(Mutant::PanicsDiscardInputs) {
            return None;
        }
        let Ok(EventRecord::Batch(mut batch)) = from_bytes(record) else { return None };
        let follows = |fact: &Fact| !matches!(fact, Fact::PlanFailed { .. } | Fact::InputRefused { .. });
        if !batch.facts.iter().any(follows) {
            return None;
        }
        let refused = batch.taken.iter().flat_map(|taken| {
            (taken.from.0..taken.to.0).map(move |offset| Fact::InputRefused {
                stream: taken.stream.name().to_owned(),
                offset: Offset(offset),
                reason: "planning after it panicked".to_owned(),
            })
        });
        batch.facts = refused.collect();
        Some(to_bytes(&EventRecord::Batch(batch)))
    }

    /// What a controller writes down of what an agent says.
    #[must_use]
    pub fn written_report(&self, record: Vec<u8>) -> Vec<u8> {
        match from_bytes::<ReportRecord>(&record) {
            Ok(said) if self.has(Mutant::LostReportsAreMissed) => to_bytes(&ReportRecord { after: None, ..said }),
            _ => record,
        }
    }

    /// What a member says its replica's checksum is.
    #[must_use]
    pub fn checksum(&self, replica: &[Element]) -> ReplicaChecksum {
        let Digest(of) = if self.has(Mutant::NobodyCompares) { Digest([0; 32]) } else { numbers::digest(replica) };
        ReplicaChecksum(std::array::from_fn(|place| of[place]))
    }

    /// What an agent hears of what a controller says.
    #[must_use]
    pub fn orders(&self, message: ControllerMessage, hosts: &[Host], now: At) -> ControllerMessage {
        let ControllerMessage::Orders(mut orders) = message else { return message };
        for order in &mut orders.executors {
            let place = order.slot.server.as_str().rsplit('-').next().and_then(|n| n.parse::<usize>().ok());
            let Some(host) = place.and_then(|place| hosts.get(place + 1)) else { continue };
            let wall = host.clock.wall(now);
            if self.has(Mutant::LateOrdersStart) && order.leave_by.is_some_and(|by| by > wall) {
                (order.leave_by, order.leave_in_ms) = (None, None);
            }
            if self.has(Mutant::DeadlinesByTheWall) {
                order.leave_in_ms = order.leave_by.map(|by| by.since_ms(wall));
            }
        }
        ControllerMessage::Orders(orders)
    }
}

impl World {
    /// What an executor says, unless it is held back; what is held back no longer is said first.
    pub fn said_in_time(&mut self, child: Pid, frame: FromExecutor) -> Option<FromExecutor> {
        if !self.mutants.has(Mutant::ActiveIsSaidLate) {
            return Some(frame);
        }
        match &frame {
            FromExecutor::Report(Report::GenerationActive { job, generation, .. })
                if self.somebody_is_copying(job, *generation) =>
            {
                self.held_back.push((child, frame));
                return None;
            }
            FromExecutor::Report(Report::ReplicaHeld { executor, generation, .. })
                if !self.somebody_is_copying(&executor.job, *generation) =>
            {
                let now_said = |(_, held): &mut (Pid, FromExecutor)| {
                    matches!(held, FromExecutor::Report(Report::GenerationActive { job, generation: of, .. })
                        if *job == executor.job && of == generation)
                };
                let said: Vec<(Pid, FromExecutor)> = self.held_back.extract_if(.., now_said).collect();
                said.into_iter().for_each(|(by, active)| self.say_to_agent(by, active));
            }
            _ => {}
        }
        Some(frame)
    }

    /// Whether a member of a generation waits for a replica, which it is sent, or is about to be.
    fn somebody_is_copying(&self, job: &JobId, generation: Generation) -> bool {
        let of = |pid: &Pid| self.executor(*pid).filter(|executor| executor.id.job == *job);
        let leader = self.processes.keys().filter_map(of).find_map(|executor| {
            executor.member.session().membership().filter(|m| m.tag.generation == generation).cloned()
        });
        let members = leader.map(|membership| membership.peers().collect::<Vec<_>>()).unwrap_or_default();
        let holds = |executor: &Executor| executor.member.session().holding().is_some();
        let mut there = self.processes.keys().filter_map(of).filter(|executor| members.contains(&executor.peer()));
        there.any(|executor| !holds(executor))
    }
}

/// Whether a plan is on another slot instead of one that is there and that its job avoids.
fn exchanges(state: &State, at: TimeMs, fact: &Fact) -> bool {
    let Fact::PlanAdopted { job, slots, .. } = fact else { return false };
    let Some(known) = state.job(job).filter(|known| known.slots().len() == slots.len()) else { return false };
    let avoided = |slot: &&SlotId| {
        known.avoids(slot, at) && state.is_present(slot) && state.slot(slot).is_some_and(|slot| slot.is_lent())
    };
    known.slots().iter().filter(avoided).any(|slot| !slots.contains(slot))
}

fn nobody() -> ServerId {
    ServerId::parse("nobody").unwrap_or_else(|e| unreachable!("{e}"))
}
