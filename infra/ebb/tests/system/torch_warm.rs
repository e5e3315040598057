//! Python that is forked from a process with PyTorch imported: who lives, who dies with whom, and that the model is the one of a Python
//! that was started from the beginning.

use crate::schedules::demand;
use crate::support::{LOOK_EVERY, System, WAIT_MAX, finished, plain_digest, steps, submit, until};
use crate::torch::{SLOTS, TRAIN, document, service};
use loadtest_harness::service::kill_process;
use rustix::process::{Pid, Signal};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

/// A Python process of an agent, as `/proc` has it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Python {
    pid: i32,
    group: i32,
    /// Which module it was started as; a forked one shows that of whom it was forked from.
    module: String,
}

impl Python {
    /// Whether others are forked from it: it leads a group of its own.
    fn is_server(&self) -> bool {
        self.module == "ebb.forkserver" && self.group == self.pid
    }

    fn is_forked(&self) -> bool {
        self.module == "ebb.forkserver" && self.group != self.pid
    }
}

/// Living Python processes whose package lies in this data directory.
fn pythons(data: &Path) -> Vec<Python> {
    let mark = [b"PYTHONPATH=", data.as_os_str().as_bytes()].concat();
    let of = |pid: i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        environment.split(|byte| *byte == 0).find(|entry| entry.starts_with(&mark))?;
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let module = command.split(|byte| *byte == 0).nth(2)?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat.rsplit(')').next()?.split_whitespace();
        let alive = !matches!(fields.next()?, "Z" | "X");
        let group = fields.nth(1)?.parse().ok()?;
        alive.then(|| Python { pid, group, module: String::from_utf8_lossy(module).into_owned() })
    };
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.filter_map(of).collect()
}

