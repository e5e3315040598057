//! Facts about fleets, slots and servers.

use super::guests;
use crate::state::{Ahead, Fleet, Past, Server, Slot, SlotState, State};
use crate::table::Table;
use events_schema::command::{Foreseen, OfferMode, Recall};
use events_schema::fact::{Fact, ReclaimCause};
use events_schema::fold::FoldVersion;
use events_schema::{FleetId, ServerId, SlotId, TimeMs};
use std::sync::Arc;

pub(super) fn declared(
    state: &mut State,
    at: TimeMs,
    id: &FleetId,
    slots: &[SlotId],
    offers: OfferMode,
    reclaim_deadline_ms: u64,
) {
    let old = state.fleets.get(id).cloned();
    let before = old.iter().flat_map(|fleet| fleet.slots.iter());
    let dropped = before.clone().filter(|slot| slots.binary_search(slot).is_err());
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
    guests::follow(state, before.chain(slots));
    let (sequence, needed, recalled) =
        old.as_ref().map_or((None, 0, None), |fleet| (fleet.sequence, fleet.needed, fleet.recalled));
    let count = |which: fn(&Slot) -> bool| slots.iter().filter(|id| state.slots.get(id).is_some_and(which)).count();
    let (lent, withheld) = (count(Slot::is_lent), count(Slot::is_withheld));
    let fleet = Fleet {
        slots: Arc::new(slots.to_vec()),
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

pub(super) fn demand(state: &mut State, at: TimeMs, id: &FleetId, sequence: u64, needed: u32, forecast: &[Foreseen]) {
    let Some(fleet) = state.fleets.get_mut(id) else { return };
    let (falls, rises) = (fleet.falls_to(needed), needed > fleet.needed);
    fleet.sequence = Some(sequence);
    fleet.needed = needed;
    fleet.redeclared = false;
    note_need(state, at, id, needed, forecast);
    if falls || rises {
        keep_ahead(state, id, falls);
    }
}

/// Of the slots that a fleet has, as many are there because of a forecast alone as it does not need: of those that were before, or (`anew`) when it has said of
/// all that it does not need that it is drained.
fn keep_ahead(state: &mut State, id: &FleetId, anew: bool) {
    let Some(fleet) = state.fleets.get(id).filter(|_| state.past(id).is_some()) else { return };
    let mut extra = fleet.lendable().saturating_sub(fleet.lent);
    let mut changed = Vec::new();
    // Looked up side by side, and written only where it is another: a fleet has thousands of slots, and mostly none of them changes.
    for (id, slot) in fleet.slots.iter().zip(state.slots.each(fleet.slots.iter())) {
        let known = slot.filter(|slot| slot.state == SlotState::Unoffered);
        let Some(known) = known.filter(|slot| slot.ahead.is_some() || anew && extra > 0) else { continue };
        let ahead = (extra > 0).then_some(known.ahead.unwrap_or(Ahead::Kept));
        extra = extra.saturating_sub(1);
        changed.extend((ahead != known.ahead).then(|| (id.clone(), ahead)));
    }
    for (id, ahead) in changed {
        state.slots.change(&id, |slot| slot.ahead = ahead);
    }
}

fn note_need(state: &mut State, at: TimeMs, id: &FleetId, needed: u32, forecast: &[Foreseen]) {
    let Some(day_ms) = state.planning.forecast_day_ms else { return };
    if state.pasts.get(id).is_none() {
        let unchanged_counts = state.planning.folds_by(FoldVersion::UNCHANGED_NEEDS);
        state.pasts.insert(id.clone(), Past::new(at, needed, day_ms, unchanged_counts));
    }
    if let Some(past) = state.pasts.get_mut(id) {
        // The first need changes nothing of a past that begins with it.
        past.note(at, needed);
        past.declare(at, needed, forecast);
    }
}

/// Needs are forecast from now on, as of days that are so long; or (`None`) are not. What was known of other days says nothing.
pub(super) fn forecast(state: &mut State, day_ms: Option<u64>) {
    let unchanged_counts = state.planning.folds_by(FoldVersion::UNCHANGED_NEEDS);
    let begins = std::mem::replace(&mut state.planning.forecast_day_ms, day_ms).is_none();
    let Some(day_ms) = day_ms else { return };
    for id in state.pasts.keys().cloned().collect::<Vec<FleetId>>() {
        match state.pasts.get_mut(&id).filter(|past| past.is_of_days(day_ms)) {
            Some(past) => {
                past.count_unchanged(unchanged_counts);
                if unchanged_counts && begins {
                    past.resume(state.at);
                }
            }
            None => drop(state.pasts.remove(&id)),
        }
    }
}

/// A recall begins, holds more than before, or (`None`) ends.
pub(super) fn recalled(state: &mut State, id: &FleetId, slots: Option<Recall>) {
    if let Some(fleet) = state.fleets.get_mut(id) {
        fleet.recalled = slots;
    }
    keep_ahead(state, id, slots.is_none());
}

pub(super) fn offered(state: &mut State, at: TimeMs, slots: &[SlotId]) {
    change(state, slots.iter(), |slot| {
        if slot.state == SlotState::Unoffered {
            slot.state = SlotState::Offered;
            slot.ahead = slot.ahead.filter(|ahead| *ahead != Ahead::Kept);
            slot.since = at;
        }
    });
}

pub(super) fn borrowed(state: &mut State, slot: &SlotId) {
    if state.slots.get(slot).is_some_and(|slot| slot.state == SlotState::Offered) {
        state.slots.change(slot, |slot| slot.state = SlotState::Borrowed);
    }
}

/// Whether two facts say the same of two slots, so that they can be folded together.
pub(super) fn are_alike(one: &Fact, next: &Fact) -> bool {
    let said = |fact: &Fact| match fact {
        Fact::SlotReclaimed { deadline, cause, asked_at, .. } => Some(Some((*deadline, *cause, *asked_at))),
        Fact::SlotReturned { .. } => Some(None),
        _ => None,
    };
    said(one).is_some_and(|of| said(next) == Some(of))
}

/// The slots of such facts.
pub(super) fn slots_of(alike: &[Fact]) -> impl Iterator<Item = &SlotId> {
    alike.iter().filter_map(|fact| match fact {
        Fact::SlotReclaimed { slot, .. } | Fact::SlotReturned { slot, .. } => Some(slot),
        _ => None,
    })
}

pub(super) fn reclaimed<'a>(
    state: &mut State,
    at: TimeMs,
    slots: impl Iterator<Item = &'a SlotId>,
    deadline: TimeMs,
    cause: ReclaimCause,
) {
    change(state, slots, |slot| {
        slot.state = SlotState::Reclaimed { deadline, cause };
        slot.reclaimed_at = Some(slot.reclaimed_at.map_or(at, |known| known.min(at)));
    });
}

pub(super) fn returned<'a>(state: &mut State, at: TimeMs, slots: impl Iterator<Item = &'a SlotId>) {
    let mut undeclared = Vec::new();
    change_each(state, slots, |id, slot, fleets| {
        let Some(fleet) = &slot.fleet else {
            undeclared.push(id);
            return;
        };
        let is_early = matches!(slot.state, SlotState::Reclaimed { cause: ReclaimCause::Forecast, .. });
        slot.ahead = is_early.then(|| Ahead::Taken(fleets.get(fleet).map_or(0, Fleet::signals)));
        slot.state = SlotState::Unoffered;
        slot.since = at;
        slot.job = None;
        slot.reclaimed_at = None;
        // What its fleet lends anew it has had in its hands.
        slot.diverged = None;
    });
    undeclared.iter().for_each(|id| state.slots.remove(id));
    guests::follow(state, undeclared.into_iter());
}

