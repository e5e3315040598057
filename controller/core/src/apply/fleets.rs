//! Facts about fleets, slots and servers.

use crate::state::{Fleet, Server, Slot, SlotState, State};
use events_schema::command::{OfferMode, Recall};
use events_schema::fact::ReclaimCause;
use events_schema::{Digest, FleetId, ServerId, SlotId, TimeMs};

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
        match state.slots.get_mut(slot) {
            Some(kept) if matches!(kept.state, SlotState::Reclaimed { .. }) => kept.fleet = None,
            _ => {
                state.slots.remove(slot);
            }
        }
    }
    for slot in slots {
        match state.slots.get_mut(slot) {
            Some(known) => known.fleet = Some(id.clone()),
            None => {
                state.slots.insert(slot.clone(), Slot::unoffered(id.clone(), at));
            }
        }
    }
    let (sequence, needed, recalled) =
        old.map_or((None, 0, None), |fleet| (fleet.sequence, fleet.needed, fleet.recalled));
    let lent = slots.iter().filter(|slot| state.slots.get(slot).is_some_and(Slot::is_lent)).count();
    let fleet = Fleet {
        slots: slots.to_vec(),
        offers,
        reclaim_deadline_ms,
        sequence,
        needed,
        redeclared: true,
        lent,
        recalled,
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
        if let Some(slot) = state.slots.get_mut(slot).filter(|slot| slot.state == SlotState::Unoffered) {
            slot.state = SlotState::Offered;
            slot.since = at;
            if let Some(fleet) = slot.fleet.as_ref().and_then(|fleet| state.fleets.get_mut(fleet)) {
                fleet.lent += 1;
            }
        }
    }
}

pub(super) fn borrowed(state: &mut State, slot: &SlotId) {
    if let Some(slot) = state.slots.get_mut(slot).filter(|slot| slot.state == SlotState::Offered) {
        slot.state = SlotState::Borrowed;
    }
}

pub(super) fn reclaimed(state: &mut State, at: TimeMs, slot: &SlotId, deadline: TimeMs, cause: ReclaimCause) {
    let Some(slot) = state.slots.get_mut(slot) else { return };
    let was_lent = slot.is_lent();
    slot.state = SlotState::Reclaimed { deadline, cause };
    slot.reclaimed_at = Some(slot.reclaimed_at.map_or(at, |known| known.min(at)));
    if let Some(fleet) = slot.fleet.as_ref().filter(|_| was_lent).and_then(|fleet| state.fleets.get_mut(fleet)) {
        fleet.lent = fleet.lent.saturating_sub(1);
    }
}

pub(super) fn returned(state: &mut State, at: TimeMs, id: &SlotId) {
    let Some(slot) = state.slots.get_mut(id) else { return };
    if slot.fleet.is_none() {
        state.slots.remove(id);
        return;
    }
    slot.state = SlotState::Unoffered;
    slot.since = at;
    slot.job = None;
    slot.reclaimed_at = None;
}

pub(super) fn agent_joined(
    state: &mut State,
    id: &ServerId,
    incarnation: u64,
    slots: u16,
    class: Digest,
    address: &str,
) {
    let known = state.servers.get(id).filter(|server| server.incarnation == incarnation);
    let reports_through = known.map_or(0, |server| server.reports_through);
    let address = address.to_owned();
    let server = Server { incarnation, reports_through, slots, class, address, connected: true, gone_at: None };
    state.servers.insert(id.clone(), server);
}

pub(super) fn agent_gone(state: &mut State, at: TimeMs, id: &ServerId) {
    if let Some(server) = state.servers.get_mut(id) {
        server.connected = false;
        server.gone_at = Some(at);
    }
}

pub(super) fn reports_taken(state: &mut State, id: &ServerId, incarnation: u64, through: u64) {
    if let Some(server) = state.servers.get_mut(id).filter(|server| server.incarnation == incarnation) {
        server.reports_through = server.reports_through.max(through);
    }
}
