//! The fleet's side of the host: slots taken back directly, with or without a controller, and the end of the lease, which is
//! a take-back by nobody. An executor asked this way leaves at its next boundary and is killed at the deadline.
//!
//! Next file: `direct.rs`, the listener that brings the requests.

use crate::host::{Host, HostEvent};
use crate::slot::{Claim, Ending, Slot};
use events_schema::SlotId;
use events_schema::control::ToExecutor;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Time that executors get to leave when the lease ends: nobody waits for the slots, so a boundary of a slow model may pass.
const LEASE_END_DEADLINE: Duration = Duration::from_secs(30);

/// Pause after a write that failed: a full disk is rarely free at once, and a fleet that asks again has it tried at once anyway.
const KEEP_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Slots that a fleet wants back.
#[derive(Debug)]
pub(crate) struct TakeBack {
    /// Numbers of existing slots.
    pub slots: BTreeSet<u16>,
    /// Time to the kill.
    pub within: Duration,
    /// Answered when all of them are free.
    pub reply: Reply,
}

/// The way back to who asked.
pub(crate) type Reply = oneshot::Sender<Result<Vec<FreedSlot>, NotKept>>;

/// The slots go back, but a crash of the host would forget it. Ask again: it is written down anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotKept;

/// A slot that is its fleet's again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct FreedSlot {
    /// Which.
    pub slot: SlotId,
    /// Always true: the answer waits until it is.
    pub free: bool,
    /// Time from the request until its process was reaped and its group empty.
    pub elapsed_ms: u64,
    /// Whether its executor did not leave by itself.
    pub killed: bool,
}

/// A request that waits for slots.
#[derive(Debug)]
pub(crate) struct Waiting {
    begun: Instant,
    open: BTreeSet<u16>,
    freed: BTreeMap<u16, FreedSlot>,
    reply: Reply,
}

/// One slot as callers see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct SlotReport {
    /// Which.
    pub slot: SlotId,
    /// What it is used for.
    pub state: SlotState,
    /// The executor on it.
    pub executor: Option<String>,
    /// Its process.
    pub pid: Option<i32>,
}

/// What a slot is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SlotState {
    /// Nothing runs on it; orders may use it.
    Free,
    /// An executor runs on it.
    Running,
    /// An executor on it has been told to end.
    Leaving,
    /// Its fleet took it back; orders do not use it.
    TakenBack,
}

impl SlotReport {
    pub fn of(slot: &Slot) -> Self {
        let state = match &slot.occupant {
            None if slot.claim.is_fleets() => SlotState::TakenBack,
            None => SlotState::Free,
            Some(occupant) if slot.claim.is_fleets() || occupant.ending != Ending::None => SlotState::Leaving,
            Some(_) => SlotState::Running,
        };
        let executor = slot.occupant.as_ref().map(|occupant| occupant.executor.to_string());
        Self {
            slot: slot.id.clone(),
            state,
            executor,
            pid: slot.occupant.as_ref().map(|occupant| occupant.process.pid),
        }
    }
}

impl Host {
    /// Takes slots out of the controller's hands and answers when they are free.
    pub(crate) async fn take_back(&mut self, request: TakeBack) {
        let TakeBack { slots, within, reply } = request;
        let mut waiting = Waiting { begun: Instant::now(), open: slots.clone(), freed: BTreeMap::new(), reply };
        for slot in &slots {
            if !self.claim_for_fleet(*slot, within) {
                waiting.free(*slot, self.slots[usize::from(*slot)].id.clone(), false);
            }
        }
        // The executors are leaving meanwhile; a fleet is told "free" only when this would survive a crash.
        if !self.keep_taken_back().await {
            // A caller that went away has its slots all the same.
            let _ = waiting.reply.send(Err(NotKept));
            return;
        }
        // At most as many callers as the listener lets in are waiting; those that went away do not count there.
        self.waiting.retain(|waiting| !waiting.reply.is_closed());
        self.waiting.push(waiting);
        self.answer();
    }