/// Changes slots in the same way, and with them what their fleets count of their slots.
fn change<'a>(state: &mut State, ids: impl Iterator<Item = &'a SlotId>, to: impl Fn(&mut Slot)) {
    change_each(state, ids, |_, slot, _| to(slot));
}

/// How many more slots of a fleet are lent, or fewer, and how many more are withheld.
struct Counts {
    fleet: FleetId,
    lent: isize,
    withheld: isize,
}

fn change_each<'a>(
    state: &mut State,
    ids: impl Iterator<Item = &'a SlotId>,
    mut to: impl FnMut(&'a SlotId, &mut Slot, &Table<FleetId, Fleet>),
) {
    let counted = |slot: &Slot| [slot.is_lent(), slot.is_withheld()].map(isize::from);
    let mut changed = Vec::new();
    let has_guests = !state.guests.is_empty();
    let mut counts: Vec<Counts> = Vec::new();
    let fleets = &state.fleets;
    state.slots.change_each(ids, |id, slot| {
        let before = counted(slot);
        to(id, slot, fleets);
        changed.extend(has_guests.then_some(id));
        let now = counted(slot);
        let Some(fleet) = slot.fleet.as_ref().filter(|_| before != now) else { return };
        // Slots that follow each other are mostly of one fleet.
        if counts.last().is_none_or(|last| last.fleet != *fleet) {
            counts.push(Counts { fleet: fleet.clone(), lent: 0, withheld: 0 });
        }
        if let Some(of) = counts.last_mut() {
            (of.lent, of.withheld) = (of.lent + now[0] - before[0], of.withheld + now[1] - before[1]);
        }
    });
    guests::follow(state, changed.into_iter());
    for of in counts {
        if let Some(fleet) = state.fleets.get_mut(&of.fleet) {
            fleet.lent = fleet.lent.saturating_add_signed(of.lent);
            fleet.withheld = fleet.withheld.saturating_add_signed(of.withheld);
        }
    }
}

