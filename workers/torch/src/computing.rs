//! Which process computes for a job at the moment, for whoever says how much processor time the job has used: a slow unit is told from one that
//! hangs by that. Only says it; what follows is decided in the controller (`controller/core/src/watch.rs`).

use crate::memory::tree;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The kernel's unit of processor time in `/proc`, which is the same on all machines that Ebb runs on (`getconf CLK_TCK`).
const TICK_MS: u64 = 10;
/// In `/proc/PID/stat`, counted from behind the name, which alone may hold spaces: user and system time of the process, and of those that it
/// started and that have ended (proc_pid_stat(5), fields 14 to 17).
const FIELDS_BEFORE_TIMES: usize = 11;
const TIMES: usize = 4;

/// A job's Python, or its whole program, if one runs. Clones speak of the same.
#[derive(Debug, Clone, Default)]
pub struct ComputingProcess(Arc<AtomicU32>);

impl ComputingProcess {
    /// From now on it is this one, instead of another that was before.
    pub fn is(&self, pid: u32) {
        self.0.store(pid, Ordering::Relaxed);
    }

    /// Processor time of it and of what it started, in ms; nothing where there is none.
    #[must_use]
    pub fn processor_ms(&self) -> u64 {
        let pid = self.0.load(Ordering::Relaxed);
        if pid == 0 {
            return 0;
        }
        // One that has just ended uses no more.
        let used = |pid: u32| ticks(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?);
        tree(pid).into_iter().filter_map(used).sum::<u64>() * TICK_MS
    }
}

fn ticks(stat: &str) -> Option<u64> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    let times = behind_name.split_ascii_whitespace().skip(FIELDS_BEFORE_TIMES).take(TIMES);
    times.map(|ticks| ticks.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "7 (a) R 1) S 1 7 7 0 -1 4194560 1 2 3 4 250 31 500 6 20 0 1 0 9 9 9";
        assert_eq!(ticks(stat), Some(787));
        assert_eq!(ticks("7 (cut"), None);
    }

    #[test]
    fn a_process_that_computes_uses_more_and_more_and_one_that_is_gone_or_was_never_there_nothing() {
        let computing = ComputingProcess::default();
        assert_eq!(computing.processor_ms(), 0);
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().unwrap();
        computing.is(child.id());
        let mut last_ms = 0;
        for _ in 0..2 {
            let before_ms = last_ms;
            while last_ms <= before_ms {
                last_ms = computing.processor_ms();
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(computing.processor_ms(), 0);
    }
}
