//! What the tests share: a service on a directory of its own, the jobs they train, seeded randomness, and what a job has to become.

use ebb::wire::Job;
use events_schema::JobId;
use events_schema::control::TorchHost;
use events_schema::dataset::DatasetInfo;
use events_schema::job::JobSpec;
use events_schema::orders::JobOrder;
use gateway_client::{Body, Client, Events};
use loadtest_harness::service::{Service, ServiceOptions};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{Semaphore, SemaphorePermit};
use workers_agent_client::AgentClient;
use workers_executor::plain::{PlainRun, train_plain_steps};

/// The program under test.
pub const EBB: &str = env!("CARGO_BIN_EXE_ebb");
/// Services at the same time: more would only wait for each other on the two cores that CI has.
static SERVICES: Semaphore = Semaphore::const_new(2);
/// Longest wait for any one thing.
pub const WAIT_MAX: Duration = Duration::from_secs(180);
/// How often something is looked at while waiting for it.
pub const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A service, its directory, and its place among those that run.
pub struct System {
    pub service: Service,
    folder: tempfile::TempDir,
    _place: SemaphorePermit<'static>,
}

impl System {
    /// A fresh service.
    pub async fn start(slots: u16) -> Self {
        Self::start_on(slots, None).await
    }

    /// A fresh service that takes no place from others: its jobs compute nothing.
    pub async fn start_beside(slots: u16) -> Self {
        static PLACES: Semaphore = Semaphore::const_new(1);
        Self::start_at(&PLACES, EBB.into(), slots, &[], &[]).await
    }

    /// A fresh service on a log of the test's own.
    pub async fn start_on(slots: u16, log: Option<&str>) -> Self {
        Self::start_program(EBB.into(), slots, log).await
    }

    /// A fresh service with more arguments.
    pub async fn start_with(slots: u16, arguments: &[&str]) -> Self {
        Self::start_this(EBB.into(), slots, arguments, &[]).await
    }

    /// A fresh service by another program than that under test itself.
    pub async fn start_program(program: PathBuf, slots: u16, log: Option<&str>) -> Self {
        let arguments: Vec<&str> = log.into_iter().flat_map(|log| ["--log", log]).collect();
        Self::start_this(program, slots, &arguments, &[]).await
    }

    /// A fresh service with variables of its own.
    pub async fn start_in(slots: u16, variables: &[(&str, &str)]) -> Self {
        Self::start_this(EBB.into(), slots, &[], variables).await
    }

    /// A fresh service with more arguments and variables of its own.
    pub async fn start_with_in(slots: u16, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start_this(EBB.into(), slots, arguments, variables).await
    }

    async fn start_this(program: PathBuf, slots: u16, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start_at(&SERVICES, program, slots, arguments, variables).await
    }

    async fn start_at(
        places: &'static Semaphore,
        program: PathBuf,
        slots: u16,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let place = places.acquire().await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (data, arguments) = (folder.path().join("data"), arguments.iter().map(Into::into).collect());
        let environment = variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let options = ServiceOptions { program, data, slots, arguments, environment };
        let service = Service::start(options).await.unwrap_or_else(|e| panic!("{e}"));
        Self { service, folder, _place: place }
    }

    /// SIGTERM; what it said last is out when this returns. Its folder, for who wants to look into it.
    pub async fn stop(self) -> tempfile::TempDir {
        let Self { service, folder, _place } = self;
        assert!(service.stop().await.unwrap().success());
        folder
    }

    /// Waits until the service ends by itself; its exit status, and how to start the program under test on its directory.
    pub async fn ended(self) -> (std::process::ExitStatus, Dead) {
        let Self { service, folder, _place: place } = self;
        let options = ServiceOptions {
            program: EBB.into(),
            data: folder.path().join("data"),
            slots: 1,
            arguments: Vec::new(),
            environment: Vec::new(),
        };
        (service.ended().await.unwrap(), Dead { options, folder, place })
    }

    pub fn client(&self) -> Client {
        self.service.client().unwrap()
    }

    pub fn agent(&self) -> AgentClient {
        self.service.agent().unwrap()
    }