/// The reports of a process that is known already count on.
pub(super) fn agent_joined(state: &mut State, id: &ServerId, mut joined: Server) {
    match state.servers.get(id).filter(|server| server.incarnation == joined.incarnation) {
        Some(known) => joined.reports_through = known.reports_through,
        None => {
            // A new process says itself what is wrong with the devices of its slots, and whoever started it answers for what they compute.
            let unfit = state.slots_of(id).filter(|(_, slot)| slot.unfit().is_some());
            let unfit: Vec<SlotId> = unfit.map(|(slot, _)| slot.clone()).collect();
            change(state, unfit.iter(), |slot| (slot.quarantined, slot.diverged) = (None, None));
        }
    }
    state.slots.note_server(id, Some(&joined));
    state.servers.insert(id.clone(), joined);
    guests::follow_all(state, id);
}

pub(super) fn quarantined(state: &mut State, slot: &SlotId, reason: &str) {
    change(state, std::iter::once(slot), |slot| slot.quarantined = Some(reason.to_owned()));
}

/// What was computed on a slot was wrong, whatever its agent says of its device.
pub(super) fn diverged(state: &mut State, slot: &SlotId, reason: &str) {
    change(state, std::iter::once(slot), |slot| slot.diverged = Some(reason.to_owned()));
}

