//! `ebb logs JOB [-f]`: what a job's executors said, read from the store through the gateway. A line of people's output begins with the number
//! of its executor; lines of several executors are told apart by it.
//!
//! Following is asking again: one list a second, and one read for each log that grew.

use crate::args::LogsArgs;
use crate::failure::Failure;
use crate::find;
use crate::output::{Output, advise, line};
use events_schema::TimeMs;
use gateway_api::{Log, rfc3339};
use gateway_client::{Client, WantedLogs};
use serde_json::json;
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

/// How far one log is read.
#[derive(Debug, Default)]
struct Reading {
    at: u64,
    /// The beginning of a line whose end is not there yet.
    rest: Vec<u8>,
}

impl Reading {
    /// The lines that the bytes from a place on complete. What is between the last ones and these is gone, and no line goes across it.
    fn take(&mut self, from: u64, bytes: &[u8]) -> Vec<String> {
        let cut = if from > self.at { self.last() } else { None };
        cut.into_iter().chain(self.lines(bytes)).collect()
    }

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

/// `ebb logs JOB [-f] [--executor N] [--since TIME]`.
pub async fn logs(client: &Client, output: Output, args: &LogsArgs) -> Result<(), Failure> {
    let job = find::job(client, &args.id).await?;
    let now_ms = shell::wall_clock().0;
    let changed_since = args.since.map(|since| rfc3339(TimeMs(since.ms(now_ms))));
    let wanted = WantedLogs { executor: args.executor, changed_since };
    let mut readings: BTreeMap<u32, Reading> = BTreeMap::new();
    let (mut failed_looks, mut last_looks, mut any) = (0, 0, false);
    loop {
        let look = async {
            // Before the logs: what is written after a job was over is not waited for twice.
            let over = client.job(&job).await?.is_over();
            let logs = client.logs(&job, &wanted).await?;
            if output != Output::Name {
                for log in &logs {
                    read_on(client, output, &job, log, readings.entry(log.number).or_default()).await?;
                }
            }
            Ok::<_, Failure>((over, logs))
        };
        match look.await {
            Ok((over, logs)) => {
                if output == Output::Name {
                    logs.iter().for_each(|log| line(&log.executor));
                    return Ok(());
                }
                failed_looks = 0;
                any |= !logs.is_empty();
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

/// Reads and prints all that a log has by now. What was read stays read, also if the next part does not come.
async fn read_on(client: &Client, output: Output, job: &str, log: &Log, reading: &mut Reading) -> Result<(), Failure> {
    while reading.at < log.to {
        // Gone since it was listed: the next list says what is left.
        let Some(part) = client.log(job, log.number, reading.at).await? else { return Ok(()) };
        let lines = reading.take(part.from, &part.bytes);
        lines.iter().for_each(|text| print(output, log.number, text));
        if part.next <= reading.at {
            return Ok(());
        }
        reading.at = part.next;
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
        reading.rest = b"lost its e".to_vec();
        assert_eq!(reading.take(reading.at + 100, b"later\n"), ["lost its e", "later"], "a gap ends a line");
        assert_eq!(reading.lines(&vec![b'x'; LINE_LEN_MAX + 1]).len(), 1, "no line is waited for for ever");
    }
}
