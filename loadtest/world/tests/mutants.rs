//! A defect that was mended and is switched on again has to be found.
#![allow(clippy::unwrap_used)]

use loadtest_world::{Mutant, Mutants, run, weather};

/// The first of some seeds at which a mutant shows, with the property that it breaks.
fn found_at(mutant: Mutant, seeds: std::ops::Range<u64>) -> Option<(u64, String)> {
    std::panic::set_hook(Box::new(|_| {}));
    let mutants = Mutants(vec![mutant]);
    seeds.into_iter().find_map(|seed| {
        let found = run(&weather::schedule(seed), &mutants).finding?;
        Some((seed, found.property))
    })
}

/// A job of which a member hung is left on its slot, and there is another one.
#[test]
fn a_job_that_does_not_go_elsewhere_is_found() {
    let property = "a job does not wait for a slot that it avoids beside an idle one";
    // That a batch is written otherwise than it was decided shows elsewhere too.
    let found = (0..300).find_map(|seed| {
        found_at(Mutant::NobodyGoesElsewhere, seed..seed + 1).filter(|(_, broken)| broken == property)
    });
    println!("{found:?}");
    assert!(found.is_some(), "nobody noticed");
}

#[test]
fn a_panic_that_discards_inputs_is_found() {
    let found = found_at(Mutant::PanicsDiscardInputs, 0..300);
    println!("{found:?}");
    assert!(found.is_some(), "nobody noticed");
}