    /// A path beside the data directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `kill -9` of gateway, controller and agent.
    pub async fn kill(self) -> Dead {
        let Self { service, folder, _place: place } = self;
        let controller = service.ready().controller.trim_start_matches("http://").to_owned();
        let mut options = service.kill().await.unwrap();
        // Agents elsewhere look for their controller where it was.
        if !options.arguments.iter().any(|a| a == "--listen-agents") {
            options = options.with("--listen-agents", Some(&controller));
        }
        Dead { options, folder, place }
    }

    /// `kill -9`, then the same directory again.
    pub async fn crash(self) -> Self {
        self.kill().await.start().await
    }

    /// Runs a command of the program against this service.
    pub async fn ebb(&self, arguments: &[&str]) -> Output {
        let url = self.service.ready().url.clone();
        Command::new(EBB).args(arguments).env("EBB_URL", url).current_dir(self.folder.path()).output().await.unwrap()
    }

    /// The same with `--output json`, which has to succeed.
    pub async fn ebb_json(&self, arguments: &[&str]) -> Value {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["--output", "json"]).collect();
        let output = self.ebb(&arguments).await;
        assert!(output.status.success(), "ebb {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("ebb {arguments:?}: {e}: {}", String::from_utf8_lossy(&output.stdout)))
    }
}

/// A service that was killed.
pub struct Dead {
    options: ServiceOptions,
    folder: tempfile::TempDir,
    place: SemaphorePermit<'static>,
}

impl Dead {
    /// With another number of slots.
    pub fn with_slots(mut self, slots: u16) -> Self {
        self.options.slots = slots;
        self
    }

    /// Starts it again on its directory.
    pub async fn start(self) -> System {
        let service = Service::start(self.options).await.unwrap_or_else(|e| panic!("{e}"));
        System { service, folder: self.folder, _place: self.place }
    }
}

/// An agent in a process of its own, connected to a service.
pub async fn agent_alone(system: &System, slots: u16) -> (Child, AgentClient) {
    agent_with(system, slots, &[]).await
}

/// The same, with variables of its own.
pub async fn agent_with(system: &System, slots: u16, variables: &[(&str, &str)]) -> (Child, AgentClient) {
    let ready = system.service.ready();
    let data = system.path("far");
    let mut child = Command::new(EBB)
        .args([
            "agent",
            "--output",
            "json",
            "--server",
            "far",
            "--slots",
            &slots.to_string(),
            "--controller",
            &ready.controller,
            "--store",
            &ready.store_url,
        ])
        .args(["--data", &text(&data), "--token-file", &text(&ready.agent_token_file)])
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.next_line().await.unwrap().unwrap();
    assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["server"], "far");
    let client = AgentClient::of_directory(&data).unwrap();
    (child, client)
}

/// Waits until the service knows a slot.
pub async fn until_slot(system: &System, slot: &str) {
    let begun = std::time::Instant::now();
    loop {
        let slots = system.ebb_json(&["slots"]).await;
        if slots["slots"].as_array().unwrap().iter().any(|s| s["slot"] == slot && !s["class"].is_null()) {
            return;
        }
        assert!(begun.elapsed() < crate::support::WAIT_MAX, "{slot} is unknown: {slots}");
    }
}

/// Submits a job; its id.
pub async fn submit(client: &Client, document: &Value, key: &str) -> String {
    let answer = client.submit_once(&Body::json(document), Some(key)).await;
    answer.unwrap_or_else(|e| panic!("{e}")).into_typed().id
}

/// A job's record.
pub async fn job(client: &Client, id: &str) -> Job {
    client.job(id).await.unwrap_or_else(|e| panic!("{e}")).into_typed()
}

