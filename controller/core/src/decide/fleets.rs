//! Commands and signals of fleets: declare, offer, reclaim, demand. Which slots go back when a fleet does not name them,
//! [`super::reclaim`] says.

use super::{Draft, ahead, datasets::nearest, reclaim};
use crate::limits::{FLEETS_MAX, REASON_CHARS_MAX, RECLAIM_DEADLINE_MS_MAX, SLOTS_MAX};
use crate::state::{Fleet, Slot, SlotState};
use events_schema::command::{DemandSignal, OfferMode, Recall};
use events_schema::fact::{Fact, ReclaimCause, Refusal};
use events_schema::{FleetId, Offset, SlotId, TimeMs};
use std::collections::BTreeSet;

type Done = Result<(), Refusal>;

pub(super) fn put(
    draft: &mut Draft<'_>,
    id: &FleetId,
    slots: &[SlotId],
    offers: OfferMode,
    reclaim_deadline_ms: u64,
) -> Done {
    let slots: Vec<SlotId> = slots.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect();
    let known = draft.state.fleet(id);
    if known.is_none() && draft.state.fleets.len() as u64 >= FLEETS_MAX {
        return Err(Refusal::Limit { what: "fleets".to_owned(), limit: FLEETS_MAX });
    }
    if reclaim_deadline_ms > RECLAIM_DEADLINE_MS_MAX {
        return Err(Refusal::Unfit {
            field: "reclaim_deadline_ms".to_owned(),
            value: reclaim_deadline_ms.to_string(),
            expected: format!("at most {RECLAIM_DEADLINE_MS_MAX}"),
        });
    }
    let new = slots.iter().filter(|slot| draft.state.slot(slot).is_none()).count();
    if (draft.state.slots.len() + new) as u64 > SLOTS_MAX {
        return Err(Refusal::Limit { what: "declared slots".to_owned(), limit: SLOTS_MAX });
    }
    slots.iter().try_for_each(|slot| can_own(draft, id, slot))?;
    let same = |fleet: &Fleet| {
        *fleet.slots == slots && fleet.offers == offers && fleet.reclaim_deadline_ms == reclaim_deadline_ms
    };
    if known.is_some_and(same) {
        return Ok(());
    }
    let dropped: Vec<SlotId> = known.map_or_else(Vec::new, |fleet| {
        fleet.slots.iter().filter(|slot| slots.binary_search(slot).is_err()).cloned().collect()
    });
    // Slots the fleet no longer declares go back under the deadline it gave before.
    reclaim::take_back(draft, id, &dropped, ReclaimCause::Undeclared);
    draft.emit(Fact::FleetDeclared { fleet: id.clone(), slots, offers, reclaim_deadline_ms });
    reclaim::surplus(draft, id);
    Ok(())
}

/// Whether a slot can belong to this fleet: nobody else has it, and its server, if known, has so many.
fn can_own(draft: &Draft<'_>, id: &FleetId, slot: &SlotId) -> Done {
    if slot.is_guest() {
        return Err(Refusal::Unfit {
            field: "servers".to_owned(),
            value: slot.to_string(),
            expected: "slots of the fleet's own: a guest slot goes with the slot that it is beside".to_owned(),
        });
    }
    if let Some(holder) = draft.state.slot(slot).and_then(|slot| slot.fleet.as_ref()).filter(|holder| *holder != id) {
        return Err(Refusal::Exists {
            kind: "slot".to_owned(),
            name: slot.to_string(),
            holder: format!("fleet {holder}"),
        });
    }
    match draft.state.server(&slot.server) {
        Some(server) if slot.index >= server.slots => Err(Refusal::Unfit {
            field: "servers".to_owned(),
            value: slot.to_string(),
            expected: format!("a slot of `{}` below {}", slot.server, server.slots),
        }),
        _ => Ok(()),
    }
}

fn own<'a>(draft: &'a Draft<'_>, id: &FleetId, slots: &[SlotId]) -> Result<&'a Fleet, Refusal> {
    let Some(fleet) = draft.state.fleet(id) else {
        let known = draft.state.fleets().map(|(fleet, _)| fleet.as_str());
        return Err(Refusal::Unknown {
            kind: "fleet".to_owned(),
            name: id.to_string(),
            nearest: nearest(id.as_str(), known),
        });
    };
    match slots.iter().find(|slot| fleet.slots.binary_search(slot).is_err()) {
        Some(foreign) => Err(Refusal::Unfit {
            field: "slots".to_owned(),
            value: foreign.to_string(),
            expected: format!("slots that fleet `{id}` declares; GET /v1/slots lists them"),
        }),
        None => Ok(fleet),
    }
}

