//! What is judged a failure of a job's executors, whose fault it is, and how long nothing new is started after it. The facts carry what is
//! said here, so that nobody judges them again.
//!
//! What an agent killed, or lost with its server, is not the job's fault; neither is what was told to go.

use super::Draft;
use crate::limits::{BACKOFF_MS_MAX, BACKOFF_MS_MIN, FAULTS_FORGOTTEN_MS, LEFT_GRACE_MS, REASON_CHARS_MAX, STEADY_MS};
use crate::state::{Executor, Faults, JobPhase};
use events_schema::control::{STOPPED_STATUS, STORE_STATUS};
use events_schema::fact::{AbandonCause, Fact, Failure, Fault, Verdict, Wave};
use events_schema::report::{CodeEndedAt, ExitCause};
use events_schema::{ExecutorId, JobId, SlotId, Step, TimeMs};

/// The signal that kills.
const SIGKILL: i32 = 9;

/// An executor is gone.
pub(super) fn gone(draft: &Draft<'_>, executor: ExecutorId, slot: SlotId, exit: ExitCause) -> Fact {
    let exit = bounded(exit);
    let known = draft.state.executor(&executor);
    let stopped = exit == ExitCause::Status(STOPPED_STATUS);
    let unasked = known.filter(|known| known.leaving.is_none() && !stopped);
    // What a user's own program means by its status is not known.
    let of_store = is_of_store(&exit) && !is_of_gang(draft, &executor.job);
    let failure = unasked.and_then(|known| of_exit(known, &exit));
    let failure = failure.map(|(fault, what)| (if of_store { Fault::Infrastructure } else { fault }, what));
    let verdict = failure.map_or(Verdict::Well, |(fault, what)| {
        // One that was never ready has not lived.
        let lived = known.filter(|known| known.address.is_some());
        let lived_ms = lived.map_or(0, |known| draft.at.since_ms(known.assigned_at));
        judge(draft, &executor.job, lived_ms, fault, what)
    });
    let dismissed = known.and_then(|known| known.leaving).is_some_and(|leaving| leaving.at_once());
    let active = draft.state.job(&executor.job).and_then(|job| job.active());
    let explained_soon =
        exit == ExitCause::Left && !dismissed && active.is_some_and(|active| active.members.contains(&executor));
    let awaited_until = explained_soon.then(|| draft.at.plus_ms(LEFT_GRACE_MS));
    Fact::ExecutorGone { executor, slot, exit, verdict: Some(verdict), awaited_until }
}

/// Whether an executor that trains ended because of the object store.
fn is_of_store(exit: &ExitCause) -> bool {
    matches!(exit, ExitCause::Status(STORE_STATUS) | ExitCause::Failed { status: STORE_STATUS, .. })
}

/// What an executor says of itself stands in the log, but not at any length.
fn bounded(exit: ExitCause) -> ExitCause {
    match exit {
        ExitCause::Failed { status, said, code_ended } => {
            ExitCause::Failed { status, said: said.chars().take(REASON_CHARS_MAX).collect(), code_ended }
        }
        ExitCause::DeviceLost(what) => ExitCause::DeviceLost(what.chars().take(REASON_CHARS_MAX).collect()),
        other => other,
    }
}

/// Why a job fails now that an executor of it has ended on a slot, if its code ended there for the second time at one place: the first time everybody
/// who was left tried again, and it was the same. Where the job has got further in between, it is another place. As long as members train, one that does
/// not come so far says nothing of the job: its server may be at fault.
pub(super) fn of_code(draft: &Draft<'_>, executor: &ExecutorId, slot: &SlotId, exit: &ExitCause) -> Option<String> {
    let ExitCause::Failed { code_ended: Some(at), said, .. } = exit else { return None };
    let job = draft.state.job(&executor.job)?;
    let trains = matches!(job.phase, JobPhase::Running(..));
    if draft.state.executor(executor).is_none_or(|known| known.leaving.is_some()) || trains && *at == CodeEndedAt::Start
    {
        return None;
    }
    let first = job.faults.code_ends.iter().find(|end| end.is_repeated(*at, executor.number))?;
    let place = match at {
        CodeEndedAt::Start => "while it was started".to_owned(),
        CodeEndedAt::Step { step, rank: Some(rank), .. } => format!("at step {step}, rank {rank}"),
        CodeEndedAt::Step { step, rank: None, .. } => format!("at step {step}"),
    };
    let said: String = said.chars().take(REASON_CHARS_MAX).collect();
    Some(format!("the job's code ended twice {place}, on slot {} and then on slot {slot}: {said}", first.slot))
}

fn is_of_gang(draft: &Draft<'_>, job: &JobId) -> bool {
    draft.state.job(job).is_some_and(|job| job.spec.gang().is_some())
}

