//! How answers of the API read as sentences and words. What they hold is `gateway-api`'s; `--output json` passes answers on untouched and does not come through here.

use crate::sentences::counted;
pub use gateway_api::{
    DamagedCheckpoint, ExitCause, Fleet, GrowthPaused, Job, LossNotice, LostMember, Metrics, Outcome, Progress,
    Restart, Slot, SlowLink, Speed, Stall, Straggler, TypeTime, UnreadableCheckpoint, WaitCause,
};
use gateway_api::{GrowthFailure, RestartCause, StallCause, StallRemedy, StragglerCause, Word};
use serde::Serialize;
use serde_json::Value;

/// What a person reads.
pub trait Sentence {
    /// As a person reads it.
    fn sentence(&self) -> String;
}

impl Sentence for Stall {
    fn sentence(&self) -> String {
        let cause = match &self.cause {
            Word::Known(StallCause::Peers) => "its executors waited for each other",
            Word::Known(StallCause::Unit) => "an executor did not get done with its part",
            Word::Known(StallCause::Bytes) => "a copy did not arrive, or far too slowly",
            Word::Known(StallCause::Store) => "the object store did not answer",
            Word::Other(cause) => cause,
        };
        let done = match self.tried.last() {
            Some(Word::Known(StallRemedy::Wait)) => "it goes on by itself when the store answers",
            Some(Word::Known(StallRemedy::Round)) => "its executors came together anew",
            Some(Word::Known(StallRemedy::WithoutBlamed)) => "it goes on without whoever held it up",
            Some(Word::Known(StallRemedy::Restart)) => "it went back to its last checkpoint",
            Some(Word::Known(StallRemedy::Suspend)) => "it was suspended: mend what it waited for, then `ebb resume`",
            Some(Word::Known(StallRemedy::Fail)) => "it failed",
            Some(Word::Other(remedy)) => remedy,
            None => "nothing was done",
        };
        format!("no progress at step {} ({}): {cause}; {done}", self.step, self.at)
    }
}

impl Sentence for LostMember {
    fn sentence(&self) -> String {
        format!("lost {} on {} ({}): {}", self.executor, self.slot, self.at, self.noticed.sentence())
    }
}

impl Sentence for LossNotice {
    fn sentence(&self) -> String {
        match self {
            LossNotice::Silence => "it said nothing for seconds and was killed".to_owned(),
            LossNotice::Lease => "nothing was heard of its server".to_owned(),
            LossNotice::Agent => "the agent of its server was started anew".to_owned(),
            LossNotice::Link => "the others could not reach it".to_owned(),
            LossNotice::Exit(ExitCause::Failed(why)) => why.clone(),
            LossNotice::Exit(cause) => format!("its process ended, {}", words(cause)),
            LossNotice::Stall(_) => "it held up the others".to_owned(),
            LossNotice::Other(how) => words(how),
        }
    }
}

impl Sentence for Restart {
    fn sentence(&self) -> String {
        let who = self.executors.join(", ");
        let why = match &self.cause {
            Word::Known(RestartCause::Lost) => {
                let how = self.noticed.as_ref().map(|noticed| format!(" ({})", noticed.sentence())).unwrap_or_default();
                format!("{who} was lost{how}, and nobody that was to stay had the replica")
            }
            Word::Known(RestartCause::Left) => "its slots changed, and whoever had the replica had to leave".to_owned(),
            Word::Known(RestartCause::Stalled) if who.is_empty() => "it did not get past a step".to_owned(),
            Word::Known(RestartCause::Stalled) => format!("it did not get past a step, held up by {who}"),
            Word::Known(RestartCause::Differed) if who.is_empty() => "its members had different replicas".to_owned(),
            Word::Known(RestartCause::Differed) => format!("{who} had another replica than the others"),
            Word::Other(cause) => cause.clone(),
        };
        format!("went back to step {} ({}): {why}", self.from_step, self.at)
    }
}

impl Sentence for WaitCause {
    fn sentence(&self) -> String {
        match self {
            WaitCause::Slots { missing } => format!("{missing} more slots, which others have"),
            WaitCause::Job(job) => format!("{job}, which goes first"),
            WaitCause::Resume => "its user (`ebb resume`)".to_owned(),
            WaitCause::Offers => "slots to be lent".to_owned(),
            WaitCause::Device => "a slot with a device, and no fleet has one".to_owned(),
            WaitCause::Class(class) => {
                format!("a slot of its numeric class ({}): what is lent is of another one", short(class))
            }
            WaitCause::Speed => "nothing: on more slots it was measured to be no faster".to_owned(),
            WaitCause::Type => {
                "a slot of the type that it is on: what else is lent is of another one (`types: any` in its file lets it be on several)".to_owned()
            }
            WaitCause::Quota { missing } => format!("{missing} more slots of its tenant's quota"),
            WaitCause::Link(link) => format!("a server with a faster link: {}", slow_link(link)),
            WaitCause::Backoff { until } => format!("{until}: its executors failed again and again"),
            other @ WaitCause::Other(_) => words(other),
        }
    }
}

/// What one rank's gradient takes a job on a type.
impl Sentence for TypeTime {
    fn sentence(&self) -> String {
        format!("{} µs on {}", self.unit_us, self.slot_type.as_deref().unwrap_or("servers without a type"))
    }
}

