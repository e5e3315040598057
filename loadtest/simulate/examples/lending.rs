//! Lending with a forecast beside reactive lending, day by day: what `docs/experiments.md` shows of it.
//! `cargo run --release -p loadtest-simulate --example lending -- FILE:COLUMN FROM-DAY DAYS SLOTS [OPTION=VALUE …]`
//!
//! A fleet of SLOTS needs what the curve says from FROM-DAY on, straight between its points, for so many days; jobs that never end use all that is lent. The first
//! days that nothing is forecast of are left out. OPTIONS: look (s between two looks of the fleet), step (ms), headroom (slots, under reactive lending, as a third run).
#![allow(clippy::unwrap_used)]

use controller_core::policy::WithLending;
use controller_core::policy_by_name;
use controller_core::state::past::DAY_MS;
use loadtest_simulate::paired::interval;
use loadtest_simulate::setup::{Shape, jobs};
use loadtest_simulate::tally::Sums;
use loadtest_simulate::{Cluster, Costs, Demand, Setup, Tables, TraceJob, Work, run};
use std::collections::BTreeMap;
use std::time::Instant;

/// Nothing is forecast before two days are known; the third begins without any error measured.
const LEFT_OUT_DAYS: u64 = 3;

/// The column of a curve, in points that are equally far apart, and how far (s).
fn curve(named: &str) -> (Vec<f64>, f64) {
    let (file, column) = named.rsplit_once(':').unwrap();
    let text = std::fs::read_to_string(file).unwrap();
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let place = lines.next().unwrap().split(',').position(|name| name == column).unwrap();
    let values: Vec<f64> = lines.map(|line| line.split(',').nth(place).unwrap().parse().unwrap()).collect();
    // Of those here a row is ten minutes, or half an hour where it is a date.
    (values, if text.starts_with("timestamp") { 1_800.0 } else { 600.0 })
}

/// Jobs that use all that there is: each on one slot at the least.
fn endless(count: usize, workers: u16, days: u64) -> Vec<TraceJob> {
    let work = Work::Seconds(days as f64 * 86_400.0 * 4.0);
    (0..count).map(|number| TraceJob::new(format!("job-{number}"), workers, work)).collect()
}

/// The differences of sums from day to day: of the fleet that serves.
fn days(course: &[Sums], every_ms: u64, from: u64, until: u64) -> Vec<[f64; 6]> {
    let at = |day: u64| &course[((day * DAY_MS / every_ms) as usize).min(course.len() - 1)];
    let of = |day: u64| {
        let (before, after) = (at(day).fleets.last().unwrap(), at(day + 1).fleets.last().unwrap());
        std::array::from_fn(|place| (after[place] - before[place]) as f64 / 1e3)
    };
    (from..until).map(of).collect()
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |place: usize| -> u64 { arguments[place].parse().unwrap() };
    let (from_day, count_days, slots) = (number(2), number(3), number(4));
    let pairs = arguments[5..].iter().map(|pair| pair.split_once('=').unwrap());
    let options: BTreeMap<&str, u64> = pairs.map(|(name, value)| (name, value.parse().unwrap())).collect();
    let option = |name: &str, default: u64| options.get(name).copied().unwrap_or(default);
    let (values, apart_s) = curve(&arguments[1]);
    let per_day = (86_400.0 / apart_s) as usize;
    let values = values.iter().skip(from_day as usize * per_day).take(count_days as usize * per_day);
    let points: Vec<(f64, f64)> = values.enumerate().map(|(at, value)| (at as f64 * apart_s, *value)).collect();
    let costs = Costs::measured(200);
    let shape = Shape { min_share: 0.0, max_share: 1.0, step_ms: option("step", 500), speed_up: 1.0, goodput: false };
    let recorded = endless(8, (slots / 4).max(2) as u16, count_days);
    let period_ms = count_days * DAY_MS;
    let demand = Demand::looked_at(&points, slots as u32, period_ms, option("look", 5) * 1_000);
    let begun = Instant::now();
    let outcome = |forecast_day_ms: Option<u64>, headroom: u64| {
        let setup = Setup {
            inference: format!("{}x4:t4", slots / 4).parse::<Cluster>().unwrap(),
            demand: vec![Demand { headroom: headroom as u32, ..demand.clone() }],
            until_ms: Some(period_ms),
            ..Setup::of_training_alone(
                jobs(&recorded, &Tables::default(), &shape, &costs, 0).unwrap().0,
                "2x4:t4".parse().unwrap(),
                costs,
                0,
            )
        };
        let policy = WithLending { policy: policy_by_name("ebb").unwrap(), forecast_day_ms };
        let outcome = run(&setup, &policy, &mut || begun.elapsed().as_nanos() as u64);
        assert!(outcome.tally.violations.is_empty(), "{:?}", outcome.tally.violations);
        outcome
    };
    let until = count_days.min(points.len() as u64 / per_day as u64);
    let reactive = outcome(None, 0);
    let of = |tally: &loadtest_simulate::tally::Tally| days(&tally.course, tally.course_every_ms, LEFT_OUT_DAYS, until);
    let base = of(&reactive.tally);
    let mean = |days: &[[f64; 6]], place: usize| days.iter().map(|day| day[place]).sum::<f64>() / days.len() as f64;
    println!(
        "{} days {}-{} slots {slots} {options:?}: {} days; a day reactive: harvested {:.0} unmet {:.1} short {:.1}; scalings {} returns {}",
        arguments[1],
        from_day,
        from_day + count_days,
        base.len(),
        mean(&base, 2),
        mean(&base, 4),
        mean(&base, 5),
        reactive.tally.scalings,
        reactive.tally.returns_ms.len()
    );
    for (name, other) in [("forecast", outcome(Some(DAY_MS), 0))]
        .into_iter()
        .chain(options.get("headroom").map(|slots| ("headroom", outcome(None, *slots))))
    {
        let found = of(&other.tally);
        let ratio = |place: usize| {
            let ratios: Vec<f64> = found.iter().zip(&base).map(|(day, base)| day[place] / base[place]).collect();
            interval(&ratios).map_or(String::new(), |of| format!("{:.4} ± {:.4}", of.mean, of.half_width))
        };
        println!(
            "  {name}: harvested {} unmet {} short from rise {}; scalings {} returns {} plans {} preemptions {}",
            ratio(2),
            ratio(4),
            ratio(5),
            other.tally.scalings,
            other.tally.returns_ms.len(),
            other.tally.plans,
            other.tally.preemptions
        );
        for forecast in other.forecasts.iter().flatten() {
            print!(
                "    {} s: off {:.2} covered {:.3};",
                forecast.in_ms / 1_000,
                forecast.error_milli as f64 / 1e3,
                forecast.covered_milli as f64 / 1e3
            );
        }
        println!(" {:.0} s", begun.elapsed().as_secs_f64());
    }
}
