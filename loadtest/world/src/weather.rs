//! The seeded schedule of faults: what there is, who asks for what, and what breaks when. Faults come in any number, over each other, and some
//! outside the core never end.

use crate::phase::Phase;
use crate::random::Random;
use crate::schedule::{Act, ClockSetup, Entry, JobSetup, Place, Schedule, Setup, Topic};
use events_schema::profile::PROFILE_SECONDS_RANGE;

/// When faults begin: jobs are submitted and slots lent by then.
const FAULTS_FROM_MS: u64 = 12_000;
/// When they begin where nothing is well from the beginning.
const FIRST_FAULT_MS: u64 = 300;
/// How long they go on.
const FAULTS_FOR_MS: (u64, u64) = (30_000, 90_000);
/// When, after the healing, the first fleet of the core needs a slot, and until when.
pub const CORE_NEEDS_MS: (u64, u64) = (20_000, 45_000);
/// Now and then the store is away, or refuses, for so long: beyond the least patience that a job may have, which counts from when it is known that
/// the job waits for it.
const STORE_AWAY_MS: (u64, u64) = (60_000, 480_000);
const PATIENCE_MS_MIN: u64 = 180_000;
/// Failures of a job's programs that it outlives, where those are few.
const RESTARTS_FEW: u32 = 5;
/// Longer than any run.
const FOR_EVER_MS: u64 = 100_000_000;
/// Steps of jobs that end inside a run, and of those that do not.
const STEPS_FEW: (u64, u64) = (4, 40);
const STEPS_MANY: u64 = 100_000;
/// Steps after which a job ends before the healing, as a rule.
const STEPS_SOON: u64 = 12;
/// Most slots that a job may need at the least.
const MIN_MAX: u16 = 3;
/// Members that a job needs for any to come or go.
const MEMBERS_SOME: u16 = 3;
/// A link on which nothing comes for so long is given up.
const SILENT_MS: (u64, u64) = (5_500, 9_000);
/// Most seconds that a job may be measured at a size: several sizes have their time before the healing.
const PROFILE_S_MAX: u64 = 20;
/// Most steps that updates of jobs with a range take: a few more than such a job has slots.
const STRIDE_MOST: u64 = 8;
/// When, in a calm world, a job has grown to all that there is, and when nothing more happens.
const GROWN_MS: u64 = 30_000;
const CALM_HEAL_MS: u64 = 60_000;
/// What who waits for a slot waits longer than an update takes, where gradients take much longer.
const LEFT_OVER_MS: (u64, u64) = (1_500, 3_000);
/// How far a clock jumps back, and how long before the healing, where that is what a schedule is about.
const JUMP_BACK_MS: i64 = 120_000;
const JUMP_BEFORE_HEALING_MS: u64 = 10_000;
/// What comes and goes for ever is gone and there for so long.
const GONE_MS: (u64, u64) = (500, 20_000);
const THERE_MS: (u64, u64) = (2_000, 40_000);
/// Days of fleets' needs, where those are forecast.
pub(crate) const DAY_MS: (u64, u64) = (2_000, 20_000);
/// Packets of different connections overtake each other by so much at most.
const JITTER_US_MAX: u64 = 300_000;

/// What draws an act at a server; what is not about a server draws without it.
type Draw = fn(&mut Random, &Setup, u16) -> Act;

