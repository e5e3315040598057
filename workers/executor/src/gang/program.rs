//! The user's program as a process: started, listened to, asked to end, killed, with all that it started. It stays in this executor's process
//! group, so it never outlives the slot.
//!
//! A program is often a shell that waits for another one. So what a process leaves behind becomes a child of this process, wherever it was started: it
//! is asked to end when the program was, else it is ended, and only when nobody is left has the program ended. What the program has
//! started and still looks after is its own to ask: readers of data that are told to end would be errors to it.

use crate::gang::machine::End;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, pidfd_open, pidfd_send_signal, set_child_subreaper, wait,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use workers_torch::{Exceeded, Isolation, MemoryBound, Output, by_signal, given_variables, kernel_kills};

/// A program that runs, as its executor holds it.
#[derive(Debug)]
pub struct Program {
    /// Its number, which may be another's once it has ended.
    pub pid: u32,
    process: OwnedFd,
    wish: Arc<Mutex<Wish>>,
}

/// What is to become of the program and all that it leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wish {
    /// It runs. What it leaves behind when it ends by itself is ended.
    Runs,
    /// It is asked to end, and so is what it leaves behind.
    Ends,
    /// Nobody is asked any more.
    Killed,
}

impl Program {
    /// Starts it; `ended` is told how it ended, once it is reaped and nothing of it lives. One at a time: every child of this process is its.
    pub fn start(
        words: &[String],
        folder: &Path,
        variables: &BTreeMap<String, OsString>,
        isolation: Option<&Isolation>,
        memory_limit_mib: Option<u32>,
        ended: impl FnOnce(End) + Send + 'static,
    ) -> io::Result<Self> {
        let Some((program, arguments)) = words.split_first() else {
            return Err(io::Error::other("the command is empty"));
        };
        set_child_subreaper(Some(getpid()))?;
        let (output, theirs) = io::pipe()?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(folder)
            .env_clear()
            .envs(given_variables())
            .envs(variables)
            .stdin(Stdio::null())
            .stdout(theirs.try_clone()?)
            .stderr(theirs);
        let kills_before = kernel_kills();
        let child = Isolation::spawn(isolation, &mut command)?;
        // Otherwise this process would hold the pipe open that it reads.
        drop(command);
        let number = child.id();
        let pid = i32::try_from(number).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("it has no process number"))?;
        // Nobody has reaped it yet, so the number is still its own.
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        let output = Output::follow(output)?;
        let memory = memory_limit_mib.map(|mib| Ok::<_, io::Error>((MemoryBound::start(child.id(), mib)?, mib)));
        let memory = memory.transpose()?;
        let wish = Arc::new(Mutex::new(Wish::Runs));
        let wished = Arc::clone(&wish);
        let reap = move || {
            let (status, wish) = reap_all(pid, &wished);
            let exceeded = memory.and_then(|(bound, mib)| bound.exceeded(mib));
            let out_of_memory = wish != Wish::Killed && kernel_kills() > kills_before;
            ended(end_of(status, wish, exceeded, out_of_memory, &output));
        };
        std::thread::Builder::new().name("ebb-program".to_owned()).spawn(reap)?;
        Ok(Self { pid: number, process, wish })
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        self.raise(Wish::Ends);
        signal(&self.process, Signal::TERM);
    }

    /// Ends it, and whatever it has left behind.
    pub fn kill(&self) {
        self.raise(Wish::Killed);
        signal(&self.process, Signal::KILL);
        for (_, left) in children() {
            signal(&left, Signal::KILL);
        }
    }

    fn raise(&self, to: Wish) {
        let mut wish = self.wish.lock().unwrap_or_else(PoisonError::into_inner);
        *wish = to.max(*wish);
    }
}

fn signal(process: &OwnedFd, signal: Signal) {
    match pidfd_send_signal(process, signal) {
        // It ended a moment ago.
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => tracing::error!(%error, ?signal, "the program takes no signal"),
    }
}

/// Reaps the program and all that is left behind, until there is nobody. How the program ended, and what was wished by then.
fn reap_all(program: Pid, wish: &Mutex<Wish>) -> (io::Result<WaitStatus>, Wish) {
    let mut ended: Option<(WaitStatus, Wish)> = None;
    let mut asked = BTreeSet::new();
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == program => {
                ended = Some((status, *wish.lock().unwrap_or_else(PoisonError::into_inner)));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::CHILD) => break,
            Err(error) => return (Err(error.into()), Wish::Killed),
        }
        // Of whoever ended, the children are this process's now.
        if let Some((_, at_end)) = ended {
            let now = *wish.lock().unwrap_or_else(PoisonError::into_inner);
            for (pid, left) in children() {
                if at_end == Wish::Runs || now == Wish::Killed {
                    signal(&left, Signal::KILL);
                } else if asked.insert(pid) {
                    signal(&left, Signal::TERM);
                }
            }
        }
    }
    match ended {
        Some((status, at_end)) => (Ok(status), at_end),
        None => (Err(io::Error::other("somebody else has reaped it")), Wish::Killed),
    }
}

/// Children of this process. A number may be another's by the time that it is opened; then it is none of theirs.
fn children() -> Vec<(i32, OwnedFd)> {
    let open = |pid: i32| Some((pid, pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?));
    let opened: Vec<_> = child_numbers().into_iter().filter_map(open).collect();
    let still = child_numbers();
    opened.into_iter().filter(|(pid, _)| still.contains(pid)).collect()
}

