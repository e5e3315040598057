//! The inbox while something long is done: a second thread looks into it, so that an executor can leave in the middle of one gradient, and say to others that
//! it stays. What overtakes is the machine's to say (`workers/member/src/meanwhile.rs`); everything else is kept, in order, for the trainer.
//!
//! The unit is computed where it always is. A short one has nobody look: it is over sooner than anybody who waits would notice. Whoever computes it and comes to
//! wait has somebody look from then on (`store_wait.rs`), since nobody can say of the store how long it takes.

use crate::control::Agent;
use crate::following::Following;
use crate::inbox::{EVENTS_MAX, Event};
use crate::network::Network;
use crate::stretch::Stretch;
use crate::sums::Sums;
use crate::trainer::Input;
use events_schema::control::{ExecutorHop, FromExecutor, STOPPED_STATUS};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use workers_member::{Exit, In, Member, Out, Unit, may_overtake};
use workers_session::Message;

/// A unit is long if the one before it took so long: a tenth of what anybody waits who wants a slot back at once, and a thousand times what starting a
/// thread takes.
pub(crate) const LONG: Duration = Duration::from_millis(100);
/// What is kept beside sums: as much as the inbox holds.
const KEPT_BYTES: usize = 32 << 20;

/// The trainer's end of the inbox, and what was taken out of it while a unit was computed.
pub(crate) struct Events {
    incoming: Receiver<Event>,
    kept: VecDeque<Event>,
    kept_bytes: usize,
    /// Bytes of a gradient. Of the step in flight whoever computes last is sent up to two: partial sums of its chunk, and chunks of others that are whole.
    gradient_bytes: usize,
}

impl Events {
    pub fn new(incoming: Receiver<Event>, gradient_bytes: usize) -> Self {
        Self { incoming, kept: VecDeque::new(), kept_bytes: 0, gradient_bytes }
    }

    /// The next one, if there is one.
    pub fn try_next(&mut self) -> Result<Event, TryRecvError> {
        match self.kept.pop_front() {
            Some(event) => {
                self.kept_bytes -= bytes(&event);
                Ok(event)
            }
            None => self.incoming.try_recv(),
        }
    }

    /// No more than so many are there now: what is kept, which has a bound in bytes, and an inbox that is full.
    pub fn there_max(&self) -> usize {
        self.kept.len() + EVENTS_MAX
    }

