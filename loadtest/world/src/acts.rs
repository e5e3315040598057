//! What the entries of a schedule do to the world, and the healing, after which the core has no faults any more.

use crate::schedule::{Act, Place, SlowLink};
use crate::time::At;
use crate::world::{Begin, CONTROL, Event, Over, Pid, World};
use events_schema::batch::InputStream;
use events_schema::command::Command;
use std::collections::BTreeSet;
use workers_agent_core::ProcessEnd;

/// Something that waits for a phase happens up to so long after it began, or at once.
const INTO_PHASE_MS: u64 = 60;

impl World {
    /// An entry's time has come; it may still wait for a phase.
    pub fn entry_is_due(&mut self, index: usize) {
        match self.schedule.entries[index].when {
            Some(_) => self.awaited.push(index),
            None => self.act(index),
        }
    }

    /// Whoever waited for what a job is at now has waited long enough.
    pub fn act_in_phase(&mut self) {
        let (phases, entries) = (self.phases(), &self.schedule.entries);
        let is_due = |index: &mut usize| {
            let entry = &entries[*index];
            entry.when.is_some() && entry.when == phases.get(usize::from(entry.of)).copied()
        };
        let due: Vec<usize> = self.awaited.extract_if(.., is_due).collect();
        for index in due {
            let in_ms = if self.random.one_in(2) { 0 } else { self.random.below(INTO_PHASE_MS) };
            self.bus.put(self.until(in_ms), Event::Act(index));
        }
    }

    /// An entry of the schedule happens.
    pub fn act(&mut self, index: usize) {
        let act = self.schedule.entries[index].act.clone();
        let (name, phases) = (act.name(), self.phases());
        let met = match act {
            Act::FlapLink { .. } | Act::FlapServer { .. } => self.flap(index),
            Act::Cancel { .. } | Act::Suspend { .. } | Act::Resume { .. } => self.user_acts(act),
            Act::Demand { .. } | Act::TakeBack { .. } | Act::RedButton { .. } | Act::Declare { .. } => {
                self.fleet_acts(act)
            }
            Act::SetQuota { tenant, slots } => {
                self.set_quota(tenant, slots);
                true
            }
            Act::CrashController { .. } | Act::StopController { .. } | Act::RivalController => {
                self.controller_acts(act)
            }
            Act::StallLog { .. }
            | Act::LoseAcknowledgements { .. }
            | Act::AppendLate { .. }
            | Act::RefuseAppends { .. }
            | Act::ShortenInput { .. } => self.log_acts(act),
            Act::StoreAway { .. }
            | Act::StoreRefuses { .. }
            | Act::SlowStore { .. }
            | Act::ListLate { .. }
            | Act::DamageCheckpoint { .. } => self.store_acts(act),
            Act::Cut { .. } | Act::ResetLinks { .. } | Act::ForgetConnections { .. } => self.net_acts(act),
            Act::SlowLinks { .. } | Act::SlowLinkOf { .. } => self.net_acts(act),
            _ => self.host_acts(act),
        };
        // What met nobody says nothing.
        if met {
            self.checks.note_act(name, &phases);
        }
    }

    /// Something comes and goes for ever; whether it does. What has become core is left alone.
    pub fn flap(&mut self, index: usize) -> bool {
        let (act, core) = (self.schedule.entries[index].act.clone(), self.schedule.setup.core_servers);
        let is_spared = |place: Place| self.healed_at.is_some() && place <= core;
        let next_ms = match act {
            Act::FlapLink { from, to, .. } if is_spared(from) && is_spared(to) => return false,
            Act::FlapLink { from, to, cut_ms, whole_ms } => {
                self.cut(from, to);
                self.bus.put(self.until(cut_ms), Event::Over(Over::Cut(from, to)));
                cut_ms + whole_ms
            }
            Act::FlapServer { server, .. } if is_spared(server + 1) => return false,
            Act::FlapServer { server, down_ms, up_ms } => {
                self.hosts[usize::from(server) + 1].up = false;
                self.crash_agent(server + 1, down_ms);
                down_ms + up_ms
            }
            _ => return false,
        };
        self.note_flap();
        self.bus.put(self.until(next_ms), Event::Flap(index));
        true
    }