fn child_numbers() -> BTreeSet<i32> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let texts = threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    texts
        .flat_map(|text| text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

fn end_of(
    status: io::Result<WaitStatus>,
    wish: Wish,
    exceeded: Option<Exceeded>,
    out_of_memory: bool,
    output: &Output,
) -> End {
    let how = match status.map(|status| (status.exit_status(), status.terminating_signal())) {
        Ok((Some(0), _)) => return End::Well,
        // Whichever of its processes the kernel chose, and whatever the others made of that.
        _ if let Some(exceeded) = exceeded => {
            format!("{exceeded}, and was killed; raise the limit, or have it take less")
        }
        Ok((Some(code), _)) => format!("exited with status {code}"),
        Ok((None, Some(signal))) if out_of_memory && signal == Signal::KILL.as_raw() => {
            "was killed by the kernel because memory ran out (out of memory)".to_owned()
        }
        Ok((None, Some(signal))) if wish > Wish::Runs => format!("was ended, as it was told to, by signal {signal}"),
        Ok((None, Some(signal))) => by_signal(signal),
        Ok((None, None)) => "ended".to_owned(),
        Err(error) => format!("ended, and nobody knows how: {error}"),
    };
    End::Badly(match output.last_lines().as_str() {
        "" => format!("{how} and said nothing"),
        said => format!("{how}; what it said last:\n{said}"),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    /// All children of this process are one program's.
    static ONE: Mutex<()> = Mutex::new(());

    fn run(script: &str, then: impl FnOnce(&Program)) -> End {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (sender, receiver) = channel();
        let words = ["/bin/sh", "-c", script].map(str::to_owned);
        let variables = BTreeMap::from([("GREETING".to_owned(), "hello".into())]);
        let ended = move |end| sender.send(end).unwrap();
        let program = Program::start(&words, Path::new("/"), &variables, None, None, ended).unwrap();
        then(&program);
        let end = receiver.recv().unwrap();
        // Before another test starts one.
        assert_eq!(child_numbers(), BTreeSet::new());
        end
    }

    /// Waits until a script has got so far.
    fn wait_for(file: &Path) {
        let until = Instant::now() + Duration::from_secs(60);
        while !file.exists() {
            assert!(Instant::now() < until, "{} does not come", file.display());
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_program_ends_as_it_ends_and_its_last_words_are_kept() {
        assert_eq!(run("exit 0", |_| ()), End::Well);
        let said = "exited with status 3; what it said last:\nhello\nand / too";
        assert_eq!(run("echo $GREETING; echo and $PWD too >&2; exit 3", |_| ()), End::Badly(said.to_owned()));
        let End::Badly(killed) = run("kill -9 $$", |_| ()) else { panic!() };
        assert!(killed.starts_with("was ") && killed.ends_with("signal 9 and said nothing"), "{killed}");
        let End::Badly(long) = run("for i in $(seq 200); do echo line $i; done; exit 1", |_| ()) else { panic!() };
        assert!(long.contains("said last:\nline 181\n") && long.ends_with("line 200"), "{long}");
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
    fn nothing_of_it_lives_once_it_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let began = folder.path().join("began");
        let left =
            format!("setsid sh -c 'echo > {}; exec sleep 600' & while [ ! -e {0} ]; do :; done", began.display());
        assert_eq!(run(&format!("{left}; exit 0"), |_| ()), End::Well);
    }

    #[test]
    fn what_a_shell_waits_for_is_asked_to_end_too_and_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let (began, saved) = (folder.path().join("began"), folder.path().join("saved"));
        // The shell goes at once, and leaves behind who has something to save.
        let inner = format!(
            "trap \"sleep 0.2; echo > {}; exit 0\" TERM; echo > {}; while true; do sleep 0.01; done",
            saved.display(),
            began.display()
        );
        let script = format!("sh -c '{inner}'; exit 1");
        let end = run(&script, |program| {
            wait_for(&began);
            program.terminate();
        });
        assert!(matches!(&end, End::Badly(why) if why.contains("signal 15")), "{end:?}");
        assert!(saved.exists(), "it ended before what it left behind had saved");

        let deaf = format!(
            "sh -c 'trap \"\" TERM; echo > {}/deaf; while true; do sleep 0.01; done'; exit 1",
            folder.path().display()
        );
        let end = run(&deaf, |program| {
            wait_for(&folder.path().join("deaf"));
            program.terminate();
            program.kill();
        });
        assert!(matches!(&end, End::Badly(_)), "{end:?}");
    }

    #[test]
    fn who_is_still_looked_after_is_not_asked() {
        let folder = tempfile::tempdir().unwrap();
        let began = folder.path().join("began");
        // As a program with readers of data: one that goes before it is told to is an error.
        let inner = format!("trap \"exit 7\" TERM; echo > {}; sleep 0.3; exit 0", began.display());
        let script = format!(
            "trap : TERM; sh -c '{inner}' & reader=$!; while kill -0 $reader; do wait $reader; got=$?; done; exit $got"
        );
        let end = run(&script, |program| {
            wait_for(&began);
            program.terminate();
        });
        assert_eq!(end, End::Well);
    }

    #[test]
    fn a_program_that_is_not_there_cannot_be_started() {
        let words = ["/nowhere/at/all".to_owned()];
        let error = Program::start(&words, Path::new("/"), &BTreeMap::new(), None, None, |_| ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
