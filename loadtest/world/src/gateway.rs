//! The gateway: the real machine of a call for each thing that somebody asks, and a view of what counts, which follows the log. What a call
//! said is acknowledged has to be decided.

use crate::log::{Answer as LogAnswer, Append, Asker, Word};
use crate::people::Wish;
use crate::world::{Event, World};
use events_rule::Stream;
use events_rule::count::{Counter, Verdict};
use events_schema::Offset;
use events_schema::batch::{EventRecord, InputStream, from_bytes};
use gateway_call::{Answer, Answers, Call, In, Out, Outcome, Question, Waits};
use std::collections::BTreeMap;

/// What the gateway knows and does.
#[derive(Debug)]
pub struct Gateway {
    answers: Answers,
    counter: Counter,
    position: Offset,
    calls: BTreeMap<u64, Open>,
    made: u64,
}

/// A call that is not answered.
#[derive(Debug)]
struct Open {
    call: Call,
    record: Vec<u8>,
    wake: u64,
    wish: Wish,
}

impl Default for Gateway {
    fn default() -> Self {
        Self {
            answers: Answers::default(),
            counter: Counter::new(),
            position: Offset(0),
            calls: BTreeMap::new(),
            made: 0,
        }
    }
}

impl World {
    /// Somebody asks for something.
    pub fn call(&mut self, question: Question, record: Vec<u8>, wish: Wish) {
        let now = self.control_clock().wall(self.now());
        let number = self.gateway.made;
        self.gateway.made += 1;
        let (call, outs) = Call::begin(now, question, record.clone(), Waits::STANDARD);
        self.gateway.calls.insert(number, Open { call, record, wake: 0, wish });
        self.perform_call(number, outs);
    }

    fn perform_call(&mut self, number: u64, outs: Vec<Out>) {
        for out in outs {
            match out {
                Out::Append(stream, record) => {
                    let (asker, stream) = (Asker::Call(number), Stream::from(stream));
                    self.append(Append { asker, ticket: number, stream, record, word: Word::Acknowledged });
                }
                Out::WakeAt(at) => {
                    let (now, clock) = (self.now(), self.control_clock());
                    let in_ms = at.since_ms(clock.wall(now));
                    let Some(open) = self.gateway.calls.get_mut(&number) else { return };
                    open.wake += 1;
                    let event = Event::CallWake(number, open.wake);
                    self.bus.put(now.plus_ms(in_ms + 1), event);
                }
                Out::Answer(outcome) => {
                    let Some(open) = self.gateway.calls.remove(&number) else { return };
                    if let Outcome::Undecided(offset) = &outcome {
                        self.is_acknowledged(open.wish.stream(), *offset, &open.record);
                    }
                    self.check_outcome(&open.wish, &outcome);
                    self.is_answered(open.wish, &outcome);
                }
            }
        }
    }

    fn feed_call(&mut self, number: u64, input: In) {
        let now = self.control_clock().wall(self.now());
        let Some(open) = self.gateway.calls.get_mut(&number) else { return };
        let outs = open.call.handle(now, input, &self.gateway.answers);
        self.perform_call(number, outs);
    }

    /// The time of a call has come.
    pub fn wake_call(&mut self, number: u64, wake: u64) {
        if self.gateway.calls.get(&number).is_some_and(|open| open.wake == wake) {
            self.feed_call(number, In::Wake);
        }
    }

    /// The log answers a call.
    pub fn tell_call(&mut self, number: u64, answer: &LogAnswer) {
        let input = match answer {
            LogAnswer::Appended(_, _, offset) => In::Appended(*offset),
            LogAnswer::Unknown(_) => In::Unknown,
            LogAnswer::Refused(_) => In::NotRecorded,
            LogAnswer::Read(..) | LogAnswer::End(..) => return,
        };
        if let LogAnswer::Appended(_, stream, offset) = answer
            && let Some(record) = self.gateway.calls.get(&number).map(|open| open.record.clone())
            && let Some(stream) = InputStream::ALL.into_iter().find(|input| Stream::from(*input) == *stream)
        {
            self.is_acknowledged(stream, *offset, &record);
        }
        self.feed_call(number, input);
    }

    /// A client was told that its input is durable. One that a shortened topic lost, or put before what is read, nobody can decide.
    fn is_acknowledged(&mut self, stream: InputStream, offset: Offset, record: &[u8]) {
        let now = self.now();
        if self.log.has(stream.into(), offset, record) && !self.log.was_passed_over(stream.into(), offset) {
            self.checks.acknowledged(stream, offset, now);
        }
    }

    /// Nothing is answered as done that nobody has taken.
    fn check_outcome(&mut self, wish: &Wish, outcome: &Outcome) {
        match (wish, outcome) {
            (Wish::Command(command), Outcome::Decided(Answer::Unremarked)) => {
                self.found("nothing is passed over in silence", format!("command {}", command.id));
            }
            (_, Outcome::PassedOver(_)) if !self.log.is_shortened(wish.stream().into(), self.now()) => {
                self.found("a log that keeps its word passes nothing over", format!("{wish:?}"));
            }
            _ => {}
        }
    }

    /// The view goes on to the end of the log.
    pub fn tail(&mut self) {
        if self.log_is_stalled() {
            return;
        }
        let mut changed = false;
        for record in self.log.records(Stream::Events, self.gateway.position).to_vec() {
            self.gateway.position = record.offset.next();
            let Ok(event) = from_bytes::<EventRecord>(&record.bytes) else { continue };
            if let Verdict::Counts(batch) = self.gateway.counter.offer(record.offset, event) {
                batch.facts.iter().for_each(|fact| self.gateway.answers.apply(fact));
                self.gateway.answers.apply_taken(&batch.taken);
                self.checks.decided(&batch.taken);
                changed = true;
            }
        }
        if changed {
            let open: Vec<u64> = self.gateway.calls.keys().copied().collect();
            open.into_iter().for_each(|number| self.feed_call(number, In::Changed));
        }
    }
}