    fn user_acts(&mut self, act: Act) -> bool {
        match act {
            Act::Cancel { job } => self.job_command(job, |job| Command::CancelJob { job }),
            Act::Suspend { job } => self.job_command(job, |job| Command::SuspendJob { job }),
            Act::Resume { job } => self.job_command(job, |job| Command::ResumeJob { job }),
            _ => false,
        }
    }

    fn fleet_acts(&mut self, act: Act) -> bool {
        match act {
            Act::Demand { server, needed } => self.demand(server + 1, needed),
            Act::TakeBack { server, slots, within_ms } => {
                self.take_back(server + 1, slots.into_iter().collect(), within_ms)
            }
            Act::RedButton { server } => {
                self.red_button(server + 1);
                true
            }
            Act::Declare { server, slots } => {
                self.declare(server + 1, slots);
                true
            }
            _ => false,
        }
    }

    fn controller_acts(&mut self, act: Act) -> bool {
        if matches!(act, Act::RivalController) {
            self.begin_controller();
            return true;
        }
        let Some(pid) = self.controller else { return false };
        match act {
            Act::CrashController { down_ms } => {
                self.controller = None;
                self.end_process(pid);
                self.bus.put(self.until(down_ms), Event::Begin(Begin::Controller));
            }
            Act::StopController { for_ms } => self.stop_for(pid, for_ms),
            _ => return false,
        }
        true
    }

    fn log_acts(&mut self, act: Act) -> bool {
        match act {
            Act::StallLog { for_ms } => {
                self.log.stalled_until = self.log.stalled_until.max(self.until(for_ms));
                self.log.stalled_for_ms = for_ms;
                self.bus.put(self.log.stalled_until, Event::Over(Over::LogStall));
            }
            Act::LoseAcknowledgements { for_ms } => self.log.loses_acknowledgements_until = self.until(for_ms),
            Act::AppendLate { for_ms } => self.log.late_until = self.until(for_ms),
            Act::RefuseAppends { for_ms } => self.log.refuses_until = self.until(for_ms),
            Act::ShortenInput { topic, records, for_ms } => {
                self.bus.put(self.until(for_ms), Event::Over(Over::Short(topic.into())));
                return self.shorten(topic.into(), records);
            }
            _ => return false,
        }
        true
    }

    fn store_acts(&mut self, act: Act) -> bool {
        match act {
            Act::StoreAway { for_ms } => self.store.away_until = self.until(for_ms),
            Act::StoreRefuses { for_ms } => self.store.refuses_until = self.until(for_ms),
            Act::SlowStore { times, for_ms } => (self.store.slow, self.store.slow_until) = (times, self.until(for_ms)),
            Act::ListLate { for_ms } => self.store.lists_late_until = self.until(for_ms),
            Act::DamageCheckpoint { job, bytes } => {
                let job = self.people.jobs.get(usize::from(job)).cloned();
                return job.is_some_and(|job| self.store.damage(&job, bytes));
            }
            _ => return false,
        }
        true
    }

    fn net_acts(&mut self, act: Act) -> bool {
        match act {
            Act::Cut { from, to, for_ms } => {
                self.cut(from, to);
                self.bus.put(self.until(for_ms), Event::Over(Over::Cut(from, to)));
            }
            Act::ResetLinks { from, to } => return self.reset_links(from, to),
            Act::ForgetConnections { at, other } => return self.forget_connections(at, other),
            Act::SlowLinkOf { server, bytes_per_s } => {
                self.net.slow_link = Some(SlowLink { server, bytes_per_s });
            }
            Act::SlowLinks { times, for_ms } => (self.net.slow, self.net.slow_until) = (times, self.until(for_ms)),
            _ => return false,
        }
        true
    }

