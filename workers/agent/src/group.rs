//! Process groups as the kernel sees them: is anybody alive in one, when did a process start, kill them all.
//!
//! Every executor leads its own group, so that what it starts dies with it. Linux only (`/proc`). Next file: `record.rs`.

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};
use std::fs;
use std::io;
use std::time::{Duration, Instant};

/// Pause between looks at a group that was killed but still has members; only stragglers cost this.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// A group that outlives its kill by this long is worth an error in the log (uninterruptible I/O, a frozen cgroup).
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// What `/proc/PID/stat` says of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    /// One letter; `Z` and `X` are dead.
    pub state: char,
    /// Its process group.
    pub group: i32,
    /// Clock ticks from boot to its start: with the pid, its identity until the next boot.
    pub started_ticks: u64,
}

impl Stat {
    /// Of a process; `None` if there is none of this number.
    pub fn of(pid: i32) -> io::Result<Option<Self>> {
        match fs::read(format!("/proc/{pid}/stat")) {
            // A process may give itself any name, also one that is no text.
            Ok(bytes) => Self::parse(&String::from_utf8_lossy(&bytes))
                .map(Some)
                .ok_or_else(|| io::Error::other("unreadable /proc/PID/stat")),
            Err(e) if e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(ESRCH) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The command, the second field, is in parentheses and may hold anything, so fields are counted from its end.
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let group = fields.nth(1)?.parse().ok()?;
        let started_ticks = fields.nth(16)?.parse().ok()?;
        Some(Self { state, group, started_ticks })
    }

    /// Whether it can still run or hold anything.
    pub fn alive(self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }
}

const ESRCH: i32 = 3;

/// Living members of a group. Zombies do not count: they hold nothing, and their parent may never reap them.
pub(crate) fn living_members(group: i32) -> io::Result<Vec<i32>> {
    let Some(pid) = Pid::from_raw(group) else { return Ok(Vec::new()) };
    match test_kill_process_group(pid) {
        Ok(()) => {}
        Err(rustix::io::Errno::SRCH) => return Ok(Vec::new()),
        // There is somebody, only not for this process to signal.
        Err(error) => tracing::warn!(group, %error, "a process group does not take signals of this agent"),
    }
    let mut members = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if Stat::of(pid)?.is_some_and(|stat| stat.group == group && stat.alive()) {
            members.push(pid);
        }
    }
    Ok(members)
}

/// Kills all members of a group; none left is no error.
pub(crate) fn kill_group(group: i32) {
    if let Some(pid) = Pid::from_raw(group)
        && let Err(error) = kill_process_group(pid, Signal::KILL)
        && error != rustix::io::Errno::SRCH
    {
        tracing::error!(group, %error, "cannot kill a process group");
    }
}

/// Kills one process; none of this number is no error.
fn kill_one(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid)
        && let Err(error) = kill_process(pid, Signal::KILL)
        && error != rustix::io::Errno::SRCH
    {
        tracing::error!(pid = pid.as_raw_nonzero(), %error, "cannot kill a process");
    }
}

/// Kills a group and returns when nobody lives in it. Its leader is reaped already or is not our child; a group's number is
/// not given away while it has members, so nobody else can be hit. Waits as long as it takes: a slot with a living process
/// on it is not free, however long that lasts.
pub(crate) async fn clear_group(group: i32) {
    let begun = Instant::now();
    let mut complained = false;
    loop {
        match living_members(group) {
            Ok(members) if members.is_empty() => return,
            Ok(members) if !complained && begun.elapsed() > STUCK_AFTER => {
                complained = true;
                tracing::error!(group, ?members, "killed processes do not end; their slot stays taken");
            }
            Ok(_) => {}
            Err(error) => tracing::error!(group, %error, "cannot look at processes; their slot stays taken"),
        }
        kill_group(group);
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Kills one process that is not our child and returns when it is dead. Waits as long as it takes, as [`clear_group`] does.
pub(crate) async fn clear_process(pid: i32) -> io::Result<()> {
    let started = Stat::of(pid)?.map(|stat| stat.started_ticks);
    let begun = Instant::now();
    let mut complained = false;
    // Another process of the same number is not it.
    while Stat::of(pid)?.is_some_and(|stat| stat.alive() && Some(stat.started_ticks) == started) {
        if !complained && begun.elapsed() > STUCK_AFTER {
            complained = true;
            tracing::error!(pid, "a killed process does not end; the agent does not start before it does");
        }
        kill_one(pid);
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_command_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let text = "42 (a) b (c) S 1 40 40 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 1 1";
        assert_eq!(Stat::parse(text), Some(Stat { state: 'S', group: 40, started_ticks: 98765 }));
        assert_eq!(Stat::parse("42 (a"), None);
    }

    #[test]
    fn a_name_that_is_no_text_hides_no_process() {
        use std::os::unix::ffi::OsStrExt;
        let folder = tempfile::tempdir().unwrap();
        // The kernel names a process after the file it runs.
        let program = folder.path().join(std::ffi::OsStr::from_bytes(b"\xff) Z"));
        std::fs::copy("/bin/sleep", &program).unwrap();
        let mut child = std::process::Command::new(&program).arg("600").spawn().unwrap();
        let seen = Stat::of(i32::try_from(child.id()).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(seen.unwrap().unwrap().alive());
    }

    #[test]
    fn this_process_is_alive_and_no_process_is_not() {
        let pid = i32::try_from(std::process::id()).unwrap();
        assert!(Stat::of(pid).unwrap().unwrap().alive());
        assert_eq!(Stat::of(i32::MAX).unwrap(), None);
        assert_eq!(living_members(i32::MAX).unwrap(), Vec::<i32>::new());
    }
}
