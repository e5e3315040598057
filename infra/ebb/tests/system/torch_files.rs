//! Which files programs of jobs reach, where the kernel can keep them from others: the same however their Python was started.

use crate::gang::submit_script;
use crate::support::{System, finished, submit, text};
use crate::torch::{document, python};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use workers_torch::isolation::is_offered;

/// It tries what it must not, what it may, and trains.
const TRAIN: &str = r#"
import os, subprocess, tempfile, torch, ebb
from torch import nn
from torch.nn import functional as F
from torch._inductor.runtime.cache_dir_utils import cache_dir  # of torch.compile

def refused(path, mode):
    try:
        open(path, mode).close()
    except PermissionError:
        return
    raise AssertionError(f"{path} is open ({mode})")

class Job(ebb.Job):
    def model(self):
        here = os.path.dirname(os.path.abspath(__file__))
        for path in self.parameters["closed"]:
            refused(path, "r")
            assert subprocess.run(["cat", path], stderr=subprocess.DEVNULL).returncode != 0, path
        for path in (__file__, os.path.join(here, "new"), *self.parameters["closed"]):
            refused(path, "a")
        if os.getuid() != 0:  # who has all rights of the machine may look at processes
            refused(f"/proc/{os.getppid()}/environ", "r")
        for path in (__file__, self.parameters["open"], "/etc/hostname"):
            open(path).close()
        refused(self.parameters["open"], "a")
        for folder in (os.environ["HOME"], tempfile.gettempdir(), os.getcwd(), cache_dir(), "/dev/shm"):
            with tempfile.NamedTemporaryFile(dir=folder) as file:
                file.write(b"x")
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def loss(self, model, batch):
        images, labels = batch
        return F.cross_entropy(model(images), labels, reduction="sum"), len(labels)
"#;

/// A service with a secret, rows that its operator opens, and a home with a key; the secret's file and the key.
async fn service(place: &Path) -> (System, Vec<PathBuf>) {
    let write = |name: &str| {
        let path = place.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "x").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    write("rows/0");
    // Within what is readable, and hidden all the same.
    let closed = vec![write("rows/secrets/hub"), write("home/.ssh/id")];
    let (python, rows, secrets) = (python(), text(&place.join("rows")), text(&place.join("rows/secrets")));
    let arguments = ["--python", &python, "--readable", &rows, "--secrets", &secrets, "--isolate", "require"];
    let home = text(&place.join("home"));
    (System::start_with_in(2, &arguments, &[("HOME", &home)]).await, closed)
}

fn closed(system: &System, mut closed: Vec<PathBuf>) -> Vec<String> {
    let tokens = std::fs::read_dir(system.path("data").join("secrets")).unwrap();
    closed.extend(tokens.map(|entry| entry.unwrap().path()));
    closed.iter().map(|path| text(path)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_jobs_code_reaches_its_own_files_however_its_python_was_started() {
    if !is_offered() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (system, paths) = service(place.path()).await;
    let client = system.client();
    let closed = closed(&system, paths);
    assert!(closed.len() > 3, "{closed:?}");
    let mut document = document(&system, TRAIN, 8).await;
    document["model"]["parameters"] = json!({"closed": closed, "open": text(&place.path().join("rows/0"))});
    let forked = submit(&client, &document, "forked").await;
    finished(&client, &forked).await;
    // What it names could be loaded by a process that has no rules: none is started so.
    document["model"]["environment"] = json!({"TORCH_HOME": text(&place.path().join("rows"))});
    let cold = submit(&client, &document, "cold").await;
    finished(&client, &cold).await;
    for (id, forks) in [(forked, true), (cold, false)] {
        let logs = String::from_utf8_lossy(&system.ebb(&["logs", &id]).await.stdout).into_owned();
        assert_eq!(logs.contains("forked Python"), forks, "{logs}");
    }
    let left = std::fs::read_dir(system.path("data").join("agent/torch/scratch")).unwrap();
    let left = left.filter(|entry| entry.as_ref().unwrap().path().is_dir()).count();
    assert!(left <= 2, "{left} folders, so those of the first job's executors were not removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_program_reaches_its_own_files() {
    if !is_offered() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (system, paths) = service(place.path()).await;
    let closed = closed(&system, paths).join(" ");
    let rows = text(&place.path().join("rows"));
    let script = format!(
        "for file in {closed}; do cat $file && exit 9; echo x >> $file && exit 8; done\n\
        [ $(id -u) != 0 ] && cat /proc/$PPID/environ && exit 7\n\
        cat {rows}/0 run.sh > copy && echo x > $HOME/a && echo x > $TMPDIR/b && echo x > $EBB_CHECKPOINT_DIR/c && \
        python -c 'import torch, tempfile; tempfile.TemporaryFile().close()'"
    );
    let id = submit_script(&system, "files", &script, "max_restarts: 0").await;
    finished(&system.client(), &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_that_jobs_could_not_read_is_refused_at_the_start() {
    if !is_offered() {
        return;
    }
    let data = tempfile::tempdir().unwrap();
    let python = data.path().join("venv/bin/python");
    std::fs::create_dir_all(python.parent().unwrap()).unwrap();
    std::fs::copy("/bin/true", &python).unwrap();
    let mut command = Command::new(crate::support::EBB);
    command.args(["up", "--listen", "127.0.0.1:0", "--python"]).arg(&python).arg("--data").arg(data.path());
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains(&format!("--python is `{}`", text(&python))), "{said}");
}
