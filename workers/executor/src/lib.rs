//! One process on one slot: trains the logical workers it hosts, together with the other executors of its job.
//!
//! [`run`] is the whole process: it speaks with its agent on standard input and output, with its peers over TCP, reads data from
//! and writes checkpoints to the object store. It decides nothing: `workers-member` does, this crate performs.
//!
//! Reading order: `trainer.rs` (the loop), `perform.rs` (what the machine's outputs do), `inbox.rs` (what happens), `meanwhile.rs` (who listens while that lasts), `rest.rs` (how a guest keeps to its share of the time), [`sums`], [`buffers`] `replica.rs`, `mean.rs` and `room.rs` (the buffers that it
//! names), [`stretch`], `network.rs` with `outbox.rs`, `handshake.rs`, `keys.rs`, `lending.rs` and [`wire`], `checkpoint.rs`, `tokens.rs`, `restore.rs`, `life.rs` (the word of life), `following.rs` (traces), [`program`] (what a job
//! computes), `ahead.rs` (batches that are made before they are asked for), [`side_by_side`] (several ranks at once), `workload.rs` (who computes it) and [`plain`] (the same job without any of this). A job that is a whole program has none of these: `gang/`.
//!
//! Next on a job's path: `workers/executor/src/trainer.rs`.

pub mod buffers;
pub mod collective;
pub mod control;
mod gang;
pub mod plain;
pub mod program;
pub mod side_by_side;
pub mod store_wait;
pub mod stretch;
pub mod sums;
pub mod wire;

mod accumulate;
mod ahead;
mod checkpoint;
mod following;
mod handshake;
mod inbox;
mod keys;
mod lending;
mod life;
mod mean;
mod meanwhile;
mod network;
mod outbox;
mod perform;
mod replica;
mod rest;
mod restore;
mod room;
mod shard;
mod tokens;
mod trainer;
mod workload;

pub use plain::{PlainRun, train_plain, train_plain_steps};
pub use program::{Program, ProgramError};
pub use trainer::TrainError;

use checkpoint::CheckpointWriter;
use control::{Agent, ControlError, Heard, listen, read_frame};
use events_schema::control::{
    CODE_ENDED_STATUS, ExecutorHop, ExecutorStart, FromExecutor, STOPPED_STATUS, STORE_STATUS, ToExecutor,
};
use events_schema::report::Report;
use events_schema::{Digest, Generation};
use following::Following;
pub use following::TellLines;
use gang::GangError;
use handshake::Identity;
use inbox::Event;
use keys::LinkKeys;
use life::Life;
use network::{Memory, Network};
use shell::Chain;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use storage::checkpoint::CheckpointWriteError;
use store_wait::StorePatience;
use tokens::WriterTokens;
use trainer::Trainer;
use workers_session::Peer;

/// Status of a process that ended because a thread of it panicked, as the standard library has it.
const PANIC_STATUS: i32 = 101;

