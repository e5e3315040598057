//! The rule of what counts (`events/rule/src/count.rs`) under two controllers that claim, append batches whole and in parts, lose
//! acknowledgements, forget everything, and whose records arrive late, never, or twice.
#![allow(clippy::unwrap_used)]

use events_rule::count::{Counter, Verdict};
use events_schema::batch::{Batch, EventRecord, InputStream, Part, Taken};
use events_schema::fact::Fact;
use events_schema::{Offset, Sequence, Term, TimeMs};
use explore::explore;
use stateright::{Model, Property};
use std::collections::BTreeMap;

/// A record, as small as the rule allows: a batch takes one input, and a part of it is its place and whether it is the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Record {
    Claim,
    Batch { term: u64, sequence: u64, part: Option<u32>, input: u64 },
}

const PARTS: u32 = 2;

impl Record {
    fn event(self) -> EventRecord {
        match self {
            Record::Claim => EventRecord::Claim { controller: String::new(), incarnation: 0 },
            Record::Batch { term, sequence, part, input } => {
                let taken = Taken { stream: InputStream::Commands, from: Offset(input), to: Offset(input + 1) };
                let fact = Fact::InputRefused { stream: String::new(), offset: Offset(input), reason: String::new() };
                EventRecord::Batch(Batch {
                    term: Term(term),
                    sequence: Sequence(sequence),
                    part: part.map(|index| Part { index, count: PARTS }),
                    // As a batch is cut: its inputs first, then its facts.
                    taken: if part != Some(1) { vec![taken] } else { vec![] },
                    at: TimeMs(0),
                    facts: if part != Some(0) { vec![fact] } else { vec![] },
                    causes: vec![],
                })
            }
        }
    }
}

/// A batch that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Counted {
    offset: u64,
    term: u64,
    sequence: u64,
    input: u64,
}

/// What a reader makes of a log from `from` on, with a counter that stands there.
fn read(log: &[Record], counter: &mut Counter, from: usize) -> Vec<Counted> {
    let mut counted = Vec::new();
    for (offset, record) in log.iter().enumerate().skip(from) {
        if let Verdict::Counts(batch) = counter.offer(Offset(offset as u64), record.event()) {
            let input = batch.taken[0].from.0;
            assert!(matches!(batch.facts[..], [Fact::InputRefused { offset: Offset(fact), .. }] if fact == input));
            let (term, sequence) = (batch.term.0, batch.sequence.0);
            counted.push(Counted { offset: offset as u64, term, sequence, input });
        }
    }
    counted
}

/// A record between its writer and the log. It may arrive at any time, or never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Flight {
    record: Record,
    /// The writer that waits for its acknowledgement.
    awaited_by: Option<usize>,
}

