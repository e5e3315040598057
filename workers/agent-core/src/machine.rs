//! The whole machine: its state, what one happening leads to, and when it has to be woken. Next file: `slot.rs`.

use crate::link::Uplink;
use crate::load::Load;
use crate::outbox::Outbox;
use crate::sharing::Sharing;
use crate::slot::{Claim, Occupant, Slot, SlotView};
use crate::take_back::{Keeping, Waiting};
use crate::words::{Answer, In, KillCause, Moment, Note, Out};
use events_schema::control::{Progress, ToExecutor};
use events_schema::device::SlotDevice;
use events_schema::orders::{ExecutorOrder, FarEnd};
use events_schema::report::Report;
use events_schema::slot_type::SlotType;
use events_schema::{
    Digest, ExecutorId, GUEST_INDEX_MIN, JobId, Offset, ServerId, SlotId, Term, host_index, is_guest_index,
};
use std::collections::{BTreeMap, BTreeSet};

/// Time from a stop to the kill: an executor that is told to stop has nothing left to save.
pub const STOP_GRACE_MS: u64 = 2_000;

/// At the end the last reports (executors ended) get this long to reach a controller; its lease finds out without them.
pub const FLUSH_TIMEOUT_MS: u64 = 1_000;

/// Jobs whose size is remembered, which bounds it on a server that has seen many. Of the others it is not known what a guest of theirs needs, as before their first executor is ready.
const SIZES_MAX: usize = 64;

/// Gradients that an executor holds beside its replica, of one logical worker (docs/measurements.md, memory).
const GRADIENTS_HELD: u64 = 3;

/// What an agent is made with.
#[derive(Debug, Clone)]
pub struct Config {
    /// Its server, the first half of its slots' names.
    pub server: ServerId,
    /// Slots it holds, numbered from 0.
    pub slots: u16,
    /// Whether each of them has a guest slot.
    pub guests: bool,
    /// Thousandths of a processor that each slot has.
    pub processors_milli: u32,
    /// Numeric class of this server's executors.
    pub class: Digest,
    /// The devices that its first slots are; the others have none.
    pub devices: Vec<SlotDevice>,
    /// The type of those, or of all slots where there are none.
    pub slot_type: Option<SlotType>,
    /// Where fleets reach it (`http://HOST:PORT`).
    pub address: String,
    /// Where others measure the link to this server; without it links are not measured here.
    pub far_end: Option<FarEnd>,
    /// Time without a word from any controller after which all slots go back.
    pub lease_ms: u64,
}

/// What it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Following orders.
    Serving,
    /// Ending all executors to join as a new process.
    Rejoining,
    /// Ending all executors for good.
    Stopping,
    /// All executors have ended; the last reports go up until this time.
    Flushing { until: u64 },
    /// Nothing is done any more.
    Ended,
}

/// A node agent's decisions.
#[derive(Debug, Clone)]
pub struct Agent {
    pub(crate) config: Config,
    /// The slots in the order of their numbers, then as many guest slots, if it has them.
    pub(crate) slots: Vec<Slot>,
    /// How slots are shared with guests, in the order of the slots; empty where there are none.
    pub(crate) sharing: Vec<Sharing>,
    /// How much their hosts use of them, in the same order; empty where there are no guest slots.
    pub(crate) loads: Vec<Load>,
    /// What executors of each job need here, as the last one said; of a few jobs.
    pub(crate) sizes: BTreeMap<JobId, u64>,
    pub(crate) phase: Phase,
    /// Term and position of the newest orders seen. Older ones are refused.
    pub(crate) newest: (Term, Offset),
    pub(crate) wanted: Vec<ExecutorOrder>,
    /// Executors that ended while orders list them.
    pub(crate) ended: BTreeSet<ExecutorId>,
    /// Whether the controller's state has seen this incarnation; orders from before do not know what is really here.
    pub(crate) joined: bool,
    /// When a controller was last heard to live; `None` once the lease is spent. Orders do not count: one that has lost its log still
    /// has them.
    pub(crate) heard_at: Option<u64>,
    pub(crate) outbox: Outbox,
    pub(crate) uplink: Uplink,
    /// Requests for slots that wait, by name.
    pub(crate) waiting: BTreeMap<u64, Waiting>,
    pub(crate) keeping: Keeping,
    /// When to look for silent executors again.
    pub(crate) next_look: u64,
    /// State of the generator behind pauses and incarnations.
    random_state: u64,
    /// The present happening's time, and what it led to so far.
    pub(crate) now: Moment,
    pub(crate) outs: Vec<Out>,
    /// When it is to be woken, as last asked for.
    woken_at: Option<u64>,
}

