//! Logs of earlier builds, fixed for ever: each folds to the state that it came to when it was written, in every later build.
//!
//! A file of `golden/` is the `events` stream of one log, each record after its length in four bytes; `digests.txt` has a line
//! `FILE DIGEST` for each, a digest of the states after all its batches. They are runs of the simulation, one that holds every golden line
//! of a fact, and two about failures, which most is judged of: one whose facts do not carry what they were judged to be, and one whose facts
//! do. When facts gain a kind or a field, run once with `EBB_GOLDEN=write`: it adds what is new of the next set, and changes nothing that is
//! there. A test that fails on a file that is there has found a build that makes another state of an
//! old log: mend the build.

use controller_core::State;
use events_rule::count::{self, Counter};
use events_rule::{Record, Stream};
use events_schema::batch::{Batch, EventRecord, from_bytes, to_bytes};
use events_schema::command::{OfferMode, Recall, SEQUENCE_MAX};
use events_schema::fact::{
    AbandonCause, Entry, Fact, Failure, Fault, LeaveCause, Member, PlanCause, PlanReason, Proposal, Verdict, Wave,
};
use events_schema::report::ExitCause;
use events_schema::stride::Stride;
use events_schema::{
    Cell, Digest, ExecutorId, FleetId, Generation, Offset, Rank, Sequence, SlotId, Step, Term, TimeMs,
};
use loadtest_world::world::World;
use loadtest_world::{Mutants, weather};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Seeds that a new set is chosen from, and most runs of a set: few files say the most.
const SEEDS: u64 = 400;
const RUNS_MAX: usize = 16;

/// When the stories begin.
const EPOCH_MS: u64 = 1_700_000_000_000;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn digests() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(folder().join("digests.txt")).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_once(' ').map(|(file, digest)| (file.to_owned(), digest.to_owned())).unwrap()).collect()
}

/// The records of a file.
fn read(file: &str) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(folder().join(file)).unwrap();
    let (mut rest, mut records) = (&bytes[..], Vec::new());
    while let Some((length, tail)) = rest.split_first_chunk::<4>() {
        let (record, tail) = tail.split_at(u32::from_be_bytes(*length) as usize);
        records.push(record.to_vec());
        rest = tail;
    }
    assert!(rest.is_empty(), "{file} ends within a record");
    records
}

/// What a log comes to batch after batch, and what stands in it.
fn fold(records: &[Vec<u8>]) -> (Digest, Vec<Fact>) {
    let (mut state, mut counter, mut facts, mut digests) =
        (State::new(Cell(0)), Counter::new(), Vec::new(), Vec::new());
    for (offset, record) in (0..).map(Offset).zip(records) {
        if let count::Verdict::Counts(batch) = counter.offer(offset, from_bytes(record).unwrap()) {
            for fact in batch.facts {
                state.apply(batch.at, &fact);
                facts.push(fact);
            }
            digests.extend(state.digest().0);
        }
    }
    (Digest::of(&digests), facts)
}

/// What a fact shows: its kind, and the causes in it, which are judged differently.
fn shows(fact: &Fact) -> BTreeSet<String> {
    let text = format!("{fact:?}");
    let kind = text.split([' ', '{']).next().unwrap().to_owned();
    let causes = ["exit: ", "cause: ", "remedy: ", "noticed: ", "entry: ", "fault: "];
    let word = |at: &str| at.split(|c: char| !c.is_alphanumeric()).next().unwrap_or("").to_owned();
    let found = causes.iter().filter_map(|cause| Some(format!("{kind} {cause}{}", word(text.split_once(cause)?.1))));
    found.chain([kind.clone()]).collect()
}

/// The golden lines of facts: every kind in every form that was ever written.
fn golden_facts() -> Vec<Fact> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../events/schema/tests/golden.txt");
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("Fact")?.rsplit_once(' '));
    let unhex = |text: &str| -> Vec<u8> {
        text.as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    };
    lines.map(|(_, hex)| from_bytes(&unhex(hex)).unwrap()).collect()
}

/// A log of facts, each with its time and in a batch of its own.
fn log(facts: Vec<(u64, Fact)>) -> Vec<Vec<u8>> {
    let claim = EventRecord::Claim { controller: "golden".to_owned(), incarnation: 7 };
    let batch = |(sequence, (at_ms, fact)): (u64, (u64, Fact))| {
        let (term, sequence, at) = (Term::of_claim(Offset(0)), Sequence(sequence), TimeMs(EPOCH_MS + at_ms));
        EventRecord::Batch(Batch {
            term,
            sequence,
            part: None,
            taken: Vec::new(),
            at,
            facts: vec![fact],
            causes: Vec::new(),
        })
    };
    std::iter::once(claim).chain((0..).zip(facts).map(batch)).map(|event| to_bytes(&event)).collect()
}

