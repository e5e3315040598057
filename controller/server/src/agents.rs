//! The streams to the agents: what comes up becomes inputs of the machine, what it says goes down. Nothing here decides, nor waits
//! for the log, so that an agent is heard whatever the log does.
//!
//! Next on a job's path: `workers/agent/src/lib.rs`.

use crate::inputs::Inputs;
use crate::traces::Traces;
use controller_cell::{In, LinkEnd, LinkId};
use controller_link::{AgentConnection, AgentReceiver, AgentSender, EndCause, Secret, SecretError, SendError};
use events_schema::fact::Proposal;
use events_schema::orders::{AgentMessage, ControllerMessage, ExecutorOrder, LinkKey, Orders};
use events_schema::report::Report;
use events_schema::{ExecutorId, Generation, JobId, WriterToken};
use shell::Chain;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use storage::keys::CheckpointName;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// Accepted streams that wait for the loop.
pub(crate) const ACCEPTED_QUEUE_LEN: usize = 64;

/// Root of the keys of links between executors, and of the tokens of generations. It never enters the log.
#[derive(Debug, Clone)]
pub struct CellSecret(Secret);

impl CellSecret {
    /// A new one.
    pub fn generate() -> Result<Self, SecretError> {
        Secret::generate().map(Self)
    }

    /// Reads it from a file that nobody else may read, or writes a new one there first.
    pub fn read_or_create(path: &Path) -> Result<Self, SecretError> {
        Secret::read_or_create(path).map(Self)
    }

    /// The key of the link between two executors of a job, whichever of them asks: the same on every controller of the cell. No other
    /// executor can derive it.
    #[must_use]
    pub fn link_key(&self, job: &JobId, one: u32, other: u32) -> [u8; 32] {
        let (low, high) = (one.min(other), one.max(other));
        *blake3::keyed_hash(self.0.bytes(), format!("{job}/link/{low}/{high}").as_bytes()).as_bytes()
    }

    /// What a generation's members name their objects by. Nobody can derive it from that of another generation.
    #[must_use]
    pub fn writer(&self, job: &JobId, generation: Generation) -> WriterToken {
        let derived = blake3::keyed_hash(self.0.bytes(), format!("{job}/writer/{generation}").as_bytes());
        WriterToken(std::array::from_fn(|i| derived.as_bytes()[i]))
    }

    /// What an agent says, as it is passed on: of a checkpoint whose name its members were not given only that somebody spoke of it, as the
    /// builds before did, which had no tokens. It has no effect and is not repeated.
    fn checked(&self, message: AgentMessage) -> AgentMessage {
        match message {
            AgentMessage::Report {
                number,
                at,
                report: Report::CheckpointSaved { job, generation, step, written_in, writer, replica_digest, bytes, .. },
                trace,
            } if writer != self.writer(&job, written_in) => {
                tracing::warn!(%job, %written_in, %step, "a checkpoint is reported under a name that was not issued; it does not count");
                let name = CheckpointName { job: job.clone(), generation: written_in, step, writer: Some(writer) };
                let manifest_key = name.manifest();
                let report = Report::CheckpointWritten { job, generation, step, manifest_key, replica_digest, bytes };
                AgentMessage::Report { number, at, report, trace }
            }
            other => other,
        }
    }

    fn fill_in(&self, order: &mut ExecutorOrder) {
        let (executor, job) = (&order.executor, &mut order.job);
        job.writer = self.writer_of(executor, job.proposal.as_ref());
        job.link_keys = self.link_keys(executor, job.proposal.as_ref());
    }

    /// The token of a proposed generation, for its members. Who is left out is told so by the proposal, and has nothing to name there.
    fn writer_of(&self, executor: &ExecutorId, proposal: Option<&Proposal>) -> Option<WriterToken> {
        let joined = proposal.filter(|proposal| proposal.members.iter().any(|member| member.executor == *executor))?;
        Some(self.writer(&executor.job, joined.generation))
    }

