//! A real browser opens a page of another site, and the page tries what such pages try on a service of this machine: it changes nothing and reads nothing.
//! What each protection refuses is tested with raw requests in `gateway/tests/api/doors.rs`; here the headers are those that a browser really sends.

use crate::support::{System, WAIT_MAX, model_job, submit, until};
use reqwest::Method;
use serde_json::Value;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

/// What the page does; it posts what came of each attempt back to its own site.
const PAGE: &str = r#"<!doctype html><meta charset="utf-8"><title>elsewhere</title><script>
const ebb = "EBB", plain = (method, body) => ({method, mode: "no-cors", body});
const tried = {
  take_all_slots: () => fetch(ebb + "/v1/fleets/local/demand", plain("POST", JSON.stringify({needed: 2}))),
  suspend_a_job: () => fetch(ebb + "/v1/jobs/JOB/suspend", plain("POST")),
  cancel_with_preflight: () => fetch(ebb + "/v1/jobs/JOB", {method: "DELETE"}),
  submit_as_json: () => fetch(ebb + "/v1/jobs", {method: "POST", headers: {"content-type": "application/json"}, body: "{}"}),
  read_jobs: () => fetch(ebb + "/v1/jobs").then(answer => answer.text()),
  read_jobs_blindly: () => fetch(ebb + "/v1/jobs", {mode: "no-cors"}).then(answer => answer.text()),
  follow_events: () => new Promise((said, failed) => {
    const source = new EventSource(ebb + "/v1/events");
    source.onmessage = event => said(event.data);
    source.onerror = () => { source.close(); failed(new Error("refused")); };
  }),
};
(async () => {
  const came = {};
  for (const [name, attempt] of Object.entries(tried)) {
    came[name] = await attempt().then(got => got.type ?? got, error => "error: " + error.message);
  }
  await fetch("/came", {method: "POST", body: JSON.stringify(came)});
})();
</script>"#;

/// A site of its own: serves the page, and gives what the page sends back.
async fn site(listener: TcpListener, page: String) -> Value {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (line, body) = request(&mut stream).await;
        let text = if line.starts_with("GET / ") { page.as_str() } else { "" };
        let length = text.len();
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{text}"
        );
        stream.write_all(answer.as_bytes()).await.unwrap();
        if line.starts_with("POST /came ") {
            return serde_json::from_slice(&body).unwrap();
        }
    }
}

/// The first line of a request, and its body.
async fn request(stream: &mut TcpStream) -> (String, Vec<u8>) {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).await.unwrap();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).await.unwrap();
        let Some((name, value)) = line.split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).await.unwrap();
    (first, body)
}

/// A browser to which every host name is this machine.
fn browser(folder: &std::path::Path, arguments: &[&str]) -> Child {
    let program = std::env::var("EBB_TEST_BROWSER")
        .expect("EBB_TEST_BROWSER is not set: it names a Chromium or Chrome; `infra/run test tests` installs one");
    Command::new(program)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"])
        .args(["--host-resolver-rules=MAP * 127.0.0.1", "--no-proxy-server"])
        .arg(format!("--user-data-dir={}", folder.display()))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_site_changes_nothing_and_reads_nothing() {
    let system = System::start(2).await;
    let client = system.client();
    let id = submit(&client, &model_job("mlp"), "browsed").await;
    until(&client, &id, "a start", |job| job.progress.is_some_and(|p| p.step > 0)).await;

    let fleet = async || client.get::<Value>("/v1/fleets/local").await.unwrap();
    let before = fleet().await;

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://evil.example:{}/", listener.local_addr().unwrap().port());
    let page = PAGE.replace("EBB", &system.service.ready().url).replace("JOB", &id);
    let _browser = browser(&system.path("browser"), &["--remote-debugging-port=0", &url]);
    let came = tokio::time::timeout(WAIT_MAX, site(listener, page)).await.expect("the page posts what came of it");

    // What a page may send without asking arrives: the browser hides the answer, the service refused it.
    for blind in ["take_all_slots", "suspend_a_job"] {
        assert_eq!(came[blind], "opaque", "{came}");
    }
    assert_eq!(came["read_jobs_blindly"], "", "{came}");
    for refused in ["cancel_with_preflight", "submit_as_json", "read_jobs", "follow_events"] {
        assert!(came[refused].as_str().is_some_and(|text| text.starts_with("error: ")), "{refused}: {came}");
    }
    let after = fleet().await;
    assert_eq!(
        (&after["needed"], &after["sequence"]),
        (&before["needed"], &before["sequence"]),
        "no slot was asked for"
    );
    let jobs: Value = client.get("/v1/jobs").await.unwrap();
    assert_eq!(jobs["jobs"].as_array().map(Vec::len), Some(1), "{jobs}");
    let job = crate::support::job(&client, &id).await;
    assert!(!["suspending", "suspended", "cancelled"].contains(&job.phase.as_str()), "{job:?}");
    client.send(Method::DELETE, &format!("/v1/jobs/{id}"), None, &[]).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_name_that_was_pointed_at_this_machine_shows_nothing() {
    let system = System::start(1).await;
    let port = system.service.ready().url.rsplit(':').next().unwrap().trim_end_matches('/').to_owned();
    let url = format!("http://rebound.example:{port}/v1/server");
    let shown = browser(&system.path("browser"), &["--dump-dom", &url]).wait_with_output();
    let shown = tokio::time::timeout(WAIT_MAX, shown).await.expect("the browser shows the page").unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.contains("unknown-host"), "{shown}");
    assert!(!shown.contains("store_url"), "{shown}");
}
