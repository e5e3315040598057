//! Jobs that train a stretch of another one once more: with whose replica they begin, on how many slots, what is refused, what is left.

use crate::stories::*;
use crate::world::World;
use controller_core::Orphans;
use controller_core::limits::ORPHAN_AGE_MS;
use controller_core::policy::WorkLeft;
use events_schema::command::Command;
use events_schema::fact::{Entry, Refusal};
use events_schema::job::JobSpec;
use events_schema::{Digest, JobId, TimeMs};
use serde_json::{Value, json};

/// A job with checkpoints of steps 150 and 200 that was cancelled then, so that all slots are free.
fn trained() -> (World, JobId) {
    let (mut world, id) = training();
    for _ in 0..20 {
        world.train(&id);
    }
    world.deliver_all();
    assert_eq!(job(&world, &id).checkpoints.iter().map(|c| c.step.0).collect::<Vec<_>>(), [150, 200]);
    world.command(Command::CancelJob { job: id.clone() });
    world.run();
    (world, id)
}

fn again(id: &JobId, stretch: Value) -> JobSpec {
    spec_with(|document| {
        document["name"] = json!("again");
        document["checkpoint"] = json!({"every_steps": 50, "keep": 9});
        document["retrains"] = stretch;
        document["retrains"]["job"] = json!(id);
    })
}

#[test]
fn it_begins_with_the_other_jobs_checkpoint_on_its_own_number_of_slots_and_class() {
    let (mut world, id) = trained();
    let mark = world.log.len();
    let class = job(&world, &id).class;
    let retraining = world.submit(again(&id, json!({"from_step": 150, "to_step": 400, "slots": 2})));
    assert!(class.is_some() && job(&world, &retraining).class == class, "before it has any slot");
    world.run();
    let origin = job(&world, &id).checkpoints[0].manifest_key.clone();
    let begins = Entry::Checkpoint { manifest_key: origin.clone(), earlier: Vec::new() };
    assert_eq!(proposed(&since(&world, mark)), [&begins]);
    assert_eq!((members(&world, &retraining), job(&world, &retraining).slots().len()), (vec![0, 1], 2));
    assert_eq!(reason(&world, &retraining).waits, None, "four slots are free, and it wants no more");

    // Lost altogether, it goes on from its own checkpoint, with the other job's behind it.
    for _ in 0..6 {
        world.train(&retraining);
    }
    world.deliver_all();
    let own = job(&world, &retraining).last_checkpoint().unwrap().manifest_key.clone();
    assert_ne!(own, origin);
    let mark = world.log.len();
    for process in world.processes() {
        world.end_process(&process, events_schema::report::ExitCause::Killed);
    }
    world.deliver_all();
    world.pass(120_000);
    world.run();
    let facts = since(&world, mark);
    let entries = proposed(&facts);
    let Some(Entry::Checkpoint { manifest_key, earlier }) = entries.last() else { panic!("{entries:?}") };
    assert_eq!((manifest_key, earlier.last()), (&own, Some(&origin)));
    assert!(world.run_to_end(300));
    assert_eq!(phase(&world, &retraining), "finished");
    calm(&world);
}

#[test]
fn what_it_wrote_is_of_use_for_a_day() {
    let (mut world, id) = trained();
    let retraining = world.submit(again(&id, json!({"from_step": 150, "to_step": 250, "slots": 1})));
    let orphan = |world: &World, id: &JobId, key: &str, age_ms: u64| {
        Orphans::of(&world.state, id, TimeMs(2 * ORPHAN_AGE_MS)).unwrap().has(key, TimeMs(2 * ORPHAN_AGE_MS - age_ms))
    };
    let model = storage_keys::model(&retraining);
    assert!(!orphan(&world, &retraining, &model, 2 * ORPHAN_AGE_MS), "it is on its way");
    assert!(world.run_to_end(300));
    let saved = job(&world, &retraining).last_checkpoint().unwrap().manifest_key.clone();
    for key in [&model, &saved] {
        assert!(
            orphan(&world, &retraining, key, ORPHAN_AGE_MS) && !orphan(&world, &retraining, key, ORPHAN_AGE_MS - 1)
        );
    }
    let of_other = job(&world, &id).checkpoints[0].manifest_key.clone();
    assert!(
        !orphan(&world, &id, &of_other, 2 * ORPHAN_AGE_MS),
        "of a job that trained for itself nothing that counts goes"
    );
    calm(&world);
}

