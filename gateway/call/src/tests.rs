//! A call against every order of events: it ends in time, once, and says nothing that is not so.

#![allow(clippy::unwrap_used)]

use super::*;
use events_schema::batch::Taken;
use events_schema::fact::{Fact, Refusal};
use proptest::collection::vec;
use proptest::prelude::*;

const WAITS: Waits = Waits { append_ms: 20, decision_ms: 5 };
/// Where the record of every test stands, if it does.
const PLACE: Offset = Offset(7);

fn command() -> CommandId {
    CommandId::parse("cmd-a").unwrap()
}

fn fleet() -> FleetId {
    FleetId::parse("chat").unwrap()
}

fn questions() -> [Question; 2] {
    [Question::Command(command()), Question::Signal { fleet: fleet(), sequence: 3, needed: 2 }]
}

/// What happens outside of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Appended,
    Unknown,
    NotRecorded,
    /// A fact about this very input; it may come before the log's own word.
    Taken,
    Refused,
    /// The controller has read past its place and said nothing.
    PassedOver,
    /// Facts about something else.
    Other,
    Nothing,
}

fn event() -> impl Strategy<Value = Event> {
    use Event::*;
    prop::sample::select(vec![Appended, Unknown, NotRecorded, Taken, Refused, PassedOver, Other, Nothing])
}

fn refused() -> Answer {
    Answer::Refused { subject: "job-a".into(), refusal: refusal() }
}

fn refusal() -> Refusal {
    Refusal::WrongPhase { phase: "finished".into(), expected: "running".into() }
}

/// The world around one call, and what is true in it.
struct World {
    question: Question,
    answers: Answers,
    answer: Option<(TimeMs, Outcome)>,
    wake_at: Option<TimeMs>,
    appends: usize,
    /// What the call was told by the log, in order.
    told: Vec<In>,
    /// What facts say about it.
    decided: Option<Answer>,
}

impl World {
    fn new(question: Question) -> (Self, Call) {
        let (call, outs) = Call::begin(TimeMs(0), question.clone(), b"record".to_vec(), WAITS);
        let answers = Answers::default();
        let mut world =
            Self { question, answers, answer: None, wake_at: None, appends: 0, told: Vec::new(), decided: None };
        world.perform(TimeMs(0), outs);
        (world, call)
    }

    fn perform(&mut self, now: TimeMs, outs: Vec<Out>) {
        for out in outs {
            assert_eq!(self.answer, None, "nothing follows an answer");
            match out {
                Out::Append(stream, record) => {
                    assert_eq!((stream, &record[..]), (self.question.stream(), &b"record"[..]));
                    self.appends += 1;
                }
                Out::WakeAt(at) => self.wake_at = Some(at),
                Out::Answer(outcome) => {
                    self.check(&outcome);
                    self.answer = Some((now, outcome));
                }
            }
        }
    }

    /// The rule of the table in the crate's header.
    fn check(&self, outcome: &Outcome) {
        let acknowledged = self.told.contains(&In::Appended(PLACE));
        match outcome {
            Outcome::Decided(answer) => assert_eq!(Some(answer), self.decided.as_ref()),
            Outcome::Undecided(place) => assert!(acknowledged && *place == PLACE && self.undecided()),
            Outcome::Unknown => assert!(!acknowledged && self.undecided()),
            Outcome::NotRecorded => assert_eq!(self.told, [In::NotRecorded]),
            Outcome::PassedOver(place) => {
                assert!(acknowledged && *place == PLACE && self.decided == Some(Answer::Unremarked));
                assert!(
                    matches!(self.question, Question::Command(_)),
                    "a signal may be older than what its fleet said since"
                );
            }
        }
    }

    /// Whether a call that knows what it was told cannot know of a decision.
    fn undecided(&self) -> bool {
        match &self.decided {
            None => true,
            // Found by its place alone, which only an acknowledgement tells.
            Some(Answer::Unremarked) => !self.told.contains(&In::Appended(PLACE)),
            Some(_) => false,
        }
    }

    /// Changes the world; what the call is told of it.
    fn happen(&mut self, event: Event) -> Option<In> {
        let fact = match (event, &self.question) {
            (Event::Appended, _) => return self.log_says(In::Appended(PLACE)),
            (Event::Unknown, _) => return self.log_says(In::Unknown),
            (Event::NotRecorded, _) => return self.log_says(In::NotRecorded),
            (Event::Nothing, _) => return None,
            (Event::Taken, Question::Command(command)) => Fact::CommandTaken { command: command.clone() },
            (Event::Taken, Question::Signal { fleet, sequence, needed }) => {
                Fact::DemandAccepted { fleet: fleet.clone(), sequence: *sequence, needed: *needed, forecast: None }
            }
            (Event::Refused, Question::Command(command)) => {
                Fact::CommandRefused { command: command.clone(), subject: "job-a".into(), refusal: refusal() }
            }
            (Event::PassedOver, question) => {
                let run = Taken { stream: question.stream(), from: Offset(0), to: PLACE.next() };
                self.answers.apply_taken(&[run]);
                self.decided.get_or_insert(Answer::Unremarked);
                return Some(In::Changed);
            }
            _ => Fact::CommandTaken { command: CommandId::parse("cmd-other").unwrap() },
        };
        // Each input is decided once, and never after the controller has passed its place.
        if self.decided.is_none() {
            match (event, &self.question) {
                (Event::Taken, _) => self.decided = Some(Answer::Taken),
                (Event::Refused, Question::Command(_)) => self.decided = Some(refused()),
                _ => {}
            }
            self.answers.apply(&fact);
        }
        Some(In::Changed)
    }

