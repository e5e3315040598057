//! `ebb demo`: a real model trained through a rising and falling tide, then again undisturbed, and the proof that both are the
//! same model bit for bit.
//!
//! The service is a child process, so that kills and take-backs are real. Every event of the story waits for progress that it
//! sees over the API, never for time. Reading order: [`story`] (what happens), `tide.rs` (what is seen), `screen.rs` (how it
//! looks), `plot.rs` (as a picture), `verdict.rs` (what is concluded).

mod plot;
pub(crate) mod screen;
pub mod story;
pub(crate) mod tide;
pub mod verdict;

use crate::args::DemoArgs;
use crate::failure::Failure;
use crate::output::{Output, line};
use crate::roles::signals::unless_interrupted;
use crate::scratch::Scratch;
use crate::service::{Service, ServiceOptions, tail};
use screen::Screen;
use std::time::Instant;
use story::Story;
use verdict::Verdict;

/// Slots of the demo's machine.
pub const SLOTS: u16 = 4;

/// `ebb demo`.
pub async fn demo(args: &DemoArgs, output: Output) -> Result<(), Failure> {
    let folder = Scratch::fresh("ebb-demo")?;
    let result = match unless_interrupted(run(args, &folder)).await {
        Some(result) => result?,
        None => return folder.remove().await.and(Err(Failure::Interrupted)),
    };
    match output {
        Output::Json => line(result.json().to_string()),
        Output::Table | Output::Name => line(result.table()),
    }
    if args.keep {
        line(format!("kept: {}", folder.path().display()));
    } else {
        folder.remove().await?;
    }
    result.check()
}

async fn run(args: &DemoArgs, folder: &Scratch) -> Result<Verdict, Failure> {
    let begun = Instant::now();
    // Topics of an earlier demo on the same brokers must not be gone on with: each demo has its own.
    let log = args.log.as_deref().map(|url| fresh_topics(url, &folder.name()));
    let store = args.store.as_deref().map(|url| format!("{}/{}", url.trim_end_matches('/'), folder.name()));
    let options =
        ServiceOptions::new(folder.path(), SLOTS)?.with("--log", log.as_deref()).with("--store", store.as_deref());
    let screen = Screen::new(SLOTS, begun);
    screen.tell(&format!("starting Ebb with {SLOTS} slots in {}", folder.path().display()));
    let service = Service::start(options).await?;
    let told = Story::new(&service, &screen)?.tell().await;
    screen.close();
    let record = match told {
        Ok(record) => record,
        Err(failure) => {
            let last = tail(folder.path());
            return Err(if last.is_empty() { failure } else { Failure::local(failure.to_string(), last) });
        }
    };
    service.stop().await?;
    if let Some(file) = &args.plot {
        std::fs::write(file, plot::svg(&screen.recording(), SLOTS))
            .map_err(|e| Failure::local(format!("`{}` cannot be written", file.display()), e))?;
    }
    Ok(verdict::conclude(record, begun.elapsed()))
}

/// The same brokers with topics of our own, unless the URL already names some.
pub(crate) fn fresh_topics(url: &str, name: &str) -> String {
    if url.contains("prefix=") || !url.starts_with("kafka") {
        return url.to_owned();
    }
    let joint = if url.contains('?') { '&' } else { '?' };
    format!("{url}{joint}prefix={name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_demo_has_its_own_topics_on_shared_brokers() {
        assert_eq!(fresh_topics("kafka://h:1", "x"), "kafka://h:1?prefix=x");
        assert_eq!(fresh_topics("kafka://h:1?plaintext=allow", "x"), "kafka://h:1?plaintext=allow&prefix=x");
        assert_eq!(fresh_topics("kafka://h:1?prefix=mine", "x"), "kafka://h:1?prefix=mine");
        assert_eq!(fresh_topics("file:///log", "x"), "file:///log");
    }
}
