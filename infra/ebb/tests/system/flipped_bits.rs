//! A bit that flips in the memory of a real executor, which nothing notices where it happens. The members of its job find that their replicas differ, nobody goes on
//! from there, and the model is that of a run in which no bit flipped.
//!
//! The replica is found in the executor's memory by what never changes in it: weights of pixels that no sample has, which keep the values that they began with.
//! Where the machine does not let a test write to the memory of its own processes there is nothing to see, and that is printed.

use crate::hangs::{Stopped, executors, leader};
use crate::schedules::demand;
use crate::support::{LOOK_EVERY, System, WAIT_MAX, finished, plain, submit, until, until_told};
use ebb::wire::Job;
use events_schema::job::JobSpec;
use gateway_client::Events;
use serde_json::{Value, json};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::Instant;
use storage::dataset::digits_sample;
use workers_engine::Update;
use workers_executor::plain::PlainRun;

/// So many that the job is not over before the flip was found and what came of it was looked at.
const STEPS: u64 = 12_000;
/// The bit flips soon after one of these, and so long before the next that no checkpoint is under way.
const CHECKPOINT_EVERY: u64 = 3_000;
/// Seldom enough that the wrong replica has spoiled those of all others when it is found.
const COMPARE_EVERY: u64 = 50;
/// A pixel in the middle, which most digits have.
const LIT_PIXEL: usize = 20;
/// The highest bit of a fraction: the number becomes another by a quarter at least, and stays one.
const BIT: u32 = 1 << 22;
/// Longest stretch of memory that is looked through; an executor of so small a job has none as long.
const STRETCH_BYTES_MAX: u64 = 1 << 28;

fn document(members_max: u16) -> Value {
    json!({
        "name": "flipped", "model": {"kind": "mlp", "hidden": [64]}, "dataset": "digits", "workers": {"min": 2, "max": members_max},
        "batch_size": 16, "steps": STEPS, "seed": 7,
        // Decay would change what no sample moves.
        "optimizer": {"kind": "adamw", "learning_rate": 0.001, "weight_decay": 0},
        "checkpoint": {"every_steps": CHECKPOINT_EVERY, "keep": 2}, "compare_every_steps": COMPARE_EVERY,
    })
}

/// By what a replica is known in memory, and where its bit is flipped.
struct Landmarks {
    /// Elements that never change, by their place in the replica; the first is sought.
    still: Vec<(usize, [u8; 4])>,
    flipped: usize,
}

impl Landmarks {
    /// Those of a job, of which this is the run that nothing disturbed.
    fn new(document: &Value, undisturbed: &PlainRun) -> Self {
        let spec = JobSpec::parse(document).unwrap();
        let engine = workers_engine::build(&spec, &digits_sample()).unwrap();
        let update = Update::new(&spec, engine.parameter_info(), STEPS);
        let initial = update.initial_replica(engine.initial_parameters());
        let weight = &engine.parameter_info()[0];
        let pixels = weight.shape[1];
        let of = |pixel: usize| weight.range().skip(pixel).step_by(pixels);
        let moved = |element: usize| undisturbed.replica[element].to_bits() != initial[element].to_bits();
        let dark: Vec<usize> = (0..pixels).filter(|pixel| !of(*pixel).any(moved)).collect();
        assert!(!dark.is_empty() && of(LIT_PIXEL).all(moved), "these pixels are dark: {dark:?}");
        // Their moments too, which tells a replica from parameters alone.
        let parameters = update.parameter_count();
        let elements = dark.iter().flat_map(|pixel| of(*pixel)).flat_map(|e| [e, e + parameters, e + 2 * parameters]);
        let still = elements.map(|element| (element, initial[element].to_ne_bytes())).collect();
        Self { still, flipped: of(LIT_PIXEL).nth(1).unwrap() }
    }

    /// Where replicas begin in this memory.
    fn replicas_in<'a>(&'a self, memory: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
        let at = |start: usize, element: usize| memory.get(start + 4 * element..start + 4 * element + 4);
        let (first, value) = self.still[0];
        let starts = (0..memory.len()).step_by(4).filter(move |start| at(*start, first) == Some(&value));
        starts.filter(move |start| self.still.iter().all(|(element, value)| at(*start, *element) == Some(value)))
    }

    /// Flips the bit in every replica that a process holds, of which all but one may be old; how many that were.
    fn flip(&self, pid: i32) -> io::Result<usize> {
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        let mut flipped = 0;
        for stretch in stretches(pid)? {
            let mut bytes = vec![0; usize::try_from(stretch.end - stretch.start).unwrap()];
            memory.read_exact_at(&mut bytes, stretch.start)?;
            for start in self.replicas_in(&bytes) {
                let place = start + 4 * self.flipped;
                let element = u32::from_ne_bytes(bytes[place..place + 4].try_into().unwrap()) ^ BIT;
                memory.write_all_at(&element.to_ne_bytes(), stretch.start + place as u64)?;
                flipped += 1;
            }
        }
        Ok(flipped)
    }
}

/// What of a process' memory only it reads and writes.
fn stretches(pid: i32) -> io::Result<Vec<Range<u64>>> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let own = maps.lines().filter_map(|line| line.split_once(" rw-p ")?.0.split_once('-'));
    let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let stretches = own.map(|(start, end)| number(start)..number(end));
    Ok(stretches.filter(|stretch| stretch.end - stretch.start <= STRETCH_BYTES_MAX).collect())
}

