//! Real executor processes, started, changed and killed: whatever happens, the final model is the plain loop's, bit for bit.
#![allow(clippy::unwrap_used)]

mod driver;
mod lent;
mod long_gradient;
mod many;
mod paced;
mod silent;

use driver::Driver;
use events_schema::control::{Phase, WaitsFor};
use events_schema::fact::Entry;
use events_schema::report::Report;
use events_schema::{Generation, Step};
use serde_json::{Value, json};

fn mlp(steps: u64, workers: u64) -> Value {
    json!({
        "name": "digits", "dataset": "digits", "workers": {"max": workers}, "batch_size": 8, "steps": steps, "seed": 11,
        "model": {"kind": "mlp", "hidden": [64], "dropout": 0.1},
        "optimizer": {"kind": "adamw", "learning_rate": 0.002}, "gradient_clip_norm": 1.0,
        "evaluation": {"dataset": "digits-test", "every_steps": 100}, "checkpoint": {"every_steps": 90},
    })
}

/// Ends the job and compares its model with the plain loop's.
fn finish(mut driver: Driver) -> Driver {
    let outcome = driver.until_completed();
    driver.stop_all();
    let plain = driver.plain();
    assert_eq!(outcome.model_digest, plain.model_digest, "another model; reports: {:#?}", driver.reports);
    assert_eq!(outcome.metrics, plain.evaluations.last().map(|e| e.1.clone()));
    assert_eq!(outcome.step.0, plain.losses.len() as u64);
    let last = plain.losses.last().copied().unwrap_or(0.0);
    assert_eq!(outcome.train_loss_micro, Some((last * 1e6).round() as i64));
    let evaluated: Vec<(Step, _)> = driver
        .reports
        .iter()
        .filter_map(|(_, report)| {
            if let Report::Evaluated { step, metrics, .. } = report { Some((*step, metrics.clone())) } else { None }
        })
        .collect();
    assert!(
        plain.evaluations.iter().all(|e| evaluated.contains(e)),
        "{evaluated:?} lacks some of {:?}",
        plain.evaluations
    );
    driver
}

#[test]
fn one_executor_trains_the_plain_loop_s_model() {
    let mut driver = Driver::digits(mlp(200, 4));
    let members = driver.ready(1);
    driver.propose(Entry::Fresh, &members, 0, &[]);
    let driver = finish(driver);
    // The last one overtakes what is still being written, which may then be left out.
    let saved: Vec<u64> = driver.checkpoints().iter().map(|checkpoint| checkpoint.0.0).collect();
    assert!(saved.contains(&200) && saved.iter().all(|step| [90, 180, 200].contains(step)), "{saved:?}");
    assert!(driver.exits.values().all(|status| status.success()));
}

/// From this a watchdog sees that a process lives while its training thread hangs: only the totals stand still.
#[test]
fn an_executor_says_what_it_is_at() {
    let mut driver = Driver::digits(long(21));
    let members = driver.ready(2);
    driver.until(|d| members.iter().all(|n| d.progress.get(n).is_some_and(|p| p.phase == Phase::Idle)));
    assert!(driver.progress.values().all(|p| p.waits_for == WaitsFor::Controller && p.generation.0 == 0));
    driver.propose(Entry::Fresh, &members[..1], 0, &[]);
    driver.until_step(1);
    driver.until(|d| d.progress[&0].gradients.is_some_and(|done| done.count > 1 && done.took_us > 0));
    driver.until(|d| d.progress[&0].units_done > 4 && d.progress[&0].generation.0 == 1);
    let from = driver.active_generation();
    let both = driver.propose(Entry::Switch { from }, &members, 0, &[]);
    driver.until_active(both);
    driver.until(|d| members.iter().all(|n| d.progress[n].bytes_done > 0 && d.progress[n].processor_ms > 0));
    driver.until_completed();
    assert!(driver.telemetry.as_ref().is_some_and(|told| told.data_wait_us.is_some()));
    driver.until(|d| members.iter().all(|n| d.progress[n].phase == Phase::Still));
    assert!(driver.progress.values().all(|p| p.waits_for == WaitsFor::Controller && p.step.0 == LONG_STEPS));
    finish(driver);
}

