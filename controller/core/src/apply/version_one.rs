//! What facts of the first version were judged to be, which did not carry it: the fold did it, by these numbers. Records of that version alone come
//! here, and they have to fold as they did when they were written; so nothing here ever changes, whatever is decided now. That is why it says
//! again what `limits.rs` and `decide/failures.rs` say: those change, and shared code would change this with them.

use crate::state::{Executor, Faults, Job};
use events_schema::fact::{AbandonCause, Fault, LeaveCause};
use events_schema::report::ExitCause;
use events_schema::{ExecutorId, TimeMs};

const READY_DEADLINE_MS: u64 = 600_000;
const LEFT_GRACE_MS: u64 = 5_000;
const BACKOFF_MS_MIN: u64 = 1_000;
const BACKOFF_MS_MAX: u64 = 60_000;
const FAULTS_FORGOTTEN_MS: u64 = 900_000;
const STEADY_MS: u64 = 180_000;

/// An executor has to leave; since when it was starting, if it still was.
pub(super) fn leaving(job: &mut Job, at: TimeMs, starting_since: Option<TimeMs>, cause: LeaveCause) {
    let late = starting_since.is_some_and(|since| at.since_ms(since) >= READY_DEADLINE_MS);
    if late && cause == LeaveCause::Useless {
        note(&mut job.faults, at, 0, Fault::Infrastructure, "it was not ready in time".to_owned());
    }
}

/// An executor is gone; until when its leader's word about that was awaited, if it was.
pub(super) fn gone(
    job: &mut Job,
    at: TimeMs,
    id: &ExecutorId,
    executor: &Executor,
    exit: &ExitCause,
) -> Option<TimeMs> {
    let failure = match exit {
        ExitCause::Killed => None,
        ExitCause::Left if executor.replica => None,
        ExitCause::Left => Some((Fault::Program, "it exited with status 0 before it joined".to_owned())),
        ExitCause::Status(status) => Some((Fault::Program, format!("it exited with status {status}"))),
        ExitCause::Signal(signal) => Some((Fault::Program, format!("it was ended by signal {signal}"))),
        // Not said by the builds whose facts come here.
        ExitCause::Failed { said, .. } => Some((Fault::Program, said.clone())),
        ExitCause::DeviceLost(what) => {
            Some((Fault::Infrastructure, format!("the device of its slot was lost: {what}")))
        }
        ExitCause::Silent => Some((Fault::Infrastructure, "it hung and was killed".to_owned())),
        ExitCause::NotStarted(reason) => Some((Fault::Infrastructure, format!("it could not be started: {reason}"))),
    };
    if let Some((fault, what)) = failure.filter(|_| executor.leaving.is_none()) {
        let lived_ms = executor.address.as_ref().map_or(0, |_| at.since_ms(executor.assigned_at));
        note(&mut job.faults, at, lived_ms, fault, what);
    }
    let dismissed = executor.leaving.is_some_and(|leaving| leaving.at_once());
    let was_member = job.active().is_some_and(|active| active.members.contains(id));
    (*exit == ExitCause::Left && !dismissed && was_member).then(|| at.plus_ms(LEFT_GRACE_MS))
}

/// A proposed generation was given up.
pub(super) fn abandoned(job: &mut Job, at: TimeMs, cause: AbandonCause) {
    if cause == AbandonCause::Deadline {
        let what = "its executors did not come together in time".to_owned();
        note(&mut job.faults, at, 0, Fault::Infrastructure, what);
    }
}

/// Until when new executors waited after the last wave.
pub(crate) fn pause_until(faults: &Faults) -> TimeMs {
    match faults.streak {
        0 => TimeMs(0),
        n => faults.at.plus_ms((BACKOFF_MS_MIN << (n - 1).min(16)).min(BACKOFF_MS_MAX)),
    }
}

fn note(faults: &mut Faults, at: TimeMs, lived_ms: u64, fault: Fault, what: String) {
    let of_program = fault == Fault::Program;
    if faults.streak == 0 || at >= faults.backoff_until() {
        let in_a_row = at.since_ms(faults.at) < FAULTS_FORGOTTEN_MS && lived_ms < STEADY_MS;
        faults.streak = if in_a_row { faults.streak.saturating_add(1) } else { 1 };
        faults.starts = faults.starts.saturating_add(u32::from(of_program));
        (faults.at, faults.pause_until) = (at, None);
    }
    faults.since_restart |= of_program;
    faults.last = what;
}
