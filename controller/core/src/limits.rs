//! Every bound and every duration of what is decided, each with its reason. Relations between them are checked at compile time. The fold knows none of
//! them: what follows from one stands in a fact. How much a state keeps is in `state/bounds.rs`.

/// Unfinished jobs of a cell: a plan over so many stays under a second.
pub const JOBS_LIVE_MAX: u64 = 100_000;
/// Fleets of a cell: one per inference service of a thousand servers.
pub const FLEETS_MAX: u64 = 1_000;
/// Tenants with a quota of a cell: one per team of a large company; whoever plans looks at each of them.
pub const TENANTS_MAX: u64 = 1_000;
/// Declared slots of a cell.
pub const SLOTS_MAX: u64 = 100_000;
/// Datasets of a cell.
pub const DATASETS_MAX: u64 = 10_000;
/// An object that nothing counts is swept up when it is so old: longer than the slowest upload of the largest object that is not given
/// up (80 GiB at 1 MiB a second), so that what is on its way is spared.
pub const ORPHAN_AGE_MS: u64 = 24 * 3_600_000;
/// What executors said is kept so long after it was last written: a week, in which somebody asks why a job ended.
pub const LOG_KEPT_MS: u64 = 7 * 24 * 3_600_000;
/// An upload that no job names is kept so long after somebody last uploaded it or asked for it: a week, in which it is named by a job.
pub const UPLOAD_KEPT_MS: u64 = 7 * 24 * 3_600_000;
/// Characters that are kept of a text that an executor gives as a reason; the longest of ours is a fraction of it.
pub const REASON_CHARS_MAX: usize = 2_000;

/// How long a server's agent has to be gone before the server is forgotten, if no fleet declares a slot of it: longer than any repair
/// that ends with the same machine in the same place, and joining again costs it nothing.
pub const SERVER_FORGOTTEN_MS: u64 = 86_400_000;
/// Most servers forgotten in one go, so that the end of a large test does not make one large record.
pub const SERVERS_FORGOTTEN_AT_ONCE_MAX: usize = 64;

/// Longest time a fleet may leave an executor after a reclaim.
pub const RECLAIM_DEADLINE_MS_MAX: u64 = 3_600_000;
/// A slot that is forecast to be wanted goes back so much earlier than its deadline has it: a plan is made by then, and its fleet takes it.
pub const GIVEN_BACK_AHEAD_MS: u64 = 10_000;
/// What a process takes to start on a slot, cold (docs/measurements.md). The same for all jobs, because starts are not measured job by job.
pub const START_ASSUMED_MS: u64 = 6_400;
/// A loan should last so many times as long as it takes to begin: who begins should train for as long.
pub const LOAN_TIMES: u64 = 2;
/// A loan that is expected to last no longer is none for any job: so long it takes with a replica of 100 MB over a link that is just fast.
pub const WORTH_A_LOAN_MS: u64 = 15_000;
/// Time an executor has to leave a slot that the plan, not a fleet, takes from it: several boundaries of slow steps.
pub const PLAN_LEAVE_MS: u64 = 60_000;
/// Time the members of a new or restarted job have to come together, beside the reading of a checkpoint. Longer than it takes until it is said that
/// they wait for the store ([`crate::watch::STORE_STALL_MS`]), from when on deadlines wait as well. Who cannot be linked, hangs or is lost is noticed long before.
pub const START_DEADLINE_MS: u64 = 180_000;
/// A checkpoint is read at least so fast, in bytes per millisecond: 5 MB/s is the slowest store that is worth training from.
pub const RESTORE_BYTES_PER_MS_MIN: u64 = 5_000;
/// A job grows over links that carry so much, in bytes per millisecond: 5 MB/s (40 Mbit/s) bring in a replica of 100 MB in twenty seconds,
/// while the others go on. A newcomer whose link carries less than steps make is given up.
pub const COPY_BYTES_PER_MS_ADMITTED: u64 = 5_000;
/// So many times a replica is sent until its newcomer has caught up: itself, and the gradients of the steps meanwhile.
pub const COPY_TIMES: u64 = 2;
/// Time a running generation has to switch or come together anew, beside its updates: [`SWITCH_UPDATES`] and the copies of the replica where it grows, else (a recovery, a
/// switch to fewer members) what the watch gives a unit of computing, so a minute and a quarter at the least. That is no measure of how long a recovery
/// takes: who is lost, silent or cannot be linked is named within seconds, and the next proposal follows at once. It ends what nobody has named.
pub const SWITCH_DEADLINE_MS: u64 = 15_000;
/// Updates within which a proposal comes to be: the one in flight, the one at whose end newcomers are sent the replica, some until they are near enough, the one that
/// the switch is announced on, and one for a straggler.
pub const SWITCH_UPDATES: u64 = 9;
/// Deadlines missed in a row after which a job's executors are replaced: of recoveries over six minutes, of starts over twelve. Only a last resort,
/// for members of whom nobody says anything wrong; the watch names one that hangs within the first of them.
pub const ATTEMPTS_MAX: u32 = 5;
/// Time a new executor has at least to start, build its model and listen; a longer `unit_timeout_ms` of its job's spec counts here too. Models of gigabytes
/// take minutes; one that hangs is killed by its agent within seconds.
pub const READY_DEADLINE_MS: u64 = 600_000;
/// From the first word that members of a beginning generation cannot be linked until it is given up: the others' words, which decide
/// who is left out, are as old within a unit of computing.
pub const UNLINKED_SETTLE_MS: u64 = 2_000;
/// How long after its deadline an executor may be without a word of its end from an agent that is there, until nobody waits for it any
/// more. Its agent kills it at the deadline and says so at once; what it said may wait for the log, which comes back within a minute.
pub const STUCK_MS: u64 = 60_000;
/// First time a job avoids a slot whose executor hung or could not be linked; doubles each time.
pub const AVOID_MS_MIN: u64 = 60_000;
/// First time a job avoids a slot whose executor straggled; doubles each time. Who straggles is said no more often, and to come back costs a start.
pub const SLOW_AVOID_MS_MIN: u64 = crate::straggle::SAID_AGAIN_MS;
/// How long a job avoids slots where its code computes other bits: they do until somebody changes the server, and each try costs a start.
pub const CLASS_AVOID_MS: u64 = AVOID_MS_MAX;
/// First time a job that begins avoids a slot that it lost with its server, which may only have been restarted; doubles each time.
pub const LOST_AVOID_MS_MIN: u64 = 5_000;
/// A job lets one of its slots go only for another that would wait for its own so much longer, at the least: the pauses in which it goes on without it and is
/// joined by a newcomer elsewhere are shorter.
pub const EXCHANGE_WAIT_MS_MIN: u64 = AVOID_MS_MIN / 2;
/// Most slots that are exchanged after one plan; the others are after the next, a tick later. Each looks at all idle ones, or at all jobs.
pub const EXCHANGED_AT_ONCE_MAX: usize = 64;
/// First time a job does not grow after a newcomer was given up; doubles each time.
pub const GROWTH_PAUSE_MS_MIN: u64 = 30_000;
/// A link that carries no more than this many thousandths of a job's gradients is too slow for it (β): with less than one every step takes as long as the link
/// does, and with a tenth more a newcomer catches up after nine gradients' worth of steps, and any other traffic slows the job.
pub const BETA_REFUSED_MILLI: u64 = 1_100;
/// First time that a link which was found to be slow is counted on to be; doubles each time. To find out costs a start, and as much of a copy as tells.
pub const LINK_AVOID_MS_MIN: u64 = 300_000;
/// So long before a slow link would no longer count it is measured again, so that what is known of it has no gap: two servers, each twice.
pub const LINK_AGAIN_BEFORE_MS: u64 = 15_000;
/// For how long a first quarter of a second of a copy counts: until it is said what the whole second was, or that the newcomer has fallen behind.
pub const LINK_SUSPECTED_MS: u64 = 10_000;
/// Longest of the times that double.
pub const AVOID_MS_MAX: u64 = 3_600_000;
/// How long a member that exited with status 0 may stay unexplained: the leader's word about it travels another way.
pub const LEFT_GRACE_MS: u64 = 5_000;
/// First pause after a failure of a job's executors; doubles with each further one.
pub const BACKOFF_MS_MIN: u64 = 1_000;
/// Longest such pause.
pub const BACKOFF_MS_MAX: u64 = 60_000;
/// Failures further apart than this are not in a row: longer than a start that takes all its time and the longest pause.
pub const FAULTS_FORGOTTEN_MS: u64 = 900_000;
/// An executor that was ready and lived this long before it failed does not fail in a row: the next one may start after the first
/// pause again. Longer than the longest pause, so that what keeps failing soon after its start waits longer.
pub const STEADY_MS: u64 = 180_000;