    /// Gives back all slots in use, because no controller has renewed the lease.
    pub(crate) async fn end_lease(&mut self) {
        let used = (0..self.config.slots).filter(|slot| self.slots[usize::from(*slot)].occupant.is_some());
        let used: Vec<u16> = used.collect();
        tracing::warn!(
            slots = used.len(),
            lease_s = self.config.lease.as_secs(),
            "no controller was heard for a lease: giving slots back"
        );
        for slot in &used {
            self.claim_for_fleet(*slot, LEASE_END_DEADLINE);
        }
        if !used.is_empty() {
            // Nobody waits for an answer.
            let _ = self.keep_taken_back().await;
        }
    }

    /// Makes a slot its fleet's; returns whether somebody has to leave it first.
    fn claim_for_fleet(&mut self, slot: u16, within: Duration) -> bool {
        let index = usize::from(slot);
        let already = self.slots[index].claim.is_fleets();
        let Some(occupant) = self.slots[index].occupant.as_mut() else {
            if !already || self.slots[index].claim == Claim::Taken {
                self.report_taken_back(index);
            }
            return false;
        };
        let deadline = Instant::now() + within;
        let earlier = occupant.deadlines.take_back.is_none_or(|known| deadline < known);
        let told = occupant.ending == Ending::None && earlier;
        if earlier && !occupant.is_killed() {
            occupant.deadlines.take_back = Some(deadline);
        }
        self.slots[index].claim = Claim::TakenBack;
        if told {
            let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
            self.tell(slot, ToExecutor::Leave { within_ms });
        }
        true
    }

    /// A slot's executor has ended: whoever waits for it is a slot nearer to the answer.
    pub(crate) fn freed(&mut self, slot: u16, killed: bool) {
        let id = &self.slots[usize::from(slot)].id;
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.open.contains(&slot)) {
            waiting.free(slot, id.clone(), killed);
        }
        self.answer();
    }

    fn answer(&mut self) {
        for done in self.waiting.extract_if(.., |waiting| waiting.open.is_empty()) {
            // A caller that went away has its slots all the same.
            let _ = done.reply.send(Ok(done.freed.into_values().collect()));
        }
    }

    /// Writes down which slots are their fleets' as long as the controller does not know it. Gives whether that would survive a crash; if
    /// not, it is tried again later. Deadlines are kept meanwhile, however slow the disk.
    pub(crate) async fn keep_taken_back(&mut self) -> bool {
        let unknown = |slot: &&Slot| matches!(slot.claim, Claim::TakenBack | Claim::Reported { .. });
        let slots = self.slots.iter().filter(unknown).map(|slot| slot.id.index).collect();
        let write = self.taken_back.write(slots);
        let written = self.kill_in_time_while(write).await;
        if let Err(error) = &written {
            tracing::error!(%error, "cannot write down which slots were taken back; until it can be, a restart of this agent would forget it");
        }
        self.keep_again_at = written.is_err().then(|| Instant::now() + KEEP_AGAIN_AFTER);
        written.is_ok()
    }

    /// Waits for something that owns nothing of the host, and kills whose deadline passes meanwhile.
    async fn kill_in_time_while<T>(&mut self, something: impl Future<Output = T>) -> T {
        let mut something = pin!(something);
        loop {
            let next_kill = self.next_kill();
            tokio::select! {
                biased;
                done = &mut something => return done,
                () = tokio::time::sleep_until(next_kill.unwrap_or_else(Instant::now)), if next_kill.is_some() => self.kill_overdue(),
            }
        }
    }
}

impl Waiting {
    fn free(&mut self, slot: u16, id: SlotId, killed: bool) {
        self.open.remove(&slot);
        let elapsed_ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.freed.insert(slot, FreedSlot { slot: id, free: true, elapsed_ms, killed });
    }
}

impl From<TakeBack> for HostEvent {
    fn from(request: TakeBack) -> Self {
        HostEvent::TakeBack(request)
    }
}
