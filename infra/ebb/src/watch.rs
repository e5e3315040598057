//! `ebb watch` and `ebb wait`: how far jobs are, as bars on a terminal and as a line per change elsewhere (for programs: the job's record as
//! one line of JSON), until they are over.
//!
//! Reads the job record a few times a second; events tell what happened, the record tells what is.

use crate::args::WaitArgs;
use crate::failure::Failure;
use crate::find;
use crate::output::{Output, json_line, line, terminal};
use crate::wire::{
    DamagedCheckpoint, GrowthPaused, Job, LostMember, Sentence, Stall, Straggler, UnreadableCheckpoint, words,
};
use gateway_api::JobPhase;
use gateway_client::{Answer, Client, WantedJobs};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// Four times a second looks live and costs the service nothing, for as many jobs as have a bar; of more, each is looked at less often.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long a service may not answer before it is given up: the time a restart takes.
const AWAY_MAX: Duration = Duration::from_secs(15);
/// Bars shown at once.
const BARS_MAX: usize = 20;
/// Without a terminal a line is printed when so many percent more are done.
const LINE_EVERY_PERCENT: u64 = 5;

/// `ebb watch [ID]`.
pub async fn watch(client: &Client, output: Output, id: Option<&str>) -> Result<(), Failure> {
    let ids = match id {
        Some(id) => vec![find::job(client, id).await?],
        None => find::unfinished(&client.jobs(&WantedJobs::default()).await?),
    };
    let show = match output {
        Output::Table => Show::Progress,
        Output::Json => Show::Records,
        Output::Name => Show::Nothing,
    };
    if ids.is_empty() {
        // A program reads a stream that has ended.
        if show == Show::Progress {
            line("no unfinished job; `ebb jobs` lists all");
        }
        return Ok(());
    }
    if ids.len() > BARS_MAX && show == Show::Progress {
        let jobs = ids.len();
        line(format!(
            "{BARS_MAX} of {jobs} unfinished jobs are shown, all are waited for; `ebb watch ID` shows any other"
        ));
    }
    let ended = until(client, &ids, show, &Until::default()).await?;
    if output == Output::Name {
        ended.iter().for_each(|job| line(&job.id));
    }
    ended.iter().try_for_each(|job| model_or_failure(job))
}

/// An error unless the job ended with a model; its exit code says how it ended instead.
pub fn model_or_failure(job: &Job) -> Result<(), Failure> {
    if job.phase == "finished" {
        return Ok(());
    }
    Err(Failure::NoModel { job: job.id.clone(), phase: job.phase.to_string(), reason: job.failure.clone() })
}

/// `ebb wait JOB…`.
pub async fn wait(client: &Client, output: Output, args: &WaitArgs) -> Result<(), Failure> {
    let mut ids = Vec::with_capacity(args.ids.len());
    for id in &args.ids {
        ids.push(find::job(client, id).await?);
    }
    let wanted = Until { phase: args.until.phase(), within: args.timeout };
    let records = until(client, &ids, Show::Nothing, &wanted).await?;
    match output {
        Output::Json => records.iter().for_each(json_line),
        Output::Name => records.iter().for_each(|job| line(&job.id)),
        Output::Table => records.iter().for_each(|job| line(format!("{}  {}", job.id, summary(job)))),
    }
    records.iter().try_for_each(|job| wanted.judge(job))
}

/// What is printed while jobs are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// Bars, or lines where there is no terminal.
    Progress,
    /// A job's record in one line at every change; the last one is how it ended.
    Records,
    /// No line: it changes nothing that a person waits for.
    Nothing,
}

/// What jobs are watched for, and how long.
#[derive(Debug, Clone, Default)]
pub struct Until {
    /// Until all are over, or suspended, which only their user ends; or until all have reached this phase.
    pub phase: Option<JobPhase>,
    /// No longer than that.
    pub within: Option<Duration>,
}

impl Until {
    fn met(&self, job: &Job) -> bool {
        let stands = job.is_over() || job.phase == "suspended";
        match self.phase {
            None => stands,
            // Whoever is over comes to no other phase any more.
            Some(phase) => job.is_over() || has_come_to(job.phase.as_str(), phase),
        }
    }

    fn wanted(&self) -> &'static str {
        self.phase.map_or("finished", JobPhase::as_str)
    }

    /// Whether a job that is watched no longer came to what was wanted, or how it ended instead.
    pub fn judge(&self, job: &Job) -> Result<(), Failure> {
        match self.phase {
            Some(phase) if has_come_to(job.phase.as_str(), phase) => Ok(()),
            Some(phase) if job.phase == "finished" => {
                Err(Failure::plain(format!("job {} finished, and will not be {} any more", job.id, phase.as_str())))
            }
            _ => model_or_failure(job),
        }
    }
}

