//! Publishes signals at their moments and measures how long each takes to be accepted and to be fulfilled (no slot of the
//! fleet above its need is borrowed or being reclaimed any more).

use crate::ReplayArgs;
use crate::trace::Signal;
use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::json;
use std::fmt;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// An answer that takes longer is a failure of the service.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the fleet is looked at until a signal is fulfilled.
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug, Deserialize)]
struct Fleet {
    slots: Vec<FleetSlot>,
}

#[derive(Debug, Deserialize)]
struct FleetSlot {
    state: String,
}

/// How a replay went.
#[derive(Debug, Default)]
pub struct Summary {
    signals: usize,
    accepted_ms: Vec<f64>,
    fulfilled_ms: Vec<f64>,
    overtaken: usize,
    elapsed_s: f64,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "signals published   {} in {:.1} s", self.signals, self.elapsed_s)?;
        writeln!(f, "accepted            {}", spread(&self.accepted_ms))?;
        writeln!(f, "slots free after it {}", spread(&self.fulfilled_ms))?;
        write!(f, "overtaken           {} (the next signal came before this one was fulfilled)", self.overtaken)
    }
}

/// Median, 99th percentile and maximum of some times in milliseconds.
fn spread(times_ms: &[f64]) -> String {
    let mut sorted = times_ms.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at =
        |share: f64| sorted.get(((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1))).copied();
    match (at(0.5), at(0.99), sorted.last()) {
        (Some(median), Some(p99), Some(most)) => {
            format!("p50 {median:.1} ms, p99 {p99:.1} ms, max {most:.1} ms ({} times)", sorted.len())
        }
        _ => "never".to_owned(),
    }
}

/// Publishes all signals, in order.
pub async fn replay(args: &ReplayArgs, signals: &[Signal]) -> Result<Summary> {
    let http = reqwest::Client::builder().timeout(ANSWER_TIMEOUT).no_proxy().build()?;
    let fleet_url = format!("{}/v1/fleets/{}", args.url.trim_end_matches('/'), args.fleet);
    let mut summary = Summary::default();
    let begun = Instant::now();
    for (index, signal) in signals.iter().enumerate() {
        sleep_until(begun + recorded(signal.at_s, args.speedup)).await;
        let published = Instant::now();
        publish(&http, &fleet_url, signal.needed).await?;
        summary.accepted_ms.push(milliseconds(published));
        summary.signals += 1;
        let next = signals.get(index + 1).map(|s| begun + recorded(s.at_s, args.speedup));
        // The last signal has as long as any answer may take.
        let until = next.unwrap_or_else(|| Instant::now() + ANSWER_TIMEOUT);
        if fulfilled(&http, &fleet_url, signal.needed, until).await? {
            summary.fulfilled_ms.push(milliseconds(published));
        } else {
            summary.overtaken += 1;
        }
    }
    summary.elapsed_s = begun.elapsed().as_secs_f64();
    Ok(summary)
}

fn recorded(at_s: f64, speedup: f64) -> Duration {
    /// A month: traces that ask for more are replayed at a higher speed-up.
    const LONGEST_S: f64 = 31.0 * 86_400.0;
    Duration::from_secs_f64((at_s / speedup).clamp(0.0, LONGEST_S))
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

async fn publish(http: &reqwest::Client, fleet_url: &str, needed: u32) -> Result<()> {
    let response = http
        .post(format!("{fleet_url}/demand"))
        .json(&json!({ "needed": needed }))
        .send()
        .await
        .with_context(|| format!("{fleet_url} does not answer"))?;
    let status = response.status();
    if !status.is_success() {
        anyhow::bail!("demand {needed} was refused with {status}: {}", response.text().await.unwrap_or_default());
    }
    Ok(())
}

/// Looks at the fleet until it has the slots it needs, or the time is over; whether it has.
async fn fulfilled(http: &reqwest::Client, fleet_url: &str, needed: u32, until: Instant) -> Result<bool> {
    loop {
        let fleet: Fleet = http
            .get(fleet_url)
            .send()
            .await?
            .error_for_status()?
            .json()
            .await
            .context("the fleet's answer is not understood")?;
        let own = fleet.slots.iter().filter(|s| s.state == "unoffered").count();
        if own >= needed as usize {
            return Ok(true);
        }
        if Instant::now() >= until {
            return Ok(false);
        }
        sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_name_their_points() {
        let times: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(spread(&times), "p50 51.0 ms, p99 100.0 ms, max 100.0 ms (100 times)");
        assert_eq!(spread(&[]), "never");
    }
}