/// Every kind of act, and how often it is drawn of all together.
const KINDS: [(u64, Draw); 36] = [
    (18, |random, setup, server| Act::Demand { server, needed: random.below(u64::from(setup.slots) + 1) as u32 }),
    (6, |random, setup, server| {
        let slots = (0..setup.slots).filter(|_| random.one_in(2)).collect();
        Act::TakeBack { server, slots, within_ms: random.between(200, 10_000) }
    }),
    (2, |_, _, server| Act::RedButton { server }),
    (1, |random, setup, _| Act::Cancel { job: job(random, setup) }),
    (2, |random, setup, _| Act::Suspend { job: job(random, setup) }),
    (3, |random, setup, _| Act::Resume { job: job(random, setup) }),
    (10, |random, _, _| Act::KillExecutor { pick: random.draw() }),
    (5, |random, _, _| Act::StopExecutor { pick: random.draw(), for_ms: short_ms(random) }),
    (2, |random, _, _| Act::HangInUnit { pick: random.draw() }),
    (3, |random, setup, server| Act::CrashAgent { server, down_ms: lasting_ms(random, setup, server) }),
    (4, |random, setup, server| Act::StopAgent { server, for_ms: lasting_ms(random, setup, server) }),
    (3, |random, setup, server| Act::CrashServer { server, down_ms: lasting_ms(random, setup, server) }),
    (3, |random, setup, server| Act::SlowServer {
        server,
        times: random.between(2, 12),
        for_ms: lasting_ms(random, setup, server),
    }),
    (4, |random, _, _| Act::CrashController { down_ms: short_ms(random) }),
    (2, |random, _, _| Act::StopController { for_ms: short_ms(random) }),
    (2, |_, _, _| Act::RivalController),
    (7, cut),
    (6, |random, setup, server| Act::ResetLinks { from: place(random, setup).max(1), to: server + 1 }),
    (3, |random, setup, server| {
        let other = if random.one_in(2) { 0 } else { place(random, setup) };
        if random.one_in(2) {
            Act::ForgetConnections { at: server + 1, other }
        } else {
            Act::ForgetConnections { at: other, other: server + 1 }
        }
    }),
    (2, |random, _, _| Act::SlowLinks { times: random.between(2, 40), for_ms: short_ms(random) }),
    (3, |random, _, _| Act::StallLog { for_ms: short_ms(random) }),
    (2, |random, _, _| Act::LoseAcknowledgements { for_ms: short_ms(random) }),
    (2, |random, _, _| Act::AppendLate { for_ms: short_ms(random) }),
    (1, |random, _, _| Act::RefuseAppends { for_ms: short_ms(random) }),
    (1, shorten),
    (2, |random, _, _| Act::StoreAway { for_ms: short_ms(random) }),
    (1, |random, _, _| Act::SlowStore { times: random.between(2, 40), for_ms: short_ms(random) }),
    (1, |random, _, _| Act::ListLate { for_ms: short_ms(random) }),
    (2, |random, setup, _| Act::DamageCheckpoint { job: job(random, setup), bytes: false }),
    (1, |random, _, server| Act::FullDisk { server, for_ms: short_ms(random) }),
    (1, |random, setup, _| Act::JumpClock {
        place: place(random, setup),
        by_ms: random.between(0, 240_000) as i64 - 120_000,
    }),
    (2, |random, _, _| Act::PolicyPanics { for_ms: short_ms(random) }),
    (4, |random, _, _| Act::ExitExecutor { pick: random.draw(), status: 1 }),
    (2, |random, setup, server| Act::Declare { server, slots: random.below(u64::from(setup.slots) + 1) as u16 }),
    (2, |random, _, _| Act::StoreRefuses { for_ms: short_ms(random) }),
    (2, |random, setup, _| Act::DamageCheckpoint { job: job(random, setup), bytes: true }),
];

/// The phases that acts wait for. Some do not come in every run, so more wait for them.
const PHASES: [Phase; 23] = [
    Phase::NoController,
    Phase::NoJob,
    Phase::Beginning,
    Phase::NoJob,
    Phase::Copying,
    Phase::Queued,
    Phase::Recovering,
    Phase::Starting,
    Phase::Finishing,
    Phase::Copying,
    Phase::Switching,
    Phase::Beginning,
    Phase::Recovering,
    Phase::Running,
    Phase::Copying,
    Phase::Suspending,
    Phase::Finishing,
    Phase::Recovering,
    Phase::Suspended,
    Phase::Copying,
    Phase::Switching,
    Phase::Ended,
    Phase::Recovering,
];

/// Most acts of a schedule that wait for a phase: which act and which phase follows from the seed, so that any few hundred seeds in a row
/// have every act in every phase.
const IN_PHASES_MAX: u64 = 17;