/// A log of all golden lines.
fn of_golden_lines() -> Vec<Vec<u8>> {
    log((0..).zip(golden_facts()).collect())
}

/// A log about failures of a job: what was late, how executors ended, what was tried again, at times on both sides of every limit that there
/// was when facts did not carry what they were judged to be. And more of everything that is kept than is kept.
fn failures() -> Vec<(u64, Fact)> {
    let accepted = golden_facts().into_iter().find(|fact| matches!(fact, Fact::JobAccepted { .. })).unwrap();
    let Fact::JobAccepted { job, .. } = &accepted else { unreachable!() };
    let slots: Vec<SlotId> = (0..4).map(|index| format!("host-1/{index}").parse().unwrap()).collect();
    let reason = PlanReason { policy: "ebb".to_owned(), cause: PlanCause::Gain, waits: None };
    let plan =
        Fact::PlanAdopted { job: job.clone(), slots: slots.clone(), reason, from: Some(0), attained_slot_ms: None };
    let executor = |number: u32| ExecutorId { job: job.clone(), number };
    let slot = |number: u32| slots[number as usize % slots.len()].clone();
    let assigned = |number| Fact::ExecutorAssigned { executor: executor(number), slot: slot(number) };
    let ready = |number| Fact::ExecutorReady {
        executor: executor(number),
        address: format!("host-1:{number}"),
        class: None,
        replica_bytes: None,
        gradient_bytes: None,
    };
    let leaving = |number, deadline| {
        let cause = LeaveCause::Useless;
        Fact::ExecutorLeaving { executor: executor(number), deadline: TimeMs(deadline), cause, verdict: None }
    };
    let gone = |number, exit| Fact::ExecutorGone {
        executor: executor(number),
        slot: slot(number),
        exit,
        verdict: None,
        awaited_until: None,
    };
    let proposal = |generation, entry, members: &[u32]| {
        let members: Vec<Member> = members
            .iter()
            .map(|n| Member { executor: executor(*n), address: format!("host-1:{n}"), ranks: vec![Rank(*n as u16)] })
            .collect();
        let (leader, deadline) = (members[0].executor.clone(), TimeMs(0));
        let proposal =
            Proposal { generation: Generation(generation), entry, members, leader, deadline, stride: Stride::ONE };
        Fact::GenerationProposed { job: job.clone(), proposal }
    };
    let abandoned = |generation, cause| Fact::GenerationAbandoned {
        job: job.clone(),
        generation: Generation(generation),
        cause,
        verdict: None,
    };
    let active = |generation| {
        let (job, step) = (job.clone(), Step(generation * 10));
        Fact::GenerationActive { job, generation: Generation(generation), step, pause_us: 5 }
    };
    let mut facts = vec![(0, accepted.clone()), (0, plan.clone())];
    facts.extend((0..4).map(|number| (0, assigned(number))));
    // One is late by a millisecond, one is not; one is late and was ready.
    facts.extend([(1, ready(2)), (599_999, leaving(0, 9)), (600_000, leaving(1, 9)), (600_000, leaving(2, 9))]);
    facts.extend([(600_001, gone(0, ExitCause::Killed)), (600_001, gone(1, ExitCause::Status(1)))]);
    // Every end, at distances on both sides of each pause and of what is forgotten; at last after long lives.
    let exits = [
        ExitCause::Left,
        ExitCause::Status(3),
        ExitCause::Signal(9),
        ExitCause::Killed,
        ExitCause::NotStarted("no such file".to_owned()),
        ExitCause::Silent,
    ];
    let mut at_ms = 700_000;
    let distances_ms =
        [0, 999, 1_000, 1_999, 2_000, 4_000, 8_000, 16_000, 32_000, 59_999, 60_000, 64_000, 899_999, 900_000];
    for (number, distance_ms) in (4..).zip(distances_ms.iter().cycle().take(3 * distances_ms.len())) {
        at_ms += distance_ms;
        let exit = exits[number as usize % exits.len()].clone();
        facts.extend([(at_ms, assigned(number)), (at_ms, gone(number, exit))]);
    }
    for (number, life_ms) in (50..).zip([179_999, 180_000, 179_999, 180_001]) {
        facts.extend([(at_ms, assigned(number)), (at_ms, ready(number))]);
        at_ms += life_ms;
        facts.push((at_ms, gone(number, ExitCause::Status(4))));
    }
    // More is given up than is remembered; then it runs, and members leave with and without a word.
    facts.extend((60..64).flat_map(|number| [(at_ms, assigned(number)), (at_ms, ready(number))]));
    for generation in 1..=7 {
        at_ms += 20_000;
        let cause = if generation % 3 == 0 { AbandonCause::Superseded } else { AbandonCause::Deadline };
        let entry = if generation % 2 == 0 { Entry::Recover } else { Entry::Fresh };
        facts.extend([(at_ms, proposal(generation, entry, &[60, 61, 62, 63])), (at_ms, abandoned(generation, cause))]);
    }
    facts.extend([(at_ms, proposal(8, Entry::Fresh, &[60, 61, 62, 63])), (at_ms + 1, active(8))]);
    facts.extend([
        (at_ms + 2, gone(60, ExitCause::Left)),
        (at_ms + 3, leaving(61, 9)),
        (at_ms + 4, gone(61, ExitCause::Left)),
    ]);
    facts.push((at_ms + 5, gone(62, ExitCause::Signal(6))));
    facts.extend((0..20).map(|step| {
        let (object, reason) = (format!("shard-{step}"), "it is gone".to_owned());
        let (job, generation, step, instead) = (job.clone(), Generation(8), Step(step), Step(0));
        (at_ms + 6, Fact::CheckpointDamaged { job, generation, step, object, reason, instead })
    }));
    facts.push((at_ms + 7, Fact::JobRestarted { job: job.clone(), from: Step(0), cause: None }));
    facts.extend([(at_ms + 8, gone(63, ExitCause::Silent)), (at_ms + 9, Fact::JobSuspending { job: job.clone() })]);
    facts.extend([
        (at_ms + 10, Fact::JobSuspended { job: job.clone(), attained_slot_ms: None }),
        (at_ms + 11, Fact::JobResumed { job: job.clone() }),
    ]);
    facts.extend([(at_ms + 12, plan), (at_ms + 13, assigned(70)), (at_ms + 14, gone(70, ExitCause::Status(5)))]);
    facts
}