pub(super) fn offer(draft: &mut Draft<'_>, id: &FleetId, slots: &[SlotId]) -> Done {
    let fleet = own(draft, id, slots)?;
    let named: BTreeSet<&SlotId> = slots.iter().collect();
    let state_of = |slot: &SlotId| draft.state.slot(slot).map(|slot| slot.state);
    if let Some(busy) = named.iter().find(|slot| matches!(state_of(slot), Some(SlotState::Reclaimed { .. }))) {
        return Err(Refusal::InUse { by: format!("the return of {busy}: offer it again when it is free") });
    }
    let new: Vec<SlotId> =
        named.into_iter().filter(|slot| state_of(slot) == Some(SlotState::Unoffered)).cloned().collect();
    // A fleet that said it needs n of its slots cannot lend one of those in the same breath. One that offers by demand and
    // has not said anything yet lends what it names. One that is recalled lends nothing of what it holds.
    let lendable = fleet.lendable_by_name();
    if fleet.lent + new.len() > lendable {
        let what = match fleet.recalled {
            Some(_) => "slots on loan while the fleet is recalled (`release` ends that)",
            None => "slots on loan beside those that the fleet says it needs (a lower demand signal changes that)",
        };
        return Err(Refusal::Limit { what: what.to_owned(), limit: lendable as u64 });
    }
    if !new.is_empty() {
        draft.emit(Fact::SlotsOffered { fleet: id.clone(), slots: new });
    }
    Ok(())
}

pub(super) fn reclaim(draft: &mut Draft<'_>, id: &FleetId, slots: &[SlotId]) -> Done {
    own(draft, id, slots)?;
    reclaim::take_back(draft, id, slots, ReclaimCause::Named);
    Ok(())
}

/// The red button. Slots go back under the fleet's deadline, as for a need that rose; but no signal lowers it. A second recall can
/// only hold more: two who press the button at once both have what they asked for.
pub(super) fn recall(draft: &mut Draft<'_>, id: &FleetId, slots: Recall) -> Done {
    let fleet = own(draft, id, &[])?;
    if fleet.recalled < Some(slots) {
        draft.emit(Fact::FleetRecalled { fleet: id.clone(), slots });
        reclaim::surplus(draft, id);
    }
    Ok(())
}

/// Ends a recall. Whoever releases vouches, as whoever publishes a lower need does, that what the fleet does not need by its last
/// signal is drained.
pub(super) fn release(draft: &mut Draft<'_>, id: &FleetId) -> Done {
    let fleet = own(draft, id, &[])?;
    let offers = fleet.offers == OfferMode::ByDemand;
    if fleet.recalled.is_some() {
        draft.emit(Fact::FleetReleased { fleet: id.clone() });
        if offers {
            offer_surplus(draft, id, |_| true);
        }
    }
    Ok(())
}

/// Signals that the gateway could not use. They change nothing; that is said where their publisher reads.
pub(super) fn tell_refused(draft: &mut Draft<'_>, id: &FleetId, offset: Offset, count: u64, reason: &str) -> Done {
    own(draft, id, &[])?;
    let reason = reason.chars().take(REASON_CHARS_MAX).collect();
    draft.emit(Fact::SignalsRefused { fleet: id.clone(), offset, count, reason });
    Ok(())
}

/// A demand signal. One that is not newer than the last, of an unknown fleet, or that no door lets in has no effect: a number at the end of the
/// range would shut its fleet out for good.
///
/// One that repeats the need is a fact all the same, for its number: it was answered, and a lower need that was published before it
/// and comes later must not undo it.
pub(super) fn demand(draft: &mut Draft<'_>, signal: &DemandSignal) {
    let Some(fleet) = draft.state.fleet(&signal.fleet) else { return };
    if !signal.is_fit() || fleet.sequence.is_some_and(|taken| signal.sequence <= taken) {
        return;
    }
    let needed = signal.counted(fleet.slots.len() as u32);
    // A signal that repeats the same need offers only what a forecast took or kept: a slot taken back by name stays with its fleet until it needs
    // less.
    let falls = fleet.falls_to(needed);
    let offers = fleet.offers == OfferMode::ByDemand;
    let (fleet, forecast) = (signal.fleet.clone(), signal.forecast.clone());
    draft.emit(Fact::DemandAccepted { fleet, sequence: signal.sequence, needed, forecast });
    reclaim::surplus(draft, &signal.fleet);
    if offers {
        offer_surplus(draft, &signal.fleet, |slot| falls || slot.has_ahead());
    }
}