/// The schedule of a seed.
#[must_use]
pub fn schedule(seed: u64) -> Schedule {
    let mut random = Random::new(seed ^ 0x0eb_b0eb_b0eb);
    let mut setup = setup(&mut random);
    let in_phases: Vec<(Phase, Draw)> =
        (0..random.between(1, IN_PHASES_MAX)).map(|number| phase_and_act(seed, number)).collect();
    let in_phases: Vec<(u16, Phase, Draw)> =
        in_phases.into_iter().map(|(phase, draw)| (whose(&mut random, &setup), phase, draw)).collect();
    in_phases.iter().for_each(|(of, phase, _)| suit(&mut random, &mut setup, *of, *phase));
    vary(seed, &mut setup);
    let mut heal_at_ms = FAULTS_FROM_MS + random.between(FAULTS_FOR_MS.0, FAULTS_FOR_MS.1);
    let away_ms = random.one_in(10).then(|| random.between(STORE_AWAY_MS.0, STORE_AWAY_MS.1));
    let away_from_ms = random.between(FAULTS_FROM_MS, heal_at_ms);
    // Faults go on a little longer than it is away, as a rule.
    heal_at_ms = heal_at_ms.max(away_ms.map_or(0, |away_ms| away_from_ms + away_ms + random.below(FAULTS_FOR_MS.0)));
    // Now and then nothing was ever well.
    let from_ms = if random.one_in(5) { FIRST_FAULT_MS } else { FAULTS_FROM_MS };
    let mut entries: Vec<Entry> = (0..setup.servers)
        .map(|server| at(2_000, Act::Demand { server, needed: first_need(&mut random, &setup) }))
        .collect();
    let faults = random.between(1, 18);
    for _ in 0..faults {
        let at_ms = random.between(from_ms, heal_at_ms - 1_000);
        entries.push(at(at_ms, act(&mut random, &setup)));
    }
    for (of, phase, draw) in in_phases {
        // Early, so that there is time for the phase to come.
        let at_ms = random.between(from_ms, (from_ms + heal_at_ms) / 2);
        entries.extend(in_a_phase(&mut random, &setup, at_ms, (of, phase), draw));
    }
    if let Some(for_ms) = away_ms {
        let act = if random.one_in(3) { Act::StoreRefuses { for_ms } } else { Act::StoreAway { for_ms } };
        entries.push(at(away_from_ms, act));
    }
    if setup.core_servers * setup.slots > setup.jobs.iter().map(|job| job.min).sum() {
        // A core fleet needs one slot for a while: jobs shrink and grow also when all is well.
        entries.push(at(heal_at_ms + CORE_NEEDS_MS.0, Act::Demand { server: 0, needed: 1 }));
    }
    if setup.core_servers < setup.servers && random.one_in(3) {
        entries.extend((0..random.between(1, 2)).map(|_| flap(&mut random, &setup, heal_at_ms)));
    }
    if random.one_in(2) {
        entries.push(taken_when_healthy(&mut random, &setup, heal_at_ms));
    }
    if random.one_in(3) {
        entries.extend(late_orders(&mut random, &setup, heal_at_ms));
    }
    entries.sort_by_key(|entry| entry.at_ms);
    Schedule { seed, setup, entries, heal_at_ms }
}

