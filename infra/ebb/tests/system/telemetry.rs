//! What a service lets others see, asked by those who would: a receiver of OTLP gets the trace of a submit and of a reclaim, across real
//! processes and whole; a Prometheus reads every process, and finds whatever the dashboards and alerts ask for.

use crate::support::{LOOK_EVERY, System, WAIT_MAX, agent_with, kafka, model_job, prometheus, text, until, until_slot};
use events_schema::batch::from_bytes;
use events_schema::command::CommandRecord;
use gateway_api::PublishDemand;
use gateway_client::{Client, WantedLogs};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Headers};
use rdkafka::{ClientConfig, Message};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};
use workers_agent::Access;
use workers_agent_client::AgentClient;

/// A client's trace and span, as it sends them and as the receiver shows them.
const SUBMIT: [&str; 3] =
    ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "CvdlGRbNQ92ESOshHIAxnA==", "t61rcWkgMzE="];
const RECLAIM: [&str; 3] =
    ["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "S/kvNXezTaajzpKdDg5HNg==", "APBnqgupArc="];

fn set_up(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set; `infra/run test tests` sets up what it names"))
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Asks a server until it answers as wanted.
async fn answer<T>(url: &str, wanted: impl Fn(Value) -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        let asked = reqwest::Client::new().get(url).timeout(Duration::from_secs(10)).send().await;
        let said: Option<Value> = match asked {
            Ok(answer) => answer.json().await.ok(),
            Err(_) => None,
        };
        if let Some(found) = said.clone().and_then(&wanted) {
            return found;
        }
        assert!(begun.elapsed() < WAIT_MAX, "{url} does not answer as wanted: {}", shown(&said));
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// What a server said last, spans as names with their places.
fn shown(said: &Option<Value>) -> String {
    let mut spans = Vec::new();
    said.iter().for_each(|said| all_of(said, "spans", &mut spans));
    if spans.is_empty() {
        return said.as_ref().map_or("nothing".to_owned(), |said| said.to_string().chars().take(20_000).collect());
    }
    let line = |span: &Value| {
        format!("{} {} of {} in {}", span["name"], span["span_id"], span["parent_span_id"], span["trace_id"])
    };
    spans.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A receiver of OTLP, and its URL.
async fn receiver() -> (Child, String) {
    let (traces, http, grpc, page) = (free_port(), free_port(), free_port(), free_port());
    let port = |port: u16| port.to_string();
    let child = Command::new(set_up("EBB_TEST_OTLP"))
        .args(["--host", "127.0.0.1", "--port", &port(traces), "--otlp-http-port", &port(http)])
        .args(["--otlp-grpc-port", &port(grpc), "--web-ui-port", &port(page), "--disable-llmobs-data-forwarding"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let url = format!("http://127.0.0.1:{http}");
    answer(&format!("{url}/test/session/traces"), |said| said.is_array().then_some(())).await;
    (child, url)
}

/// Everything of one key, however deep it stands.
fn all_of(value: &Value, key: &str, found: &mut Vec<Value>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::Array(values) if name == key => found.extend(values.iter().cloned()),
                    value => all_of(value, key, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| all_of(value, key, found)),
        _ => {}
    }
}

/// The spans of one trace, by id.
fn spans(received: &Value, trace: &str) -> BTreeMap<String, Value> {
    let mut spans = Vec::new();
    all_of(received, "spans", &mut spans);
    let of_trace = spans.into_iter().filter(|span| span["trace_id"] == trace);
    of_trace.map(|span| (span["span_id"].as_str().unwrap().to_owned(), span)).collect()
}

/// Whether the spans are one tree under the client's span, with all these names in it. A span is sent when it ends, so a parent may come later.
fn is_one_tree(spans: &BTreeMap<String, Value>, client: &str, names: &[&str]) -> bool {
    let has = |name: &&str| spans.values().any(|span| span["name"] == **name);
    let parent = |span: &Value| span["parent_span_id"].as_str().unwrap_or("").to_owned();
    let hangs = |span: &Value| parent(span) == client || spans.contains_key(&parent(span));
    let roots = spans.values().filter(|span| parent(span) == client).count();
    names.iter().all(has) && spans.values().all(hangs) && roots == 1
}

/// Waits until a trace has come in, whole, with all these names.
async fn trace_of(receiver: &str, [_, trace, client]: [&str; 3], names: &[&str]) {
    let url = format!("{receiver}/test/session/traces");
    answer(&url, |received| is_one_tree(&spans(&received, trace), client, names).then_some(())).await;
}

/// Waits until log lines that say this have come in, as of this trace: each is written by another process.
async fn lines_of(receiver: &str, [_, trace, _]: [&str; 3], wanted: &[&str]) {
    answer(&format!("{receiver}/test/session/logs"), |received| {
        let mut records = Vec::new();
        all_of(&received, "log_records", &mut records);
        let of_trace: Vec<&Value> = records.iter().filter(|record| record["trace_id"] == trace).collect();
        let is_there = |line: &&str| of_trace.iter().any(|record| record["body"].to_string().contains(line));
        wanted.iter().all(is_there).then_some(())
    })
    .await;
}

/// Waits until an executor has written a line of this trace, which it exports to nobody: it stands in the job's log.
async fn executor_line_of(client: &Client, job: &str, trace: &str) {
    let begun = Instant::now();
    loop {
        let mut said = String::new();
        for log in client.logs(job, &WantedLogs::default()).await.unwrap() {
            let part = client.log(job, log.number, 0).await.unwrap();
            said += &part.map(|part| String::from_utf8_lossy(&part.bytes).into_owned()).unwrap_or_default();
        }
        let lines = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut joined = lines.filter(|line| line["message"] == "a member of the generation in force");
        if joined.any(|line| line["trace_id"] == trace && line["span_id"].is_string()) {
            return;
        }
        assert!(begun.elapsed() < WAIT_MAX, "no line of the trace: {said}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_trace_follows_a_submit_and_one_a_reclaim_through_every_process() {
    let (_receiver, receiver) = receiver().await;
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.as_str()),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        ("OTEL_BLRP_SCHEDULE_DELAY", "100"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "500"),
        ("EBB_LOG", "info"),
        ("EBB_LOG_FORMAT", "json"),
    ];
    let system = System::start_in(1, &variables).await;
    let (_far, agent) = agent_with(&system, 2, &variables).await;
    let (client, url) = (system.client(), system.service.ready().url.clone());
    // The service's own slot is not lent; the two far away are.
    client.demand("local", &PublishDemand::needed(1)).await.unwrap();
    until_slot(&system, "far/1").await;
    system.ebb_json(&["fleet", "put", "distant", "--server", "far", "--slots", "2"]).await;
    client.demand("distant", &PublishDemand::needed(0)).await.unwrap();
    let http = reqwest::Client::new();
    let mut document = model_job("cnn");
    document["steps"] = 1_000_000.into();
    let asked = http.post(format!("{url}/v1/jobs")).header("traceparent", SUBMIT[0]).json(&document);
    let id = asked.send().await.unwrap().json::<Value>().await.unwrap()["id"].as_str().unwrap().to_owned();
    until(&client, &id, "two executors", |j| j.progress.is_some_and(|p| p.members == 2 && p.step > 5)).await;
    let begins = ["decide", "append events", "follow order", "prepare executor", "join generation"];
    let submit: Vec<&str> = ["POST /v1/jobs", "append commands"].into_iter().chain(begins).collect();
    trace_of(&receiver, SUBMIT, &submit).await;
    lines_of(&receiver, SUBMIT, &["a decision is on record", "executor started"]).await;
    executor_line_of(&client, &id, "0af7651916cd43dd8448eb211c80319c").await;

    let asked = http.post(format!("{url}/v1/fleets/distant/demand")).header("traceparent", RECLAIM[0]);
    assert!(asked.json(&json!({"needed": 1})).send().await.unwrap().status().is_success());
    let ends = ["POST /v1/fleets/{fleet}/demand", "append demand", "decide", "append events", "follow order"];
    let reclaim: Vec<&str> = ends.into_iter().chain(["reach boundary", "exit", "join generation"]).collect();
    trace_of(&receiver, RECLAIM, &reclaim).await;
    lines_of(&receiver, RECLAIM, &["a decision is on record", "executor ended"]).await;
    assert_eq!(agent.slots().await.unwrap().iter().filter(|slot| slot.executor.is_some()).count(), 1);

    // The end of the executor comes up as a report and is decided about within the same trace.
    let decisions = |received: &Value| spans(received, RECLAIM[1]).values().filter(|s| s["name"] == "decide").count();
    answer(&format!("{receiver}/test/session/traces"), |received| (decisions(&received) >= 2).then_some(())).await;
    answer(&format!("{receiver}/test/session/metrics"), |received| {
        let mut metrics = Vec::new();
        all_of(&received, "metrics", &mut metrics);
        let has = |name: &str| metrics.iter().any(|metric| metric["name"] == name);
        ["ebb.slot.return", "ebb.jobs", "ebb.steps", "ebb.agent.slots"].into_iter().all(has).then_some(())
    })
    .await;
    answer(&format!("{receiver}/test/session/logs"), |received| {
        let mut records = Vec::new();
        all_of(&received, "log_records", &mut records);
        (!records.is_empty()).then_some(())
    })
    .await;
    system.stop().await;
}

/// What the first record of a topic holds of which `wanted` holds something, read from the topic's beginning.
async fn first_record<T: Send + 'static>(
    topic: String,
    wanted: impl Fn(&BorrowedMessage<'_>) -> Option<T> + Send + 'static,
) -> T {
    let mut settings = ClientConfig::new();
    settings.set("bootstrap.servers", kafka()).set("group.id", &topic).set("auto.offset.reset", "earliest");
    let consumer: BaseConsumer = settings.create().unwrap();
    let read = move || {
        consumer.subscribe(&[&topic]).unwrap();
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < WAIT_MAX, "{topic} holds nothing that is wanted");
            let Some(record) = consumer.poll(LOOK_EVERY) else { continue };
            if let Some(found) = wanted(&record.unwrap()) {
                return found;
            }
        }
    };
    tokio::task::spawn_blocking(read).await.unwrap()
}

/// A header of a record, as text.
fn header(record: &BorrowedMessage<'_>, name: &str) -> Option<String> {
    let header = record.headers()?.iter().find(|header| header.key == name)?;
    Some(String::from_utf8(header.value?.to_vec()).unwrap())
}

/// Who reads the log or the public events later finds the client's trace there: in the command's record, and in headers of what it led to.
#[tokio::test(flavor = "multi_thread")]
async fn records_of_a_log_on_kafka_carry_the_trace_of_what_led_to_them() {
    let (_receiver, receiver) = receiver().await;
    let prefix = format!("traces-{}", std::process::id());
    let log = format!("kafka://{}?plaintext=allow&prefix={prefix}", kafka());
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.as_str())];
    let system = System::start_with_in(1, &["--log", &log], &variables).await;
    let url = system.service.ready().url.clone();
    let asked = reqwest::Client::new().post(format!("{url}/v1/jobs")).header("traceparent", SUBMIT[0]);
    let answer: Value = asked.json(&model_job("mlp")).send().await.unwrap().json().await.unwrap();
    let id = answer["id"].as_str().unwrap().to_owned();

    let trace = |text: &str| text.split('-').nth(1).unwrap().to_owned();
    let of_submit = move |record: &BorrowedMessage<'_>| {
        let told = from_bytes::<CommandRecord>(record.payload()?).ok()?.trace?.to_string();
        (trace(&told) == trace(SUBMIT[0])).then_some(told)
    };
    let told = first_record(format!("{prefix}.commands"), of_submit).await;
    assert_ne!(told, SUBMIT[0], "it follows from the gateway's own span");

    let of_acceptance = move |record: &BorrowedMessage<'_>| {
        let accepted = header(record, "ce_type")? == "dev.ebb.job.accepted.v1" && record.key()? == id.as_bytes();
        accepted.then(|| ["traceparent", "ce_traceparent"].map(|name| header(record, name)))
    };
    let [for_clients, for_events] = first_record(format!("{prefix}.public"), of_acceptance).await;
    assert_eq!(for_clients.as_deref().map(trace), Some(trace(SUBMIT[0])));
    assert_eq!(for_clients, for_events);
    system.stop().await;
}

