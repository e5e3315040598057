//! From what is wanted to what has to be done. Orders are a server's whole wanted state; the same orders twice do nothing. Next file:
//! `executors.rs`.

use crate::executors::LOOK_INTERVAL_MS;
use crate::machine::{Agent, Phase};
use crate::slot::{Claim, Occupant};
use crate::words::{Note, Out};
use events_schema::control::ToExecutor;
use events_schema::orders::{ExecutorOrder, Orders};
use events_schema::report::{ExitCause, Report};
use events_schema::{ExecutorId, Offset, Term};

impl Agent {
    /// A controller lives and can decide; one of an older term renews nothing.
    pub(crate) fn heard_controller(&mut self, term: Term) {
        if self.is_newest(term) {
            self.heard_at = Some(self.now.ms);
        }
    }

    /// Whether no controller of a higher term was heard.
    fn is_newest(&mut self, term: Term) -> bool {
        if term > self.newest.0 {
            self.newest = (term, Offset(0));
        }
        term == self.newest.0
    }

    pub(crate) fn take_orders(&mut self, orders: Orders) {
        if !self.is_newest(orders.term) {
            self.outs.push(Out::Note(Note::Replaced { term: orders.term, newest: self.newest.0 }));
            return;
        }
        if orders.position < self.newest.1 || self.phase != Phase::Serving {
            return;
        }
        self.newest.1 = orders.position;
        if !self.joined {
            return;
        }
        for slot in self.slots.iter_mut().filter(|slot| slot.claim == Claim::Taken) {
            // A fleet that still waits for its answer is not told "free" of a slot that is in use again.
            if !self.waiting.values().any(|waiting| waiting.covers(slot.id.index)) {
                slot.claim = Claim::Orders;
            }
        }
        self.ended.retain(|ended| orders.executors.iter().any(|order| order.executor == *ended));
        self.wanted = orders.executors;
        self.follow_orders();
        self.start_missing();
    }

    /// Reports up to `through` have had their effect.
    pub(crate) fn reports_taken(&mut self, through: u64) {
        self.outbox.taken(through);
        self.joined |= through >= 1;
        for index in 0..self.slots.len() {
            if matches!(self.slots[index].claim, Claim::Reported { number } if number <= through) {
                self.set_claim(index, Claim::Taken);
            }
        }
    }

    /// Tells executors what is new to them, and ends those that are not wanted any more.
    fn follow_orders(&mut self) {
        let now = self.now.ms;
        for slot in self.numbers() {
            let index = self.place(slot);
            let Some(occupant) = self.slots[index].occupant.as_mut().filter(|occupant| !occupant.is_ending()) else {
                continue;
            };
            let Some(order) = self.wanted.iter().find(|order| order.executor == occupant.executor) else {
                self.stop(slot);
                continue;
            };
            let within_ms = order.leave_in_ms.unwrap_or_default();
            let is_new = order.leave_by.is_some() && order.leave_by != occupant.leave_by;
            if is_new {
                occupant.dismissed = within_ms == 0;
            }
            occupant.leave(order.leave_by, now.saturating_add(within_ms));
            if order.job != occupant.order {
                occupant.order = order.job.clone();
                self.outs.push(Out::Tell { slot, frame: ToExecutor::Order(Box::new(order.job.clone())) });
            }
            // A program has to know how long it has to save itself, and who trains whether the boundary comes in time.
            if is_new && order.job.spec.gang().is_some() {
                self.outs.push(Out::Tell { slot, frame: ToExecutor::Leave { within_ms } });
            } else if is_new && within_ms > 0 {
                self.outs.push(Out::Tell { slot, frame: ToExecutor::Deadline { within_ms } });
            }
        }
    }

    /// Starts wanted executors whose slots are free, and as they should be. Those that ended are never started again: their numbers are used once, so orders that
    /// still list one only come from a state that has not heard of its end.
    pub(crate) fn start_missing(&mut self) {
        if self.phase != Phase::Serving {
            return;
        }
        let wanted = std::mem::take(&mut self.wanted);
        for order in &wanted {
            if !self.ended.contains(&order.executor) && !self.runs(&order.executor) {
                self.start(order);
            }
            if self.phase != Phase::Serving {
                break;
            }
        }
        self.wanted = wanted;
    }

    fn start(&mut self, order: &ExecutorOrder) {
        let ExecutorOrder { executor, slot, job, leave_by, .. } = order;
        let index = self.place(slot.index);
        if self.slots.get(index).is_none_or(|place| place.id != *slot) {
            return self.not_there(order, ExitCause::NotStarted("this server has no such slot".to_owned()));
        }
        // However far its deadline is: its fleet may have been told already that the slot is free. A controller also lists one that it has
        // given up until it hears of its end.
        if leave_by.is_some() {
            return self.not_there(order, ExitCause::Killed);
        }
        // The controller does not know, or not any more: a slot that a fleet declares anew is made anew there.
        // What holds of a slot's claim and device holds of its guest slot.
        let is_ours = self.pair(slot.index).all(|place| place.claim == Claim::Orders);
        let left = self.pair(slot.index).find_map(|place| Some(place.quarantine.as_ref()?.reason.clone()));
        if let Some(reason) = left.filter(|_| is_ours) {
            let slot = slot.host();
            self.report(Report::SlotQuarantined { slot, reason: reason.clone() });
            return self.not_there(order, ExitCause::DeviceLost(reason));
        }
        // Whoever is on the slot has to end first; then this is looked at again. Two for one slot: the first wins.
        let place = &mut self.slots[index];
        if is_ours && place.occupant.is_none() {
            place.occupant = Some(Occupant::new(executor.clone(), job.clone()));
            if self.next_look <= self.now.ms {
                // Nobody was there to look at.
                self.next_look = self.now.ms.saturating_add(LOOK_INTERVAL_MS);
            }
            let (executor, order) = (executor.clone(), Box::new(job.clone()));
            let begun = executor.clone();
            let needs_bytes = self.sizes.get(&executor.job).copied().unwrap_or(0);
            self.outs.push(Out::Start { slot: slot.index, executor, order, needs_bytes });
            if let Some(load) = self.loads.get_mut(usize::from(slot.index)) {
                load.host_begins(&begun);
            }
            self.share(slot.index, |sharing| match slot.is_guest() {
                true => Some(sharing.guest_begins()),
                false => sharing.host_begins(&begun),
            });
        }
    }

    /// Reports the end of an executor that never ran here.
    fn not_there(&mut self, order: &ExecutorOrder, exit: ExitCause) {
        self.ended.insert(order.executor.clone());
        self.report(Report::ExecutorGone { executor: order.executor.clone(), slot: order.slot.clone(), exit });
    }

    fn runs(&self, executor: &ExecutorId) -> bool {
        self.slots.iter().filter_map(|slot| slot.occupant.as_ref()).any(|occupant| occupant.executor == *executor)
    }
}
