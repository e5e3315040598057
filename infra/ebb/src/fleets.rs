//! Commands about fleets and slots. A fleet speaks with its own controller here; the direct way is in `take_back.rs`.

use crate::args::{DemandArgs, DemandCommand, FleetPutArgs, OffersName, RecallArgs, SlotsArgs};
use crate::demand_follow;
use crate::failure::Failure;
use crate::output::{Output, json, line, listed, names, pairs, table};
use crate::wire::{self, Fleet, Slot, words};
use events_schema::FleetId;
use gateway_api::paths;
use gateway_client::{Body, Client};
use reqwest::Method;
use serde_json::{Value, json};

/// Characters of a numeric class in a table.
const CLASS_SHOWN: usize = 12;

/// `ebb fleets`.
pub async fn list(client: &Client, output: Output) -> Result<(), Failure> {
    let answer = json!({ "fleets": client.list(paths::FLEETS, "fleets").await? });
    match output {
        Output::Json => {
            json(&answer);
            return Ok(());
        }
        Output::Name => {
            names(listed(&answer["fleets"]), "name");
            return Ok(());
        }
        Output::Table => {}
    }
    let fleets: Vec<Fleet> = wire::read(&answer["fleets"])?;
    if fleets.is_empty() {
        line("no fleets; next: ebb fleet put NAME --server SERVER --slots N");
        return Ok(());
    }
    let rows: Vec<Vec<String>> = fleets
        .iter()
        .map(|f| {
            let count = |state: &str| f.slots.iter().filter(|s| s.state == state).count().to_string();
            vec![
                f.name.clone(),
                f.slots.len().to_string(),
                f.needed.map(|n| n.to_string()).unwrap_or_default(),
                f.recalled.map(|n| n.to_string()).unwrap_or_default(),
                count("unoffered"),
                count("offered"),
                count("borrowed"),
                count("reclaimed"),
                count("unknown"),
            ]
        })
        .collect();
    line(table(
        &["FLEET", "SLOTS", "NEEDED", "RECALLED", "ITS OWN", "OFFERED", "BORROWED", "LEAVING", "UNKNOWN"],
        &rows,
    ));
    Ok(())
}

/// `ebb fleet show NAME`.
pub async fn show(client: &Client, output: Output, name: &FleetId) -> Result<(), Failure> {
    let fleet: Value = client.get(&paths::fleet(name)).await?;
    print_fleet(output, &fleet)
}

/// `ebb fleet put NAME …`.
pub async fn put(client: &Client, output: Output, args: &FleetPutArgs) -> Result<(), Failure> {
    if args.server.len() != args.slots.len() {
        return Err(Failure::Usage(format!(
            "{} times --server but {} times --slots; each --server needs its own --slots",
            args.server.len(),
            args.slots.len()
        )));
    }
    let servers: Vec<Value> =
        args.server.iter().zip(&args.slots).map(|(server, slots)| json!({"server": server, "slots": slots})).collect();
    let offers = match args.offers {
        OffersName::ByDemand => "by_demand",
        OffersName::Explicit => "explicit",
    };
    let body = json!({"servers": servers, "offers": offers, "reclaim_deadline_ms": args.reclaim_deadline_ms});
    let fleet = client.send(Method::PUT, &paths::fleet(&args.name), Some(Body::json(&body)), &[]).await?;
    print_fleet(output, &fleet)
}

/// `ebb offer`.
pub async fn offer(client: &Client, output: Output, args: &SlotsArgs) -> Result<(), Failure> {
    let fleet = client.post(&paths::fleet_offers(&args.fleet), &json!({"slots": args.slots})).await?;
    print_fleet(output, &fleet)
}

/// `ebb reclaim`.
pub async fn reclaim(client: &Client, output: Output, args: &SlotsArgs) -> Result<(), Failure> {
    let fleet = client.post(&paths::fleet_reclaims(&args.fleet), &json!({"slots": args.slots})).await?;
    print_fleet(output, &fleet)
}

/// `ebb fleet recall`.
pub async fn recall(client: &Client, output: Output, args: &RecallArgs) -> Result<(), Failure> {
    let body = args.slots.map_or_else(|| json!({}), |slots| json!({ "slots": slots }));
    let fleet = client.post(&paths::fleet_recall(&args.fleet), &body).await?;
    print_fleet(output, &fleet)
}

