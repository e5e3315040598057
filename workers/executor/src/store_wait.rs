//! Waiting for the object store: who cannot go on without it asks again for as long as the job's spec allows (`store_patience_ms`), and its word of life
//! says meanwhile what it waits for. An exit would not help, because whoever comes next needs the store too.
//!
//! One request is tried again in `storage/src/retry.rs`, for minutes; this is for a store that is away, or refuses, for longer. Nothing is skipped.
//!
//! Who waits in the middle of a unit is heard and hears as in a long one (`meanwhile.rs`), as soon as it has waited so long. What lies ready costs nothing
//! for that: no thread is asked.

use crate::life::Life;
use crate::meanwhile::{LONG, Listen};
use events_schema::orders::JobOrder;
use shell::{Chain, Pauses};
use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::time::timeout;
use workers_member::STORE_PATIENCE_FACTOR;

/// Pauses between two times of asking; what was asked for has been tried again by itself, unless the store refused it at once.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest such pause: so late is it seen at most that the store is back.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Whether the training thread waits for the store now. Clones are of the same thread.
#[derive(Debug, Clone, Default)]
pub struct StoreWaits(Arc<AtomicBool>);

impl StoreWaits {
    /// At this moment.
    #[must_use]
    pub fn now(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Asks the store again and again, up to a limit.
#[derive(Debug, Clone, Default)]
pub struct StorePatience {
    waits: StoreWaits,
    patience: Duration,
}

impl StorePatience {
    /// For at most so long, and said by `waits`. The default asks once.
    #[must_use]
    pub fn new(waits: StoreWaits, patience: Duration) -> Self {
        Self { waits, patience }
    }

    /// That of a job, said by an executor's word of life.
    #[must_use]
    pub fn of(order: &JobOrder, life: &Life) -> Self {
        let patience = Duration::from_millis(order.spec.store_patience_ms.ms());
        Self::new(life.store(), patience * STORE_PATIENCE_FACTOR)
    }

    /// The same of a read in the middle of a unit, for which a fault is a long wait: it may be asked again.
    pub(crate) fn read<T, E: Error + 'static, R: Future<Output = Result<T, E>>>(
        &self,
        runtime: &Handle,
        read: impl Fn() -> R,
        may_pass: impl Fn(&E) -> bool,
        listen: Listen<'_>,
    ) -> Result<T, E> {
        self.ask(|| listening(runtime, read(), listen).inspect_err(|_| listen()), may_pass)
    }

    /// What `ask` gives in the end: again where `may_pass` says of its error that it may be another one later.
    pub fn ask<T, E: Error + 'static>(
        &self,
        mut ask: impl FnMut() -> Result<T, E>,
        may_pass: impl Fn(&E) -> bool,
    ) -> Result<T, E> {
        let _waiting = Waiting::begin(&self.waits);
        let (began, mut pauses) = (Instant::now(), Pauses::between(PAUSE_MIN, PAUSE_MAX));
        loop {
            match ask() {
                Err(error) if began.elapsed() < self.patience && may_pass(&error) => {
                    let patience_s = self.patience.saturating_sub(began.elapsed()).as_secs();
                    tracing::warn!(error = %Chain(&error), patience_s, "waiting for the store");
                    std::thread::sleep(pauses.after_failure());
                }
                end => return end,
            }
        }
    }
}

/// What a read gives in the end, for a thread outside the runtime. If that takes long somebody listens meanwhile; the read goes on.
pub(crate) fn listening<T>(runtime: &Handle, read: impl Future<Output = T>, listen: Listen<'_>) -> T {
    runtime.block_on(async {
        let mut read = pin!(read);
        match timeout(LONG, &mut read).await {
            Ok(end) => end,
            Err(_) => {
                listen();
                read.await
            }
        }
    })
}

/// It is said for as long as this lives.
struct Waiting<'a>(&'a StoreWaits);

impl<'a> Waiting<'a> {
    fn begin(waits: &'a StoreWaits) -> Self {
        waits.0.store(true, Ordering::Relaxed);
        Self(waits)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::cell::Cell;
    use std::io;
    use tokio::runtime::Runtime;
    use tokio::sync::oneshot::channel;

    fn away() -> io::Error {
        io::Error::other("away")
    }

    #[test]
    fn who_waits_says_so_and_asks_again_what_may_pass() {
        let waits = StoreWaits::default();
        let patience = StorePatience::new(waits.clone(), Duration::from_secs(60));
        let mut asked = 0;
        let ask = || {
            assert!(waits.now());
            asked += 1;
            if asked < 2 { Err(away()) } else { Ok(asked) }
        };
        assert_eq!(patience.ask(ask, |_| true).ok(), Some(2));
        assert!(!waits.now());
    }

    #[test]
    fn somebody_listens_while_a_read_takes_long_and_not_while_it_lies_ready() {
        let (runtime, listened) = (Runtime::new().unwrap(), Cell::new(0));
        let listen = || listened.set(listened.get() + 1);
        let patience = StorePatience::new(StoreWaits::default(), Duration::ZERO);
        let read = |given: Result<u8, io::Error>| {
            let given = Cell::new(Some(given));
            patience.read(runtime.handle(), async || given.take().unwrap(), |_| true, &listen)
        };
        assert_eq!((read(Ok(7)).ok(), listened.get()), (Some(7), 0));
        assert!(read(Err(away())).is_err() && listened.get() == 1, "it may be asked again");
        // It is there only when somebody listens: the same read goes on.
        let (answers, answer) = channel();
        let answers = Cell::new(Some(answers));
        assert_eq!(listening(runtime.handle(), answer, &|| answers.take().unwrap().send(9).unwrap()), Ok(9));
    }

    #[test]
    fn what_does_not_pass_is_asked_once_and_so_is_everything_without_patience() {
        for (patience, passes) in [(Duration::from_secs(60), false), (Duration::ZERO, true)] {
            let patience = StorePatience::new(StoreWaits::default(), patience);
            let mut asked = 0;
            let ask = || {
                asked += 1;
                Err::<(), _>(away())
            };
            assert!(patience.ask(ask, |_| passes).is_err());
            assert_eq!(asked, 1);
        }
    }
}
