//! A control group (cgroup) of its own for a process and what it starts, whose memory the kernel bounds: it lets nobody have more, where
//! `memory.rs`, which looks now and then, only notices. There is one where this process may make it: below its own group of the first
//! version's memory controller, or beside its own of the second version in a group that systemd has delegated (`Delegate=memory` with
//! `DelegateSubgroup=agent`). It never touches a group that somebody else sees to.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What names of groups of ours begin with; the rest is the process's number.
const NAME: &str = "ebb-";

/// The versions of the kernel's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Where a process may make groups.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    version: Version,
    folder: PathBuf,
}

/// The group of one process. Removed with this value, which therefore has to live until the process is reaped.
#[derive(Debug)]
pub(crate) struct MemoryGroup {
    version: Version,
    folder: PathBuf,
}

impl MemoryGroup {
    /// Moves a process into a group that has so much memory; nothing where none can be made. What it takes from then on counts.
    pub fn around(pid: u32, limit_mib: u32) -> io::Result<Option<Self>> {
        let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
        let Some(place) = Place::find(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
            .filter(|place| place.version == Version::One || is_delegated(&place.folder))
        else {
            return Ok(None);
        };
        remove_left(&place.folder);
        match Self::make(&place, pid, u64::from(limit_mib) << 20) {
            Err(error) if is_not_ours(&error) => Ok(None),
            made => made.map(Some),
        }
    }

    fn make(place: &Place, pid: u32, limit: u64) -> io::Result<Self> {
        if place.version == Version::Two {
            fs::write(place.folder.join("cgroup.subtree_control"), "+memory")?;
        }
        let folder = place.folder.join(format!("{NAME}{pid}"));
        fs::create_dir(&folder)?;
        // From here on it is removed if anything fails.
        let group = Self { version: place.version, folder };
        let (limit_file, swap) = match group.version {
            Version::One => ("memory.limit_in_bytes", ("memory.memsw.limit_in_bytes", limit)),
            Version::Two => ("memory.max", ("memory.swap.max", 0)),
        };
        fs::write(group.folder.join(limit_file), limit.to_string())?;
        // Not there where the kernel does not count swap; then a machine that swaps gives it more.
        let _ = fs::write(group.folder.join(swap.0), swap.1.to_string());
        if group.version == Version::Two {
            // A reader of data that is killed alone would leave the others to find out.
            fs::write(group.folder.join("memory.oom.group"), "1")?;
        }
        fs::write(group.folder.join("cgroup.procs"), pid.to_string())?;
        Ok(group)
    }

    /// Whether the kernel killed in it because it needed more than it has.
    pub fn was_exceeded(&self) -> bool {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        let text = fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        kills(&text) > 0
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Something that the process started may outlive it for a moment; the next group that is made here removes this one.
        let _ = fs::remove_dir(&self.folder);
    }
}

impl Place {
    /// Of what `/proc/self/cgroup` and `/proc/self/mountinfo` say.
    fn find(groups: &str, mounts: &str) -> Option<Self> {
        let path_of = |is_wanted: &dyn Fn(&str, &str) -> bool| {
            groups.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':');
                let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
                is_wanted(number, controllers).then_some(path)
            })
        };
        if let Some(path) = path_of(&|_, controllers| has(controllers, "memory")) {
            let folder = mounted(mounts, path, |kind, options| kind == "cgroup" && has(options, "memory"))?;
            return Some(Self { version: Version::One, folder });
        }
        let path = path_of(&|number, controllers| number == "0" && controllers.is_empty())?;
        // Processes live in leaves only, so a group for another one lies beside that of this process.
        let own = mounted(mounts, path, |kind, _| kind == "cgroup2").filter(|_| path != "/")?;
        Some(Self { version: Version::Two, folder: own.parent()?.to_owned() })
    }
}

fn has(list: &str, word: &str) -> bool {
    list.split(',').any(|entry| entry == word)
}

