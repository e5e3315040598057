//! Jobs from recordings: every format becomes one type, in the order of submission. Which columns mean what is said here, once.

use crate::table::{Row, Table, TableError, at_least};
use events_schema::job::WORKERS_MAX;
use serde::Serialize;
use std::str::FromStr;

/// A job of a recording.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TraceJob {
    /// For people.
    pub name: String,
    /// From the first submission of the recording; from the beginning of the clock of one that has its own (Pollux).
    pub submitted_ms: u64,
    /// Slots it asked for.
    pub workers: u16,
    /// Fewest it runs on, where the recording says so.
    pub min: Option<u16>,
    /// Most it runs on, where the recording says so.
    pub max: Option<u16>,
    /// How much there is to do.
    pub work: Work,
    /// What it trains, where the recording says so.
    pub model: Option<String>,
    /// Samples of a step, over all its slots.
    pub batch_size: Option<u32>,
    /// Most samples of one update, where its batch may move: the policy says how many times `batch_size`.
    pub batch_max: Option<u32>,
    /// Whose it is.
    pub tenant: Option<String>,
    /// Higher goes first.
    pub priority: i32,
    /// When it should be done, from the first submission of the recording.
    pub deadline_ms: Option<u64>,
    /// The only type of slots that it can use; none: it can use any.
    pub only: Option<String>,
}

impl TraceJob {
    /// One of which nothing else is said: the first of its recording.
    #[must_use]
    pub fn new(name: String, workers: u16, work: Work) -> Self {
        Self {
            name,
            submitted_ms: 0,
            workers,
            min: None,
            max: None,
            work,
            model: None,
            batch_size: None,
            batch_max: None,
            tenant: None,
            priority: 0,
            deadline_ms: None,
            only: None,
        }
    }
}

/// How much there is to do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// What takes so long on the slots it asked for.
    Seconds(f64),
    /// What its model takes at its batch size, by the tables.
    OfModel,
}

/// How a recording is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Microsoft's Philly: `timestamp`, `duration_s`, `num_gpus`, `virtual_cluster`.
    Philly,
    /// ElasticFlow's clusters of Microsoft: `job_id`, `submission_time`, `duration`, `num_gpu`, and `model_name`, `batch_size`, `deadline` of
    /// those that have them.
    Msft,
    /// Pollux: `name`, `time`, `application`, `num_replicas`, `batch_size`.
    Pollux,
    /// Ours: `submitted_s`, `duration_s`, `workers`, and if wanted `name`, `min_workers`, `max_workers`, `model`, `batch_size`, `batch_max`, `tenant`,
    /// `priority`, `deadline_s` (from the submission on), `slot_type` (the only one that it can use).
    Csv,
}

/// The formats by name.
pub const FORMATS: [(&str, Format); 4] =
    [("csv", Format::Csv), ("msft", Format::Msft), ("philly", Format::Philly), ("pollux", Format::Pollux)];

impl FromStr for Format {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let known = FORMATS.iter().find(|(name, _)| *name == text).map(|(_, format)| *format);
        known.ok_or_else(|| format!("`{text}` is no format of jobs; expected csv, msft, philly or pollux"))
    }
}

const SECONDS: &str = "seconds, a number from 0 on";
const WORKERS: &str = "a whole number of 1 to 256 slots";
const BATCH: &str = "a whole number of samples from 1 on";

