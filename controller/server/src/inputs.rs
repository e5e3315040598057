//! The queue of what goes into the machine, and how much of it presses: a plan in the midst looks at that number, because the loop cannot look at its queue then.
//!
//! What presses counts from when it is put, also while it waits for room, until it is taken out or given up. Nothing here decides; what presses says
//! `controller/cell/src/pressing.rs`.

use controller_cell::{In, message_presses};
use controller_core::Interrupt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::mpsc;

/// Inputs that wait for the machine; whoever has more waits, which slows down only what is too fast.
const INPUTS_QUEUE_LEN: usize = 1_024;

/// A queue of inputs: where they are put, and where they are taken out.
pub(crate) fn queue() -> (Inputs, Taker) {
    let (sender, receiver) = mpsc::channel(INPUTS_QUEUE_LEN);
    (Inputs { sender, pressing: Arc::default() }, Taker(receiver))
}

/// Where inputs are put.
#[derive(Debug, Clone)]
pub(crate) struct Inputs {
    sender: mpsc::Sender<(In, Option<Press>)>,
    pressing: Arc<AtomicUsize>,
}

/// Where they are taken out, in their order.
#[derive(Debug)]
pub(crate) struct Taker(mpsc::Receiver<(In, Option<Press>)>);

/// Nobody takes inputs any more.
#[derive(Debug)]
pub(crate) struct Gone;

impl Inputs {
    /// Puts one; waits while there is no room. `presses`: whether no plan may hold it up.
    pub async fn send(&self, input: In, presses: bool) -> Result<(), Gone> {
        let press = presses.then(|| Press::new(&self.pressing));
        self.sender.send((input, press)).await.map_err(|_| Gone)
    }

    /// The same for what an agent or the loop itself says, which tells whether it presses.
    pub async fn say(&self, input: In) -> Result<(), Gone> {
        let presses = matches!(&input, In::Said { message, .. } if message_presses(message));
        self.send(input, presses).await
    }

    /// Whether anything waits that presses.
    pub fn interrupt(&self) -> Interrupt {
        let pressing = Arc::clone(&self.pressing);
        Interrupt::new(move || pressing.load(Ordering::Relaxed) > 0)
    }
}

impl Taker {
    /// The next one; none when nobody is left to put one.
    pub async fn take(&mut self) -> Option<In> {
        self.0.recv().await.map(|(input, _)| input)
    }
}

/// One input that presses, as long as it waits.
#[derive(Debug)]
struct Press(Arc<AtomicUsize>);

impl Press {
    fn new(pressing: &Arc<AtomicUsize>) -> Self {
        pressing.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(pressing))
    }
}

impl Drop for Press {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use controller_cell::LinkId;
    use events_schema::orders::AgentMessage;
    use events_schema::report::Report;
    use events_schema::{ServerId, SlotId, TimeMs};
    use std::task::{Context, Poll, Waker};

    fn pressing(inputs: &Inputs) -> usize {
        inputs.pressing.load(Ordering::Relaxed)
    }

    fn said(message: AgentMessage) -> In {
        In::Said { link: LinkId(1), message }
    }

    #[tokio::test]
    async fn what_presses_counts_until_it_is_taken_out() {
        let (inputs, mut taker) = queue();
        let slot = SlotId { server: ServerId::parse("s1").unwrap(), index: 0 };
        let report = Report::SlotTakenBack { slot, asked_ms: None, within_ms: None };
        let taken_back = AgentMessage::Report { number: 1, at: TimeMs(1), report, trace: None };
        inputs.say(said(AgentMessage::Heartbeat)).await.unwrap();
        inputs.say(said(taken_back.clone())).await.unwrap();
        inputs.send(In::Wake, true).await.unwrap();
        assert_eq!(pressing(&inputs), 2);
        let mut left = Vec::new();
        while pressing(&inputs) > 0 {
            left.push((taker.take().await.unwrap(), pressing(&inputs)));
        }
        assert_eq!(left, [(said(AgentMessage::Heartbeat), 2), (said(taken_back), 1), (In::Wake, 0)]);
    }

    #[tokio::test]
    async fn what_is_given_up_before_there_was_room_counts_no_more() {
        let (inputs, _taker) = queue();
        for _ in 0..INPUTS_QUEUE_LEN {
            inputs.say(In::Wake).await.unwrap();
        }
        let mut waits = Box::pin(inputs.send(In::Wake, true));
        assert!(matches!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
        assert_eq!(pressing(&inputs), 1);
        drop(waits);
        assert_eq!(pressing(&inputs), 0);
    }
}