/// A schedule of a family in which little else happens: a fleet takes its slot back, and what the executor there says in its last step comes to one
/// server in part only, so that whoever is there stands in a generation that the others have left. That one is slow, so that it lacks only
/// what comes last. By chance alone this meets one schedule in thousands.
#[must_use]
pub fn half_heard(seed: u64) -> Schedule {
    let mut random = Random::new(seed ^ 0x0ea_70e1_ea4e);
    let mut setup = setup(&mut random);
    (setup.servers, setup.core_servers, setup.slots) = (MEMBERS_SOME, MEMBERS_SOME, 1);
    setup.clocks.resize(usize::from(MEMBERS_SOME) + 1, ClockSetup { drift_ppm: 0, ahead_ms: 0 });
    setup.reclaim_deadline_ms = CALM_HEAL_MS - GROWN_MS;
    // Who leaves waits for a boundary that comes soon; longer steps it would not see the end of.
    setup.unit_ms = random.between(20, 100);
    let max = random.between(u64::from(MEMBERS_SOME), 6) as u16;
    setup.jobs = vec![trains_on(max, random.between(3, 40), None)];
    let server = server(&mut random, &setup);
    let other = (server + random.between(1, 2) as u16) % setup.servers;
    let times = random.between(3, 8);
    let cut = Act::Cut { from: server + 1, to: other + 1, for_ms: random.between(SILENT_MS.0, SILENT_MS.1) };
    // In one of the next two steps.
    let cut_at_ms = GROWN_MS + random.below(2 * times * setup.unit_ms);
    let mut entries: Vec<Entry> =
        (0..setup.servers).map(|server| at(2_000, Act::Demand { server, needed: 0 })).collect();
    let for_ms = cut_at_ms - GROWN_MS / 2;
    entries.push(at(GROWN_MS / 2, Act::SlowServer { server: other, times, for_ms }));
    entries.push(at(GROWN_MS, Act::Demand { server, needed: 1 }));
    entries.push(at(cut_at_ms, cut));
    Schedule { seed, setup, entries, heal_at_ms: CALM_HEAL_MS }
}

/// The schedule of a seed, and shortly before the healing the wall clock of the controller's host jumps back. By chance alone that meets one schedule
/// in hundreds so late that it matters.
#[must_use]
pub fn clock_jumps_back(seed: u64) -> Schedule {
    let mut schedule = schedule(seed);
    let jump = Act::JumpClock { place: 0, by_ms: -JUMP_BACK_MS };
    schedule.entries.push(at(schedule.heal_at_ms - JUMP_BEFORE_HEALING_MS, jump));
    schedule.entries.sort_by_key(|entry| entry.at_ms);
    schedule
}

/// The schedule of a seed, of jobs with `determinism: none`.
#[must_use]
pub fn without_determinism(seed: u64) -> Schedule {
    let mut schedule = schedule(seed);
    schedule.setup.jobs.iter_mut().for_each(|job| job.without_determinism = true);
    schedule
}

/// The schedule of a seed, of jobs whose batches may move, under a policy that moves them.
#[must_use]
pub fn with_ranges(seed: u64) -> Schedule {
    let mut schedule = without_determinism(seed);
    let mut random = Random::new(seed ^ 0xba7c_4e50);
    schedule.setup.policy = if random.one_in(2) { "ebb" } else { "ibm-dp" }.to_owned();
    schedule.setup.measured_speeds = random.one_in(2);
    for job in &mut schedule.setup.jobs {
        job.stride_max = Some(random.between(2, STRIDE_MOST) as u16);
    }
    schedule
}

/// The schedule of a seed, of jobs that are measured at several sizes before they settle.
#[must_use]
pub fn profiled(seed: u64) -> Schedule {
    let mut schedule = schedule(seed);
    let mut random = Random::new(seed ^ 0x0970_f11e);
    schedule.setup.measured_speeds = true;
    for job in &mut schedule.setup.jobs {
        job.profile_s = Some(random.between(u64::from(PROFILE_SECONDS_RANGE.0), PROFILE_S_MAX) as u16);
    }
    schedule
}

/// Two or three servers with a slot each, whose clocks are right, so that a job has a member on each.
pub(crate) fn few_servers(random: &mut Random) -> Setup {
    let mut setup = setup(random);
    let servers = random.between(2, u64::from(MEMBERS_SOME)) as u16;
    (setup.servers, setup.core_servers, setup.slots) = (servers, servers, 1);
    setup.clocks = vec![ClockSetup { drift_ppm: 0, ahead_ms: 0 }; usize::from(servers) + 1];
    setup
}

