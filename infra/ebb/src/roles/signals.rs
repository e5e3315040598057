//! The signals that end a service: Ctrl-C, SIGTERM, and SIGHUP when the terminal goes. What is done about them is up to `ending.rs`.
//! Also the end of a standard input that another program holds open for as long as it lives.

use crate::failure::Failure;
use std::os::fd::AsFd;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Where Linux tells what a process ignores, and the line of it.
const STATUS_FILE: &str = "/proc/self/status";
const IGNORED_LINE: &str = "SigIgn:";

/// Listens while it lives.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// Absent under `nohup`, whose point is to outlive the terminal.
    hangup: Option<Signal>,
}

impl Signals {
    /// From now on the signals no longer end the process by themselves.
    pub fn listen() -> Result<Self, Failure> {
        let of = |kind| signal(kind).map_err(|e| Failure::local("signals cannot be listened for", e));
        let hangup = SignalKind::hangup();
        // Where it cannot be told, nothing is ignored: that is how a process usually starts.
        let status = std::fs::read_to_string(STATUS_FILE).unwrap_or_default();
        let hangup = if ignores(&status, hangup.as_raw_value()) { None } else { Some(of(hangup)?) };
        Ok(Self { interrupt: of(SignalKind::interrupt())?, terminate: of(SignalKind::terminate())?, hangup })
    }

    /// Waits for the next of them.
    pub async fn next(&mut self) {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = hangup => {}
        }
    }
}

/// Does some work unless a signal comes first: then it is dropped, and with it the processes it owns.
pub async fn unless_interrupted<T>(work: impl Future<Output = Result<T, Failure>>) -> Option<Result<T, Failure>> {
    let mut signals = match Signals::listen() {
        Ok(signals) => signals,
        Err(failure) => return Some(Err(failure)),
    };
    tokio::select! {
        result = work => Some(result),
        () = signals.next() => None,
    }
}

/// Waits until whoever holds the other end of the pipe that is our standard input is gone.
pub async fn input_ended() -> Result<(), Failure> {
    let failed = |e| Failure::local("standard input is no pipe that can be watched", e);
    let input = std::io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    let mut pipe = Receiver::from_owned_fd(input).map_err(failed)?;
    let mut ignored = [0; 64];
    while pipe.read(&mut ignored).await.map_err(failed)? > 0 {}
    Ok(())
}

/// Whether a process with this status file ignores the signal; signals are bits, the first one is 1.
fn ignores(status: &str, number: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix(IGNORED_LINE));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (number - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nohup_is_seen() {
        let status = |mask: &str| format!("Name:\tebb\nSigBlk:\tffffffffffffffff\nSigIgn:\t{mask}\n");
        assert!(ignores(&status("0000000000001001"), 1));
        assert!(!ignores(&status("0000000000001000"), 1));
        assert!(!ignores("", 1));
    }
}