/// A controller, as `controller/server` is one: it claims, reads up to its claim, and appends one record at a time.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Writer {
    owned: Option<Owned>,
    /// An acknowledgement that is on its way.
    acknowledged: Option<u64>,
    waits: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Owned {
    term: u64,
    /// First offset it has not folded.
    known: u64,
    /// The second part of the batch under way, still to be sent.
    rest: Option<Record>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct World {
    log: Vec<Record>,
    flights: Vec<Flight>,
    writers: [Writer; 2],
    /// What writers found counted, and what they found silenced: (term, sequence) and the input.
    believed: BTreeMap<(u64, u64), u64>,
    denied: BTreeMap<(u64, u64), u64>,
    stood_down: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Claim {
        writer: usize,
    },
    Send {
        writer: usize,
        parts: u32,
    },
    /// A record reaches the log; a copy of it may still be under way.
    Arrive {
        flight: usize,
        twice: bool,
    },
    /// The writer learns the place of its record.
    Acknowledge {
        writer: usize,
    },
    /// The writer gives up waiting, or crashes: the outcome is unknown and its state is dropped.
    Forget {
        writer: usize,
    },
}

/// How far the case goes.
struct Case {
    log_len_max: usize,
    claims_max: usize,
    flights_max: usize,
}

impl World {
    fn claims(&self) -> usize {
        let flying = self.flights.iter().map(|flight| flight.record);
        self.log.iter().copied().chain(flying).filter(|record| *record == Record::Claim).count()
    }

    fn fly(&mut self, record: Record, awaited_by: Option<usize>) {
        self.flights.push(Flight { record, awaited_by });
    }

    fn send(&mut self, writer: usize, parts: u32) {
        let Some(owned) = &mut self.writers[writer].owned else { return };
        let record = owned.rest.take().unwrap_or_else(|| {
            let mut counter = Counter::new();
            let counted = read(&self.log[..owned.known as usize], &mut counter, 0);
            let input = counted.len() as u64;
            let (term, sequence) = (owned.term, counter.next_sequence().0);
            let part = |index| Record::Batch { term, sequence, part: Some(index), input };
            if parts == 1 {
                return Record::Batch { term, sequence, part: None, input };
            }
            owned.rest = Some(part(1));
            part(0)
        });
        self.writers[writer].waits = true;
        self.fly(record, Some(writer));
    }

    fn arrive(&mut self, flight: usize, twice: bool) {
        let Flight { record, awaited_by } = self.flights.remove(flight);
        let offset = self.log.len() as u64;
        self.log.push(record);
        if let Some(writer) = awaited_by {
            self.writers[writer].acknowledged = Some(offset);
        }
        if twice {
            self.fly(record, None);
        }
    }

    /// The writer's rule: its record at `offset` is in the log, so everything up to there is folded, and that says what counts.
    fn acknowledge(&mut self, writer: usize) {
        let Some(offset) = self.writers[writer].acknowledged.take() else { return };
        self.writers[writer].waits = false;
        let record = self.log[offset as usize];
        let Record::Batch { term, sequence, part, input } = record else {
            self.writers[writer].owned = Some(Owned { term: offset, known: offset + 1, rest: None });
            return;
        };
        let Some(owned) = &mut self.writers[writer].owned else { return };
        let mut counter = Counter::new();
        read(&self.log[..owned.known as usize], &mut counter, 0);
        if offset == owned.known {
            // Nobody came between: its own record is all there is to fold.
            counter.offer(Offset(offset), record.event());
        } else {
            read(&self.log[..=offset as usize], &mut counter, owned.known as usize);
        }
        owned.known = offset + 1;
        let counted = counter.counted(Term(term), Sequence(sequence));
        if counter.term() != Some(Term(term)) {
            self.denied.insert((term, sequence), input);
            self.writers[writer].owned = None;
            self.stood_down = true;
        } else if counted {
            self.believed.insert((term, sequence), input);
        } else if part != Some(0) {
            unreachable!("the last record of a batch in force neither counts nor is silenced");
        }
    }

    fn forget(&mut self, writer: usize) {
        self.writers[writer] = Writer::default();
        for flight in &mut self.flights {
            flight.awaited_by = flight.awaited_by.filter(|waits| *waits != writer);
        }
    }

    /// One of the equal states, so that each is explored once: which writer is which does not matter, nor the order of flights.
    fn representative(mut self) -> Self {
        if self.writers[0] > self.writers[1] {
            self.writers.swap(0, 1);
            self.flights.iter_mut().for_each(|flight| flight.awaited_by = flight.awaited_by.map(|writer| 1 - writer));
        }
        self.flights.sort_unstable();
        self
    }

    fn counted(&self) -> Vec<Counted> {
        read(&self.log, &mut Counter::new(), 0)
    }
}

impl Model for Case {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::default()]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for (writer, of) in world.writers.iter().enumerate() {
            let room = world.flights.len() < self.flights_max;
            match (&of.owned, of.waits) {
                (None, false) if room && world.claims() < self.claims_max => actions.push(Action::Claim { writer }),
                (Some(owned), false) if room && owned.rest.is_some() => actions.push(Action::Send { writer, parts: 1 }),
                (Some(_), false) if room => {
                    actions.extend([Action::Send { writer, parts: 1 }, Action::Send { writer, parts: PARTS }]);
                }
                _ => {}
            }
            if of.acknowledged.is_some() {
                actions.push(Action::Acknowledge { writer });
            }
            if of.owned.is_some() || of.waits {
                actions.push(Action::Forget { writer });
            }
        }
        for flight in 0..world.flights.len() {
            if world.log.len() < self.log_len_max {
                actions.push(Action::Arrive { flight, twice: false });
                if world.flights.len() < self.flights_max {
                    actions.push(Action::Arrive { flight, twice: true });
                }
            }
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut world = world.clone();
        match action {
            Action::Claim { writer } => {
                world.writers[writer].waits = true;
                world.fly(Record::Claim, Some(writer));
            }
            Action::Send { writer, parts } => world.send(writer, parts),
            Action::Arrive { flight, twice } => world.arrive(flight, twice),
            Action::Acknowledge { writer } => world.acknowledge(writer),
            Action::Forget { writer } => world.forget(writer),
        }
        Some(world.representative())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("all readers agree, wherever they begin", |_, world: &World| {
                (0..=world.log.len()).all(|cut| {
                    let mut first = Counter::new();
                    let mut counted = read(&world.log[..cut], &mut first, 0);
                    let mut second = match first.term() {
                        Some(term) if !first.incomplete() => Counter::resume(term, first.next_sequence()),
                        _ => first,
                    };
                    counted.extend(read(&world.log, &mut second, cut));
                    counted == world.counted()
                })
            }),
            Property::always("nothing of a superseded term counts after the newer claim", |_, world: &World| {
                world.counted().iter().all(|batch| {
                    let before = &world.log[..batch.offset as usize];
                    let claim = before.iter().rposition(|record| *record == Record::Claim);
                    claim == Some(batch.term as usize)
                })
            }),
            Property::always("what was acknowledged and counted never un-counts", |_, world: &World| {
                let counted = world.counted();
                world.believed.iter().all(|(&(term, sequence), &input)| {
                    counted.iter().any(|b| (b.term, b.sequence, b.input) == (term, sequence, input))
                })
            }),
            Property::always("what its writer found silenced counts for nobody", |_, world: &World| {
                let counted = world.counted();
                world.denied.keys().all(|place| counted.iter().all(|b| (b.term, b.sequence) != *place))
            }),
            Property::always("every input has one effect, in order", |_, world: &World| {
                world.counted().iter().map(|batch| batch.input).eq(0..world.counted().len() as u64)
            }),
            Property::sometimes("batches of two terms count", |_, world: &World| {
                let counted = world.counted();
                counted.first().map(|batch| batch.term) != counted.last().map(|batch| batch.term)
            }),
            Property::sometimes("a batch in parts counts", |_, world: &World| {
                world
                    .counted()
                    .iter()
                    .any(|b| matches!(world.log[b.offset as usize], Record::Batch { part: Some(1), .. }))
            }),
            Property::sometimes("a writer stands down", |_, world: &World| world.stood_down),
            Property::sometimes("parts are cut off by a claim", |_, world: &World| {
                let cut = |pair: &[Record]| matches!(pair, [Record::Batch { part: Some(0), .. }, Record::Claim]);
                world.log.windows(2).any(cut)
            }),
        ]
    }
}

#[test]
fn two_controllers_on_one_log() {
    explore(
        "two controllers, three claims, a log of six records",
        Case { log_len_max: 6, claims_max: 3, flights_max: 3 },
    );
}
