//! The streams to the agents: what comes up becomes inputs of the machine, what it says goes down. Nothing here decides, nor waits
//! for the log, so that an agent is heard whatever the log does.
//!
//! Next on a job's path: `workers/agent/src/lib.rs`.

use crate::failure::Chain;
use controller_cell::{In, LinkEnd, LinkId};
use controller_link::{AgentConnection, AgentReceiver, AgentSender, EndCause, Secret, SecretError, SendError};
use events_schema::JobId;
use events_schema::orders::{ControllerMessage, Orders};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

/// Accepted streams that wait for the loop.
pub(crate) const ACCEPTED_QUEUE_LEN: usize = 64;

/// Root of the keys that executors of a job prove themselves with. It never enters the log.
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

    /// The key of one job: the same on every controller of the cell, and useless for any other job.
    #[must_use]
    pub fn job_key(&self, job: &JobId) -> [u8; 32] {
        *blake3::keyed_hash(self.0.bytes(), job.as_str().as_bytes()).as_bytes()
    }
}

/// All streams.
pub(crate) struct Streams {
    links: BTreeMap<LinkId, Arc<Mailbox>>,
    tasks: JoinSet<()>,
    next: u64,
    inputs: mpsc::Sender<In>,
    secret: CellSecret,
}

impl Streams {
    pub fn new(inputs: mpsc::Sender<In>, secret: CellSecret) -> Self {
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
        let inputs = self.inputs.clone();
        self.tasks.spawn(async move {
            let end = tokio::select! {
                () = listen(link, receiver, &inputs) => None,
                end = mailbox.tell(&sender) => end,
            };
            match end {
                Some(cause) => {
                    // The agent may be gone already; it tries again in any case.
                    let _ = sender.end(cause).await;
                }
                None => drop(inputs.send(In::LinkClosed { link }).await),
            }
        });
        In::LinkOpened { link, server }
    }

    /// Puts a message where the stream's task finds it.
    pub fn tell(&self, link: LinkId, message: ControllerMessage) {
        let Some(mailbox) = self.links.get(&link) else { return };
        match message {
            ControllerMessage::Orders(mut orders) => {
                for order in &mut orders.executors {
                    order.job.key = self.secret.job_key(&order.executor.job);
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
async fn listen(link: LinkId, mut receiver: AgentReceiver, inputs: &mpsc::Sender<In>) {
    loop {
        match receiver.receive().await {
            Ok(Some(message)) => {
                if inputs.send(In::Said { link, message }).await.is_err() {
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
        match self.beat {
            Some(beat) => sender.send(beat).await,
            None => Ok(()),
        }
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

    #[test]
    fn keys_differ_by_job_and_by_cell_and_come_again() {
        let (one, other) = (CellSecret::generate().unwrap(), CellSecret::generate().unwrap());
        let (a, b) = (JobId::parse("job-a").unwrap(), JobId::parse("job-b").unwrap());
        assert_eq!(one.job_key(&a), one.clone().job_key(&a));
        assert_ne!(one.job_key(&a), one.job_key(&b));
        assert_ne!(one.job_key(&a), other.job_key(&a));
    }
}
