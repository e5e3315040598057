//! A bound on the memory of a process and of what it starts. The kernel keeps it where it can (`memory_group.rs`). Elsewhere it is looked at
//! several times a second and kept by a kill: that works without any right on the machine, and what is allocated faster goes beyond it for a
//! moment. Says also whether the kernel has killed for want of memory.

use crate::memory_group::MemoryGroup;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fmt;
use std::fs;
use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two looks; in it a process fills less than a gigabyte.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Processes that are looked at: a job's Python and the readers of its data.
const PROCESSES_MAX: usize = 1_024;

/// Who keeps a process within its memory.
#[derive(Debug)]
pub struct MemoryBound(Keeper);

#[derive(Debug)]
enum Keeper {
    /// The kernel.
    Group(MemoryGroup),
    /// A thread that looks.
    Watch(MemoryWatch),
}

/// That a process was killed because it took or needed more memory than it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exceeded {
    /// What it took, unless the kernel did not let it.
    pub used_mib: Option<u64>,
    /// What it has.
    pub limit_mib: u32,
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.used_mib {
            Some(used_mib) => write!(f, "took {used_mib} MiB of memory, more")?,
            None => f.write_str("needed more memory")?,
        }
        write!(f, " than its memory_limit_mib of {}", self.limit_mib)
    }
}

impl MemoryBound {
    /// Has the process end when it and what it started take more than so many MiB.
    pub fn start(pid: u32, limit_mib: u32) -> io::Result<Self> {
        match MemoryGroup::around(pid, limit_mib) {
            Ok(Some(group)) => return Ok(Self(Keeper::Group(group))),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "no control group bounds the memory of a job's process, which is looked at instead");
            }
        }
        MemoryWatch::start(pid, limit_mib).map(|watch| Self(Keeper::Watch(watch)))
    }

    /// Whether it was killed for that.
    #[must_use]
    pub fn exceeded(&self, limit_mib: u32) -> Option<Exceeded> {
        match &self.0 {
            Keeper::Group(group) => group.was_exceeded().then_some(Exceeded { used_mib: None, limit_mib }),
            Keeper::Watch(watch) => {
                watch.exceeded_mib().map(|used_mib| Exceeded { used_mib: Some(used_mib), limit_mib })
            }
        }
    }
}

/// The one who looks.
#[derive(Debug)]
pub(crate) struct MemoryWatch {
    over: Arc<OnceLock<u64>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl MemoryWatch {
    /// Kills the process when it and what it started take more than so many MiB.
    fn start(pid: u32, limit_mib: u32) -> io::Result<Self> {
        let root = Pid::from_raw(i32::try_from(pid).unwrap_or(0)).ok_or(io::ErrorKind::NotFound)?;
        // Another process of the same number is not it.
        let process = pidfd_open(root, PidfdFlags::empty())?;
        let over = Arc::new(OnceLock::new());
        let found = Arc::clone(&over);
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name("ebb-memory".to_owned()).spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOK_INTERVAL) {
                let used_mib = used_bytes(pid, u64::from(limit_mib) << 20) >> 20;
                if used_mib > u64::from(limit_mib) {
                    // Set once, because this returns.
                    let _ = found.set(used_mib);
                    if let Err(error) = pidfd_send_signal(&process, Signal::KILL) {
                        tracing::error!(%error, "a process beyond its memory limit cannot be killed");
                    }
                    return;
                }
            }
        })?;
        Ok(Self { over, stop: Some(stop), thread: Some(thread) })
    }

    /// How many MiB it took when it was killed for that.
    fn exceeded_mib(&self) -> Option<u64> {
        self.over.get().copied()
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        drop(self.stop.take());
        // It cannot panic, and if it did there would be nothing left to do.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// What a process and its descendants take. Pages that several of them share count once; since that is slow to find out, it is only where
/// counting them several times gives more than the limit.
fn used_bytes(root: u32, limit: u64) -> u64 {
    let processes = tree(root);
    let sum = |of: fn(u32) -> Option<u64>| processes.iter().filter_map(|pid| of(*pid)).sum::<u64>();
    match sum(|pid| field(&format!("/proc/{pid}/status"), "VmRSS:")) {
        few if few <= limit => few,
        _ => sum(|pid| field(&format!("/proc/{pid}/smaps_rollup"), "Pss:")),
    }
}

/// A process and its descendants.
pub(crate) fn tree(root: u32) -> Vec<u32> {
    let mut processes = vec![root];
    let mut next = 0;
    while next < processes.len() && processes.len() < PROCESSES_MAX {
        let threads = fs::read_dir(format!("/proc/{}/task", processes[next])).into_iter().flatten().flatten();
        for thread in threads {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            processes.extend(children.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
        next += 1;
    }
    processes
}

/// A field in kB, as bytes; none of a process that has just ended.
fn field(file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.trim().trim_end_matches("kB").trim().parse::<u64>().ok().map(|kb| kb << 10)
}

/// How often the kernel has killed a process of this machine because memory ran out, in a group with a limit or as a whole.
#[must_use]
pub fn kernel_kills() -> u64 {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::process::kill_process_group;
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Command, Stdio};

    #[test]
    fn a_descendant_that_takes_too_much_ends_the_process() {
        // Its child holds 256 MiB that nobody takes.
        let take = "dd if=/dev/zero bs=256M count=1 status=none | sleep 60; true";
        let mut child = Command::new("sh").args(["-c", take]).stdin(Stdio::null()).process_group(0).spawn().unwrap();
        let watch = MemoryWatch::start(child.id(), 64).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert!(watch.exceeded_mib().unwrap() > 64);
        // What it started is in its group still, which therefore is nobody else's.
        let group = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        kill_process_group(group, Signal::KILL).unwrap();
    }

    #[test]
    fn one_that_takes_little_is_left_alone() {
        let mut child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let watch = MemoryWatch::start(child.id(), 64).unwrap();
        let used = used_bytes(child.id(), 0);
        assert!(used > 0 && used < 64 << 20, "{used}");
        drop(watch);
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