/// The same log with verdicts that no build would come to, so that one that judges anew makes another state; and a fleet that is recalled.
fn of_verdicts() -> Vec<Vec<u8>> {
    let mut facts = failures();
    let waves = [(1, 0), (2, 1), (u32::MAX, 60_000), (7, u64::MAX)];
    let wave = |n: usize, at_ms: u64| -> Option<Wave> {
        let (in_a_row, pause_ms) = waves[n % waves.len()];
        (!n.is_multiple_of(3)).then_some(Wave { in_a_row, pause_until: TimeMs(at_ms.saturating_add(pause_ms)) })
    };
    for (n, (at_ms, fact)) in facts.iter_mut().enumerate() {
        let at_ms = EPOCH_MS + *at_ms;
        let fault = if n.is_multiple_of(2) { Fault::Program } else { Fault::Infrastructure };
        let failure = Failure { fault, what: format!("as it was judged: {n}"), wave: wave(n, at_ms) };
        let judged = if n.is_multiple_of(5) { Verdict::Well } else { Verdict::Failure(failure) };
        match fact {
            Fact::ExecutorGone { verdict, awaited_until, .. } => {
                *verdict = Some(judged);
                *awaited_until = [None, Some(at_ms), Some(at_ms + 1), Some(u64::MAX)][n % 4].map(TimeMs);
            }
            Fact::ExecutorLeaving { verdict, .. } | Fact::GenerationAbandoned { verdict, .. } => {
                *verdict = Some(judged)
            }
            _ => {}
        }
    }
    let at_ms = facts.last().map_or(0, |(at_ms, _)| *at_ms);
    facts.extend((1..).map(|later| at_ms + later).zip(recalls()));
    log(facts)
}

/// A fleet that is recalled and released, while it says what it needs.
fn recalls() -> Vec<Fact> {
    let fleet = || FleetId::parse("recalled").unwrap();
    let slots: Vec<SlotId> = (0..6).map(|index| format!("host-2/{index}").parse().unwrap()).collect();
    let needs = |sequence, needed| Fact::DemandAccepted { fleet: fleet(), sequence, needed, forecast: None };
    let recalled = |slots| Fact::FleetRecalled { fleet: fleet(), slots };
    let (offers, reason) = (OfferMode::ByDemand, "no number".to_owned());
    vec![
        Fact::FleetDeclared { fleet: fleet(), slots: slots.clone(), offers, reclaim_deadline_ms: 2_000 },
        needs(1, 1),
        Fact::SlotsOffered { fleet: fleet(), slots: slots[..5].to_vec() },
        recalled(Recall::Slots(3)),
        needs(2, 4),
        recalled(Recall::All),
        Fact::SignalsRefused { fleet: fleet(), offset: Offset(7), count: 3, reason },
        Fact::FleetReleased { fleet: fleet() },
        recalled(Recall::Slots(u32::MAX)),
        needs(SEQUENCE_MAX, 0),
    ]
}

