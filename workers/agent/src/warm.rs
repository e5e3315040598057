//! Processes that have PyTorch imported, from which the Python of executors is forked. Which there are is decided in
//! `workers/agent-core/src/warm.rs`; here are the socket at which executors ask, and the processes. A user's code never runs in them.
//!
//! Whatever goes wrong here costs an executor the time of an import, and nothing else: no error leaves this file. Only executors that this
//! agent runs now are answered: the kernel says who asks. The processes end with the agent, however it ends. Next file: `direct.rs`.

use crate::group::{clear_group, kill_group};
use crate::host::HostEvent;
use crate::log_file::LogFile;
use crate::process::{PIPES_TIMEOUT, keep_log};
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::future::pending;
use std::io::{self, PipeWriter};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream as AsyncStream};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use workers_agent_core::{
    WARM_FORK_TIMEOUT_MS, WARM_IMPORT_TIMEOUT_MS, WARM_MAX, WARM_WAITING_MAX, WarmIn, WarmOut, WarmPool,
};
use workers_torch::warm::{
    ANSWER_TIMEOUT, Ask, DESCRIPTORS, ENDED, FORK, FORKED, LIFE, REFUSED, ServerKey, WARM, WORD_TIMEOUT,
};
use workers_torch::{NONCE_VARIABLE, frame};

/// An executor waits for its child longer than a process takes that has to import PyTorch first, so it hears why there is none.
const _: () = assert!(ANSWER_TIMEOUT.as_millis() > (WARM_IMPORT_TIMEOUT_MS + WARM_FORK_TIMEOUT_MS) as u128);
/// Connections whose request is being read; each has a thread for at most [`WORD_TIMEOUT`].
const KNOCKING_MAX: usize = 32;
/// Happenings that wait to be looked at.
const HAPPENINGS_MAX: usize = 256;
/// Pause after a connection could not be taken: there are too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// What executors have to know of these processes.
#[derive(Debug, Clone)]
pub(crate) struct WarmName {
    /// Where they ask; none if that could not be opened.
    pub address: Option<String>,
    /// What marks the processes, and all that is forked from them.
    pub nonce: String,
}

/// The processes of one agent.
pub(crate) struct WarmServers {
    name: WarmName,
    listener: Option<UnixListener>,
    host: mpsc::Sender<HostEvent>,
    /// Where what they say on their standard error is kept.
    logs: PathBuf,
    pool: WarmPool,
    begun: Instant,
    requests: BTreeMap<u64, Request>,
    named: u64,
    processes: BTreeMap<u64, Process>,
    sender: mpsc::Sender<Happening>,
    happenings: mpsc::Receiver<Happening>,
    knocking: JoinSet<()>,
    supervisors: JoinSet<()>,
}

enum Happening {
    Asked(Box<Request>),
    Told(WarmIn),
}

/// An executor that wants a child.
struct Request {
    ask: Ask,
    group: i32,
    connection: UnixStream,
    descriptors: Vec<OwnedFd>,
}

/// A process as this task holds it.
struct Process {
    requests: mpsc::Sender<Request>,
    end: CancellationToken,
    /// Closed with this task, and with the agent.
    _life: PipeWriter,
}

impl WarmServers {
    /// Opens the socket. Where it cannot be opened there are no such processes.
    pub fn listen(nonce: String, logs: PathBuf, host: mpsc::Sender<HostEvent>) -> Self {
        let address = format!("ebb-warm-{nonce}");
        let listener = bind(&address)
            .inspect_err(|error| tracing::warn!(%error, "every executor of a PyTorch model will import it anew: no socket can be opened"))
            .ok();
        let (sender, happenings) = mpsc::channel(HAPPENINGS_MAX);
        Self {
            name: WarmName { address: listener.is_some().then_some(address), nonce },
            listener,
            host,
            logs,
            pool: WarmPool::default(),
            begun: Instant::now(),
            requests: BTreeMap::new(),
            named: 0,
            processes: BTreeMap::new(),
            sender,
            happenings,
            knocking: JoinSet::new(),
            supervisors: JoinSet::new(),
        }
    }

    /// Where executors ask.
    pub fn name(&self) -> WarmName {
        self.name.clone()
    }

