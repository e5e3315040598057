//! Guest slots follow their hosts: each is lent, asked back and returned with the slot whose device it shares, and is as fit as that. What stands in it
//! of its own is whose plan has it and who is on it.
//!
//! No fact says what follows from one about its host. Where no server has guest slots nothing here does anything.

use crate::state::{Slot, SlotState, State};
use events_schema::{ServerId, SlotId};

/// Brings the guest slots beside these slots in step with them.
pub(super) fn follow<'a>(state: &mut State, hosts: impl Iterator<Item = &'a SlotId>) {
    // Slots of a server stand side by side.
    let mut last: Option<(&ServerId, u16)> = None;
    for host in hosts {
        let (_, held) = match last.filter(|(server, _)| **server == host.server) {
            Some(known) => known,
            None => *last.insert((&host.server, held_by(state, &host.server))),
        };
        if held > 0 {
            follow_one(state, host, held);
        }
    }
}

/// The same of all slots of a server, which may have guest slots since now, or none any more.
pub(super) fn follow_all(state: &mut State, server: &ServerId) {
    let held = held_by(state, server);
    let hosts: Vec<SlotId> = state.slots_of(server).map(|(id, _)| id.clone()).collect();
    let known: Vec<SlotId> = state.guests_of(server).map(|(id, _)| id.host()).collect();
    hosts.iter().chain(&known).for_each(|host| follow_one(state, host, held));
}

/// How many slots of a server have guest slots beside them.
fn held_by(state: &State, server: &ServerId) -> u16 {
    state.servers.get(server).filter(|server| server.guests).map_or(0, |server| server.slots)
}

fn follow_one(state: &mut State, host: &SlotId, held: u16) {
    let id = host.guest();
    let Some(slot) = state.slots.get(host).filter(|_| host.index < held) else {
        state.guests.remove(&id);
        return;
    };
    let known = state.guests.get(&id);
    let next = Slot {
        // It never stands idle in its own name: whether its host does is what counts as used and as lent.
        state: if slot.is_lent() { SlotState::Borrowed } else { slot.state },
        job: known.and_then(|known| known.job.clone()),
        executor: known.and_then(|known| known.executor.clone()),
        ahead: None,
        ..slot.clone()
    };
    if known != Some(&next) {
        state.guests.insert(id, next);
    }
}