/// What is told whatever the simulation does, by the end of a file's name.
fn stories() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    vec![("lines", of_golden_lines()), ("failures", log(failures())), ("verdicts", of_verdicts())]
}

/// Those that no file holds.
fn new_stories() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let held: BTreeSet<Vec<Vec<u8>>> = digests().iter().map(|(file, _)| read(file)).collect();
    stories().into_iter().filter(|(_, records)| !held.contains(records)).collect()
}

/// The log of a seed's run.
fn of_seed(seed: u64) -> Vec<Vec<u8>> {
    let mut world = World::new(weather::schedule(seed), Mutants::default());
    while world.checks.findings.is_empty() && !world.checks.done && world.turn() {}
    world.log.records(Stream::Events, Offset(0)).iter().map(|record: &Record| record.bytes.to_vec()).collect()
}

/// The runs that together show most, each chosen for what it adds.
fn chosen() -> Vec<(u64, Vec<Vec<u8>>)> {
    let mut runs: BTreeMap<u64, (BTreeSet<String>, Vec<Vec<u8>>)> = BTreeMap::new();
    for seed in 0..SEEDS {
        let records = of_seed(seed);
        let shown = fold(&records).1.iter().flat_map(shows).collect();
        runs.insert(seed, (shown, records));
    }
    let (mut shown, mut chosen): (BTreeSet<String>, _) = (BTreeSet::new(), Vec::new());
    while chosen.len() < RUNS_MAX {
        let adds = |seed: &u64| runs[seed].0.difference(&shown).count();
        let Some(best) = runs.keys().copied().max_by_key(|seed| (adds(seed), std::cmp::Reverse(*seed))) else { break };
        if adds(&best) == 0 {
            break;
        }
        let (new, records) = runs.remove(&best).unwrap();
        shown.extend(new);
        chosen.push((best, records));
    }
    chosen
}

fn write(set: u32) {
    let mut lines = std::fs::read_to_string(folder().join("digests.txt"))
        .unwrap_or_else(|_| "# FILE DIGEST: see golden_log.rs. Lines and files are added, never changed.\n".to_owned());
    let new = new_stories();
    let runs = if new.iter().any(|(name, _)| *name == "lines") { chosen() } else { Vec::new() };
    let mut logs: Vec<_> = new.into_iter().map(|(name, records)| (format!("{set:04}-{name}.log"), records)).collect();
    logs.extend(runs.into_iter().map(|(seed, records)| (format!("{set:04}-seed-{seed}.log"), records)));
    let held: BTreeSet<Vec<Vec<u8>>> = digests().iter().map(|(file, _)| read(file)).collect();
    logs.retain(|(_, records)| !held.contains(records));
    for (file, records) in logs {
        let framed = records.iter().flat_map(|record| [&(record.len() as u32).to_be_bytes()[..], record].concat());
        let path = folder().join(&file);
        assert!(!path.exists(), "{file} is there already");
        std::fs::write(path, framed.collect::<Vec<u8>>()).unwrap();
        lines += &format!("{file} {}\n", fold(&records).0);
    }
    std::fs::write(folder().join("digests.txt"), lines).unwrap();
}

#[test]
fn what_an_earlier_build_wrote_comes_to_the_same_state() {
    if !new_stories().is_empty() && std::env::var("EBB_GOLDEN").is_ok_and(|mode| mode == "write") {
        let newest = digests().last().and_then(|(file, _)| file.split_once('-')?.0.parse().ok()).unwrap_or(0);
        write(newest + 1);
    }
    let mut wrong = Vec::new();
    for (file, digest) in digests() {
        let now = fold(&read(&file)).0.to_string();
        if now != digest {
            wrong.push(format!("{file} came to {digest}, and comes to {now} now"));
        }
    }
    for (name, _) in new_stories() {
        wrong.push(format!("no golden log is the present `{name}`: run with EBB_GOLDEN=write"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(!digests().is_empty());
}
