//! What the entries of a schedule do to the world, and the healing, after which the core has no faults any more.

use crate::schedule::{Act, Place};
use crate::time::At;
use crate::world::{Begin, Body, CONTROL, Event, Over, Pid, World};
use events_schema::command::Command;
use std::collections::BTreeSet;
use workers_agent_core::ProcessEnd;

impl World {
    /// An entry's time has come.
    pub fn act(&mut self, index: usize) {
        let act = self.schedule.entries[index].act.clone();
        let phase = self.phase();
        self.checks.note_act(act.name(), phase);
        match act {
            Act::Cancel { job } => self.job_command(job, |job| Command::CancelJob { job }),
            Act::Suspend { job } => self.job_command(job, |job| Command::SuspendJob { job }),
            Act::Resume { job } => self.job_command(job, |job| Command::ResumeJob { job }),
            Act::Demand { server, needed } => self.demand(server + 1, needed),
            Act::TakeBack { server, slots, within_ms } => {
                self.take_back(server + 1, slots.into_iter().collect(), within_ms);
            }
            Act::RedButton { server } => self.red_button(server + 1),
            Act::Declare { server, slots } => self.declare(server + 1, slots),
            Act::ExitExecutor { pick, status } => {
                self.on_executor(pick, |world, pid| world.end_executor(pid, ProcessEnd::Exited(status)));
            }
            Act::KillExecutor { pick } => self.on_executor(pick, World::kill),
            Act::StopExecutor { pick, for_ms } => self.on_executor(pick, |world, pid| world.stop_for(pid, for_ms)),
            Act::HangInUnit { pick } => self.on_executor(pick, |world, pid| {
                world.executor_mut(pid).into_iter().for_each(|executor| executor.hangs = true);
            }),
            Act::CrashAgent { server, down_ms } => self.crash_agent(server + 1, down_ms),
            Act::StopAgent { server, for_ms } => {
                let place = server + 1;
                self.excuse(place);
                if let Some(pid) = self.hosts[usize::from(place)].agent {
                    self.stop_for(pid, for_ms);
                }
            }
            Act::CrashServer { server, down_ms } => self.crash_server(server + 1, down_ms),
            Act::SlowServer { server, times, for_ms } => {
                let until = self.until(for_ms);
                let host = &mut self.hosts[usize::from(server) + 1];
                (host.slow, host.slow_until) = (times, until);
            }
            Act::CrashController { down_ms } => {
                if let Some(pid) = self.controller.take() {
                    self.end_process(pid);
                    self.bus.put(self.bus.now().plus_ms(down_ms), Event::Begin(Begin::Controller));
                }
            }
            Act::StopController { for_ms } => {
                if let Some(pid) = self.controller {
                    self.stop_for(pid, for_ms);
                }
            }
            Act::RivalController => self.begin_controller(),
            Act::Cut { from, to, for_ms } => {
                self.cut(from, to);
                self.bus.put(self.until(for_ms), Event::Over(Over::Cut(from, to)));
            }
            Act::ResetLinks { from, to } => self.reset_links(from, to),
            Act::SlowLinks { times, for_ms } => (self.net.slow, self.net.slow_until) = (times, self.until(for_ms)),
            Act::StallLog { for_ms } => {
                self.log.stalled_until = self.log.stalled_until.max(self.until(for_ms));
                self.log.stalled_for_ms = for_ms;
                self.bus.put(self.log.stalled_until, Event::Over(Over::LogStall));
            }
            Act::LoseAcknowledgements { for_ms } => self.log.loses_acknowledgements_until = self.until(for_ms),
            Act::AppendLate { for_ms } => self.log.late_until = self.until(for_ms),
            Act::RefuseAppends { for_ms } => self.log.refuses_until = self.until(for_ms),
            Act::StoreAway { for_ms } => self.store.away_until = self.until(for_ms),
            Act::SlowStore { times, for_ms } => (self.store.slow, self.store.slow_until) = (times, self.until(for_ms)),
            Act::DamageCheckpoint { job } => {
                if let Some(job) = self.people.jobs.get(usize::from(job)).cloned() {
                    self.store.damage(&job);
                }
            }
            Act::FullDisk { server, for_ms } => {
                self.excuse(server + 1);
                self.hosts[usize::from(server) + 1].disk_full_until = self.until(for_ms);
            }
            Act::JumpClock { place, by_ms } => self.hosts[usize::from(place)].clock.ahead_ms += by_ms,
            Act::PolicyPanics { for_ms } => {
                self.policy_panics_until = self.until(for_ms);
                self.policy_panics.store(true, std::sync::atomic::Ordering::Relaxed);
                self.bus.put(self.policy_panics_until, Event::Over(Over::Nothing));
            }
        }
    }

