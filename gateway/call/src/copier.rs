//! Fleets' own topics: what of them is published as demand, under which number, and up to where a topic is done with.
//!
//! A topic alone names its fleet. What stands in it goes the way of a signal over HTTP; only its number and its pace are decided here:
//!
//! - **Number.** A signal without one is numbered by its record's time in milliseconds, or by one more than the record before it, if
//!   that is higher. The place that is kept with the topic holds the last number, so a record that is read again after a crash has the
//!   number it had, and a number counts once.
//! - **Newest only.** Of what was read while a signal is published, or while nobody read, only the highest number is published. So a
//!   flood costs its fleet its intermediate signals, and nobody else anything: of one fleet one signal is on its way, and
//!   [`SIGNAL_PAUSE_MS`] lie between two.
//! - **Refusals.** What cannot be used changes nothing, and is told once in [`TELL_PAUSE_MS`] with how many there were.
//! - **Place.** It is kept once everything before it has been published, overtaken or told.
//!
//! Pure: no clock, no topic, no log. The gateway's shell (`gateway/src/copying.rs`) performs each [`CopyOut`] and says what came of it.

use events_schema::command::Needs;
use events_schema::{FleetId, Offset, TimeMs};
use std::collections::BTreeMap;

/// From the end of one publication of a fleet to the next: ten a second are more than slots can follow, and bound what a fleet writes
/// into a log that is kept for ever.
pub const SIGNAL_PAUSE_MS: u64 = 100;
/// From one telling of refused signals to the next, for the same reason: each is kept for ever and read by people.
pub const TELL_PAUSE_MS: u64 = 10_000;
/// Pauses after a publication that the log did not take: it is noticed soon when it is back, and not asked in a loop meanwhile.
const RETRY_PAUSE_MS_MIN: u64 = 100;
const RETRY_PAUSE_MS_MAX: u64 = 5_000;
/// Time for what stood in a topic when it was opened to be read, before the newest of it is published. Its end may be at an offset that
/// belongs to no record, so it need not be reached.
const BACKLOG_WAIT_MS: u64 = 5_000;

/// Up to where a topic is done with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TopicPlace {
    /// The first offset that is not.
    pub next: Offset,
    /// The number of the last signal before it.
    pub number: Option<u64>,
}

/// What a record says, by the rules of HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicSignal {
    /// Its number, if its publisher gave one.
    pub sequence: Option<u64>,
    /// What it needs.
    pub needs: Needs,
}

/// What the machine is told of a fleet's topic.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum CopyIn {
    /// It is read from this place on; `end` was its end just then.
    Opened {
        /// As it was kept.
        place: TopicPlace,
        /// The first offset not yet written.
        end: Offset,
    },
    /// It is not read any more.
    Closed,
    /// One record of it.
    Read {
        /// Where it stands.
        offset: Offset,
        /// Its time, if it has one.
        at: Option<TimeMs>,
        /// What it says, or what is wrong with it.
        signal: Result<TopicSignal, String>,
    },
    /// What came of a [`CopyOut::Publish`].
    Published {
        sequence: u64,
        /// What came of it.
        outcome: Published,
    },
    /// A [`CopyOut::Tell`] was recorded, or not.
    Told {
        /// Which: its `offset`.
        offset: Offset,
        /// Whether it was.
        recorded: bool,
    },
    /// It is as late as [`CopyOut::WakeAt`] said, or later.
    Wake,
}

/// What came of a publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Published {
    /// It is durable.
    Done,
    /// It is too old, or cannot be taken at all: why, and what would be right.
    Refused(String),
    /// Nobody knows whether it is recorded, or it is not: it may be published again.
    Again,
}

