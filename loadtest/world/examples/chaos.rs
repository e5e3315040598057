//! Runs schedules from seeds on the command line: `chaos FIRST COUNT [shrink]`.

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |at: usize, or: u64| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(or);
    let (first, count) = (number(1, 0), number(2, 100));
    let shrinks = arguments.get(3).is_some_and(|word| word == "shrink");
    std::panic::set_hook(Box::new(|_| {}));
    let begun = std::time::Instant::now();
    let (mut events, mut failed) = (0, 0);
    let mutants = loadtest_world::Mutants::default();
    let mut met = std::collections::BTreeMap::new();
    for seed in first..first + count {
        let schedule = loadtest_world::weather::schedule(seed);
        let outcome = loadtest_world::run(&schedule, &mutants);
        events += outcome.events;
        for (key, times) in &outcome.met {
            *met.entry(*key).or_insert(0) += times;
        }
        if let Some(finding) = &outcome.finding {
            failed += 1;
            println!("{seed}: {} [{} ms, {} events] {}", finding.property, finding.at_ms, outcome.events, finding.detail);
            if shrinks {
                let small = loadtest_world::shrink(&schedule, &mutants);
                println!("{}", serde_json::to_string(&small).unwrap_or_default());
            }
        } else if arguments.get(3).is_some() {
            println!("{seed}: ok {} ms, {} events, {} steps, {} generations", outcome.time_ms, outcome.events, outcome.steps, outcome.generations);
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("{count} schedules, {failed} failed, {events} events, {seconds:.1} s, {:.0} events/s", events as f64 / seconds);
}