/// Whether a job in a phase has come to the one that is waited for: it is in it, or has finished, which leads through queue, start and
/// training.
fn has_come_to(phase: &str, wanted: JobPhase) -> bool {
    let on_the_way = matches!(wanted, JobPhase::Queued | JobPhase::Starting | JobPhase::Running);
    phase == wanted.as_str() || (on_the_way && phase == JobPhase::Finished.as_str())
}

/// Shows jobs until all are as wanted; their last records.
pub async fn until(client: &Client, ids: &[String], show: Show, until: &Until) -> Result<Vec<Answer<Job>>, Failure> {
    let bars = MultiProgress::new();
    let shown = |number: usize| if show == Show::Progress && number >= BARS_MAX { Show::Nothing } else { show };
    let view = |(number, id): (usize, &String)| View::new(id, ids.len() > 1, &bars, shown(number));
    let mut views: Vec<View> = ids.iter().enumerate().map(view).collect();
    let looked = async {
        let mut answered = Instant::now();
        loop {
            // Who came to what was wanted is not looked at again: it may have left it meanwhile.
            for view in views.iter_mut().filter(|view| !view.ended) {
                match client.job(&view.id).await {
                    Ok(job) => {
                        view.update(&job, until);
                        view.job = Some(job);
                        answered = Instant::now();
                    }
                    // The others would not be answered either, each after a time-out of its own.
                    Err(failure) if failure.may_pass() && answered.elapsed() < AWAY_MAX => break,
                    Err(failure) => return Err(Failure::from(failure)),
                }
            }
            let open = views.iter().filter(|view| !view.ended).count();
            if open == 0 {
                return Ok(views.iter().filter_map(|view| view.job.clone()).collect());
            }
            tokio::time::sleep(pause(open)).await;
        }
    };
    let Some(within) = until.within else { return looked.await };
    if let Ok(ended) = tokio::time::timeout(within, looked).await {
        return ended;
    }
    let late = views.iter().find(|view| !view.ended).or(views.first());
    let phase = |view: &View| view.job.as_ref().map_or("not heard of", |job| job.phase.as_str()).to_owned();
    let (job, phase) = late.map(|view| (view.id.clone(), phase(view))).unwrap_or_default();
    Err(Failure::TimedOut { job, phase, wanted: until.wanted().to_owned(), within })
}

/// Between two looks at so many jobs: the service is asked no more often than for a screen of them.
fn pause(jobs: usize) -> Duration {
    LOOK_EVERY * u32::try_from(jobs.div_ceil(BARS_MAX)).unwrap_or(u32::MAX)
}

/// How one job is shown.
struct View {
    id: String,
    prefix: String,
    bar: Option<ProgressBar>,
    show: Show,
    last_line: String,
    /// As last heard.
    job: Option<Answer<Job>>,
    ended: bool,
}

impl View {
    fn new(id: &str, many: bool, bars: &MultiProgress, show: Show) -> Self {
        let prefix = if many { format!("{id}  ") } else { String::new() };
        let bar = (show == Show::Progress && terminal()).then(|| {
            let style =
                ProgressStyle::with_template("{prefix}{wide_bar:.cyan/blue} {pos}/{len} {elapsed} left {eta}\n  {msg}");
            let bar = bars.add(ProgressBar::new(0)).with_prefix(prefix.clone());
            style.into_iter().for_each(|s| bar.set_style(s));
            bar
        });
        Self { id: id.to_owned(), prefix, show, bar, last_line: String::new(), job: None, ended: false }
    }

    fn update(&mut self, job: &Answer<Job>, until: &Until) {
        if self.ended {
            return;
        }
        self.ended = until.met(job);
        if let Some(bar) = &self.bar {
            if let Some(progress) = job.progress {
                bar.set_length(progress.steps_total);
                bar.set_position(progress.step);
            }
            bar.set_message(summary(job));
            if self.ended {
                if let Some(outcome) = &job.outcome {
                    bar.set_length(outcome.step);
                    bar.set_position(outcome.step);
                }
                bar.abandon();
            }
            return;
        }
        let mark = change_mark(job);
        if mark == self.last_line {
            return;
        }
        self.last_line = mark;
        match self.show {
            Show::Progress => line(format!("{}{}", self.prefix, full_line(job))),
            Show::Records => json_line(job),
            Show::Nothing => {}
        }
    }
}

