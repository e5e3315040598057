//! Scenarios of papers that need no recording, by name: `cargo run --release -p loadtest-simulate --example papers -- NAME [SCALE [markdown]]`. What `ebb simulate
//! papers` prints, without building all of Ebb.
#![allow(clippy::unwrap_used)]

use loadtest_simulate::papers::{markdown, named, table};
use std::time::Instant;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    for scenario in named(&arguments[1..2]).unwrap() {
        let begun = Instant::now();
        let scale = arguments.get(2).map_or(1.0, |scale| scale.parse().unwrap());
        let report = scenario.run(None, scale, &mut || begun.elapsed().as_nanos() as u64).unwrap();
        if arguments.len() > 3 {
            print!("{}", markdown(std::slice::from_ref(&report), None));
        }
        println!("{}{:?} {:.1} s", table(&report), report.violations, begun.elapsed().as_secs_f64());
    }
}
