//! When a member that has to go does not wait for the boundary any more: where that lies beyond half of the time it was given, or beyond a second. By what
//! its own ranks still take, or because the time has come. Whether it may go then, the others say (`workers/session/src/leave.rs`). All of it also while a
//! gradient is computed (`meanwhile.rs`).

use crate::member::Member;
use std::time::Duration;
use workers_session::Input;

/// A boundary that comes later is not waited for, however late the kill would be: whoever wants the slot waits too.
pub const BOUNDARY_WAIT_MAX: Duration = Duration::from_secs(1);
/// After that part of the wait the others are asked at the earliest: several slots that are taken back one after the other are taken back together, and
/// nobody is to rely on a member that hears in the next moment that it has to go as well.
const SETTLED_PART: u32 = 5;

/// What one member knows of its leaving.
#[derive(Debug, Clone, Default)]
pub(crate) struct Leave {
    /// When the others may be asked, and until when the boundary is waited for.
    wait: Option<(Duration, Duration)>,
    /// How long the last unit took: a gradient, or a part of an evaluation.
    pub unit: Duration,
}

impl Leave {
    /// It is killed after so long. Said again it is brought forward only.
    pub fn on_deadline(&mut self, now: Duration, within: Duration) {
        let wait = (within / 2).min(BOUNDARY_WAIT_MAX);
        let until = now + wait;
        if self.wait.is_none_or(|(_, known)| until < known) {
            self.wait = Some((now + wait / SETTLED_PART, until));
        }
    }

    /// Whether it was told when it is killed.
    pub fn is_told(&self) -> bool {
        self.wait.is_some()
    }

    /// When to look again, if nothing else happens.
    pub fn next(&self, now: Duration) -> Option<Duration> {
        let (from, until) = self.wait?;
        [from, until].into_iter().find(|at| *at > now)
    }
}

impl<P> Member<P> {
    /// Whether it was told that its slot is wanted.
    #[must_use]
    pub fn has_to_leave(&self) -> bool {
        self.leave.is_told()
    }

    /// Has the session ask to go if the boundary comes too late. It asks once in each membership, however often it is told.
    pub(crate) fn leave_early(&mut self) {
        if self.is_boundary_too_late() {
            self.inputs.push_back(Input::LeaveEarly);
        }
    }

    /// Whether it has to leave, and its own units take longer than it waits for the boundary.
    pub(crate) fn is_boundary_too_late(&self) -> bool {
        let Some((from, until)) = self.leave.wait else { return false };
        let parts = self.config.evaluation.map_or(1, |evaluation| evaluation.parts);
        let left = self.leave.unit.saturating_mul(self.flow.units_left(parts));
        // Of the one that is computed a part is done.
        let done = self.unit.map_or(Duration::ZERO, |_| self.now.saturating_sub(self.unit_begun).min(self.leave.unit));
        self.now >= from && self.now + left.saturating_sub(done) >= until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn half_of_the_time_is_waited_and_at_most_a_second() {
        let mut leave = Leave::default();
        assert_eq!(leave.next(ms(0)), None);
        leave.on_deadline(ms(100), ms(30_000));
        assert_eq!(leave.wait, Some((ms(300), ms(1_100))));
        leave.on_deadline(ms(200), ms(10_000));
        assert_eq!(leave.wait, Some((ms(300), ms(1_100))), "a later one changes nothing");
        leave.on_deadline(ms(200), ms(500));
        assert_eq!(leave.wait, Some((ms(250), ms(450))));
        assert_eq!(
            [leave.next(ms(200)), leave.next(ms(250)), leave.next(ms(450))],
            [Some(ms(250)), Some(ms(450)), None]
        );
    }
}