    /// An executor gets the keys of its own links, to those that it is to come together with.
    fn link_keys(&self, executor: &ExecutorId, proposal: Option<&Proposal>) -> Vec<LinkKey> {
        let peers = proposal.into_iter().flat_map(|proposal| &proposal.members).map(|member| member.executor.number);
        let others = peers.filter(|peer| *peer != executor.number);
        others.map(|peer| LinkKey { peer, key: self.link_key(&executor.job, executor.number, peer) }).collect()
    }
}

/// All streams.
pub(crate) struct Streams {
    links: BTreeMap<LinkId, Arc<Mailbox>>,
    tasks: JoinSet<()>,
    next: u64,
    inputs: Inputs,
    secret: CellSecret,
}

impl Streams {
    pub fn new(inputs: Inputs, secret: CellSecret) -> Self {
        Self { links: BTreeMap::new(), tasks: JoinSet::new(), next: 0, inputs, secret }
    }

    /// Takes an accepted stream; what the machine has to hear of it.
    pub fn accept(&mut self, connection: AgentConnection) -> In {
        // Those that ended well are forgotten here; one that panicked is found by `panicked`, unless nobody ever waits.
        while let Some(ended) = self.tasks.try_join_next() {
            if let Err(panic) = ended {
                tracing::error!(%panic, "an agent's stream died");
            }
        }
        self.next += 1;
        let (link, server) = (LinkId(self.next), connection.server.clone());
        let mailbox = Arc::new(Mailbox::default());
        self.links.insert(link, Arc::clone(&mailbox));
        let (receiver, sender) = connection.split();
        let (inputs, secret) = (self.inputs.clone(), self.secret.clone());
        self.tasks.spawn(async move {
            let end = tokio::select! {
                () = listen(link, receiver, &inputs, &secret) => None,
                end = mailbox.tell(&sender) => end,
            };
            match end {
                Some(cause) => {
                    // The agent may be gone already; it tries again in any case.
                    let _ = sender.end(cause).await;
                }
                None => drop(inputs.say(In::LinkClosed { link }).await),
            }
        });
        In::LinkOpened { link, server }
    }

    /// Puts a message where the stream's task finds it.
    pub fn tell(&self, link: LinkId, message: ControllerMessage, traces: &Traces) {
        let Some(mailbox) = self.links.get(&link) else { return };
        match message {
            ControllerMessage::Orders(mut orders) => {
                for order in &mut orders.executors {
                    self.secret.fill_in(order);
                    traces.fill_in(order);
                }
                mailbox.put(|letters| letters.orders = Some((orders, Instant::now())));
            }
            // Orders that stand there do not know of these reports; those that do follow at once.
            ControllerMessage::ReportsTaken { through } => mailbox.put(|letters| {
                letters.orders = None;
                letters.taken = Some(through);
            }),
            beat @ (ControllerMessage::Heartbeat { .. } | ControllerMessage::Alive) => {
                mailbox.put(|letters| letters.beat = Some(beat));
            }
            ask @ ControllerMessage::MeasureLink { .. } => mailbox.put(|letters| letters.ask = Some(ask)),
        }
    }

    /// Ends a stream.
    pub fn end(&mut self, link: LinkId, cause: Option<LinkEnd>) {
        if let Some(mailbox) = self.links.remove(&link) {
            mailbox.put(|letters| letters.end = Some(cause.map(end_cause)));
        }
    }

    /// A stream is over by itself.
    pub fn forget(&mut self, link: LinkId) {
        self.links.remove(&link);
    }

    /// Tells all agents to look elsewhere; waits for the last words, which take a bounded time.
    pub async fn leave(mut self) {
        for link in self.links.keys().copied().collect::<Vec<_>>() {
            self.end(link, Some(LinkEnd::Leaving));
        }
        while self.tasks.join_next().await.is_some() {}
    }