/// A job of up to so many executors, which is not over before its schedule is.
pub(crate) fn trains_on(max: u16, checkpoint_every: u64, compare_every: Option<u64>) -> JobSetup {
    JobSetup {
        submitted_ms: 0,
        step_us: Vec::new(),
        min: 1,
        max,
        steps: STEPS_MANY,
        checkpoint_every,
        compare_every,
        priority: 0,
        tenant: None,
        without_determinism: false,
        profile_s: None,
        stride_max: None,
    }
}

/// A schedule of a family in which nothing else happens: a job has grown to two or three members, and a bit flips in the replica of one, of its
/// parameters or of what only updates read.
#[must_use]
pub fn flipped(seed: u64) -> Schedule {
    let mut random = Random::new(seed ^ 0x0f11_bb17);
    let mut setup = few_servers(&mut random);
    let servers = setup.servers;
    let max = random.between(u64::from(servers), 6) as u16;
    let (checkpoint_every, compare_every) = (random.between(3, 40), Some(random.between(2, 40)));
    setup.jobs = vec![trains_on(max, checkpoint_every, compare_every)];
    let mut entries: Vec<Entry> = (0..servers).map(|server| at(2_000, Act::Demand { server, needed: 0 })).collect();
    let flip_at_ms = random.between(GROWN_MS, CALM_HEAL_MS - 1_000);
    entries.push(at(flip_at_ms, Act::FlipBit { pick: random.draw(), element: random.draw() }));
    Schedule { seed, setup, entries, heal_at_ms: CALM_HEAL_MS }
}

/// A schedule of a family in which nothing else happens: a job of two or three members, whose every step is one gradient of each that takes several times as
/// long as anybody waits, and fleets want their slots back one after the other, all but the last. Who is in an update has time to come to its end.
#[must_use]
pub fn long_gradients(seed: u64) -> Schedule {
    let mut random = Random::new(seed ^ 0x010e_66ad);
    let mut setup = few_servers(&mut random);
    let servers = setup.servers;
    setup.unit_ms = random.between(12_000, 30_000);
    let update_ms = setup.unit_ms / 8;
    setup.reclaim_deadline_ms = update_ms + random.between(LEFT_OVER_MS.0, LEFT_OVER_MS.1);
    (setup.link_bytes_per_s, setup.store_bytes_per_s, setup.element_bytes) = (1_000_000, 1_000_000, 4);
    setup.jobs = vec![trains_on(servers, random.between(3, 40), None)];
    let mut entries: Vec<Entry> = (0..servers).map(|server| at(2_000, Act::Demand { server, needed: 0 })).collect();
    let first = server(&mut random, &setup);
    let mut at_ms = GROWN_MS;
    for turn in 1..servers {
        at_ms += random.between(1_000, setup.unit_ms);
        let server = (first + turn) % servers;
        let within_ms = update_ms + random.between(LEFT_OVER_MS.0, LEFT_OVER_MS.1);
        let through_log = Act::Demand { server, needed: 1 };
        entries.push(at(
            at_ms,
            if random.one_in(2) { through_log } else { Act::TakeBack { server, slots: vec![0], within_ms } },
        ));
        // Who was told a moment before stands still while the others come together.
        at_ms += setup.unit_ms;
    }
    Schedule { seed, setup, entries, heal_at_ms: at_ms + CALM_HEAL_MS }
}

/// The name of every kind of act that is drawn.
#[must_use]
pub fn kinds() -> Vec<&'static str> {
    let mut random = Random::new(0);
    let setup = setup(&mut random);
    KINDS.iter().map(|(_, draw)| draw(&mut random, &setup, 0).name()).collect()
}

pub(crate) fn at(at_ms: u64, act: Act) -> Entry {
    Entry { at_ms, when: None, of: 0, act }
}

/// One of the pairs of a seed: the pairs of seeds in a row are all that there are, in turn.
fn phase_and_act(seed: u64, number: u64) -> (Phase, Draw) {
    let pair = seed.wrapping_mul(IN_PHASES_MAX).wrapping_add(number);
    let phases = PHASES.len() as u64;
    (PHASES[(pair % phases) as usize], KINDS[(pair / phases % KINDS.len() as u64) as usize].1)
}

