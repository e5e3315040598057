//! Checkpoints: whose word counts, what a damaged one means, which objects nothing counts.

use crate::stories::*;
use crate::world::World;
use controller_core::limits::{LOG_KEPT_MS, ORPHAN_AGE_MS, REASON_CHARS_MAX};
use controller_core::{Input, Orphans, next_retirement, retired_objects};
use events_schema::fact::{CheckpointInfo, Entry, Fact};
use events_schema::report::{ExitCause, Outcome, Report, ReportRecord};
use events_schema::{Digest, ExecutorId, Generation, JobId, ServerId, Step, TimeMs, WriterToken};
use storage_keys::CheckpointName;

/// An agent says something; what is decided.
fn says(world: &mut World, server: &str, report: Report) -> Vec<Fact> {
    let server = ServerId::parse(server).unwrap();
    let incarnation = world.state.server(&server).unwrap().incarnation;
    world.foreign_report(server, incarnation, report)
}

fn saved(job: &JobId, generation: u64, written_in: u64, step: u64) -> Report {
    let (generation, written_in) = (Generation(generation), Generation(written_in));
    let (writer, replica_digest) = (WriterToken([9; 16]), Digest::of(b"replica"));
    Report::CheckpointSaved {
        job: job.clone(),
        generation,
        step: Step(step),
        written_in,
        writer,
        replica_digest,
        bytes: 1,
        stands_still: None,
    }
}

fn name(checkpoint: &CheckpointInfo) -> CheckpointName {
    CheckpointName::of_manifest(&checkpoint.manifest_key).unwrap()
}

/// A job with two checkpoints that count and some that were retired.
fn trained() -> (World, JobId) {
    let (mut world, id) = training();
    for _ in 0..20 {
        world.train(&id);
    }
    world.deliver_all();
    assert_eq!(job(&world, &id).checkpoints.iter().map(|c| c.step.0).collect::<Vec<_>>(), [150, 200]);
    (world, id)
}

#[test]
fn a_report_reaches_only_what_its_own_job_wrote_and_names_no_object() {
    let (mut world, id) = trained();
    world.start_agent("far", 1);
    world.deliver_all();
    let (before, retired) = (job(&world, &id).clone(), next_retirement(&world.state));
    let counted = before.checkpoints[1].clone();
    let outcome = Outcome {
        step: Step(1_000),
        model_key: counted.manifest_key.clone(),
        model_digest: Digest::of(b"model"),
        train_loss_micro: Some(1),
        metrics: None,
    };
    let generation = before.generation;
    let foreign = Report::CheckpointWritten {
        job: id.clone(),
        generation: Generation(0),
        step: Step(1),
        manifest_key: counted.manifest_key.clone(),
        replica_digest: Digest::of(b""),
        bytes: 1,
    };
    let damaged = Report::CheckpointDamaged {
        job: id.clone(),
        generation: counted.generation,
        step: counted.step,
        object: counted.manifest_key.clone(),
        reason: "so it says".to_owned(),
    };
    // A server without an executor of the job.
    for report in [
        foreign.clone(),
        saved(&id, generation.0, generation.0, 900),
        saved(&id, 0, 0, 150),
        damaged.clone(),
        Report::JobCompleted { job: id.clone(), generation, outcome },
    ] {
        assert_eq!(says(&mut world, "far", report), []);
    }
    // One with executors of it: what an earlier build would have deleted, what is still to be written, what nobody is to load.
    for report in [foreign, saved(&id, 1, 2, 900), damaged] {
        assert_eq!(says(&mut world, "local", report), []);
    }
    assert_eq!((job(&world, &id), next_retirement(&world.state)), (&before, retired));
    // What it may give up is its own, under the token that it shows.
    let facts = says(&mut world, "local", saved(&id, 0, 0, 190));
    let own = CheckpointName {
        job: id.clone(),
        generation: Generation(0),
        step: Step(190),
        writer: Some(WriterToken([9; 16])),
    };
    assert_eq!(facts, [Fact::CheckpointRetired { job: id.clone(), manifest_key: own.manifest() }]);
    let names: Vec<CheckpointName> = retired_objects(&world.state, retired).map(|object| object.name).collect();
    assert_eq!(names, [own]);
    calm(&world);
}

#[test]
fn names_are_computed_also_the_model_s() {
    let (mut world, id) = training();
    assert!(world.run_to_end(200));
    let accepted = since(&world, 0).into_iter().filter_map(|fact| match fact {
        Fact::CheckpointAccepted { checkpoint, .. } => Some(checkpoint),
        Fact::JobFinished { outcome, .. } => {
            assert_eq!(outcome.model_key, storage_keys::model(&id), "the scripted executors name another one");
            None
        }
        _ => None,
    });
    for checkpoint in accepted {
        let name = name(&checkpoint);
        assert_eq!((&name.job, name.generation, name.step), (&id, checkpoint.generation, checkpoint.step));
        assert!(name.writer.is_some());
    }
}

