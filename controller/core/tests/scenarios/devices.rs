//! Slots that are devices: who gets them, and what becomes of one that is not as it should be. Their agent is played by hand.

use crate::stories::spec_with;
use crate::stuck::Brain;
use crate::world::slot;
use controller_core::{Input, Reasons};
use events_schema::command::{Command, Demand, DemandSignal};
use events_schema::fact::{Fact, WaitCause};
use events_schema::report::{ExitCause, Report};
use events_schema::{Digest, ExecutorId, FleetId, JobId, SlotId, TimeMs};
use serde_json::json;
use std::collections::BTreeMap;

/// A job of so many executors, which needs devices or does not.
fn submit(brain: &mut Brain, job: &str, (min, max): (u16, u16), device: &str) -> JobId {
    let spec = spec_with(|document| {
        document["model"] = json!({"kind": "torch", "entry": "train:Job", "code": "33".repeat(32), "device": device});
        document["workers"] = json!({"min": min, "max": max});
    });
    let (job, spec) = (JobId::parse(job).unwrap(), Box::new(spec));
    brain.command(Command::SubmitJob { job: job.clone(), spec, body_digest: Digest([0; 32]) });
    job
}

fn slots_of(brain: &Brain, job: &JobId) -> Vec<u16> {
    brain.state.job(job).unwrap().slots().iter().map(|slot| slot.index).collect()
}

fn waits(brain: &Brain, id: &JobId) -> Option<WaitCause> {
    Reasons::of(&brain.state, brain.at).of_job(id, brain.state.job(id).unwrap()).unwrap().waits
}

fn needs(brain: &mut Brain, sequence: u64, needed: u32) {
    let (fleet, demand) = (FleetId::parse("local").unwrap(), Demand::Needed(needed));
    brain.tell(&Input::Demand(DemandSignal::new(fleet, sequence, TimeMs(0), demand)));
}

#[test]
fn a_job_for_a_device_gets_slots_that_are_devices_and_no_others() {
    let mut brain = Brain::with_devices(4, 2);
    let cuda = submit(&mut brain, "job-cuda", (1, 4), "cuda");
    assert_eq!(slots_of(&brain, &cuda), [0, 1], "two plain slots stay idle");
    let plain = submit(&mut brain, "job-plain", (1, 2), "cpu");
    assert_eq!(slots_of(&brain, &plain), [2, 3]);
    let second = submit(&mut brain, "job-second", (2, 2), "cuda");
    assert_eq!(waits(&brain, &second), Some(WaitCause::Slots { missing: 1 }), "one could be had from the first");
}

#[test]
fn a_job_for_no_device_takes_one_only_where_nothing_else_is_to_be_had() {
    let mut brain = Brain::with_devices(4, 2);
    let first = submit(&mut brain, "job-first", (2, 2), "cpu");
    assert_eq!(slots_of(&brain, &first), [2, 3]);
    let second = submit(&mut brain, "job-second", (1, 2), "cpu");
    assert_eq!(slots_of(&brain, &second), [0, 1], "a device is a slot");
    let third = submit(&mut brain, "job-third", (3, 3), "cpu");
    assert!(slots_of(&brain, &third).is_empty());
}

#[test]
fn where_no_fleet_has_a_device_a_job_for_one_waits_and_says_so() {
    let mut brain = Brain::with_devices(2, 0);
    let cuda = submit(&mut brain, "job-cuda", (1, 1), "cuda");
    assert_eq!((brain.phase(&cuda), waits(&brain, &cuda)), ("queued", Some(WaitCause::Device)));
    let plain = submit(&mut brain, "job-plain", (2, 2), "cpu");
    assert_eq!(slots_of(&brain, &plain), [0, 1], "it holds nobody up");
    let mut brain = Brain::with_devices(2, 2);
    needs(&mut brain, 2, 2);
    let cuda = submit(&mut brain, "job-cuda", (1, 1), "cuda");
    assert_eq!(waits(&brain, &cuda), Some(WaitCause::Offers));
    needs(&mut brain, 3, 1);
    assert_eq!(slots_of(&brain, &cuda).len(), 1);
}

#[test]
fn a_job_goes_on_elsewhere_when_the_device_of_its_slot_falls_off() {
    let mut brain = Brain::with_devices(3, 3);
    let job = submit(&mut brain, "job-a", (2, 2), "cuda");
    let [lost, stays]: [(ExecutorId, SlotId); 2] = brain.staying(&job).try_into().unwrap();
    for (executor, _) in [&lost, &stays] {
        brain.ready(executor);
    }
    let facts = brain.report(Report::SlotQuarantined { slot: lost.1.clone(), reason: "it is gone".to_owned() });
    assert!(
        facts.iter().any(|fact| matches!(fact, Fact::SlotQuarantined { slot, .. } if *slot == lost.1)),
        "{facts:?}"
    );
    let exit = ExitCause::DeviceLost("it is gone".to_owned());
    let facts = brain.report(Report::ExecutorGone { executor: lost.0, slot: lost.1.clone(), exit });
    assert!(
        !facts.iter().any(|fact| matches!(fact, Fact::ExecutorLeaving { .. })),
        "nobody is asked to leave: {facts:?}"
    );
    assert_eq!(slots_of(&brain, &job), [stays.1.index, 2]);
    assert_eq!(brain.state.slot_shown(&lost.1), "quarantined");
    let other = submit(&mut brain, "job-b", (1, 1), "cuda");
    assert!(slots_of(&brain, &other).is_empty(), "the slot is lent, and of no use");
    brain.report(Report::SlotRecovered { slot: lost.1.clone() });
    brain.pass(1);
    assert_eq!(slots_of(&brain, &other), [lost.1.index], "of use again");
}

