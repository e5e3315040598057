//! The executor's word of life: what it is at, kept where a thread of its own can say it while the training thread computes or hangs.

use crate::control::Agent;
use crate::store_wait::StoreWaits;
use events_schema::control::{ALIVE_INTERVAL_MS, FromExecutor, Phase, Progress, WaitsFor};
use events_schema::report::CodeEndedAt;
use events_schema::{Generation, Step};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use workers_torch::ComputingProcess;

/// What the process is at. The training thread sets it before it computes and before it waits.
#[derive(Debug)]
pub struct Life {
    progress: Mutex<Progress>,
    bytes_sent: OnceLock<Arc<AtomicU64>>,
    store: StoreWaits,
    computing: ComputingProcess,
}

impl Default for Life {
    /// A process that builds its model.
    fn default() -> Self {
        let progress = Progress {
            generation: Generation(0),
            revision: 0,
            step: Step(0),
            phase: Phase::Building,
            units_done: 0,
            bytes_done: 0,
            waits_for: WaitsFor::Nothing,
            processor_ms: 0,
            gradients: None,
            busy_percent: None,
        };
        Self {
            progress: Mutex::new(progress),
            bytes_sent: OnceLock::new(),
            store: StoreWaits::default(),
            computing: ComputingProcess::default(),
        }
    }
}

impl Life {
    /// From now on this is what it is at.
    pub fn set(&self, progress: Progress) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// Bytes sent are counted here.
    pub fn count_sent(&self, bytes: Arc<AtomicU64>) {
        // There is one network in a process, so it is set once.
        let _ = self.bytes_sent.set(bytes);
    }

    /// Whether the training thread waits for the store, to be said by whoever lets it wait.
    #[must_use]
    pub fn store(&self) -> StoreWaits {
        self.store.clone()
    }

    /// Whose processor time counts beside this process's, to be said by whoever starts it.
    #[must_use]
    pub fn computing(&self) -> ComputingProcess {
        self.computing.clone()
    }

    /// What it is at now, with what is counted elsewhere.
    #[must_use]
    pub fn now(&self) -> Progress {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let sent = self.bytes_sent.get().map_or(0, |bytes| bytes.load(Ordering::Relaxed));
        let bytes_done = progress.bytes_done.saturating_add(sent);
        // A unit that waits for its data computes nothing, and does not hang.
        let waits_for = if self.store.now() { WaitsFor::Store } else { progress.waits_for };
        let processor_ms = processor_ms() + self.computing.processor_ms();
        Progress { bytes_done, processor_ms, waits_for, ..progress }
    }

    /// Where it is, for who has to say that the job's code ended there.
    #[must_use]
    pub fn code_ended_at(&self) -> CodeEndedAt {
        let Progress { generation, step, phase, .. } = self.now();
        match phase {
            Phase::Building => CodeEndedAt::Start,
            Phase::Computing(rank) | Phase::Evaluating(rank) => {
                CodeEndedAt::Step { generation, step, rank: Some(rank) }
            }
            _ => CodeEndedAt::Step { generation, step, rank: None },
        }
    }

    /// Says what this process is at for as long as it lives. Returns when the agent cannot be told, which its listener sees as well.
    pub fn say(&self, mut agent: Agent<impl Write>) {
        while agent.say(&FromExecutor::Progress(self.now())).is_ok() {
            std::thread::sleep(Duration::from_millis(ALIVE_INTERVAL_MS));
        }
    }
}

/// Processor time of all threads of this process.
fn processor_ms() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use events_schema::Rank;

    #[test]
    fn bytes_received_and_sent_are_one_total() {
        let life = Life::default();
        assert_eq!(life.now().phase, Phase::Building);
        life.set(Progress { bytes_done: 5, phase: Phase::Reducing, ..life.now() });
        let sent = Arc::new(AtomicU64::new(3));
        life.count_sent(Arc::clone(&sent));
        sent.fetch_add(1, Ordering::Relaxed);
        assert_eq!((life.now().bytes_done, life.now().phase), (9, Phase::Reducing));
    }

    #[test]
    fn where_the_code_ended_is_the_start_or_a_step_and_whose_gradient_was_computed() {
        let life = Life::default();
        assert_eq!(life.code_ended_at(), CodeEndedAt::Start);
        let (generation, step) = (Generation(2), Step(7));
        life.set(Progress { generation, step, phase: Phase::Computing(Rank(3)), ..life.now() });
        assert_eq!(life.code_ended_at(), CodeEndedAt::Step { generation, step, rank: Some(Rank(3)) });
        life.set(Progress { phase: Phase::Updating, ..life.now() });
        assert_eq!(life.code_ended_at(), CodeEndedAt::Step { generation, step, rank: None });
    }
}