/// Without variables nothing is exported, and nothing of a client's trace is kept; metrics are there for whoever asks.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_exports_nothing_puts_no_trace_into_its_log() {
    let system = System::start(1).await;
    let (client, url) = (system.client(), system.service.ready().url.clone());
    let mut document = model_job("mlp");
    document["steps"] = 20.into();
    let asked = reqwest::Client::new().post(format!("{url}/v1/jobs")).header("traceparent", SUBMIT[0]).json(&document);
    let id = asked.send().await.unwrap().json::<Value>().await.unwrap()["id"].as_str().unwrap().to_owned();
    until(&client, &id, "the end", |job| job.phase == "finished").await;
    // The gateway knows of the end by its own fold, the metric by the controller's.
    let begun = Instant::now();
    loop {
        let metrics = reqwest::get(format!("{url}/metrics")).await.unwrap().text().await.unwrap();
        let finished = metrics.lines().find(|line| line.starts_with("ebb_jobs{phase=\"finished\""));
        if finished.is_some_and(|line| line.ends_with(" 1")) {
            break;
        }
        assert!(begun.elapsed() < WAIT_MAX, "{metrics}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let folder = system.stop().await;
    let log = std::fs::read(folder.path().join("data/log.redb")).unwrap();
    let needle = [0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd];
    assert!(!log.windows(needle.len()).any(|bytes| bytes == needle), "the trace stands in the log");
}

/// A Prometheus that scrapes these addresses, with the alert rules, and its URL.
async fn scraping(folder: &Path, targets: &[String]) -> (Child, String) {
    let rules = repository().join("infra/telemetry/alerts.yml");
    let config = json!({
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [text(&rules)],
        "scrape_configs": [{"job_name": "ebb", "static_configs": [{"targets": targets}]}],
    });
    prometheus(folder, &config).await
}

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What a Prometheus says to an expression.
async fn query(prometheus: &str, expression: &str) -> Value {
    let url = url::Url::parse_with_params(&format!("{prometheus}/api/v1/query"), [("query", expression)]).unwrap();
    reqwest::get(url).await.unwrap().json().await.unwrap()
}

/// Runs promtool, which has to be content; `input` is its standard input.
async fn promtool(arguments: &[&str], input: Option<PathBuf>) {
    let input = input.map_or(Stdio::null(), |path| std::fs::File::open(path).unwrap().into());
    let folder = repository().join("infra/telemetry");
    let mut command = Command::new(set_up("EBB_TEST_PROMTOOL"));
    let output = command.args(arguments).stdin(input).current_dir(folder).output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {arguments:?}: {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn alert_rules_say_what_their_tests_say() {
    promtool(&["check", "rules", "alerts.yml"], None).await;
    promtool(&["test", "rules", "alerts.test.yml"], None).await;
}

/// What an agent counts is read by who may, wherever it listens, and never by a page whose host name was pointed there.
#[tokio::test(flavor = "multi_thread")]
async fn an_agents_metrics_ask_for_its_own_name_and_beyond_this_machine_for_a_token() {
    let system = System::start(1).await;
    let asked = |agent: &AgentClient, path: &str, headers: &[(&'static str, String)]| {
        let request = reqwest::Client::new().get(format!("{}{path}", agent.url()).replace("0.0.0.0", "127.0.0.1"));
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, value));
        async move { request.send().await.unwrap().status().as_u16() }
    };
    let rebound = [("host", "rebound.example".to_owned())];
    let page = [("origin", "http://elsewhere.example".to_owned())];
    let (mut far, agent) = agent_with(&system, 1, &[]).await;
    assert_eq!(asked(&agent, "/metrics", &[]).await, 200);
    assert_eq!(asked(&agent, "/metrics", &rebound).await, 421);
    assert_eq!(asked(&agent, "/healthz", &rebound).await, 421);
    assert_eq!(asked(&agent, "/metrics", &page).await, 403);
    far.kill().await.unwrap();

    let (mut far, agent) = agent_with(&system, 1, &[("EBB_AGENT_LISTEN", "0.0.0.0:0")]).await;
    let token = std::fs::read_to_string(Access::read(&system.path("far")).unwrap().token_file).unwrap();
    let shown = [("authorization", format!("Bearer {}", token.trim()))];
    assert_eq!(asked(&agent, "/metrics", &[]).await, 401);
    assert_eq!(asked(&agent, "/metrics", &shown).await, 200);
    assert_eq!(asked(&agent, "/healthz", &[]).await, 200);
    far.kill().await.unwrap();

    let open = [
        ("EBB_AGENT_LISTEN", "0.0.0.0:0"),
        ("EBB_METRICS_TO_ANYONE", "true"),
        ("EBB_METRICS_ALLOW_HOST", "gpu-1.example"),
    ];
    let (_far, agent) = agent_with(&system, 1, &open).await;
    assert_eq!(asked(&agent, "/metrics", &[]).await, 200);
    assert_eq!(asked(&agent, "/metrics", &[("host", "gpu-1.example".to_owned())]).await, 200);
    assert_eq!(asked(&agent, "/metrics", &rebound).await, 421);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prometheus_finds_whatever_dashboards_and_alerts_ask_for() {
    let system = System::start(2).await;
    let (client, url) = (system.client(), system.service.ready().url.clone());
    let (_far, agent) = agent_with(&system, 1, &[]).await;
    // It trains for as long as anybody asks: some of what is asked for is of running jobs only.
    let mut document = model_job("cnn");
    document["steps"] = 1_000_000.into();
    let id = crate::support::submit(&client, &document, "watched").await;
    until(&client, &id, "two executors", |j| j.progress.is_some_and(|p| p.members == 2 && p.step > 5)).await;
    client.demand("local", &PublishDemand::needed(1)).await.unwrap();
    until(&client, &id, "one executor", |j| j.progress.is_some_and(|p| p.members == 1)).await;
    let targets = [url.as_str(), agent.url()].map(|url| url.trim_start_matches("http://").to_owned());
    for target in &targets {
        let metrics = reqwest::get(format!("http://{target}/metrics")).await.unwrap().text().await.unwrap();
        assert!(!metrics.contains(&id), "the id of a job is a label: {metrics}");
        let path = system.path("metrics.txt");
        std::fs::write(&path, metrics).unwrap();
        promtool(&["check", "metrics"], Some(path)).await;
    }
    let (_prometheus, prometheus) = scraping(&system.path(""), &targets).await;
    answer(&format!("{prometheus}/api/v1/query?query=sum(up)"), |said| {
        (said["data"]["result"][0]["value"][1] == "2").then_some(())
    })
    .await;
    let mut asked = 0;
    for dashboard in std::fs::read_dir(repository().join("infra/telemetry/dashboards")).unwrap() {
        let path = dashboard.unwrap().path();
        let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let mut targets = Vec::new();
        all_of(&dashboard, "targets", &mut targets);
        for target in targets {
            let expression = target["expr"].as_str().unwrap().replace("$__rate_interval", "1m");
            is_found(&prometheus, &expression).await;
            asked += 1;
        }
    }
    assert!(asked > 15, "{asked} expressions");
    // An alert is silent for as long as all is well: also one that asks for what there is not.
    let metrics = metrics_of_alerts();
    assert!(metrics.len() > 10, "{metrics:?}");
    for metric in metrics {
        is_found(&prometheus, &format!("count({{__name__=\"{metric}\"}})")).await;
    }
    system.stop().await;
}

/// Waits until a Prometheus finds something of an expression: rates need two scrapes.
async fn is_found(prometheus: &str, expression: &str) {
    let begun = Instant::now();
    loop {
        let said = query(prometheus, expression).await;
        assert_eq!(said["status"], "success", "{expression}: {said}");
        if said["data"]["result"].as_array().is_some_and(|found| !found.is_empty()) {
            return;
        }
        assert!(begun.elapsed() < WAIT_MAX, "nothing is found of {expression}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// What the alert rules ask for, by name.
fn metrics_of_alerts() -> BTreeSet<String> {
    let rules = std::fs::read_to_string(repository().join("infra/telemetry/alerts.yml")).unwrap();
    let expressions = rules.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    let words = expressions.flat_map(|expression| expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    let is_metric = |word: &&str| word.starts_with("ebb_") || word.starts_with("http_server_") || *word == "up";
    words.filter(is_metric).map(str::to_owned).collect()
}