/// Every process dies and new ones come; the entry of the start that is proposed to them.
fn restart(world: &mut World) -> Entry {
    for process in world.processes() {
        world.end_process(&process, ExitCause::Signal(9));
    }
    let mark = world.log.len();
    world.deliver_all();
    world.pass(1_000);
    for _ in 0..2 {
        for server in world.servers() {
            world.deliver_orders(&server);
        }
        for process in world.processes() {
            world.get_ready(&process);
        }
        world.deliver_all();
    }
    // While they died one by one, those that were left were to go on.
    let facts = since(world, mark);
    proposed(&facts).into_iter().rfind(|entry| **entry != Entry::Recover).unwrap().clone()
}

#[test]
fn a_damaged_checkpoint_counts_no_more_and_it_is_said_which_is_used_instead() {
    let (mut world, id) = trained();
    let [older, newest] = &job(&world, &id).checkpoints.clone()[..] else { panic!("two count") };
    let entry = restart(&mut world);
    let (first, second) = (newest.manifest_key.clone(), older.manifest_key.clone());
    assert_eq!(entry, Entry::Checkpoint { manifest_key: first.clone(), earlier: vec![second] });
    let damaged = |of: &CheckpointInfo, reason: &str| Report::CheckpointDamaged {
        job: id.clone(),
        generation: of.generation,
        step: of.step,
        object: name(of).shard(1),
        reason: reason.to_owned(),
    };
    let facts = says(&mut world, "local", damaged(newest, &"x".repeat(REASON_CHARS_MAX + 1)));
    assert_eq!(
        facts,
        [Fact::CheckpointDamaged {
            job: id.clone(),
            generation: newest.generation,
            step: newest.step,
            object: name(newest).shard(1),
            reason: "x".repeat(REASON_CHARS_MAX),
            instead: older.step,
        }]
    );
    assert_eq!(job(&world, &id).last_checkpoint(), Some(older));
    assert_eq!(says(&mut world, "local", damaged(newest, "again")), [], "all its members say so, it is one finding");
    let facts = says(&mut world, "local", damaged(older, "gone"));
    assert!(has(&facts, |f| matches!(f, Fact::CheckpointDamaged { instead: Step(0), .. })), "{facts:?}");
    let found: Vec<(u64, u64)> = job(&world, &id).damaged.iter().map(|d| (d.step.0, d.instead.0)).collect();
    assert_eq!(found, [(200, 150), (150, 0)], "it stands on the job");
    assert!(!has(&facts, |f| matches!(f, Fact::CheckpointRetired { .. })), "what one member cannot read others may");
    calm(&world);
}

#[test]
fn a_checkpoint_that_needs_another_build_suspends_the_job_by_name() {
    let (mut world, id) = trained();
    let newest = job(&world, &id).last_checkpoint().unwrap().clone();
    restart(&mut world);
    let report = Report::CheckpointUnreadable {
        job: id.clone(),
        generation: newest.generation,
        step: newest.step,
        reason: "format 2; run ebb 7".to_owned(),
    };
    let facts = says(&mut world, "local", report.clone());
    let reason = "format 2; run ebb 7".to_owned();
    let (generation, step) = (newest.generation, newest.step);
    assert!(facts.contains(&Fact::CheckpointUnreadable { job: id.clone(), generation, step, reason }));
    assert_eq!(says(&mut world, "local", report), [], "once is enough");
    world.run();
    assert_eq!(phase(&world, &id), "suspended");
    assert_eq!(
        job(&world, &id).unreadable.as_ref().map(|u| (u.step, u.reason.as_str())),
        Some((step, "format 2; run ebb 7"))
    );
    assert_eq!(job(&world, &id).last_checkpoint(), Some(&newest), "it still counts");
    assert_eq!((job(&world, &id).restarts, job(&world, &id).faults.restarts), (1, 1), "nobody's fault but the first");
    world.command(events_schema::command::Command::ResumeJob { job: id.clone() });
    world.run();
    assert_eq!((phase(&world, &id), world.real_step(&id)), ("running", Some(newest.step.0)));
    assert_eq!(job(&world, &id).unreadable, None);
    calm(&world);
}

