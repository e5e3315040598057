//! Where a member's program runs and what it is told: a folder of its own, a port that is kept free for rank 0, and the variables that say who is who.

use events_schema::fact::Proposal;
use events_schema::gang::CommandSpec;
use events_schema::{ExecutorId, JobId};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

/// Where a program keeps what it goes on from.
const CHECKPOINT_VARIABLE: &str = "EBB_CHECKPOINT_DIR";
const LOCK: &str = "lock";

/// A folder of this executor's own. It goes with the process, or with the next one that looks.
#[derive(Debug)]
pub struct Place {
    folder: PathBuf,
    /// Held for as long as this process lives: what nobody holds is left over.
    _lock: File,
}

impl Place {
    /// Makes one among those of other executors of this server, and removes what killed ones left.
    pub fn make(all: &Path, executor: &ExecutorId) -> io::Result<Self> {
        fs::create_dir_all(all)?;
        sweep(all)?;
        let folder = all.join(format!("{}-e{}", executor.job, executor.number));
        fs::create_dir_all(folder.join("work"))?;
        // It has its name only once it is held: another executor may be sweeping.
        let unnamed = folder.join("unnamed");
        let lock = File::create(&unnamed)?;
        lock.lock()?;
        fs::rename(unnamed, folder.join(LOCK))?;
        Ok(Self { folder, _lock: lock })
    }

    /// The program's own checkpoint folder.
    pub fn checkpoint(&self) -> PathBuf {
        self.folder.join("checkpoint")
    }

    /// Where a program without code runs.
    pub fn work(&self) -> PathBuf {
        self.folder.join("work")
    }

    /// Where code is unpacked.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            tracing::warn!(folder = %self.folder.display(), %error, "cannot remove the folder of a program; the next one on this server will");
        }
    }
}

