//! What a fleet says of what it is going to need, and of how long its own requests take.

use crate::support::{LOOK_EVERY, System, WAIT_MAX};
use gateway_api::{DemandSlo, Fleet, PublishDemand};
use gateway_client::Events;
use serde_json::{Value, json};
use std::time::Instant;

async fn fleet(system: &System, what: &str, wanted: impl Fn(&Fleet) -> bool) -> Fleet {
    let begun = Instant::now();
    loop {
        let shown = system.client().fleet("local").await.unwrap_or_else(|e| panic!("{e}")).into_typed();
        if wanted(&shown) {
            return shown;
        }
        assert!(begun.elapsed() < WAIT_MAX, "not {what}: {shown:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn own(fleet: &Fleet) -> usize {
    fleet.slots.iter().filter(|slot| slot.state == "unoffered").count()
}

/// Why slots went back, in order.
async fn causes(system: &System) -> Vec<Value> {
    let events = system.client().all_events(&Events::of_fleet("local")).await.unwrap_or_else(|e| panic!("{e}"));
    let reclaimed = events.into_iter().filter(|event| event["type"] == "dev.ebb.slot.reclaimed.v1");
    reclaimed.map(|event| event["data"]["cause"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_go_back_for_what_a_fleet_foresees_and_for_requests_that_take_too_long() {
    let system = System::start_with(3, &["--lending", "forecast"]).await;
    let client = system.client();
    fleet(&system, "lent", |fleet| own(fleet) == 0).await;
    // Nothing is known of its past yet.
    let says = ["demand", "local", "--needed", "0", "--forecast", "2s=1", "--forecast", "2h=3"];
    assert_eq!(system.ebb_json(&says).await["needed"], 0);
    let shown = fleet(&system, "given one back", |fleet| own(fleet) == 1).await;
    assert_eq!(causes(&system).await, [json!("forecast")]);
    assert!(shown.forecast.iter().all(|of| of.declared && (of.p50, of.p90) == (1, 1)), "{shown:?}");
    let text = system.ebb(&["fleet", "show", "local"]).await;
    assert!(String::from_utf8_lossy(&text.stdout).contains("in 30 s 1, at most 1 as it says"), "{text:?}");

    // A signal without a forecast ends it.
    assert_eq!(client.demand("local", &PublishDemand::needed(0)).await.unwrap().needed, 0);
    let shown = fleet(&system, "lent again", |fleet| own(fleet) == 0).await;
    assert_eq!(shown.forecast, []);

    // All of them, whatever it needs otherwise.
    let says = ["demand", "local", "--needed", "0", "--p99", "501ms", "--p99-limit", "500ms"];
    assert_eq!(system.ebb_json(&says).await["needed"], 3);
    fleet(&system, "back", |fleet| own(fleet) == 3).await;
    let fast = PublishDemand { slo: Some(DemandSlo { p99_ms: 500, limit_ms: 500 }), ..PublishDemand::needed(0) };
    assert_eq!(client.demand("local", &fast).await.unwrap().needed, 0);
    fleet(&system, "lent once more", |fleet| own(fleet) == 0).await;
    system.stop().await;
}