/// What the machine wants done for a fleet.
#[derive(Debug, Clone, PartialEq)]
pub enum CopyOut {
    /// Publish this signal and say what came of it.
    Publish {
        /// Its number.
        sequence: u64,
        /// What it needs.
        needs: Needs,
    },
    /// Record that signals could not be used, and say whether that was done.
    Tell {
        /// Where the newest of them stands.
        offset: Offset,
        /// How many.
        count: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// Keep this place.
    Keep(TopicPlace),
    /// Say [`CopyIn::Wake`] for this fleet then; an earlier wish for it is void.
    WakeAt(TimeMs),
}

/// A signal that waits to be published.
#[derive(Debug, Clone)]
struct Pending {
    offset: Offset,
    sequence: u64,
    needs: Needs,
    /// Whether the number is its publisher's.
    numbered: bool,
}

/// Signals that could not be used and of which nobody was told yet.
#[derive(Debug, Clone)]
struct Unusable {
    offset: Offset,
    count: u64,
    reason: String,
}

#[derive(Debug)]
enum Flight {
    Signal(Pending),
    Telling(Unusable),
}

impl Flight {
    fn is_signal(&self, sequence: u64) -> bool {
        matches!(self, Self::Signal(pending) if pending.sequence == sequence)
    }

    fn is_telling(&self, offset: Offset) -> bool {
        matches!(self, Self::Telling(unusable) if unusable.offset == offset)
    }
}

#[derive(Debug)]
struct Topic {
    /// Behind what was read.
    read: TopicPlace,
    /// As it was last kept.
    kept: Offset,
    /// What is below it stood there before anybody read.
    backlog_end: Offset,
    backlog_until: TimeMs,
    pending: Option<Pending>,
    unusable: Option<Unusable>,
    flight: Option<Flight>,
    /// Behind what had been read when the flight began.
    covered: TopicPlace,
    /// To be kept: everything before it is done with.
    done: Option<TopicPlace>,
    /// No publication before this.
    quiet_until: TimeMs,
    /// No telling before this.
    told_until: TimeMs,
    retry_pause_ms: u64,
}

/// All topics. Time is the caller's and must not go back.
#[derive(Debug, Default)]
pub struct Copier {
    topics: BTreeMap<FleetId, Topic>,
}

impl Copier {
    /// Takes in what happened to a fleet's topic.
    pub fn handle(&mut self, now: TimeMs, fleet: &FleetId, input: CopyIn) -> Vec<CopyOut> {
        match input {
            CopyIn::Opened { place, end } => {
                // What is on its way for the topic as it was before comes to its end all the same, and is then of nobody.
                self.topics.insert(fleet.clone(), Topic::opened(now, place, end));
                Vec::new()
            }
            CopyIn::Closed => {
                self.topics.remove(fleet);
                Vec::new()
            }
            input => {
                let Some(topic) = self.topics.get_mut(fleet) else { return Vec::new() };
                topic.handle(now, input);
                topic.next(now)
            }
        }
    }
}

impl Topic {
    fn opened(now: TimeMs, place: TopicPlace, end: Offset) -> Self {
        Self {
            read: place,
            kept: place.next,
            backlog_end: end,
            backlog_until: now.plus_ms(BACKLOG_WAIT_MS),
            pending: None,
            unusable: None,
            flight: None,
            covered: place,
            done: None,
            quiet_until: now,
            told_until: now,
            retry_pause_ms: RETRY_PAUSE_MS_MIN,
        }
    }

    fn handle(&mut self, now: TimeMs, input: CopyIn) {
        match input {
            CopyIn::Read { offset, at, signal } => self.take(offset, at, signal),
            CopyIn::Published { sequence, outcome } => self.published(now, sequence, outcome),
            CopyIn::Told { offset, recorded } => self.told(now, offset, recorded),
            CopyIn::Opened { .. } | CopyIn::Closed | CopyIn::Wake => {}
        }
    }