/// The checkpoints of a job, oldest first, once there are so many: they are written behind the training, and give way to it on a busy machine.
pub async fn until_saved(system: &System, id: &str, count: usize) -> Vec<Value> {
    let begun = Instant::now();
    loop {
        let saved = system.ebb_json(&["checkpoints", id]).await["checkpoints"].as_array().unwrap().clone();
        if saved.len() >= count {
            return saved;
        }
        assert!(begun.elapsed() < WAIT_MAX, "only these are saved: {saved:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// What an event of a type says, each time that it was published of a job so far, once that was so often.
pub async fn until_told(system: &System, id: &str, kind: &str, times: usize) -> Vec<Value> {
    let (client, begun) = (system.client(), Instant::now());
    loop {
        let told = client.all_events(&Events::of_job(id).of_types(&[kind])).await.unwrap_or_else(|e| panic!("{e}"));
        if told.len() >= times {
            return told.iter().map(|event| event["data"].clone()).collect();
        }
        let now = job(&client, id).await;
        assert!(!now.is_over() && begun.elapsed() < WAIT_MAX, "waited for {kind}, but the job is {now:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Reads a job's record until it is as wanted.
pub async fn until(client: &Client, id: &str, what: &str, wanted: impl Fn(&Job) -> bool) -> Job {
    let begun = Instant::now();
    loop {
        let now = job(client, id).await;
        if wanted(&now) {
            return now;
        }
        assert!(begun.elapsed() < WAIT_MAX, "waited for {what}, but the job is {now:?}");
        assert!(now.phase != "failed", "waited for {what}, but the job failed: {now:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Steps a job has done, as its leader last said.
pub fn steps(job: &Job) -> u64 {
    job.outcome.as_ref().map(|o| o.step).or(job.progress.map(|p| p.step)).unwrap_or(0)
}

/// The digest of a job that finished.
pub async fn finished(client: &Client, id: &str) -> String {
    until(client, id, "the end", |j| j.phase == "finished").await.outcome.unwrap().model_digest
}

/// What the same job gives on one thread, without any of the service: the digest that everything else has to equal.
pub async fn plain_digest(client: &Client, store_url: &str, document: &Value) -> String {
    plain(client, store_url, document, u64::MAX).await.model_digest.to_string()
}

/// The same of the first steps of a job.
pub async fn plain(client: &Client, store_url: &str, document: &Value, steps_max: u64) -> PlainRun {
    let spec = JobSpec::parse(document).unwrap();
    let datasets = client.datasets(None).await.unwrap();
    let info = |name: &str| -> DatasetInfo {
        let dataset = datasets.iter().find(|dataset| dataset.name == name).unwrap();
        serde_json::from_value(dataset.as_it_came().clone()).unwrap()
    };
    let evaluation = spec.evaluation.as_ref().and_then(|e| e.dataset.as_ref()).map(|name| info(name.as_str()));
    let dataset = spec.dataset.as_ref().map(|name| info(name.as_str()));
    let order = JobOrder::alone(spec, dataset, evaluation);
    let (job, store_url) = (JobId::parse("job-plain").unwrap(), store_url.to_owned());
    let torch = std::env::var("EBB_TEST_TORCH").ok().map(|python| TorchHost {
        folder: std::env::temp_dir().join(format!("ebb-plain-{}", std::process::id())).display().to_string(),
        python,
        secrets: None,
        cache_mib: None,
        // The digest of a Python that was started from the beginning is what one that was forked has to give.
        warm: None,
        files: None,
    });
    let run = tokio::task::spawn_blocking(move || {
        train_plain_steps(&job, &order, &store_url, torch.as_ref(), steps_max).unwrap()
    });
    run.await.unwrap()
}

/// A small network of each kind that the product ships, long enough to be disturbed. `text` needs [`import_text`].
pub fn model_job(kind: &str) -> Value {
    let (model, dataset, batch_size, steps) = match kind {
        "mlp" => (json!({"kind": "mlp", "hidden": [64], "dropout": 0.1}), "digits", 16, 3_000),
        "cnn" => {
            (json!({"kind": "cnn", "channels": [4, 8], "blocks": 1, "groups": 2, "dropout": 0.1}), "digits", 8, 2_000)
        }
        _ => (
            json!({"kind": "gpt", "layers": 1, "heads": 2, "width": 16, "context": 16, "dropout": 0.1}),
            "text",
            4,
            2_000,
        ),
    };
    json!({
        "name": kind, "model": model, "dataset": dataset, "workers": {"min": 1, "max": 4}, "batch_size": batch_size, "steps": steps, "seed": 11,
        "optimizer": {"kind": "adamw", "learning_rate": 0.003}, "schedule": {"kind": "cosine", "warmup_steps": 10},
        "gradient_clip_norm": 1.0, "checkpoint": {"every_steps": 60, "keep": 2},
    })
}

/// A job of which nothing computes, and a gradient takes as long as it says: it takes nothing from other tests, and lasts for as long as one needs it. What its
/// model is at a step is as exact as any other's: [`assert_synthetic_suspended`].
pub fn synthetic_job(workers: [u16; 2], gradient_ms: u64) -> Value {
    let [min, max] = workers;
    json!({
        "name": "synthetic", "dataset": "digits", "workers": {"min": min, "max": max}, "batch_size": 3, "steps": 1_000_000, "seed": 3,
        "model": {"kind": "synthetic", "gradient_ms": gradient_ms}, "checkpoint": {"every_steps": 1_000_000},
        // So that it is far from nought at the end.
        "optimizer": {"kind": "sgd", "learning_rate": 0.000_1},
    })
}

/// Suspends a job of [`synthetic_job`]: its replica is that of a single thread after as many steps, bit for bit.
pub async fn assert_synthetic_suspended(system: &System, id: &str, document: &Value) {
    let client = system.client();
    system.ebb_json(&["suspend", id]).await;
    until(&client, id, "the suspension", |j| j.phase == "suspended").await;
    let saved = until_saved(system, id, 1).await.pop().unwrap();
    let mut quick = document.clone();
    quick["model"]["gradient_ms"] = 0.into();
    let alone = plain(&client, &system.service.ready().store_url, &quick, saved["step"].as_u64().unwrap()).await;
    assert_eq!(saved["replica_digest"], alone.replica_digest.to_string());
}

/// Registers the dataset `text`: a few kilobytes of words in a seeded order.
pub async fn import_text(system: &System) {
    let words = ["ebb ", "flow ", "tide ", "spring ", "neap ", "slack\n"];
    let mut random = Random::new(3);
    let text: String = (0..4_000).map(|_| words[random.below(words.len() as u64) as usize]).collect();
    std::fs::write(system.path("text.txt"), text).unwrap();
    system.ebb_json(&["dataset", "import", "text", "text.txt", "--format", "text", "--length", "17"]).await;
}

/// Seeded randomness (SplitMix64): the same on every machine, and no dependency.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound.max(1)
    }
}

/// Where the broker for tests is.
pub fn kafka() -> String {
    std::env::var("EBB_TEST_KAFKA")
        .expect("EBB_TEST_KAFKA is not set: start a broker with `infra/servers/kafka.sh start DIR`, which prints it")
}

/// A Prometheus with this configuration and its data in `folder`, and its address. It chooses its port itself, and is ready.
pub async fn prometheus(folder: &Path, config: &Value) -> (Child, String) {
    let program = std::env::var("EBB_TEST_PROMETHEUS").expect(
        "EBB_TEST_PROMETHEUS is not set: it names a prometheus; `infra/servers/prometheus.sh programs` finds or fetches one and prints it",
    );
    let file = folder.join("prometheus.yml");
    std::fs::write(&file, config.to_string()).unwrap();
    let mut child = Command::new(program)
        .arg(format!("--config.file={}", file.display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("prometheus").display()))
        .arg("--web.listen-address=127.0.0.1:0")
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    // Either may be said first.
    let (mut address, mut ready) = (None, false);
    let said = async {
        while address.is_none() || !ready {
            let line = lines.next_line().await.unwrap().expect("it says where it listens and that it is ready");
            ready |= line.contains("ready to receive web requests");
            address =
                line.split_once("msg=\"Listening on\" address=").map(|(_, rest)| rest.to_owned()).or(address.take());
        }
    };
    tokio::time::timeout(WAIT_MAX, said).await.expect("Prometheus starts in time");
    let url = format!("http://{}", address.expect("it said so"));
    // Read to the end, so that it never waits for a reader.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (child, url)
}

/// Waits until a fleet is known to need so many slots.
pub async fn until_needed(client: &Client, fleet: &str, needed: u32) {
    let begun = Instant::now();
    loop {
        let now = client.fleet(fleet).await.unwrap_or_else(|e| panic!("{e}"));
        if now.needed == Some(needed) {
            return;
        }
        assert!(begun.elapsed() < WAIT_MAX, "waited until {fleet} needs {needed} slots: {now:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Writes a script that can be run. By another process: a descriptor of this one's could go to a child that another test is just starting, and what
/// is open for writing cannot be run.
pub fn write_program(path: &Path, script: &str) {
    let write = "umask 077 && printf %s \"$1\" > \"$2\" && chmod 700 \"$2\"";
    let written = std::process::Command::new("sh").args(["-c", write, "write", script, &text(path)]).status().unwrap();
    assert!(written.success(), "{}", path.display());
}

/// A file's path as text.
pub fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}