    /// Answers executors until it is asked to end; then all processes are ended and reaped.
    pub async fn run(mut self, asked: CancellationToken) -> Result<(), Infallible> {
        while !asked.is_cancelled() {
            let alarm = self.pool.alarm().map(|ms| self.begun + Duration::from_millis(ms));
            tokio::select! {
                biased;
                () = asked.cancelled() => {}
                Some(happening) = self.happenings.recv() => self.take(happening),
                Some(ended) = self.supervisors.join_next() => complain(ended),
                Some(ended) = self.knocking.join_next() => complain(ended),
                () = sleep_until(alarm.unwrap_or(self.begun)), if alarm.is_some() => self.tell(WarmIn::Wake),
                connection = accept(self.listener.as_ref()), if self.knocking.len() < KNOCKING_MAX => self.knock(connection),
            }
        }
        self.processes.values().for_each(|process| process.end.cancel());
        // What they still have to say is of no use, and must not hold them up.
        self.happenings.close();
        self.processes.clear();
        while let Some(ended) = self.supervisors.join_next().await {
            complain(ended);
        }
        Ok(())
    }

    fn knock(&mut self, connection: AsyncStream) {
        let (host, sender) = (self.host.clone(), self.sender.clone());
        self.knocking.spawn(async move {
            match hear(connection, &host).await {
                // Nobody to tell means that this agent is ending.
                Ok(request) => drop(sender.send(Happening::Asked(Box::new(request))).await),
                Err(error) => tracing::warn!(%error, "a request for a Python process cannot be taken"),
            }
        });
    }

    fn take(&mut self, happening: Happening) {
        match happening {
            Happening::Asked(request) => {
                self.named += 1;
                let key = request.ask.server.digest();
                self.requests.insert(self.named, *request);
                self.tell(WarmIn::Asked { request: self.named, key });
            }
            Happening::Told(told) => {
                if let WarmIn::Ended { process } = &told {
                    self.processes.remove(process);
                }
                self.tell(told);
            }
        }
    }

    fn tell(&mut self, told: WarmIn) {
        let mut told = VecDeque::from([told]);
        while let Some(next) = told.pop_front() {
            let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            for out in self.pool.handle(now, next) {
                told.extend(self.does(out));
            }
        }
    }

    /// Does it; what has happened by that.
    fn does(&mut self, out: WarmOut) -> Option<WarmIn> {
        match out {
            WarmOut::Start { process, request } => {
                let key = self.requests.get(&request)?.ask.server.clone();
                let started = self.start(process, &key);
                let python = key.python();
                if let Err(error) = &started {
                    tracing::warn!(%error, python, "no process can be started that imports PyTorch for others");
                }
                started.is_err().then_some(WarmIn::Ended { process })
            }
            WarmOut::Fork { process, request } => {
                let request = self.requests.remove(&request)?;
                // Dropped where it cannot be passed on, which closes its connection.
                let _ = self.processes.get(&process)?.requests.try_send(request);
                None
            }
            WarmOut::Refuse { request, why } => {
                let mut connection = self.requests.remove(&request)?.connection;
                // An executor that is gone needs no answer; for any other there is room in an empty socket.
                let _ = frame::write(&mut connection, REFUSED, why.to_string().as_bytes());
                None
            }
            WarmOut::End { process, why } => {
                tracing::info!(process, "ending a process that has PyTorch imported: {why}");
                self.processes.get(&process)?.end.cancel();
                None
            }
        }
    }

    fn start(&mut self, process: u64, key: &ServerKey) -> io::Result<()> {
        let log = LogFile::open(&self.logs.join(format!("{}.log", process % WARM_MAX as u64)))?;
        let (mut socket, theirs) = UnixStream::pair()?;
        socket.set_write_timeout(Some(WORD_TIMEOUT))?;
        let (ends_with_us, life) = io::pipe()?;
        frame::write_with(&mut socket, LIFE, &[], &[ends_with_us.as_fd()])?;
        let mut child = Command::from(key.command())
            .env(NONCE_VARIABLE, &self.name.nonce)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let said = child.stderr.take().ok_or_else(|| io::Error::other("it has no standard error"))?;
        tracing::info!(process, pid = child.id(), python = key.python(), "importing PyTorch once for many executors");
        let (requests, waiting) = mpsc::channel(WARM_WAITING_MAX);
        let end = CancellationToken::new();
        let hears = socket.try_clone()?;
        let (ended, sender) = (end.clone(), self.sender.clone());
        let words = sender.clone();
        self.supervisors.spawn_blocking(move || listen(process, hears, &words));
        self.supervisors.spawn(async move {
            supervise(child, &socket, waiting, keep_log(said, log, None), ended).await;
            // Whoever listens to it hears its end.
            let _ = socket.shutdown(Shutdown::Both);
            let _ = sender.send(Happening::Told(WarmIn::Ended { process })).await;
        });
        self.processes.insert(process, Process { requests, end, _life: life });
        Ok(())
    }
}

