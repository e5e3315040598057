//! Parts of a recording, and how many of its jobs come: between two moments, so many times as many, or a part at a load that is asked for, so that a long
//! recording is many short ones, on which policies are compared as on seeds.
//!
//! Durations and sizes of jobs stay.

use crate::trace::{TraceJob, Work};

/// The jobs that are submitted from one moment of the recording on and before another; the first moment is the beginning of what is left.
#[must_use]
pub fn between(mut recorded: Vec<TraceJob>, from_ms: u64, to_ms: Option<u64>) -> Vec<TraceJob> {
    recorded.retain(|job| job.submitted_ms >= from_ms && to_ms.is_none_or(|to_ms| job.submitted_ms < to_ms));
    for job in &mut recorded {
        job.submitted_ms -= from_ms;
        job.deadline_ms = job.deadline_ms.map(|at| at.saturating_sub(from_ms));
    }
    recorded
}

/// Most jobs that are made of those of a recording: ten times as many as the largest public one has.
pub const JOBS_MAX: usize = 1_000_000;

/// How many times as many as so many jobs may come at most. All that were recorded may.
#[must_use]
pub fn times_max(jobs: usize) -> f64 {
    ((JOBS_MAX as f64 / jobs.max(1) as f64 * 1e3).floor() / 1e3).max(1.0)
}

/// So many times as many, evenly: of those at places 0, 1, 2 and so on the one at n is there ⌊(n + 1) × times⌋ − ⌊n × times⌋ times.
#[must_use]
pub fn scaled<T: Clone>(of: Vec<T>, times: f64) -> Vec<T> {
    let until = |place: usize| (place as f64 * times).floor() as usize;
    let copies = |(place, one): (usize, T)| std::iter::repeat_n(one, until(place + 1).saturating_sub(until(place)));
    of.into_iter().enumerate().flat_map(copies).collect()
}

/// The jobs of a part, `number` from 0, of so many jobs each, counted around the recording's end; none asks for more than half of all slots, so that
/// no job is the whole cluster's. They come so fast that what they ask for is `load` times what so many slots have from the first submission to the last.
#[must_use]
pub fn slice(recorded: &[TraceJob], number: usize, jobs: usize, slots: u64, load: f64) -> Vec<TraceJob> {
    let parts = (recorded.len() / jobs.max(1)).max(1);
    let mut part: Vec<TraceJob> = recorded.iter().skip(number % parts * jobs).take(jobs).cloned().collect();
    let Some(first_ms) = part.first().map(|job| job.submitted_ms) else { return part };
    let most = u16::try_from(slots / 2).unwrap_or(u16::MAX).max(1);
    for job in &mut part {
        job.workers = job.workers.min(most);
        job.min = job.min.map(|min| min.min(most));
        job.max = job.max.map(|max| max.min(most));
    }
    let lasts_ms = part.iter().map(|job| job.submitted_ms - first_ms).max().unwrap_or(0) as f64;
    let wanted_ms = part.iter().map(wanted_slot_ms).sum::<f64>() / (slots.max(1) as f64 * load);
    let slower = if lasts_ms > 0.0 { wanted_ms / lasts_ms } else { 0.0 };
    for job in &mut part {
        let after_ms = ((job.submitted_ms - first_ms) as f64 * slower).round() as u64;
        let until_ms = job.deadline_ms.map(|at| at.saturating_sub(job.submitted_ms));
        job.submitted_ms = after_ms;
        job.deadline_ms = until_ms.map(|until_ms| after_ms + until_ms);
    }
    part
}

/// What a job asks for; of one whose work only its model says nothing.
fn wanted_slot_ms(job: &TraceJob) -> f64 {
    match job.work {
        Work::Seconds(seconds) => seconds * 1_000.0 * f64::from(job.workers),
        Work::OfModel => 0.0,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::trace::{Format, parse};

    fn recorded() -> Vec<TraceJob> {
        let rows = (0..10).map(|n| format!("{},{},{}\n", n * 100, 50 + n, 1 + n));
        parse(&format!("submitted_s,duration_s,workers\n{}", rows.collect::<String>()), Format::Csv).unwrap()
    }

    #[test]
    fn what_is_between_two_moments_begins_with_the_first_of_them() {
        let mut recorded = recorded();
        recorded[5].deadline_ms = Some(620_000);
        let part = between(recorded, 450_000, Some(700_000));
        let told: Vec<_> = part.iter().map(|job| (job.name.as_str(), job.submitted_ms, job.deadline_ms)).collect();
        assert_eq!(told, [("job-5", 50_000, Some(170_000)), ("job-6", 150_000, None)]);
        assert!(between(super::tests::recorded(), 900_001, None).is_empty());
        assert_eq!(between(super::tests::recorded(), 0, None), super::tests::recorded());
    }

    #[test]
    fn so_many_times_as_many_are_spread_evenly() {
        assert_eq!(scaled(vec![0, 1, 2, 3, 4], 0.4), [2, 4]);
        assert_eq!(scaled(vec![0, 1, 2], 1.5), [0, 1, 1, 2]);
        assert_eq!(scaled(vec![0, 1], 3.0), [0, 0, 0, 1, 1, 1]);
        assert_eq!(scaled((0..1_000).collect(), 1.0), (0..1_000).collect::<Vec<_>>());
    }

    #[test]
    fn as_many_as_fit_come_and_all_that_were_recorded() {
        assert_eq!([50_000, 300_000, 2_000_000].map(times_max), [20.0, 3.333, 1.0]);
        let fit = |jobs: usize| (jobs as f64 * times_max(jobs)).floor() as usize;
        assert!((1..=JOBS_MAX).step_by(997).all(|jobs| fit(jobs) <= JOBS_MAX));
    }

    #[test]
    fn a_part_has_the_load_that_was_asked_for() {
        let part = slice(&recorded(), 1, 4, 64, 2.0);
        let names: Vec<&str> = part.iter().map(|job| job.name.as_str()).collect();
        assert_eq!(names, ["job-4", "job-5", "job-6", "job-7"]);
        let wanted: f64 = part.iter().map(wanted_slot_ms).sum();
        let lasts_ms = part[3].submitted_ms as f64;
        assert!((wanted / (lasts_ms * 64.0) - 2.0).abs() < 0.01, "{wanted} in {lasts_ms}");
        assert_eq!((part[0].submitted_ms, part[1].submitted_ms * 3), (0, part[3].submitted_ms));
    }

    #[test]
    fn parts_begin_again_at_the_end_and_nobody_asks_for_more_than_half() {
        assert_eq!(slice(&recorded(), 2, 4, 64, 1.0), slice(&recorded(), 0, 4, 64, 1.0));
        let workers: Vec<u16> = slice(&recorded(), 0, 10, 8, 1.0).iter().map(|job| job.workers).collect();
        assert_eq!(workers, [1, 2, 3, 4, 4, 4, 4, 4, 4, 4]);
        assert!(slice(&[], 3, 4, 64, 1.0).is_empty());
    }
}
