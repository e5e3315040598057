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

#[test]
fn a_panic_that_discards_inputs_is_found() {
    let found = found_at(Mutant::PanicsDiscardInputs, 0..300);
    println!("{found:?}");
    assert!(found.is_some(), "nobody noticed");
}
