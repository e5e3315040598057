//! The fleet's way: slots taken back directly, with or without a controller, and the end of the lease, which is a take-back by nobody. An
//! executor asked this way leaves at its next boundary and is killed at the deadline. Next file: `link.rs`.

use crate::machine::Agent;
use crate::slot::{Asked, Claim};
use crate::words::{Answer, FreedSlot, Note, Out};
use events_schema::control::ToExecutor;
use events_schema::report::Report;
use events_schema::{GUEST_INDEX_MIN, SlotId, host_index};
use std::collections::{BTreeMap, BTreeSet};

/// Time that executors get to leave when the lease ends: nobody waits for the slots, so a boundary of a slow model may pass.
pub const LEASE_END_DEADLINE_MS: u64 = 30_000;

/// Pause after a write that failed: a full disk is rarely free at once, and a fleet that asks again has it tried at once anyway.
pub const KEEP_AGAIN_AFTER_MS: u64 = 5_000;

/// A killed executor that is not reaped within this time after the deadline is stuck in the kernel; the caller is told.
pub const REAP_TIMEOUT_MS: u64 = 15_000;

/// Requests that wait at the same time; a server has fewer fleets than this.
pub const REQUESTS_MAX: usize = 64;

/// A request that waits for slots.
#[derive(Debug, Clone)]
pub(crate) struct Waiting {
    begun: u64,
    /// Given up then.
    pub until: u64,
    open: BTreeSet<u16>,
    freed: BTreeMap<u16, FreedSlot>,
    /// What has to be written down before it is answered.
    version: u64,
}

/// What of [`Claim::is_unknown_elsewhere`] is written down. Every change of the set is a version.
#[derive(Debug, Clone, Default)]
pub(crate) struct Keeping {
    version: u64,
    kept: u64,
    /// The write under way. One at a time: two could overtake each other.
    writing: Option<u64>,
    /// When to write again, after a write that failed.
    pub again_at: Option<u64>,
}

impl Agent {
    /// Takes slots out of the controller's hands and answers when they are free.
    pub(crate) fn take_back(&mut self, request: u64, slots: BTreeSet<u16>, within_ms: u64) {
        if self.waiting.len() >= REQUESTS_MAX {
            self.outs.push(Out::Reply { request, answer: Answer::Busy });
            return;
        }
        let until = self.after(within_ms).saturating_add(REAP_TIMEOUT_MS);
        let open: BTreeSet<u16> = slots.into_iter().filter(|slot| *slot < self.config.slots).collect();
        let mut waiting = Waiting { begun: self.now.ms, until, open: open.clone(), freed: BTreeMap::new(), version: 0 };
        for slot in open {
            let guest_stays = self.ask_guest(slot, within_ms);
            if !self.claim_for_fleet(slot, within_ms) && !guest_stays {
                waiting.free(slot, &self.slots[usize::from(slot)].id, false, self.now.ms);
            }
        }
        waiting.version = self.keeping.version;
        self.waiting.insert(request, waiting);
        self.keeping.again_at = None;
    }

    /// Gives back all slots in use once no controller has renewed the lease.
    pub(crate) fn end_lease(&mut self) {
        if self.heard_at.is_none_or(|heard| heard.saturating_add(self.config.lease_ms) > self.now.ms) {
            return;
        }
        self.heard_at = None;
        let used: BTreeSet<u16> =
            self.slots.iter().filter(|slot| slot.occupant.is_some()).map(|slot| host_index(slot.id.index)).collect();
        self.outs.push(Out::Note(Note::LeaseOver { slots: used.len() }));
        for slot in used {
            self.ask_guest(slot, LEASE_END_DEADLINE_MS);
            self.claim_for_fleet(slot, LEASE_END_DEADLINE_MS);
        }
    }

    /// Has whoever is on the guest slot beside a slot leave it in the same time; returns whether somebody has to, or the device has to be as it was. Whose the
    /// slot is, is said of its host alone.
    fn ask_guest(&mut self, slot: u16, within_ms: u64) -> bool {
        let (guest, deadline) = (slot | GUEST_INDEX_MIN, self.after(within_ms));
        let holds = self.slots.get(self.place(guest)).is_some_and(|place| place.quarantine.is_some());
        let Some(occupant) = self.occupant(guest) else { return holds };
        let earlier = occupant.deadlines.take_back.is_none_or(|known| deadline < known);
        let told = earlier && !occupant.is_ending();
        if earlier && !occupant.is_killed() {
            occupant.deadlines.take_back = Some(deadline);
        }
        if told {
            self.outs.push(Out::Tell { slot: guest, frame: ToExecutor::Leave { within_ms } });
        }
        true
    }