fn bind(address: &str) -> io::Result<UnixListener> {
    let listener = StdListener::bind_addr(&SocketAddr::from_abstract_name(address)?)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

async fn accept(listener: Option<&UnixListener>) -> AsyncStream {
    let Some(listener) = listener else { return pending().await };
    loop {
        match listener.accept().await {
            Ok((connection, _)) => return connection,
            Err(error) => {
                tracing::warn!(%error, "an executor that wants a Python process cannot be heard");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Reads the request of an executor of this agent, and of nobody else.
async fn hear(connection: AsyncStream, host: &mpsc::Sender<HostEvent>) -> io::Result<Request> {
    let pid = connection.peer_cred()?.pid().ok_or_else(|| io::Error::other("the kernel does not say who asks"))?;
    let (reply, slots) = oneshot::channel();
    let gone = || io::Error::other("the agent is ending");
    host.send(HostEvent::Look(reply)).await.map_err(|_| gone())?;
    if !slots.await.map_err(|_| gone())?.iter().any(|slot| slot.is_process(pid)) {
        return Err(io::Error::other(format!("the process {pid} that asks is no executor of this agent")));
    }
    let connection = connection.into_std()?;
    spawn_blocking(move || read(connection, pid)).await.map_err(io::Error::other)?
}

fn read(mut connection: UnixStream, group: i32) -> io::Result<Request> {
    connection.set_nonblocking(false)?;
    connection.set_read_timeout(Some(WORD_TIMEOUT))?;
    connection.set_write_timeout(Some(WORD_TIMEOUT))?;
    let (kind, payload, descriptors) = frame::read(&mut connection)?;
    if kind != FORK || !DESCRIPTORS.contains(&descriptors.len()) {
        return Err(io::Error::other("it is no request of this build"));
    }
    Ok(Request { ask: Ask::parse(&payload)?, group, connection, descriptors })
}

/// Passes on what a process says until it says no more.
fn listen(process: u64, mut socket: UnixStream, sender: &mpsc::Sender<Happening>) {
    let begun = Instant::now();
    while let Ok((kind, payload, _)) = frame::read(&mut socket) {
        let text = String::from_utf8_lossy(&payload);
        let told = match kind {
            WARM => {
                let bytes = text.parse().unwrap_or(u64::MAX);
                let ms = begun.elapsed().as_millis();
                tracing::info!(process, ms, bytes, "PyTorch is imported");
                WarmIn::Ready { process, bytes }
            }
            FORKED => WarmIn::Forked { process },
            ENDED => WarmIn::ChildEnded { process },
            _ => {
                tracing::warn!(process, why = %text, "Python cannot be forked from a process that has PyTorch imported");
                return;
            }
        };
        if sender.blocking_send(Happening::Told(told)).is_err() {
            return;
        }
    }
}

/// Drives a process until it is reaped, by itself or because it is to end.
async fn supervise(
    mut child: Child,
    socket: &UnixStream,
    requests: mpsc::Receiver<Request>,
    log: impl Future<Output = ()>,
    end: CancellationToken,
) {
    let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) else { return };
    let mut log = std::pin::pin!(log);
    let mut said_all = false;
    let mut forks = std::pin::pin!(fork_all(socket, requests));
    let status = loop {
        tokio::select! {
            status = child.wait() => break status,
            () = end.cancelled() => {
                kill_group(pid);
                break child.wait().await;
            }
            () = &mut forks => {}
            () = &mut log, if !said_all => said_all = true,
        }
    };
    // What it started and did not give away; an executor's Python is in that one's group.
    clear_group(pid).await;
    match status {
        Ok(status) if !end.is_cancelled() => tracing::warn!(%status, "a process that has PyTorch imported ended"),
        Ok(_) => {}
        Err(error) => tracing::error!(%error, "cannot learn how a process that has PyTorch imported ended"),
    }
    if !said_all && timeout(PIPES_TIMEOUT, log).await.is_err() {
        tracing::debug!(pid, "a process that left the group of the one that started it holds its standard error open");
    }
}

/// Passes requests on, one after the other. One that cannot be passed on closes its connection, which tells its executor.
async fn fork_all(socket: &UnixStream, mut requests: mpsc::Receiver<Request>) {
    while let Some(request) = requests.recv().await {
        let Ok(mut socket) = socket.try_clone() else { continue };
        let written = spawn_blocking(move || {
            let all = request.descriptors.iter().map(AsFd::as_fd).chain([request.connection.as_fd()]);
            let descriptors: Vec<_> = all.collect();
            frame::write_with(&mut socket, FORK, &request.ask.for_server(request.group), &descriptors)
        });
        match written.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "a process that has PyTorch imported takes no request"),
            Err(error) => tracing::error!(%error, "a task of the agent panicked"),
        }
    }
    pending().await
}

fn complain(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a task of the agent panicked");
    }
}
