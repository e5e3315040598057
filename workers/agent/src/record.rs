//! What the agent keeps in its data directory so that its next process can clean up: one file per running executor, and the
//! slots that fleets took back but the controller has not yet heard of. Next file: `process.rs`.

use crate::group::{Stat, clear_group, clear_process, living_members};
use crate::private;
use events_schema::ExecutorId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use workers_torch::NONCE_VARIABLE;

/// A running executor, kept as `executors/SLOT.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExecutorRecord {
    /// The executor that the process is.
    pub executor: ExecutorId,
    /// Its process, and the number of its group.
    pub pid: i32,
    /// When it started, in clock ticks since boot: a process of the same number that started at another time is not it.
    pub started_ticks: u64,
    /// The boot those ticks count from.
    pub boot: String,
    /// Value of [`NONCE_VARIABLE`] in it and in what it starts.
    pub nonce: String,
    /// The same in what is forked for it by others of its agent's processes, whose environment a forked process shows.
    #[serde(default)]
    pub forked_nonce: Option<String>,
}

/// Text that changes with every boot of the host.
pub(crate) fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

impl ExecutorRecord {
    /// The record's file for a slot.
    pub fn path(folder: &Path, slot: u16) -> PathBuf {
        folder.join(format!("{slot}.json"))
    }

    /// Writes it whole or not at all. Not synced: after a crash of the host there is no process to find.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let draft = path.with_extension("draft");
        private::write(&draft, &serde_json::to_vec(self)?)?;
        fs::rename(&draft, path)
    }

    /// Processes of it that still live. Never one that only has the same number.
    fn survivors(&self) -> io::Result<Survivors> {
        if self.boot != boot()? {
            return Ok(Survivors::None);
        }
        if Stat::of(self.pid)?.is_some_and(|stat| stat.started_ticks == self.started_ticks) {
            return Ok(Survivors::Group);
        }
        // The leader is gone. Its group may live on in what it started, or what was forked for it; each of those carries a nonce.
        let nonces = [Some(&self.nonce), self.forked_nonce.as_ref()];
        let marks: Vec<String> =
            nonces.into_iter().flatten().map(|nonce| format!("{NONCE_VARIABLE}={nonce}")).collect();
        let is_mark = |entry: &[u8]| marks.iter().any(|mark| entry == mark.as_bytes());
        let marked = |pid: &i32| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|environment| environment.split(|byte| *byte == 0).any(is_mark))
        };
        Ok(Survivors::Some(living_members(self.pid)?.into_iter().filter(marked).collect()))
    }
}

enum Survivors {
    None,
    Group,
    Some(Vec<i32>),
}

/// Kills what an earlier agent process left behind and returns when it is dead; gives the executors found alive.
pub(crate) async fn kill_leftovers(folder: &Path) -> io::Result<Vec<ExecutorId>> {
    let mut killed = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            match serde_json::from_slice::<ExecutorRecord>(&fs::read(&path)?) {
                Ok(record) if kill_leftover(&record).await? => killed.push(record.executor),
                Ok(_) => {}
                Err(error) => tracing::error!(path = %path.display(), %error, "unreadable executor record"),
            }
        }
        fs::remove_file(&path)?;
    }
    Ok(killed)
}

async fn kill_leftover(record: &ExecutorRecord) -> io::Result<bool> {
    match record.survivors()? {
        Survivors::None => Ok(false),
        Survivors::Group => {
            tracing::warn!(executor = %record.executor, pid = record.pid, "killing an executor of an earlier agent process");
            clear_group(record.pid).await;
            Ok(true)
        }
        Survivors::Some(pids) => {
            let found = !pids.is_empty();
            kill_marked(record, pids).await?;
            Ok(found)
        }
    }
}

/// Kills processes of a dead executor until none is left: one that was just killed may have started another.
async fn kill_marked(record: &ExecutorRecord, mut pids: Vec<i32>) -> io::Result<()> {
    while !pids.is_empty() {
        for pid in pids {
            tracing::warn!(executor = %record.executor, pid, "killing what an executor of an earlier agent process started");
            clear_process(pid).await?;
        }
        pids = match record.survivors()? {
            Survivors::Some(pids) => pids,
            Survivors::None | Survivors::Group => Vec::new(),
        };
    }
    Ok(())
}

/// Slots that fleets took back and whose report no controller has taken yet, kept as one file.
#[derive(Debug)]
pub(crate) struct TakenBack {
    path: PathBuf,
}

