//! One executor process: started in its own group, fed frames on its standard input, read on its standard output, its standard
//! error kept in a bounded log, reaped. It decides nothing; every happening goes to `host.rs` as a [`HostEvent`]. Next file:
//! `group.rs`.

use crate::devices::Seat;
use crate::environment;
use crate::group::{Stat, clear_group, kill_group};
use crate::guest_memory;
use crate::host::HostEvent;
use crate::log_file::LogFile;
use crate::record::{self, ExecutorRecord};
use events_schema::ExecutorId;
use events_schema::TraceContext;
use events_schema::batch::from_bytes;
use events_schema::control::{CONTROL_FRAMES, ExecutorStart, FromExecutor, ToExecutor};
use rustix::process::{Pid, setpriority_pgrp};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::ffi::OsString;
use std::future::pending;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use workers_agent_core::{ExecutorWord, In, ProcessEnd};
use workers_torch::{NONCE_VARIABLE, VISIBLE_DEVICES_VARIABLE};

/// Frames waiting for an executor. Orders change a few times a minute; one that leaves this many unread is stuck.
const FRAMES_WAITING_MAX: usize = 64;

/// A reaped executor's pipes can be held open only by a process that left its group; it is not waited for longer than this.
pub(crate) const PIPES_TIMEOUT: Duration = Duration::from_secs(1);

/// The lowest ordinary priority. Where its host leaves no processor idle a guest has one part in seventy of its time, and the host loses about as much;
/// by `SCHED_IDLE` it would have one in three hundred, and stand still for seconds.
const PRIORITY_LEAST: i32 = 19;

/// What is needed to start an executor.
pub(crate) struct Launch<'a> {
    /// Program and arguments.
    pub command: &'a [OsString],
    /// What its start follows from.
    pub trace: Option<TraceContext>,
    /// Its first frame.
    pub start: ExecutorStart,
    /// Where its standard error goes.
    pub log: PathBuf,
    /// The way of the same into the store, if there is one.
    pub shipped: Option<mpsc::Sender<Vec<u8>>>,
    /// Where it is recorded while it runs.
    pub record: PathBuf,
    /// What marks processes that others of this agent's fork for it.
    pub forked_nonce: String,
    /// The device that its slot is.
    pub device: Option<Seat>,
    /// Which devices it may see; none, those that the agent sees.
    pub visible: Option<String>,
    /// Whether it leaves the processors, and memory, to whoever else wants them: it is on a guest slot.
    pub gives_way: bool,
}

/// A started executor as its owner holds it.
#[derive(Debug)]
pub(crate) struct Process {
    pub executor: ExecutorId,
    /// Its process, and the number of its group.
    pub pid: i32,
    frames: mpsc::Sender<ToExecutor>,
    /// Set at every frame it sends. Beside the events, so that hearing it needs no room and no turn in their queue.
    heard: Arc<AtomicBool>,
    /// Set when it is reaped and its group empty: its number may be another's from then on.
    gone: Arc<AtomicBool>,
}

impl Process {
    /// Queues a frame; false if the executor reads none.
    pub fn send(&self, frame: ToExecutor) -> bool {
        self.frames.try_send(frame).is_ok()
    }

    /// Whether it said anything since this was last asked.
    pub fn was_heard(&self) -> bool {
        self.heard.swap(false, Ordering::Relaxed)
    }

    /// Kills it with everything it started.
    pub fn kill(&self) {
        if !self.gone.load(Ordering::Acquire) {
            kill_group(self.pid);
        }
    }
}

