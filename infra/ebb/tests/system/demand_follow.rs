//! `ebb demand follow` with a real Prometheus that scrapes an exporter of ours: the need follows the metrics, and silence lends nothing.

use crate::support::{EBB, LOOK_EVERY, System, WAIT_MAX, prometheus, until_needed};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

/// Serves the same text to whoever asks.
pub struct Exporter {
    address: std::net::SocketAddr,
    text: Arc<Mutex<String>>,
}

impl Exporter {
    pub async fn start(text: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let text = Arc::new(Mutex::new(text.to_owned()));
        let served = text.clone();
        // Ends with the test's runtime.
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let served = served.clone();
                tokio::spawn(async move {
                    let _ = stream.read(&mut [0; 4_096]).await;
                    let body = served.lock().unwrap().clone();
                    let head = format!(
                        "HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                        body.len()
                    );
                    let _ = stream.write_all((head + &body).as_bytes()).await;
                });
            }
        });
        Self { address, text }
    }

    fn says(&self, text: &str) {
        *self.text.lock().unwrap() = text.to_owned();
    }
}

/// A Prometheus that scrapes the exporter every second, and its address.
pub async fn scraping(folder: &Path, exporter: &Exporter) -> (Child, String) {
    let target = json!([{"targets": [exporter.address.to_string()]}]);
    let jobs = json!([{"job_name": "chat", "static_configs": target}]);
    prometheus(folder, &json!({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs})).await
}

pub fn vllm(running: u32, waiting: u32) -> String {
    // The cache holds what runs; a slot's worth of it is a need too.
    let cache = if running == 0 { 0.0 } else { 0.1 };
    format!(
        "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{model_name=\"m\"}} {running}\n# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{{model_name=\"m\"}} {waiting}\n# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{{model_name=\"m\"}} {cache}\n"
    )
}