/// Offers what a fleet holds beyond its need, and beyond what it is likely to want soon, of those slots that may be offered.
fn offer_surplus(draft: &mut Draft<'_>, id: &FleetId, may: impl Fn(&Slot) -> bool) {
    let Some(fleet) = draft.state.fleet(id) else { return };
    let missing = ahead::lends(draft, id).saturating_sub(fleet.lent);
    if missing == 0 {
        return;
    }
    let known = fleet.slots.iter().zip(draft.state.slots.each(fleet.slots.iter()));
    let is_open = |slot: &Slot| slot.state == SlotState::Unoffered && may(slot);
    let unoffered = known.filter(|(_, slot)| slot.is_some_and(is_open));
    let slots: Vec<SlotId> = unoffered.take(missing).map(|(id, _)| id.clone()).collect();
    if !slots.is_empty() {
        draft.emit(Fact::SlotsOffered { fleet: id.clone(), slots });
    }
}

/// Hands a reclaimed slot that nobody is on any more to its fleet, unless its server is away.
pub(super) fn hand_back(draft: &mut Draft<'_>, slot: &SlotId, seen_at: TimeMs) {
    // An agent that was given up may still have a process on it. One that a guest has left is its host's matter.
    if !draft.state.is_away(&slot.server) {
        hand_back_of_present(draft, &[&slot.host()], seen_at);
    }
}

/// The same of slots whose servers are known not to be away. If a fleet needs less again by now, its slots are offered at
/// once: the signal that said so vouched for them, but came while they were on their way.
///
/// Who asked its agent for one had it back when the agent saw it free, however long the report was on its way; the others when that is on record.
pub(super) fn hand_back_of_present(draft: &mut Draft<'_>, slots: &[&SlotId], seen_at: TimeMs) {
    let at = draft.at;
    let is_free = |slot: &Slot| slot.executor.is_none() && slot.comes_free();
    let has_guest = |slot: &SlotId| draft.state.has_guest(slot);
    let (mut free, mut needed) = (Vec::with_capacity(slots.len()), Vec::new());
    // Slots that follow each other are mostly of one fleet.
    let mut last: Option<(&FleetId, bool)> = None;
    for (&slot, known) in slots.iter().zip(draft.state.slots.each(slots.iter().copied())) {
        let Some(known) = known.filter(|known| is_free(known) && !has_guest(slot)) else { continue };
        let SlotState::Reclaimed { cause, .. } = known.state else { continue };
        free.push(slot);
        let Some(fleet) = known.fleet.as_ref().filter(|_| reclaim::is_lent_again(cause)) else { continue };
        let same = last.filter(|(known, _)| *known == fleet);
        let (_, to_lend) = *last.insert(same.unwrap_or_else(|| (fleet, is_to_lend(draft, fleet))));
        needed.extend(to_lend.then(|| (slot, fleet.clone())));
    }
    draft.emit_of_each(&free, |slot, known| {
        let is_direct = matches!(known.state, SlotState::Reclaimed { cause: ReclaimCause::Direct, .. });
        let free_at = if is_direct { seen_at } else { at };
        let took_ms = known.reclaimed_at.map(|since| free_at.since_ms(since));
        Fact::SlotReturned { slot: slot.clone(), fleet: known.fleet.clone(), took_ms }
    });
    for (slot, fleet) in needed {
        if is_to_lend(draft, &fleet) {
            draft.emit(Fact::SlotsOffered { fleet, slots: vec![slot.clone()] });
        }
    }
}

/// Whether a fleet that offers by demand lends fewer slots than it said, but for those that it is likely to want soon.
fn is_to_lend(draft: &Draft<'_>, id: &FleetId) -> bool {
    let known = draft.state.fleet(id);
    known.is_some_and(|fleet| fleet.offers == OfferMode::ByDemand && fleet.lent < ahead::lends(draft, id))
}
