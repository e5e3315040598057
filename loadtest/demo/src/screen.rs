//! How the demo looks while it runs: a line per event of the story, and below them one line that is always now. Elsewhere than
//! on a terminal the line of now is printed when its slots or a tenth of the steps change.
//!
//! Writes to standard error, so that standard output holds the result alone.

use crate::plot::{Moment, Recording};
use gateway_api::Job;
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// Parts of the steps after which a plain line is printed.
const PLAIN_PARTS: u64 = 10;
/// Moments kept for the picture: an hour of them.
const MOMENTS_MAX: usize = 100_000;
/// How often the spinner turns.
const TURN_EVERY: Duration = Duration::from_millis(120);

/// The demo's display.
pub struct Screen {
    bar: Option<ProgressBar>,
    slots: u16,
    begun: Instant,
    demand: Cell<u32>,
    last: RefCell<String>,
    recording: RefCell<Recording>,
}

impl Screen {
    /// A display for a machine of so many slots; `live` if a person looks at standard error.
    pub fn new(slots: u16, begun: Instant, live: bool) -> Self {
        let bar = live.then(|| {
            let bar = ProgressBar::new_spinner();
            ProgressStyle::with_template("{spinner:.cyan} {msg}").into_iter().for_each(|s| bar.set_style(s));
            bar.enable_steady_tick(TURN_EVERY);
            bar
        });
        Self::with(bar, slots, begun)
    }

    fn with(bar: Option<ProgressBar>, slots: u16, begun: Instant) -> Self {
        Self { bar, slots, begun, demand: Cell::new(0), last: RefCell::default(), recording: RefCell::default() }
    }

    /// An event of the story.
    pub fn tell(&self, what: &str) {
        let at = self.begun.elapsed().as_secs_f64();
        self.recording.borrow_mut().events.push((at, what.to_owned()));
        self.print(&format!("{at:6.1} s  {what}"));
    }

    /// What followed from the last event.
    pub fn detail(&self, what: &str) {
        self.print(&format!("{:6.1} s    {what}", self.begun.elapsed().as_secs_f64()));
    }

    /// Everything told and shown so far.
    pub fn recording(&self) -> Recording {
        self.recording.borrow().clone()
    }

    /// The fleet's need, from now on.
    pub fn demand(&self, needed: u32) {
        self.demand.set(needed);
    }

    /// How the job stands.
    pub fn update(&self, job: &Job) {
        let Some(progress) = job.progress else { return };
        self.record(job, progress.members, progress.loss);
        let now = line(self.demand.get(), self.slots, job);
        if let Some(bar) = &self.bar {
            bar.set_message(now);
            return;
        }
        let mark = format!(
            "{} {} {} {}",
            job.id,
            progress.members,
            self.demand.get(),
            PLAIN_PARTS * progress.step / progress.steps_total.max(1)
        );
        if *self.last.borrow() != mark {
            self.detail(&now);
            *self.last.borrow_mut() = mark;
        }
    }

    fn record(&self, job: &Job, training: u16, loss: f64) {
        let mut recording = self.recording.borrow_mut();
        if recording.moments.len() < MOMENTS_MAX {
            let at = self.begun.elapsed().as_secs_f64();
            let needed = u16::try_from(self.demand.get()).unwrap_or(u16::MAX);
            recording.moments.push(Moment { at, job: job.id.clone(), training, needed, loss });
        }
    }

    /// Takes the line of now away.
    pub fn close(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn print(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }
}

/// The tide at this moment.
fn line(demand: u32, slots: u16, job: &Job) -> String {
    let progress = job.progress.unwrap_or_default();
    let training = usize::from(progress.members.min(slots));
    let serving = (demand.min(u32::from(slots)) as usize).min(usize::from(slots) - training);
    let idle = usize::from(slots) - training - serving;
    let tide = format!("{}{}{}", "█".repeat(training), "·".repeat(idle), "░".repeat(serving));
    format!(
        "fleet needs {demand}  slots {tide} {training} train  step {:>3}/{}  loss {:.4}  {:.0} samples/s",
        progress.step, progress.steps_total, progress.loss, progress.samples_per_second
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use gateway_api::Progress;

    #[test]
    fn the_tide_shows_who_has_what() {
        let progress = Progress {
            step: 7,
            steps_total: 100,
            loss: 0.25,
            samples_per_second: 640.0,
            members: 1,
            data_wait_us: None,
            ..Progress::default()
        };
        let job = Job { progress: Some(progress), ..Job::default() };
        assert_eq!(line(2, 4, &job), "fleet needs 2  slots █·░░ 1 train  step   7/100  loss 0.2500  640 samples/s");
    }
}
