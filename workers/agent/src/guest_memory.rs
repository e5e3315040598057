//! Memory of guests: one begins only where it finds room, and is the first to go where memory runs out after all. Not how much of it a running guest may take: that it takes by
//! itself, as every process, until the kernel ends it.

use std::fs;
use std::io;

/// What a guest has to find beside what is known of its job: what an executor with a Python that has PyTorch imported takes before it has any model, twice, and some room for its host.
pub(crate) const ROOM_BYTES: u64 = 1 << 30;

/// The kernel's largest sign that a process is to be ended first when memory runs out. Any process may raise its own children's.
const ENDED_FIRST: &str = "1000";

/// Why a guest that needs so much, beside what every executor does, finds no room; nothing if it does, or if the kernel says nothing of it.
pub(crate) fn lacks_room(needs_bytes: u64) -> Option<String> {
    let available = available_bytes(&fs::read_to_string("/proc/meminfo").ok()?)?;
    why(available, needs_bytes)
}

fn why(available: u64, needs_bytes: u64) -> Option<String> {
    let needs = needs_bytes.saturating_add(ROOM_BYTES);
    (available < needs).then(|| {
        format!(
            "this server has {} MiB of memory left beside who is there, and a guest of this job needs {}",
            available >> 20,
            needs >> 20
        )
    })
}

/// Memory that could be had without anything being written to a disk for it, by what the kernel says of the machine.
fn available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// Has the kernel end this process, and those that it is going to start, before any other when memory runs out.
pub(crate) fn goes_first(pid: i32) -> io::Result<()> {
    fs::write(format!("/proc/{pid}/oom_score_adj"), ENDED_FIRST)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn who_finds_no_room_is_told_how_much_there_is_and_how_much_it_needs() {
        let meminfo = "MemTotal:        8000000 kB\nMemFree:          100000 kB\nMemAvailable:    2097152 kB\n";
        assert_eq!(available_bytes(meminfo), Some(2 << 30));
        assert_eq!(available_bytes("MemTotal: 8 kB\n"), None, "an old kernel");
        assert_eq!((why(2 << 30, 0), why(2 << 30, 1 << 30)), (None, None));
        let said = why(2 << 30, (1 << 30) + 1).unwrap();
        assert!(said.contains("2048 MiB") && said.ends_with("needs 2048"), "{said}");
        assert!(lacks_room(u64::MAX).is_some(), "of this machine");
    }

    #[test]
    fn a_process_that_gives_way_is_the_first_to_go_with_what_it_starts() {
        let own = || fs::read_to_string("/proc/self/oom_score_adj").unwrap();
        let before = own();
        let mut child = std::process::Command::new("sh")
            .args(["-c", "read line; cat /proc/self/oom_score_adj"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        goes_first(child.id() as i32).unwrap();
        drop(child.stdin.take());
        assert_eq!(child.wait_with_output().unwrap().stdout, b"1000\n");
        assert_eq!(own(), before, "nobody else");
    }
}