impl Agent {
    /// An agent with free slots; those in `taken_back` were their fleets' when it last wrote them down. `seed` is a random number that no other
    /// process began with. The first [`In::Wake`] sets it going.
    #[must_use]
    pub fn new(now: Moment, config: Config, seed: u64, taken_back: &BTreeSet<u16>) -> Self {
        let slot = |index| Slot {
            id: SlotId { server: config.server.clone(), index },
            occupant: None,
            quarantine: None,
            claim: if taken_back.contains(&index) { Claim::TakenBack } else { Claim::Orders },
        };
        let guests = (0..config.slots).filter(|_| config.guests).map(|index| index | GUEST_INDEX_MIN);
        let slots = (0..config.slots).chain(guests).map(slot).collect();
        let is_device = |index: u16| usize::from(index) < config.devices.len();
        let sharing = (0..config.slots).filter(|_| config.guests).map(|index| Sharing::new(is_device(index))).collect();
        let loads = (0..config.slots).filter(|_| config.guests).map(|_| Load::default()).collect();
        let mut random_state = seed;
        let incarnation = draw(&mut random_state);
        let mut agent = Self {
            config,
            slots,
            sharing,
            loads,
            sizes: BTreeMap::new(),
            phase: Phase::Serving,
            newest: (Term(0), Offset(0)),
            wanted: Vec::new(),
            ended: BTreeSet::new(),
            joined: false,
            heard_at: Some(now.ms),
            outbox: Outbox::new(incarnation),
            uplink: Uplink::new(now.ms),
            waiting: BTreeMap::new(),
            keeping: Keeping::default(),
            next_look: now.ms,
            random_state,
            now,
            outs: Vec::new(),
            woken_at: None,
        };
        agent.join();
        agent
    }

    /// Takes what happened; gives what is to be done about it, in order, before it is told anything more. Time never goes back: an earlier one counts as the last one.
    pub fn handle(&mut self, now: Moment, input: In) -> Vec<Out> {
        self.now = Moment { ms: now.ms.max(self.now.ms), wall: now.wall };
        if self.phase == Phase::Ended {
            return Vec::new();
        }
        // Whatever else there is to do, nothing delays a kill.
        self.kill_overdue();
        match input {
            In::Link { link, word } => self.link(link, word),
            In::Executor { slot, executor, word } => self.executor(slot, &executor, word),
            In::TakeBack { request, slots, within_ms } => self.take_back(request, slots, within_ms),
            In::Withdrawn { request } => drop(self.waiting.remove(&request)),
            In::Kept { write, durable } => self.kept(write, durable),
            In::LinkMeasured { number, bytes_per_s } => self.link_measured(number, bytes_per_s),
            In::Shutdown => self.end_all(Phase::Stopping),
            In::Wake => {
                self.woken_at = None;
                self.pass_time();
            }
        }
        self.follow_up();
        std::mem::take(&mut self.outs)
    }

