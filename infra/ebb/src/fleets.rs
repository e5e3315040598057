//! Commands about fleets and slots. A fleet speaks with its own controller here; the direct way is in `take_back.rs`.

use crate::args::{DemandArgs, DemandCommand, FleetPutArgs, OffersName, RecallArgs, SlotsArgs, ms};
use crate::demand_follow;
use crate::failure::Failure;
use crate::output::{Output, json, line, pairs, table};
use crate::wire::{Fleet, Slot, words};
use events_schema::{FleetId, ServerId};
use gateway_api::{
    DeclareFleet, DemandSlo, FleetForecast, NameSlots, Offers, PublishDemand, RecallFleet, ServerSlots, SlotsOfServer,
};
use gateway_client::{Answer, Client, WantedSlots};
use serde_json::json;

/// Characters of a numeric class in a table.
const CLASS_SHOWN: usize = 12;

/// `ebb fleets`.
pub async fn list(client: &Client, output: Output) -> Result<(), Failure> {
    let fleets = client.fleets(None).await?;
    match output {
        Output::Json => {
            json(&json!({ "fleets": fleets }));
            return Ok(());
        }
        Output::Name => {
            fleets.iter().for_each(|fleet| line(&fleet.name));
            return Ok(());
        }
        Output::Table => {}
    }
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
    print_fleet(output, &client.fleet(name.as_str()).await?);
    Ok(())
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
    let of_server = |(server, slots): (&ServerId, &u16)| ServerSlots {
        server: server.to_string(),
        slots: SlotsOfServer::Count(*slots),
    };
    let offers = match args.offers {
        OffersName::ByDemand => Offers::ByDemand,
        OffersName::Explicit => Offers::Explicit,
    };
    let fleet = DeclareFleet {
        servers: args.server.iter().zip(&args.slots).map(of_server).collect(),
        offers: Some(offers),
        reclaim_deadline_ms: Some(args.reclaim_deadline_ms),
    };
    print_fleet(output, &client.declare_fleet(args.name.as_str(), &fleet).await?);
    Ok(())
}

/// `ebb offer`.
pub async fn offer(client: &Client, output: Output, args: &SlotsArgs) -> Result<(), Failure> {
    print_fleet(output, &client.offer(args.fleet.as_str(), &named(args)).await?);
    Ok(())
}

/// `ebb reclaim`.
pub async fn reclaim(client: &Client, output: Output, args: &SlotsArgs) -> Result<(), Failure> {
    print_fleet(output, &client.reclaim(args.fleet.as_str(), &named(args)).await?);
    Ok(())
}

fn named(args: &SlotsArgs) -> NameSlots {
    NameSlots { slots: args.slots.iter().map(ToString::to_string).collect() }
}

/// `ebb fleet recall`.
pub async fn recall(client: &Client, output: Output, args: &RecallArgs) -> Result<(), Failure> {
    let recall = RecallFleet { slots: args.slots };
    print_fleet(output, &client.recall(args.fleet.as_str(), &recall).await?);
    Ok(())
}

/// `ebb fleet release`.
pub async fn release(client: &Client, output: Output, fleet: &FleetId) -> Result<(), Failure> {
    print_fleet(output, &client.release(fleet.as_str()).await?);
    Ok(())
}

/// `ebb demand`.
pub async fn demand(client: &Client, output: Output, args: &DemandArgs) -> Result<(), Failure> {
    if let Some(DemandCommand::Follow(args)) = &args.command {
        return demand_follow::follow(client, output, args).await;
    }
    let fleet = args.fleet.as_ref().ok_or_else(|| Failure::Usage("a fleet is missing".to_owned()))?;
    let slo = args.p99.zip(args.p99_limit).map(|(p99, limit)| DemandSlo { p99_ms: ms(p99), limit_ms: ms(limit) });
    let demand = PublishDemand {
        needed: args.needed,
        utilization: args.utilization,
        target: args.utilization.map(|_| args.target),
        forecast: args.forecast.clone(),
        slo,
        ..PublishDemand::default()
    };
    let answer = client.demand(fleet.as_str(), &demand).await?;
    match output {
        Output::Json => json(&answer),
        Output::Name => line(fleet.as_str()),
        Output::Table => line(format!("{fleet} needs {} of its slots (signal {})", answer.needed, answer.sequence)),
    }
    Ok(())
}