    /// What happens to a host, its agent or an executor on it.
    fn host_acts(&mut self, act: Act) -> bool {
        match act {
            Act::KillExecutor { pick } => {
                return self.on_executor(pick, |world, pid| {
                    world.note_program_fails(pid);
                    world.kill(pid);
                });
            }
            Act::ExitExecutor { pick, status } => {
                return self.on_executor(pick, |world, pid| {
                    world.note_program_fails(pid);
                    world.end_executor(pid, ProcessEnd::Exited(status));
                });
            }
            Act::StopExecutor { pick, for_ms } => {
                return self.on_executor(pick, |world, pid| world.stop_for(pid, for_ms));
            }
            Act::HangInUnit { pick } => {
                return self.on_executor(pick, |world, pid| {
                    world.executor_mut(pid).into_iter().for_each(|executor| executor.hangs = true);
                });
            }
            Act::FlipBit { pick, element } => return self.on_executor(pick, |world, pid| world.flip(pid, element)),
            Act::CrashAgent { server, down_ms } => return self.crash_agent(server + 1, down_ms),
            Act::StopAgent { server, for_ms } => return self.stop_agent(server + 1, for_ms),
            Act::CrashServer { server, down_ms } => {
                // Power is gone: nothing on it says a last word.
                self.hosts[usize::from(server) + 1].up = false;
                return self.crash_agent(server + 1, down_ms);
            }
            Act::SlowServer { server, times, for_ms } => {
                let until = self.until(for_ms);
                let host = &mut self.hosts[usize::from(server) + 1];
                (host.slow, host.slow_until) = (times, until);
            }
            Act::FullDisk { server, for_ms } => {
                self.hosts[usize::from(server) + 1].disk_full_until = self.until(for_ms);
            }
            Act::JumpClock { place, by_ms } => self.jump_clock(place, by_ms),
            Act::PolicyPanics { for_ms } => {
                self.policy_panics_until = self.until(for_ms);
                self.policy_panics.store(true, std::sync::atomic::Ordering::Relaxed);
                self.bus.put(self.policy_panics_until, Event::Over(Over::Nothing));
            }
            _ => return false,
        }
        true
    }

    fn until(&self, for_ms: u64) -> At {
        self.now().plus_ms(for_ms)
    }

    fn job_command(&mut self, job: u16, command: impl FnOnce(events_schema::JobId) -> Command) -> bool {
        let Some(job) = self.people.jobs.get(usize::from(job)).cloned() else { return false };
        self.command(command(job));
        true
    }

    fn on_executor(&mut self, pick: u64, act: impl FnOnce(&mut World, Pid)) -> bool {
        let there: Vec<Pid> = self.processes.keys().copied().filter(|pid| self.executor(*pid).is_some()).collect();
        if there.is_empty() {
            return false;
        }
        act(self, there[(pick % there.len() as u64) as usize]);
        true
    }

    fn stop_for(&mut self, pid: Pid, for_ms: u64) {
        self.stop(pid);
        self.bus.put(self.until(for_ms), Event::Over(Over::Stop(pid)));
    }

    fn stop_agent(&mut self, place: Place, for_ms: u64) -> bool {
        let Some(pid) = self.hosts[usize::from(place)].agent else { return false };
        self.stop_for(pid, for_ms);
        true
    }

    fn crash_agent(&mut self, place: Place, down_ms: u64) -> bool {
        let Some(pid) = self.hosts[usize::from(place)].agent else { return false };
        self.end_process(pid);
        self.bus.put(self.until(down_ms), Event::Begin(Begin::Agent(place)));
        true
    }

    /// From now on nothing is wrong with the log, the store, one controller, and the servers of the core with all that is between them. What has
    /// happened is not undone: links that are half open, clocks that are off, objects that are damaged. The rest stays as it is.
    pub fn heal(&mut self) {
        let core: BTreeSet<Place> = (0..=self.schedule.setup.core_servers).collect();
        let now = self.now();
        self.healed_at = Some(now);
        let log = &mut self.log;
        log.stalled_for_ms = 0;
        for until in
            [&mut log.stalled_until, &mut log.refuses_until, &mut log.loses_acknowledgements_until, &mut log.late_until]
        {
            *until = now.min(*until);
        }
        self.log_goes_on();
        InputStream::ALL.into_iter().for_each(|input| self.repair(input));
        (self.store.away_until, self.store.refuses_until) = (now, now);
        (self.store.slow_until, self.store.lists_late_until) = (now, now);
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
        // What has waited in vain until now does not happen any more.
        self.awaited.clear();
        self.checks.watch(&self.log.truth, &self.people.jobs, now);
    }
}