#[test]
fn four_executors_train_the_plain_loop_s_model() {
    let mut driver = Driver::digits(mlp(200, 4));
    let members = driver.ready(4);
    driver.propose(Entry::Fresh, &members, 2, &[]);
    finish(driver);
}

/// Steps of a job that is long enough for several changes, each of which is seen by words that come twice a second.
const LONG_STEPS: u64 = 2_400;

/// A job long enough for several changes; newcomers are started before it, so that no test races against a process start.
fn long(seed: u64) -> Value {
    let mut spec = mlp(LONG_STEPS, 4);
    spec["batch_size"] = json!(24);
    spec["model"]["hidden"] = json!([160, 96]);
    spec["seed"] = json!(seed);
    spec
}

/// For as many changes as a schedule has.
fn longer(seed: u64) -> Value {
    let mut spec = long(seed);
    spec["steps"] = json!(4 * LONG_STEPS);
    spec
}

fn begin(spec: Value, members: u32, spare: u32, leader: u32) -> Driver {
    let mut driver = Driver::digits(spec);
    let numbers = driver.ready(members + spare);
    driver.propose(Entry::Fresh, &numbers[..members as usize], leader, &[]);
    driver.until_step(1);
    driver
}

#[test]
fn four_to_one_to_four_without_losing_a_bit() {
    let mut driver = begin(long(1), 4, 3, 0);
    let from = driver.active_generation();
    let second = driver.propose(Entry::Switch { from }, &[2], 2, &[0, 1, 3]);
    driver.until_active(second);
    for leaver in [0, 1, 3] {
        assert!(driver.until_gone(leaver).success());
    }
    let third = driver.propose(Entry::Switch { from: second }, &[2, 4, 5, 6], 2, &[]);
    driver.until_active(third);
    let driver = finish(driver);
    let stepped = driver.reports.iter().find_map(|(by, report)| match report {
        Report::GenerationStepped { generation, first_step_us, usual_step_us, .. } if *generation == third => {
            Some((*by, *first_step_us, *usual_step_us))
        }
        _ => None,
    });
    let (leader, first_step_us, usual_step_us) = stepped.expect("the leader tells of the first step");
    assert_eq!(leader, 2);
    eprintln!("first step of four {first_step_us} us, a step of one {usual_step_us:?} us");
    let held = |n: &u32| {
        driver
            .reports
            .iter()
            .any(|(by, r)| by == n && matches!(r, Report::ReplicaHeld { generation, .. } if *generation == third))
    };
    assert!([4, 5, 6].iter().all(held), "every newcomer says that it holds the replica");
}

/// A replica of 3.6 MB, which newcomers are sent beside the steps.
fn wide(seed: u64) -> Value {
    let mut spec = mlp(1_200, 4);
    spec["model"]["hidden"] = json!([512, 512]);
    spec["seed"] = json!(seed);
    spec
}

#[test]
fn newcomers_to_a_large_replica_follow_before_they_come_in() {
    let mut driver = begin(wide(21), 1, 3, 0);
    let from = driver.active_generation();
    let second = driver.propose(Entry::Switch { from }, &[0, 1], 0, &[]);
    driver.until(|d| d.progress.get(&1).is_some_and(|p| p.phase == Phase::Copying) || d.active(second).is_some());
    driver.until_active(second);
    let third = driver.propose(Entry::Switch { from: second }, &[0, 1, 2, 3], 0, &[]);
    driver.until_active(third);
    let driver = finish(driver);
    let held = |number: u32, of: Generation| {
        let says = |r: &Report| matches!(r, Report::ReplicaHeld { generation, .. } if *generation == of);
        driver.reports.iter().any(|(by, report)| *by == number && says(report))
    };
    assert!(held(1, second) && held(2, third) && held(3, third), "every newcomer says that it holds the replica");
}

