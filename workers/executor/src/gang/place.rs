//! Where a member's program runs and what it is told: a folder of its own, a port that is kept free for rank 0, and the variables that say who is who.

use events_schema::fact::{Proposal, host_of};
use events_schema::gang::CommandSpec;
use events_schema::{ExecutorId, JobId};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use workers_torch::{OwnFolder, VISIBLE_DEVICES_VARIABLE as VISIBLE_DEVICES};

/// Where a program keeps what it goes on from.
const CHECKPOINT_VARIABLE: &str = "EBB_CHECKPOINT_DIR";

/// Folders of this executor's own. They go with the process, or with the next one that looks.
#[derive(Debug)]
pub struct Place(OwnFolder);

impl Place {
    /// Makes one among those of other executors of this server, and removes what killed ones left.
    pub fn make(all: &Path, executor: &ExecutorId) -> io::Result<Self> {
        let all = std::path::absolute(all)?;
        let place = Self(OwnFolder::make(&all, &format!("{}-e{}", executor.job, executor.number))?);
        fs::create_dir(place.work())?;
        Ok(place)
    }

    /// The program's own checkpoint folder.
    pub fn checkpoint(&self) -> PathBuf {
        self.0.path().join("checkpoint")
    }

    /// Where a program without code runs.
    pub fn work(&self) -> PathBuf {
        self.0.path().join("work")
    }

    /// What it is told is its home, where files are kept from it.
    pub fn home(&self) -> PathBuf {
        self.0.home()
    }

    /// All of it, as its program is told of it.
    pub fn own(&self) -> &OwnFolder {
        &self.0
    }

    /// Where code is unpacked.
    pub fn folder(&self) -> &Path {
        self.0.path()
    }
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
    program_folders: &[PathBuf],
    checkpoint: &Path,
) -> Option<BTreeMap<String, OsString>> {
    let host = |address: &str| address.rsplit_once(':').map(|(host, _)| host.trim_matches(['[', ']']).to_owned());
    // The leader is rank 0, because its program has the folder that is saved; the others follow by their numbers.
    let mut members: Vec<_> = proposal.members.iter().collect();
    members.sort_by_key(|member| (member.executor != proposal.leader, member.executor.number));
    let rank = members.iter().position(|member| member.executor.number == me)?;
    let here = host_of(&members[rank].address);
    let beside = |members: &[&events_schema::fact::Member]| {
        members.iter().filter(|member| host_of(&member.address) == here).count()
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
    // Where the slot says which devices it sees, that stands in this process's own, and holds.
    if std::env::var_os(VISIBLE_DEVICES).is_some() {
        variables.remove(VISIBLE_DEVICES);
        if spec.device.is_none() {
            variables.insert(VISIBLE_DEVICES.to_owned(), OsString::new());
        }
    }
    variables.insert(CHECKPOINT_VARIABLE.to_owned(), checkpoint.into());
    // Lines are to be in the log when they are said, not when a buffer is full.
    variables.entry("PYTHONUNBUFFERED".to_owned()).or_insert_with(|| "1".into());
    if local_size > 1 {
        // As torchrun does: processes of one host that each take all of its processors wait for each other at every operation.
        variables.entry("OMP_NUM_THREADS".to_owned()).or_insert_with(|| "1".into());
    }
    if !program_folders.is_empty() {
        let path = variables.get("PATH").cloned().or_else(|| std::env::var_os("PATH")).unwrap_or_default();
        let folders = program_folders.iter().cloned().chain(std::env::split_paths(&path));
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
    use events_schema::stride::Stride;
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
            stride: Stride::ONE,
        };
        let document = serde_json::json!({"name": "n", "workers": {"max": 3},
            "model": {"kind": "command", "command": ["x"], "environment": {"A": "1", "PATH": "/bin"}}});
        let spec = JobSpec::parse(&document).unwrap();
        let told = |me| {
            let folders = ["/opt/torch/bin".into()];
            let told = variables(&job, me, &proposal, spec.gang().unwrap(), &folders, Path::new("/c")).unwrap();
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
}
