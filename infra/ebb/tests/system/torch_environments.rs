//! What a job in PyTorch runs in: its environment, built from requirements; its operator's secrets; its memory; and what is said of its end.
//! Packages come from a folder, as an operator without a network has it.

use crate::support::{LOOK_EVERY, System, WAIT_MAX, job, submit, text, until};
use crate::torch::{document, ended, project, python};
use ebb::wire::Job;
use gateway_client::Client;
use serde_json::{Value, json};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use workers_torch::isolation::is_offered;

/// A model that needs a package which nobody has.
const TRAIN: &str = r#"
import os, torch, ebb, tidepool
from torch import nn
from torch.nn import functional as F

class Job(ebb.Job):
    def model(self):
        print("tidepool is", tidepool.VERSION)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def loss(self, model, batch):
        images, labels = batch
        return F.cross_entropy(model(images), labels, reduction="sum"), len(labels)
"#;

/// The same without it.
fn plain_code() -> String {
    TRAIN.replace("ebb, tidepool", "ebb").replace("tidepool.VERSION", "\"not here\"")
}

/// A folder of packages: `tidepool` 1.0 needs the PyTorch that is there, and `reefs` 1.2, which needs a newer `idna` than is there.
fn wheels(folder: &Path) {
    let make = r#"
import sys, zipfile
def wheel(name, version, *needs):
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(f"{sys.argv[1]}/{name}-{version}-py3-none-any.whl", "w") as z:
        z.writestr(f"{name}/__init__.py", f"VERSION = {version!r}\n")
        z.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(f"Requires-Dist: {n}\n" for n in needs))
        z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{info}/RECORD", "")
wheel("tidepool", "1.0", "torch>=2", "numpy", "reefs>=1")
wheel("reefs", "1.2", "idna>=9000")
wheel("idna", "9001.0")
wheel("oldtorch", "1.0", "torch<2")
"#;
    std::fs::create_dir_all(folder).unwrap();
    assert!(Command::new(python()).args(["-c", make]).arg(folder).status().unwrap().success());
}

/// Where programs are, without those folders that have uv.
fn path_without_uv() -> String {
    let path = std::env::var("PATH").unwrap();
    path.split(':').filter(|folder| !Path::new(folder).join("uv").exists()).collect::<Vec<_>>().join(":")
}

fn path_with_uv() -> String {
    let uv =
        std::env::var("EBB_TEST_UV").expect("EBB_TEST_UV is not set: it names a uv; `infra/run test` installs one");
    format!("{}:{}", text(Path::new(&uv).parent().unwrap()), path_without_uv())
}

/// A service whose packages come from `place`, with these programs.
async fn service_with(place: &Path, path: &str, more: &[&str]) -> System {
    let (python, place) = (python(), text(place));
    let arguments: Vec<&str> = ["--python", &python].into_iter().chain(more.iter().copied()).collect();
    let variables = [
        ("PIP_NO_INDEX", "1"),
        ("PIP_FIND_LINKS", &place),
        ("UV_NO_INDEX", "1"),
        ("UV_FIND_LINKS", &place),
        ("PATH", path),
    ];
    System::start_with_in(2, &arguments, &variables).await
}

async fn with_lines(system: &System, code: &str, lines: &[&str]) -> Value {
    let mut document = document(system, code, 8).await;
    document["model"]["requirements"] = json!({ "lines": lines });
    document["workers"] = json!({"min": 2, "max": 2});
    document.as_object_mut().unwrap().remove("evaluation");
    document
}

