//! What the demo shows: figures, and whether they are what Ebb promises.

use crate::story::Record;
use loadtest_harness::HarnessError;
use serde_json::{Value, json};
use std::time::Duration;

/// Share of the held-out digits that the model has to read right.
pub const ACCURACY_MIN: f64 = 0.96;

/// The demo's result.
#[derive(Debug, Clone)]
pub struct Verdict {
    record: Record,
    duration_s: f64,
}

/// From what was measured to the result.
#[must_use]
pub fn conclude(record: Record, duration: Duration) -> Verdict {
    Verdict { record, duration_s: duration.as_secs_f64() }
}

impl Verdict {
    fn accuracy(&self) -> f64 {
        self.record.elastic.metrics.as_ref().and_then(|m| m.accuracy).unwrap_or_default()
    }

    /// The result for programs.
    #[must_use]
    pub fn json(&self) -> Value {
        let r = &self.record;
        json!({
            "model_digest_elastic": r.elastic.model_digest,
            "model_digest_fixed": r.fixed.model_digest,
            "accuracy": self.accuracy(),
            "release_ms": r.releases.iter().map(|(_, ms)| round(*ms)).collect::<Vec<_>>(),
            "scale_out_pause_ms": r.scale_out_pause_ms,
            "scale_in_pause_ms": r.scale_in_pause_ms,
            "recovery_ms": r.recovery_ms.iter().map(|ms| round(*ms)).collect::<Vec<_>>(),
            "steps_lost": r.steps_lost,
            "duration_s": round(self.duration_s),
        })
    }

    /// The result for people: what, and how it is.
    #[must_use]
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let r = &self.record;
        let releases =
            |how: &str| list(&r.releases.iter().filter(|(by, _)| *by == how).map(|(_, ms)| *ms).collect::<Vec<_>>());
        let metrics = r.elastic.metrics.clone().unwrap_or_default();
        let same = if self.same_model() { "the same, bit for bit" } else { "DIFFERENT" };
        vec![
            ("model, elastic run", r.elastic.model_digest.clone()),
            ("model, fixed run", format!("{}\n                     {same}", r.fixed.model_digest)),
            ("accuracy", format!("{:.2} % of {} held-out digits", 100.0 * self.accuracy(), metrics.count)),
            (
                "slots free after",
                format!("{} (demand), {} (taken back at the agent)", releases("demand"), releases("take-back")),
            ),
            ("pauses", format!("{} growing, {} shrinking", list(&r.scale_out_pause_ms), list(&r.scale_in_pause_ms))),
            ("killed → going on", list(&r.recovery_ms)),
            ("steps lost", r.steps_lost.to_string()),
            ("duration", format!("{:.0} s", self.duration_s)),
        ]
    }

    fn same_model(&self) -> bool {
        let r = &self.record;
        !r.elastic.model_digest.is_empty() && r.elastic.model_digest == r.fixed.model_digest
    }

    /// An error naming every promise that was not kept.
    pub fn check(&self) -> Result<(), HarnessError> {
        let mut broken = Vec::new();
        if !self.same_model() {
            broken.push("the models differ".to_owned());
        }
        if self.accuracy() < ACCURACY_MIN {
            broken.push(format!("the accuracy is below {:.0} %", 100.0 * ACCURACY_MIN));
        }
        if self.record.steps_lost > 0 {
            broken.push(format!("{} steps were lost", self.record.steps_lost));
        }
        if broken.is_empty() {
            Ok(())
        } else {
            Err(HarnessError::plain(format!("the demo failed: {}", broken.join(", "))))
        }
    }
}

fn list(times_ms: &[f64]) -> String {
    match times_ms {
        [] => "none".to_owned(),
        times => {
            times
                .iter()
                .map(|ms| if *ms < 10.0 { format!("{ms:.1}") } else { format!("{ms:.0}") })
                .collect::<Vec<_>>()
                .join(", ")
                + " ms"
        }
    }
}

/// To a tenth: more digits are noise.
fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use gateway_api::{Metrics, Outcome};

    fn found(correct: u64) -> Metrics {
        Metrics { correct, count: 360, accuracy: Some(correct as f64 / 360.0), ..Metrics::default() }
    }

    fn record() -> Record {
        let outcome = Outcome { step: 1, model_digest: "a".into(), metrics: Some(found(350)), ..Outcome::default() };
        Record { elastic: outcome.clone(), fixed: outcome, releases: vec![("demand", 31.26)], ..Record::default() }
    }

    #[test]
    fn each_broken_promise_is_named() {
        conclude(record(), Duration::from_secs(60)).check().unwrap();
        let mut bad = record();
        bad.fixed.model_digest = "b".into();
        bad.elastic.metrics = Some(found(300));
        bad.steps_lost = 2;
        let text = conclude(bad, Duration::ZERO).check().unwrap_err().to_string();
        assert_eq!(text, "the demo failed: the models differ, the accuracy is below 96 %, 2 steps were lost");
    }

    #[test]
    fn two_runs_without_a_model_are_not_the_same_model() {
        let mut empty = record();
        empty.elastic.model_digest.clear();
        empty.fixed.model_digest.clear();
        assert!(conclude(empty, Duration::ZERO).check().is_err());
    }

    #[test]
    fn programs_get_every_named_field() {
        let json = conclude(record(), Duration::from_millis(61_230)).json();
        for name in [
            "model_digest_elastic",
            "model_digest_fixed",
            "accuracy",
            "release_ms",
            "scale_out_pause_ms",
            "steps_lost",
            "duration_s",
        ] {
            assert!(!json[name].is_null(), "{name}");
        }
        assert_eq!((json["release_ms"][0].as_f64(), json["duration_s"].as_f64()), (Some(31.3), Some(61.2)));
    }
}
