//! What `ebb demo` runs: a real model trained through a rising and falling tide, then again undisturbed, and the proof that both are the
//! same model bit for bit.
//!
//! The service is a child process, so that kills and take-backs are real. Every event of the story waits for progress that it
//! sees over the API, never for time. Reading order: [`story`] (what happens), `screen.rs` (how it
//! looks), `plot.rs` (as a picture), `verdict.rs` (what is concluded).

mod plot;
mod screen;
pub mod story;
pub mod verdict;

use loadtest_harness::HarnessError;
use loadtest_harness::scratch::Scratch;
use loadtest_harness::service::{Service, ServiceOptions, fresh_topics, tail};
use screen::Screen;
use std::path::Path;
use std::time::Instant;
use story::Story;
use verdict::Verdict;

/// Slots of the demo's machine.
pub const SLOTS: u16 = 4;

/// What a demo runs on, and what it leaves.
#[derive(Debug, Clone)]
pub struct DemoOptions<'a> {
    /// A log other than a file in its own directory.
    pub log: Option<&'a str>,
    /// An object store other than a folder in its own directory.
    pub store: Option<&'a str>,
    /// Where to write slots and loss over time as a picture (SVG).
    pub plot: Option<&'a Path>,
    /// Whether a person looks at standard error.
    pub live: bool,
}

/// Runs it in `folder`, and says what came of it. A result that breaks a promise is one too: [`Verdict::check`] names it.
pub async fn run(options: &DemoOptions<'_>, folder: &Scratch) -> Result<Verdict, HarnessError> {
    let begun = Instant::now();
    // Topics of an earlier demo on the same brokers must not be gone on with: each demo has its own.
    let log = options.log.map(|url| fresh_topics(url, &folder.name()));
    let store = options.store.map(|url| format!("{}/{}", url.trim_end_matches('/'), folder.name()));
    let service =
        ServiceOptions::new(folder.path(), SLOTS)?.with("--log", log.as_deref()).with("--store", store.as_deref());
    let screen = Screen::new(SLOTS, begun, options.live);
    screen.tell(&format!("starting Ebb with {SLOTS} slots in {}", folder.path().display()));
    let service = Service::start(service).await?;
    let told = Story::new(&service, &screen)?.tell().await;
    screen.close();
    let record = match told {
        Ok(record) => record,
        Err(failure) => {
            let last = tail(folder.path());
            return Err(if last.is_empty() { failure } else { HarnessError::local(failure.to_string(), last) });
        }
    };
    service.stop().await?;
    if let Some(file) = options.plot {
        std::fs::write(file, plot::svg(&screen.recording(), SLOTS))
            .map_err(|e| HarnessError::local(format!("`{}` cannot be written", file.display()), e))?;
    }
    Ok(verdict::conclude(record, begun.elapsed()))
}