/// The jobs of a recording, by their submission; those of one moment as they stand in the file.
pub fn parse(text: &str, format: Format) -> Result<Vec<TraceJob>, TableError> {
    let (needed, read): (&[&'static str], Reader) = match format {
        Format::Philly => (&["timestamp", "duration_s", "num_gpus"], philly),
        Format::Msft => (&["submission_time", "duration", "num_gpu"], msft),
        Format::Pollux => (&["name", "time", "application", "num_replicas", "batch_size"], pollux),
        Format::Csv => (&["submitted_s", "duration_s", "workers"], csv),
    };
    let table = Table::read(text, needed)?;
    let mut jobs: Vec<(f64, TraceJob)> =
        table.rows().zip(0..).map(|(row, at)| read(row, at)).collect::<Result<_, _>>()?;
    jobs.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    // Rounds of Pollux's simulator are counted from its clock's 0.
    let first_s = jobs.first().filter(|_| format != Format::Pollux).map_or(0.0, |(at_s, _)| *at_s);
    let mut jobs: Vec<TraceJob> =
        jobs.into_iter().map(|(at_s, job)| TraceJob { submitted_ms: ms(at_s - first_s), ..job }).collect();
    // They were read as moments of the recording, as its submissions are.
    jobs.iter_mut().for_each(|job| job.deadline_ms = job.deadline_ms.map(|at| at.saturating_sub(ms(first_s))));
    Ok(jobs)
}

/// Gives a job and the moment of its submission, in seconds.
type Reader = fn(Row<'_>, usize) -> Result<(f64, TraceJob), TableError>;

fn ms(seconds: f64) -> u64 {
    (seconds * 1_000.0).round() as u64
}

fn workers(text: &str) -> Option<u16> {
    text.parse().ok().filter(|count| (1..=WORKERS_MAX).contains(&u64::from(*count)))
}

fn batch(text: &str) -> Option<u32> {
    text.parse().ok().filter(|size| *size > 0)
}

fn philly(row: Row<'_>, at: usize) -> Result<(f64, TraceJob), TableError> {
    let at_s = row.take("timestamp", "a date and time as 2017-10-09 07:01:55", seconds_of_date)?;
    let work = Work::Seconds(row.take("duration_s", SECONDS, at_least(0.0))?);
    let tenant = row.text("virtual_cluster").map(str::to_owned);
    let workers = row.take("num_gpus", WORKERS, workers)?;
    Ok((at_s, TraceJob { tenant, ..TraceJob::new(format!("philly-{at}"), workers, work) }))
}

fn msft(row: Row<'_>, at: usize) -> Result<(f64, TraceJob), TableError> {
    let at_s = row.take("submission_time", SECONDS, at_least(0.0))?;
    let work = Work::Seconds(row.take("duration", SECONDS, at_least(0.0))?);
    let workers = row.take("num_gpu", WORKERS, workers)?;
    let name = row.text("job_id").map_or_else(|| format!("msft-{at}"), str::to_owned);
    let job = TraceJob {
        model: row.text("model_name").map(str::to_owned),
        batch_size: row.take_optional("batch_size", BATCH, batch)?,
        deadline_ms: row.take_optional("deadline", SECONDS, at_least(0.0))?.map(ms),
        ..TraceJob::new(name, workers, work)
    };
    Ok((at_s, job))
}

fn pollux(row: Row<'_>, _: usize) -> Result<(f64, TraceJob), TableError> {
    let at_s = row.take("time", SECONDS, at_least(0.0))?;
    let workers = row.take("num_replicas", WORKERS, workers)?;
    let text = |column| row.take(column, "a name", |text| Some(text.to_owned()));
    let job = TraceJob {
        model: Some(text("application")?),
        batch_size: Some(row.take("batch_size", BATCH, batch)?),
        ..TraceJob::new(text("name")?, workers, Work::OfModel)
    };
    Ok((at_s, job))
}

fn csv(row: Row<'_>, at: usize) -> Result<(f64, TraceJob), TableError> {
    let at_s = row.take("submitted_s", SECONDS, at_least(0.0))?;
    let work = Work::Seconds(row.take("duration_s", SECONDS, at_least(0.0))?);
    let asked = row.take("workers", WORKERS, workers)?;
    let min = row.take_optional("min_workers", WORKERS, workers)?;
    let max = row.take_optional("max_workers", WORKERS, workers)?;
    if min.is_some_and(|min| min > asked) {
        return Err(row.wrong("min_workers", "at most `workers` of the same line"));
    }
    if max.is_some_and(|max| max < asked) {
        return Err(row.wrong("max_workers", "at least `workers` of the same line"));
    }
    let (batch_size, batch_max) =
        (row.take_optional("batch_size", BATCH, batch)?, row.take_optional("batch_max", BATCH, batch)?);
    if batch_max.is_some_and(|max| batch_size.is_none_or(|size| max < size || max % size > 0)) {
        return Err(row.wrong("batch_max", "a multiple of `batch_size` of the same line"));
    }
    let deadline_s = row.take_optional("deadline_s", SECONDS, at_least(0.0))?;
    let priority = row.take_optional("priority", "a whole number; higher goes first", |text| text.parse().ok())?;
    let job = TraceJob {
        min,
        max,
        model: row.text("model").map(str::to_owned),
        batch_size,
        batch_max,
        tenant: row.text("tenant").map(str::to_owned),
        priority: priority.unwrap_or(0),
        deadline_ms: deadline_s.map(|deadline_s| ms(at_s + deadline_s)),
        only: row.text("slot_type").map(str::to_owned),
        ..TraceJob::new(row.text("name").map_or_else(|| format!("job-{at}"), str::to_owned), asked, work)
    };
    Ok((at_s, job))
}

/// Seconds from the first of January 1970 of a date and time of day without a zone.
fn seconds_of_date(text: &str) -> Option<f64> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let numbers = |text: &str, by: char| text.split(by).map(|part| part.parse().ok()).collect::<Option<Vec<i64>>>();
    let (date, time) = (numbers(date, '-')?, numbers(time.trim_end_matches('Z'), ':')?);
    let ([year, month, day], [hour, minute, second]) = (date.as_slice(), time.as_slice()) else { return None };
    let fits = (1970..=9999).contains(year)
        && (1..=12).contains(month)
        && (1..=31).contains(day)
        && (0..24).contains(hour)
        && (0..60).contains(minute)
        && (0..=60).contains(second);
    // Howard Hinnant, "chrono-compatible low-level date algorithms": years begin in March there.
    let year = if *month <= 2 { year - 1 } else { *year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * (month + if *month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    fits.then_some((days * 86_400 + hour * 3_600 + minute * 60 + second) as f64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_format_becomes_the_same_kind_of_job() {
        let of = |text, format| {
            let jobs = parse(text, format).unwrap();
            jobs.into_iter().map(|job| (job.submitted_ms, job.workers, job.work)).collect::<Vec<_>>()
        };
        let seconds = [(0, 1, Work::Seconds(60.0)), (2_000, 4, Work::Seconds(90.5))];
        let philly =
            "timestamp,duration_s,num_gpus,virtual_cluster\n2017-10-01 00:00:01,90.5,4,b\n2017-09-30 23:59:59,60,1,a\n";
        assert_eq!(of(philly, Format::Philly), seconds);
        assert_eq!(of("job_id,submission_time,duration,num_gpu\nx,7,60,1\ny,9,90.5,4\n", Format::Msft), seconds);
        assert_eq!(of("submitted_s,duration_s,workers\n7,60,1\n9,90.5,4\n", Format::Csv), seconds);
        let pollux = "name,time,application,num_replicas,batch_size\na,107,bert,6,384\n";
        assert_eq!(of(pollux, Format::Pollux), [(107_000, 6, Work::OfModel)]);
    }

    #[test]
    fn what_a_recording_says_beside_is_kept() {
        let msft = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\nx,100,9,bert,160,32,2,50\n";
        let job = &parse(msft, Format::Msft).unwrap()[0];
        assert_eq!((job.model.as_deref(), job.batch_size, job.deadline_ms), (Some("bert"), Some(32), Some(60_000)));
        let csv = "submitted_s,duration_s,workers,min_workers,max_workers,priority,tenant,deadline_s,name\n5,1,4,2,8,-1,a,30,n\n";
        let job = &parse(csv, Format::Csv).unwrap()[0];
        assert_eq!((job.min, job.max, job.priority, job.name.as_str()), (Some(2), Some(8), -1, "n"));
        assert_eq!((job.tenant.as_deref(), job.deadline_ms), (Some("a"), Some(30_000)));
    }

    #[test]
    fn a_malformed_file_of_each_format_is_refused_by_line_and_column() {
        let cases = [
            (
                Format::Philly,
                "timestamp,duration_s,num_gpus\n2017-13-09 07:01:55,66,1\n",
                "line 2: timestamp is `2017-13-09 07:01:55`",
            ),
            (Format::Philly, "timestamp,duration_s\n2017-10-09 07:01:55,66\n", "no column `num_gpus`"),
            (
                Format::Msft,
                "submission_time,duration,num_gpu\n1,nan,1\n",
                "line 2: duration is `nan`; expected seconds",
            ),
            (
                Format::Msft,
                "submission_time,duration,num_gpu\n1,2,512\n",
                "line 2: num_gpu is `512`; expected a whole number of 1 to 256",
            ),
            (
                Format::Pollux,
                "name,time,application,num_replicas,batch_size\na,1,bert,0,8\n",
                "line 2: num_replicas is `0`",
            ),
            (Format::Csv, "submitted_s,duration_s,workers\n0,5,2\n-1,5,2\n", "line 3: submitted_s is `-1`"),
            (
                Format::Csv,
                "submitted_s,duration_s,workers,batch_size,batch_max\n0,5,2,32,48\n",
                "batch_max is `48`; expected a multiple of `batch_size`",
            ),
            (
                Format::Csv,
                "submitted_s,duration_s,workers,min_workers\n0,5,2,3\n",
                "min_workers is `3`; expected at most `workers`",
            ),
        ];
        for (format, text, expected) in cases {
            let error = parse(text, format).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn dates_are_counted_as_calendars_do() {
        assert_eq!(seconds_of_date("1970-01-02 00:00:01"), Some(86_401.0));
        assert_eq!(
            seconds_of_date("2016-03-01 00:00:00"),
            seconds_of_date("2016-02-29 00:00:00").map(|at| at + 86_400.0)
        );
        assert_eq!(seconds_of_date("2017-10-09T07:01:55Z"), Some(1_507_532_515.0));
    }
}