    fn take(&mut self, offset: Offset, at: Option<TimeMs>, signal: Result<TopicSignal, String>) {
        self.read.next = offset.next();
        match signal {
            Err(reason) => self.unusable(offset, 1, reason),
            Ok(signal) => {
                let after_last = self.read.number.map_or(0, |number| number.saturating_add(1));
                let minted = at.map_or(0, |at| at.0).max(after_last);
                let sequence = signal.sequence.unwrap_or(minted);
                self.read.number = Some(self.read.number.map_or(sequence, |number| number.max(sequence)));
                let pending = Pending { offset, sequence, needs: signal.needs, numbered: signal.sequence.is_some() };
                match self.pending.as_ref().map(|newer| newer.sequence) {
                    Some(newer) if newer >= sequence => self.overtaken(&pending, newer),
                    _ => self.pending = Some(pending),
                }
            }
        }
    }

    /// A signal that comes behind one with its number or a higher one.
    fn overtaken(&mut self, old: &Pending, by: u64) {
        self.too_old(
            old,
            format!("signal {} comes after {by}, which is newer; give each signal a higher `sequence`", old.sequence),
        );
    }

    /// What stood there before anybody read was perhaps published already, before a crash. And a number that we gave is no mistake
    /// of its publisher.
    fn too_old(&mut self, old: &Pending, reason: String) {
        if old.numbered && old.offset >= self.backlog_end {
            self.unusable(old.offset, 1, reason);
        }
    }

    fn unusable(&mut self, offset: Offset, count: u64, reason: String) {
        let before = self.unusable.take().map_or(0, |unusable| unusable.count);
        self.unusable = Some(Unusable { offset, count: before.saturating_add(count), reason });
    }

    fn published(&mut self, now: TimeMs, sequence: u64, outcome: Published) {
        // What was on its way for the topic as it was before it was opened anew says nothing of what is on its way now.
        let Some(Flight::Signal(pending)) = self.flight.take_if(|flight| flight.is_signal(sequence)) else { return };
        match outcome {
            Published::Again => {
                self.quiet_until = now.plus_ms(self.retry_pause_ms);
                self.retry_pause_ms = (self.retry_pause_ms * 2).min(RETRY_PAUSE_MS_MAX);
                if self.pending.as_ref().is_none_or(|newer| newer.sequence < pending.sequence) {
                    self.pending = Some(pending);
                }
                return;
            }
            Published::Done => {}
            Published::Refused(reason) => self.too_old(&pending, reason),
        }
        self.quiet_until = now.plus_ms(SIGNAL_PAUSE_MS);
        self.retry_pause_ms = RETRY_PAUSE_MS_MIN;
        // A refusal that was not told yet may be lost with this process: it changed nothing, and a topic that always holds one must
        // not be read from its beginning again for it.
        self.done = Some(self.covered);
    }

    fn told(&mut self, now: TimeMs, offset: Offset, recorded: bool) {
        let Some(Flight::Telling(unusable)) = self.flight.take_if(|flight| flight.is_telling(offset)) else { return };
        self.told_until = now.plus_ms(if recorded { TELL_PAUSE_MS } else { RETRY_PAUSE_MS_MAX });
        if !recorded {
            match &mut self.unusable {
                Some(newer) => newer.count = newer.count.saturating_add(unusable.count),
                None => self.unusable = Some(unusable),
            }
        } else if self.pending.is_none() {
            self.done = Some(self.covered);
        }
    }

    /// What is to be done next.
    fn next(&mut self, now: TimeMs) -> Vec<CopyOut> {
        let mut outs = Vec::new();
        let mut wake_at = None;
        if self.flight.is_none() {
            if let Some(from) = self.signal_from(now) {
                if now >= from {
                    outs.extend(self.publish());
                } else {
                    wake_at = Some(from);
                }
            }
            if self.flight.is_none() && self.unusable.is_some() {
                if now >= self.told_until {
                    outs.extend(self.tell());
                } else {
                    wake_at = Some(wake_at.map_or(self.told_until, |at| self.told_until.min(at)));
                }
            }
            if self.flight.is_none() && self.pending.is_none() && self.unusable.is_none() {
                self.done = Some(self.read);
            }
        }
        outs.extend(self.keep());
        outs.extend(wake_at.filter(|_| self.flight.is_none()).map(CopyOut::WakeAt));
        outs
    }

