//! Pauses between attempts that may go on for ever: doubled from the first to the longest, with chance in each, so that many who lost
//! the same server do not all come back at once. It does not sleep; who tries does.

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use std::time::Duration;

/// The pauses of one row of attempts.
#[derive(Debug)]
pub struct Pauses {
    rule: ExponentialBuilder,
    row: ExponentialBackoff,
    longest: Duration,
}

impl Pauses {
    /// From `first` to `longest`.
    #[must_use]
    pub fn between(first: Duration, longest: Duration) -> Self {
        let rule =
            ExponentialBuilder::new().with_min_delay(first).with_max_delay(longest).with_jitter().without_max_times();
        Self { rule, row: rule.build(), longest }
    }

    /// How long to wait before the next attempt: never longer than the longest.
    pub fn after_failure(&mut self) -> Duration {
        self.row.next().map_or(self.longest, |pause| pause.min(self.longest))
    }

    /// An attempt went well: the next row begins with the first pause.
    pub fn succeeded(&mut self) {
        self.row = self.rule.build();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest_and_begin_anew_after_a_success() {
        let (first, longest) = (Duration::from_millis(10), Duration::from_millis(80));
        let mut pauses = Pauses::between(first, longest);
        let row: Vec<Duration> = (0..50).map(|_| pauses.after_failure()).collect();
        assert!(row.iter().all(|pause| (first..=longest).contains(pause)), "{row:?}");
        assert_eq!(row.last(), Some(&longest));
        assert!(row[0] < 2 * first);
        pauses.succeeded();
        assert!(pauses.after_failure() <= 2 * first);
    }
}