/// Whose phase is waited for: more often the first job's, because there may be no other.
fn whose(random: &mut Random, setup: &Setup) -> u16 {
    if setup.jobs.len() > 1 && random.one_in(3) { 1 } else { 0 }
}

/// Has a job come to a phase that not every job comes to.
fn suit(random: &mut Random, setup: &mut Setup, of: u16, phase: Phase) {
    let Some(job) = setup.jobs.get_mut(usize::from(of)) else { return };
    match phase {
        Phase::Finishing => job.steps = job.steps.min(random.between(STEPS_FEW.0, STEPS_SOON)),
        Phase::Copying | Phase::Switching | Phase::Recovering => {
            job.max = job.max.max(MEMBERS_SOME);
            setup.slots = setup.slots.max(MEMBERS_SOME);
        }
        _ => {}
    }
}

/// The policies that seeds draw from. One more would make another schedule of every known seed; `tests/world/liveness.rs` runs all that there are.
const POLICIES: [&str; 10] =
    ["ebb", "fifo", "tiresias", "elastic-tiresias", "ibm-dp", "lyra", "srtf", "afs", "optimus-like", "pollux-like"];

/// Which policy plans, how many slots a job needs, and whether speeds are measured: of chance of its own, so that all else is what it is without.
fn vary(seed: u64, setup: &mut Setup) {
    let mut random = Random::new(seed ^ 0x9011_c1e5);
    if random.one_in(2) {
        let policy = POLICIES[random.below(POLICIES.len() as u64) as usize];
        policy.clone_into(&mut setup.policy);
    }
    if random.one_in(2) {
        for job in &mut setup.jobs {
            job.min = random.between(1, u64::from(job.max.min(MIN_MAX))) as u16;
        }
    }
    // A job is promised to go on where the core has room for it; whose fewest slots are more than may ever be reached tries for ever.
    let room = setup.core_servers * setup.slots;
    if setup.jobs.iter().map(|job| job.min).sum::<u16>() > room {
        setup.jobs.iter_mut().for_each(|job| job.min = 1);
    }
    setup.measured_speeds = random.one_in(2);
    // Days so short that a run has many, and needs that nobody could see coming: slots go back early at any time.
    setup.forecast_day_ms = random.one_in(3).then(|| random.between(DAY_MS.0, DAY_MS.1));
}

/// An act when a job is in some phase, and what brings it there.
fn in_a_phase(random: &mut Random, setup: &Setup, at_ms: u64, (of, when): (u16, Phase), draw: Draw) -> Vec<Entry> {
    let mut entries = provoked(random, setup, (of, when), at_ms);
    let at_ms = match when {
        // These are once.
        Phase::NoJob | Phase::Finishing => 0,
        // These are over soon, and may not come again.
        Phase::Beginning | Phase::Copying | Phase::Switching | Phase::Recovering if random.one_in(2) => 0,
        _ => at_ms,
    };
    let server = server(random, setup);
    entries.push(Entry { at_ms, when: Some(when), of, act: draw(random, setup, server) });
    entries
}

/// What brings a job to a phase, if it can be brought there, and out of it again.
fn provoked(random: &mut Random, setup: &Setup, (job, when): (u16, Phase), at_ms: u64) -> Vec<Entry> {
    let until_ms = at_ms + random.between(2_000, 12_000);
    match when {
        Phase::NoController => vec![at(at_ms, Act::CrashController { down_ms: short_ms(random) })],
        Phase::Queued => {
            let all =
                (0..setup.servers).map(|server| at(at_ms, Act::Demand { server, needed: u32::from(setup.slots) }));
            all.chain((0..setup.servers).map(|server| at(until_ms, Act::Demand { server, needed: 0 }))).collect()
        }
        Phase::Starting | Phase::Beginning | Phase::Suspending | Phase::Suspended => {
            vec![at(at_ms, Act::Suspend { job }), at(until_ms, Act::Resume { job })]
        }
        Phase::Switching | Phase::Copying => {
            let need = |at_ms, needed| move |server| at(at_ms, Act::Demand { server, needed });
            (0..setup.servers).map(need(at_ms, 1)).chain((0..setup.servers).map(need(until_ms, 0))).collect()
        }
        Phase::Recovering => {
            let often = [at_ms, (at_ms + until_ms) / 2, until_ms];
            often.map(|at_ms| at(at_ms, Act::KillExecutor { pick: random.draw() })).into()
        }
        Phase::Ended if random.one_in(2) => vec![at(at_ms, Act::Cancel { job })],
        Phase::Ended | Phase::Finishing | Phase::Running | Phase::NoJob => Vec::new(),
    }
}