/// The first explanation that has samples: Prometheus needs two scrapes for a rate.
pub async fn explained(system: &System, arguments: &[&str]) -> Value {
    let begun = Instant::now();
    loop {
        let explained = system.ebb_json(&[&["demand", "follow", "local", "--explain"], arguments].concat()).await;
        if !explained["need"].is_null() {
            return explained;
        }
        assert!(begun.elapsed() < WAIT_MAX, "{explained:#}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_need_follows_the_metrics_and_silence_lends_nothing() {
    let system = System::start(4).await;
    let exporter = Exporter::start(&vllm(6, 2)).await;
    let folder = tempfile::tempdir().unwrap();
    let (mut server, url) = scraping(folder.path(), &exporter).await;
    let formula =
        ["--prometheus", &url, "--metrics", "vllm", "--selector", "model_name=\"m\"", "--requests-per-slot", "4"];
    let explained = explained(&system, &formula).await;
    assert_eq!(
        (&explained["need"], &explained["load"]),
        (&json!(3), &json!(2.0)),
        "8 requests ÷ 4 ÷ 0.8: {explained:#}"
    );
    let before = system.client().fleet("local").await.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(before.needed, Some(0), "an explanation publishes nothing");

    let mut follower = Command::new(EBB)
        .args(["demand", "follow", "local"])
        .args(formula)
        .args(["--every", "1s", "--fall-after", "2s", "--lifetime", "5s", "--return-every", "1s"])
        .env("EBB_URL", &system.service.ready().url)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    until_needed(&system.client(), "local", 3).await;
    exporter.says(&vllm(0, 0));
    until_needed(&system.client(), "local", 0).await;
    exporter.says(&vllm(3, 0));
    until_needed(&system.client(), "local", 1).await;

    // Prometheus is gone: nothing new is lent (three slots wait to be borrowed), and then nothing at all.
    server.kill().await.unwrap();
    until_needed(&system.client(), "local", 4).await;
    // It says what it did once the service has answered, so its line may come after the need is seen to count.
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let mut said = Vec::new();
    while !said.iter().any(|line: &String| line.contains("nothing is known of its load")) {
        let next = tokio::time::timeout(WAIT_MAX, lines.next_line()).await;
        let line = next.unwrap_or_else(|_| panic!("nothing is said of the silence: {said:#?}")).unwrap();
        said.push(line.unwrap_or_else(|| panic!("the follower ended: {said:#?}")));
    }
    assert!(said.iter().any(|line| line.contains("local needs 3 slots")), "{said:#?}");
    follower.kill().await.unwrap();
    // Five seconds of looks found the same, and more after them.
    let mut troubles = String::new();
    follower.stderr.take().unwrap().read_to_string(&mut troubles).await.unwrap();
    assert_eq!(troubles.matches("does not answer").count(), 1, "{troubles}");
}

#[tokio::test(flavor = "multi_thread")]
async fn triton_and_dcgm_are_read_from_a_real_prometheus() {
    let system = System::start(4).await;
    let exporter = Exporter::start("").await;
    exporter.says("# TYPE DCGM_FI_DEV_GPU_UTIL gauge\nDCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 90\nDCGM_FI_DEV_GPU_UTIL{gpu=\"1\"} 70\n# TYPE nv_inference_compute_infer_duration_us counter\nnv_inference_compute_infer_duration_us{model=\"m\"} 5000000\n# TYPE nv_inference_pending_request_count gauge\nnv_inference_pending_request_count{model=\"m\"} 6\n# TYPE nv_inference_request_summary_us summary\nnv_inference_request_summary_us{model=\"m\",quantile=\"0.99\"} 310000\n");
    let folder = tempfile::tempdir().unwrap();
    let (_server, url) = scraping(folder.path(), &exporter).await;
    let dcgm = explained(&system, &["--prometheus", &url, "--metrics", "dcgm"]).await;
    assert_eq!((&dcgm["load"], &dcgm["need"]), (&json!(1.6), &json!(2)), "{dcgm:#}");
    let triton = explained(
        &system,
        &["--prometheus", &url, "--metrics", "triton", "--requests-per-slot", "3", "--window", "10s"],
    )
    .await;
    assert_eq!(
        (&triton["load"], &triton["need"]),
        (&json!(2.0), &json!(3)),
        "a counter that stands still executes nothing: {triton:#}"
    );

    let limited =
        |limit| ["--prometheus", &url, "--metrics", "triton", "--requests-per-slot", "3", "--p99-limit", limit];
    let slow = explained(&system, &limited("309ms")).await;
    assert_eq!((&slow["too_slow"], &slow["need"]), (&json!(true), &json!(4)), "all slots: {slow:#}");
    let fast = explained(&system, &limited("310ms")).await;
    assert_eq!((&fast["too_slow"], &fast["need"]), (&json!(false), &json!(3)), "{fast:#}");
    // Nobody asked anything, and of nothing there is no p99.
    exporter.says(&(vllm(6, 2) + "# TYPE vllm:time_to_first_token_seconds histogram\nvllm:time_to_first_token_seconds_bucket{model_name=\"m\",le=\"0.1\"} 4\nvllm:time_to_first_token_seconds_bucket{model_name=\"m\",le=\"+Inf\"} 9\nvllm:time_to_first_token_seconds_sum{model_name=\"m\"} 3\nvllm:time_to_first_token_seconds_count{model_name=\"m\"} 9\n"));
    let vllm = ["--prometheus", &url, "--metrics", "vllm", "--requests-per-slot", "4", "--p99-limit", "1ms"];
    let idle = explained(&system, &vllm).await;
    let p99 = idle["inputs"].as_array().unwrap().last().unwrap();
    assert_eq!((&p99["name"], &p99["value"], &idle["need"]), (&json!("p99"), &Value::Null, &json!(3)), "{idle:#}");

    // What is not there, and what is no Prometheus, says so.
    let output = system
        .ebb(&[
            "demand",
            "follow",
            "local",
            "--prometheus",
            &system.service.ready().url,
            "--metrics",
            "dcgm",
            "--explain",
        ])
        .await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("no answer of Prometheus' HTTP API"), "{said}");
}
