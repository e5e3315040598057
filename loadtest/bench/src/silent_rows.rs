//! A server that says nothing more: from the moment its agent and its executor are stopped to the event that the other member trains again, small or with a large
//! replica.

use crate::Effort;
use crate::goal;
use crate::growth_rows::WORKERS;
use crate::row::{Row, Times};
use crate::subject::Subject;
use gateway_api::{DeclareFleet, Job, PublishDemand, ServerSlots, SlotsOfServer};
use loadtest_harness::HarnessError;
use loadtest_harness::far_server::{FarServer, SERVER};
use loadtest_harness::service::Service;
use loadtest_harness::watched_job::WatchedJob;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Names of the rows of a job whose replica is so large.
macro_rules! names {
    ($size:literal) => {
        [concat!("silent server to training again", $size), concat!("silent server, steps lost", $size)]
    };
}

/// Names of the rows: of a small job, and of the first sizes of `growth_rows.rs`.
pub const NAMES: [[&str; 2]; 3] = [names!(""), names!(", replica of 106 MB"), names!(", replica of 655 MB")];
/// Whose the slots of the second server are.
const FLEET: &str = "distant";
/// Steps between two disturbances.
const STEPS_BETWEEN: u64 = 8;
/// Longest wait for any one thing: who was silent starts again, and is sent the replica.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// A job on two servers of a slot each, of which one falls silent again and again.
pub async fn rows(
    folder: &Path,
    [name, steps_lost]: [&'static str; 2],
    subject: &Subject,
    effort: Effort,
) -> Result<[Row; 2], HarnessError> {
    let folder = folder.join(name.replace([' ', ','], "-"));
    // How many slots it has is said from here, also where it would be faster on one.
    let options = subject.service(&folder.join("near"), 1)?.with("--speeds", Some("assumed"));
    let service = Service::start(options).await?;
    let python = subject.torch.as_ref().map(|torch| torch.python.as_str());
    let mut far = FarServer::start(&service, &folder.join("far"), 1, python).await?;
    let client = service.client()?;
    let servers = vec![ServerSlots { server: SERVER.to_owned(), slots: SlotsOfServer::Count(1) }];
    client.declare_fleet(FLEET, &DeclareFleet { servers, offers: None, reclaim_deadline_ms: None }).await?;
    let job = subject.submit(&client, "bench-silence").await?;
    let steps_ms = Mutex::new(Vec::new());
    let note = |job: &Job| {
        let progress = job.progress.filter(|progress| progress.members == WORKERS);
        if let (Some(progress), Ok(mut told)) = (progress, steps_ms.lock()) {
            told.push(progress.step_us as f64 / 1e3);
        }
    };
    let mut watched = WatchedJob::follow(&client, &job.id, note).waiting(WAIT_MAX);
    let mut times_ms = Vec::new();
    // The near one is there first, and leads.
    watched.until_members(1).await?;
    client.demand(FLEET, &PublishDemand::needed(0)).await?;
    watched.until_members(WORKERS).await?;
    watched.until_steps(STEPS_BETWEEN).await?;
    let undisturbed = steps_ms.lock().map(|told| Times::of_ms(told.clone())).unwrap_or_default();
    for _ in 0..effort.pick(2, 5) {
        watched.disturbed();
        let lost = Instant::now();
        far.silence().await?;
        times_ms.push(watched.until_recovered().await?.duration_since(lost).as_secs_f64() * 1e3);
        far.hear();
        watched.until_members(WORKERS).await?;
        watched.until_steps(STEPS_BETWEEN).await?;
    }
    let lost = watched.steps_lost();
    drop(watched);
    service.stop().await?;
    let times = Times::of_ms(times_ms);
    let who = "agent and executor of the far server stopped, whose member does not lead";
    Ok([
        Row {
            name,
            value: times.at(0.99),
            unit: "ms p99",
            baseline_name: "ms a step",
            baseline: undisturbed.median(),
            goal: Some(goal::AFTER_SILENCE.of_each(&times, undisturbed.median(), None)),
            note: format!("{who}; {}", times.spread()),
        },
        Row {
            name: steps_lost,
            value: lost as f64,
            unit: "steps",
            baseline_name: "times that it fell silent",
            baseline: times.len() as f64,
            goal: Some(goal::NONE.counted(lost as f64, 0.0)),
            note: format!("{who}; done when it did, as far as that had been told, and done again"),
        },
    ])
}