    /// From when on the waiting signal may be published.
    fn signal_from(&self, now: TimeMs) -> Option<TimeMs> {
        self.pending.as_ref()?;
        let read = if self.read.next < self.backlog_end { self.backlog_until } else { now };
        Some(read.max(self.quiet_until))
    }

    fn publish(&mut self) -> Option<CopyOut> {
        let pending = self.pending.take()?;
        self.covered = self.read;
        let publish = CopyOut::Publish { sequence: pending.sequence, needs: pending.needs.clone() };
        self.flight = Some(Flight::Signal(pending));
        Some(publish)
    }

    fn tell(&mut self) -> Option<CopyOut> {
        let unusable = self.unusable.take()?;
        self.covered = self.read;
        let Unusable { offset, count, reason } = unusable.clone();
        self.flight = Some(Flight::Telling(unusable));
        Some(CopyOut::Tell { offset, count, reason })
    }

    fn keep(&mut self) -> Option<CopyOut> {
        let place = self.done.take().filter(|place| place.next > self.kept)?;
        self.kept = place.next;
        Some(CopyOut::Keep(place))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::command::Demand;
    use proptest::prelude::*;

    fn fleet() -> FleetId {
        FleetId::parse("chat").unwrap()
    }

    fn record(offset: u64, at: u64, sequence: Option<u64>, needed: u32) -> CopyIn {
        let signal = Ok(TopicSignal { sequence, needs: Demand::Needed(needed).into() });
        CopyIn::Read { offset: Offset(offset), at: Some(TimeMs(at)), signal }
    }

    fn opened(copier: &mut Copier, now: u64, next: u64, number: Option<u64>, end: u64) {
        let place = TopicPlace { next: Offset(next), number };
        assert!(copier.handle(TimeMs(now), &fleet(), CopyIn::Opened { place, end: Offset(end) }).is_empty());
    }

    fn publish(sequence: u64, needed: u32) -> CopyOut {
        CopyOut::Publish { sequence, needs: Demand::Needed(needed).into() }
    }

    fn came(sequence: u64, outcome: Published) -> CopyIn {
        CopyIn::Published { sequence, outcome }
    }

    fn told(offset: u64, recorded: bool) -> CopyIn {
        CopyIn::Told { offset: Offset(offset), recorded }
    }

    fn keep(next: u64, number: u64) -> CopyOut {
        CopyOut::Keep(TopicPlace { next: Offset(next), number: Some(number) })
    }

    #[test]
    fn of_what_stood_there_only_the_newest_is_published_and_then_the_place_is_kept() {
        let mut copier = Copier::default();
        opened(&mut copier, 0, 0, None, 3);
        assert_eq!(
            copier.handle(TimeMs(1), &fleet(), record(0, 700, None, 4)),
            [CopyOut::WakeAt(TimeMs(BACKLOG_WAIT_MS))]
        );
        copier.handle(TimeMs(1), &fleet(), record(1, 700, None, 0));
        assert_eq!(copier.handle(TimeMs(1), &fleet(), record(2, 650, None, 2)), [publish(702, 2)]);
        let done = copier.handle(TimeMs(5), &fleet(), came(702, Published::Done));
        assert_eq!(done, [keep(3, 702)]);
    }

    /// The word about it once ended the flight of another signal, of which nothing was known, and its place was kept.
    #[test]
    fn what_was_on_its_way_before_a_topic_was_opened_anew_is_of_nobody() {
        let mut copier = Copier::default();
        opened(&mut copier, 0, 0, None, 0);
        assert_eq!(copier.handle(TimeMs(1), &fleet(), record(0, 50, None, 1)), [publish(50, 1)]);
        copier.handle(TimeMs(2), &fleet(), CopyIn::Closed);
        opened(&mut copier, 3, 0, None, 0);
        assert_eq!(copier.handle(TimeMs(4), &fleet(), record(0, 60, None, 2)), [publish(60, 2)]);
        assert_eq!(copier.handle(TimeMs(5), &fleet(), came(50, Published::Done)), []);
        assert_eq!(copier.handle(TimeMs(6), &fleet(), told(0, true)), []);
        assert_eq!(copier.handle(TimeMs(7), &fleet(), came(60, Published::Done)), [keep(1, 60)]);
    }

    #[test]
    fn an_end_that_is_no_record_is_not_waited_for_for_ever() {
        let mut copier = Copier::default();
        opened(&mut copier, 0, 0, None, 2);
        copier.handle(TimeMs(1), &fleet(), record(0, 700, None, 4));
        assert_eq!(copier.handle(TimeMs(BACKLOG_WAIT_MS), &fleet(), CopyIn::Wake), [publish(700, 4)]);
    }

    #[test]
    fn a_flood_is_one_signal_at_a_time_and_each_pause_one_more() {
        let mut copier = Copier::default();
        opened(&mut copier, 0, 0, None, 0);
        let mut published = 0;
        for offset in 0..1_000 {
            let outs = copier.handle(TimeMs(offset), &fleet(), record(offset, 10_000, None, (offset % 7) as u32));
            published += outs.iter().filter(|out| matches!(out, CopyOut::Publish { .. })).count();
            if !outs.is_empty() && matches!(outs[0], CopyOut::Publish { .. }) {
                let CopyOut::Publish { sequence, .. } = outs[0] else { unreachable!() };
                copier.handle(TimeMs(offset), &fleet(), came(sequence, Published::Done));
            }
        }
        assert_eq!(published, 10);
    }

    #[test]
    fn what_cannot_be_used_is_told_once_in_a_while_with_its_number() {
        let mut copier = Copier::default();
        opened(&mut copier, 0, 0, None, 0);
        let wrong = |offset| CopyIn::Read { offset: Offset(offset), at: None, signal: Err(format!("wrong {offset}")) };
        let tell = |offset, count| CopyOut::Tell { offset: Offset(offset), count, reason: format!("wrong {offset}") };
        assert_eq!(copier.handle(TimeMs(0), &fleet(), wrong(0)), [tell(0, 1)]);
        let place = TopicPlace { next: Offset(1), number: None };
        assert_eq!(copier.handle(TimeMs(1), &fleet(), told(0, true)), [CopyOut::Keep(place)]);
        let again = TimeMs(1 + TELL_PAUSE_MS);
        assert_eq!(copier.handle(TimeMs(2), &fleet(), wrong(1)), [CopyOut::WakeAt(again)]);
        copier.handle(TimeMs(3), &fleet(), wrong(2));
        assert_eq!(copier.handle(again, &fleet(), CopyIn::Wake), [tell(2, 2)]);
        assert_eq!(
            copier.handle(again, &fleet(), told(2, false)),
            [CopyOut::WakeAt(again.plus_ms(RETRY_PAUSE_MS_MAX))]
        );
    }

    #[test]
    fn an_old_number_of_its_publisher_is_told_and_one_of_ours_is_not() {
        let mut copier = Copier::default();
        opened(&mut copier, 0, 0, None, 0);
        assert_eq!(copier.handle(TimeMs(0), &fleet(), record(0, 0, Some(9), 1)), [publish(9, 1)]);
        let refused = copier.handle(TimeMs(1), &fleet(), came(9, Published::Refused("old".to_owned())));
        assert!(matches!(&refused[0], CopyOut::Tell { count: 1, reason, .. } if reason == "old"), "{refused:?}");
        copier.handle(TimeMs(2), &fleet(), told(0, true));
        assert_eq!(copier.handle(TimeMs(500), &fleet(), record(1, 0, None, 2)), [publish(10, 2)]);
        let refused = copier.handle(TimeMs(501), &fleet(), came(10, Published::Refused("old".to_owned())));
        assert_eq!(refused, [keep(2, 10)]);
    }

    #[test]
    fn what_the_log_did_not_take_is_published_again_unless_a_newer_one_came() {
        let mut copier = Copier::default();
        opened(&mut copier, 0, 0, None, 0);
        assert_eq!(copier.handle(TimeMs(0), &fleet(), record(0, 50, None, 1)), [publish(50, 1)]);
        let later = copier.handle(TimeMs(10), &fleet(), came(50, Published::Again));
        assert_eq!(later, [CopyOut::WakeAt(TimeMs(10 + RETRY_PAUSE_MS_MIN))]);
        assert_eq!(copier.handle(TimeMs(110), &fleet(), CopyIn::Wake), [publish(50, 1)]);
        copier.handle(TimeMs(111), &fleet(), record(1, 60, None, 3));
        copier.handle(TimeMs(112), &fleet(), came(50, Published::Again));
        assert_eq!(copier.handle(TimeMs(1_000), &fleet(), CopyIn::Wake), [publish(60, 3)]);
    }

    /// Signals as the controller takes them.
    #[derive(Default)]
    struct Taken(Option<(u64, Demand)>);

    impl Taken {
        fn take(&mut self, sequence: u64, demand: Demand) {
            if self.0.is_none_or(|(taken, _)| sequence > taken) {
                self.0 = Some((sequence, demand));
            }
        }
    }

    proptest! {
        /// Whenever the gateway is killed, and wherever it finds its place again: in the end counts what counts without that.
        #[test]
        fn crashes_neither_lose_nor_double(
            records in prop::collection::vec((prop::option::of(0..40u64), 0..40u64, 0..5u32), 1..30),
            crashes in prop::collection::vec(0..100usize, 0..6),
        ) {
            let whole = run(&records, &[]);
            prop_assert_eq!(run(&records, &crashes), whole);
        }
    }

    fn run(records: &[(Option<u64>, u64, u32)], crashes: &[usize]) -> Option<(u64, Demand)> {
        let (mut taken, mut kept, mut steps) = (Taken::default(), TopicPlace::default(), 0);
        let mut now = 0;
        let mut crashes: Vec<usize> = crashes.to_vec();
        crashes.sort_unstable_by(|a, b| b.cmp(a));
        'lives: loop {
            let mut copier = Copier::default();
            let end = Offset(records.len() as u64);
            copier.handle(TimeMs(now), &fleet(), CopyIn::Opened { place: kept, end });
            let mut inputs: Vec<CopyIn> = records
                .iter()
                .enumerate()
                .skip(kept.next.0 as usize)
                .map(|(offset, (sequence, at, needed))| record(offset as u64, *at, *sequence, *needed))
                .collect();
            inputs.push(CopyIn::Wake);
            for input in inputs {
                let mut open = vec![input];
                while let Some(input) = open.pop() {
                    steps += 1;
                    now += SIGNAL_PAUSE_MS;
                    for out in copier.handle(TimeMs(now), &fleet(), input) {
                        if crashes.last() == Some(&steps) {
                            crashes.pop();
                            continue 'lives;
                        }
                        match out {
                            CopyOut::Publish { sequence, needs } => {
                                taken.take(sequence, needs.demand);
                                open.push(came(sequence, Published::Done));
                            }
                            CopyOut::Tell { offset, .. } => open.push(told(offset.0, true)),
                            CopyOut::Keep(place) => kept = place,
                            CopyOut::WakeAt(_) => {}
                        }
                    }
                }
            }
            return taken.0;
        }
    }
}
