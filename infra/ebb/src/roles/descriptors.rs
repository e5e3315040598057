//! File descriptors of a service: the limit is raised as far as the system allows, and what there is gets shared out, so that
//! connections of anybody cannot take those that executors, agents and fleets need.

use crate::failure::Failure;
use gateway::Limits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Log, object store, runtime, standard streams, and files that a registration reads.
const OWN: u64 = 192;
/// An executor's pipes, its log and its records.
const PER_SLOT: u64 = 8;
/// Fewest connections with which an API, and the agents of a few servers, are of use.
const API_MIN: u64 = 64;
const AGENTS_MIN: u64 = 32;
/// Agents of a cell, and some of them while they change their connection.
const AGENTS_MAX: u64 = 2_048;

/// How many connections each of the service's listeners may hold. Take-back has a fixed number of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// Of the API.
    pub api: usize,
    /// Of agents to the controller.
    pub agents: usize,
}

/// Raises this process's limit to what it may be; the limit. Processes that it starts inherit it.
pub fn raise() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    // Without a limit there is still one of the kernel, far above what is shared out here.
    let known = |limit: Option<u64>| limit.unwrap_or(u64::from(u32::MAX));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    known(if raised.is_ok() { limit.maximum } else { limit.current })
}

/// All for the API of a gateway alone.
pub fn for_api_alone(limit: u64) -> Result<usize, Failure> {
    let rest = beyond(limit, OWN, API_MIN, "")?;
    Ok(rest.min(Limits::STANDARD.connections_max as u64) as usize)
}

/// All for the agents of a controller alone.
pub fn for_agents_alone(limit: u64) -> Result<usize, Failure> {
    let rest = beyond(limit, OWN, AGENTS_MIN, "")?;
    Ok(rest.min(AGENTS_MAX) as usize)
}

/// What of a limit is left for connections.
fn beyond(limit: u64, kept: u64, connections_min: u64, why: &str) -> Result<u64, Failure> {
    let least = kept + connections_min;
    if limit < least {
        return Err(Failure::plain(format!(
            "this process may have {limit} file descriptors, and{why} it needs {least}"
        ))
        .advise(format!(
            "raise the hard limit (`ulimit -Hn {least}`, or LimitNOFILE in a systemd unit){}",
            if why.is_empty() { "" } else { ", or give fewer --slots" }
        )));
    }
    Ok(limit - kept)
}

/// Shares a limit out among all that `ebb up` holds.
pub fn share(limit: u64, slots: u16) -> Result<Shares, Failure> {
    let kept = OWN + PER_SLOT * u64::from(slots) + workers_agent::CONNECTIONS_MAX as u64;
    let rest = beyond(limit, kept, API_MIN + AGENTS_MIN, &format!(" with {slots} slots"))?;
    let agents = (rest / 4).clamp(AGENTS_MIN, AGENTS_MAX);
    let api = (rest - agents).min(Limits::STANDARD.connections_max as u64);
    Ok(Shares { api: api as usize, agents: agents as usize })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn shares_never_add_up_to_more_than_there_is() {
        for slots in [1, 4, 64, 1_024] {
            for limit in [512, 1_024, 4_096, 10_000, 1 << 20] {
                let Ok(shares) = share(limit, slots) else {
                    assert!(limit < 10_000);
                    continue;
                };
                let kept = OWN + PER_SLOT * u64::from(slots) + workers_agent::CONNECTIONS_MAX as u64;
                assert!(kept + shares.api as u64 + shares.agents as u64 <= limit, "{limit} {slots} {shares:?}");
                assert!(shares.api as u64 >= API_MIN && shares.agents as u64 >= AGENTS_MIN);
            }
        }
        assert_eq!(share(1 << 20, 4).unwrap(), Shares { api: Limits::STANDARD.connections_max, agents: 2_048 });
    }

    #[test]
    fn too_few_are_told_with_how_many_are_needed() {
        let refused = share(256, 4).unwrap_err();
        assert!(refused.to_string().contains("256 file descriptors"), "{refused}");
        assert!(refused.next_step().unwrap().contains("ulimit -Hn 448"), "{:?}", refused.next_step());
    }
}
