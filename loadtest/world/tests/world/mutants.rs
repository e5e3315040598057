//! A defect that was mended and is switched on again has to be found.

use loadtest_world::{Mutant, Mutants, run, slow_links, weather};

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

/// One server's link carries a twentieth more than the gradients of the job's steps: it would come in, and slow each of them.
const SLOW_LINK: &str = include_str!("../found/a-newcomer-has-a-slow-link.json");

#[test]
fn a_link_that_nobody_measures_is_found() {
    let schedule = serde_json::from_str(SLOW_LINK).unwrap();
    let finding = |mutants: &Mutants| run(&schedule, mutants).finding.map(|finding| finding.property);
    assert_eq!(finding(&Mutants::default()), None);
    assert_eq!(finding(&Mutants(vec![Mutant::NobodyMeasuresLinks])).as_deref(), Some("no job is slowed to a link"));
}

#[test]
fn a_slow_link_is_known_before_a_slot_is_lent() {
    let outcome = run(&serde_json::from_str(SLOW_LINK).unwrap(), &Mutants::default());
    let facts = |kind: &str| outcome.facts.iter().filter(|((name, _), _)| name == kind).map(|(_, n)| n).sum::<u64>();
    println!("{:?}", outcome.facts);
    assert_eq!((facts("LinkMeasured"), facts("GrowthPaused")), (2, 0), "one for either end: {:?}", outcome.facts);
    assert_eq!(facts("ExecutorAssigned"), 1, "nothing was begun over it: {:?}", outcome.facts);
}

/// Agents of an earlier build, or servers that cannot reach each other but through executors.
#[test]
fn a_slow_link_is_found_out_by_a_newcomer_and_not_tried_again_at_once() {
    let outcome = run(&serde_json::from_str(SLOW_LINK).unwrap(), &Mutants(vec![Mutant::NobodySurveysLinks]));
    let facts = |kind: &str| outcome.facts.iter().filter(|((name, _), _)| name == kind).map(|(_, n)| n).sum::<u64>();
    println!("{:?}", outcome.facts);
    assert_eq!((facts("LinkMeasured"), facts("GrowthPaused")), (2, 0), "{:?}", outcome.facts);
    assert_eq!(facts("ExecutorAssigned"), 2, "one stays, and one was let go: {:?}", outcome.facts);
}

/// What breaks where a link that became slow is found out too late, or never.
const UNNAMED: &str = "who has a slow link is said to straggle for it in time";
/// Seeds of the family in which a link becomes slow under a job that trains.
const SLOW_LATER: std::ops::Range<u64> = 0..100;

/// It is said whose link it is, and its member goes elsewhere or is let go; nobody else is said to straggle, and all comes to rest.
#[test]
fn a_link_that_becomes_slow_is_found_out_and_done_without() {
    let (mut replaced, mut after_ms) = (0, [Vec::new(), Vec::new()]);
    for seed in SLOW_LATER {
        let schedule = slow_links::link_becomes_slow(seed);
        let outcome = run(&schedule, &Mutants::default());
        assert!(outcome.finding.is_none(), "seed {seed}: {:?} {:?}", outcome.finding, outcome.facts);
        let facts = |kind: &str| outcome.facts.iter().filter(|((of, _), _)| of == kind).map(|(_, n)| n).sum::<u64>();
        // Where a server is idle, it may be that one.
        let any_idle = schedule.setup.jobs[0].max < schedule.setup.servers;
        let (straggle, avoided) = (facts("MemberStraggles"), facts("SlotAvoided"));
        assert!(straggle == 1 || any_idle && straggle == 0, "seed {seed}: {:?}", outcome.facts);
        assert_eq!(avoided, if any_idle { straggle } else { 0 }, "seed {seed}: {:?}", outcome.facts);
        replaced += avoided;
        after_ms[usize::from(any_idle)].extend(outcome.named_after_ms);
    }
    for (of, after_ms) in ["none idle", "one idle"].into_iter().zip(&mut after_ms) {
        after_ms.sort_unstable();
        let at = |percent: usize| after_ms[(after_ms.len() - 1) * percent / 100];
        println!("{of}: said after p50 {} ms, p90 {}, longest {}, of {}", at(50), at(90), at(100), after_ms.len());
    }
    assert!(replaced > SLOW_LATER.end / 20, "{replaced} went elsewhere");
}

#[test]
fn a_link_that_becomes_slow_and_that_nobody_measures_is_found() {
    for mutant in [Mutant::NobodySurveysLinks, Mutant::NobodyWatches] {
        let mutants = Mutants(vec![mutant]);
        let all_train = |seed: &u64| {
            let setup = slow_links::link_becomes_slow(*seed).setup;
            setup.jobs[0].max == setup.servers
        };
        for seed in SLOW_LATER.filter(all_train).take(3) {
            let finding = run(&slow_links::link_becomes_slow(seed), &mutants).finding.map(|finding| finding.property);
            assert_eq!(finding.as_deref(), Some(UNNAMED), "seed {seed}: {mutant:?}");
        }
    }
}

/// Seeds of the family whose gradients take longer than anybody waits.
const LONG_GRADIENTS: std::ops::Range<u64> = 0..100;

/// All but the last member of a job have to go, one after the other, and none is in the way of its slot.
#[test]
fn nobody_is_killed_for_the_gradient_that_it_is_at() {
    let mut left = 0;
    for seed in LONG_GRADIENTS {
        let outcome = run(&weather::long_gradients(seed), &Mutants::default());
        assert!(outcome.finding.is_none(), "seed {seed}: {:?}", outcome.finding);
        assert_eq!(outcome.killed_at_deadlines, 0, "seed {seed}: {:?}", outcome.facts);
        left += outcome.generations;
    }
    assert!(left > 2 * LONG_GRADIENTS.end, "{left} generations: members came and went");
}

#[test]
fn a_gradient_that_nobody_listens_in_is_found() {
    let mutants = Mutants(vec![Mutant::NobodyListensMeanwhile]);
    let killed = |seed: &u64| run(&weather::long_gradients(*seed), &mutants).killed_at_deadlines > 0;
    let killed = LONG_GRADIENTS.filter(killed).count() as u64;
    println!("somebody is killed in {killed} of {}", LONG_GRADIENTS.end);
    assert!(killed > LONG_GRADIENTS.end / 2, "{killed}");
}

const RESTLESS: &str = "L5: with constant input nothing new is decided";

/// A fleet offers by name what it has and does not need, again and again.
const OFFERED_AGAIN: &str = include_str!("../found/a-fleet-offers-what-a-forecast-takes.json");

#[test]
fn a_forecast_that_takes_a_slot_again_is_found() {
    let schedule = serde_json::from_str(OFFERED_AGAIN).unwrap();
    let finding = |mutants: &Mutants| run(&schedule, mutants).finding;
    assert_eq!(finding(&Mutants::default()), None);
    let found = finding(&Mutants(vec![Mutant::ForecastsTakeAgain])).map(|finding| finding.property);
    assert_eq!(found.as_deref(), Some(RESTLESS), "it comes and goes for ever");
}

#[test]
fn a_plan_that_follows_the_time_of_day_is_found() {
    let found = found_at(Mutant::PlansFollowTheDay, 0..50);
    println!("{found:?}");
    assert_eq!(found.map(|(_, property)| property).as_deref(), Some(RESTLESS));
}