#[test]
fn what_is_no_stretch_of_such_a_job_is_refused() {
    let (mut world, id) = trained();
    let refused = |world: &mut World, spec: JobSpec| {
        let command = Command::SubmitJob {
            job: JobId::parse("job-z").unwrap(),
            spec: Box::new(spec),
            body_digest: Digest::of(b""),
        };
        match refusal(&world.command(command)) {
            Refusal::Unfit { field, expected, .. } => format!("{field}: {expected}"),
            other => panic!("{other:?}"),
        }
    };
    let nobody = JobId::parse("job-nobody").unwrap();
    let found = refused(&mut world, again(&nobody, json!({})));
    assert!(found.starts_with("retrains.job: a job that this service remembers"), "{found}");
    let found = refused(&mut world, again(&id, json!({"from_step": 100})));
    assert!(found.contains("has a checkpoint: 200, 150"), "{found}");
    let other = Digest::of(b"another replica").to_string();
    let found = refused(&mut world, again(&id, json!({"from_step": 150, "replica_digest": other})));
    assert!(
        found.starts_with("retrains.replica_digest: the digest of the replica in the checkpoint of step 150"),
        "{found}"
    );
    let mut document = again(&id, json!({})).document();
    document["seed"] = json!(2);
    let found = refused(&mut world, JobSpec::parse(&document).unwrap());
    assert!(found.starts_with("retrains.job: a job with the same spec as this one"), "{found}");
    let first = world.submit(again(&id, json!({})));
    let found = refused(&mut world, again(&first, json!({})));
    assert!(found.ends_with(&format!("this one retrains `{id}`, which can be named instead")), "{found}");
}

/// `JobSpec::trains_as` lets these differ; the user is told of each.
#[test]
fn the_refusal_of_another_spec_names_all_that_may_differ() {
    let (mut world, id) = trained();
    let mut document = again(&id, json!({})).document();
    document["seed"] = json!(2);
    let other = JobSpec::parse(&document).unwrap();
    let command =
        Command::SubmitJob { job: JobId::parse("job-z").unwrap(), spec: Box::new(other), body_digest: Digest::of(b"") };
    let Refusal::Unfit { expected, .. } = refusal(&world.command(command)) else { panic!("it is not unfit") };
    let freed = [
        ("name", json!("x")),
        ("workers.min", json!(2)),
        ("checkpoint", json!({"every_steps": 7, "keep": 3})),
        ("compare_every_steps", json!(7)),
        ("priority", json!(3)),
        ("suspend", json!(true)),
        ("max_restarts", json!(3)),
        ("unit_timeout_ms", json!(7_000)),
        ("store_patience_ms", json!(200_000)),
        ("tenant", json!("research")),
        ("profile", json!({"sizes": [2, 4], "seconds": 60})),
    ];
    let original = job(&world, &id).spec.clone();
    for (field, value) in freed {
        let spec = spec_with(|document| match field.split_once('.') {
            Some((of, field)) => document[of][field] = value,
            None => document[field] = value,
        });
        assert!(spec != *original && spec.trains_as(&original), "{field}");
        assert!(expected.contains(&format!("`{field}`")), "{field}: {expected}");
    }
}

#[test]
fn its_work_is_the_stretch_alone() {
    let (mut world, id) = trained();
    let retraining = world.submit(again(&id, json!({"from_step": 150, "to_step": 250, "slots": 2})));
    world.run();
    stepped(&mut world, &retraining, 2_000_000);
    let [WorkLeft::Estimated { total_ms, done_ms, .. }] = left(&world)[..] else { panic!("one is known") };
    assert_eq!((total_ms, done_ms), (200_000, 0), "100 steps on its two slots");
}

#[test]
fn it_fails_when_its_beginning_is_gone_before_it_began() {
    let (mut world, id) = training();
    for _ in 0..20 {
        world.train(&id);
    }
    world.deliver_all();
    // The slots are taken: it waits, while newer checkpoints take the place of what it begins with.
    let retraining = world.submit(again(&id, json!({"from_step": 150, "slots": 4})));
    for _ in 0..20 {
        world.train(&id);
    }
    world.deliver_all();
    world.command(Command::CancelJob { job: id.clone() });
    world.run();
    assert_eq!(phase(&world, &retraining), "failed");
    let said = format!("{:?}", job(&world, &retraining).phase);
    assert!(said.contains(&format!("checkpoint of step 150 of `{id}`")), "{said}");
    calm(&world);
}