/// It is killed while it is sent the replica: the others have nothing to do with that.
#[test]
fn a_newcomer_that_dies_while_it_follows_is_missed_by_nobody() {
    let mut driver = begin(wide(22), 2, 1, 0);
    let from = driver.active_generation();
    let second = driver.propose(Entry::Switch { from }, &[0, 1, 2], 0, &[]);
    driver.until(|d| d.progress.get(&2).is_some_and(|p| p.phase == Phase::Copying) || d.active(second).is_some());
    driver.kill(2);
    driver.until_gone(2);
    let misses = |d: &Driver| d.reports.iter().any(|(_, report)| matches!(report, Report::PeersMissing { .. }));
    driver.until(|d| misses(d) || d.outcome().is_some());
    if misses(&driver) {
        // It was in before it was killed.
        driver.propose(Entry::Recover, &[0, 1], 0, &[]);
    }
    let driver = finish(driver);
    assert!(
        misses(&driver) == driver.active(second).is_some(),
        "only of members anybody misses something: {:#?}",
        driver.reports
    );
}

#[test]
fn random_schedules_train_the_plain_loop_s_wide_mlp() {
    (0..schedules()).for_each(|seed| random_schedule(Driver::digits(wide(400 + seed)), 3000 + seed));
}

#[test]
fn a_leader_hands_over_when_it_is_scaled_in_while_newcomers_arrive() {
    let mut driver = begin(long(2), 2, 2, 0);
    let from = driver.active_generation();
    let second = driver.propose(Entry::Switch { from }, &[1, 2, 3], 1, &[0]);
    driver.until_active(second);
    assert!(driver.until_gone(0).success());
    finish(driver);
}

#[test]
fn a_killed_member_costs_no_step() {
    let mut driver = begin(long(3), 4, 0, 0);
    recover_from_kill(&mut driver, 2, 1);
    finish(driver);
}

#[test]
fn a_killed_leader_costs_no_step() {
    let mut driver = begin(long(4), 4, 0, 1);
    recover_from_kill(&mut driver, 1, 3);
    recover_from_kill(&mut driver, 3, 0);
    recover_from_kill(&mut driver, 0, 2);
    finish(driver);
}

#[test]
fn a_link_lost_between_living_members_is_reported_and_costs_no_step() {
    let mut driver = Driver::digits(long(20));
    let members = driver.ready(3);
    let proxy = driver.behind_proxy(0);
    driver.propose(Entry::Fresh, &members, 1, &[]);
    driver.until_step(1);
    proxy.cut();
    let generation = driver.active_generation();
    let missed = |r: &Report, number| matches!(r, Report::PeersMissing { generation: of, peers, begun: true, .. } if *of == generation && peers[0].number == number);
    driver.until(|d| {
        d.outcome().is_some() || [1, 2].iter().all(|n| d.reports.iter().any(|(by, r)| by == n && missed(r, 0)))
    });
    assert!(driver.outcome().is_none(), "the job was over before the link was lost; make it longer");
    let before = driver.step();
    let healed = driver.propose(Entry::Recover, &members, 2, &[]);
    assert!(driver.until_active(healed).0 >= before);
    let driver = finish(driver);
    assert_eq!(driver.exits.len(), 3, "nobody ended on the way");
}

fn recover_from_kill(driver: &mut Driver, victim: u32, leader: u32) {
    let before = driver.step();
    driver.kill(victim);
    assert!(!driver.until_gone(victim).success());
    let survivors = driver.alive();
    let generation = driver.propose(Entry::Recover, &survivors, leader, &[]);
    let (step, pause_us) = driver.until_active(generation);
    eprintln!("recovered at step {step} after {pause_us} us");
    // The leader tells of a step when it has done it itself; killed then, it takes that one with it, and the same step is done again.
    assert!(step.next() >= before, "steps were lost: {step} after {before}");
}

#[test]
fn a_kill_in_the_middle_of_a_switch_costs_no_step() {
    for victim in [0, 1, 2] {
        let mut driver = begin(long(5 + u64::from(victim)), 2, 1, 0);
        let from = driver.active_generation();
        driver.propose(Entry::Switch { from }, &[0, 1, 2], 0, &[]);
        recover_from_kill(&mut driver, victim, 3 - victim.max(1));
        finish(driver);
    }
}

