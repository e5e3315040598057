//! Executors with processors of their own: what a newcomer costs a member is to be what it does there, and not the processor's time that two share. Pinned from
//! outside, by their process groups, as an operator would with `taskset`; a service pins nobody. Linux only; elsewhere nothing is pinned.

use crate::processor::threads_of_group;
use loadtest_harness::HarnessError;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use workers_agent_client::AgentClient;

/// How soon an executor is pinned after it was started: it initializes, or restores, for longer.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// What somebody starts has its processors from it. A process that is forked for an executor has not, and is its own group's within this time.
const FORKED_WITHIN: Duration = Duration::from_secs(20);

/// Pins executors until it is dropped.
pub struct Pinned(JoinHandle<()>);

impl Pinned {
    /// Shares the processors of this process out over so many slots, whole ones; an error if there are fewer.
    pub fn slots(agent: AgentClient, slots: u16) -> Result<Self, HarnessError> {
        let allowed = sched_getaffinity(None)
            .map_err(|error| HarnessError::plain(format!("which processors may be used is unknown: {error}")))?;
        let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor)).collect();
        let each = allowed.len() / usize::from(slots.max(1));
        if each == 0 {
            return Err(HarnessError::plain(format!(
                "{slots} executors are to have a processor each, and there are {}",
                allowed.len()
            )));
        }
        Ok(Self(tokio::spawn(pin(agent, allowed, each))))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn pin(agent: AgentClient, allowed: Vec<usize>, each: usize) {
    let mut started: Vec<Option<(i32, Instant)>> = Vec::new();
    loop {
        // An agent that does not answer now is asked again; the rows themselves say if it never does.
        let slots = agent.slots().await.unwrap_or_default();
        started.resize(slots.len(), None);
        for ((slot, started), processors) in slots.iter().zip(&mut started).zip(allowed.chunks_exact(each)) {
            let same = started.filter(|(pid, _)| Some(*pid) == slot.pid);
            *started = same.or_else(|| Some((slot.pid?, Instant::now())));
            if let Some((pid, _)) = started.filter(|(_, since)| since.elapsed() < FORKED_WITHIN) {
                pin_group(pid, processors);
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Every thread of a process group: how many were pinned. One that has ended meanwhile needs no processor.
fn pin_group(leader: i32, processors: &[usize]) -> usize {
    let mut set = CpuSet::new();
    processors.iter().for_each(|processor| set.set(*processor));
    let threads = threads_of_group(leader).into_iter().filter_map(Pid::from_raw);
    threads.filter(|thread| sched_setaffinity(Some(*thread), &set).is_ok()).count()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    #[test]
    fn all_of_a_group_have_the_processors_of_their_slot() {
        let mut child = Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        let leader = i32::try_from(child.id()).unwrap();
        let may = || sched_getaffinity(Pid::from_raw(leader)).unwrap();
        let last = (0..CpuSet::MAX_CPU).rfind(|processor| may().is_set(*processor)).unwrap();
        let pinned = pin_group(leader, &[last]);
        let (count, is_last) = (may().count(), may().is_set(last));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((pinned, count, is_last), (1, 1, true));
    }
}