#[test]
fn a_slot_in_quarantine_goes_back_to_its_fleet_when_its_device_is_as_it_was() {
    let mut brain = Brain::with_devices(1, 1);
    let job = submit(&mut brain, "job-a", (1, 1), "cuda");
    let [(executor, there)]: [(ExecutorId, SlotId); 1] = brain.staying(&job).try_into().unwrap();
    needs(&mut brain, 2, 1);
    brain.report(Report::SlotQuarantined { slot: there.clone(), reason: "9 MiB are still taken".to_owned() });
    let facts = brain.gone((executor, there.clone()));
    let returned = |facts: &[Fact]| facts.iter().any(|fact| matches!(fact, Fact::SlotReturned { .. }));
    assert!(!returned(&facts), "its processes are gone, and it is not free: {facts:?}");
    assert!(returned(&brain.report(Report::SlotRecovered { slot: there.clone() })));
    assert_eq!(brain.state.slot_shown(&there), "unoffered");
}

/// Idle slots go back first, but not one that cannot come free.
#[test]
fn a_fleet_that_needs_a_slot_gets_one_that_comes_free() {
    let mut brain = Brain::with_devices(3, 3);
    let job = submit(&mut brain, "job-a", (1, 2), "cuda");
    assert_eq!(slots_of(&brain, &job), [0, 1]);
    brain.report(Report::SlotQuarantined { slot: slot("local", 2), reason: "9 MiB are still taken".to_owned() });
    needs(&mut brain, 2, 1);
    assert_eq!(brain.state.slot_shown(&slot("local", 2)), "quarantined");
    assert_eq!(slots_of(&brain, &job).len(), 1, "its job goes on with the other");
    needs(&mut brain, 3, 3);
    let is_lent = |index| brain.state.slot(&slot("local", index)).unwrap().is_lent();
    assert_eq!([0, 1, 2].map(is_lent), [false; 3], "all means all");
}

#[test]
fn a_slot_that_does_not_come_free_is_replaced_by_one_that_does() {
    let mut brain = Brain::with_devices(3, 3);
    let job = submit(&mut brain, "job-a", (1, 3), "cuda");
    let there = brain.staying(&job);
    needs(&mut brain, 2, 1);
    let lost = there.into_iter().find(|(_, slot)| !brain.state.slot(slot).unwrap().is_lent()).unwrap();
    brain.report(Report::SlotQuarantined { slot: lost.1.clone(), reason: "9 MiB are still taken".to_owned() });
    assert_eq!(slots_of(&brain, &job).len(), 1, "one more is taken back, the fleet has one of three");
    brain.gone(lost.clone());
    needs(&mut brain, 3, 1);
    assert_eq!(slots_of(&brain, &job).len(), 1, "the same need takes no more");
    brain.report(Report::SlotRecovered { slot: lost.1.clone() });
    brain.pass(1);
    assert!(brain.state.slot(&lost.1).unwrap().is_lent(), "of use to its fleet, and more than that needs");
}

/// The slot that is lost counts as what it was for the job: as what it is now, plain slots would be of its kind.
#[test]
fn a_job_whose_slot_is_no_device_any_more_is_not_moved_to_one_that_is_none() {
    let mut brain = Brain::with_devices(2, 1);
    let job = submit(&mut brain, "job-a", (1, 1), "cuda");
    assert_eq!(slots_of(&brain, &job), [0]);
    let joined = Report::AgentJoined {
        slots: 2,
        class: Digest([1; 32]),
        address: String::new(),
        devices: Vec::new(),
        quarantined: BTreeMap::new(),
        guests: false,
        slot_type: None,
    };
    brain.report_of(8, 1, joined);
    brain.pass(1);
    assert!(slots_of(&brain, &job).is_empty(), "{:?}", slots_of(&brain, &job));
    assert_eq!(waits(&brain, &job), Some(WaitCause::Device));
}

/// An agent that is started anew finds the devices as they are.
#[test]
fn another_process_of_an_agent_says_anew_what_is_wrong_with_its_devices() {
    let mut brain = Brain::with_devices(1, 1);
    let there = slot("local", 0);
    brain.report(Report::SlotQuarantined { slot: there.clone(), reason: "9 MiB are still taken".to_owned() });
    let devices = brain.state.server(&there.server).unwrap().devices.clone();
    let joined = |quarantined: BTreeMap<u16, String>| Report::AgentJoined {
        slots: 1,
        class: Digest([1; 32]),
        address: String::new(),
        devices: devices.clone(),
        quarantined,
        guests: false,
        slot_type: None,
    };
    needs(&mut brain, 2, 1);
    brain.report_of(8, 1, joined([(0, "9 MiB are still taken".to_owned())].into()));
    assert_eq!(brain.state.slot_shown(&there), "quarantined");
    brain.report_of(9, 1, joined(BTreeMap::new()));
    assert_eq!(brain.state.slot_shown(&there), "unoffered");
}