#[test]
fn members_depart_by_themselves_with_nobody_proposing() {
    let mut driver = begin(long(8), 3, 0, 0);
    for (leaver, leader) in [(1, 0), (0, 2)] {
        driver.leave(leaver);
        assert!(driver.until_gone(leaver).success());
        driver.until(|d| {
            d.reports.iter().any(|(by, r)| {
                *by == leader && matches!(r, Report::MemberDeparted { executor, .. } if executor.number == leaver)
            })
        });
    }
    finish(driver);
}

#[test]
fn a_newcomer_that_dies_is_not_noticed() {
    let mut driver = begin(long(9), 2, 1, 0);
    driver.kill(2);
    driver.until_gone(2);
    let from = driver.active_generation();
    let never = driver.propose(Entry::Switch { from }, &[0, 1, 2], 0, &[]);
    let driver = finish(driver);
    assert_eq!(driver.active(never), None);
}

#[test]
fn all_killed_goes_on_from_the_last_checkpoint() {
    let mut driver = begin(long(10), 3, 0, 0);
    driver.until(|d| !d.checkpoints().is_empty());
    for number in [0, 1, 2] {
        driver.kill(number);
    }
    driver.until(|d| d.exits.len() == 3);
    restore(&mut driver, 2);
    finish(driver);
}

/// Begins again from the newest checkpoint on new executors.
fn restore(driver: &mut Driver, members: u32) {
    let (step, manifest_key) = driver.checkpoints().into_iter().max().unwrap();
    let numbers = driver.ready(members);
    let entry = Entry::Checkpoint { manifest_key, earlier: Vec::new() };
    let generation = driver.propose(entry, &numbers, numbers[0], &[]);
    assert_eq!(driver.until_active(generation).0, step);
}

#[test]
fn a_parked_job_goes_on_elsewhere_as_if_nothing_had_been() {
    let mut driver = begin(long(11), 3, 0, 1);
    driver.park();
    driver.until(|d| d.checkpoints().iter().any(|c| !c.0.0.is_multiple_of(90)) || d.outcome().is_some());
    assert!(driver.outcome().is_none(), "the job was over before it was parked; make it longer");
    driver.stop_all();
    driver.unpark();
    restore(&mut driver, 4);
    finish(driver);
}

#[test]
fn the_last_member_saves_before_it_leaves() {
    let mut driver = begin(long(12), 1, 0, 0);
    driver.leave(0);
    assert!(driver.until_gone(0).success());
    assert!(driver.outcome().is_none() && !driver.checkpoints().is_empty());
    restore(&mut driver, 2);
    finish(driver);
}

/// Trains until there are so many checkpoints and stops; they, oldest first.
fn with_checkpoints(driver: &mut Driver, count: usize) -> Vec<(Step, String)> {
    driver.until(|d| d.checkpoints().len() >= count);
    driver.stop_all();
    let mut written = driver.checkpoints();
    written.sort();
    written
}

