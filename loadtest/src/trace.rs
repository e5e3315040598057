//! A recorded demand curve: read from CSV, scaled to slots, reduced to the moments at which the need changes. Pure but for
//! reading the file.

use anyhow::{Context, Result};
use std::io::Read;
use std::path::Path;

/// Rows read at most: weeks at one a minute are 50,000.
const ROWS_MAX: usize = 1_000_000;

/// Demand at a moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Seconds from the trace's first row.
    pub at_s: f64,
    /// In the trace's own unit.
    pub value: f64,
}

/// What a fleet publishes, and when.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Signal {
    /// Seconds from the first signal, as recorded.
    pub at_s: f64,
    /// Slots needed.
    pub needed: u32,
}

/// Reads a trace file.
pub fn read(path: &Path, column: &str) -> Result<Vec<Point>> {
    let file = std::fs::File::open(path).with_context(|| format!("{} cannot be opened", path.display()))?;
    parse(file, column).with_context(|| format!("{} is no demand trace", path.display()))
}

fn parse(source: impl Read, column: &str) -> Result<Vec<Point>> {
    let mut reader = csv::Reader::from_reader(source);
    let headers = reader.headers()?.clone();
    let find = |name: &str| headers.iter().position(|h| h == name);
    let value_at = find(column).with_context(|| {
        format!("no column `{column}`; there are {}", headers.iter().collect::<Vec<_>>().join(", "))
    })?;
    let time_at = find("t")
        .or_else(|| find("timestamp"))
        .context("no column `t` (seconds) or `timestamp` (YYYY-MM-DD HH:MM:SS)")?;
    let mut points: Vec<Point> = Vec::new();
    let mut first_s = None;
    for (row, record) in reader.records().take(ROWS_MAX).enumerate() {
        let record = record?;
        let cell = |index: usize| record.get(index).unwrap_or_default();
        let at_s =
            seconds(cell(time_at)).with_context(|| format!("row {}: `{}` is no time", row + 1, cell(time_at)))?;
        let value: f64 = cell(value_at)
            .parse()
            .ok()
            .filter(|v: &f64| v.is_finite() && *v >= 0.0)
            .with_context(|| format!("row {}: `{}` is no demand", row + 1, cell(value_at)))?;
        let at_s = at_s - *first_s.get_or_insert(at_s);
        anyhow::ensure!(points.last().is_none_or(|p| p.at_s <= at_s), "row {}: time goes back", row + 1);
        points.push(Point { at_s, value });
    }
    anyhow::ensure!(!points.is_empty(), "no rows");
    Ok(points)
}

/// Seconds, given as a number or as a date and time of day.
fn seconds(text: &str) -> Option<f64> {
    if let Ok(number) = text.parse::<f64>() {
        return number.is_finite().then_some(number);
    }
    let (date, time) = text.split_once(' ')?;
    let numbers =
        |text: &str, separator| -> Option<Vec<i64>> { text.split(separator).map(|p| p.parse().ok()).collect() };
    let (date, time) = (numbers(date, '-')?, numbers(time, ':')?);
    let ([year, month @ 1..=12, day @ 1..=31], [hour, minute, second]) = (date.as_slice(), time.as_slice()) else {
        return None;
    };
    // Days of the civil calendar: years begin in March, so that the leap day is the last.
    let (y, m) = if *month > 2 { (*year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400) + (153 * m + 2) / 5 + day - 1;
    Some((days * 86_400 + hour * 3_600 + minute * 60 + second) as f64)
}

/// The signals of a curve whose maximum needs all slots: one at the start and one whenever the need changes.
#[must_use]
pub fn signals(curve: &[Point], slots: u32, signals_max: usize) -> Vec<Signal> {
    let most = curve.iter().map(|p| p.value).fold(0.0, f64::max);
    let needed = |value: f64| if most > 0.0 { ((value / most * f64::from(slots)).ceil() as u32).min(slots) } else { 0 };
    let mut signals: Vec<Signal> = Vec::new();
    for point in curve {
        let signal = Signal { at_s: point.at_s, needed: needed(point.value) };
        if signals.len() < signals_max && signals.last().is_none_or(|last| last.needed != signal.needed) {
            signals.push(signal);
        }
    }
    signals
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn both_time_columns_are_read() {
        let by_seconds = parse("t,rate\n100,1.5\n700,2\n".as_bytes(), "rate").unwrap();
        let by_date =
            parse("timestamp,value\n2014-02-28 23:50:00,1.5\n2014-03-01 00:00:00,2\n".as_bytes(), "value").unwrap();
        assert_eq!(by_seconds, by_date);
        assert_eq!(by_seconds[1], Point { at_s: 600.0, value: 2.0 });
    }

    #[test]
    fn leap_days_count() {
        assert_eq!(seconds("2016-03-01 00:00:00").unwrap() - seconds("2016-02-28 00:00:00").unwrap(), 2.0 * 86_400.0);
    }

    #[test]
    fn bad_rows_are_named() {
        for (text, part) in [
            ("t,rate\n0,x\n", "no demand"),
            ("t,rate\n5,1\n0,1\n", "goes back"),
            ("a,b\n", "no column"),
            ("t,rate\n", "no rows"),
        ] {
            let error = format!("{:#}", parse(text.as_bytes(), "rate").unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn only_changes_are_signals_and_the_maximum_needs_all() {
        let curve: Vec<Point> =
            [0.0, 1.0, 1.1, 10.0, 0.0].iter().enumerate().map(|(i, &value)| Point { at_s: i as f64, value }).collect();
        let needed: Vec<u32> = signals(&curve, 4, 10).iter().map(|s| s.needed).collect();
        assert_eq!(needed, [0, 1, 4, 0]);
        assert_eq!(signals(&curve, 4, 2).len(), 2);
    }
}
