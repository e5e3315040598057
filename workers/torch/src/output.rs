//! What a program of the user says: passed on as it comes to where this process says what it does, the job's log, and its end kept, to be told
//! with why the program ended.

use std::collections::VecDeque;
use std::io::{self, PipeReader, Read, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Kept of the end.
const KEPT_BYTES: usize = 16_384;
/// Lines of it that are told.
const LINES_TOLD: usize = 20;
/// Characters of each of them, so that all of them and what is said of them fit into a reason.
const LINE_CHARS_TOLD: usize = 160;
/// Characters of all of them.
const CHARS_TOLD: usize = 1_500;
/// Where Python itself says that it crashed, the lines that led there follow, the last call first.
const CRASH: &str = "Fatal Python error";
/// A program that has ended has said everything; only what it started can still hold its output open.
const REST_TIMEOUT: Duration = Duration::from_secs(1);

/// Somebody's output.
#[derive(Debug)]
pub struct Output {
    end: Arc<Mutex<VecDeque<u8>>>,
    closed: Receiver<()>,
}

impl Output {
    /// Passes on what comes out of this pipe.
    pub fn follow(mut pipe: PipeReader) -> io::Result<Self> {
        let end = Arc::new(Mutex::new(VecDeque::with_capacity(KEPT_BYTES)));
        let (open, closed) = sync_channel(0);
        let kept = Arc::clone(&end);
        std::thread::Builder::new().name("ebb-output".to_owned()).spawn(move || {
            let _open = open;
            let mut buffer = [0; 8_192];
            loop {
                let said = match pipe.read(&mut buffer) {
                    Ok(0) => return,
                    Ok(count) => &buffer[..count],
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => {
                        tracing::warn!(%error, "what a program says cannot be read");
                        return;
                    }
                };
                // With nobody to read it the agent is gone, and soon this process.
                let _ = io::stderr().write_all(said);
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend(said);
                let over = kept.len().saturating_sub(KEPT_BYTES);
                kept.drain(..over);
            }
        })?;
        Ok(Self { end, closed })
    }

    /// The last lines of a program that has ended; of one that crashed those after it said so.
    #[must_use]
    pub fn last_lines(&self) -> String {
        match self.closed.recv_timeout(REST_TIMEOUT) {
            Ok(()) | Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => {}
        }
        let bytes: Vec<u8> = self.end.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        told(&String::from_utf8_lossy(&bytes))
    }
}

/// The end of a text as it is told: bounded, whatever was said.
pub(crate) fn told(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let short = |line: &&str| line.chars().take(LINE_CHARS_TOLD).collect::<String>();
    if let Some(at) = lines.iter().rposition(|line| line.starts_with(CRASH)) {
        let all = lines[at..].iter().take(LINES_TOLD).map(short).collect::<Vec<_>>().join("\n");
        return all.chars().take(CHARS_TOLD).collect();
    }
    let (mut told, mut chars) = (Vec::new(), 0);
    for line in lines.iter().rev().take(LINES_TOLD).map(short) {
        chars += line.chars().count() + 1;
        if chars > CHARS_TOLD {
            break;
        }
        told.push(line);
    }
    told.reverse();
    told.join("\n")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_crash_is_told_from_where_python_says_so() {
        let text =
            format!("step 1\n\n{CRASH}: Segmentation fault\n  File \"train.py\", line 3\n{}", "  File x\n".repeat(300));
        let told = told(&text);
        assert!(told.starts_with(CRASH) && told.contains("train.py") && told.lines().count() == LINES_TOLD, "{told}");
        assert!(super::told(&"long ".repeat(4_000)).chars().count() <= LINE_CHARS_TOLD);
    }

    #[test]
    fn the_last_lines_are_those_at_the_end() {
        let (reader, writer) = io::pipe().unwrap();
        let mut child = Command::new("seq").arg("5000").stdout(writer).stdin(Stdio::null()).spawn().unwrap();
        let output = Output::follow(reader).unwrap();
        child.wait().unwrap();
        let lines = output.last_lines();
        assert!(lines.starts_with("4981\n") && lines.ends_with("\n5000"), "{lines}");
    }
}
