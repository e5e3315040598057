//! Looks at single seeds, or at files of schedules: `chaos FIRST COUNT [shrink] [MUTANT]` or `chaos FILE`.

use loadtest_world::{Mutant, Mutants, Outcome, Schedule, run, shrink, weather};

fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quoted = |name: &String| serde_json::from_value::<Mutant>(serde_json::Value::from(name.as_str())).ok();
    let mutants = Mutants(arguments.iter().filter_map(quoted).collect());
    let numbers: Vec<u64> = arguments.iter().filter_map(|text| text.parse().ok()).collect();
    let shrinks = arguments.iter().any(|word| word == "shrink");
    match numbers[..] {
        [first, count] => (first..first + count).for_each(|seed| {
            let schedule = weather::schedule(seed);
            let outcome = run(&schedule, &mutants);
            print(&seed.to_string(), &outcome);
            if shrinks && outcome.finding.is_some() {
                println!("{}", serde_json::to_string(&shrink(&schedule, &mutants)).unwrap_or_default());
            }
        }),
        _ => arguments.iter().filter(|name| name.ends_with(".json")).for_each(|name| {
            let text = std::fs::read_to_string(name).unwrap_or_default();
            match serde_json::from_str::<Schedule>(&text) {
                Ok(schedule) => print(name, &run(&schedule, &mutants)),
                Err(error) => println!("{name} is no schedule: {error}"),
            }
        }),
    }
}

fn print(name: &str, outcome: &Outcome) {
    let Outcome { events, time_ms, steps, generations, finding, .. } = outcome;
    match finding {
        Some(found) => println!("{name}: {} [{time_ms} ms, {events} events] {}", found.property, found.detail),
        None => println!("{name}: well, {time_ms} ms, {events} events, {steps} steps, {generations} generations"),
    }
}