/// Where a path of a hierarchy lies, of which perhaps only a part is mounted.
fn mounted(mounts: &str, path: &str, is_wanted: impl Fn(&str, &str) -> bool) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (first, second) = line.split_once(" - ")?;
        let mut second = second.split(' ');
        let (kind, options) = (second.next()?, second.nth(1)?);
        let mut first = first.split(' ').skip(3);
        let (root, point) = (first.next()?, first.next()?);
        let rest = Path::new(path).strip_prefix(root).ok().filter(|_| is_wanted(kind, options))?;
        Some(Path::new(point).join(rest))
    })
}

/// Whether systemd has left this group to whoever runs in it, with its memory controller.
fn is_delegated(folder: &Path) -> bool {
    let says_so = |name: &str| rustix::fs::getxattr(folder, name, &mut [0_u8; 1]) == Ok(1);
    let controllers = fs::read_to_string(folder.join("cgroup.controllers")).unwrap_or_default();
    (says_so("user.delegate") || says_so("trusted.delegate"))
        && controllers.split_ascii_whitespace().any(|name| name == "memory")
}

/// Removes groups of processes that are gone: of an executor that was killed, nobody did.
fn remove_left(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(NAME)).and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // The kernel refuses it for one in which something runs.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn is_not_ours(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

fn kills(text: &str) -> u64 {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    #[test]
    fn a_place_for_groups_is_read_from_what_the_kernel_says() {
        let one = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                   35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";
        let groups = "5:devices:/\n4:memory:/jobs/a\n0::/\n";
        let folder = PathBuf::from("/sys/fs/cgroup/memory/jobs/a");
        assert_eq!(Place::find(groups, one), Some(Place { version: Version::One, folder }));
        // In a container the hierarchy is mounted from the container's own group on.
        let part = "35 31 0:32 /jobs /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let folder = PathBuf::from("/sys/fs/cgroup/memory/a");
        assert_eq!(Place::find(groups, part), Some(Place { version: Version::One, folder }));
        let two = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let folder = PathBuf::from("/sys/fs/cgroup/system.slice/ebb.service");
        let found = Place::find("0::/system.slice/ebb.service/agent\n", two);
        assert_eq!(found, Some(Place { version: Version::Two, folder }));
        assert_eq!(Place::find("0::/\n", two), None, "the whole of a container, in which processes are");
        assert_eq!(Place::find("", ""), None);
        assert_eq!((kills("oom 3\noom_kill 2\n"), kills("under_oom 0\n")), (2, 0));
    }

    /// On the kernel that is there; where it has no such group for this process, says so.
    #[test]
    fn the_kernel_kills_who_needs_more_and_nobody_else() {
        // Begins when its input ends, in the group.
        let take = "read line; dd if=/dev/zero of=/dev/null bs=256M count=1 status=none";
        let start = || Command::new("sh").args(["-c", take]).stdin(Stdio::piped()).spawn().unwrap();
        for (limit_mib, is_enough) in [(32, false), (1_024, true)] {
            let mut child = start();
            let Some(group) = MemoryGroup::around(child.id(), limit_mib).unwrap() else {
                eprintln!("skipped: this process may make no control group for memory");
                child.kill().unwrap();
                child.wait().unwrap();
                return;
            };
            drop(child.stdin.take());
            let ended = child.wait().unwrap();
            // It is the shell, or the program that it became or started.
            assert_eq!(ended.success(), is_enough, "{ended} {:?}", ended.signal());
            assert_eq!(group.was_exceeded(), !is_enough);
            let folder = group.folder.clone();
            drop(group);
            assert!(!folder.exists(), "{} stays", folder.display());
        }
    }

    #[test]
    fn groups_of_processes_that_are_gone_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let gone = format!("{NAME}{}", child.id());
        let here = format!("{NAME}{}", std::process::id());
        for name in [gone.as_str(), &here, "somebody-elses"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        remove_left(folder.path());
        let mut left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [here.as_str(), "somebody-elses"]);
    }
}