/// What has to change for another line: everything but the numbers that change all the time.
fn change_mark(job: &Job) -> String {
    let part = job.progress.map_or(0, |p| 100 * p.step / p.steps_total.max(1) / LINE_EVERY_PERCENT);
    let scaling = job.last_scaling.as_ref().map(|s| s.at.to_string()).unwrap_or_default();
    let damaged = job.damaged_checkpoints.len();
    let stall = job.last_stall.as_ref().map(|stall| (stall.at.as_str(), stall.tried.len()));
    let lost = job.last_lost_member.as_ref().map(|lost| (&lost.at, &lost.executor));
    let paused = job.growth_paused.as_ref().map(|paused| &paused.until);
    let slow: Vec<&String> = job.stragglers.iter().map(|straggler| &straggler.executor).collect();
    let told = format!("{stall:?} {lost:?} {paused:?} {slow:?}");
    format!("{} {} {part} {scaling} {} {damaged} {told}", job.phase, job.slots.len(), job.restarts)
}

fn full_line(job: &Job) -> String {
    match job.progress {
        Some(p) => format!("step {}/{}  {}", p.step, p.steps_total, summary(job)),
        None => summary(job),
    }
}

/// Everything beside the bar, in one line.
#[must_use]
pub fn summary(job: &Job) -> String {
    let mut parts = vec![job.phase.to_string()];
    if let Some(outcome) = &job.outcome {
        parts.extend(outcome.train_loss.map(|loss| format!("loss {loss:.4}")));
        let accuracy = outcome.metrics.as_ref().and_then(|metrics| metrics.accuracy);
        parts.extend(accuracy.map(|accuracy| format!("accuracy {:.2} %", 100.0 * accuracy)));
        parts.push(format!("model {}", outcome.model_digest));
        return parts.join("  ");
    }
    if let Some(p) = job.progress {
        parts.push(format!("epoch {}  loss {:.4}  {:.0} samples/s", p.epoch, p.loss, p.samples_per_second));
    }
    parts.push(format!("slots {}/{}", job.slots.len(), job.workers.max));
    if let Some(s) = &job.last_scaling {
        parts.push(format!("last {}→{} ({})", s.from, s.to, words(&s.cause)));
    }
    let waits = job.reason.as_ref().map(|r| words(&r.waits)).unwrap_or_default();
    if !waits.is_empty() && job.progress.is_none() {
        parts.push(format!("waits for {waits}"));
    }
    parts.extend(job.damaged_checkpoints.last().map(DamagedCheckpoint::sentence));
    parts.extend(job.unreadable_checkpoint.as_ref().map(UnreadableCheckpoint::sentence));
    parts.extend(job.last_stall.as_ref().map(Stall::sentence));
    parts.extend(job.last_lost_member.as_ref().map(LostMember::sentence));
    parts.extend(job.growth_paused.as_ref().map(GrowthPaused::sentence));
    parts.extend(job.stragglers.iter().map(Straggler::sentence));
    parts.extend(job.failure.clone());
    parts.join("  ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::{Value, json};

    fn read(record: &Value) -> Job {
        serde_json::from_value(record.clone()).unwrap()
    }

    #[test]
    fn many_jobs_are_looked_at_less_often_each() {
        let looks_per_s = |jobs: usize| jobs as f64 / pause(jobs).as_secs_f64();
        assert_eq!(pause(1), LOOK_EVERY);
        assert!([BARS_MAX, BARS_MAX + 1, 10_000].iter().all(|jobs| looks_per_s(*jobs) <= looks_per_s(BARS_MAX)));
    }

    #[test]
    fn a_damaged_checkpoint_is_another_line_that_says_so() {
        let record = json!({"id": "job-a", "phase": "starting", "slots": ["local/0"], "workers": {"min": 1, "max": 4}});
        let before = read(&record);
        let mut job = before.clone();
        let found = json!({"step": 120, "object": "k", "reason": "checkpoint object `k` is missing", "instead": 60});
        job.damaged_checkpoints = vec![serde_json::from_value(found).unwrap()];
        assert_ne!(change_mark(&before), change_mark(&job));
        let sentence = "the checkpoint of step 120 is damaged (checkpoint object `k` is missing), so the checkpoint of step 60 is used instead";
        assert!(summary(&job).ends_with(sentence), "{}", summary(&job));
        job.damaged_checkpoints[0].instead = 0;
        assert!(summary(&job).ends_with("so the job begins anew"));
    }

    #[test]
    fn whatever_befell_a_job_is_another_line_that_says_so() {
        let record = json!({"id": "job-a", "phase": "running", "slots": ["local/0"], "workers": {"min": 1, "max": 4}});
        let before = read(&record);
        let befell = [
            (
                json!({"last_stall": {"at": "t", "step": 7, "cause": "store", "tried": ["wait"]}}),
                "no progress at step 7 (t): the object store did not answer; it goes on by itself when the store answers",
            ),
            (
                json!({"last_lost_member": {"at": "t", "executor": "job-a/e3", "slot": "local/2", "noticed": {"exit": {"status": 1}}}}),
                "lost job-a/e3 on local/2 (t): its process ended, status 1",
            ),
            (
                json!({"last_lost_member": {"at": "t", "executor": "job-a/e3", "slot": "local/2", "noticed": "link"}}),
                "lost job-a/e3 on local/2 (t): the others could not reach it",
            ),
            (
                json!({"growth_paused": {"at": "t", "until": "u", "executor": "job-a/e3", "cause": "slow"}}),
                "does not grow until u: job-a/e3 was sent the replica far too slowly",
            ),
            (
                json!({"stragglers": [{"executor": "job-a/e3", "slot": "local/2", "since": "t", "unit_us": 90, "peers_unit_us": 30}]}),
                "job-a/e3 on local/2 straggles: 90 µs for what takes the others 30 µs",
            ),
            (
                json!({"stragglers": [{"executor": "job-a/e3", "slot": "local/2", "since": "t", "unit_us": 90, "peers_unit_us": 30, "cause": "data"}]}),
                "job-a/e3 on local/2 straggles: 90 µs for what takes the others 30 µs, because it waits for rows",
            ),
        ];
        for (said, sentence) in befell {
            let mut record = record.clone();
            record.as_object_mut().unwrap().extend(said.as_object().unwrap().clone());
            let job = read(&record);
            assert_ne!(change_mark(&before), change_mark(&job));
            assert!(summary(&job).ends_with(sentence), "{}", summary(&job));
        }
    }

    #[test]
    fn who_waits_for_a_phase_is_content_with_a_later_one_but_not_with_another_end() {
        let job = |phase: &str| read(&json!({"id": "job-a", "phase": phase}));
        let running = Until { phase: Some(JobPhase::Running), within: None };
        let met = |until: &Until, phase: &str| until.met(&job(phase));
        assert!(!met(&running, "queued") && !met(&running, "suspended") && met(&running, "running"));
        assert!(met(&running, "finished") && running.judge(&job("finished")).is_ok());
        assert!(met(&running, "failed") && running.judge(&job("failed")).unwrap_err().exit_code() == 5);
        let over = Until::default();
        assert!(met(&over, "suspended") && over.judge(&job("suspended")).unwrap_err().exit_code() == 7);
        let suspended = Until { phase: Some(JobPhase::Suspended), within: None };
        assert!(met(&suspended, "suspended") && suspended.judge(&job("suspended")).is_ok());
        assert_eq!(suspended.judge(&job("cancelled")).unwrap_err().exit_code(), 6);
        assert_eq!(suspended.judge(&job("finished")).unwrap_err().exit_code(), 1, "it ended well, but not as wanted");
    }

    #[test]
    fn a_loss_that_nobody_measured_is_not_told_as_one() {
        let ended = |loss: Value| {
            let outcome = json!({"step": 10, "model_digest": "d", "train_loss_micro": loss, "train_loss": loss});
            let job = json!({"id": "job-a", "phase": "finished", "outcome": outcome});
            summary(&read(&job))
        };
        assert_eq!(ended(json!(0)), "finished  loss 0.0000  model d");
        assert_eq!(ended(json!(null)), "finished  model d");
    }

    #[test]
    fn a_running_job_is_one_line() {
        let record = json!({"id": "job-a", "phase": "running", "slots": ["local/0"], "workers": {"min": 1, "max": 4},
            "progress": {"step": 10, "steps_total": 100, "epoch": 2, "loss": 0.5, "samples_per_second": 640.2, "step_us": 9000, "members": 1},
            "last_scaling": {"at": "t", "from": 4, "to": 1, "cause": "reclaimed"}, "reason": {"policy": "ebb", "cause": "reclaimed", "waits": {"slots": {"missing": 3}}}});
        let job = read(&record);
        assert_eq!(
            full_line(&job),
            "step 10/100  running  epoch 2  loss 0.5000  640 samples/s  slots 1/4  last 4→1 (reclaimed)"
        );
    }
}
