//! Recordings: a demand curve, scaled to slots and reduced to the moments at which the need changes, or times at which jobs came. CSV with
//! a header; lines that begin with `#` are comments. Pure: `files.rs` opens them.

use anyhow::{Context, Result};
use std::io::Read;
use std::time::SystemTime;

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

/// Reads a demand curve.
pub fn curve(source: impl Read, column: &str) -> Result<Vec<Point>> {
    let mut points = Vec::new();
    rows(source, Some(column), |at_s, value| points.push(Point { at_s, value }))?;
    Ok(points)
}

/// Reads times alone, in seconds from the first.
pub fn times(source: impl Read) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    rows(source, None, |at_s, _| times.push(at_s))?;
    Ok(times)
}

fn rows(source: impl Read, column: Option<&str>, mut take: impl FnMut(f64, f64)) -> Result<()> {
    let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(source);
    let headers = reader.headers()?.clone();
    let find = |name: &str| headers.iter().position(|h| h == name);
    let listed = || headers.iter().collect::<Vec<_>>().join(", ");
    let value_at = match column {
        Some(column) => Some(find(column).with_context(|| format!("no column `{column}`; there are {}", listed()))?),
        None => None,
    };
    let time_at = find("t")
        .or_else(|| find("timestamp"))
        .with_context(|| format!("no column `t` (seconds) or `timestamp` (RFC 3339); there are {}", listed()))?;
    let (mut first_s, mut last_s) = (None, 0.0);
    for (row, record) in reader.records().enumerate() {
        anyhow::ensure!(row < ROWS_MAX, "more than {ROWS_MAX} rows; cut it, or make its steps longer");
        let record = record?;
        let cell = |index: usize| record.get(index).unwrap_or_default();
        let at_s =
            seconds(cell(time_at)).with_context(|| format!("row {}: `{}` is no time", row + 1, cell(time_at)))?;
        let value = match value_at.map(cell) {
            None => 0.0,
            Some(text) => text
                .parse()
                .ok()
                .filter(|v: &f64| v.is_finite() && *v >= 0.0)
                .with_context(|| format!("row {}: `{text}` is no demand", row + 1))?,
        };
        let at_s = at_s - *first_s.get_or_insert(at_s);
        anyhow::ensure!(at_s >= last_s, "row {}: time goes back", row + 1);
        last_s = at_s;
        take(at_s, value);
    }
    anyhow::ensure!(first_s.is_some(), "no rows");
    Ok(())
}

/// Seconds, given as a number, in RFC 3339, or as a date and time of day without a zone.
fn seconds(text: &str) -> Option<f64> {
    if let Ok(number) = text.parse::<f64>() {
        return number.is_finite().then_some(number);
    }
    if let Ok(time) = humantime::parse_rfc3339(text) {
        return time.duration_since(SystemTime::UNIX_EPOCH).ok().map(|since| since.as_secs_f64());
    }
    let time = humantime::parse_rfc3339_weak(text).ok()?;
    time.duration_since(SystemTime::UNIX_EPOCH).ok().map(|since| since.as_secs_f64())
}

/// The signals of a curve whose maximum needs all slots: one at the start and one whenever the need changes.
#[must_use]
pub fn signals(curve: &[Point], slots: u32) -> Vec<Signal> {
    let most = curve.iter().map(|p| p.value).fold(0.0, f64::max);
    let needed = |value: f64| if most > 0.0 { ((value / most * f64::from(slots)).ceil() as u32).min(slots) } else { 0 };
    let mut signals: Vec<Signal> = Vec::new();
    for point in curve {
        let signal = Signal { at_s: point.at_s, needed: needed(point.value) };
        if signals.last().is_none_or(|last| last.needed != signal.needed) {
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
        let by_seconds = curve("t,rate\n100,1.5\n700,2\n".as_bytes(), "rate").unwrap();
        let by_date =
            curve("timestamp,value\n2014-02-28 23:50:00,1.5\n2014-03-01 00:00:00,2\n".as_bytes(), "value").unwrap();
        let by_rfc3339 = curve(
            "# from somewhere\ntimestamp,value\n2014-02-28T23:50:00Z,1.5\n2014-03-01T00:00:00.000Z,2\n".as_bytes(),
            "value",
        );
        assert_eq!(by_seconds, by_date);
        assert_eq!(by_seconds, by_rfc3339.unwrap());
        assert_eq!(times("t\n5\n7\n".as_bytes()).unwrap(), [0.0, 2.0]);
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
            let error = format!("{:#}", curve(text.as_bytes(), "rate").unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn only_changes_are_signals_and_the_maximum_needs_all() {
        let curve: Vec<Point> =
            [0.0, 1.0, 1.1, 10.0, 0.0].iter().enumerate().map(|(i, &value)| Point { at_s: i as f64, value }).collect();
        let needed: Vec<u32> = signals(&curve, 4).iter().map(|s| s.needed).collect();
        assert_eq!(needed, [0, 1, 4, 0]);
    }
}