    fn until(&self, for_ms: u64) -> At {
        self.now().plus_ms(for_ms)
    }

    fn job_command(&mut self, job: u16, command: impl FnOnce(events_schema::JobId) -> Command) {
        if let Some(job) = self.people.jobs.get(usize::from(job)).cloned() {
            self.command(command(job));
        }
    }

    fn on_executor(&mut self, pick: u64, act: impl FnOnce(&mut World, Pid)) {
        let there: Vec<Pid> = self.processes.keys().copied().filter(|pid| self.executor(*pid).is_some()).collect();
        if !there.is_empty() {
            act(self, there[(pick % there.len() as u64) as usize]);
        }
    }

    fn stop_for(&mut self, pid: Pid, for_ms: u64) {
        self.stop(pid);
        self.bus.put(self.until(for_ms), Event::Over(Over::Stop(pid)));
    }

    /// Direct take-backs that are under way at a server need not be in time.
    fn excuse(&mut self, place: Place) {
        self.people.asked.values_mut().filter(|asked| asked.place == place).for_each(|asked| asked.excused = true);
    }

    fn crash_agent(&mut self, place: Place, down_ms: u64) {
        if let Some(pid) = self.hosts[usize::from(place)].agent {
            self.end_process(pid);
            self.bus.put(self.until(down_ms), Event::Begin(Begin::Agent(place)));
        }
    }

    /// Power is gone: nothing on it says a last word.
    fn crash_server(&mut self, place: Place, down_ms: u64) {
        self.hosts[usize::from(place)].up = false;
        self.crash_agent(place, down_ms);
    }

    /// From now on nothing is wrong with the log, the store, one controller, and the servers of the core with all that is between them. What has
    /// happened is not undone: links that are half open, clocks that are off, objects that are damaged. The rest stays as it is.
    pub fn heal(&mut self) {
        let core: BTreeSet<Place> = (0..=self.schedule.setup.core_servers).collect();
        let now = self.now();
        self.healed_at = Some(now);
        (self.log.stalled_until, self.log.stalled_for_ms) = (now, 0);
        (self.log.refuses_until, self.log.loses_acknowledgements_until, self.log.late_until) = (now, now, now);
        self.log_goes_on();
        (self.store.away_until, self.store.slow_until) = (now, now);
        (self.net.slow_until, self.policy_panics_until) = (now, now);
        self.policy_panics.store(false, std::sync::atomic::Ordering::Relaxed);
        self.join_all(&core);
        let stopped: Vec<Pid> =
            self.processes.iter().filter(|(_, p)| p.stopped && core.contains(&p.place)).map(|(pid, _)| *pid).collect();
        stopped.into_iter().for_each(|pid| self.go_on(pid));
        if self.controller.is_none() {
            self.begin_controller();
        }
        for place in core.into_iter().filter(|place| *place != CONTROL) {
            let host = &mut self.hosts[usize::from(place)];
            (host.slow_until, host.disk_full_until) = (now, now);
            if host.agent.is_none() {
                self.begin_agent(place);
            }
        }
        self.checks.watch(&self.log.truth, &self.people.jobs, now);
    }

    /// What the first job is at, for the counters.
    #[must_use]
    pub fn phase(&self) -> &'static str {
        use controller_core::state::JobPhase;
        use events_schema::fact::Entry;
        let leading = self.controller.and_then(|pid| self.processes.get(&pid)).is_some_and(|process| {
            matches!(&process.body, Body::Cell(cell) if cell.machine.is_leading()) && !process.stopped
        });
        if !leading {
            return "no controller";
        }
        let Some(job) = self.people.jobs.first().and_then(|job| self.log.truth.job(job)) else { return "no job" };
        let copies = self.processes.values().any(|p| matches!(&p.body, Body::Executor(e) if e.is_copying()));
        let proposed = job.placement().and_then(|placement| placement.proposed.as_ref()).map(|p| &p.entry);
        match (&job.phase, proposed) {
            (JobPhase::Queued, _) => "queued",
            (JobPhase::Suspended, _) => "suspended",
            (JobPhase::Suspending(..), _) => "suspending",
            (JobPhase::Finished { .. } | JobPhase::Failed { .. } | JobPhase::Cancelled { .. }, _) => "ended",
            (_, Some(Entry::Recover)) => "recovering",
            (_, Some(Entry::Switch { .. })) => "switching",
            (_, Some(_)) => "beginning",
            (JobPhase::Running(..), None) if copies => "copying",
            (JobPhase::Running(..), None) => "running",
            (JobPhase::Starting(_), None) => "starting",
        }
    }
}
