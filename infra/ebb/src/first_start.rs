//! What a fresh `ebb up` declares so that the first job just runs: a fleet `local` of all its slots, offered, and the digits.
//!
//! Goes over the HTTP API like any client; looks first, so a later start changes nothing its user has changed since.

use crate::datasets::register_metadata;
use crate::failure::Failure;
use events_schema::{ServerId, SlotId};
use gateway_api::{DeclareFleet, Fleet, NameSlots, Offers, PublishDemand, ServerSlots, SlotsOfServer};
use gateway_client::{Client, ClientError};
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

/// Declares what is missing.
pub async fn prepare(client: &Client, store_url: &str, server: &ServerId, slots: u16) -> Result<(), Failure> {
    let last = SlotId { server: server.clone(), index: slots.saturating_sub(1) };
    until_known(client, &last).await?;
    let fleet = client.fleet(LOCAL_FLEET).await?;
    let own = |fleet: &Fleet| {
        fleet.slots.iter().filter_map(|s| s.slot.parse::<SlotId>().ok()).filter(|s| s.server == *server).count()
    };
    match fleet {
        None => {
            put_fleet(client, server, slots).await?;
            // The signal that needs nothing offers everything; the sequence is the gateway's.
            client.demand(LOCAL_FLEET, &PublishDemand::needed(0)).await?;
        }
        // The same directory with another number of slots: newcomers are offered, the rest stays as it is.
        Some(fleet) if own(&fleet) == fleet.slots.len() && own(&fleet) != usize::from(slots) => {
            let before = own(&fleet);
            put_fleet(client, server, slots).await?;
            let new = (before..usize::from(slots)).map(|index| format!("{server}/{index}")).collect::<Vec<_>>();
            if !new.is_empty() {
                client.offer(LOCAL_FLEET, &NameSlots { slots: new }).await?;
            }
        }
        Some(_) => {}
    }
    register_digits(client, store_url).await
}

async fn put_fleet(client: &Client, server: &ServerId, slots: u16) -> Result<(), Failure> {
    let fleet = DeclareFleet {
        servers: vec![ServerSlots { server: server.to_string(), slots: SlotsOfServer::Count(slots) }],
        offers: Some(Offers::ByDemand),
        reclaim_deadline_ms: Some(RECLAIM_DEADLINE_MS),
    };
    client.declare_fleet(LOCAL_FLEET, &fleet).await?;
    Ok(())
}

async fn register_digits(client: &Client, store_url: &str) -> Result<(), Failure> {
    let names = [storage::dataset::DIGITS, storage::dataset::DIGITS_TEST];
    let mut missing = false;
    for name in names {
        missing |= client.dataset(name).await?.is_none();
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

/// Waits until the controller knows the agent of this process, and with it the slots.
async fn until_known(client: &Client, slot: &SlotId) -> Result<(), Failure> {
    let slot = slot.to_string();
    for _ in 0..LOOKS_MAX {
        match client.slots().await {
            Ok(slots) if slots.iter().any(|s| s.slot == slot && s.class.is_some()) => return Ok(()),
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
    #[test]
    fn demo_and_benchmarks_know_the_fleet_by_its_name() {
        assert_eq!(super::LOCAL_FLEET, loadtest_harness::LOCAL_FLEET);
    }
}