/// What a step takes a job on so many slots.
impl Sentence for Speed {
    fn sentence(&self) -> String {
        let sure = self.error_micro.map(|micro| format!(" ± {}", percent(micro))).unwrap_or_default();
        format!("{} µs{sure} on {}", self.step_us, counted(&self.slots.into(), "slot"))
    }
}

/// How large a part is.
pub fn percent(micro: u32) -> String {
    format!("{:.1} %", f64::from(micro) / 1e4)
}

/// Of a link that would slow each step of a job.
pub fn slow_link(link: &SlowLink) -> String {
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let (carries, needed) = (megabytes(link.bytes_per_s), megabytes(link.gradient_bytes_per_s));
    format!(
        "its steps make {needed:.1} MB of gradients a second, and the link of {} carries {carries:.1} MB/s (β {:.2}, and more than 1.10 is needed), \
         so an executor there would slow each step to its link. A link of {:.1} MB/s would do, or longer steps (a larger batch_size)",
        link.server,
        link.beta_milli as f64 / 1e3,
        needed * 1.1
    )
}

impl Sentence for GrowthPaused {
    fn sentence(&self) -> String {
        let why = match &self.cause {
            Word::Known(GrowthFailure::Lost) => "was lost before it held the replica",
            Word::Known(GrowthFailure::Late) => "was not ready in time",
            Word::Known(GrowthFailure::Slow) => "was sent the replica far too slowly",
            Word::Other(cause) => cause,
        };
        format!("does not grow until {}: {} {why}", self.until, self.executor)
    }
}

impl Sentence for Straggler {
    fn sentence(&self) -> String {
        let why = match &self.cause {
            Some(Word::Known(StragglerCause::Network)) => {
                let (executor, slot, step_us, before_us) =
                    (&self.executor, &self.slot, self.unit_us, self.peers_unit_us);
                return format!(
                    "{executor} on {slot} straggles: steps take {step_us} µs instead of {before_us} µs, because its link became slow"
                );
            }
            None => String::new(),
            Some(Word::Known(StragglerCause::Compute)) => ", because it computes more slowly".to_owned(),
            Some(Word::Known(StragglerCause::Data)) => ", because it waits for rows".to_owned(),
            Some(Word::Other(cause)) => format!(" ({cause})"),
        };
        format!(
            "{} on {} straggles: {} µs for what takes the others {} µs{why}",
            self.executor, self.slot, self.unit_us, self.peers_unit_us
        )
    }
}

impl Sentence for DamagedCheckpoint {
    fn sentence(&self) -> String {
        let instead = match self.instead {
            0 => "the job begins anew".to_owned(),
            step => format!("the checkpoint of step {step} is used instead"),
        };
        format!("the checkpoint of step {} is damaged ({}), so {instead}", self.step, self.reason)
    }
}

impl Sentence for UnreadableCheckpoint {
    fn sentence(&self) -> String {
        format!(
            "suspended, because the checkpoint of step {} needs another build: {}; then `ebb resume`",
            self.step, self.reason
        )
    }
}

/// A short word for a value that is a word, or an object with one key that is one (`{"slots": {"missing": 2}}`).
#[must_use]
pub fn words(value: &impl Serialize) -> String {
    // What answers hold is always JSON.
    words_of(&serde_json::to_value(value).unwrap_or(Value::Null))
}

/// Of a digest what `ebb slots` shows of one.
pub fn short(text: &str) -> &str {
    const SHOWN: usize = 12;
    if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) { &text[..SHOWN] } else { text }
}

fn words_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        // A sentence stays as it is: it may name a field.
        Value::String(text) if text.contains(' ') => text.clone(),
        Value::String(text) => short(text).replace('_', " "),
        Value::Object(map) => map
            .iter()
            .map(|(key, inner)| {
                let inner = words_of(inner);
                if inner.is_empty() { key.replace('_', " ") } else { format!("{} {inner}", key.replace('_', " ")) }
            })
            .collect::<Vec<_>>()
            .join(", "),
        Value::Array(items) => items.iter().map(words_of).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_job_waits_for_ends_a_sentence() {
        assert_eq!(WaitCause::Slots { missing: 2 }.sentence(), "2 more slots, which others have");
        assert_eq!(WaitCause::Offers.sentence(), "slots to be lent");
        assert_eq!(WaitCause::Other(json!({"moon": "full"})).sentence(), "moon full");
    }

    #[test]
    fn a_measured_speed_says_how_sure_it_is_where_that_is_known() {
        let speed = |slots, error_micro| Speed { slots, step_us: 17_600, error_micro, updates: Some(9) }.sentence();
        assert_eq!(speed(2, Some(31_400)), "17600 µs ± 3.1 % on 2 slots");
        assert_eq!(speed(1, None), "17600 µs on 1 slot");
    }

    #[test]
    fn reasons_read_as_words() {
        assert_eq!(words(&json!("gave_way")), "gave way");
        assert_eq!(words(&json!({"slots": {"missing": 2}})), "slots missing 2");
        assert_eq!(words(&json!({"class": "ab".repeat(32)})), "class abababababab");
        assert_eq!(words(&json!(null)), "");
        assert_eq!(words(&json!("more than memory_limit_mib")), "more than memory_limit_mib");
    }
}
