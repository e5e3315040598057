//! The user's program as a process: started, listened to, asked to end, killed. It stays in this executor's process group, so it never outlives the slot.

use crate::gang::machine::End;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Bytes of what a program said that are kept for whoever asks why it failed: a traceback.
const LAST_BYTES: usize = 1_500;
/// What a program started may hold its output open after it has ended; it is not waited for longer than this.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);
/// What is read of its output at once.
const READ_BYTES: usize = 8 << 10;

/// A program that runs, as its executor holds it.
#[derive(Debug)]
pub struct Program {
    process: OwnedFd,
}

impl Program {
    /// Starts it; `ended` is told how it ended, once it is reaped.
    pub fn start(
        words: &[String],
        folder: &Path,
        variables: &BTreeMap<String, OsString>,
        ended: impl FnOnce(End) + Send + 'static,
    ) -> io::Result<Self> {
        let Some((program, arguments)) = words.split_first() else {
            return Err(io::Error::other("the command is empty"));
        };
        let (output, theirs) = io::pipe()?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(folder)
            .env_clear()
            .envs(workers_torch::given_variables())
            .envs(variables)
            .stdin(Stdio::null())
            .stdout(theirs.try_clone()?)
            .stderr(theirs);
        let child = command.spawn()?;
        // Otherwise this process would hold the pipe open that it reads.
        drop(command);
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("it has no process number"))?;
        // Nobody has reaped it yet, so the number is still its own.
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        let (said, last_said) = channel();
        std::thread::Builder::new().name("ebb-output".to_owned()).spawn(move || {
            // Nobody asks any more once it has taken too long.
            let _ = said.send(pass_on(output));
        })?;
        std::thread::Builder::new().name("ebb-program".to_owned()).spawn(move || ended(wait(child, &last_said)))?;
        Ok(Self { process })
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Ends it.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        match pidfd_send_signal(&self.process, signal) {
            // It ended a moment ago.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => tracing::error!(%error, ?signal, "the program takes no signal"),
        }
    }
}

fn wait(mut child: Child, last_said: &Receiver<String>) -> End {
    let status = child.wait();
    let said = last_said.recv_timeout(OUTPUT_TIMEOUT).unwrap_or_default();
    match status {
        Ok(status) if status.success() => End::Well,
        Ok(status) => End::Badly(with_last_words(how(status), &said)),
        Err(error) => End::Badly(format!("nobody knows how it ended: {error}")),
    }
}

fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

fn with_last_words(how: String, said: &str) -> String {
    match said.trim_end() {
        "" => format!("{how} and said nothing"),
        said => format!("{how}; what it said last:\n{said}"),
    }
}

/// Passes on what a program says to where this process says what it does; gives the end of it.
fn pass_on(mut output: PipeReader) -> String {
    let (mut buffer, mut last) = (vec![0; READ_BYTES], Vec::new());
    loop {
        match output.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                // Its agent keeps the log; if that is gone, so is this process soon.
                let _ = io::stderr().write_all(&buffer[..count]);
                last.extend_from_slice(&buffer[..count]);
                let beyond = last.len().saturating_sub(LAST_BYTES);
                last.drain(..beyond);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::warn!(%error, "what the program says cannot be read");
                break;
            }
        }
    }
    let whole = last.len() < LAST_BYTES;
    let text = String::from_utf8_lossy(&last).into_owned();
    // From the beginning of a line on, where there is one.
    match text.split_once('\n') {
        Some((_, rest)) if !whole && !rest.is_empty() => rest.to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn run(script: &str, then: impl FnOnce(&Program)) -> End {
        let (sender, receiver) = channel();
        let words = ["/bin/sh", "-c", script].map(str::to_owned);
        let variables = BTreeMap::from([("GREETING".to_owned(), "hello".into())]);
        let program = Program::start(&words, Path::new("/"), &variables, move |end| sender.send(end).unwrap()).unwrap();
        then(&program);
        receiver.recv().unwrap()
    }

    #[test]
    fn a_program_ends_as_it_ends_and_its_last_words_are_kept() {
        assert_eq!(run("exit 0", |_| ()), End::Well);
        let said = "exited with status 3; what it said last:\nhello\nand / too";
        assert_eq!(run("echo $GREETING; echo and $PWD too >&2; exit 3", |_| ()), End::Badly(said.to_owned()));
        assert_eq!(run("kill -9 $$", |_| ()), End::Badly("was ended by signal 9 and said nothing".to_owned()));
        let End::Badly(long) = run("for i in $(seq 200); do echo line $i; done; exit 1", |_| ()) else { panic!() };
        assert!(
            long.len() < LAST_BYTES + 100 && long.contains("said last:\nline ") && long.ends_with("line 200"),
            "{long}"
        );
        assert_eq!(run("sleep 600 & exit 0", |_| ()), End::Well, "who holds its output open is not waited for");
    }

    #[test]
    fn it_is_asked_to_end_and_then_it_is_ended() {
        let obeys = "trap 'exit 0' TERM; while true; do sleep 0.01; done";
        let end = run(obeys, |program| {
            // Before the trap is set it ends by the signal; both are what is asked for.
            program.terminate();
        });
        assert!(matches!(&end, End::Well) || matches!(&end, End::Badly(why) if why.contains("signal 15")), "{end:?}");
        let end = run("trap '' TERM; while true; do sleep 0.01; done", Program::kill);
        assert!(matches!(&end, End::Badly(why) if why.contains("signal 9")), "{end:?}");
    }

    #[test]
    fn a_program_that_is_not_there_cannot_be_started() {
        let words = ["/nowhere/at/all".to_owned()];
        let error = Program::start(&words, Path::new("/"), &BTreeMap::new(), |_| ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