/// Why an executor process ended otherwise than asked. The agent sees the status, people see the text on standard error.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// The first frame did not come or was another.
    #[error("the agent did not say what to train")]
    NotStarted,
    /// The pipe to the agent failed.
    #[error("the agent cannot be understood")]
    Control(#[from] ControlError),
    /// This host computes other bits than its server said; nothing was trained.
    #[error(
        "numeric class of this executor is {found}, its server joined with {expected}; restart the agent on this host with this build"
    )]
    Class {
        /// Of the server.
        expected: Digest,
        /// Of the known-answer test now.
        found: Digest,
    },
    /// No port, no thread.
    #[error("the operating system refuses")]
    System(#[from] io::Error),
    /// The job cannot be computed here.
    #[error("the job cannot be prepared")]
    Prepare(#[from] ProgramError),
    /// Training ended by itself.
    #[error("the training of this executor stopped")]
    Train(#[source] Box<TrainError>),
    /// A gang's program ended by itself.
    #[error("the program of this executor stopped")]
    Gang(#[from] GangError),
}

impl From<TrainError> for ExecutorError {
    fn from(error: TrainError) -> Self {
        Self::Train(Box::new(error))
    }
}

impl ExecutorError {
    fn of_training(&self) -> Option<&TrainError> {
        match self {
            Self::Train(error) => Some(error),
            _ => None,
        }
    }

    /// The job that cannot be computed here, if that is why.
    fn of_program(&self) -> Option<&ProgramError> {
        match (self, self.of_training()) {
            (Self::Prepare(error) | Self::Gang(GangError::Prepare(error)), _)
            | (_, Some(TrainError::Program(error))) => Some(error),
            _ => None,
        }
    }

    /// Whether the store is why: it was away, or refused, for longer than anybody waits for it, or this process may not use it any more.
    #[must_use]
    pub fn is_of_store(&self) -> bool {
        match self.of_training() {
            Some(TrainError::Restore(problem)) => !problem.is_broken() && problem.store_fault().is_some(),
            Some(TrainError::Save(problem)) => problem.as_ref().is_some_and(is_not_of_the_job),
            _ => self.of_program().is_some_and(|error| !error.is_broken() && error.store_fault().is_some()),
        }
    }

    /// Whether the job's own code ended, where it might have raised.
    fn is_end_of_code(&self) -> bool {
        matches!(self.of_program(), Some(ProgramError::Torch(error)) if error.is_end_of_code())
    }

    /// For people: what happened, and what led to it.
    #[must_use]
    pub fn reason(&self) -> String {
        // What led to it says all of these itself.
        self.of_program().map_or_else(|| Chain(self).to_string(), ProgramError::reason)
    }
}

/// Whether whoever comes next may save what could not be saved; else it would fail again and again, and counts.
fn is_not_of_the_job(problem: &CheckpointWriteError) -> bool {
    use CheckpointWriteError::{Mixed, NotWhole, Outside, Parts, Store, Taken, Unnamed, Unread};
    match problem {
        Store(_) | Unnamed { .. } | Mixed { .. } | Unread(_) => true,
        Taken { .. } | NotWhole(_) | Outside { .. } | Parts => false,
    }
}

/// The whole executor process, between standard input and output. Returns when it may exit with status 0.
///
/// `tell_lines` is told which trace its log lines belong to, whenever that changes; `memory` says how it speaks with executors of its host, `threads` of how many
/// ranks it computes gradients at once.
///
/// Ends the process by itself when the agent says so or is gone, or when it leaves early, since it may be deep in a gradient then.
pub fn run(tell_lines: TellLines, memory: Memory, threads: usize) -> Result<(), ExecutorError> {
    let life = Arc::new(Life::default());
    let ended = run_until_end(&life, tell_lines, memory, threads);
    if let Err(error) = &ended {
        if matches!(error.of_training(), Some(TrainError::LeftEarly)) {
            std::process::exit(STOPPED_STATUS);
        }
        let code_ended = error.is_end_of_code().then(|| life.code_ended_at());
        // An agent that cannot be told is gone.
        let _ = Agent::new(io::stdout()).say(&FromExecutor::LastWords { said: error.reason(), code_ended });
        if code_ended.is_some() {
            tracing::error!(error = %Chain(error), "the job's code is why this executor ends");
            std::process::exit(CODE_ENDED_STATUS);
        }
        if error.is_of_store() {
            tracing::error!(error = %Chain(error), "the store is why this executor ends");
            std::process::exit(STORE_STATUS);
        }
    }
    ended
}

fn run_until_end(life: &Arc<Life>, tell_lines: TellLines, memory: Memory, threads: usize) -> Result<(), ExecutorError> {
    end_with_any_thread();
    let mut following = Following::new(tell_lines);
    let mut input = io::stdin().lock();
    let start = loop {
        match read_frame(&mut input)? {
            Some(ToExecutor::Trace(trace)) => following.begin(trace),
            Some(ToExecutor::Start(start)) => break start,
            _ => return Err(ExecutorError::NotStarted),
        }
    };
    drop(input);
    let mut agent = Agent::new(io::stdout());
    let saying = Arc::clone(life);
    std::thread::Builder::new().name("ebb-alive".to_owned()).spawn(move || saying.say(Agent::new(io::stdout())))?;
    let found = workers_engine::known_answer();
    if found != start.class {
        return Err(ExecutorError::Class { expected: start.class, found });
    }
    if start.order.spec.gang().is_some() {
        return run_gang(*start, agent, Arc::clone(life), tell_lines);
    }
    let (inbox, events) = inbox::inbox();
    let keys = Arc::new(LinkKeys::of(&start.order.link_keys));
    let tokens = Arc::new(WriterTokens::of(&start.order));
    let (listener, built) = (inbox.clone(), Arc::new(AtomicBool::new(false)));
    let is_built = Arc::clone(&built);
    let pass_on = move |heard| {
        let event = Event::of(heard);
        if matches!(event, Event::Leave { .. }) && !is_built.load(Ordering::Acquire) {
            tracing::info!("leaving before there is anything to leave");
            std::process::exit(STOPPED_STATUS);
        }
        listener.send(event).is_ok()
    };
    start_listening(&keys, &tokens, pass_on)?;
    let ExecutorStart { executor, store_url, listen_host, order, torch, .. } = *start;
    let patience = StorePatience::of(&order, life);
    let opened = Program::open(executor.job.clone(), &order, &store_url, torch.as_ref(), patience, life.computing());
    let program = match opened.and_then(|program| program.with_threads(threads, &order)) {
        Ok(program) => program,
        Err(error) if error.is_broken() => {
            let generation = order.proposal.as_ref().map_or(Generation(0), |p| p.generation);
            agent.say(&FromExecutor::Report(Report::JobBroken {
                job: executor.job.clone(),
                generation,
                reason: error.reason(),
            }))?;
            return Err(error.into());
        }
        Err(error) => return Err(error.into()),
    };
    // Of a model that is the user's own the host's class says too little.
    let found = program.workload.class(found);
    let identity = Identity { job: executor.job.clone(), me: Peer(executor.number), class: found, keys };
    let network = Network::listen(&listen_host, identity, inbox.clone(), memory)?;
    life.count_sent(network.bulk_counter());
    let address = network.address().to_string();
    let own_store = storage::open_store(&store_url).map_err(ProgramError::from)?;
    let checkpoints = CheckpointWriter::start(&program, own_store, found, &tokens, &inbox)?;
    let class = program.workload.class_of_code();
    // From here on it is the trainer that hears what there is to do.
    built.store(true, Ordering::Release);
    let (lengths, element_bytes) = (program.workload.lengths(), wire::ELEMENT_LEN as u64);
    let replica_bytes = Some(lengths.replica as u64 * element_bytes);
    let gradient_bytes = Some(lengths.gradient as u64 * element_bytes);
    agent.say(&FromExecutor::Report(Report::ExecutorReady {
        executor: executor.clone(),
        address,
        class,
        replica_bytes,
        gradient_bytes,
    }))?;
    if let Some(span) = following.done(ExecutorHop::Prepare) {
        agent.say(&FromExecutor::Span(span))?;
        following.begin(span.parent);
    }
    let (inbox, life) = ((inbox, events), Arc::clone(life));
    let trainer = Trainer::new(&executor, found, program, network, agent, checkpoints, inbox, life, following);
    Ok(trainer.run(&order)?)
}

/// The rest of a process whose job is a program of its user's.
fn run_gang(
    start: ExecutorStart,
    agent: Agent<io::Stdout>,
    life: Arc<Life>,
    tell_lines: TellLines,
) -> Result<(), ExecutorError> {
    let (inbox, happenings) = sync_channel(gang::HAPPENINGS_MAX);
    let tokens = Arc::new(WriterTokens::of(&start.order));
    let listener = inbox.clone();
    let keys = Arc::new(LinkKeys::of(&[]));
    let pass_on = move |heard| {
        // It says of nothing how long it took; its lines belong to the last order.
        if let Heard::Trace(trace) = &heard {
            tell_lines(Some(*trace));
        }
        listener.send(gang::Happening::Heard(heard)).is_ok()
    };
    start_listening(&keys, &tokens, pass_on)?;
    let ExecutorStart { executor, class, store_url, listen_host, order, torch, .. } = start;
    let setup = gang::Setup { executor, class, store_url, listen_host, order, torch, life, tokens, inbox };
    match gang::run(setup, agent, &happenings)? {
        0 => Ok(()),
        status => std::process::exit(status),
    }
}

fn start_listening(
    keys: &Arc<LinkKeys>,
    tokens: &Arc<WriterTokens>,
    pass_on: impl Fn(Heard) -> bool + Send + 'static,
) -> io::Result<()> {
    let (keys, tokens) = (Arc::clone(keys), Arc::clone(tokens));
    let listening = move || listen(io::stdin().lock(), &keys, &tokens, pass_on);
    std::thread::Builder::new().name("ebb-agent".to_owned()).spawn(listening).map(drop)
}

/// A thread that panics would leave the others waiting for it, on a slot that its fleet may want back: the process ends
/// instead, and the job goes on without it.
fn end_with_any_thread() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::exit(PANIC_STATUS);
    }));
}
