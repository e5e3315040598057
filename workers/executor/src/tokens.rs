//! What an executor names its checkpoints by: a token for each generation, as orders bring it with the proposal. Learned as soon as an order is read, like
//! the keys of links; who enters a generation before its own order has come waits for it here.

use events_schema::orders::JobOrder;
use events_schema::{Generation, WriterToken};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Tokens kept, the newest: nothing is written for a generation that so many others have followed.
const TOKENS_MAX: usize = 64;

/// The tokens of a job's generations.
pub struct WriterTokens {
    /// Earlier controllers issue none: there the tokens of all generations follow from this.
    job_key: [u8; 32],
    issued: Mutex<BTreeMap<Generation, WriterToken>>,
    news: Condvar,
}

impl WriterTokens {
    /// That of the first order.
    #[must_use]
    pub fn of(order: &JobOrder) -> Self {
        let new = Self { job_key: order.key, issued: Mutex::new(BTreeMap::new()), news: Condvar::new() };
        new.learn(order);
        new
    }

    /// Adds that of a newer order. Those of older generations stay: what was begun in one may still be written.
    pub fn learn(&self, order: &JobOrder) {
        let Some(proposal) = &order.proposal else { return };
        let token = order.writer.unwrap_or_else(|| WriterToken::of(&self.job_key, proposal.generation));
        let mut issued = self.issued();
        issued.insert(proposal.generation, token);
        while issued.len() > TOKENS_MAX {
            issued.pop_first();
        }
        self.news.notify_all();
    }

    /// The token of a generation, if it comes to be known within this time.
    #[must_use]
    pub fn wait_for(&self, generation: Generation, within: Duration) -> Option<WriterToken> {
        let unknown = |issued: &mut BTreeMap<Generation, WriterToken>| !issued.contains_key(&generation);
        let waited = self.news.wait_timeout_while(self.issued(), within, unknown);
        let (issued, _) = waited.unwrap_or_else(PoisonError::into_inner);
        issued.get(&generation).copied()
    }

    fn issued(&self) -> MutexGuard<'_, BTreeMap<Generation, WriterToken>> {
        // What a panicked thread left is whole: each change is one insertion.
        self.issued.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
