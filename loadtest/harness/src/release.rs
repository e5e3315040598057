//! How long slots take to be free, as their agent sees it. Looks at the agent itself, so no hop of ours is in the figure but
//! the look.

use crate::HarnessError;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use workers_agent_client::{AgentClient, AgentSlot};

/// How often the agent is asked.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Longest wait for a slot: beyond the reclaim deadline, after which its executor is killed.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Slots with an executor on them.
#[must_use]
pub fn occupied(slots: &[AgentSlot]) -> BTreeSet<String> {
    slots.iter().filter(|s| s.executor.is_some()).map(|s| s.slot.clone()).collect()
}

/// Milliseconds from `accepted` until each of the first `count` of the slots `before` was free.
pub async fn until_free(
    agent: &AgentClient,
    before: &BTreeSet<String>,
    count: usize,
    accepted: Instant,
) -> Result<Vec<f64>, HarnessError> {
    let mut free: BTreeSet<String> = BTreeSet::new();
    let mut times_ms = Vec::new();
    while accepted.elapsed() < TIMEOUT {
        let now = occupied(&agent.slots().await?);
        let ms = accepted.elapsed().as_secs_f64() * 1e3;
        for slot in before.difference(&now) {
            if free.insert(slot.clone()) {
                times_ms.push(ms);
            }
        }
        if times_ms.len() >= count {
            return Ok(times_ms);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Err(HarnessError::plain(format!(
        "{} of {count} slots were free {} s after the demand was accepted",
        times_ms.len(),
        TIMEOUT.as_secs()
    )))
}