#[test]
fn what_nothing_counts_is_rubbish_once_it_is_old_and_nothing_else_ever_is() {
    let (mut world, id) = trained();
    let day = TimeMs(ORPHAN_AGE_MS);
    let counted: Vec<CheckpointName> = job(&world, &id).checkpoints.iter().map(name).collect();
    let at = |step, writer| CheckpointName { step: Step(step), writer, ..counted[1].clone() };
    let other = Some(WriterToken([1; 16]));
    let orphan = |world: &World, key: &str, written_at: u64| {
        Orphans::of(&world.state, &id, TimeMs(2 * day.0)).unwrap().has(key, TimeMs(written_at))
    };
    let (old, young) = (day.0, day.0 + 1);
    for kept in counted.iter().flat_map(|name| [name.manifest(), name.shard(0), name.shard(77)]) {
        assert!(!orphan(&world, &kept, 0), "{kept} counts");
    }
    // Written by somebody of the job, never accepted, and passed by what was: the missing manifest's shards too.
    for past in [at(199, other), at(50, None), at(150, other)] {
        for key in [past.manifest(), past.shard(3)] {
            assert!(orphan(&world, &key, old) && !orphan(&world, &key, young), "{key} may be on its way for a day");
        }
    }
    for coming in [at(200, other), at(250, other), CheckpointName { generation: Generation(99), ..at(900, other) }] {
        assert!(!orphan(&world, &coming.shard(0), 0), "{coming:?} may still be accepted");
    }
    let retired: Vec<CheckpointName> = retired_objects(&world.state, 0).map(|object| object.name).collect();
    assert!(
        !retired.is_empty() && retired.iter().all(|name| orphan(&world, &name.shard(0), young)),
        "no day for those"
    );
    let job_b = JobId::parse("job-b").unwrap();
    let of_others = CheckpointName { job: job_b.clone(), ..at(50, other) };
    for kept in
        [of_others.manifest(), storage_keys::model(&job_b), format!("jobs/{id}/notes.txt"), storage_keys::model(&id)]
    {
        assert!(!orphan(&world, &kept, 0), "{kept} is not the sweep's");
    }
    assert!(Orphans::of(&world.state, &job_b, day).is_none(), "nothing is known of a job that is not remembered");

    assert!(world.run_to_end(200));
    let kept: Vec<CheckpointName> = job(&world, &id).checkpoints.iter().map(name).collect();
    assert!(
        kept.iter().all(|name| !orphan(&world, &name.manifest(), 0)) && !orphan(&world, &storage_keys::model(&id), 0)
    );
    assert!(
        orphan(&world, &CheckpointName { generation: Generation(99), ..at(9_000, other) }.manifest(), old),
        "it has ended"
    );
    calm(&world);
}

#[test]
fn what_executors_said_is_rubbish_after_a_week_whether_the_job_has_ended_or_not() {
    let (world, id) = trained();
    let log = |job: &JobId| storage_keys::log_chunk(&ExecutorId { job: job.clone(), number: 2 }, 0);
    let orphans = Orphans::of(&world.state, &id, TimeMs(LOG_KEPT_MS + 1)).unwrap();
    assert!(orphans.has(&log(&id), TimeMs(1)) && !orphans.has(&log(&id), TimeMs(2)));
    assert!(!orphans.has(&log(&JobId::parse("job-b").unwrap()), TimeMs(1)), "of another job");
}

#[test]
fn a_cancelled_job_s_model_is_no_result() {
    let (mut world, id) = trained();
    let model = storage_keys::model(&id);
    let orphan = |world: &World| Orphans::of(&world.state, &id, TimeMs(ORPHAN_AGE_MS)).unwrap().has(&model, TimeMs(0));
    assert!(!orphan(&world), "its end may be on its way");
    world.command(events_schema::command::Command::CancelJob { job: id.clone() });
    assert!(orphan(&world));
}

#[test]
fn jobs_are_gone_round_by_id_whether_they_have_ended_or_not() {
    let mut world = local(1);
    let ids: Vec<JobId> = (0..3).map(|_| world.submit(spec())).collect();
    world.command(events_schema::command::Command::CancelJob { job: ids[1].clone() });
    let mut seen = Vec::new();
    while let Some(next) = world.state.job_after(seen.last()) {
        seen.push(next.clone());
    }
    let mut sorted = ids;
    sorted.sort();
    assert_eq!(seen, sorted);
}

#[test]
fn what_was_swept_is_a_fact_that_only_the_controller_can_state() {
    let mut world = local(1);
    let report = Report::ObjectsSwept { objects: 3, bytes: 4_096 };
    let server = ServerId::parse("controller").unwrap();
    let record = ReportRecord { server, incarnation: 0, number: 0, at: world.at, report, trace: None, after: None };
    assert_eq!(world.input(&Input::Report(record.clone())), [Fact::ObjectsSwept { objects: 3, bytes: 4_096 }]);
    let server = ServerId::parse("local").unwrap();
    let incarnation = world.state.server(&server).unwrap().incarnation;
    let of_agent = ReportRecord { server, incarnation, number: 1_000, ..record };
    assert!(matches!(&world.input(&Input::Report(of_agent))[..], [Fact::ReportsTaken { .. }]));
}