fn of_exit(executor: &Executor, exit: &ExitCause) -> Option<(Fault, String)> {
    match exit {
        ExitCause::Killed => None,
        ExitCause::Left if executor.replica => None,
        ExitCause::Left => Some((Fault::Program, "it exited with status 0 before it joined".to_owned())),
        ExitCause::Status(status) => Some((Fault::Program, format!("it exited with status {status}"))),
        // The kernel ends guests first, whoever took the memory.
        ExitCause::Signal(SIGKILL) if executor.slot.is_guest() => {
            let what =
                "it was killed by signal 9, as the kernel does with guests first when a server's memory runs out";
            Some((Fault::Infrastructure, what.to_owned()))
        }
        ExitCause::Signal(SIGKILL) => {
            let what = "it was killed by signal 9, as the kernel does with a process when memory runs out";
            Some((Fault::Program, what.to_owned()))
        }
        ExitCause::Signal(signal) => Some((Fault::Program, format!("it was ended by signal {signal}"))),
        ExitCause::Failed { said, .. } => Some((Fault::Program, said.clone())),
        ExitCause::DeviceLost(what) => {
            Some((Fault::Infrastructure, format!("the device of its slot was lost: {what}")))
        }
        ExitCause::Silent => Some((Fault::Infrastructure, "it hung and was killed".to_owned())),
        ExitCause::NotStarted(reason) => Some((Fault::Infrastructure, format!("it could not be started: {reason}"))),
    }
}

/// An executor of a job was not built in time.
pub(super) fn not_ready(draft: &Draft<'_>, job: &JobId) -> Verdict {
    judge(draft, job, 0, Fault::Infrastructure, "it was not ready in time".to_owned())
}

/// The replicas of a job's members differed. Where more than half of them were equal a machine is at fault, which is known and not used any more;
/// else it may be the program, which would do the same again.
pub(super) fn diverged(draft: &Draft<'_>, job: &JobId, step: Step, by_majority: bool) -> Verdict {
    if by_majority {
        return Verdict::Well;
    }
    let what = format!(
        "replicas differed at step {step}, and no more than half of them were equal: a device computes wrongly, or the job's own code \
         does not compute the same twice"
    );
    judge(draft, job, 0, Fault::Program, what)
}

/// A proposed generation of a job is given up.
pub(super) fn abandoned(draft: &Draft<'_>, job: &JobId, cause: AbandonCause) -> Verdict {
    match cause {
        AbandonCause::Deadline => {
            let what = "its executors did not come together in time".to_owned();
            judge(draft, job, 0, Fault::Infrastructure, what)
        }
        AbandonCause::MemberLost | AbandonCause::Superseded | AbandonCause::Unlinked => Verdict::Well,
    }
}

fn judge(draft: &Draft<'_>, job: &JobId, lived_ms: u64, fault: Fault, what: String) -> Verdict {
    let Some(job) = draft.state.job(job) else { return Verdict::Well };
    let wave = wave(&job.faults, draft.at, lived_ms);
    // Where one member of a gang fails the others fail of that: what the first one said is why.
    let follows = wave.is_none() && job.spec.gang().is_some();
    let what = if follows { job.faults.last.clone() } else { what };
    Verdict::Failure(Failure { fault, what, wave })
}

/// The wave that a failure after so long a life begins; several within one pause are one wave.
fn wave(faults: &Faults, at: TimeMs, lived_ms: u64) -> Option<Wave> {
    if faults.streak > 0 && at < faults.backoff_until() {
        return None;
    }
    let follows = at.since_ms(faults.at) < FAULTS_FORGOTTEN_MS && lived_ms < STEADY_MS;
    let in_a_row = if follows { faults.streak.saturating_add(1) } else { 1 };
    let pause_ms = (BACKOFF_MS_MIN << (in_a_row - 1).min(16)).min(BACKOFF_MS_MAX);
    Some(Wave { in_a_row, pause_until: at.plus_ms(pause_ms) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(faults: &mut Faults, at: u64, lived_ms: u64) {
        let wave = wave(faults, TimeMs(at), lived_ms);
        faults.note(TimeMs(at), &Failure { fault: Fault::Program, what: "exit status 1".to_owned(), wave });
    }

    #[test]
    fn the_pause_doubles_per_wave_not_per_process() {
        let mut faults = Faults::default();
        assert_eq!(faults.backoff_until(), TimeMs(0));
        for at in [1_000, 1_010, 1_020] {
            fail(&mut faults, at, 10);
        }
        assert_eq!((faults.streak, faults.backoff_until()), (1, TimeMs(2_000)));
        fail(&mut faults, 2_500, 500);
        assert_eq!((faults.streak, faults.backoff_until()), (2, TimeMs(4_500)));
        let mut often = Faults { streak: 40, ..faults.clone() };
        fail(&mut often, 5_000, 500);
        assert_eq!(often.backoff_until(), TimeMs(5_000 + BACKOFF_MS_MAX));
        let later = 2_500 + FAULTS_FORGOTTEN_MS;
        fail(&mut faults, later, 500);
        assert_eq!(faults.streak, 1, "long ago is forgotten");
        fail(&mut faults, later + 30_000, 20_000);
        assert_eq!(faults.streak, 2);
        fail(&mut faults, later + 250_000, STEADY_MS);
        assert_eq!((faults.streak, faults.starts), (1, 5), "who lived long does not fail in a row");
    }
}
