//! Slots go back a little before their fleet is going to need them, and are not lent where it will soon.
//!
//! Wanted is what a fleet needs, or with nine chances in ten is not going to exceed soon (`state/past.rs`): within the time in which a slot comes back, of
//! slots that are trained on; further ahead, of slots that nobody is on, because a start and a copy would not be worth their while (what a job needs beyond that, `loans.rs`
//! compares). Only fleets that offer by demand: what one names is lent until it says otherwise.
//!
//! A forecast ends no job and stops no take-back: it takes idle slots and those beyond jobs' fewest, and a need that rises takes what is missing at
//! once, as it does without a forecast. What it took or kept is lent again once the fleet has said, by a newer signal, that it does not need it; what the fleet
//! offers by name before that, no forecast takes. So a slot comes and goes once for a signal.

use super::{Draft, reclaim, victims};
use crate::limits::{GIVEN_BACK_AHEAD_MS, WORTH_A_LOAN_MS};
use crate::state::{Ahead, Fleet, Past, State};
use events_schema::command::OfferMode;
use events_schema::fact::ReclaimCause;
use events_schema::{FleetId, SlotId, TimeMs};

/// What is looked at to find out when more is wanted than now, in thousandths of a minute of a fleet's day.
const LOOKS_MILLI: [u64; 10] = [17, 33, 67, 100, 150, 250, 350, 500, 750, 1_000];

/// Slots that a fleet is likely to want within a time.
#[derive(Clone, Copy, PartialEq)]
struct Wanted {
    /// Before one that is trained on has come back.
    soon: usize,
    /// Before one that nobody is on was worth a loan.
    later: usize,
}

/// Gives back what fleets are going to need. Says when more may be wanted than now, though nothing has changed by then.
pub(super) fn give_back(draft: &mut Draft<'_>) -> Option<TimeMs> {
    let fleets: Vec<FleetId> = draft.state.pasts.keys().cloned().collect();
    let mut until: Option<TimeMs> = None;
    for id in fleets {
        let Some((past, fleet)) = of(&draft.state, &id).filter(|(_, fleet)| fleet.lent > 0) else { continue };
        let wanted = wanted(past, fleet, draft.at);
        until = until.into_iter().chain(rises_at(past, fleet, draft.at, wanted)).min();
        let slots = goes(&draft.state, fleet, wanted);
        if !slots.is_empty() {
            reclaim::take_back(draft, &id, &slots, ReclaimCause::Forecast);
        }
    }
    until
}

/// Whether there is anything to give back.
pub(super) fn takes_more(draft: &Draft<'_>) -> bool {
    let state = &draft.state;
    let mut lend = state.pasts.keys().filter_map(|id| of(state, id)).filter(|(_, fleet)| fleet.lent > 0);
    lend.any(|(past, fleet)| !goes(state, fleet, wanted(past, fleet, draft.at)).is_empty())
}

/// What goes back of what a fleet lends.
fn goes(state: &State, fleet: &Fleet, wanted: Wanted) -> Vec<SlotId> {
    let surplus = |wanted: usize| fleet.lent.saturating_sub(fleet.lendable().min(lendable(fleet, wanted)));
    match surplus(wanted.later) {
        0 => Vec::new(),
        idle => taken(state, fleet, idle, surplus(wanted.soon)),
    }
}

/// The slots that a forecast takes, of which so many are idle ones at most and so many go in any case; none that it took and its fleet offered anew since.
fn taken(state: &State, fleet: &Fleet, idle: usize, trained_on: usize) -> Vec<SlotId> {
    let once = Ahead::Taken(fleet.signals());
    let known = fleet.slots.iter().zip(state.slots.each(fleet.slots.iter()));
    let lent = known.filter_map(|(id, slot)| Some((id, slot.filter(|slot| slot.is_lent())?.ahead == Some(once))));
    let (again, others): (Vec<_>, Vec<_>) = lent.partition(|(_, again)| *again);
    let others: Vec<&SlotId> = others.into_iter().map(|(id, _)| id).collect();
    let less = |count: usize| count.saturating_sub(again.len());
    victims::spare(state, &others, less(idle), less(trained_on))
}

/// Most slots that a fleet lends by what it said of its need, but for those that it is likely to want soon.
pub(super) fn lends(draft: &Draft<'_>, id: &FleetId) -> usize {
    let Some(fleet) = draft.state.fleet(id) else { return 0 };
    let wanted = of(&draft.state, id).map_or(0, |(past, _)| wanted(past, fleet, draft.at).later);
    fleet.lendable().min(lendable(fleet, wanted))
}

/// A fleet whose lending is by forecast, and its past.
pub(super) fn of<'a>(state: &'a State, id: &FleetId) -> Option<(&'a Past, &'a Fleet)> {
    let fleet = state.fleet(id).filter(|fleet| fleet.offers == OfferMode::ByDemand)?;
    Some((state.past(id)?, fleet))
}

fn lendable(fleet: &Fleet, wanted: usize) -> usize {
    fleet.slots.len().saturating_sub(wanted + fleet.withheld)
}

fn wanted(past: &Past, fleet: &Fleet, at: TimeMs) -> Wanted {
    let within = |place: usize| wanted_within(past, fleet, at, place);
    Wanted { soon: within(horizon(past, fleet, 0)), later: within(horizon(past, fleet, WORTH_A_LOAN_MS)) }
}

/// When to look again: before more is wanted, however little before.
fn rises_at(past: &Past, fleet: &Fleet, at: TimeMs, now: Wanted) -> Option<TimeMs> {
    past.forecast(at, 0)?;
    let minute_ms = past.minute_ms();
    let looks = LOOKS_MILLI.map(|milli| at.plus_ms((minute_ms * milli / 1_000).max(1)));
    let more = |look: TimeMs| {
        let then = wanted(past, fleet, look);
        then.soon > now.soon || then.later > now.later
    };
    let first = looks.iter().position(|look| more(*look)).unwrap_or(looks.len());
    Some(looks[first.saturating_sub(1)])
}

/// How many of the slots that a fleet lends are likely to go back within a horizon.
pub(super) fn goes_back(past: &Past, fleet: &Fleet, at: TimeMs, horizon: usize) -> usize {
    let wanted = wanted_within(past, fleet, at, horizon);
    fleet.lent.saturating_sub(fleet.lendable().min(lendable(fleet, wanted)))
}

/// The horizon at which it is seen that a slot goes back within a time from now.
pub(super) fn horizon(past: &Past, fleet: &Fleet, ms: u64) -> usize {
    past.horizon_of(fleet.reclaim_deadline_ms.saturating_add(GIVEN_BACK_AHEAD_MS).saturating_add(ms))
}

/// What a fleet is likely to want within a horizon.
fn wanted_within(past: &Past, fleet: &Fleet, at: TimeMs, last: usize) -> usize {
    let of = |place: usize| past.forecast(at, place).map_or(0, |forecast| forecast.p90_slots as usize);
    (horizon(past, fleet, 0)..=last).map(of).max().unwrap_or(0).min(fleet.slots.len())
}