/// From the healing on, or a little later, a server outside the core comes and goes for ever, or a link between one and any other host.
fn flap(random: &mut Random, setup: &Setup, heal_at_ms: u64) -> Entry {
    let server = random.between(u64::from(setup.core_servers), u64::from(setup.servers) - 1) as u16;
    let (gone_ms, there_ms) = (random.between(GONE_MS.0, GONE_MS.1), random.between(THERE_MS.0, THERE_MS.1));
    let other = place(random, setup);
    let (one, other) = (server + 1, if other == server + 1 { 0 } else { other });
    let act = match random.below(3) {
        0 => Act::FlapServer { server, down_ms: gone_ms, up_ms: there_ms },
        1 => Act::FlapLink { from: one, to: other, cut_ms: gone_ms, whole_ms: there_ms },
        _ => Act::FlapLink { from: other, to: one, cut_ms: gone_ms, whole_ms: there_ms },
    };
    at(heal_at_ms + random.below(THERE_MS.1), act)
}

/// A fleet takes slots back at the agent when all is well, of the core or not; one of the core lends them again a little later.
fn taken_when_healthy(random: &mut Random, setup: &Setup, heal_at_ms: u64) -> Entry {
    let (server, all) = (server(random, setup), u64::from(setup.slots));
    let first = random.below(all) as u16;
    let slots = (first..first + random.between(1, all - u64::from(first)) as u16).collect();
    let at_ms = heal_at_ms + random.between(CORE_NEEDS_MS.0, CORE_NEEDS_MS.1 - 5_000);
    at(at_ms, Act::TakeBack { server, slots, within_ms: random.between(200, 10_000) })
}

/// A fleet lends, and takes back at the agent before the agent has heard what is to run there.
fn late_orders(random: &mut Random, setup: &Setup, heal_at_ms: u64) -> Vec<Entry> {
    let (server, at_ms) = (random.below(u64::from(setup.servers)) as u16, random.between(FAULTS_FROM_MS, heal_at_ms));
    let all = u32::from(setup.slots);
    let take_back = Act::TakeBack { server, slots: (0..setup.slots).collect(), within_ms: random.between(200, 3_000) };
    vec![
        at(at_ms.saturating_sub(3_000), Act::Demand { server, needed: all }),
        at(at_ms, Act::Cut { from: 0, to: server + 1, for_ms: random.between(1_000, 1_900) }),
        at(at_ms + 20, Act::Demand { server, needed: 0 }),
        at(at_ms + 20 + random.between(100, 800), take_back),
    ]
}

fn first_need(random: &mut Random, setup: &Setup) -> u32 {
    if random.one_in(3) { random.below(u64::from(setup.slots)) as u32 } else { 0 }
}

