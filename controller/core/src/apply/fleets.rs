//! Facts about fleets, slots and servers.

use crate::state::{Fleet, Server, Slot, SlotState, State};
use events_schema::command::{OfferMode, Recall};
use events_schema::fact::ReclaimCause;
use events_schema::{FleetId, ServerId, SlotId, TimeMs};

pub(super) fn declared(
    state: &mut State,
    at: TimeMs,
    id: &FleetId,
    slots: &[SlotId],
    offers: OfferMode,
    reclaim_deadline_ms: u64,
) {
    let old = state.fleets.get(id).cloned();
    let dropped = old.iter().flat_map(|fleet| &fleet.slots).filter(|slot| slots.binary_search(slot).is_err());
    for slot in dropped {
        let returns = |kept: &Slot| matches!(kept.state, SlotState::Reclaimed { .. });
        if state.slots.get(slot).is_some_and(returns) {
            state.slots.change(slot, |kept| kept.fleet = None);
        } else {
            state.slots.remove(slot);
        }
    }
    for slot in slots {
        if state.slots.change(slot, |known| known.fleet = Some(id.clone())).is_none() {
            state.slots.insert(slot.clone(), Slot::unoffered(id.clone(), at));
        }
    }
    let (sequence, needed, recalled) =
        old.map_or((None, 0, None), |fleet| (fleet.sequence, fleet.needed, fleet.recalled));
    let count = |which: fn(&Slot) -> bool| slots.iter().filter(|id| state.slots.get(id).is_some_and(which)).count();
    let (lent, withheld) = (count(Slot::is_lent), count(Slot::is_withheld));
    let fleet = Fleet {
        slots: slots.to_vec(),
        offers,
        reclaim_deadline_ms,
        sequence,
        needed,
        redeclared: true,
        lent,
        recalled,
        withheld,
    };
    state.fleets.insert(id.clone(), fleet);
}

pub(super) fn demand(state: &mut State, id: &FleetId, sequence: u64, needed: u32) {
    if let Some(fleet) = state.fleets.get_mut(id) {
        fleet.sequence = Some(sequence);
        fleet.needed = needed;
        fleet.redeclared = false;
    }
}

/// A recall begins, holds more than before, or (`None`) ends.
pub(super) fn recalled(state: &mut State, id: &FleetId, slots: Option<Recall>) {
    if let Some(fleet) = state.fleets.get_mut(id) {
        fleet.recalled = slots;
    }
}

pub(super) fn offered(state: &mut State, at: TimeMs, slots: &[SlotId]) {
    for slot in slots {
        change(state, slot, |slot| {
            if slot.state == SlotState::Unoffered {
                slot.state = SlotState::Offered;
                slot.since = at;
            }
        });
    }
}

pub(super) fn borrowed(state: &mut State, slot: &SlotId) {
    if state.slots.get(slot).is_some_and(|slot| slot.state == SlotState::Offered) {
        state.slots.change(slot, |slot| slot.state = SlotState::Borrowed);
    }
}

pub(super) fn reclaimed(state: &mut State, at: TimeMs, slot: &SlotId, deadline: TimeMs, cause: ReclaimCause) {
    change(state, slot, |slot| {
        slot.state = SlotState::Reclaimed { deadline, cause };
        slot.reclaimed_at = Some(slot.reclaimed_at.map_or(at, |known| known.min(at)));
    });
}

pub(super) fn returned(state: &mut State, at: TimeMs, id: &SlotId) {
    if state.slots.get(id).is_some_and(|slot| slot.fleet.is_none()) {
        state.slots.remove(id);
        return;
    }
    change(state, id, |slot| {
        slot.state = SlotState::Unoffered;
        slot.since = at;
        slot.job = None;
        slot.reclaimed_at = None;
        // What its fleet lends anew it has had in its hands.
        slot.diverged = None;
    });
}

/// Changes a slot, and with it what its fleet counts of its slots.
fn change(state: &mut State, id: &SlotId, to: impl FnOnce(&mut Slot)) {
    let counted = |slot: &Slot| (slot.is_lent(), slot.is_withheld());
    let changed = state.slots.change(id, |slot| {
        let before = counted(slot);
        to(slot);
        (before, counted(slot), slot.fleet.clone())
    });
    let Some((before, after, Some(fleet))) = changed.filter(|(before, after, _)| before != after) else { return };
    if let Some(fleet) = state.fleets.get_mut(&fleet) {
        fleet.lent = recount(fleet.lent, before.0, after.0);
        fleet.withheld = recount(fleet.withheld, before.1, after.1);
    }
}

fn recount(count: usize, was: bool, is: bool) -> usize {
    (count + usize::from(is)).saturating_sub(usize::from(was))
}

/// The reports of a process that is known already count on.
pub(super) fn agent_joined(state: &mut State, id: &ServerId, mut joined: Server) {
    match state.servers.get(id).filter(|server| server.incarnation == joined.incarnation) {
        Some(known) => joined.reports_through = known.reports_through,
        None => {
            // A new process says itself what is wrong with the devices of its slots, and whoever started it answers for what they compute.
            let unfit = state.slots_of(id).filter(|(_, slot)| slot.unfit().is_some());
            let unfit: Vec<SlotId> = unfit.map(|(slot, _)| slot.clone()).collect();
            for slot in &unfit {
                change(state, slot, |slot| (slot.quarantined, slot.diverged) = (None, None));
            }
        }
    }
    state.slots.note_server(id, Some(&joined));
    state.servers.insert(id.clone(), joined);
}

pub(super) fn quarantined(state: &mut State, slot: &SlotId, reason: &str) {
    change(state, slot, |slot| slot.quarantined = Some(reason.to_owned()));
}

/// What was computed on a slot was wrong, whatever its agent says of its device.
pub(super) fn diverged(state: &mut State, slot: &SlotId, reason: &str) {
    change(state, slot, |slot| slot.diverged = Some(reason.to_owned()));
}

pub(super) fn recovered(state: &mut State, slot: &SlotId) {
    change(state, slot, |slot| slot.quarantined = None);
}

pub(super) fn agent_gone(state: &mut State, at: TimeMs, id: &ServerId) {
    if let Some(server) = state.servers.get_mut(id) {
        server.connected = false;
        server.gone_at = Some(at);
        state.slots.note_server(id, Some(&*server));
    }
}

pub(super) fn reports_taken(state: &mut State, id: &ServerId, incarnation: u64, through: u64) {
    if let Some(server) = state.servers.get_mut(id).filter(|server| server.incarnation == incarnation) {
        server.reports_through = server.reports_through.max(through);
    }
}
