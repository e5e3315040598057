//! Runs of the same jobs under two policies, seed by seed: how far they differ in the mean, and how sure that is.
//!
//! Differences are paired: what the seeds have in common drops out, so fewer of them are needed than for two means of their own.

use serde::Serialize;
use serde_json::Value;

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

/// The figures of one policy over all seeds: the mean of each, lists and what is in them place by place, and nothing where one run has none.
#[must_use]
pub fn means(runs: &[&Value]) -> Value {
    let all = |of: &dyn Fn(&Value) -> Option<Value>| runs.iter().map(|run| of(run)).collect::<Option<Vec<Value>>>();
    let mean = |of: Option<Vec<Value>>| of.map_or(Value::Null, |of| means(&of.iter().collect::<Vec<_>>()));
    match runs.first() {
        Some(Value::Object(first)) => {
            first.keys().map(|key| (key.clone(), mean(all(&|run| run.get(key).cloned())))).collect()
        }
        Some(Value::Array(first))
            if runs.iter().all(|run| run.as_array().is_some_and(|of| of.len() == first.len())) =>
        {
            (0..first.len()).map(|place| mean(all(&|run| run.get(place).cloned()))).collect()
        }
        Some(Value::String(name)) => Value::from(name.as_str()),
        _ => {
            let numbers = runs.iter().map(|run| run.as_f64()).collect::<Option<Vec<f64>>>();
            Value::from(numbers.map(|numbers| numbers.iter().sum::<f64>() / numbers.len() as f64))
        }
    }
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
        let forecast = |error: f64| json!({"ahead_s": 60.0, "error_slots": error});
        let of = |errors: &[f64]| json!({"forecasts": errors.iter().map(|error| forecast(*error)).collect::<Vec<_>>()});
        assert_eq!(means(&[&of(&[1.0, 5.0]), &of(&[2.0, 6.0])]), of(&[1.5, 5.5]));
        assert_eq!(means(&[&of(&[]), &of(&[])]), of(&[]));
        assert_eq!(means(&[&of(&[1.0]), &of(&[])]), json!({"forecasts": null}));
        let found = difference(&[&a, &b], &[&c, &d], "x").unwrap();
        assert_eq!((found.mean, found.half_width), (1.0, 0.0));
        assert_eq!(difference(&[&a, &b], &[&c, &d], "y"), None);
    }
}