/// Waits until they are as wanted.
async fn until_pythons(data: &Path, what: &str, wanted: impl Fn(&[Python]) -> bool) -> Vec<Python> {
    let begun = Instant::now();
    loop {
        let now = pythons(data);
        if wanted(&now) {
            return now;
        }
        assert!(begun.elapsed() < WAIT_MAX, "waited for {what}, but there are {now:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// What the executors of a job have said.
async fn said(system: &System, id: &str) -> String {
    String::from_utf8_lossy(&system.ebb(&["logs", id]).await.stdout).into_owned()
}

const FORKED: &str = "forked Python from a process that has PyTorch imported";
const COLD: &str = "starting Python from the beginning";
/// With 0.15 s each, longer than any wait of a test.
const UNHURRIED_STEPS: u64 = 1_500;

#[tokio::test(flavor = "multi_thread")]
async fn many_joins_are_forks_of_one_process_and_bits_stay() {
    let system = service().await;
    let (client, data) = (system.client(), system.path("data"));
    let document = document(&system, TRAIN, 200).await;
    let expected = plain_digest(&client, &system.service.ready().store_url, &document).await;
    let id = submit(&client, &document, "joins").await;
    // A child that was just forked is in its server's group until it has taken its own.
    let all = until_pythons(&data, "all executors", |now| {
        let forked: Vec<&Python> = now.iter().filter(|python| python.is_forked()).collect();
        let is_apart = |forked: &&Python| !now.iter().any(|other| other.is_server() && other.pid == forked.group);
        forked.len() == usize::from(SLOTS) && forked.iter().all(is_apart)
    })
    .await;
    assert_eq!(all.iter().filter(|python| python.is_server()).count(), 1, "{all:?}");
    let agent = system.agent();
    let slots: Vec<i32> = agent.slots().await.unwrap().iter().filter_map(|slot| slot.pid).collect();
    let forked: Vec<i32> = all.iter().filter(|python| python.is_forked()).map(|python| python.group).collect();
    assert!(forked.iter().all(|group| slots.contains(group)), "each is in its executor's group: {all:?}, {slots:?}");
    for needed in [3, 0, 2, 0, 3, 0] {
        let goal = steps(&crate::support::job(&client, &id).await) + 10;
        until(&client, &id, "some steps", |j| j.is_over() || steps(j) >= goal).await;
        demand(&system, needed).await;
    }
    assert_eq!(finished(&client, &id).await, expected);
    let said = said(&system, &id).await;
    assert!(said.matches(FORKED).count() > usize::from(SLOTS) && !said.contains(COLD), "{said}");
    until_pythons(&data, "the children to end", |now| now.iter().all(Python::is_server)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_to_fork_from_that_dies_or_hangs_fails_no_job() {
    let system = service().await;
    let (client, data) = (system.client(), system.path("data"));
    // Others train on while a process imports PyTorch anew, however long that takes here, so the job is in no hurry until all is seen.
    let seen = system.path("seen");
    let slow = format!(
        "{TRAIN}\n    def on_step(self, model, step):\n        import os, time; os.path.exists({seen:?}) or time.sleep(0.15)\n"
    );
    // What is slept changes no bit.
    let plain = document(&system, TRAIN, UNHURRIED_STEPS).await;
    let expected = plain_digest(&client, &system.service.ready().store_url, &plain).await;
    let id = submit(&client, &document(&system, &slow, UNHURRIED_STEPS).await, "killed").await;
    let at_work = |now: &[Python]| now.iter().filter(|python| !python.is_server()).count() == usize::from(SLOTS);
    let server = |now: &[Python]| now.iter().find(|python| python.is_server()).cloned();

    // Killed: its children train on, and the next child makes another one.
    let first = server(&until_pythons(&data, "all executors", at_work).await).unwrap();
    kill_process(first.pid).unwrap();
    until_pythons(&data, "its end", |now| server(now).is_none()).await;
    let then = steps(&crate::support::job(&client, &id).await);
    until(&client, &id, "steps without it", |j| steps(j) > then + 5).await;
    // A child that is killed takes its executor along, and nothing else.
    let victim = pythons(&data).into_iter().find(Python::is_forked).unwrap();
    kill_process(victim.pid).unwrap();
    until_pythons(&data, "another child, of another process", |now| {
        at_work(now) && server(now).is_some() && now.iter().all(|python| python.group != victim.group)
    })
    .await;

    // Hung: nobody waits for it longer than for a fork.
    let second = server(&pythons(&data)).unwrap();
    rustix::process::kill_process(Pid::from_raw(second.pid).unwrap(), Signal::STOP).unwrap();
    let victim = pythons(&data).into_iter().find(Python::is_forked).unwrap();
    kill_process(victim.pid).unwrap();
    let now =
        until_pythons(&data, "an executor without it", |now| at_work(now) && server(now) != Some(second.clone())).await;
    assert!(now.iter().any(|python| python.module == "ebb.worker"), "it started Python itself: {now:?}");
    std::fs::write(&seen, "").unwrap();
    assert_eq!(finished(&client, &id).await, expected);
    let said = said(&system, &id).await;
    // Who forked them could not tell, and that is no failure either.
    assert!(said.contains("the Python process ended (nobody is left to say how)"), "{said}");
    assert!(said.contains(COLD), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_agent_leaves_no_python_also_where_the_code_hangs() {
    let system = service().await;
    let (client, data) = (system.client(), system.path("data"));
    // It holds Python's lock for as long as it is in there, so nothing that is written in Python could end it.
    let hang = "images, labels = batch\n        if self.step == 3:\n            import ctypes, os; open(os.environ['HOME'] + '/hung', 'w').close(); ctypes.PyDLL(None).sleep(100_000)";
    let code = TRAIN.replace("images, labels = batch", hang);
    let homes = data.join("agent/torch/scratch");
    let hung =
        || std::fs::read_dir(&homes).is_ok_and(|all| all.flatten().any(|home| home.path().join("home/hung").exists()));
    submit(&client, &document(&system, &code, 50).await, "hangs").await;
    until_pythons(&data, "a child that hangs", |now| {
        hung() && now.iter().any(Python::is_server) && now.iter().any(Python::is_forked)
    })
    .await;
    let dead = system.kill().await;
    until_pythons(&data, "all of them to end", <[Python]>::is_empty).await;
    drop(dead);
}
