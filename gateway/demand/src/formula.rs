//! From metrics to slots. Each formula is stated once, computed as stated, and shown with its numbers.
//!
//! All of them come to a load in slots' work, and the need is ⌈load ÷ target⌉ + spare; or all slots, while requests take longer than they may.

use crate::answer::Sample;
use std::fmt::Write;

/// Whose metrics are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// `vllm:*` of vLLM's servers: requests that run and wait, and how full their caches are.
    Vllm,
    /// `nv_inference_*` of Triton's: requests that execute, by Little's law, and those that wait.
    Triton,
    /// `DCGM_FI_DEV_GPU_UTIL` of NVIDIA's exporter: how busy the fleet's own devices are.
    Dcgm,
}

/// A formula and its parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Formula {
    /// Whose metrics.
    pub source: Source,
    /// Label matchers that select the fleet's own series, as they stand between braces in PromQL; may be empty.
    pub selector: String,
    /// Requests at once that one slot serves well.
    pub requests_per_slot: f64,
    /// Slots of one vLLM engine (its tensor-parallel size).
    pub slots_per_engine: f64,
    /// Wanted load of a slot, above 0 and at most 1.
    pub target: f64,
    /// Over how many seconds the rates of counters are taken.
    pub window_s: u32,
    /// Slots beyond what the load needs.
    pub spare: u32,
    /// What 99 of 100 requests may take at most, if that is looked at; not of [`Source::Dcgm`], which knows of no requests.
    pub p99_limit_ms: Option<u64>,
}

/// A need of all slots, however many there are.
pub const ALL_SLOTS: u32 = u32::MAX;

/// One number that a formula wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// As the formula calls it.
    pub name: &'static str,
    /// Its query.
    pub query: String,
    /// The query for the time of its oldest sample.
    pub oldest: String,
    /// Whether there is no need without it.
    pub required: bool,
}

/// What was read of an input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// Its value.
    pub value: f64,
    /// How old its oldest sample is.
    pub age_ms: u64,
}

impl Reading {
    /// From an input's two answers.
    #[must_use]
    pub fn of(value: Sample, oldest: Sample) -> Self {
        let age_ms = ((value.at_s - oldest.value) * 1e3).max(0.0);
        // A float becomes the nearest integer there is.
        Self { value: value.value.max(0.0), age_ms: age_ms as u64 }
    }
}

impl Source {
    /// Its name, as `--metrics` takes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Triton => "triton",
            Self::Dcgm => "dcgm",
        }
    }
}

impl Formula {
    /// What it wants to know, in the order of [`Self::need`].
    #[must_use]
    pub fn inputs(&self) -> Vec<Input> {
        let mut inputs = self.load_inputs();
        inputs.extend(self.p99_limit_ms.and_then(|_| self.p99_input()));
        inputs
    }

    /// How long 99 of 100 requests take, in seconds.
    fn p99_input(&self) -> Option<Input> {
        let (name, required, selector) = ("p99", false, &self.selector);
        match self.source {
            Source::Vllm => {
                let series = format!("vllm:time_to_first_token_seconds_bucket{{{selector}}}");
                // Without requests there is no p99, and `> 0` makes of NaN no sample.
                let rates = format!("sum by (le) (rate({series}[{}s]))", self.window_s);
                let query = format!("histogram_quantile(0.99, {rates}) > 0");
                Some(Input { name, query, oldest: format!("min(timestamp({series}))"), required })
            }
            Source::Triton => {
                let and = if selector.is_empty() { "" } else { "," };
                let series = format!("nv_inference_request_summary_us{{{selector}{and}quantile=\"0.99\"}}");
                let query = format!("max({series}) / 1e6 > 0");
                Some(Input { name, query, oldest: format!("min(timestamp({series}))"), required })
            }
            Source::Dcgm => None,
        }
    }

    fn load_inputs(&self) -> Vec<Input> {
        let of = |metric: &str| format!("{metric}{{{}}}", self.selector);
        let gauge = |name, metrics: &[&str], required| {
            let series: Vec<String> = metrics.iter().map(|metric| of(metric)).collect();
            // Of each by itself: of an expression such as `a or b`, Prometheus gives the time of the evaluation.
            let times: Vec<String> = series.iter().map(|series| format!("timestamp({series})")).collect();
            let (query, oldest) = (format!("sum({})", series.join(" or ")), format!("min({})", times.join(" or ")));
            Input { name, query, oldest, required }
        };
        match self.source {
            Source::Vllm => vec![
                gauge("running", &["vllm:num_requests_running"], true),
                gauge("waiting", &["vllm:num_requests_waiting"], true),
                // vLLM renamed it; a fleet may run both.
                gauge("cache", &["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"], false),
            ],
            Source::Triton => {
                let counter = of("nv_inference_compute_infer_duration_us");
                let executing = Input {
                    name: "executing",
                    query: format!("sum(rate({counter}[{}s])) / 1e6", self.window_s),
                    oldest: format!("min(timestamp({counter}))"),
                    required: true,
                };
                vec![executing, gauge("waiting", &["nv_inference_pending_request_count"], false)]
            }
            Source::Dcgm => {
                let busy = of("DCGM_FI_DEV_GPU_UTIL");
                vec![Input {
                    name: "busy",
                    query: format!("sum({busy}) / 100"),
                    oldest: format!("min(timestamp({busy}))"),
                    required: true,
                }]
            }
        }
    }

