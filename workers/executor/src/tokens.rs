//! What an executor names its checkpoints by: a token for each generation, as orders bring it with the proposal. Learned as soon as an order is
//! read, like the keys of links; who enters a generation before its own order has come waits for it here.
//!
//! A controller of another build may issue another token for a generation that has one. What was named by the first is still what it is, so
//! both are known, and the newest is used.

use events_schema::orders::JobOrder;
use events_schema::{Generation, WriterToken};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Tokens kept, the newest: nothing is written for a generation that so many others have followed.
const TOKENS_MAX: usize = 64;
/// Tokens kept of one generation, the newest: that of each build of the controller, of which an upgrade and a rollback make two.
const ISSUES_MAX: usize = 4;

/// The tokens of a job's generations.
#[derive(Default)]
pub struct WriterTokens {
    /// Of each generation that an order named, in the order of coming; none where it brought none.
    issued: Mutex<BTreeMap<Generation, Vec<WriterToken>>>,
    news: Condvar,
}

impl WriterTokens {
    /// That of the first order.
    #[must_use]
    pub fn of(order: &JobOrder) -> Self {
        let new = Self::default();
        new.learn(order);
        new
    }

    /// Adds that of a newer order, or notes that it brings none: whom a proposal leaves out has nothing to name there. Those of older
    /// generations stay: what was begun in one may still be written.
    pub fn learn(&self, order: &JobOrder) {
        if let Some(proposal) = &order.proposal {
            self.note(proposal.generation, order.writer);
        }
    }

    #[cfg(test)]
    pub(crate) fn add(&self, generation: Generation, token: WriterToken) {
        self.note(generation, Some(token));
    }

    fn note(&self, generation: Generation, token: Option<WriterToken>) {
        let mut issued = self.issued();
        let of_generation = issued.entry(generation).or_default();
        of_generation.retain(|known| Some(*known) != token);
        of_generation.extend(token);
        if of_generation.len() > ISSUES_MAX {
            of_generation.remove(0);
        }
        while issued.len() > TOKENS_MAX {
            issued.pop_first();
        }
        self.news.notify_all();
    }

    /// The newest token of a generation, if it comes to be known within this time. Once a newer generation is known nobody waits: an order
    /// replaces the one before, so that of this generation does not come any more.
    #[must_use]
    pub fn wait_for(&self, generation: Generation, within: Duration) -> Option<WriterToken> {
        let may_come =
            |issued: &mut BTreeMap<Generation, Vec<WriterToken>>| issued.range(generation..).next().is_none();
        let waited = self.news.wait_timeout_while(self.issued(), within, may_come);
        let (issued, _) = waited.unwrap_or_else(PoisonError::into_inner);
        issued.get(&generation)?.last().copied()
    }

    /// Whether this token came for this generation, now or before.
    #[must_use]
    pub fn knows(&self, generation: Generation, token: WriterToken) -> bool {
        self.issued().get(&generation).is_some_and(|tokens| tokens.contains(&token))
    }

    fn issued(&self) -> MutexGuard<'_, BTreeMap<Generation, Vec<WriterToken>>> {
        // What a panicked thread left serves: nothing that is done under the lock panics half way.
        self.issued.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3_600);
    const NOT_AT_ALL: Duration = Duration::ZERO;

    fn token(n: u8) -> WriterToken {
        WriterToken([n; 16])
    }

    #[test]
    fn the_newest_token_of_a_generation_is_used_and_the_earlier_ones_are_known() {
        let tokens = WriterTokens::default();
        assert_eq!(tokens.wait_for(Generation(3), NOT_AT_ALL), None);
        (0..10).for_each(|n| tokens.add(Generation(3), token(n)));
        // Rolled back: the one before comes again.
        tokens.add(Generation(3), token(8));
        assert_eq!(tokens.wait_for(Generation(3), NOT_AT_ALL), Some(token(8)));
        let known: Vec<u8> = (0..10).filter(|n| tokens.knows(Generation(3), token(*n))).collect();
        assert_eq!(known, [6, 7, 8, 9]);
        assert!(!tokens.knows(Generation(4), token(8)));
    }

    /// A token of that generation cannot come any more, so the writing thread would stand still for ever.
    #[test]
    fn nobody_waits_for_the_token_of_a_generation_that_was_skipped() {
        let tokens = WriterTokens::default();
        tokens.add(Generation(3), token(3));
        tokens.add(Generation(5), token(5));
        assert_eq!(tokens.wait_for(Generation(4), LONG), None);
        assert_eq!(tokens.wait_for(Generation(3), LONG), Some(token(3)));
        // Left out of one, or told by a controller that issues none: nothing is made up instead.
        tokens.note(Generation(6), None);
        assert_eq!(tokens.wait_for(Generation(6), LONG), None);
    }
}
