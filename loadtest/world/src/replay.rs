//! What the log gives again: whoever reads it has the state that its controller has, in memory or from bytes, and decides the same.

use crate::world::World;
use controller_cell::Committed;
use controller_core::{Input, State, decide};
use events_rule::Stream;
use events_schema::TimeMs;
use events_schema::batch::{from_bytes, to_bytes};
use events_schema::fact::Fact;

/// Long enough for every pause to be over that a state may be in.
const LATER_MS: u64 = 100_000;

impl World {
    /// A controller makes known what counts for it.
    pub fn check_committed(&mut self, committed: &Committed) {
        let newest = self.log.records(Stream::Events, committed.position).is_empty();
        if newest && committed.state != self.log.truth {
            self.found("a controller has what its log says", format!("at {}", committed.position));
        }
    }

    fn tick(&self, state: &State, at: TimeMs) -> Vec<Fact> {
        let policy = self.policy();
        policy.map_or_else(Vec::new, |policy| decide(state, at, &Input::Tick, policy.as_ref()))
    }

    /// What a moment means is decided at once, not little by little.
    pub fn check_settled(&mut self) {
        let (mut state, at) = (self.log.truth.clone(), self.log.truth.at());
        for fact in self.tick(&state, at) {
            state.apply(at, &fact);
        }
        let again = self.tick(&state, at);
        if !again.is_empty() {
            self.found("planning twice decides nothing", format!("{again:?}"));
        }
    }

    /// A state survives its bytes.
    pub fn check_bytes(&mut self) {
        let state = &self.log.truth;
        let later = state.at().plus_ms(LATER_MS);
        let same = match from_bytes::<State>(&to_bytes(state)) {
            Ok(read) => read == *state && self.tick(&read, later) == self.tick(state, later),
            Err(_) => false,
        };
        if !same {
            self.found("a state survives its bytes", format!("at {}", state.at().0));
        }
    }
}