    /// The next one, when nothing is kept; none when the time is over.
    pub fn wait(&self, time: Option<Duration>) -> Result<Event, RecvTimeoutError> {
        match time {
            Some(time) => self.incoming.recv_timeout(time),
            None => self.incoming.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn keep(&mut self, event: Event) {
        self.kept_bytes += bytes(&event);
        self.kept.push_back(event);
    }

    /// Without room senders wait, as they do when nobody looks.
    fn has_room(&self) -> bool {
        self.kept_bytes < self.gradient_bytes.saturating_mul(2).saturating_add(KEPT_BYTES)
    }
}

/// What an event holds at the most in this process, beside what it shares.
fn bytes(event: &Event) -> usize {
    let payload = match event {
        Event::Bulk(_, _, Stretch::Here { len, .. }) => size_of::<f32>() * len,
        Event::Message { bytes, .. } => *bytes,
        _ => 0,
    };
    size_of::<Event>() + payload
}

/// How long units took: the last one of each kind, but no less than half of what the one before counts for. Between long ones there are some with next to
/// nothing to compute, at the end of an epoch and in an evaluation.
#[derive(Debug, Default)]
pub(crate) struct Units {
    gradient: Option<Duration>,
    evaluation: Option<Duration>,
}

impl Units {
    /// Whether the next one may be long; of the first nobody knows. An update is none: it is a boundary that comes, and changes the replica.
    pub fn is_long(&self, unit: Unit) -> bool {
        let took = match unit {
            Unit::Gradient { .. } => self.gradient,
            Unit::Evaluate { .. } => self.evaluation,
            Unit::Update { .. } => return false,
        };
        took.is_none_or(|took| took >= LONG)
    }

    pub fn took(&mut self, unit: Unit, took: Duration) {
        let of_kind = match unit {
            Unit::Gradient { .. } => &mut self.gradient,
            Unit::Evaluate { .. } => &mut self.evaluation,
            Unit::Update { .. } => return,
        };
        *of_kind = Some(took.max(of_kind.unwrap_or_default() / 2));
    }
}

/// What who computes and who looks both use, in turns.
pub(crate) struct Shared<'a> {
    pub member: &'a mut Member<Stretch>,
    pub network: &'a mut Network,
    pub sums: &'a mut Sums,
}

/// Whoever is there first.
pub(crate) fn lock<'a, 'b>(shared: &'a Mutex<Shared<'b>>) -> MutexGuard<'a, Shared<'b>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has somebody look from now on, until what is done is done; said again it does nothing.
pub(crate) type Listen<'a> = &'a dyn Fn();

/// Who looks.
pub(crate) struct Looker<'a, 'b, W: Write> {
    pub shared: &'a Mutex<Shared<'b>>,
    pub events: &'a mut Events,
    pub wake: &'a mut Option<Duration>,
    /// When the machine's time began.
    pub started: Instant,
    pub agent: &'a mut Agent<W>,
    pub following: &'a mut Following,
    /// Whether an order is kept that may let this executor go.
    pub ordered: bool,
}

impl<W: Write + Send> Looker<'_, '_, W> {
    /// Looks until `compute` is done, whose result this gives: from the beginning if that is long, or else from when it says so, if it ever does. `inbox` is
    /// where its end is heard of.
    pub fn beside<T>(self, inbox: &SyncSender<Event>, is_long: bool, compute: impl FnOnce(Listen<'_>) -> T) -> T {
        let (done, looker) = (&AtomicBool::new(false), Cell::new(Some(self)));
        std::thread::scope(|scope| {
            let listen = || {
                let Some(looker) = looker.take() else { return };
                let thread = std::thread::Builder::new().name("ebb-looks".to_owned());
                if let Err(error) = thread.spawn_scoped(scope, move || looker.look(done)) {
                    tracing::warn!(%error, "no thread is left to listen while a gradient is computed");
                }
            };
            if is_long {
                listen();
            }
            let computed = compute(&listen);
            if looker.take().is_none() {
                done.store(true, Ordering::Release);
                // Where it is full there is something to take out of it, and then this is looked at.
                let _ = inbox.try_send(Event::Computed);
            }
            computed
        })
    }

    fn look(mut self, done: &AtomicBool) {
        // While the job stands still nobody leaves before that is over.
        if !lock(self.shared).member.overtakes(&In::Wake) {
            return;
        }
        // Time may have come for something before anybody looked.
        self.tell(In::Wake);
        while !done.load(Ordering::Acquire) && self.events.has_room() {
            let time = self.wake.map(|wake| wake.saturating_sub(self.started.elapsed()));
            match self.events.wait(time) {
                Ok(Event::Computed) => {}
                Ok(event) => self.take(event),
                Err(RecvTimeoutError::Timeout) => {
                    *self.wake = None;
                    self.tell(In::Wake);
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn take(&mut self, event: Event) {
        if let Event::Trace(trace) = event {
            return self.following.begin(trace);
        }
        self.ordered |= matches!(event, Event::Order(_));
        match overtaking(&event).filter(|input| self.overtakes(input)) {
            Some(input) => self.tell(input),
            None => self.events.keep(event),
        }
    }

    /// Nobody says that it stays while an order is kept by which it might not.
    fn overtakes(&self, input: &Input) -> bool {
        let asks = matches!(input, In::Message { envelope, .. } if envelope.message == Message::MayGo);
        !(asks && self.ordered) && lock(self.shared).member.overtakes(input)
    }

    fn tell(&mut self, input: Input) {
        let mut shared = lock(self.shared);
        for out in shared.member.meanwhile(self.started.elapsed(), input) {
            match out {
                Out::Say(to, envelope) => shared.network.say(to, &envelope),
                Out::WakeAt(at) => *self.wake = Some(at),
                Out::Exit(exit) => self.leave(exit),
                other => tracing::error!(?other, "nothing of the kind is done while a gradient is computed"),
            }
        }
    }

    /// Ends the process, with the gradient that it is at. What was not sent yet is of a step that the others begin anew.
    fn leave(&mut self, exit: Exit) -> ! {
        tracing::info!("leaving: {exit}");
        if let Some(span) = self.following.done(ExecutorHop::Boundary) {
            // An agent that cannot be told is gone.
            let _ = self.agent.say(&FromExecutor::Span(span));
        }
        std::process::exit(STOPPED_STATUS)
    }
}

/// What the machine is told of what it may hear.
fn overtaking(event: &Event) -> Option<Input> {
    match event {
        Event::Leave { within_ms } => Some(In::Leave(Duration::from_millis(*within_ms))),
        Event::Deadline { within_ms } => Some(In::Deadline(Duration::from_millis(*within_ms))),
        Event::Message { link, envelope, bytes } if may_overtake(&envelope.message) => {
            Some(In::Message { link: *link, envelope: envelope.clone(), bytes: *bytes })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::inbox::inbox;
    use events_schema::stride::Stride;
    use events_schema::{Generation, Rank, Step};
    use workers_member::{Bulk, Kind, LinkId};
    use workers_session::{Peer, Tag};

    const GRADIENT: Unit = Unit::Gradient { step: Step(3), stride: Stride::ONE, rank: Rank(0) };
    const EVALUATION: Unit = Unit::Evaluate { step: Step(3), rank: Rank(0), part: 0 };

    #[test]
    fn long_is_what_took_long_and_what_nobody_knows() {
        let mut units = Units::default();
        assert!(units.is_long(GRADIENT) && units.is_long(EVALUATION));
        units.took(GRADIENT, LONG / 2);
        assert!(!units.is_long(GRADIENT) && units.is_long(EVALUATION), "each of its kind");
        units.took(GRADIENT, 8 * LONG);
        let long = std::iter::repeat_with(|| {
            units.took(GRADIENT, Duration::ZERO);
            units.is_long(GRADIENT)
        });
        assert_eq!(long.take_while(|long| *long).count(), 3, "after one of nothing, and not for ever");
    }

    #[test]
    fn what_is_kept_comes_first_and_is_bounded() {
        let (sender, incoming) = inbox();
        let mut events = Events::new(incoming, 8 << 20);
        let bulk = |offset| {
            let tag = Tag { generation: Generation(1), revision: 0 };
            let bulk = Bulk { kind: Kind::Reduced, tag, step: Step(3), offset, elements: 1 << 20 };
            Event::Bulk(LinkId { peer: Peer(1), number: 1 }, bulk, vec![0.0; 1 << 20].into())
        };
        let mut kept = 0;
        while events.has_room() {
            events.keep(bulk(kept));
            kept += 1;
        }
        assert_eq!(kept, 12, "48 MiB of 4 each");
        sender.try_send(bulk(kept)).unwrap();
        let next = |events: &mut Events| match events.try_next() {
            Ok(Event::Bulk(_, bulk, _)) => Some(bulk.offset),
            _ => None,
        };
        assert_eq!((0..=kept).map(|_| next(&mut events).unwrap()).collect::<Vec<_>>(), (0..=kept).collect::<Vec<_>>());
        assert!(next(&mut events).is_none() && events.kept_bytes == 0);
    }
}