/// The lost bit of a disk, in the last byte of a file.
fn damage(file: &std::path::Path) {
    let mut bytes = std::fs::read(file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn a_damaged_checkpoint_gives_way_to_the_next_that_was_accepted_and_that_is_said() {
    let mut driver = begin(long(13), 2, 0, 0);
    let mut written = with_checkpoints(&mut driver, 4);
    let (of, newest) = written.pop().unwrap();
    let shard = newest.replace("manifest.json", "shard-1.safetensors");
    damage(&driver.object(&shard));
    // Sound, but the controller does not name it: a listing would find it.
    let (not_named, _) = written.pop().unwrap();
    let (lacking, incomplete) = written.pop().unwrap();
    let missing = incomplete.replace("manifest.json", "shard-0.safetensors");
    std::fs::remove_file(driver.object(&missing)).unwrap();
    let (before, earlier) = written.pop().unwrap();
    let numbers = driver.ready(2);
    let entry = Entry::Checkpoint { manifest_key: newest, earlier: vec![incomplete, earlier] };
    let generation = driver.propose(entry, &numbers, numbers[0], &[]);
    let begun = driver.until_active(generation).0;
    assert!(begun == before && before < not_named, "began at {begun}");
    for (of, shard, why) in [(of, shard, "BLAKE3"), (lacking, missing, "is missing")] {
        let said = |report: &Report| match report {
            Report::CheckpointDamaged { step, object, reason, .. } if *step == of => {
                assert!(*object == shard && reason.contains(why), "{report:?}");
                true
            }
            _ => false,
        };
        let by: Vec<u32> = driver.reports.iter().filter(|(_, report)| said(report)).map(|(by, _)| *by).collect();
        assert!(!by.is_empty() && by.iter().all(|by| numbers.contains(by)), "of step {of}: {by:?}");
    }
    finish(driver);
}

#[test]
fn a_checkpoint_of_another_format_stops_the_start_instead_of_the_job_beginning_anew() {
    let mut driver = begin(long(15), 1, 0, 0);
    let mut written = with_checkpoints(&mut driver, 2);
    let (of, newest) = written.pop().unwrap();
    let manifest = driver.object(&newest);
    let text = std::fs::read_to_string(&manifest).unwrap();
    let later = text.replace(r#""format_version": 1"#, r#""format_version": 2"#).replace("ebb 0", "ebb 7");
    std::fs::write(&manifest, &later).unwrap();
    let numbers = driver.ready(1);
    let propose = |driver: &mut Driver, manifest_key: &str| {
        let entry = Entry::Checkpoint { manifest_key: manifest_key.to_owned(), earlier: vec![written[0].1.clone()] };
        driver.propose(entry, &numbers, numbers[0], &[])
    };
    let never = propose(&mut driver, &newest);
    let said = |report: &Report| match report {
        Report::CheckpointUnreadable { step, reason, .. } => {
            assert!(*step == of && reason.contains("format 2") && reason.contains("ebb 7."), "{report:?}");
            true
        }
        _ => false,
    };
    driver.until(|d| d.reports.iter().any(|(_, report)| said(report)) || d.active(Generation(2)).is_some());
    // The right build is there again: the same executor goes on with the next proposal.
    std::fs::write(&manifest, text).unwrap();
    let generation = propose(&mut driver, &newest);
    assert_eq!(driver.until_active(generation).0, of);
    let driver = finish(driver);
    assert_eq!(driver.active(never), None, "it did not walk back past it");
}

#[test]
fn an_executor_of_another_class_refuses_to_train() {
    let mut driver = Driver::digits(mlp(10, 1));
    let number = driver.spawn_of_class(events_schema::Digest::of(b"another host"));
    assert!(!driver.until_gone(number).success());
    assert!(driver.reports.is_empty());
}

#[test]
fn an_executor_ends_with_its_agent() {
    let mut driver = begin(long(14), 2, 0, 0);
    driver.close(1);
    assert!(!driver.until_gone(1).success());
}

#[test]
fn a_missing_object_breaks_the_job_and_is_named() {
    let mut driver = Driver::digits(mlp(50, 2));
    let numbers = driver.ready(2);
    let part = driver.remove_dataset_part();
    driver.propose(Entry::Fresh, &numbers, 0, &[]);
    driver.until(|d| d.reports.iter().any(|(_, r)| matches!(r, Report::JobBroken { .. })));
    let named = driver.reports.iter().any(|(_, r)| matches!(r, Report::JobBroken { reason, .. } if reason.contains(&part) && reason.contains("submit the job again")));
    assert!(named, "{part} is not in {:?}", driver.reports);
}

fn cnn(seed: u64) -> Value {
    json!({
        "name": "digits", "dataset": "digits", "workers": {"max": 4}, "batch_size": 8, "steps": LONG_STEPS, "seed": seed,
        "model": {"kind": "cnn", "channels": [8, 16], "blocks": 1, "groups": 4, "dropout": 0.1},
        "optimizer": {"kind": "sgd", "learning_rate": 0.05, "momentum": 0.9}, "schedule": {"kind": "cosine", "warmup_steps": 10},
        "evaluation": {"dataset": "digits-test", "every_steps": 500}, "checkpoint": {"every_steps": 400},
    })
}

fn gpt(seed: u64) -> Value {
    json!({
        "name": "text", "dataset": "text", "workers": {"max": 5}, "batch_size": 3, "steps": LONG_STEPS, "seed": seed,
        "model": {"kind": "gpt", "layers": 2, "heads": 2, "width": 32, "context": 32, "dropout": 0.1},
        "optimizer": {"kind": "adamw", "learning_rate": 0.003}, "gradient_clip_norm": 0.5, "checkpoint": {"every_steps": 400},
    })
}

/// Schedules per model; more with `EBB_SCHEDULES`.
fn schedules() -> u64 {
    std::env::var("EBB_SCHEDULES").ok().and_then(|n| n.parse().ok()).unwrap_or(2)
}

#[test]
fn random_schedules_train_the_plain_loop_s_mlp() {
    (0..schedules()).for_each(|seed| random_schedule(Driver::digits(longer(100 + seed)), seed));
}

#[test]
fn random_schedules_train_the_plain_loop_s_cnn() {
    (0..schedules()).for_each(|seed| random_schedule(Driver::digits(cnn(200 + seed)), 1000 + seed));
}

#[test]
fn random_schedules_train_the_plain_loop_s_gpt() {
    (0..schedules()).for_each(|seed| random_schedule(Driver::text(gpt(300 + seed)), 2000 + seed));
}

/// Scale events, departures and kills drawn from a seed, until the job is done.
fn random_schedule(mut driver: Driver, seed: u64) {
    const SPARES: u32 = 5;
    let mut chance = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut draw = move |below: usize| {
        chance ^= chance << 13;
        chance ^= chance >> 7;
        chance ^= chance << 17;
        (chance >> 33) as usize % below.max(1)
    };
    let workers = usize::from(driver.spec.workers.max);
    let mut members = driver.ready(1 + draw(workers) as u32);
    let mut spares = driver.ready(SPARES);
    let mut generation = driver.propose(Entry::Fresh, &members, members[0], &[]);
    driver.until_active(generation);
    let mut changes = Vec::new();
    for _ in 0..8 {
        let pause = driver.step().0 + draw(12) as u64;
        driver.until_step(pause);
        if driver.outcome().is_some() {
            break;
        }
        let victim = members[draw(members.len())];
        let change = match draw(4) {
            0 if members.len() > 1 => {
                driver.kill(victim);
                driver.until_gone(victim);
                members.retain(|m| *m != victim);
                generation = driver.propose(Entry::Recover, &members, members[draw(members.len())], &[]);
                format!("kill {victim}")
            }
            1 if members.len() > 1 => {
                driver.leave(victim);
                driver.until_gone(victim);
                members.retain(|m| *m != victim);
                let change = format!("departure of {victim}");
                if driver.goes_on_without(victim, &members) {
                    changes.push(change);
                    continue;
                }
                generation = driver.propose(Entry::Recover, &members, members[0], &[]);
                change
            }
            _ => {
                let before = members.clone();
                while members.len() < workers && !spares.is_empty() && draw(2) == 0 {
                    members.extend(spares.pop());
                }
                members.sort_unstable();
                let stayer = before[draw(before.len())];
                members.retain(|m| *m == stayer || draw(3) > 0);
                generation = driver.propose(Entry::Switch { from: generation }, &members, stayer, &before);
                format!("{before:?} to {members:?}")
            }
        };
        driver.until(|d| d.active(generation).is_some() || d.outcome().is_some());
        changes.extend(driver.active(generation).map(|_| change));
    }
    assert!(changes.len() > 2, "seed {seed}: the job was over too soon; make it longer: {changes:?}");
    eprintln!("seed {seed}: {changes:?} up to step {}", driver.step());
    finish(driver);
}