/// Starts an executor. It ends with [`ExecutorWord::Ended`], sent when it is reaped and its group empty.
///
/// An error means that nothing runs: what had been started is killed, and reaped by the runtime.
pub(crate) fn launch(
    launch: Launch<'_>,
    events: mpsc::Sender<HostEvent>,
    supervisors: &mut JoinSet<()>,
) -> io::Result<Process> {
    let (program, arguments) =
        launch.command.split_first().ok_or_else(|| io::Error::other("the executor command is empty"))?;
    let log = LogFile::open(&launch.log)?;
    let nonce = format!("{:016x}", getrandom::u64().map_err(io::Error::other)?);
    let mut child = Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(environment::for_executors(std::env::vars_os()))
        .env(NONCE_VARIABLE, &nonce)
        .envs(launch.visible.iter().map(|devices| (VISIBLE_DEVICES_VARIABLE, devices)))
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", Path::new(program).display())))?;
    let pid = child
        .id()
        .and_then(|pid| i32::try_from(pid).ok())
        .ok_or_else(|| io::Error::other("it has no process number"))?;
    if launch.gives_way {
        // Before it is told what to do, so before it has a thread or a process that would not have this from it.
        let lowered = Pid::from_raw(pid).map_or(Ok(()), |group| setpriority_pgrp(Some(group), PRIORITY_LEAST));
        lowered.inspect_err(|_| kill_group(pid))?;
        guest_memory::goes_first(pid).inspect_err(|_| kill_group(pid))?;
    }
    write_record(&launch, pid, nonce).inspect_err(|_| kill_group(pid))?;
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
        kill_group(pid);
        return Err(io::Error::other("it has no pipes"));
    };

    let (frames, frames_waiting) = mpsc::channel(FRAMES_WAITING_MAX);
    let heard = Arc::new(AtomicBool::new(false));
    let hears = Arc::clone(&heard);
    let gone = Arc::new(AtomicBool::new(false));
    let (went, device) = (Arc::clone(&gone), launch.device);
    let executor = launch.start.executor.clone();
    let who = Who { slot: launch.start.slot.index, executor: executor.clone(), events: events.clone() };
    let trace = launch.trace.map(ToExecutor::Trace);
    let first = trace.into_iter().chain([ToExecutor::Start(Box::new(launch.start))]).collect();
    let shipped = launch.shipped;
    supervisors.spawn(async move {
        // The device is looked at before the executor is told what to do, so before it can take any of it.
        let mut stay = match device {
            Some(seat) => Some(seat.begin().await),
            None => None,
        };
        let listen = listen(stdout, who.clone(), events, &hears);
        let lost = stay.as_ref().is_some_and(|stay| stay.lost.is_some());
        let feed = feed(stdin, if lost { VecDeque::new() } else { first }, frames_waiting);
        let supervised = supervise(child, pid, feed, listen, keep_log(stderr, log, shipped));
        let status = match &mut stay {
            Some(stay) => tokio::select! {
                status = supervised => status,
                never = stay.watch(pid, &who) => match never {},
            },
            None => supervised.await,
        };
        went.store(true, Ordering::Release);
        if let Err(error) = std::fs::remove_file(&launch.record) {
            tracing::error!(path = %launch.record.display(), %error, "cannot remove an executor record");
        }
        match stay {
            Some(stay) => stay.end(process_end(status), &who).await,
            None => who.say(ExecutorWord::Ended(process_end(status))).await,
        }
    });
    Ok(Process { executor, pid, frames, heard, gone })
}

fn write_record(launch: &Launch<'_>, pid: i32, nonce: String) -> io::Result<()> {
    let stat = Stat::of(pid)?.ok_or_else(|| io::Error::other("it is gone at once"))?;
    let executor = launch.start.executor.clone();
    let (started_ticks, boot, forked_nonce) = (stat.started_ticks, record::boot()?, Some(launch.forked_nonce.clone()));
    ExecutorRecord { executor, pid, started_ticks, boot, nonce, forked_nonce }.write(&launch.record)
}

/// Which executor an event is about, and who is told.
#[derive(Clone)]
pub(crate) struct Who {
    slot: u16,
    executor: ExecutorId,
    events: mpsc::Sender<HostEvent>,
}

impl Who {
    /// Tells it. Nobody to tell means that the agent is ending and has given this executor up.
    pub async fn say(&self, word: ExecutorWord) {
        let _ = self.events.send(self.says(word)).await;
    }

    fn says(&self, word: ExecutorWord) -> HostEvent {
        HostEvent::Happened(In::Executor { slot: self.slot, executor: self.executor.clone(), word })
    }
}