    /// The load in slots' work, as a formula with names.
    #[must_use]
    pub fn stated(&self) -> &'static str {
        match self.source {
            Source::Vllm => "max((running + waiting) ÷ requests-per-slot, cache × slots-per-engine)",
            Source::Triton => "(executing + waiting) ÷ requests-per-slot",
            Source::Dcgm => "busy",
        }
    }

    /// The load in slots' work, from what [`Self::inputs`] gave; one that is missing and not required is 0.
    #[must_use]
    pub fn load(&self, readings: &[Option<Reading>]) -> f64 {
        let value = |index: usize| readings.get(index).copied().flatten().map_or(0.0, |reading| reading.value);
        match self.source {
            Source::Vllm => {
                let requests = (value(0) + value(1)) / self.requests_per_slot;
                requests.max(value(2) * self.slots_per_engine)
            }
            Source::Triton => (value(0) + value(1)) / self.requests_per_slot,
            Source::Dcgm => value(0),
        }
    }

    /// How long 99 of 100 requests take, in seconds, if that is longer than they may.
    #[must_use]
    pub fn too_slow_s(&self, readings: &[Option<Reading>]) -> Option<f64> {
        let limit_ms = self.p99_limit_ms?;
        let place = self.inputs().iter().position(|input| input.name == "p99")?;
        let p99_s = readings.get(place).copied().flatten()?.value;
        (p99_s * 1e3 > limit_ms as f64).then_some(p99_s)
    }

    /// The need in slots, or [`ALL_SLOTS`]; `None` if a required input is missing.
    #[must_use]
    pub fn need(&self, readings: &[Option<Reading>]) -> Option<u32> {
        let missing = self.inputs().iter().zip(readings).any(|(input, reading)| input.required && reading.is_none());
        if missing || readings.is_empty() {
            return None;
        }
        if self.too_slow_s(readings).is_some() {
            return Some(ALL_SLOTS);
        }
        /// So close above a whole number, it is that number: sums of floats are not exact.
        const SLACK: f64 = 1e-9;
        // A float becomes the nearest integer there is; the service counts no more than the fleet's slots.
        let slots = (self.load(readings) / self.target - SLACK).ceil().max(0.0) as u32;
        Some(slots.saturating_add(self.spare).min(ALL_SLOTS - 1))
    }

    /// How old the oldest sample of all is.
    #[must_use]
    pub fn age_ms(readings: &[Option<Reading>]) -> u64 {
        readings.iter().flatten().map(|reading| reading.age_ms).max().unwrap_or(0)
    }

    /// Queries, inputs, formula and result, for people.
    #[must_use]
    pub fn explained(&self, readings: &[Option<Reading>]) -> String {
        let mut text = String::new();
        for (input, reading) in self.inputs().iter().zip(readings) {
            let value = reading.map_or_else(
                || "no samples".to_owned(),
                |reading| format!("{:.3}, samples at most {:.1} s old", reading.value, reading.age_ms as f64 / 1e3),
            );
            let _ = writeln!(text, "{:<10} {value}\n           {}", input.name, input.query);
        }
        let load = self.load(readings);
        let _ = writeln!(text, "load       {} = {load:.3}", self.stated());
        if matches!(self.source, Source::Vllm | Source::Triton) {
            let _ = writeln!(text, "           requests-per-slot {}", self.requests_per_slot);
        }
        match self.need(readings) {
            Some(ALL_SLOTS) => {
                let (p99_s, limit_ms) =
                    (self.too_slow_s(readings).unwrap_or_default(), self.p99_limit_ms.unwrap_or_default());
                let _ = writeln!(
                    text,
                    "need       all its slots: 99 of 100 requests take {p99_s:.3} s, and may take {limit_ms} ms"
                );
            }
            Some(need) => {
                let spare = if self.spare > 0 { format!(" + {} spare", self.spare) } else { String::new() };
                let _ =
                    writeln!(text, "need       ⌈load ÷ target⌉{spare} = ⌈{load:.3} ÷ {}⌉{spare} = {need}", self.target);
            }
            None => text.push_str("need       unknown: an input has no samples, which is silence\n"),
        }
        text
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn formula(source: Source) -> Formula {
        Formula {
            source,
            selector: "job=\"chat\"".to_owned(),
            requests_per_slot: 8.0,
            slots_per_engine: 2.0,
            target: 0.8,
            window_s: 60,
            spare: 0,
            p99_limit_ms: None,
        }
    }

    fn readings(values: &[f64]) -> Vec<Option<Reading>> {
        values.iter().map(|value| Some(Reading { value: *value, age_ms: 500 })).collect()
    }

    #[test]
    fn each_formula_is_computed_as_it_is_stated() {
        let need = |source, values: &[f64]| formula(source).need(&readings(values)).unwrap();
        assert_eq!(need(Source::Vllm, &[12.0, 4.0, 0.1]), 3, "16 requests ÷ 8 ÷ 0.8 = 2.5");
        assert_eq!(need(Source::Vllm, &[1.0, 0.0, 0.9]), 3, "a full cache: 0.9 × 2 ÷ 0.8 = 2.25");
        assert_eq!(need(Source::Vllm, &[0.0, 0.0, 0.0]), 0);
        assert_eq!(need(Source::Triton, &[6.4, 0.0]), 1, "exactly one slot at its target");
        assert_eq!(need(Source::Triton, &[6.4, 0.1]), 2);
        assert_eq!(need(Source::Dcgm, &[1.7]), 3);
        assert_eq!(Formula { spare: 2, ..formula(Source::Dcgm) }.need(&readings(&[0.0])), Some(2));
    }

    #[test]
    fn sums_of_floats_take_no_slot_more() {
        let tenths: f64 = std::iter::repeat_n(0.1, 8).sum();
        assert_eq!(formula(Source::Dcgm).need(&readings(&[tenths])), Some(1), "{tenths:.20} ÷ 0.8");
    }

    #[test]
    fn without_a_required_input_nothing_is_known() {
        let mut given = readings(&[12.0, 4.0]);
        given.push(None);
        assert_eq!(formula(Source::Vllm).need(&given), Some(3), "the cache is not required");
        given[1] = None;
        assert_eq!(formula(Source::Vllm).need(&given), None);
    }

    #[test]
    fn queries_select_the_fleets_own_series() {
        for source in [Source::Vllm, Source::Triton, Source::Dcgm] {
            for input in (Formula { p99_limit_ms: Some(250), ..formula(source) }).inputs() {
                assert!(input.query.contains("{job=\"chat\"") && input.oldest.contains("min(timestamp("), "{input:?}");
            }
        }
    }

    #[test]
    fn requests_that_take_too_long_need_all_slots_and_nothing_known_of_them_changes_nothing() {
        let limited = |source| Formula { p99_limit_ms: Some(250), ..formula(source) };
        let need = |source, values: &[f64]| limited(source).need(&readings(values));
        assert_eq!(need(Source::Vllm, &[12.0, 4.0, 0.1, 0.25]), Some(3), "as long as they may");
        assert_eq!(need(Source::Vllm, &[12.0, 4.0, 0.1, 0.251]), Some(ALL_SLOTS));
        assert_eq!(need(Source::Triton, &[6.4, 0.0, 3.0]), Some(ALL_SLOTS));
        assert_eq!(need(Source::Dcgm, &[1.7]), Some(3), "devices know of no requests");
        let mut idle = readings(&[12.0, 4.0, 0.1]);
        idle.push(None);
        assert_eq!(limited(Source::Vllm).need(&idle), Some(3));
        // A load beyond counting is no wish for all.
        assert_ne!(formula(Source::Dcgm).need(&readings(&[1e12])), Some(ALL_SLOTS));
        let told = limited(Source::Vllm).explained(&readings(&[12.0, 4.0, 0.1, 0.31]));
        assert!(told.contains("all its slots: 99 of 100 requests take 0.310 s, and may take 250 ms"), "{told}");
    }

    /// The time of `a or b` is that of its evaluation, so that a cache that nobody had scraped for minutes looked fresh.
    #[test]
    fn times_are_asked_for_of_series_and_never_of_expressions() {
        let cache = Formula { selector: String::new(), ..formula(Source::Vllm) }.inputs().remove(2);
        assert_eq!(cache.query, "sum(vllm:kv_cache_usage_perc{} or vllm:gpu_cache_usage_perc{})");
        let oldest = "min(timestamp(vllm:kv_cache_usage_perc{}) or timestamp(vllm:gpu_cache_usage_perc{}))";
        assert_eq!(cache.oldest, oldest);
    }

    #[test]
    fn the_explanation_shows_query_inputs_formula_and_result() {
        let text = formula(Source::Vllm).explained(&readings(&[12.0, 4.0, 0.1]));
        for part in [
            "sum(vllm:num_requests_running{job=\"chat\"})",
            "12.000, samples at most 0.5 s old",
            "(running + waiting)",
            "⌈2.000 ÷ 0.8⌉ = 3",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn the_age_is_that_of_the_oldest_sample() {
        let value = Sample { at_s: 100.0, value: 3.0 };
        let oldest = Sample { at_s: 100.0, value: 97.5 };
        assert_eq!(Reading::of(value, oldest).age_ms, 2_500);
        assert_eq!(Reading::of(value, Sample { at_s: 100.0, value: 101.0 }).age_ms, 0, "a clock that is ahead");
    }
}