/// With at most so many unfinished jobs every input is followed by a plan (well under a millisecond); above, plans follow
/// ticks. Reclaims never wait for either.
pub const EAGER_JOBS_MAX: usize = 512;
/// Pause after a policy that panicked instead of planning: at most so many facts and so much text say so, and nothing else waits.
pub const PLAN_PAUSE_MS: u64 = 5_000;
/// A speed that was measured is known anew only if it differs by more: steps scatter, and a plan that follows from a speed is not to be made anew by that. A
/// quarter is less than half of what a second slot is assumed to add.
pub const NEWS_OF_SPEED_PERCENT: u64 = 25;
/// That a speed is known more surely is news only if its error is so many times smaller: a size has few such facts, however often it is measured.
pub const NEWS_OF_SPREAD_TIMES: u32 = 2;
/// A speed of which the standard error is no more than one in a hundred is sure enough: nothing that is decided of it is finer than that.
pub const SURE_SPEED_MICRO: u32 = 10_000;
/// A job's size rests for so long after a change, as far as a policy looks at that: each change is a pause, and `lyra` would make one with every step.
pub const SIZE_SETTLE_MS: u64 = 10_000;

const _: () =
    assert!(LEFT_GRACE_MS < SWITCH_DEADLINE_MS, "an explained exit must not be taken for a loss by a slower switch");
const _: () = assert!(BACKOFF_MS_MIN <= BACKOFF_MS_MAX);
const _: () = assert!(
    crate::watch::STORE_STALL_MS + 15_000 < START_DEADLINE_MS && START_DEADLINE_MS < READY_DEADLINE_MS,
    "that members wait for the store is said before they are given up for it"
);
const _: () =
    assert!(READY_DEADLINE_MS + BACKOFF_MS_MAX < FAULTS_FORGOTTEN_MS, "starts that take all their time fail in a row");
const _: () = assert!(BACKOFF_MS_MAX < STEADY_MS && STEADY_MS < FAULTS_FORGOTTEN_MS);
const _: () = assert!(AVOID_MS_MIN <= AVOID_MS_MAX && GROWTH_PAUSE_MS_MIN <= AVOID_MS_MAX);