pub(super) fn recovered(state: &mut State, slot: &SlotId) {
    change(state, std::iter::once(slot), |slot| slot.quarantined = None);
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::invariants;
    use events_schema::{Cell, Digest};

    fn slot(name: &str) -> SlotId {
        name.parse().unwrap()
    }

    fn declared(fleet: &str, slots: &[&str]) -> Fact {
        let slots = slots.iter().map(|name| slot(name)).collect();
        Fact::FleetDeclared {
            fleet: FleetId::parse(fleet).unwrap(),
            slots,
            offers: OfferMode::ByDemand,
            reclaim_deadline_ms: 1,
        }
    }

    fn reclaimed(name: &str, asked_at: Option<TimeMs>) -> Fact {
        reclaimed_because(ReclaimCause::Demand, name, asked_at)
    }

    fn reclaimed_because(cause: ReclaimCause, name: &str, asked_at: Option<TimeMs>) -> Fact {
        let deadline = TimeMs(9);
        Fact::SlotReclaimed { slot: slot(name), deadline, cause, fleet: None, job: None, asked_at }
    }

    fn returned(name: &str) -> Fact {
        Fact::SlotReturned { slot: slot(name), fleet: None, took_ms: None }
    }

    #[test]
    fn facts_that_are_folded_together_make_the_same_state() {
        let joined = |server: &str| Fact::AgentJoined {
            server: ServerId::parse(server).unwrap(),
            incarnation: 1,
            slots: 4,
            class: Digest::of(b"c"),
            address: String::new(),
            devices: Vec::new(),
            guests: false,
            slot_type: None,
        };
        let offered = |fleet: &str, slots: &[&str]| Fact::SlotsOffered {
            fleet: FleetId::parse(fleet).unwrap(),
            slots: slots.iter().map(|name| slot(name)).collect(),
        };
        let fleet = || FleetId::parse("ours").unwrap();
        let demand = |sequence, needed| Fact::DemandAccepted { fleet: fleet(), sequence, needed, forecast: None };
        let (ours, theirs) = (["a/0", "a/1", "b/0", "b/1"], ["a/2", "a/3", "b/2"]);
        let quarantined = |name: &str| Fact::SlotQuarantined { slot: slot(name), fleet: None, reason: String::new() };
        let facts = [
            vec![joined("a"), joined("b"), declared("ours", &ours), declared("theirs", &theirs)],
            vec![offered("ours", &ours), offered("theirs", &theirs), quarantined("a/1")],
            vec![Fact::PolicyChosen {
                policy: String::new(),
                assumed_speeds: None,
                forecast_day_ms: Some(1),
                fold_version: None,
            }],
            vec![demand(7, 0)],
            // Out of order, of two fleets, one of them twice, one that nobody knows, and the last ones at another time than the others.
            ["b/0", "a/0", "a/1", "a/2", "a/2", "c/7", "a/3"].map(|name| reclaimed(name, None)).to_vec(),
            ["b/1", "b/2"].map(|name| reclaimed(name, Some(TimeMs(3)))).to_vec(),
            vec![declared("theirs", &["a/2"])],
            ["a/0", "a/2", "a/3", "b/0", "c/7", "b/2", "b/1"].map(returned).to_vec(),
            vec![offered("ours", &["a/0", "b/0", "b/1"])],
            // Early, one of them twice, and beside one that was asked for.
            ["a/0", "b/0"].map(|name| reclaimed_because(ReclaimCause::Forecast, name, None)).to_vec(),
            vec![reclaimed("b/1", None)],
            ["b/1", "a/0", "b/0", "b/0"].map(returned).to_vec(),
        ]
        .concat();
        let (mut one_by_one, mut together) = (State::new(Cell(0)), State::new(Cell(0)));
        facts.iter().for_each(|fact| one_by_one.apply(TimeMs(5), fact));
        together.apply_all(TimeMs(5), &facts);
        assert_eq!((&one_by_one, one_by_one.digest()), (&together, together.digest()));
        assert!(one_by_one.slots.servers().eq(together.slots.servers()));
        assert!(one_by_one.slots.totals().eq(together.slots.totals()));
        assert_eq!(invariants::check(&together), []);
        let ahead = ["a/0", "b/0", "b/1"].map(|name| together.slot(&slot(name)).and_then(|slot| slot.ahead));
        assert_eq!(ahead, [Some(Ahead::Taken(7)), None, None]);
        let left = together.slots().map(|(id, of)| (id.to_string(), of.state.name())).collect::<Vec<_>>();
        let expected = [("a/0", "unoffered"), ("a/1", "reclaimed"), ("a/2", "unoffered"), ("b/0", "unoffered")];
        let expected = expected.into_iter().chain([("b/1", "unoffered")]);
        assert_eq!(left, expected.map(|(id, state)| (id.to_owned(), state)).collect::<Vec<_>>());
    }
}
