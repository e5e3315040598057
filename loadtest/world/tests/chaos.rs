//! Fresh seeds for a while, the seeds of every failure ever found, and defects that have to be found.

use loadtest_world::{Mutant, Mutants, Outcome, Schedule, run, weather};
use std::time::{Duration, Instant, SystemTime};

fn quiet() {
    // A machine's panic is caught and is a finding; its own words would only stand between the lines.
    std::panic::set_hook(Box::new(|_| {}));
}

fn of_seed(seed: u64) -> Outcome {
    run(&weather::schedule(seed), &Mutants::default())
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..5 {
        let (one, other) = (of_seed(seed), of_seed(seed));
        assert_eq!(format!("{one:?}"), format!("{other:?}"));
    }
}
