//! `ebb logs JOB [-f]`: what a job's executors said, read from the store through the gateway. A line of people's output begins with the number
//! of its executor; lines of several executors are told apart by it.
//!
//! Following is asking again: one list a second, and one read for each log that grew.

use crate::args::LogsArgs;
use crate::failure::Failure;
use crate::find;
use crate::output::{Output, advise, line, names};
use crate::wire::{self, Job};
use gateway_client::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Between two looks: agents write every three seconds.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Looks at a job that is over before the last of its logs counts as whole: longer than its agents take to write them.
const LAST_LOOKS: u32 = 5;
/// Failed looks in a row before giving up: about the time a restart takes.
const LOOKS_FAILED_MAX: u32 = 15;
/// Longest line kept while its end is waited for; a longer one is told in pieces.
const LINE_LEN_MAX: usize = 64 << 10;

/// What is kept of one executor.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Log {
    executor: String,
    number: u32,
    to: u64,
}

/// How far one log is read.
#[derive(Debug, Default)]
struct Reading {
    at: u64,
    /// The beginning of a line whose end is not there yet.
    rest: Vec<u8>,
}

impl Reading {
    /// The lines that these bytes complete.
    fn lines(&mut self, bytes: &[u8]) -> Vec<String> {
        self.rest.extend_from_slice(bytes);
        let mut lines = Vec::new();
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let whole: Vec<u8> = self.rest.drain(..=end).collect();
            lines.push(String::from_utf8_lossy(&whole[..end]).trim_end_matches('\r').to_owned());
        }
        if self.rest.len() > LINE_LEN_MAX {
            lines.extend(self.last());
        }
        lines
    }

    /// What is left without an end.
    fn last(&mut self) -> Option<String> {
        let rest = std::mem::take(&mut self.rest);
        (!rest.is_empty()).then(|| String::from_utf8_lossy(&rest).into_owned())
    }
}

/// `ebb logs JOB [-f] [--executor N]`.
pub async fn logs(client: &Client, output: Output, args: &LogsArgs) -> Result<(), Failure> {
    let job = find::job(client, &args.id).await?;
    let mut readings: BTreeMap<u32, Reading> = BTreeMap::new();
    let (mut failed_looks, mut last_looks, mut any) = (0, 0, false);
    loop {
        // Before the logs: what is written after a job was over is not waited for twice.
        let look = async {
            let record: Job = client.get(&format!("/v1/jobs/{job}")).await?;
            Ok::<_, Failure>((record.is_over(), listed(client, &job, args.executor).await?))
        };
        match look.await {
            Ok((over, logs)) => {
                failed_looks = 0;
                if output == Output::Name {
                    names(&logs.iter().map(|log| json!({"executor": log.executor})).collect::<Vec<_>>(), "executor");
                    return Ok(());
                }
                for log in &logs {
                    any = true;
                    read_on(client, output, &job, log, readings.entry(log.number).or_default()).await?;
                }
                last_looks += u32::from(over);
            }
            Err(failure) if args.follow && failure.may_pass() && failed_looks < LOOKS_FAILED_MAX => failed_looks += 1,
            Err(failure) => return Err(failure),
        }
        if !args.follow || last_looks >= LAST_LOOKS {
            break;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    for (number, reading) in &mut readings {
        reading.last().into_iter().for_each(|text| print(output, *number, &text));
    }
    if !any {
        advise(format!(
            "nothing is kept of what executors of {job} said; it is kept for a week, and comes within seconds"
        ));
    }
    Ok(())
}

async fn listed(client: &Client, job: &str, only: Option<u32>) -> Result<Vec<Log>, Failure> {
    let answer: Value = client.get(&format!("/v1/jobs/{job}/logs")).await?;
    let logs: Vec<Log> = wire::read(&answer["logs"])?;
    Ok(logs.into_iter().filter(|log| only.is_none_or(|only| only == log.number)).collect())
}

/// Reads and prints all that a log has by now.
async fn read_on(client: &Client, output: Output, job: &str, log: &Log, reading: &mut Reading) -> Result<(), Failure> {
    while reading.at < log.to {
        let path = format!("/v1/jobs/{job}/logs/{}?from={}", log.number, reading.at);
        let answer = client.stream(&path, &[]).await?;
        let place = |name: &str| answer.headers().get(name)?.to_str().ok()?.parse::<u64>().ok();
        let next = place("ebb-log-next").unwrap_or(reading.at);
        let bytes = answer.bytes().await.map_err(|e| Failure::local("a log broke off", e))?;
        reading.lines(&bytes).iter().for_each(|text| print(output, log.number, text));
        if next <= reading.at {
            // It is gone, or shorter than it was said to be: the next list tells.
            return Ok(());
        }
        reading.at = next;
    }
    Ok(())
}

fn print(output: Output, number: u32, text: &str) {
    match output {
        Output::Json => line(json!({"executor": number, "line": text}).to_string()),
        Output::Table | Output::Name => line(format!("e{number} | {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_however_they_come() {
        let mut reading = Reading::default();
        assert_eq!(reading.lines(b"one\ntw"), ["one"]);
        assert_eq!(reading.lines(b"o\r\n\nthree"), ["two", ""]);
        assert_eq!((reading.last().as_deref(), reading.last()), (Some("three"), None));
        assert_eq!(reading.lines(&vec![b'x'; LINE_LEN_MAX + 1]).len(), 1, "no line is waited for for ever");
    }
}
