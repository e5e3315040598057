//! How far each job is, as its leader last said. Never logged, lost with the process, bounded. Next file: `agents.rs`.

use events_schema::JobId;
use events_schema::orders::Telemetry;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Jobs kept: more than run at a time in a cell of a thousand servers.
const JOBS_MAX: usize = 16_384;

/// The newest telemetry of each job. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct TelemetryBoard(Arc<RwLock<Board>>);

#[derive(Debug, Default)]
struct Board {
    arrivals: u64,
    jobs: BTreeMap<JobId, (u64, Telemetry)>,
}

impl TelemetryBoard {
    /// What a job's leader last said; `None` if it never ran under this process.
    #[must_use]
    pub fn get(&self, job: &JobId) -> Option<Telemetry> {
        let board = self.0.read().unwrap_or_else(PoisonError::into_inner);
        board.jobs.get(job).map(|(_, telemetry)| telemetry.clone())
    }

    /// What arrived after a mark, in the order of its arrival, and the mark to ask with next; 0 asks for everything.
    #[must_use]
    pub fn since(&self, mark: u64) -> (u64, Vec<Telemetry>) {
        let board = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut newer: Vec<&(u64, Telemetry)> = board.jobs.values().filter(|(arrival, _)| *arrival > mark).collect();
        newer.sort_by_key(|(arrival, _)| *arrival);
        (board.arrivals, newer.into_iter().map(|(_, telemetry)| telemetry.clone()).collect())
    }

    /// Keeps it, unless a later generation has spoken, or a number in it is none: no JSON has those, so nothing read from here has to ask. When
    /// full, the job that has been silent longest is forgotten.
    pub fn put(&self, telemetry: Telemetry) {
        if !telemetry.loss.is_finite() || !telemetry.samples_per_second.is_finite() {
            return;
        }
        let mut board = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if board.jobs.get(&telemetry.job).is_some_and(|(_, known)| known.generation > telemetry.generation) {
            return;
        }
        board.arrivals += 1;
        let arrival = board.arrivals;
        board.jobs.insert(telemetry.job.clone(), (arrival, telemetry));
        if board.jobs.len() > JOBS_MAX {
            let silent = board.jobs.iter().min_by_key(|(_, (arrival, _))| *arrival).map(|(job, _)| job.clone());
            if let Some(job) = silent {
                board.jobs.remove(&job);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::{Generation, Step};

    fn telemetry(job: &str, generation: u64, step: u64) -> Telemetry {
        Telemetry {
            job: JobId::parse(job).unwrap(),
            generation: Generation(generation),
            step: Step(step),
            steps_total: 100,
            epoch: 0,
            loss: 1.0,
            samples_per_second: 1.0,
            step_us: 1,
            members: 1,
            data_wait_us: None,
            checkpoint_every_ms: None,
        }
    }

    #[test]
    fn what_has_no_number_is_not_kept() {
        let board = TelemetryBoard::default();
        board.put(telemetry("job-a", 1, 10));
        board.put(Telemetry { loss: f64::NAN, ..telemetry("job-a", 1, 11) });
        board.put(Telemetry { samples_per_second: f64::INFINITY, ..telemetry("job-a", 1, 12) });
        assert_eq!(board.get(&JobId::parse("job-a").unwrap()).unwrap().step, Step(10));
    }

    #[test]
    fn an_older_generation_does_not_overwrite_a_newer_one() {
        let board = TelemetryBoard::default();
        board.put(telemetry("job-a", 2, 10));
        board.put(telemetry("job-a", 1, 50));
        assert_eq!(board.get(&JobId::parse("job-a").unwrap()).unwrap().step, Step(10));
        board.put(telemetry("job-a", 2, 11));
        assert_eq!(board.get(&JobId::parse("job-a").unwrap()).unwrap().step, Step(11));
        assert_eq!(board.get(&JobId::parse("job-b").unwrap()), None);
    }

    #[test]
    fn each_job_is_told_once_until_it_speaks_again() {
        let board = TelemetryBoard::default();
        assert_eq!(board.since(0), (0, Vec::new()));
        board.put(telemetry("job-b", 1, 1));
        board.put(telemetry("job-a", 1, 5));
        board.put(telemetry("job-b", 1, 2));
        let (mark, all) = board.since(0);
        let told: Vec<(&str, Step)> = all.iter().map(|one| (one.job.as_str(), one.step)).collect();
        assert_eq!(told, [("job-a", Step(5)), ("job-b", Step(2))]);
        assert_eq!(board.since(mark), (mark, Vec::new()));
        board.put(telemetry("job-a", 1, 6));
        assert_eq!(board.since(mark).1.len(), 1);
    }
}
