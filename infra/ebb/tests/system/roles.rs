//! Gateways, a controller and an agent in processes of their own, found by a file and the environment: each may be killed and replaced while
//! a job trains, and the model is what one thread makes of it.

use crate::support::{EBB, WAIT_MAX, finished, job, kafka, model_job, plain_digest, steps, submit, text, until};
use gateway_client::Client;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// A cell: its configuration file, and where its controller is.
struct Cell {
    folder: tempfile::TempDir,
    controller: Option<String>,
}

/// A role in a process of its own, and what it said when it was ready.
struct Role {
    process: Child,
    ready: Value,
}

impl Cell {
    fn new(log: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cell = Self { folder, controller: None };
        let [data, store] = ["controller", "store"].map(|name| text(&cell.folder.path().join(name)));
        let file = format!(
            "[log]\nurl = \"{log}\"\n[store]\nurl = \"file://{store}\"\n[controller]\ntoken_file = \"{data}/secrets/agent.token\"\n[gateway]\nlisten = \"127.0.0.1:0\"\ndataset_root = [\"{store}\"]\n"
        );
        std::fs::write(cell.file(), file).unwrap();
        cell
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("ebb.toml")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(EBB);
        command.args(arguments).env("EBB_CONFIG", self.file()).current_dir(self.folder.path()).kill_on_drop(true);
        if let Some(url) = &self.controller {
            command.env("EBB_CONTROLLER_URL", url);
        }
        command
    }

    async fn start(&self, arguments: &[&str]) -> Role {
        let mut command = self.command(arguments);
        let mut process = command.args(["--output", "json"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = tokio::time::timeout(WAIT_MAX, lines.next_line()).await.unwrap().unwrap();
        let line = line.unwrap_or_else(|| panic!("{arguments:?} ended before it was ready"));
        Role { process, ready: serde_json::from_str(&line).unwrap() }
    }

    /// Starts a controller, where an earlier one of this cell was if there was one.
    async fn start_controller(&mut self) -> Role {
        let address = self.controller.as_deref().map_or("127.0.0.1:0", |url| url.trim_start_matches("http://"));
        let controller = self.start(&["controller", "--data", "controller", "--listen-agents", address]).await;
        self.controller = Some(controller.ready["controller"].as_str().unwrap().to_owned());
        controller
    }

    /// Starts another controller of this cell beside the first, with a copy of its secrets and an address of its own.
    async fn start_rival(&self) -> Role {
        let [from, to] = ["controller/secrets", "rival/secrets"].map(|name| self.folder.path().join(name));
        std::fs::create_dir_all(&to).unwrap();
        for name in ["agent.token", "cell.secret"] {
            std::fs::copy(from.join(name), to.join(name)).unwrap();
        }
        self.start(&["controller", "--data", "rival", "--name", "rival"]).await
    }

    /// A client's command, which has to succeed.
    async fn ebb(&self, gateway: &Role, arguments: &[&str]) {
        let output = self.command(arguments).env("EBB_URL", gateway.url()).output().await.unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Role {
    fn url(&self) -> &str {
        self.ready["url"].as_str().unwrap()
    }

    fn client(&self) -> Client {
        Client::new(self.url()).unwrap()
    }
}

fn log_url(name: &str) -> String {
    let brokers = kafka();
    format!("kafka://{brokers}?plaintext=allow&prefix={name}-{}", std::process::id())
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_of_their_own_are_killed_one_by_one_and_the_model_is_the_same() {
    let mut cell = Cell::new(&log_url("roles"));
    let mut controller = cell.start_controller().await;
    let mut first = cell.start(&["gateway"]).await;
    let second = cell.start(&["gateway"]).await;
    let _agent = cell.start(&["agent", "--server", "far", "--slots", "2", "--data", "far"]).await;
    cell.ebb(&first, &["fleet", "put", "chat", "--server", "far", "--slots", "2"]).await;
    cell.ebb(&first, &["demand", "chat", "--needed", "0"]).await;
    std::fs::write(cell.folder.path().join("text.txt"), "the tide turns at noon and at midnight. ".repeat(600))
        .unwrap();
    cell.ebb(&second, &["dataset", "import", "text", "text.txt", "--format", "text", "--length", "17"]).await;

    let mut document = model_job("gpt");
    document["workers"]["max"] = 2.into();
    let id = submit(&first.client(), &document, "roles").await;
    // The other gateway learns from the controller how far the job is, and from the log that it runs, which may come later.
    let runs = |job: &ebb::wire::Job| job.phase == "finished" || job.phase == "running" && steps(job) > 20;
    until(&second.client(), &id, "a step", runs).await;

    controller.process.kill().await.unwrap();
    first.process.kill().await.unwrap();
    let phase = job(&second.client(), &id).await.phase;
    assert!(phase == "running" || phase == "finished", "a gateway answers without a controller: {phase:?}");
    let seen = steps(&job(&second.client(), &id).await);
    let mut controller = cell.start_controller().await;
    let goes_on = |job: &ebb::wire::Job| job.phase == "finished" || steps(job) > seen;
    until(&second.client(), &id, "more steps under the new controller", goes_on).await;

    // Another one takes the cell over, and this one stands down by itself and says so. Agents know one address, so it is started there again.
    let mut rival = cell.start_rival().await;
    let ended = tokio::time::timeout(WAIT_MAX, controller.process.wait()).await.unwrap().unwrap();
    assert_eq!(ended.code(), Some(1), "who lost the cell ends");
    let _controller = cell.start_controller().await;
    let ended = tokio::time::timeout(WAIT_MAX, rival.process.wait()).await.unwrap().unwrap();
    assert_eq!(ended.code(), Some(1), "and so does the rival, in its turn");

    let digest = finished(&second.client(), &id).await;
    let store = second.ready["store_url"].as_str().unwrap();
    assert_eq!(digest, plain_digest(&second.client(), store, &document).await);
    assert_eq!(job(&second.client(), &id).await.restarts, 0, "executors trained on all the while");
}

#[tokio::test]
async fn settings_are_shown_with_where_they_come_from_and_wrong_ones_are_told() {
    let cell = Cell::new("kafka://127.0.0.1:9092");
    let shown =
        cell.command(&["config", "show", "--output", "json"]).env("EBB_AGENT_SLOTS", "3").output().await.unwrap();
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let from = |key: &str| shown["settings"][key]["from"].as_str().unwrap().to_owned();
    assert_eq!((from("agent.slots"), from("agent.host")), ("EBB_AGENT_SLOTS".to_owned(), "default".to_owned()));
    assert!(from("gateway.listen").ends_with("ebb.toml"), "{shown}");

    let wrong = cell.command(&["gateway"]).env("EBB_GATEWAY_LISTEN", "everywhere").output().await.unwrap();
    let said = String::from_utf8(wrong.stderr).unwrap();
    assert!(wrong.status.code() == Some(2) && said.contains("EBB_GATEWAY_LISTEN"), "{said}");
    let alone = ["gateway", "--log", "file:///tmp/log.redb"];
    let wrong = cell.command(&alone).output().await.unwrap();
    let said = String::from_utf8(wrong.stderr).unwrap();
    assert!(wrong.status.code() == Some(2) && said.contains("`ebb up`, which is both"), "{said}");
}
