//! How much processor time a virtual machine wanted and did not get: without it, a figure measured on a shared host cannot be
//! told from a slow program. And how much processor time and memory a process group takes. Linux only; elsewhere nothing is known.

use std::path::Path;
use std::time::Duration;

/// Where Linux counts processor time, first line, in ticks: user, nice, system, idle, iowait, irq, softirq, steal.
const COUNTS_FILE: &str = "/proc/stat";
/// Columns of time in use.
const USED: [usize; 5] = [0, 1, 2, 5, 6];
/// Column of time that the host gave to others while something here wanted to run.
const STEAL: usize = 7;

/// Counts since the machine started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time {
    used: u64,
    stolen: u64,
}

impl Time {
    /// Reads the counts, if the system tells them.
    pub fn now() -> Option<Self> {
        Self::parse(&std::fs::read_to_string(COUNTS_FILE).ok()?)
    }

    /// Stolen ÷ wanted since an earlier reading; nothing if nothing ran.
    pub fn stolen_since(self, earlier: Self) -> Option<f64> {
        let stolen = self.stolen.checked_sub(earlier.stolen)? as f64;
        let wanted = stolen + self.used.checked_sub(earlier.used)? as f64;
        (wanted > 0.0).then(|| stolen / wanted)
    }

    fn parse(text: &str) -> Option<Self> {
        let counts = text.lines().next()?.strip_prefix("cpu ")?;
        let counts: Vec<u64> = counts.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let used = USED.iter().map(|column| counts.get(*column).copied()).sum::<Option<u64>>()?;
        Some(Self { used, stolen: *counts.get(STEAL)? })
    }
}

/// Ticks of a second in what Linux tells of processes, whatever its own clock.
const TICKS_PER_SECOND: u64 = 100;

/// What the processes of a group have taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupUse {
    /// Processor time since they were started, of those that still run.
    pub processor: Duration,
    /// Memory now, but for what lies in files; what several share is counted once, if all are of the group.
    pub memory_bytes: u64,
}

impl GroupUse {
    /// Of the group that this process leads; without its memory, which takes longer to count, unless asked for.
    #[must_use]
    pub fn of(leader: i32, memory: bool) -> Self {
        let mut total = Self::default();
        for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let read = |name: &str| std::fs::read_to_string(process.path().join(name)).unwrap_or_default();
            let Some(ticks) = group_ticks(&read("stat"), leader) else { continue };
            total.processor += Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND);
            if memory {
                total.memory_bytes += proportional_kib(&read("smaps_rollup")).unwrap_or(0) * 1_024;
            }
        }
        total
    }
}

/// Threads of all processes of a group, as they are now.
#[must_use]
pub fn threads_of_group(leader: i32) -> Vec<i32> {
    let numbers = |folder: &Path| -> Vec<i32> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    };
    let of_group = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        group_ticks(&stat, leader).is_some()
    };
    let processes = numbers(Path::new("/proc")).into_iter().filter(of_group);
    processes.flat_map(|pid| numbers(Path::new(&format!("/proc/{pid}/task")))).collect()
}

/// Processor time in ticks by a process's `stat`, if it is of this group.
fn group_ticks(stat: &str, group: i32) -> Option<u64> {
    // The name before stands in brackets and may hold anything: state, parent, group; then 8 others up to user and system time.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let of_group = fields.get(2)?.parse() == Ok(group);
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok());
    if of_group { Some(ticks(11)? + ticks(12)?) } else { None }
}

/// Memory by a process's `smaps_rollup`, in KiB: its own, and its part of what it shares. Not what lies in files, as libraries do: its part of that depends on whoever
/// else runs on the machine.
fn proportional_kib(rollup: &str) -> Option<u64> {
    let of_kind = |kind: &str| -> Option<u64> {
        rollup.lines().find_map(|line| line.strip_prefix(kind))?.split_whitespace().next()?.parse().ok()
    };
    Some(of_kind("Pss_Anon:")? + of_kind("Pss_Shmem:")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_counts_for_its_group() {
        let stat = "77 (py) thon) S 1 40 40 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 1 0 5 6 7";
        assert_eq!((group_ticks(stat, 40), group_ticks(stat, 77), group_ticks("", 40)), (Some(300), None, None));
        let rollup = "55-66 ---p [rollup]\nRss: 9 kB\nPss: 1239 kB\nPss_Anon:   1200 kB\nPss_File: 5 kB\nPss_Shmem:  34 kB\nRss_Anon: 3 kB";
        assert_eq!((proportional_kib(rollup), proportional_kib("Rss: 9 kB")), (Some(1_234), None));
    }

    #[test]
    fn stolen_time_is_a_share_of_what_was_wanted() {
        let at = |line: &str| Time::parse(line).expect("counts");
        let before = at("cpu  100 10 20 5000 7 1 2 50 0 0\ncpu0 1 1 1 1");
        let after = at("cpu  160 10 30 9000 9 2 6 75 0 0\ncpu0 1 1 1 1");
        assert_eq!(after.stolen_since(before), Some(0.25));
        assert_eq!(after.stolen_since(after), None);
        assert_eq!((Time::parse("cpu  1 2"), Time::parse("intr 1")), (None, None));
    }
}