/// Waits until no thread of a process that was told to stop moves any more.
async fn until_still(pid: i32) {
    let begun = Instant::now();
    loop {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let mut states =
            threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
        if states.all(|stat| stat.rsplit_once(") ").unwrap().1.starts_with('T')) {
            return;
        }
        assert!(begun.elapsed() < WAIT_MAX, "process {pid} moves");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Where a bit was flipped.
struct Flipped {
    executor: String,
    slot: String,
    /// The newest checkpoint by then.
    checkpoint: u64,
}

/// Flips a bit in a member that does not lead; none where the machine does not allow it.
async fn flip_in_one(system: &System, id: &str, members: u16, landmarks: &Landmarks) -> Option<Flipped> {
    let (client, agent) = (system.client(), system.agent());
    let trains = until(&client, id, "a checkpoint of all members", |j| {
        j.last_checkpoint.is_some() && j.progress.is_some_and(|p| p.members == members)
    })
    .await;
    let leader = leader(&client, id).await;
    let (executor, pid) = executors(&agent).await.into_iter().find(|(name, _)| *name != leader).unwrap();
    let slots = agent.slots().await.unwrap().into_iter();
    let slot = slots.filter(|on| on.pid == Some(pid)).map(|on| on.slot).next().unwrap();
    // So that nothing is written meanwhile.
    let _stopped = Stopped::new(pid);
    until_still(pid).await;
    match landmarks.flip(pid) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            eprintln!("!! NOT TESTED: the memory of process {pid} cannot be written, so no bit flips in it: {error}");
            return None;
        }
        flipped => assert_ne!(flipped.unwrap(), 0, "no replica is in the memory of {executor}"),
    }
    Some(Flipped { executor, slot, checkpoint: trains.last_checkpoint.unwrap().step })
}

/// A job of two members at the least with a bit flipped in one of so many, and the digest of its model where none flips; none where the machine does not allow it.
async fn flipped_job(system: &System, members: u16) -> Option<(String, String, Flipped)> {
    let (client, document) = (system.client(), document(members));
    let undisturbed = plain(&client, &system.service.ready().store_url, &document, u64::MAX).await;
    let id = submit(&client, &document, "flipped").await;
    let flipped = flip_in_one(system, &id, members, &Landmarks::new(&document, &undisturbed)).await?;
    Some((id, undisturbed.model_digest.to_string(), flipped))
}

/// Waits until it is said that replicas differed, whose and on which slots; the step from which the job went on is not one that they had gone wrong by.
async fn assert_found(system: &System, id: &str, flipped: &Flipped, blamed: [Vec<&String>; 2]) {
    let told = until_told(system, id, "generation.replicas_differed.v1", 1).await.remove(0);
    assert_eq!([&told["executors"], &told["slots"]], [&json!(blamed[0]), &json!(blamed[1])], "{told}");
    let restarted = until_told(system, id, "job.restarted.v1", 1).await.remove(0);
    let from_step = restarted["from_step"].as_u64();
    assert!(from_step >= Some(flipped.checkpoint) && from_step < told["step"].as_u64(), "{restarted}: {told}");
    assert_eq!(restarted["cause"], "differed", "{restarted}");
}

/// The slots in quarantine, and why each is.
async fn quarantined(system: &System) -> Vec<(String, String)> {
    let slots = system.ebb_json(&["slots"]).await;
    let of = |slot: &Value| Some((slot["slot"].as_str()?.to_owned(), slot["quarantined"].as_str()?.to_owned()));
    slots["slots"].as_array().unwrap().iter().filter_map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_whose_bit_flips_is_named_its_slot_is_not_used_and_the_model_is_the_same() {
    let system = System::start(3).await;
    let Some((id, expected, flipped)) = flipped_job(&system, 3).await else { return };
    let client = system.client();

    assert_found(&system, &id, &flipped, [vec![&flipped.executor], vec![&flipped.slot]]).await;
    let two = |j: &Job| j.is_over() || j.progress.is_some_and(|p| p.members == 2);
    let goes_on = until(&client, &id, "the others to go on", two).await;
    assert!(!goes_on.is_over() && !goes_on.slots.contains(&flipped.slot), "{goes_on:?}");
    let wrong = quarantined(&system).await;
    assert!(matches!(&wrong[..], [(slot, why)] if *slot == flipped.slot && why.contains(&id)), "{wrong:?}");
    // Its fleet is given it first, and lends it anew.
    demand(&system, 1).await;
    until_quarantined(&system, 0).await;
    demand(&system, 0).await;

    assert_eq!(finished(&client, &id).await, expected);
    assert_only_once(&system, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_members_that_differ_nobody_is_blamed_and_the_model_is_the_same() {
    let system = System::start(2).await;
    let Some((id, expected, flipped)) = flipped_job(&system, 2).await else { return };

    assert_found(&system, &id, &flipped, [vec![], vec![]]).await;
    assert_eq!(quarantined(&system).await, []);
    assert_eq!(finished(&system.client(), &id).await, expected);
    assert_only_once(&system, &id).await;
}

/// Waits until so many slots are in quarantine.
async fn until_quarantined(system: &System, count: usize) {
    let begun = Instant::now();
    loop {
        let wrong = quarantined(system).await;
        if wrong.len() == count {
            return;
        }
        assert!(begun.elapsed() < WAIT_MAX, "in quarantine are {wrong:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// What it went on from holds nothing of the flip.
async fn assert_only_once(system: &System, id: &str) {
    let events = system.client().all_events(&Events::of_job(id).of_types(&["generation.replicas_differed.v1"])).await;
    assert_eq!(events.unwrap_or_else(|e| panic!("{e}")).len(), 1);
}