    /// Waits for a stream whose task panicked; forgets those that ended.
    pub async fn panicked(&mut self) -> String {
        loop {
            match self.tasks.join_next().await {
                Some(Err(error)) if error.is_panic() => return error.to_string(),
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }
}

/// Passes on what an agent says until its stream is over.
async fn listen(link: LinkId, mut receiver: AgentReceiver, inputs: &Inputs, secret: &CellSecret) {
    loop {
        match receiver.receive().await {
            Ok(Some(message)) => {
                let message = secret.checked(message);
                if inputs.say(In::Said { link, message }).await.is_err() {
                    return;
                }
            }
            Ok(None) => return,
            Err(status) => {
                tracing::debug!(link = link.0, error = %Chain(&status), "an agent's stream broke");
                return;
            }
        }
    }
}

/// What waits to be sent on one stream. Bounded by what it is: of each kind the latest says all.
#[derive(Debug, Default)]
struct Mailbox {
    letters: Mutex<Letters>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct Letters {
    taken: Option<u64>,
    orders: Option<(Orders, Instant)>,
    beat: Option<ControllerMessage>,
    /// A link to be measured; an older one is given up by whoever asked.
    ask: Option<ControllerMessage>,
    /// The stream is to end, with or without a word.
    end: Option<Option<EndCause>>,
}

impl Mailbox {
    fn put(&self, put: impl FnOnce(&mut Letters)) {
        put(&mut self.letters.lock().unwrap_or_else(PoisonError::into_inner));
        self.bell.notify_one();
    }

    /// Sends what there is until the stream is to end (`Some`: with these words) or takes nothing any more.
    async fn tell(&self, sender: &AgentSender) -> Option<EndCause> {
        loop {
            let letters = std::mem::take(&mut *self.letters.lock().unwrap_or_else(PoisonError::into_inner));
            if let Some(end) = letters.end {
                return end;
            }
            if let Err(error) = letters.send(sender).await {
                tracing::warn!(error = %Chain(&error), "an agent cannot be told");
                return None;
            }
            self.bell.notified().await;
        }
    }
}

impl Letters {
    async fn send(self, sender: &AgentSender) -> Result<(), SendError> {
        // The acknowledgement goes first: orders that follow it know of these reports.
        if let Some(through) = self.taken {
            sender.send(ControllerMessage::ReportsTaken { through }).await?;
        }
        if let Some((mut orders, since)) = self.orders {
            let waited_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
            for left_ms in orders.executors.iter_mut().filter_map(|order| order.leave_in_ms.as_mut()) {
                *left_ms = left_ms.saturating_sub(waited_ms);
            }
            sender.send(ControllerMessage::Orders(orders)).await?;
        }
        for message in self.beat.into_iter().chain(self.ask) {
            sender.send(message).await?;
        }
        Ok(())
    }
}

fn end_cause(end: LinkEnd) -> EndCause {
    match end {
        LinkEnd::Rejoin => EndCause::Rejoin,
        LinkEnd::Refused => EndCause::Refused,
        LinkEnd::Taken => EndCause::Taken,
        LinkEnd::Leaving => EndCause::Leaving,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::fact::{Entry, Member};
    use events_schema::stride::Stride;
    use events_schema::{Digest, Step, TimeMs, TraceContext};

    fn proposal(job: &JobId, members: &[u32]) -> Proposal {
        let member = |number: &u32| Member {
            executor: ExecutorId { job: job.clone(), number: *number },
            address: String::new(),
            ranks: Vec::new(),
        };
        let members: Vec<Member> = members.iter().map(member).collect();
        let leader = members[0].executor.clone();
        Proposal {
            generation: Generation(1),
            entry: Entry::Fresh,
            members,
            leader,
            deadline: TimeMs(0),
            stride: Stride::ONE,
        }
    }

    #[test]
    fn keys_differ_by_job_and_by_cell_and_come_again() {
        let (one, other) = (CellSecret::generate().unwrap(), CellSecret::generate().unwrap());
        let (a, b) = (JobId::parse("job-a").unwrap(), JobId::parse("job-b").unwrap());
        let token = |cell: &CellSecret, job| cell.writer(job, Generation(1));
        assert_eq!(token(&one, &a), token(&one.clone(), &a));
        assert_ne!(token(&one, &a), token(&one, &b));
        assert_ne!(token(&one, &a), token(&other, &a));
        assert_eq!(one.link_key(&a, 1, 2), one.clone().link_key(&a, 2, 1));
        assert_ne!(one.link_key(&a, 1, 2), other.link_key(&a, 1, 2));
    }

    /// With tokens that followed from a key of the job, as an earlier build's do, whoever was in one generation knew the names of all later ones.
    #[test]
    fn each_generation_has_a_token_of_its_own_and_no_other_counts_for_it() {
        let (cell, job) = (CellSecret::generate().unwrap(), JobId::parse("job-a").unwrap());
        let (third, fourth) = (Generation(3), Generation(4));
        let saved = |writer| AgentMessage::Report {
            number: 1,
            at: TimeMs(1),
            report: Report::CheckpointSaved {
                job: job.clone(),
                generation: fourth,
                step: Step(9),
                written_in: fourth,
                writer,
                replica_digest: Digest::of(b"replica"),
                bytes: 1,
                stands_still: None,
            },
            // Whether it carries a trace changes nothing about that.
            trace: TraceContext::new([1; 16], [1; 8], 1).ok(),
        };
        let counts = |writer| cell.checked(saved(writer)) == saved(writer);
        assert!(counts(cell.writer(&job, fourth)));
        let other = CellSecret::generate().unwrap();
        let job_key = blake3::keyed_hash(cell.0.bytes(), job.as_str().as_bytes());
        let input = [&b"writer"[..], &fourth.0.to_le_bytes()].concat();
        let derived = blake3::keyed_hash(job_key.as_bytes(), &input);
        let of_job_key = WriterToken(std::array::from_fn(|i| derived.as_bytes()[i]));
        for wrong in [cell.writer(&job, third), other.writer(&job, fourth), WriterToken([0; 16]), of_job_key] {
            assert!(!counts(wrong));
        }
        let AgentMessage::Report { number, report, .. } = cell.checked(saved(WriterToken([0; 16]))) else {
            unreachable!()
        };
        assert!(number == 1 && matches!(report, Report::CheckpointWritten { .. }), "it is taken, and has no effect");
    }

    /// With one key for all executors of a job each could speak for any other, also after the job had begun anew without it.
    #[test]
    fn a_link_has_a_key_that_only_its_two_ends_are_given() {
        let (cell, job) = (CellSecret::generate().unwrap(), JobId::parse("job-a").unwrap());
        let proposal = proposal(&job, &[3, 4, 9]);
        let keys = |number| -> BTreeMap<u32, [u8; 32]> {
            let keys = cell.link_keys(&ExecutorId { job: job.clone(), number }, Some(&proposal));
            keys.into_iter().map(|link| (link.peer, link.key)).collect()
        };
        let (three, four, nine) = (keys(3), keys(4), keys(9));
        assert_eq!(three.keys().copied().collect::<Vec<_>>(), [4, 9], "none to itself");
        assert_eq!((three[&4], three[&9], four[&9]), (four[&3], nine[&3], nine[&4]), "both ends have the same");
        assert!(!three.values().any(|key| *key == four[&9]), "it cannot speak for one of the others to the other");
        assert_ne!(cell.link_key(&JobId::parse("job-b").unwrap(), 3, 4), three[&4]);
        assert!(cell.link_keys(&ExecutorId { job, number: 3 }, None).is_empty());
    }

    /// With the token a member that was left out could name what counts for the generation that goes on without it.
    #[test]
    fn only_the_proposed_members_are_given_a_generation_s_token() {
        let (cell, job) = (CellSecret::generate().unwrap(), JobId::parse("job-a").unwrap());
        let proposal = proposal(&job, &[3, 4]);
        let given = |number, proposal| cell.writer_of(&ExecutorId { job: job.clone(), number }, proposal);
        let issued = Some(cell.writer(&job, proposal.generation));
        assert_eq!([3, 4, 9].map(|number| given(number, Some(&proposal))), [issued, issued, None]);
        assert_eq!(given(3, None), None);
    }
}