fn setup(random: &mut Random) -> Setup {
    let servers = random.between(1, 4) as u16;
    let core_servers = random.between(1, u64::from(servers)) as u16;
    let slots = random.between(1, 3) as u16;
    let core_slots = core_servers * slots;
    let jobs = (0..random.between(1, 2).min(u64::from(core_slots)))
        .map(|_| JobSetup {
            submitted_ms: 0,
            step_us: Vec::new(),
            min: 1,
            max: random.between(1, 6) as u16,
            steps: if random.one_in(3) { random.between(STEPS_FEW.0, STEPS_FEW.1) } else { STEPS_MANY },
            checkpoint_every: random.between(3, 40),
            compare_every: None,
            priority: 0,
            tenant: None,
            without_determinism: false,
            profile_s: None,
            stride_max: None,
        })
        .collect();
    let clock = |_| ClockSetup {
        drift_ppm: random.between(0, 400) as i64 - 200,
        ahead_ms: if random.one_in(3) { random.between(0, 20_000) as i64 - 10_000 } else { 0 },
    };
    let clocks = (0..=servers).map(clock).collect();
    let slow_links = random.one_in(3);
    let jitter_us = if random.one_in(3) { random.between(1_000, JITTER_US_MAX) } else { 0 };
    Setup {
        servers,
        groups: Vec::new(),
        core_servers,
        slots,
        guests: false,
        jobs,
        unit_ms: random.between(80, 600),
        build_ms: random.between(200, 6_000),
        latency_us: random.between(100, 5_000),
        jitter_us,
        link_bytes_per_s: if slow_links { 5_000_000 } else { 125_000_000 },
        weightless_sums: false,
        slow_link: None,
        slow_type: None,
        store_bytes_per_s: 100_000_000,
        sweep_ms: None,
        element_bytes: if slow_links { random.between(5_000, 40_000) } else { random.between(5_000, 500_000) },
        loan_lease_ms: if random.one_in(4) { 20_000 } else { 600_000 },
        reclaim_deadline_ms: random.between(500, 20_000),
        clocks,
        policy: "ebb".to_owned(),
        measured_speeds: false,
        forecast_day_ms: None,
        foresees: false,
        store_patience_ms: random.one_in(2).then_some(PATIENCE_MS_MIN),
        max_restarts: if random.one_in(4) { RESTARTS_FEW } else { 1_000 },
    }
}

fn short_ms(random: &mut Random) -> u64 {
    match random.below(3) {
        0 => random.between(50, 2_000),
        1 => random.between(1_000, 8_000),
        _ => random.between(5_000, 25_000),
    }
}

/// A fault outside the core may never end.
fn lasting_ms(random: &mut Random, setup: &Setup, server: u16) -> u64 {
    if server >= setup.core_servers && random.one_in(3) { FOR_EVER_MS } else { short_ms(random) }
}

pub(crate) fn server(random: &mut Random, setup: &Setup) -> u16 {
    random.below(u64::from(setup.servers)) as u16
}

fn job(random: &mut Random, setup: &Setup) -> u16 {
    random.below(setup.jobs.len() as u64) as u16
}

fn place(random: &mut Random, setup: &Setup) -> Place {
    random.below(u64::from(setup.servers) + 1) as Place
}

/// Between two servers, or between a server and the controller's host.
fn cut(random: &mut Random, setup: &Setup, server: u16) -> Act {
    let from = place(random, setup);
    let (from, to) = (if from == server + 1 { 0 } else { from }, server + 1);
    let for_ms = if from == 0 { short_ms(random) } else { lasting_ms(random, setup, server) };
    if random.one_in(2) { Act::Cut { from, to, for_ms } } else { Act::Cut { from: to, to: from, for_ms } }
}

/// The last few records, or all of them.
fn shorten(random: &mut Random, _: &Setup, _: u16) -> Act {
    let topic = [Topic::Commands, Topic::Demand, Topic::Reports][random.below(3) as usize];
    let records = if random.one_in(3) { u64::MAX } else { random.between(1, 6) };
    Act::ShortenInput { topic, records, for_ms: 2 * short_ms(random) }
}

fn act(random: &mut Random, setup: &Setup) -> Act {
    let server = server(random, setup);
    let mut left = random.below(KINDS.iter().map(|(often, _)| often).sum());
    let drawn = KINDS.iter().find(|(often, _)| {
        let found = left < *often;
        left = left.saturating_sub(*often);
        found
    });
    drawn.unwrap_or(&KINDS[0]).1(random, setup, server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_schedule_and_its_file_gives_it_again() {
        for seed in 0..50 {
            let one = schedule(seed);
            assert_eq!(one, schedule(seed));
            let text = serde_json::to_string(&one).unwrap_or_default();
            assert_eq!(serde_json::from_str::<Schedule>(&text).ok(), Some(one));
        }
    }
}