    /// Makes a slot its fleet's; returns whether somebody has to leave it first, or its device has to be as it was.
    fn claim_for_fleet(&mut self, slot: u16, within_ms: u64) -> bool {
        let index = usize::from(slot);
        let deadline = self.after(within_ms);
        let asked = Asked { at: self.now.ms, by: deadline };
        let claim = self.slots[index].claim;
        let Some(occupant) = self.slots[index].occupant.as_mut() else {
            // A controller that may have acted on the last report may have had the slot offered anew since, and used it.
            let said_enough = match claim {
                Claim::Orders | Claim::Taken => false,
                Claim::TakenBack => true,
                Claim::Reported { number } => !self.outbox.may_be_known(number),
            };
            if !said_enough {
                self.report_taken_back(index, Some(asked));
            }
            return self.slots[index].quarantine.is_some();
        };
        let earlier = occupant.deadlines.take_back.is_none_or(|known| deadline < known);
        let told = earlier && !occupant.is_ending();
        occupant.asked = Some(asked.again(occupant.asked));
        if earlier && !occupant.is_killed() {
            occupant.deadlines.take_back = Some(deadline);
        }
        self.set_claim(index, Claim::TakenBack);
        if told {
            self.outs.push(Out::Tell { slot, frame: ToExecutor::Leave { within_ms } });
        }
        true
    }

    pub(crate) fn report_taken_back(&mut self, index: usize, asked: Option<Asked>) {
        let slot = self.slots[index].id.clone();
        let asked_ms = asked.map(|asked| self.now.ms.saturating_sub(asked.at));
        let within_ms = asked.map(|asked| asked.by.saturating_sub(asked.at));
        let number = self.report(Report::SlotTakenBack { slot, asked_ms, within_ms });
        self.set_claim(index, Claim::Reported { number });
    }

    pub(crate) fn set_claim(&mut self, index: usize, claim: Claim) {
        let before = std::mem::replace(&mut self.slots[index].claim, claim);
        if before.is_unknown_elsewhere() != claim.is_unknown_elsewhere() {
            self.keeping.version += 1;
        }
    }

    /// A slot's executor has ended, or its guest: whoever waits for it is a slot nearer to the answer once both have.
    pub(crate) fn freed(&mut self, slot: u16, killed: bool) {
        let slot = host_index(slot);
        if !self.is_free(slot) {
            return;
        }
        let id = &self.slots[usize::from(slot)].id;
        for waiting in self.waiting.values_mut().filter(|waiting| waiting.open.contains(&slot)) {
            waiting.free(slot, id, killed, self.now.ms);
        }
    }

    /// A fleet is told "free" only when this would survive a crash.
    pub(crate) fn answer(&mut self) {
        let kept = self.keeping.kept;
        for (request, done) in
            self.waiting.extract_if(.., |_, waiting| waiting.open.is_empty() && waiting.version <= kept)
        {
            let answer = Answer::Freed(done.freed.into_values().collect());
            self.outs.push(Out::Reply { request, answer });
        }
    }

    /// Answers whose slots cannot be had: the caller waits no longer than it was told.
    pub(crate) fn give_up_waiting(&mut self) {
        let now = self.now.ms;
        for (request, waiting) in self.waiting.extract_if(.., |_, waiting| waiting.until <= now) {
            let answer = if waiting.open.is_empty() { Answer::NotKept } else { Answer::Stuck };
            self.outs.push(Out::Reply { request, answer });
        }
    }

    /// Has written down what changed since the last write, one write after the other.
    pub(crate) fn keep(&mut self) {
        let keeping = &mut self.keeping;
        if keeping.again_at.is_some_and(|at| at <= self.now.ms) {
            keeping.again_at = None;
        }
        if keeping.kept == keeping.version || keeping.writing.is_some() || keeping.again_at.is_some() {
            return;
        }
        keeping.writing = Some(keeping.version);
        let unknown = self.slots.iter().filter(|slot| slot.claim.is_unknown_elsewhere());
        let slots = unknown.map(|slot| slot.id.index).collect();
        self.outs.push(Out::Keep { write: keeping.version, slots });
    }

    pub(crate) fn kept(&mut self, write: u64, durable: bool) {
        if self.keeping.writing != Some(write) {
            return;
        }
        self.keeping.writing = None;
        if durable {
            self.keeping.kept = write;
            return;
        }
        let kept = self.keeping.kept;
        let tried = |waiting: &Waiting| kept < waiting.version && waiting.version <= write;
        for (request, _) in self.waiting.extract_if(.., |_, waiting| tried(waiting)) {
            self.outs.push(Out::Reply { request, answer: Answer::NotKept });
        }
        // Those who asked meanwhile are not made to wait for the pause.
        let is_awaited = self.waiting.values().any(|waiting| kept < waiting.version);
        self.keeping.again_at = (!is_awaited).then(|| self.after(KEEP_AGAIN_AFTER_MS));
    }
}

impl Waiting {
    fn free(&mut self, slot: u16, id: &SlotId, killed: bool, now: u64) {
        self.open.remove(&slot);
        let elapsed_ms = now.saturating_sub(self.begun);
        self.freed.insert(slot, FreedSlot { slot: id.clone(), elapsed_ms, killed });
    }

    /// Whether it is about this slot.
    pub fn covers(&self, slot: u16) -> bool {
        self.open.contains(&slot) || self.freed.contains_key(&slot)
    }
}
