//! Fits the free parameters of the IBM scenarios on the rows of the paper's baseline, and on nothing else: steps by chance from what is used now,
//! of which those that are nearer are kept. `cargo run --release -p loadtest-simulate --example fit_ibm -- 3|4 SEEDS SECONDS`.
#![allow(clippy::unwrap_used)]

use loadtest_simulate::papers::ibm::{Chosen, FOUR, THREE, Table, baseline_errors};
use std::time::{Duration, Instant};

/// How far a step goes, as a share of each number.
const STEP: f64 = 0.08;

/// Numbers by chance from a seed (SplitMix64), so that a fit can be repeated.
struct Chance(u64);

impl Chance {
    /// A factor near 1.
    fn factor(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        1.0 + STEP * (((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64 * 2.0 - 1.0)
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let (table, seeds) = (&arguments[1], arguments[2].parse::<u64>().unwrap());
    let limit = Duration::from_secs(arguments[3].parse().unwrap());
    let (table, scales): (Table, bool) = if table == "3" { (THREE, true) } else { (FOUR, false) };
    let score = |chosen: Chosen| {
        let errors = baseline_errors(&table.with(chosen), 1..1 + seeds).unwrap();
        (errors.iter().map(|error| error * error).sum::<f64>(), errors)
    };
    let (begun, mut chance) = (Instant::now(), Chance(1));
    let (mut best, mut nearest) = (table.chosen, score(table.chosen));
    println!("{nearest:?} {best:?}");
    while begun.elapsed() < limit {
        let mut next = best;
        next.rates = (next.rates.0 * chance.factor(), next.rates.1 * chance.factor());
        if scales {
            // Those of category 1 are printed, and category 4 exchanges nothing.
            next.step_ms[1] *= chance.factor();
            next.step_ms[2] *= chance.factor();
        }
        let found = score(next);
        if found.0 < nearest.0 {
            (best, nearest) = (next, found);
            println!("{nearest:?} {best:?}");
        }
    }
}
