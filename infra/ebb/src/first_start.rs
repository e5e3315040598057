//! What a fresh `ebb up` declares so that the first job just runs: a fleet `local` of all its slots, offered, and the digits.
//!
//! Goes over the HTTP API like any client; looks first, so a later start changes nothing its user has changed since.

use crate::datasets::register_metadata;
use crate::failure::Failure;
use events_schema::{ServerId, SlotId};
use gateway_api::{DeclareFleet, Fleet, NameSlots, Offers, PublishDemand, ServerSlots, Slot, SlotsOfServer};
use gateway_client::{Answer, Client, ClientError, WantedSlots};
use std::collections::BTreeSet;
use std::time::Duration;

/// Name of the fleet.
const LOCAL_FLEET: &str = "local";
/// From a reclaim to the kill of an executor.
const RECLAIM_DEADLINE_MS: u64 = 10_000;
/// Looks at the slots until the agent has joined; with the pause below 30 s, of which it takes a fraction of one.
const LOOKS_MAX: u32 = 600;
/// Pause between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// HTTP status of a gateway that still reads the log.
const NOT_READY: u16 = 503;

/// Declares what is missing. `before` is how many slots the server had the last time, if that is known.
pub async fn prepare(
    client: &Client,
    store_url: &str,
    server: &ServerId,
    slots: u16,
    before: Option<u16>,
) -> Result<(), Failure> {
    let last = SlotId { server: server.clone(), index: slots.saturating_sub(1) };
    let known = until_known(client, &last).await?;
    let wanted = not_of_others(&known, server, slots);
    match client.find_fleet(LOCAL_FLEET).await? {
        None => {
            put_fleet(client, server, &wanted, Offers::ByDemand, RECLAIM_DEADLINE_MS).await?;
            // The signal that needs nothing offers everything; the sequence is the gateway's.
            client.demand(LOCAL_FLEET, &PublishDemand::needed(0)).await?;
        }
        Some(fleet) => follow_slots(client, &fleet, server, &wanted, before.unwrap_or(0)).await?,
    }
    register_digits(client, store_url).await
}

/// Numbers of the server's slots that no other fleet has been given since.
fn not_of_others(known: &[Slot], server: &ServerId, slots: u16) -> BTreeSet<u16> {
    let of_others = numbers(known.iter().filter(|s| s.fleet.as_deref().is_some_and(|f| f != LOCAL_FLEET)), server);
    (0..slots).filter(|number| !of_others.contains(number)).collect()
}

/// Numbers of those of the slots that are the server's.
fn numbers<'a>(slots: impl Iterator<Item = &'a Slot>, server: &ServerId) -> BTreeSet<u16> {
    slots.filter_map(|s| s.slot.parse::<SlotId>().ok()).filter(|s| s.server == *server).map(|s| s.index).collect()
}

/// The same directory with another number of slots: those from number `before` on are new and are offered, the rest stays as it is, and what
/// its user has taken out of the fleet stays out. A fleet that was given slots of other servers, and one without a slot left here, is its
/// user's matter.
async fn follow_slots(
    client: &Client,
    fleet: &Fleet,
    server: &ServerId,
    possible: &BTreeSet<u16>,
    before: u16,
) -> Result<(), Failure> {
    let own = numbers(fleet.slots.iter(), server);
    let wanted: BTreeSet<u16> = possible.iter().copied().filter(|n| own.contains(n) || *n >= before).collect();
    if own.len() != fleet.slots.len() || own == wanted || wanted.is_empty() {
        return Ok(());
    }
    let offers = fleet.offers.known().copied().unwrap_or(Offers::ByDemand);
    put_fleet(client, server, &wanted, offers, fleet.reclaim_deadline_ms).await?;
    let new: Vec<String> = wanted.difference(&own).map(|number| format!("{server}/{number}")).collect();
    if !new.is_empty() {
        client.offer(LOCAL_FLEET, &NameSlots { slots: new }).await?;
    }
    Ok(())
}

async fn put_fleet(
    client: &Client,
    server: &ServerId,
    slots: &BTreeSet<u16>,
    offers: Offers,
    reclaim_deadline_ms: u64,
) -> Result<(), Failure> {
    let slots = SlotsOfServer::Numbers(slots.iter().copied().collect());
    let fleet = DeclareFleet {
        servers: vec![ServerSlots { server: server.to_string(), slots }],
        offers: Some(offers),
        reclaim_deadline_ms: Some(reclaim_deadline_ms),
    };
    client.declare_fleet(LOCAL_FLEET, &fleet).await?;
    Ok(())
}

async fn register_digits(client: &Client, store_url: &str) -> Result<(), Failure> {
    let names = [storage::dataset::DIGITS, storage::dataset::DIGITS_TEST];
    let mut missing = false;
    for name in names {
        missing |= client.find_dataset(name).await?.is_none();
    }
    if !missing {
        return Ok(());
    }
    let store = storage::open_store(store_url).map_err(|e| Failure::local("the object store cannot be opened", e))?;
    let digits = storage::dataset::register_digits(&store)
        .await
        .map_err(|e| Failure::local("the digits cannot be put into the object store", e))?;
    for dataset in std::iter::once(&digits.dataset).chain(digits.test.as_ref()) {
        register_metadata(client, dataset).await?;
    }
    Ok(())
}

/// Waits until the controller knows the agent of this process, and with it the slots; all that it knows.
async fn until_known(client: &Client, slot: &SlotId) -> Result<Vec<Slot>, Failure> {
    let slot = slot.to_string();
    for _ in 0..LOOKS_MAX {
        match client.slots(&WantedSlots::default()).await {
            Ok(slots) if slots.iter().any(|s| s.slot == slot && s.class.is_some()) => {
                return Ok(slots.into_iter().map(Answer::into_typed).collect());
            }
            Ok(_) => {}
            // The gateway still reads the log.
            Err(ClientError::Refused(problem)) if problem.status == NOT_READY => {}
            Err(failure) => return Err(failure.into()),
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    }
    Err(Failure::plain("gateway, controller and agent did not find each other")
        .advise("look at the lines above; EBB_LOG=info shows more"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_another_fleet_was_given_is_not_claimed_again() {
        let slot = |name: &str, fleet: Option<&str>| Slot {
            slot: name.to_owned(),
            fleet: fleet.map(str::to_owned),
            ..Slot::default()
        };
        let known = [
            slot("local/0", Some(LOCAL_FLEET)),
            slot("local/1", None),
            slot("local/2", Some("chat")),
            slot("far/1", Some("chat")),
        ];
        let server = ServerId::parse("local").unwrap();
        assert_eq!(not_of_others(&known, &server, 3), BTreeSet::from([0, 1]));
        assert_eq!(not_of_others(&known, &server, 5), BTreeSet::from([0, 1, 3, 4]));
    }

    #[test]
    fn demo_and_benchmarks_know_the_fleet_by_its_name() {
        assert_eq!(super::LOCAL_FLEET, loadtest_harness::LOCAL_FLEET);
    }
}
