//! Until when a role runs: a signal, the end of its input if that is asked for, or the end of a part by itself. A second signal ends the
//! process at once.

use crate::failure::{Failure, exit_code};
use crate::output::{Output, mention};
use crate::roles::signals::{Signals, input_ended};

/// Runs parts until they are to stop, stops them, and says what failed: the part that ended by itself, or what stopping found.
///
/// `signals` were listened for before anybody was told that the parts run, for who is told may send one at once. `failed` resolves when a part ends by itself; `stop` gets all of them, and ends.
pub async fn run_until_stopped<P>(
    parts: P,
    failed: impl AsyncFnOnce(&P) -> String,
    stop: impl AsyncFnOnce(P) -> Result<(), Failure>,
    until_input_ends: bool,
    goodbye: Option<&str>,
    mut signals: Signals,
) -> Result<(), Failure> {
    let (failed, signalled) = tokio::select! {
        biased;
        what = failed(&parts) => (Some(what), false),
        () = signals.next() => (None, true),
        ended = input_ended(), if until_input_ends => (ended.err().map(|failure| failure.to_string()), false),
    };
    // Owned by this function: it ends with the process, which is what it is for.
    let second = tokio::spawn(async move {
        // Whoever closed our input may also have sent the signal that asks for a clean end.
        if !signalled {
            signals.next().await;
        }
        signals.next().await;
        std::process::exit(exit_code::INTERRUPTED.into());
    });
    if let Some(goodbye) = goodbye {
        mention(goodbye);
    }
    let stopped = stop(parts).await;
    second.abort();
    failed.map_or(stopped, |what| Err(Failure::plain(what)))
}

/// What a person at a terminal is told when a role begins to stop; nothing for a program.
#[must_use]
pub fn goodbye(output: Output, text: &'static str) -> Option<&'static str> {
    (output == Output::Table).then_some(text)
}