impl TakenBack {
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Slot numbers; none if there is no file.
    pub fn read(&self) -> io::Result<BTreeSet<u16>> {
        match fs::read(&self.path) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
            Err(e) => Err(e),
        }
    }

    /// Durable when it is done: a slot that was given back must stay given back over a crash of the host. Holds nothing of `self`, so that
    /// its owner can do other things meanwhile: a disk may take seconds.
    pub fn write(&self, slots: BTreeSet<u16>) -> impl Future<Output = io::Result<()>> + use<> {
        let path = self.path.clone();
        let written = tokio::task::spawn_blocking(move || {
            let draft = path.with_extension("draft");
            let mut file = private::open(&draft, false)?;
            file.write_all(&serde_json::to_vec(&slots)?)?;
            file.sync_all()?;
            fs::rename(&draft, &path)?;
            fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
        });
        async { written.await.map_err(io::Error::other)? }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    fn sleeper(nonce: &str) -> Child {
        let mut command = Command::new("sleep");
        let child =
            command.arg("600").env(NONCE_VARIABLE, nonce).process_group(0).stdin(Stdio::null()).spawn().unwrap();
        // A process that has only just begun has no environment to read yet.
        while fs::read(format!("/proc/{}/environ", child.id())).unwrap().is_empty() {
            std::thread::yield_now();
        }
        child
    }

    fn record(child: &Child, nonce: &str) -> ExecutorRecord {
        let pid = i32::try_from(child.id()).unwrap();
        let started_ticks = Stat::of(pid).unwrap().unwrap().started_ticks;
        let executor = "job-a/e0".parse().unwrap();
        let (boot, nonce) = (boot().unwrap(), nonce.to_owned());
        ExecutorRecord { executor, pid, started_ticks, boot, nonce, forked_nonce: None }
    }

    #[tokio::test]
    async fn a_recorded_process_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let mut child = sleeper("n1");
        record(&child, "n1").write(&ExecutorRecord::path(folder.path(), 0)).unwrap();
        assert_eq!(kill_leftovers(folder.path()).await.unwrap().len(), 1);
        assert!(!child.wait().unwrap().success());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "the record goes too");
    }

    #[tokio::test]
    async fn a_process_that_only_has_the_same_number_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let mut child = sleeper("another");
        let mut stale = record(&child, "n1");
        stale.started_ticks -= 1;
        stale.write(&ExecutorRecord::path(folder.path(), 0)).unwrap();
        let mut old_boot = record(&child, "another");
        old_boot.boot = "an earlier one".to_owned();
        old_boot.write(&ExecutorRecord::path(folder.path(), 1)).unwrap();
        assert_eq!(kill_leftovers(folder.path()).await.unwrap(), []);
        assert!(child.try_wait().unwrap().is_none(), "it still runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn what_a_dead_executor_started_is_found_by_its_mark() {
        let folder = tempfile::tempdir().unwrap();
        let mut child = sleeper("n1");
        let mut leaderless = record(&child, "n1");
        leaderless.started_ticks += 1;
        leaderless.write(&ExecutorRecord::path(folder.path(), 0)).unwrap();
        let group = leaderless.pid;
        assert_eq!(kill_leftovers(folder.path()).await.unwrap().len(), 1);
        assert_eq!(living_members(group).unwrap(), [0; 0], "it is dead, not only killed");
        assert!(!child.wait().unwrap().success());
    }

    #[tokio::test]
    async fn what_was_forked_for_a_dead_executor_is_found_by_its_servers_mark() {
        let folder = tempfile::tempdir().unwrap();
        let mut child = sleeper("the servers'");
        let mut leaderless = record(&child, "n1");
        leaderless.started_ticks += 1;
        leaderless.forked_nonce = Some("the servers'".to_owned());
        leaderless.write(&ExecutorRecord::path(folder.path(), 0)).unwrap();
        assert_eq!(kill_leftovers(folder.path()).await.unwrap().len(), 1);
        assert!(!child.wait().unwrap().success());
    }

    #[tokio::test]
    async fn taken_back_slots_survive_on_disk() {
        let folder = tempfile::tempdir().unwrap();
        let file = TakenBack::new(folder.path().join("taken-back.json"));
        assert_eq!(file.read().unwrap(), BTreeSet::new());
        file.write(BTreeSet::from([1, 3])).await.unwrap();
        assert_eq!(file.read().unwrap(), BTreeSet::from([1, 3]));
    }
}