/// `ebb slots`.
pub async fn slots(client: &Client, output: Output) -> Result<(), Failure> {
    let slots = client.slots(&WantedSlots::default()).await?;
    match output {
        Output::Json => json(&json!({ "slots": slots })),
        Output::Name => slots.iter().for_each(|slot| line(&slot.slot)),
        Output::Table => line(slot_table(&slots.into_iter().map(Answer::into_typed).collect::<Vec<Slot>>())),
    }
    Ok(())
}

fn print_fleet(output: Output, fleet: &Answer<Fleet>) {
    match output {
        Output::Json => return json(fleet),
        Output::Name => return line(&fleet.name),
        Output::Table => {}
    }
    line(pairs(&[
        ("fleet", fleet.name.clone()),
        ("needs", fleet.needed.map(|n| format!("{n} of {} slots", fleet.slots.len())).unwrap_or_default()),
        ("recalled", fleet.recalled.map(|held| recalled(&fleet.name, held, fleet.slots.len())).unwrap_or_default()),
        ("is going to need", fleet.forecast.iter().map(forecast).collect::<Vec<_>>().join("; ")),
        ("offers", words(&fleet.offers)),
        ("reclaim deadline", format!("{} ms", fleet.reclaim_deadline_ms)),
    ]));
    line(slot_table(&fleet.slots));
}

fn forecast(of: &FleetForecast) -> String {
    let seconds = of.in_ms.div_ceil(1_000);
    if of.declared {
        return format!(
            "in {seconds} s {}, at most {} as it says (off by {:.1})",
            of.p50,
            of.p90,
            of.error_milli as f64 / 1_000.0
        );
    }
    format!("in {seconds} s {}, at most {} (off by {:.1})", of.p50, of.p90, of.error_milli as f64 / 1_000.0)
}

fn recalled(name: &str, held: u32, slots: usize) -> String {
    format!("keeps {held} of {slots} slots until `ebb fleet release {name}`")
}

fn slot_table(slots: &[Slot]) -> String {
    // What none of them has is no column.
    type Cell = fn(&Slot) -> Option<String>;
    let others: [(&str, Cell); 5] = [
        ("TYPE", |s| s.slot_type.clone()),
        ("DEVICE", |s| s.device.as_ref().map(|of| format!("{} {} MiB {}", of.name, of.memory_bytes >> 20, of.uuid))),
        ("GUEST", |s| {
            s.guest.as_ref().map(|guest| guest.executor.clone().or_else(|| guest.job.clone()).unwrap_or_default())
        }),
        ("BUSY", |s| s.guest.as_ref()?.host_busy_percent.map(|percent| format!("{percent} %"))),
        ("WRONG", |s| s.quarantined.clone()),
    ];
    let others: Vec<(&str, Cell)> =
        others.into_iter().filter(|(_, cell)| slots.iter().any(|slot| cell(slot).is_some())).collect();
    let always = ["SLOT", "FLEET", "STATE", "EXECUTOR", "CLASS"].into_iter();
    let columns: Vec<&str> = always.chain(others.iter().map(|(column, _)| *column)).collect();
    let row = |s: &Slot| {
        let class = s.class.as_deref().unwrap_or_default().chars().take(CLASS_SHOWN).collect();
        let on_it = s.executor.clone().or_else(|| s.job.clone()).unwrap_or_default();
        let always =
            [s.slot.clone(), s.fleet.clone().unwrap_or_default(), s.state.to_string(), on_it, class].into_iter();
        always.chain(others.iter().map(|(_, cell)| cell(s).unwrap_or_default())).collect()
    };
    let rows: Vec<Vec<String>> = slots.iter().map(row).collect();
    table(&columns, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gateway_api::SlotGuest;

    #[test]
    fn a_slot_table_says_what_is_wrong_also_of_a_slot_without_a_device_and_has_no_empty_column() {
        let plain = Slot { slot: "a/0".to_owned(), ..Slot::default() };
        assert_eq!(
            slot_table(std::slice::from_ref(&plain)).lines().next(),
            Some("SLOT  FLEET  STATE  EXECUTOR  CLASS")
        );
        let wrong = Slot {
            slot: "a/1".to_owned(),
            quarantined: Some("the replica there differed".to_owned()),
            guest: Some(SlotGuest { host_busy_percent: Some(63), ..SlotGuest::default() }),
            ..Slot::default()
        };
        let shown = slot_table(&[plain, wrong]);
        let words = |line: usize| shown.lines().nth(line).unwrap_or_default().split_whitespace().collect::<Vec<_>>();
        assert_eq!(words(0)[5..], ["GUEST", "BUSY", "WRONG"]);
        assert_eq!(words(2).join(" "), "a/1 63 % the replica there differed", "{shown}");
    }
}
