//! What a newcomer was lent when its lender dies, or when it hangs itself: nobody loses a bit or waits for it.

use super::{begin, finish, recover_from_kill, wide};
use crate::driver::Driver;
use events_schema::Generation;
use events_schema::control::Phase;
use events_schema::fact::Entry;
use events_schema::report::Report;

/// Two members and a newcomer, which is sent the replica or what follows it, or came in just now: it holds what they lent.
fn following(seed: u64) -> (Driver, Generation) {
    let mut driver = begin(wide(seed), 2, 1, 0);
    let from = driver.active_generation();
    let second = driver.propose(Entry::Switch { from }, &[0, 1, 2], 0, &[]);
    driver.until(|d| d.progress.get(&2).is_some_and(|p| p.phase == Phase::Copying) || d.active(second).is_some());
    (driver, second)
}

#[test]
fn whose_lender_is_killed_goes_on_with_what_it_was_lent() {
    for (victim, is_in) in [(0, false), (1, false), (0, true), (1, true)] {
        let (mut driver, second) = following(30 + u64::from(victim));
        if is_in {
            driver.until_active(second);
        }
        recover_from_kill(&mut driver, victim, 1 - victim);
        finish(driver);
    }
}

/// What it was lent is not had back until its process ends, and nobody needs it.
#[test]
fn a_newcomer_that_hangs_with_what_it_was_lent_holds_up_nobody() {
    let (mut driver, second) = following(33);
    let is_in = |d: &Driver| d.active(second).is_some();
    driver.signal(2, "STOP");
    let misses = |d: &Driver| d.reports.iter().any(|(_, report)| matches!(report, Report::PeersMissing { .. }));
    driver.until(|d| misses(d) || d.outcome().is_some());
    if driver.outcome().is_none() {
        assert!(is_in(&driver), "it was no member: {:#?}", driver.reports);
        driver.propose(Entry::Recover, &[0, 1], 0, &[]);
        driver.until_completed();
    }
    driver.kill(2);
    driver.until_gone(2);
    finish(driver);
}