/// `ebb fleet release`.
pub async fn release(client: &Client, output: Output, fleet: &FleetId) -> Result<(), Failure> {
    let fleet = client.send(Method::POST, &paths::fleet_release(fleet), None, &[]).await?;
    print_fleet(output, &fleet)
}

/// `ebb demand`.
pub async fn demand(client: &Client, output: Output, args: &DemandArgs) -> Result<(), Failure> {
    if let Some(DemandCommand::Follow(args)) = &args.command {
        return demand_follow::follow(client, output, args).await;
    }
    let fleet = args.fleet.as_ref().ok_or_else(|| Failure::Usage("a fleet is missing".to_owned()))?;
    let body = match (args.needed, args.utilization) {
        (Some(needed), _) => json!({ "needed": needed }),
        (None, utilization) => json!({"utilization": utilization, "target": args.target}),
    };
    let answer = client.post(&paths::fleet_demand(fleet), &body).await?;
    match output {
        Output::Json => json(&answer),
        Output::Name => line(fleet.as_str()),
        Output::Table => line(format!(
            "{fleet} needs {} of its slots (signal {})",
            words(&answer["needed"]),
            words(&answer["sequence"])
        )),
    }
    Ok(())
}

/// `ebb slots`.
pub async fn slots(client: &Client, output: Output) -> Result<(), Failure> {
    let answer = json!({ "slots": client.list(paths::SLOTS, "slots").await? });
    match output {
        Output::Json => {
            json(&answer);
            return Ok(());
        }
        Output::Name => {
            names(listed(&answer["slots"]), "slot");
            return Ok(());
        }
        Output::Table => {}
    }
    let slots: Vec<Slot> = wire::read(&answer["slots"])?;
    line(slot_table(&slots));
    Ok(())
}

fn print_fleet(output: Output, fleet: &Value) -> Result<(), Failure> {
    match output {
        Output::Json => {
            json(fleet);
            return Ok(());
        }
        Output::Name => {
            names([fleet], "name");
            return Ok(());
        }
        Output::Table => {}
    }
    let fleet: Fleet = wire::read(fleet)?;
    line(pairs(&[
        ("fleet", fleet.name.clone()),
        ("needs", fleet.needed.map(|n| format!("{n} of {} slots", fleet.slots.len())).unwrap_or_default()),
        ("recalled", fleet.recalled.map(|held| recalled(&fleet.name, held, fleet.slots.len())).unwrap_or_default()),
        ("offers", words(&fleet.offers)),
        ("reclaim deadline", format!("{} ms", fleet.reclaim_deadline_ms)),
    ]));
    line(slot_table(&fleet.slots));
    Ok(())
}

fn recalled(name: &str, held: u32, slots: usize) -> String {
    format!("keeps {held} of {slots} slots until `ebb fleet release {name}`")
}

/// Which device a slot is, and what is wrong with it.
fn device(slot: &Slot) -> String {
    let Some(device) = &slot.device else { return String::new() };
    let wrong = slot.quarantined.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("{} {} MiB {}{wrong}", device.name, device.memory_bytes >> 20, device.uuid)
}

fn slot_table(slots: &[Slot]) -> String {
    let rows: Vec<Vec<String>> = slots
        .iter()
        .map(|s| {
            let class = s.class.as_deref().unwrap_or_default().chars().take(CLASS_SHOWN).collect();
            vec![
                s.slot.clone(),
                s.fleet.clone().unwrap_or_default(),
                s.state.to_string(),
                s.executor.clone().or_else(|| s.job.clone()).unwrap_or_default(),
                class,
                device(s),
            ]
        })
        .collect();
    let devices = slots.iter().any(|slot| slot.device.is_some());
    let columns = ["SLOT", "FLEET", "STATE", "EXECUTOR", "CLASS", "DEVICE"];
    let count = if devices { columns.len() } else { columns.len() - 1 };
    let rows: Vec<Vec<String>> = rows.into_iter().map(|row| row.into_iter().take(count).collect()).collect();
    table(&columns[..count], &rows)
}
