//! Members to which the link is gone though nobody said that they are: after a grace, the controller is told. Nothing is done about it
//! here; the controller proposes a round, and the round makes links and steps whole again.
//!
//! Without this a lost link between two living members would stop the job for good: each of them waits for the other's sums.

use events_schema::{Generation, Step};
use std::collections::BTreeMap;
use std::time::Duration;
use workers_session::Peer;

/// Time for somebody else to explain the loss: the agent of a killed process reports it within milliseconds.
pub(crate) const GRACE: Duration = Duration::from_secs(2);
/// Time for the members of a beginning generation to link up: a dial that is refused is tried again for about as long.
pub(crate) const LINKING_GRACE: Duration = Duration::from_secs(6);
/// Time to the next report of the same: the controller may have been in the middle of another proposal, which has to run out first.
pub(crate) const REPEAT: Duration = Duration::from_secs(10);

/// A member under suspicion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Suspect {
    pub peer: Peer,
    /// The generation in which it is missed.
    pub generation: Generation,
    /// The step of the loss.
    pub step: Step,
}

/// Everybody under suspicion, with when to look again: at most one entry per member and generation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Suspicion {
    suspects: BTreeMap<(Peer, Generation), (Step, Duration)>,
}

impl Suspicion {
    /// Looks at a member again at `due`. One that is under suspicion already is looked at when that was due.
    pub fn suspect(&mut self, suspect: Suspect, due: Duration) {
        let Suspect { peer, generation, step } = suspect;
        self.suspects.entry((peer, generation)).and_modify(|of| of.0 = step).or_insert((step, due));
    }

    /// When somebody is to be looked at.
    pub fn next(&self) -> Option<Duration> {
        self.suspects.values().map(|(_, due)| *due).min()
    }

    /// Takes out everybody who is to be looked at by now.
    pub fn due(&mut self, now: Duration) -> Vec<Suspect> {
        let due: Vec<Suspect> = self
            .suspects
            .iter()
            .filter(|(_, (_, due))| *due <= now)
            .map(|(&(peer, generation), &(step, _))| Suspect { peer, generation, step })
            .collect();
        self.suspects.retain(|_, (_, due)| *due > now);
        due
    }

    /// Forgets suspects of generations before this one: they are over.
    pub fn forget_before(&mut self, generation: Generation) {
        self.suspects.retain(|(_, of), _| *of >= generation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_looked_at_when_it_is_due_and_once() {
        let mut suspicion = Suspicion::default();
        let suspect =
            |peer, generation, step| Suspect { peer: Peer(peer), generation: Generation(generation), step: Step(step) };
        let at = Duration::from_secs;
        suspicion.suspect(suspect(1, 4, 7), at(12));
        suspicion.suspect(suspect(1, 4, 8), at(99));
        suspicion.suspect(suspect(2, 5, 8), at(13));
        assert_eq!(suspicion.next(), Some(at(12)));
        assert!(suspicion.due(at(11)).is_empty());
        assert_eq!(suspicion.due(at(12)), [suspect(1, 4, 8)]);
        suspicion.suspect(suspect(1, 4, 8), at(22));
        suspicion.forget_before(Generation(5));
        assert_eq!(suspicion.due(at(99)), [suspect(2, 5, 8)]);
        assert_eq!(suspicion.next(), None);
    }
}