fn sweep(all: &Path) -> io::Result<()> {
    for entry in fs::read_dir(all)? {
        let folder = entry?.path();
        // One without a lock is being made this moment, or being removed.
        let Ok(lock) = File::open(folder.join(LOCK)) else { continue };
        match lock.try_lock() {
            // It costs room only.
            Ok(()) => drop(fs::remove_dir_all(&folder)),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(())
}

/// A port that nobody else is given. Nothing listens on it, so that the program can: who binds it with `SO_REUSEADDR`, as PyTorch's store does, may.
#[derive(Debug)]
pub struct Port {
    address: SocketAddr,
    _held: Socket,
}

impl Port {
    /// A free one of this host.
    pub fn hold(host: &str) -> io::Result<Self> {
        let address = (host, 0).to_socket_addrs()?.next();
        let address =
            address.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the address names no host"))?;
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        let address = socket.local_addr()?.as_socket();
        let address = address.ok_or_else(|| io::Error::other("the socket has no address"))?;
        Ok(Self { address, _held: socket })
    }

    /// Where rank 0 is met if this is it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// What the program is told; none if this executor is not a member, or the leader's address is none.
pub fn variables(
    job: &JobId,
    me: u32,
    proposal: &Proposal,
    spec: &CommandSpec,
    python: &str,
    checkpoint: &Path,
) -> Option<BTreeMap<String, OsString>> {
    let host = |address: &str| address.rsplit_once(':').map(|(host, _)| host.trim_matches(['[', ']']).to_owned());
    // The leader is rank 0, because its program has the folder that is saved; the others follow by their numbers.
    let mut members: Vec<_> = proposal.members.iter().collect();
    members.sort_by_key(|member| (member.executor != proposal.leader, member.executor.number));
    let rank = members.iter().position(|member| member.executor.number == me)?;
    let here = host(&members[rank].address)?;
    let beside = |members: &[&events_schema::fact::Member]| {
        members.iter().filter(|member| host(&member.address).as_ref() == Some(&here)).count()
    };
    let (local_rank, local_size) = (beside(&members[..rank]), beside(&members));
    let (_, port) = members[0].address.rsplit_once(':')?;
    let mut variables: BTreeMap<String, OsString> =
        spec.environment.iter().map(|(name, value)| (name.clone(), value.into())).collect();
    let own = [
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", members.len().to_string()),
        ("LOCAL_RANK", local_rank.to_string()),
        ("LOCAL_WORLD_SIZE", local_size.to_string()),
        ("MASTER_ADDR", host(&members[0].address)?),
        ("MASTER_PORT", port.to_owned()),
        ("TORCHELASTIC_RUN_ID", job.to_string()),
    ];
    variables.extend(own.map(|(name, value)| (name.to_owned(), value.into())));
    variables.insert(CHECKPOINT_VARIABLE.to_owned(), checkpoint.into());
    // Lines are to be in the log when they are said, not when a buffer is full.
    variables.entry("PYTHONUNBUFFERED".to_owned()).or_insert_with(|| "1".into());
    if let Some(folder) = Path::new(spec.python.as_deref().unwrap_or(python)).parent().filter(|p| p.is_absolute()) {
        let path = variables.get("PATH").cloned().or_else(|| std::env::var_os("PATH")).unwrap_or_default();
        let folders = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&path));
        if let Ok(path) = std::env::join_paths(folders) {
            variables.insert("PATH".to_owned(), path);
        }
    }
    Some(variables)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::fact::{Entry, Member};
    use events_schema::job::JobSpec;
    use events_schema::{Generation, TimeMs};
    use std::net::TcpListener;

    #[test]
    fn members_are_told_who_is_who() {
        let job = JobId::parse("job-a").unwrap();
        let executor = |number| ExecutorId { job: job.clone(), number };
        let member = |number, address: &str| Member {
            executor: executor(number),
            address: address.to_owned(),
            ranks: Vec::new(),
        };
        let proposal = Proposal {
            generation: Generation(1),
            entry: Entry::Fresh,
            members: vec![member(3, "10.0.0.1:400"), member(4, "10.0.0.2:500"), member(5, "10.0.0.1:600")],
            leader: executor(4),
            deadline: TimeMs(0),
        };
        let document = serde_json::json!({"name": "n", "workers": {"max": 3},
            "model": {"kind": "command", "command": ["x"], "environment": {"A": "1", "PATH": "/bin"}}});
        let spec = JobSpec::parse(&document).unwrap();
        let told = |me| {
            let told =
                variables(&job, me, &proposal, spec.gang().unwrap(), "/opt/torch/bin/python", Path::new("/c")).unwrap();
            let names =
                ["RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PATH", "A"];
            names.map(|name| told[name].to_str().unwrap().to_owned()).join(" ")
        };
        assert_eq!(told(4), "0 0 1 3 10.0.0.2 500 /opt/torch/bin:/bin 1");
        assert_eq!(told(3), "1 0 2 3 10.0.0.2 500 /opt/torch/bin:/bin 1");
        assert_eq!(told(5), "2 1 2 3 10.0.0.2 500 /opt/torch/bin:/bin 1");
    }

    #[test]
    fn a_held_port_is_given_to_nobody_else_and_can_be_listened_on() {
        let port = Port::hold("127.0.0.1").unwrap();
        // The standard library sets SO_REUSEADDR, as PyTorch does.
        TcpListener::bind(port.address()).unwrap();
        let other = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        other.bind(&port.address().into()).unwrap_err();
    }

    #[test]
    fn what_a_killed_executor_left_is_removed_by_the_next_one() {
        let all = tempfile::tempdir().unwrap();
        let executor = |number| ExecutorId { job: JobId::parse("job-a").unwrap(), number };
        let lives = Place::make(all.path(), &executor(1)).unwrap();
        fs::create_dir(all.path().join("job-a-e0")).unwrap();
        File::create(all.path().join("job-a-e0").join(LOCK)).unwrap();
        let next = Place::make(all.path(), &executor(2)).unwrap();
        assert!(lives.work().is_dir() && next.work().is_dir() && !all.path().join("job-a-e0").exists());
        drop(lives);
        assert!(!all.path().join("job-a-e1").exists());
    }
}