/// What a job's executors have said, once these words are in it. Each executor's come by a way of their own, within seconds.
async fn logs(system: &System, id: &str, words: &[&str]) -> String {
    let begun = Instant::now();
    loop {
        let said = String::from_utf8(system.ebb(&["logs", id]).await.stdout).unwrap();
        if words.iter().all(|word| said.contains(word)) || begun.elapsed() > WAIT_MAX {
            return said;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Why a job failed, as its record says.
async fn failure(client: &Client, id: &str) -> String {
    let ended: Job = ended(client, id).await;
    assert_eq!(ended.phase, "failed", "{ended:?}");
    ended.failure.unwrap_or_default()
}

fn environments(system: &System) -> Vec<PathBuf> {
    let folder = system.path("data").join("agent/torch/cache");
    let all = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    all.filter(|path| path.is_dir() && path.file_name().unwrap().to_str().unwrap().starts_with("environment-"))
        .collect()
}

/// Both executors of a job need the environment at once, and so does the next job.
async fn an_environment_is_built_once(path: &str, with: &str) {
    let folder = tempfile::tempdir().unwrap();
    wheels(folder.path());
    let system = service_with(folder.path(), path, &[]).await;
    let client = system.client();
    let mut digests = Vec::new();
    for key in ["first", "second"] {
        let document = with_lines(&system, TRAIN, &["tidepool==1.0", "numpy"]).await;
        let id = submit(&client, &document, key).await;
        digests.push(crate::support::finished(&client, &id).await);
        let words = ["tidepool is", "building the environment"];
        let said = logs(&system, &id, if key == "first" { &words } else { &words[..1] }).await;
        assert!(said.contains("tidepool is 1.0"), "{said}");
        let built = said.matches("building the environment").count();
        assert_eq!(built, usize::from(key == "first"), "{said}");
        assert!(built == 0 || said.contains(with), "{said}");
    }
    assert_eq!(digests[0], digests[1]);
    let environments = environments(&system);
    assert_eq!(environments.len(), 1, "{environments:?}");
    // What lies below is used as it is; what is needed newer is there in its own environment.
    let packages =
        std::fs::read_dir(environments[0].join("lib")).unwrap().next().unwrap().unwrap().path().join("site-packages");
    assert!(!packages.join("numpy").exists() && !packages.join("torch").exists());
    assert!(packages.join("tidepool").exists() && packages.join("idna").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_environment_is_built_once_by_pip_where_there_is_no_uv() {
    an_environment_is_built_once(&path_without_uv(), "pip").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_environment_is_built_once_by_uv() {
    an_environment_is_built_once(&path_with_uv(), "uv").await;
}

/// With `full: true` nothing is taken from below, PyTorch included: here one that says where it really is, as the real one takes gigabytes.
async fn a_full_environment_is_built_anew(path: &str) {
    let folder = tempfile::tempdir().unwrap();
    wheels(folder.path());
    let make = r#"
import os, sys, zipfile, torch
there = os.path.dirname(os.path.dirname(torch.__file__))
with zipfile.ZipFile(f"{sys.argv[1]}/torch-99.0-py3-none-any.whl", "w") as z:
    z.writestr("torch_elsewhere.pth", f"import site; site.addsitedir({there!r})\n")
    z.writestr("torch-99.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 99.0\n")
    z.writestr("torch-99.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    z.writestr("torch-99.0.dist-info/RECORD", "")
"#;
    assert!(Command::new(python()).args(["-c", make]).arg(folder.path()).status().unwrap().success());
    let system = service_with(folder.path(), path, &[]).await;
    let client = system.client();
    let code = plain_code().replace(
        "def model(self):",
        "def model(self):\n        from importlib.metadata import version\n        assert version('torch') == '99.0' and __import__('reefs').VERSION == '1.2'",
    );
    let mut document = with_lines(&system, &code, &["reefs", "torch"]).await;
    let mut plain = with_lines(&system, &plain_code(), &["reefs"]).await;
    plain["model"].as_object_mut().unwrap().remove("requirements");
    let plain = submit(&client, &plain, "plain").await;
    document["model"]["requirements"]["full"] = json!(true);
    let full = submit(&client, &document, "full").await;
    assert_eq!(crate::support::finished(&client, &full).await, crate::support::finished(&client, &plain).await);
    let environments = environments(&system);
    let packages =
        std::fs::read_dir(environments[0].join("lib")).unwrap().next().unwrap().unwrap().path().join("site-packages");
    assert!(environments.len() == 1 && packages.join("idna").exists() && !packages.join("_ebb_below.pth").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_environment_is_built_anew_by_pip() {
    a_full_environment_is_built_anew(&path_without_uv()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_environment_is_built_anew_by_uv() {
    a_full_environment_is_built_anew(&path_with_uv()).await;
}

/// A package that is built where it is installed: what builds it, and what it runs whenever its Python starts, tries to read what is none of its business.
fn prying_package(folder: &Path, closed: &[PathBuf]) {
    let make = r#"
import io, json, sys, tarfile
pry = f"CLOSED = {sys.argv[2:]!r}\n" + """
def found():
    told = []
    for path in CLOSED:
        for mode in ("r", "a"):
            try:
                open(path, mode).close()
                told.append(path)
            except PermissionError:
                pass
    return told
"""
backend = """
import os, zipfile, pry
def build_wheel(folder, config_settings=None, metadata_directory=None):
    found, name = pry.found(), "tidepool-1.0-py3-none-any.whl"
    with open(os.path.join(os.environ["HOME"], "own"), "w") as file:
        file.write("x")
    with zipfile.ZipFile(os.path.join(folder, name), "w") as z:
        z.writestr("tidepool/__init__.py", f"VERSION = '1.0'\\nBUILT = {found!r}\\n")
        z.writestr("tidepool_start.py", open(pry.__file__).read() + "FOUND = found()\\n")
        z.writestr("tidepool.pth", "import tidepool_start\\n")
        info = "tidepool-1.0.dist-info"
        z.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: tidepool\\nVersion: 1.0\\n")
        z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        z.writestr(f"{info}/RECORD", "")
    return name
"""
project = '[project]\nname = "tidepool"\nversion = "1.0"\n[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
about = "Metadata-Version: 2.1\nName: tidepool\nVersion: 1.0\n"
with tarfile.open(f"{sys.argv[1]}/tidepool-1.0.tar.gz", "w:gz") as tar:
    for name, text in (("pyproject.toml", project), ("PKG-INFO", about), ("backend.py", backend), ("pry.py", pry)):
        entry = tarfile.TarInfo(f"tidepool-1.0/{name}")
        entry.size = len(text.encode())
        tar.addfile(entry, io.BytesIO(text.encode()))
"#;
    std::fs::create_dir_all(folder).unwrap();
    assert!(Command::new(python()).args(["-c", make]).arg(folder).args(closed).status().unwrap().success());
}

/// Neither while it is built, nor when a Python starts that has it, does a package reach the server's files.
async fn packages_are_kept_from_the_servers_files(path: &str) {
    let folder = tempfile::tempdir().unwrap();
    let (packages, home) = (folder.path().join("packages"), folder.path().join("home"));
    std::fs::create_dir_all(home.join(".ssh")).unwrap();
    let key = home.join(".ssh/id");
    std::fs::write(&key, "x").unwrap();
    let (python, place, home) = (python(), text(&packages), text(&home));
    let variables =
        [("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", &place), ("UV_NO_INDEX", "1"), ("UV_FIND_LINKS", &place)];
    let variables: Vec<(&str, &str)> = variables.into_iter().chain([("PATH", path), ("HOME", &home)]).collect();
    let system = System::start_with_in(2, &["--python", &python, "--isolate", "require"], &variables).await;
    let tokens = std::fs::read_dir(system.path("data").join("secrets")).unwrap();
    let closed: Vec<PathBuf> = tokens.map(|entry| entry.unwrap().path()).chain([key]).collect();
    assert!(closed.len() > 1, "{closed:?}");
    prying_package(&packages, &closed);
    let code = TRAIN.replace(
        "def model(self):",
        "def model(self):\n        import tidepool_start\n        assert not tidepool.BUILT + tidepool_start.FOUND, (tidepool.BUILT, tidepool_start.FOUND)",
    );
    let client = system.client();
    let id = submit(&client, &with_lines(&system, &code, &["tidepool"]).await, "pries").await;
    let ended = ended(&client, &id).await;
    assert_eq!(ended.phase, "finished", "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_package_that_pip_builds_does_not_reach_the_servers_files() {
    if is_offered() {
        packages_are_kept_from_the_servers_files(&path_without_uv()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_package_that_uv_builds_does_not_reach_the_servers_files() {
    if is_offered() {
        packages_are_kept_from_the_servers_files(&path_with_uv()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_installed_fails_the_job_at_once_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    wheels(folder.path());
    let system = service_with(folder.path(), &path_without_uv(), &[]).await;
    let client = system.client();
    for (key, lines, said) in [
        ("unknown", &["nosuchpackage==3"][..], "No matching distribution found for nosuchpackage==3"),
        ("torch", &["torch==1.13"], "the requirements say `torch==1.13`, and"),
        ("oldtorch", &["oldtorch"], "torch<2"),
    ] {
        let id = submit(&client, &with_lines(&system, &plain_code(), lines).await, key).await;
        let failure = failure(&client, &id).await;
        assert!(failure.contains(said), "{key}: {failure}");
        assert_eq!(job(&client, &id).await.restarts, 0);
    }
}

/// An index that takes requests and never answers: a build that hangs, for as long as this lives.
fn index_that_hangs() -> (std::net::TcpListener, String) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/simple", listener.local_addr().unwrap());
    (listener, url)
}

/// From now on it answers that it has nothing, to as many as ask.
fn answer_with_nothing(index: std::net::TcpListener) {
    std::thread::spawn(move || {
        for mut asking in index.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut request = [0; 4_096];
                let read = std::io::Read::read(&mut asking, &mut request);
                read.and_then(|_| {
                    asking.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                })
            });
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_is_given_up_leaves_its_slot_free_at_once_and_nothing_that_counts() {
    let folder = tempfile::tempdir().unwrap();
    wheels(folder.path());
    let (index, url) = index_that_hangs();
    let (python, path) = (python(), path_without_uv());
    let place = text(folder.path());
    let variables = [("PIP_INDEX_URL", url.as_str()), ("PIP_FIND_LINKS", &place), ("PATH", &path)];
    let system = System::start_with_in(2, &["--python", &python], &variables).await;
    let client = system.client();
    let mut document = with_lines(&system, TRAIN, &["tidepool"]).await;
    document["workers"] = json!({"min": 1, "max": 2});
    let id = submit(&client, &document, "hangs").await;
    // Someone asks the index: a build is in the middle.
    let asked = tokio::task::spawn_blocking(move || index.accept().map(|(stream, _)| (index, stream)));
    let asked = tokio::time::timeout(WAIT_MAX, asked).await.expect("pip asks").unwrap().unwrap();
    let slots = system.agent().slots().await.unwrap();
    let busy: Vec<String> = slots.iter().filter(|s| s.executor.is_some()).map(|s| s.slot.clone()).collect();
    assert!(!busy.is_empty(), "{slots:?}");
    let freed = system.agent().take_back(&busy, Some(500)).await.unwrap();
    // Who is still building has nothing to leave, and is not waited for until the deadline kills it.
    assert!(freed.iter().all(|slot| slot.free && !slot.killed), "{freed:?}");
    let after = system.agent().slots().await.unwrap();
    assert!(after.iter().filter(|s| busy.contains(&s.slot)).all(|s| s.pid.is_none()), "{after:?}");
    // With an index that answers the next one builds it whole.
    let (index, _first) = asked;
    answer_with_nothing(index);
    for slots in ["1", "0"] {
        system.ebb_json(&["demand", "local", "--needed", slots]).await;
    }
    crate::support::finished(&client, &id).await;
    assert_eq!(environments(&system).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_ends_is_explained() {
    let system = crate::torch::service().await;
    let client = system.client();
    for (key, what, said) in [
        (
            "exits",
            "print('about to go', flush=True); os._exit(3)",
            &["ended itself with exit status 3", "about to go"][..],
        ),
        ("crashes", "import ctypes; ctypes.string_at(0)", &["segmentation fault", "Fatal Python error", "train.py"]),
        ("grows", "x = [bytearray(1 << 20) for _ in range(4000)]", &["than its memory_limit_mib of 1500"]),
    ] {
        let code = plain_code()
            .replace("images, labels = batch", &format!("images, labels = batch\n        if self.step == 2: {what}"));
        let mut document = document(&system, &code, 8).await;
        document["workers"] = json!({"min": 1, "max": 1});
        if key == "grows" {
            document["model"]["memory_limit_mib"] = json!(1_500);
        }
        let id = submit(&client, &document, key).await;
        let failure = failure(&client, &id).await;
        assert!(said.iter().all(|said| failure.contains(said)), "{key}: {failure}");
        assert!(failure.contains("the job's code ended twice at step 2, rank 0"), "{key}: {failure}");
        let restarts = client.job(&id).await.unwrap().restarts;
        assert_eq!(restarts, 1, "{key}: tried once more");
        let events = String::from_utf8(system.ebb(&["events", &id]).await.stdout).unwrap();
        assert!(events.contains(said[0]), "{events}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_reaches_the_code_and_nothing_else() {
    const VALUE: &str = "sea-urchin-4711";
    let folder = tempfile::tempdir().unwrap();
    let secret = |name: &str, mode: u32| {
        let path = folder.path().join(name);
        let mut file = std::fs::File::create(&path).unwrap();
        writeln!(file, "{VALUE}").unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    secret("hub", 0o600);
    secret("open", 0o644);
    let (python, secrets) = (python(), text(folder.path()));
    let system = System::start_with(1, &["--python", &python, "--secrets", &secrets]).await;
    let client = system.client();
    let with = |document: &Value, name: &str| {
        let mut document = document.clone();
        document["model"]["secrets"] = json!({"HUB_TOKEN": name});
        document["workers"] = json!({"min": 1, "max": 1});
        document
    };
    let code =
        plain_code().replace("def model(self):", "def model(self):\n        assert len(os.environ['HUB_TOKEN']) == 15");
    let document = document(&system, &code, 8).await;
    let id = submit(&client, &with(&document, "hub"), "there").await;
    crate::support::finished(&client, &id).await;
    for (name, said) in [("absent", "`absent`, wanted as HUB_TOKEN, is not on this server"), ("open", "chmod 600")] {
        let id = submit(&client, &with(&document, name), name).await;
        let failure = failure(&client, &id).await;
        assert!(failure.contains(said) && !failure.contains(VALUE), "{failure}");
    }
    let shown = client.job(&id).await.unwrap().as_it_came().to_string();
    assert!(!shown.contains(VALUE), "{shown}");
    let folder = system.stop().await;
    assert!(!holds(folder.path(), VALUE.as_bytes()), "the value is in the data directory");
}

/// What a model in PyTorch may ask of a server a whole program may as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_whole_program_has_its_packages_its_secrets_and_a_bound_on_its_memory() {
    const VALUE: &str = "sea-urchin-0815";
    let (packages, secrets) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    wheels(packages.path());
    let secret = secrets.path().join("hub");
    std::fs::write(&secret, format!("{VALUE}\n")).unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let system = service_with(packages.path(), &path_without_uv(), &["--secrets", &text(secrets.path())]).await;
    let client = system.client();
    let folder = system.path("program");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("requirements.txt"), "tidepool==1.0\n").unwrap();
    let run = async |program: &str, more: &str| {
        std::fs::write(folder.join("main.py"), program).unwrap();
        let spec = format!("name: program\nengine: command\ncommand: python main.py\nworkers: {{max: 2}}\n{more}");
        let file = folder.join("job.yaml");
        std::fs::write(&file, spec).unwrap();
        system.ebb_json(&["submit", &text(&file)]).await["id"].as_str().unwrap().to_owned()
    };
    let program = "import os, numpy, tidepool, torch\nprint('tidepool is', tidepool.VERSION, 'and the token has', len(os.environ['HUB_TOKEN']))\n";
    let id = run(program, "requirements: requirements.txt\nsecrets: {HUB_TOKEN: hub}\n").await;
    crate::support::finished(&client, &id).await;
    let said = logs(&system, &id, &["tidepool is 1.0 and the token has 15"]).await;
    assert!(said.contains("tidepool is 1.0 and the token has 15") && !said.contains(VALUE), "{said}");
    assert_eq!(environments(&system).len(), 1, "both processes have the same");

    let id = run("print('never')", "secrets: {HUB_TOKEN: absent}\n").await;
    let why = failure(&client, &id).await;
    assert!(why.contains("`absent`, wanted as HUB_TOKEN, is not on this server"), "{why}");
    std::fs::write(folder.join("requirements.txt"), "torch==1.13\n").unwrap();
    let id = run("print('never')", "requirements: requirements.txt\n").await;
    let why = failure(&client, &id).await;
    assert!(why.contains("the requirements say `torch==1.13`"), "{why}");

    let grows = "import time\nx = [bytearray(1 << 20) for _ in range(1000)]\ntime.sleep(600)\n";
    let id = run(grows, "memory_limit_mib: 256\nmax_restarts: 0\n").await;
    let why = failure(&client, &id).await;
    assert!(why.contains("than its memory_limit_mib of 256"), "{why}");
    let folder = system.stop().await;
    assert!(!holds(folder.path(), VALUE.as_bytes()), "the value is in the data directory");
}

/// Whether any file below a folder holds these bytes.
fn holds(folder: &Path, bytes: &[u8]) -> bool {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).any(|path| {
        if path.is_dir() && !path.is_symlink() {
            return holds(&path, bytes);
        }
        std::fs::read(&path).is_ok_and(|content| content.windows(bytes.len()).any(|window| window == bytes))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_tries_the_job_on_the_machine_that_submits() {
    let folder = tempfile::tempdir().unwrap();
    wheels(folder.path());
    let (python, cache) = (python(), text(&folder.path().join("cache")));
    std::fs::write(folder.path().join("requirements.txt"), "tidepool  # of the shore\n").unwrap();
    let file = folder.path().join("job.yaml");
    let spec = "name: mine\nengine: torch\ncode: code\nentry: train:Job\nrequirements: requirements.txt\ndataset: digits\nbatch_size: 8\nsteps: 4\n";
    std::fs::write(&file, spec).unwrap();
    std::fs::create_dir(folder.path().join("code")).unwrap();
    let try_it = |code: &str| {
        std::fs::write(folder.path().join("code/train.py"), code).unwrap();
        let output = Command::new(crate::support::EBB)
            // Nobody listens there.
            .args(["submit", "--url", "http://127.0.0.1:9", "--dry-run", "--python", &python])
            .arg(&file)
            .env("XDG_CACHE_HOME", &cache)
            .env("PATH", path_without_uv())
            .env("PIP_NO_INDEX", "1")
            .env("PIP_FIND_LINKS", folder.path())
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].map(|said| String::from_utf8(said).unwrap()).concat();
        (output.status.success(), said)
    };
    let (fits, said) = try_it(TRAIN);
    assert!(fits && said.contains("650 parameters") && said.contains("the service was not asked"), "{said}");
    let remembers = TRAIN.replace(
        "images, labels = batch",
        "images, labels = batch\n        self.calls = getattr(self, 'calls', 0) + 1",
    );
    let (fits, said) = try_it(&remembers);
    assert!(!fits && said.contains("`Job.calls` changed by computing a gradient"), "{said}");
    assert!(!said.contains("building the environment"), "it is there: {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requirements_in_a_job_file_are_those_of_the_file_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    wheels(folder.path());
    let system = service_with(folder.path(), &path_without_uv(), &[]).await;
    let file = project(&system, TRAIN, "steps: 4\nrequirements: requirements.txt\n");
    std::fs::write(file.parent().unwrap().join("requirements.txt"), "tidepool==1.0\n").unwrap();
    let submitted = system.ebb_json(&["submit", file.to_str().unwrap(), "--wait"]).await;
    assert_eq!(submitted["phase"], "finished", "{submitted}");
    let id = submitted["id"].as_str().unwrap();
    until(&system.client(), id, "its requirements on its record", |j| j.phase == "finished").await;
}
