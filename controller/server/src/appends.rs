//! Since when the log is asked to take what is not acknowledged yet: from the first attempt, however often it refuses. A log that refuses
//! at once for a minute is one that took a minute. Measures nothing itself: time is an input.

use controller_cell::{AppendFailure, Attempt, Ticket};
use events_rule::Stream;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Records that are not acknowledged yet, by the last attempt at each.
#[derive(Debug, Default)]
pub(crate) struct Appends(BTreeMap<Ticket, (Stream, Instant)>);

impl Appends {
    /// A record goes to the log.
    pub fn asked(&mut self, ticket: Ticket, stream: Stream, attempt: Attempt, now: Instant) {
        let since = match attempt {
            Attempt::Again(before) => self.0.remove(&before).map_or(now, |(_, since)| since),
            Attempt::Decided | Attempt::First => {
                // Of `events` one is on its way at most: what was tried before it is not tried any more.
                if stream == Stream::Events {
                    self.0.retain(|_, (of, _)| *of != Stream::Events);
                }
                now
            }
        };
        self.0.insert(ticket, (stream, since));
    }

    /// The log has it; how long that took.
    pub fn acknowledged(&mut self, ticket: Ticket, now: Instant) -> Option<(Stream, Duration)> {
        self.0.remove(&ticket).map(|(stream, since)| (stream, now.duration_since(since)))
    }

    /// It is not known to have it. What may be tried again counts from its beginning.
    pub fn failed(&mut self, ticket: Ticket, failure: &AppendFailure) {
        match failure {
            AppendFailure::Unknown(_) | AppendFailure::Unavailable(_) => {}
            AppendFailure::TooLarge(_) | AppendFailure::Stopped(_) => drop(self.0.remove(&ticket)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> AppendFailure {
        AppendFailure::Unavailable("planned".to_owned())
    }

    #[test]
    fn an_append_is_measured_from_its_first_attempt() {
        let (mut appends, begun) = (Appends::default(), Instant::now());
        let at = |ms| begun + Duration::from_millis(ms);
        appends.asked(Ticket(1), Stream::Reports, Attempt::First, at(0));
        appends.asked(Ticket(2), Stream::Events, Attempt::Decided, at(10));
        for (ticket, before) in [(3, 2), (4, 3), (5, 4)] {
            appends.failed(Ticket(before), &refused());
            appends.asked(Ticket(ticket), Stream::Events, Attempt::Again(Ticket(before)), at(ticket * 20_000));
        }
        assert_eq!(appends.acknowledged(Ticket(5), at(100_010)), Some((Stream::Events, Duration::from_secs(100))));
        let report = appends.acknowledged(Ticket(1), at(40));
        assert_eq!(report, Some((Stream::Reports, Duration::from_millis(40))), "others are not touched");
    }

    #[test]
    fn nothing_is_kept_of_what_is_not_tried_again() {
        let (mut appends, now) = (Appends::default(), Instant::now());
        appends.asked(Ticket(1), Stream::Reports, Attempt::First, now);
        appends.failed(Ticket(1), &AppendFailure::TooLarge("planned".to_owned()));
        assert!(appends.0.is_empty());
        // Its outcome is unknown: the cell is claimed anew, and what was decided is dropped.
        appends.asked(Ticket(2), Stream::Events, Attempt::Decided, now);
        appends.failed(Ticket(2), &AppendFailure::Unknown("planned".to_owned()));
        appends.asked(Ticket(3), Stream::Events, Attempt::First, now);
        assert_eq!(appends.0.keys().copied().collect::<Vec<_>>(), [Ticket(3)]);
    }
}
