//! Looks at single seeds, or at files of schedules: `chaos FIRST COUNT [shrink] [quiet] [facts] [profiled] [foreseen] [MUTANT]` or `chaos FILE [facts] [MUTANT]`.
//! `quiet` prints findings only, `facts` the schedule, what was decided when, and what controllers and agents noted;
//! with `profiled`, jobs are measured at several sizes before they settle; with `foreseen`, fleets say what they are going to need.

use events_rule::Stream;
use events_schema::Offset;
use events_schema::batch::{EventRecord, from_bytes};
use events_schema::report::ReportRecord;
use loadtest_world::time::At;
use loadtest_world::world::World;
use loadtest_world::{Mutant, Mutants, Outcome, Schedule, foreseen, run, shrink, weather};
use std::process::ExitCode;

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_known = |text: &str| {
        ["shrink", "quiet", "facts", "profiled", "foreseen"].contains(&text)
            || text.ends_with(".json")
            || text.parse::<u64>().is_ok()
    };
    if let Some(unknown) = arguments.iter().find(|text| !is_known(text) && Mutant::named(text).is_none()) {
        eprintln!(
            "`{unknown}` is no seed, file or mutant; expected the name of a mutant such as lost_reports_are_missed"
        );
        return ExitCode::from(2);
    }
    let mutants = Mutants(arguments.iter().filter_map(|name| Mutant::named(name)).collect());
    let numbers: Vec<u64> = arguments.iter().filter_map(|text| text.parse().ok()).collect();
    let says = |word: &str| arguments.iter().any(|argument| argument == word);
    let (shrinks, quiet) = (says("shrink"), says("quiet"));
    match numbers[..] {
        [first, count] => (first..first + count).for_each(|seed| {
            let schedule = match (says("profiled"), says("foreseen")) {
                (true, _) => weather::profiled(seed),
                (_, true) => foreseen::schedule(seed),
                _ => weather::schedule(seed),
            };
            if says("facts") {
                print_facts(&schedule, &mutants);
            }
            let outcome = run(&schedule, &mutants);
            if !quiet || outcome.finding.is_some() {
                print(&seed.to_string(), &outcome);
            }
            if shrinks && outcome.finding.is_some() {
                println!("{}", serde_json::to_string(&shrink(&schedule, &mutants)).unwrap_or_default());
            }
        }),
        _ => arguments.iter().filter(|name| name.ends_with(".json")).for_each(|name| {
            let text = std::fs::read_to_string(name).unwrap_or_default();
            match serde_json::from_str::<Schedule>(&text) {
                Ok(schedule) => {
                    if says("facts") {
                        print_facts(&schedule, &mutants);
                    }
                    print(name, &run(&schedule, &mutants));
                }
                Err(error) => println!("{name} is no schedule: {error}"),
            }
        }),
    }
    ExitCode::SUCCESS
}

fn print(name: &str, outcome: &Outcome) {
    let Outcome { events, time_ms, steps, generations, finding, .. } = outcome;
    match finding {
        Some(found) => println!("{name}: {} [{time_ms} ms, {events} events] {}", found.property, found.detail),
        None => println!("{name}: well, {time_ms} ms, {events} events, {steps} steps, {generations} generations"),
    }
}

/// Everything that the log comes to hold of what agents report and controllers decide, with true time.
fn print_facts(schedule: &Schedule, mutants: &Mutants) {
    println!("{:?}", schedule.setup);
    schedule.entries.iter().for_each(|entry| println!("{entry:?}"));
    println!("heals at {} ms", schedule.heal_at_ms);
    let mut world = World::new(schedule.clone(), mutants.clone());
    world.notes = Some(Vec::new());
    let (mut known, mut reports) = (Offset(0), Offset(0));
    while world.checks.findings.is_empty() && !world.checks.done && world.turn() {
        let noted = world.notes.as_mut().map(std::mem::take).unwrap_or_default();
        noted.iter().for_each(|note| println!("{:>8} {note}", world.now().since_ms(At(0))));
        for record in world.log.records(Stream::Reports, reports).to_vec() {
            reports = record.offset.next();
            let ms = world.now().since_ms(At(0));
            println!("{ms:>8} {} {:?}", record.offset, from_bytes::<ReportRecord>(&record.bytes));
        }
        for record in world.log.records(Stream::Events, known).to_vec() {
            known = record.offset.next();
            let ms = world.now().since_ms(At(0));
            match from_bytes(&record.bytes) {
                Ok(EventRecord::Batch(batch)) => batch.facts.iter().for_each(|fact| println!("{ms:>8} {fact:?}")),
                Ok(other) => println!("{ms:>8} {other:?}"),
                Err(error) => println!("{ms:>8} {error}"),
            }
        }
    }
}