fn process_end(status: io::Result<ExitStatus>) -> ProcessEnd {
    match status.map(|status| (status.code(), status.signal())) {
        Ok((Some(code), _)) => ProcessEnd::Exited(code),
        Ok((None, Some(signal))) => ProcessEnd::Signalled(signal),
        Ok((None, None)) => ProcessEnd::Unknown,
        Err(error) => {
            tracing::error!(%error, "cannot learn how an executor ended");
            ProcessEnd::Unknown
        }
    }
}

/// Drives an executor's pipes until it is reaped and its group empty.
async fn supervise(
    mut child: Child,
    pid: i32,
    feed: impl Future<Output = Infallible>,
    listen: impl Future<Output = ()>,
    log: impl Future<Output = ()>,
) -> io::Result<ExitStatus> {
    let mut ended = pin!(async {
        let status = child.wait().await;
        clear_group(pid).await;
        status
    });
    let mut pipes = pin!(async {
        tokio::join!(listen, log);
    });
    let mut feed = pin!(feed);
    let mut piping = true;
    let status = loop {
        tokio::select! {
            status = &mut ended => break status,
            () = &mut pipes, if piping => piping = false,
            never = &mut feed => match never {},
        }
    };
    if piping && tokio::time::timeout(PIPES_TIMEOUT, pipes).await.is_err() {
        tracing::warn!(pid, "a process that left the executor's group holds its pipes open");
    }
    status
}

/// Writes frames until nobody sends any more or the executor takes none; then closes its standard input and rests.
async fn feed(
    mut stdin: ChildStdin,
    mut first: VecDeque<ToExecutor>,
    mut frames: mpsc::Receiver<ToExecutor>,
) -> Infallible {
    let mut next = first.pop_front();
    while let Some(frame) = next {
        if let Err(error) = write_frame(&mut stdin, &frame).await {
            tracing::debug!(%error, "an executor takes no frames any more");
            break;
        }
        next = match first.pop_front() {
            Some(frame) => Some(frame),
            None => frames.recv().await,
        };
    }
    drop(stdin);
    pending().await
}

/// Passes on what the executor says until it closes its standard output or says what is no frame.
async fn listen(mut stdout: impl AsyncRead + Unpin, who: Who, events: mpsc::Sender<HostEvent>, heard: &AtomicBool) {
    loop {
        let frame = read_frame(&mut stdout).await;
        heard.store(true, Ordering::Relaxed);
        let word = match frame {
            Ok(Some(FromExecutor::Alive)) => continue,
            Ok(Some(frame)) => ExecutorWord::Said(frame),
            Ok(None) => return,
            Err(error) => ExecutorWord::Garbage(error.to_string()),
        };
        let ends = matches!(word, ExecutorWord::Garbage(_));
        if events.send(who.says(word)).await.is_err() || ends {
            return;
        }
    }
}

/// Keeps what a process says on its standard error until it says no more.
pub(crate) async fn keep_log(mut stderr: ChildStderr, mut log: LogFile, shipped: Option<mpsc::Sender<Vec<u8>>>) {
    let mut buffer = vec![0; 8 << 10];
    loop {
        match stderr.read(&mut buffer).await {
            Ok(0) => return,
            // A log that cannot be written must not stop training; the pipe is drained all the same.
            Ok(count) => {
                log.append(&buffer[..count]).await;
                if let Some(shipped) = &shipped {
                    // It never waits for the store; one that is gone takes nothing, and the file has it.
                    let _ = shipped.send(buffer[..count].to_vec()).await;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read an executor's standard error");
                return;
            }
        }
    }
}

/// Writes one frame.
pub(crate) async fn write_frame(to: &mut (impl AsyncWrite + Unpin), frame: &ToExecutor) -> io::Result<()> {
    to.write_all(&CONTROL_FRAMES.cut(frame).map_err(io::Error::other)?).await?;
    to.flush().await
}

/// Reads one frame; `None` at a clean end.
pub(crate) async fn read_frame(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<FromExecutor>> {
    let mut length = [0; 4];
    if from.read(&mut length[..1]).await? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut length[1..]).await?;
    let mut record = vec![0; CONTROL_FRAMES.length(length).map_err(io::Error::other)?];
    from.read_exact(&mut record).await?;
    from_bytes(&record).map(Some).map_err(io::Error::other)
}