    /// Number of the process in the controller's eyes.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.outbox.incarnation()
    }

    /// What is on the slots, in order.
    pub fn slots(&self) -> impl Iterator<Item = SlotView<'_>> {
        self.slots.iter().map(Slot::view)
    }

    /// Where in `slots` one of this number is; beyond its end, if there is none.
    pub(crate) fn place(&self, slot: u16) -> usize {
        let before = if is_guest_index(slot) { self.config.slots.into() } else { 0 };
        if host_index(slot) < self.config.slots { before + usize::from(host_index(slot)) } else { usize::MAX }
    }

    /// The numbers of all slots, guest slots included.
    pub(crate) fn numbers(&self) -> Vec<u16> {
        self.slots.iter().map(|slot| slot.id.index).collect()
    }

    /// The slot of this number and the guest slot beside it.
    pub(crate) fn pair(&self, slot: u16) -> impl Iterator<Item = &Slot> {
        let host = host_index(slot);
        [host, host | GUEST_INDEX_MIN].into_iter().filter_map(|slot| self.slots.get(self.place(slot)))
    }

    /// Whether nothing is on a slot and its guest slot, and its device is as it should be.
    pub(crate) fn is_free(&self, slot: u16) -> bool {
        self.pair(slot).all(|slot| slot.occupant.is_none() && slot.quarantine.is_none())
    }

    pub(crate) fn occupant(&mut self, slot: u16) -> Option<&mut Occupant> {
        let place = self.place(slot);
        self.slots.get_mut(place)?.occupant.as_mut()
    }

    pub(crate) fn after(&self, ms: u64) -> u64 {
        self.now.ms.saturating_add(ms)
    }

    /// Queues a report and gives its number. When nothing more can be kept, this incarnation is beyond repair: it joins as a new one.
    pub(crate) fn report(&mut self, report: Report) -> u64 {
        self.outbox.push(self.now.wall, report).unwrap_or_else(|| {
            if self.phase == Phase::Serving {
                self.outs.push(Out::Note(Note::OutboxFull));
                self.end_all(Phase::Rejoining);
            }
            u64::MAX
        })
    }

    /// Reports this process, then the slots that are their fleets' already.
    fn join(&mut self) {
        let Config { slots, guests, class, slot_type, .. } = self.config;
        let (address, devices) = (self.config.address.clone(), self.config.devices.clone());
        let wrong = self
            .slots
            .iter()
            .filter_map(|slot| Some((host_index(slot.id.index), slot.quarantine.as_ref()?.reason.clone())));
        let quarantined = wrong.collect();
        self.report(Report::AgentJoined { slots, class, address, devices, quarantined, guests, slot_type });
        for index in 0..self.slots.len() {
            if self.slots[index].claim.is_fleets() {
                self.report_taken_back(index, None);
            }
        }
    }

    /// Becomes a new process in the controller's eyes; nothing runs any more.
    fn rejoin(&mut self) {
        self.outbox = Outbox::new(self.random());
        self.phase = Phase::Serving;
        self.joined = false;
        self.wanted.clear();
        self.ended.clear();
        self.hang_up();
        self.join();
    }

    pub(crate) fn end_all(&mut self, phase: Phase) {
        if matches!(self.phase, Phase::Serving | Phase::Rejoining) {
            self.phase = phase;
        }
        for slot in self.numbers() {
            self.stop(slot);
        }
    }

    /// What follows for the guest of a slot from what happened on either; whose share it is, is told when it changes.
    pub(crate) fn share(&mut self, slot: u16, follow: impl FnOnce(&mut Sharing) -> Option<u16>) {
        let guest = slot | GUEST_INDEX_MIN;
        let share = self.sharing.get_mut(usize::from(host_index(slot))).and_then(follow);
        let is_there = self.occupant(guest).is_some_and(|occupant| !occupant.is_ending());
        if let Some(thousandths) = share.filter(|_| is_there) {
            self.outs.push(Out::Tell { slot: guest, frame: ToExecutor::Share { thousandths } });
        }
    }

    /// How much memory a job's executors need is known from the first one that is ready.
    pub(crate) fn note_size(&mut self, report: &Report) {
        let Report::ExecutorReady { executor, replica_bytes: Some(replica), gradient_bytes, .. } = report else {
            return;
        };
        let gradients = gradient_bytes.unwrap_or(0).saturating_mul(GRADIENTS_HELD);
        if self.sizes.len() >= SIZES_MAX && !self.sizes.contains_key(&executor.job) {
            self.sizes.pop_first();
        }
        self.sizes.insert(executor.job.clone(), replica.saturating_add(gradients));
    }

    /// How much of its slot a host uses, once that is known, from what it says that it is at.
    pub(crate) fn load(&mut self, slot: u16, executor: &ExecutorId, progress: &Progress) -> Option<u8> {
        let is_device = usize::from(slot) < self.config.devices.len();
        let processors_milli = (!is_device).then_some(self.config.processors_milli);
        self.loads.get_mut(usize::from(slot))?.host_said(self.now.ms, executor, progress, processors_milli)
    }

    /// The device of a slot was read while this executor is on it. Of what is used there nobody knows who uses it: while a guest is on the device, it says nothing about hosts.
    pub(crate) fn device_read(&mut self, slot: u16, executor: &ExecutorId, percent: u8) {
        let device = |slot: u16| self.config.devices.get(usize::from(host_index(slot))).map(|device| &device.uuid);
        let of = device(slot);
        let is_shared = self.slots.iter().any(|other| {
            other.id.is_guest() && other.occupant.is_some() && of.is_some() && device(other.id.index) == of
        });
        if let Some(load) = self.loads.get_mut(usize::from(slot)).filter(|_| !is_shared) {
            load.device_read(executor, percent);
        }
    }

    pub(crate) fn stop(&mut self, slot: u16) {
        let by = self.after(STOP_GRACE_MS);
        if self.occupant(slot).is_some_and(|occupant| occupant.stop(by)) {
            self.outs.push(Out::Tell { slot, frame: ToExecutor::Stop });
        }
    }

    pub(crate) fn kill(&mut self, slot: u16, cause: KillCause) {
        let Some(occupant) = self.occupant(slot) else { return };
        if occupant.kill(cause) {
            let executor = occupant.executor.clone();
            self.outs.push(Out::Kill { slot, executor, cause });
        }
    }

    /// Kills executors at their deadlines.
    fn kill_overdue(&mut self) {
        if self.next_kill().is_none_or(|at| at > self.now.ms) {
            return;
        }
        let now = self.now.ms;
        for slot in self.numbers() {
            let Some(occupant) = self.occupant(slot) else { continue };
            let cause = if occupant.dismissed { KillCause::Dismissed } else { KillCause::Deadline };
            if occupant.deadlines.earliest().is_some_and(|at| at <= now) {
                self.kill(slot, cause);
            }
        }
    }

    /// When the next executor has to be killed, if it is still there then.
    fn next_kill(&self) -> Option<u64> {
        self.slots.iter().filter_map(|slot| slot.occupant.as_ref()?.deadlines.earliest()).min()
    }

    /// What is due by the clock, kills apart.
    fn pass_time(&mut self) {
        self.look_for_silence();
        self.end_lease();
        self.give_up_waiting();
        self.pass_link_time();
        if matches!(self.phase, Phase::Flushing { until } if until <= self.now.ms) {
            self.end();
        }
    }

    /// What follows from where things stand, whatever led there.
    fn follow_up(&mut self) {
        if self.slots.iter().all(|slot| slot.occupant.is_none()) {
            match self.phase {
                Phase::Rejoining => self.rejoin(),
                Phase::Stopping => self.phase = Phase::Flushing { until: self.after(FLUSH_TIMEOUT_MS) },
                Phase::Serving | Phase::Flushing { .. } | Phase::Ended => {}
            }
        }
        self.answer();
        self.keep();
        self.pump();
        if matches!(self.phase, Phase::Flushing { .. }) && self.outbox.is_empty() {
            self.end();
        }
        let alarm = self.alarm();
        if let Some(ms) = alarm.filter(|_| alarm != self.woken_at) {
            self.outs.push(Out::WakeAt { ms });
        }
        self.woken_at = alarm;
    }

    fn end(&mut self) {
        if self.phase != Phase::Ended {
            self.phase = Phase::Ended;
            while let Some((request, _)) = self.waiting.pop_first() {
                self.outs.push(Out::Reply { request, answer: Answer::Ending });
            }
            self.outs.push(Out::Ended);
        }
    }

    /// When something has to be done by the clock.
    fn alarm(&self) -> Option<u64> {
        let flush = match self.phase {
            Phase::Ended => return None,
            Phase::Flushing { until } => Some(until),
            Phase::Serving | Phase::Rejoining | Phase::Stopping => None,
        };
        let lease_end = self.heard_at.map(|heard| heard.saturating_add(self.config.lease_ms));
        let is_used = self.slots.iter().any(|slot| slot.occupant.is_some());
        let next_look = is_used.then_some(self.next_look);
        let stuck = self.waiting.values().map(|waiting| waiting.until).min();
        [flush, lease_end, next_look, stuck, self.next_kill(), self.keeping.again_at, self.link_alarm()]
            .into_iter()
            .flatten()
            .min()
    }

    /// A number that nobody can tell beforehand who does not know the seed.
    pub(crate) fn random(&mut self) -> u64 {
        draw(&mut self.random_state)
    }
}

/// SplitMix64: every seed gives another sequence, and that is all that is asked of it here.
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
