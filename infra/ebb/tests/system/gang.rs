//! Jobs that are whole programs: a script on `torch.distributed` that is stopped, moved and resumed, and programs that do not do as they are told.

use crate::support::{LOOK_EVERY, System, WAIT_MAX, finished, text, until};
use crate::torch::{ended, python, service};
use gateway_api::{DeclareFleet, PublishDemand, ServerSlots, SlotsOfServer};
use gateway_client::Client;
use serde_json::Value;
use std::path::{Path, PathBuf};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/torch/gang");
/// Lines of an example's code, so that it stays one.
const LINES_MAX: usize = 60;

/// The example; or one some of whose steps take so long that it is still there when something is done to it.
fn example(system: &System, slow: bool) -> PathBuf {
    let copy = system.path(if slow { "gang-slow" } else { "gang" });
    std::fs::create_dir_all(&copy).unwrap();
    let code = std::fs::read_to_string(Path::new(EXAMPLE).join("train.py")).unwrap();
    assert!(code.lines().count() < LINES_MAX, "{EXAMPLE} has {LINES_MAX} lines or more");
    let slow_step = "        step += 1\n        __import__('time').sleep(0.01 if 500 <= step < 1000 else 0)\n";
    let slower = code.replace("        step += 1\n", slow_step);
    assert!(slower != code, "the example counts its steps otherwise");
    std::fs::write(copy.join("train.py"), if slow { slower } else { code }).unwrap();
    std::fs::copy(Path::new(EXAMPLE).join("job.yaml"), copy.join("job.yaml")).unwrap();
    copy.join("job.yaml")
}

/// Submits a job file; the job's id.
async fn submit_file(system: &System, file: &Path) -> String {
    system.ebb_json(&["submit", &text(file)]).await["id"].as_str().unwrap().to_owned()
}

/// Submits a program that a shell reads.
pub async fn submit_script(system: &System, name: &str, script: &str, more: &str) -> String {
    let folder = system.path(name);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("run.sh"), script).unwrap();
    let job = format!("name: {name}\nengine: command\ncommand: sh run.sh\n{more}");
    std::fs::write(folder.join("job.yaml"), job).unwrap();
    submit_file(system, &folder.join("job.yaml")).await
}

/// Waits until a job's logs hold a line.
pub async fn until_said(system: &System, id: &str, line: &str) {
    until_said_by(system, id, line, 1).await;
}

