//! How often checkpoints pay, of a job that leaves it to Ebb: from what one cost and how often the job began anew.

use super::{finish, long};
use crate::driver::Driver;
use events_schema::fact::Entry;
use serde_json::json;

/// The interval of Young and Daly for a checkpoint that costs a second, where nothing was lost in the six hours that count as trained before: √(2 · 1 s · 6 h).
const FIRST_MS: f64 = 207_846.0;
/// By so much the time that the test itself trains lengthens it at the most.
const TRAINED: f64 = 1.01;
/// Never more often.
const LEAST_MS: u64 = 30_000;

fn interval_ms(driver: &mut Driver) -> u64 {
    let said = |d: &Driver| d.telemetry.as_ref().and_then(|told| told.checkpoint_every_ms);
    driver.until(|d| said(d).is_some() || d.outcome().is_some());
    said(driver).expect("the job was over before its interval was said; make it longer")
}

#[test]
fn the_interval_between_checkpoints_follows_from_losses_and_from_what_one_cost() {
    for restarts in [0, 3] {
        let mut spec = long(50);
        spec["checkpoint"] = json!({"every": "auto"});
        let mut driver = Driver::digits(spec);
        driver.restarts = restarts;
        let members = driver.ready(2);
        driver.propose(Entry::Fresh, &members, 0, &[]);
        let first_ms = FIRST_MS / f64::from(restarts + 1).sqrt();
        let said_ms = interval_ms(&mut driver);
        assert!(
            (first_ms - 1.0..first_ms * TRAINED).contains(&(said_ms as f64)),
            "{said_ms} ms after {restarts} restarts"
        );
        // Nobody trains while it is written, so it holds up nobody, and the least that counts as its cost pays more often than is allowed.
        driver.park();
        driver.until(|d| !d.checkpoints().is_empty() || d.outcome().is_some());
        driver.unpark();
        driver.telemetry = None;
        let generation = driver.propose(Entry::Recover, &members, 0, &[]);
        driver.until_active(generation);
        assert_eq!(interval_ms(&mut driver), LEAST_MS);
        finish(driver);
    }
}
