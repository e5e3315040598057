//! Runs of the same jobs under two policies, seed by seed: how far they differ in the mean, and how sure that is.
//!
//! Differences are paired: what the seeds have in common drops out, so fewer of them are needed than for two means of their own.

use serde::Serialize;
use serde_json::{Map, Value};

/// The 97.5 % quantiles of Student's t distribution with 1, 2, … degrees of freedom.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// A mean, and how far the true one is off with 95 % confidence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// Of all differences.
    pub mean: f64,
    /// The interval is this far to both sides.
    pub half_width: f64,
}

/// The 95 % interval of the mean of differences; none of fewer than two.
#[must_use]
pub fn interval(differences: &[f64]) -> Option<Interval> {
    let count = differences.len();
    // More degrees of freedom than are listed make it a little narrower than this.
    let quantile = T.get(count.checked_sub(2)?.min(T.len() - 1))?;
    let mean = differences.iter().sum::<f64>() / count as f64;
    let squares: f64 = differences.iter().map(|of| (of - mean) * (of - mean)).sum();
    let deviation = (squares / (count - 1) as f64).sqrt();
    Some(Interval { mean, half_width: quantile * deviation / (count as f64).sqrt() })
}

/// The figures of one policy over all seeds: the mean of each, and nothing where one run has none.
#[must_use]
pub fn means(runs: &[&Value]) -> Value {
    let Some(Value::Object(first)) = runs.first() else { return Value::Null };
    let of = |(key, value): (&String, &Value)| {
        let numbers: Option<Vec<f64>> = runs.iter().map(|run| run[key.as_str()].as_f64()).collect();
        let mean = numbers.map(|numbers| numbers.iter().sum::<f64>() / numbers.len() as f64);
        let mean = if value.is_string() { value.clone() } else { Value::from(mean) };
        (key.clone(), mean)
    };
    Value::Object(first.iter().map(of).collect::<Map<_, _>>())
}

/// How far one policy's figure is above another's, seed by seed; none where a run has no such figure.
#[must_use]
pub fn difference(of: &[&Value], from: &[&Value], key: &str) -> Option<Interval> {
    let pairs = of.iter().zip(from).map(|(of, from)| Some(of[key].as_f64()? - from[key].as_f64()?));
    interval(&pairs.collect::<Option<Vec<_>>>()?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn an_interval_is_students() {
        // Deviation 1 over three: 4.303 / √3.
        let found = interval(&[1.0, 2.0, 3.0]).unwrap();
        assert!(found.mean == 2.0 && (found.half_width - 4.303 / 3f64.sqrt()).abs() < 1e-12, "{found:?}");
        assert_eq!((interval(&[1.0]), interval(&[])), (None, None));
        assert!(interval(&[0.0; 100]).unwrap().half_width == 0.0);
    }

    #[test]
    fn figures_are_compared_seed_by_seed() {
        let (a, b) = (json!({"policy": "a", "x": 1.0, "y": null}), json!({"policy": "a", "x": 5.0, "y": 2.0}));
        let (c, d) = (json!({"policy": "c", "x": 0.0, "y": 1.0}), json!({"policy": "c", "x": 4.0, "y": 2.0}));
        assert_eq!(means(&[&a, &b]), json!({"policy": "a", "x": 3.0, "y": null}));
        let found = difference(&[&a, &b], &[&c, &d], "x").unwrap();
        assert_eq!((found.mean, found.half_width), (1.0, 0.0));
        assert_eq!(difference(&[&a, &b], &[&c, &d], "y"), None);
    }
}