/// It was said by so many processes, or so often.
async fn until_said_by(system: &System, id: &str, line: &str, times: usize) {
    let said = async {
        loop {
            let logs = system.ebb(&["logs", id]).await;
            if String::from_utf8_lossy(&logs.stdout).matches(line).count() >= times {
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    tokio::time::timeout(WAIT_MAX, said).await.unwrap_or_else(|_| panic!("{id} does not say `{line}`"));
}

async fn need(system: &System, slots: u32) {
    system.client().demand("local", &PublishDemand::needed(slots)).await.unwrap();
}

async fn shown(client: &Client, id: &str) -> String {
    client.job(id).await.unwrap().as_it_came().to_string()
}

/// What is in the folder that came of a job, by file.
async fn result(system: &System, id: &str) -> Vec<(String, String)> {
    let archive = system.path("result.tar");
    assert!(system.ebb(&["model", "get", id, "-o", &text(&archive)]).await.status.success());
    let folder = system.path("result");
    storage::folder::unpack(&std::fs::read(archive).unwrap(), &folder).unwrap();
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned())
    };
    files.into_iter().map(read).collect()
}

/// Two runs left equal tensors. (The bytes of files that PyTorch writes also say which texts in memory were one.)
async fn assert_left_the_same(system: &System, one: &str, other: &str) {
    let compare = "import sys, torch\n\
        a, b = (torch.load(path) for path in sys.argv[1:])\n\
        assert a['step'] == b['step'], (a['step'], b['step'])\n\
        for k in a['model']: assert torch.equal(a['model'][k], b['model'][k]), (k, a['model'][k], b['model'][k])\n\
        a, b = a['optimizer']['state'], b['optimizer']['state']\n\
        for i in a:\n    \
            for k in a[i]: assert torch.equal(a[i][k], b[i][k]), (i, k)";
    let mut command = tokio::process::Command::new(python());
    command.args(["-c", compare]);
    for id in [one, other] {
        let (archive, folder) = (system.path(&format!("{id}.tar")), system.path(&format!("{id}-left")));
        assert!(system.ebb(&["model", "get", id, "-o", &text(&archive)]).await.status.success());
        storage::folder::unpack(&std::fs::read(archive).unwrap(), &folder).unwrap();
        command.arg(folder.join("last.pt"));
    }
    let output = command.output().await.unwrap();
    let logs = system.ebb(&["logs", other]).await.stdout;
    let (said, logs) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&logs));
    assert!(output.status.success(), "{said}\n{logs}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_runs_as_pasted_and_leaves_the_same_when_it_is_moved_suspended_and_resumed() {
    let system = service().await;
    let client = system.client();
    let submitted = system.ebb_json(&["submit", &text(&example(&system, false)), "--wait"]).await;
    assert_eq!(submitted["phase"], "finished", "{submitted}");
    // Nobody measured one.
    assert_eq!(submitted["outcome"]["train_loss"], Value::Null, "{submitted}");
    let undisturbed = submitted["id"].as_str().unwrap();
    assert_eq!(result(&system, undisturbed).await[0].0, "last.pt");

    let id = submit_file(&system, &example(&system, true)).await;
    let first = until(&client, &id, "a start", |j| j.phase == "running").await.slots;
    until_said(&system, &id, "step 500:").await;
    // Taken at its agent; another slot is idle.
    let taken = first[0].clone();
    system.agent().take_back(std::slice::from_ref(&taken), None).await.unwrap();
    let moved = |slots: &[String]| slots.len() == 2 && !slots.contains(&taken);
    until(&client, &id, "another place", |j| j.is_over() || (j.phase == "running" && moved(&j.slots))).await;
    // A spike: too few are left.
    until_said_by(&system, &id, "| rank 0 of 2 begins at step", 2).await;
    need(&system, 3).await;
    let queued =
        until(&client, &id, "the suspension", |j| j.is_over() || (j.phase == "queued" && j.slots.is_empty())).await;
    assert_eq!(queued.phase, "queued", "it lasts longer than its logs take");
    assert!(!system.ebb_json(&["checkpoints", &id]).await["checkpoints"].as_array().unwrap().is_empty());
    need(&system, 0).await;
    finished(&client, &id).await;
    assert_left_the_same(&system, undisturbed, &id).await;
    let logs = String::from_utf8_lossy(&system.ebb(&["logs", &id]).await.stdout).into_owned();
    assert_eq!(logs.matches("| rank 0 of 2 begins at step ").count(), 3, "{logs}");
    assert_eq!(logs.matches("| rank 0 of 2 begins at step 0\n").count(), 1, "{logs}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_ignores_sigterm_frees_its_slot_all_the_same() {
    let system = System::start(2).await;
    let client = system.client();
    let script = "trap '' TERM\necho kept > $EBB_CHECKPOINT_DIR/file\necho it begins\nwhile true; do sleep 0.1; done";
    let id = submit_script(&system, "deaf", script, "workers: {max: 2}\ngrace_ms: 3600000").await;
    until_said(&system, &id, "it begins").await;
    need(&system, 2).await;
    // Nobody waits an hour for it: half of the fleet's deadline is its own, the rest is for what it left.
    until(&client, &id, "the suspension", |j| j.phase == "queued" && j.slots.is_empty()).await;
    let slots = system.ebb_json(&["slots"]).await;
    assert!(slots["slots"].as_array().unwrap().iter().all(|slot| slot["executor"].is_null()), "{slots}");
    assert!(!system.ebb_json(&["checkpoints", &id]).await["checkpoints"].as_array().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_fails_shows_its_last_words_on_the_job() {
    let system = System::start(1).await;
    let client = system.client();
    let id = submit_script(&system, "fails", "echo the disk is not there >&2\nexit 3", "max_restarts: 1").await;
    let failed = ended(&client, &id).await;
    let shown = shown(&client, &id).await;
    assert_eq!(failed.phase, "failed", "{shown}");
    assert!(shown.contains("exited with status 3") && shown.contains("the disk is not there"), "{shown}");
    assert!(shown.contains("max_restarts: 1"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_not_there_fails_the_job_at_once() {
    let system = System::start(1).await;
    let client = system.client();
    let folder = system.path("nowhere");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("job.yaml"), "name: nowhere\nengine: command\ncommand: no-such-program --fast").unwrap();
    let id = submit_file(&system, &folder.join("job.yaml")).await;
    let failed = ended(&client, &id).await;
    let shown = shown(&client, &id).await;
    assert_eq!(failed.phase, "failed", "{shown}");
    assert!(shown.contains("`no-such-program` cannot be started"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_elastic_program_is_restarted_at_the_size_there_is() {
    let system = System::start(4).await;
    let client = system.client();
    // It goes on until it is alone, and what it wrote before is there again.
    let script = "echo rank $RANK of $WORLD_SIZE >> $EBB_CHECKPOINT_DIR/sizes\necho $RANK begins\n\
        while [ $WORLD_SIZE != 1 ]; do sleep 0.1; done";
    let more = "elastic: restart\nworkers: {min: 1, max: 4}\nsave_every_ms: 1000";
    let id = submit_script(&system, "elastic", script, more).await;
    until(&client, &id, "all slots", |j| j.slots.len() == 4).await;
    until_said(&system, &id, "3 begins").await;
    until_said(&system, &id, "0 begins").await;
    need(&system, 2).await;
    until(&client, &id, "a smaller size", |j| j.phase == "running" && j.slots.len() == 2).await;
    let two = async {
        while system.ebb(&["logs", &id]).await.stdout.windows(10).filter(|seen| *seen == b"| 0 begins").count() < 2 {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    tokio::time::timeout(WAIT_MAX, two).await.expect("it begins again");
    need(&system, 3).await;
    finished(&client, &id).await;
    let sizes = "rank 0 of 4\nrank 0 of 2\nrank 0 of 1\n".to_owned();
    assert_eq!(result(&system, &id).await, [("sizes".to_owned(), sizes)]);
}

/// A file system that does not answer: whoever opens what is here waits for ever.
fn silence(file: &Path) {
    std::fs::remove_file(file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(file).status().unwrap().success());
}

/// The agent would kill it in an hour.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_waits_for_a_silent_store_gives_its_slot_back_all_the_same() {
    let system = System::start(1).await;
    let client = system.client();
    let patient = DeclareFleet {
        servers: vec![ServerSlots { server: "local".to_owned(), slots: SlotsOfServer::Numbers(vec![0]) }],
        offers: None,
        reclaim_deadline_ms: Some(3_600_000),
    };
    client.declare_fleet("local", &patient).await.unwrap();
    let script =
        "trap 'exit 0' TERM\necho kept > $EBB_CHECKPOINT_DIR/file\necho it begins\nwhile true; do sleep 0.1; done";
    let id = submit_script(&system, "patient", script, "workers: {max: 1}").await;
    until_said(&system, &id, "it begins").await;
    system.ebb_json(&["suspend", &id]).await;
    until(&client, &id, "the suspension", |j| j.phase == "suspended").await;
    let checkpoints = system.ebb_json(&["checkpoints", &id]).await;
    let manifest = checkpoints["checkpoints"][0]["manifest_key"].as_str().unwrap();
    let store = system.service.ready().store_url.clone();
    silence(&PathBuf::from(store.strip_prefix("file://").unwrap()).join(manifest));

    system.ebb_json(&["resume", &id]).await;
    let restoring = |j: &ebb::wire::Job| j.phase == "starting" && !j.slots.is_empty();
    until(&client, &id, "the next start", restoring).await;
    until_executor(&system, true).await;
    need(&system, 1).await;
    until(&client, &id, "the return of its slot", |j| j.slots.is_empty()).await;
    until_executor(&system, false).await;
}

/// Waits until the only slot has a process, or none any more.
async fn until_executor(system: &System, wanted: bool) {
    let seen = async {
        while system.ebb_json(&["slots"]).await["slots"][0]["executor"].is_null() == wanted {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    tokio::time::timeout(WAIT_MAX, seen).await.unwrap_or_else(|_| panic!("a process is there: {}", !wanted));
}