    /// The log answers an append once.
    fn log_says(&mut self, word: In) -> Option<In> {
        if !self.told.is_empty() || (word == In::NotRecorded && self.decided.is_some()) {
            return None;
        }
        self.told.push(word);
        Some(word)
    }
}

fn run(question: Question, events: &[(u64, Event)]) -> (World, Call, TimeMs) {
    let (mut world, mut call) = World::new(question);
    let mut now = TimeMs(0);
    for (later_ms, event) in events {
        let then = now.plus_ms(*later_ms);
        while let Some(wake_at) = world.wake_at.filter(|at| *at <= then && world.answer.is_none()) {
            now = now.max(wake_at);
            world.wake_at = None;
            let outs = call.handle(now, In::Wake, &world.answers);
            world.perform(now, outs);
        }
        now = then;
        if let Some(input) = world.happen(*event) {
            let outs = call.handle(now, input, &world.answers);
            world.perform(now, outs);
        }
    }
    (world, call, now)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn every_call_ends_in_time_once_and_says_what_is_so(
        which in 0..2usize,
        events in vec((0..12u64, event()), 0..12),
    ) {
        // Then nothing happens any more: the log stalls for ever.
        let silent = events.iter().copied().chain([(10 * WAITS.total_ms(), Event::Nothing)]).collect::<Vec<_>>();
        let (world, _, _) = run(questions()[which].clone(), &silent);
        let (at, _) = world.answer.expect("answered");
        prop_assert!(at.0 <= WAITS.total_ms(), "answered at {at:?}");
        prop_assert_eq!(world.appends, 1);
    }

    #[test]
    fn an_early_or_repeated_wake_changes_nothing(events in vec((0..4u64, event()), 0..8), which in 0..2usize) {
        let (world, mut call, now) = run(questions()[which].clone(), &events);
        let outs = call.clone().handle(now, In::Wake, &world.answers);
        let wakes = outs.iter().all(|out| matches!(out, Out::WakeAt(_)));
        prop_assert!(wakes || now.0 >= WAITS.decision_ms, "{outs:?}");
        if world.answer.is_some() {
            prop_assert_eq!(call.handle(now, In::Appended(PLACE), &world.answers), vec![]);
        }
    }
}

fn outcome(question: usize, events: &[(u64, Event)]) -> (u64, Outcome) {
    let (at, outcome) = run(questions()[question].clone(), events).0.answer.unwrap();
    (at.0, outcome)
}

#[test]
fn a_log_that_stalls_is_waited_for_and_then_the_outcome_is_unknown() {
    for question in 0..2 {
        assert_eq!(outcome(question, &[(100, Event::Nothing)]), (20, Outcome::Unknown));
        assert_eq!(
            outcome(question, &[(19, Event::Appended), (1, Event::Taken)]),
            (20, Outcome::Decided(Answer::Taken))
        );
    }
}

#[test]
fn a_fact_shows_that_a_record_of_unknown_outcome_is_there() {
    for question in 0..2 {
        let seen = outcome(question, &[(1, Event::Unknown), (3, Event::Taken)]);
        assert_eq!(seen, (4, Outcome::Decided(Answer::Taken)));
        assert_eq!(outcome(question, &[(1, Event::Unknown), (100, Event::Taken)]), (6, Outcome::Unknown));
    }
}

#[test]
fn durable_without_a_decision_is_said_as_that() {
    assert_eq!(outcome(0, &[(2, Event::Appended), (100, Event::Nothing)]), (7, Outcome::Undecided(PLACE)));
}

#[test]
fn a_decision_read_before_the_acknowledgement_counts() {
    assert_eq!(outcome(0, &[(1, Event::Refused), (9, Event::Appended)]), (1, Outcome::Decided(refused())));
    assert_eq!(outcome(1, &[(1, Event::PassedOver), (2, Event::Appended)]), (3, Outcome::Decided(Answer::Unremarked)));
}

/// In a log that was shortened nobody takes what is put there: an answer that it is done would be untrue for ever.
#[test]
fn a_command_that_is_put_where_everything_is_read_already_is_not_said_to_be_done() {
    let early = [(1, Event::PassedOver), (2, Event::Appended)];
    assert_eq!(outcome(0, &early), (3, Outcome::PassedOver(PLACE)));
    let late = [(1, Event::Appended), (2, Event::PassedOver)];
    assert_eq!(outcome(0, &late), (3, Outcome::PassedOver(PLACE)));
    let known = [(1, Event::Taken), (1, Event::PassedOver), (2, Event::Appended)];
    assert_eq!(outcome(0, &known), (1, Outcome::Decided(Answer::Taken)));
}

#[test]
fn what_the_log_refused_is_not_recorded() {
    assert_eq!(outcome(1, &[(4, Event::NotRecorded)]), (4, Outcome::NotRecorded));
}
