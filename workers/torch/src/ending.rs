//! Why the process of the user's Python ended, as a sentence for people.

use crate::memory::Exceeded;
use std::fmt::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGILL: i32 = 4;
const SIGABRT: i32 = 6;
const SIGBUS: i32 = 7;
const SIGFPE: i32 = 8;
const SIGKILL: i32 = 9;
const SIGSEGV: i32 = 11;
const SIGTERM: i32 = 15;

/// How it ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With this status.
    Exited(i32),
    /// By this signal.
    Signalled(i32),
    /// Nobody can say more than this.
    Unknown(String),
}

impl End {
    /// By the signal that kills.
    pub const fn killed() -> Self {
        Self::Signalled(SIGKILL)
    }

    /// Whether what it ran did it. The signals of people and of the kernel, which kills for want of memory, come from outside.
    pub const fn is_of_code(&self) -> bool {
        match self {
            Self::Exited(_) => true,
            Self::Signalled(signal) => !matches!(*signal, SIGHUP | SIGINT | SIGKILL | SIGTERM),
            Self::Unknown(_) => false,
        }
    }

    /// As the kernel says.
    pub fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, Some(signal)) => Self::Signalled(signal),
            (None, None) => Self::Unknown(status.to_string()),
        }
    }

    /// As the process says that has forked it.
    pub fn parse(text: String) -> Self {
        let number = |name: &str| text.strip_prefix(name).and_then(|number| number.parse().ok());
        let exited = number("exit status: ").map(Self::Exited);
        exited.or_else(|| number("signal: ").map(Self::Signalled)).unwrap_or(Self::Unknown(text))
    }
}

/// What a signal that ended a process says of it: "was …, signal 9".
#[must_use]
pub fn by_signal(signal: i32) -> String {
    let how = match signal {
        SIGSEGV => "crashed with a segmentation fault (SIGSEGV) in compiled code of a library or an extension",
        SIGABRT => "was aborted (SIGABRT) by compiled code of a library or an extension",
        SIGBUS => "crashed with a bus error (SIGBUS): a file or memory that it had mapped is gone, or /dev/shm is full",
        SIGFPE => "crashed with an arithmetic fault (SIGFPE) in compiled code",
        SIGILL => "used an instruction that this processor does not have (SIGILL)",
        SIGKILL => "was killed (SIGKILL) by somebody else on the machine",
        SIGTERM => "was told to end (SIGTERM) by somebody else on the machine",
        _ => "was ended by a signal",
    };
    format!("{how}, signal {signal}")
}

/// The end of the Python process as its user can understand it.
pub(crate) fn explained(end: &End, exceeded: Option<Exceeded>, kernel_killed: bool, last_lines: &str) -> String {
    let mut text = match end {
        _ if let Some(exceeded) = exceeded => format!(
            "the Python process {exceeded}, and was killed; raise the limit, or make batch_size or the model smaller"
        ),
        _ if kernel_killed => "the kernel killed the Python process because memory ran out (out of memory); make batch_size or the model smaller, or run fewer slots on a machine".to_owned(),
        // By these a shell says that it could not run what it was to run, as one that stands before Python.
        End::Exited(code @ (126 | 127)) => format!(
            "the Python process ended with exit status {code}, as a script does that cannot run what it leads to. A Python behind a shim (pyenv's, for \
             one) has to be named itself: by --python of the agent, or by the job's `python`"
        ),
        End::Exited(code) => format!(
            "the Python process ended itself with exit status {code}; something in the job's code or its libraries called exit"
        ),
        End::Signalled(signal) => format!("the Python process {}", by_signal(*signal)),
        End::Unknown(how) => format!("the Python process ended ({how})"),
    };
    if !last_lines.is_empty() {
        // Writing to a text cannot fail.
        let _ = write!(text, "; it said last:\n{last_lines}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_is_a_sentence_that_says_what_happened() {
        let exited = |code: i32| End::of(ExitStatus::from_raw(code << 8));
        let signalled = |signal: i32| End::of(ExitStatus::from_raw(signal));
        let exceeded = |used_mib| Some(Exceeded { used_mib, limit_mib: 512 });
        for (status, over, kernel, said) in [
            (exited(3), None, false, "ended itself with exit status 3"),
            (exited(126), None, false, "has to be named itself: by --python"),
            (signalled(11), None, false, "segmentation fault"),
            (signalled(9), None, true, "memory ran out"),
            (signalled(9), exceeded(Some(900)), true, "took 900 MiB of memory, more than its memory_limit_mib of 512"),
            (signalled(9), exceeded(None), true, "needed more memory than its memory_limit_mib of 512"),
            (signalled(9), None, false, "killed (SIGKILL) by somebody else"),
            (signalled(31), None, false, "signal 31"),
        ] {
            let text = explained(&status, over, kernel, "line 1\nline 2");
            assert!(text.contains(said) && text.ends_with("it said last:\nline 1\nline 2"), "{text}");
        }
        assert_eq!(End::parse("signal: 11".to_owned()), End::Signalled(11));
        assert_eq!(End::parse("exit status: 3".to_owned()), End::Exited(3));
        assert_eq!(End::parse("who knows".to_owned()), End::Unknown("who knows".to_owned()));
        assert!(exited(3).is_of_code() && signalled(11).is_of_code() && !signalled(9).is_of_code());
        assert!(!End::parse("who knows".to_owned()).is_of_code());
        assert!(!explained(&exited(1), None, false, "").contains("said last"));
    }
}
