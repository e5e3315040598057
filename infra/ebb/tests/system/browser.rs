//! A real browser opens a page of another site, and the page tries what such pages try on a service of this machine: it changes nothing and reads nothing.
//! A page of the service itself follows events, also over a connection that breaks.
//! What each protection refuses is tested with raw requests in `gateway/tests/api/doors.rs`; here the headers are those that a browser really sends.

use crate::support::{EBB, LOOK_EVERY, System, WAIT_MAX, model_job, submit, until};
use events_public::{JOB_PROGRESS, kinds};
use gateway_client::{Events, WantedJobs};
use serde_json::{Value, json};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinSet;

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

fn program() -> String {
    std::env::var("EBB_TEST_BROWSER")
        .expect("EBB_TEST_BROWSER is not set: it names a Chromium or Chrome; `infra/run test tests` installs one")
}

/// A browser to which every host name is this machine.
fn browser(folder: &std::path::Path, arguments: &[&str]) -> Child {
    started(Command::new(program()), folder, arguments)
}

fn started(mut command: Command, folder: &std::path::Path, arguments: &[&str]) -> Child {
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"])
        .args(["--host-resolver-rules=MAP * 127.0.0.1", "--no-proxy-server"])
        .arg(format!("--user-data-dir={}", folder.display()))
        .args(arguments)
        .stdin(Stdio::piped())
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

    let fleet = async || client.fleet("local").await.unwrap();
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
    assert_eq!((after.needed, after.sequence), (before.needed, before.sequence), "no slot was asked for");
    let jobs = client.jobs(&WantedJobs::default()).await.unwrap();
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    let job = crate::support::job(&client, &id).await;
    assert!(!["suspending", "suspended", "cancelled"].contains(&job.phase.as_str()), "{job:?}");
    client.cancel(&id).await.ok();
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

/// A page in a browser that is told what to do by the DevTools protocol, over the pipes 3 and 4: JSON with a zero byte behind each message.
struct Page {
    _browser: Child,
    asks: ChildStdin,
    says: BufReader<ChildStdout>,
    asked: u64,
    session: Option<String>,
}

impl Page {
    async fn open(folder: &std::path::Path, url: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null", &program()]);
        let mut browser = started(command, folder, &["--remote-debugging-pipe", "about:blank"]);
        let (asks, says) = (browser.stdin.take().unwrap(), BufReader::new(browser.stdout.take().unwrap()));
        let mut page = Self { _browser: browser, asks, says, asked: 0, session: None };
        let target = page.call("Target.createTarget", json!({"url": url})).await;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = page.call("Target.attachToTarget", attach).await;
        page.session = attached["sessionId"].as_str().map(str::to_owned);
        page.until("its document", "document.readyState === 'complete' && location.href", |href| href == url).await;
        page
    }

    async fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.asked += 1;
        let mut message = json!({"id": self.asked, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.asks.write_all(format!("{message}\0").as_bytes()).await.unwrap();
        let answered = async {
            loop {
                let mut said = Vec::new();
                self.says.read_until(0, &mut said).await.unwrap();
                assert_eq!(said.pop(), Some(0), "the browser has ended");
                let mut said: Value = serde_json::from_slice(&said).unwrap();
                // Everything else tells what happens in the browser.
                if said["id"] == self.asked {
                    assert!(said["error"].is_null(), "{method}: {said}");
                    return said["result"].take();
                }
            }
        };
        tokio::time::timeout(WAIT_MAX, answered).await.unwrap_or_else(|_| panic!("{method} is answered"))
    }

    /// What an expression comes to in the page.
    async fn evaluate(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "returnByValue": true});
        let mut said = self.call("Runtime.evaluate", parameters).await;
        assert!(said["exceptionDetails"].is_null(), "{expression}: {said}");
        said["result"]["value"].take()
    }

    async fn until(&mut self, what: &str, expression: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let now = self.evaluate(expression).await;
            if wanted(&now) {
                return now;
            }
            assert!(begun.elapsed() < WAIT_MAX, "waited for {what}, but the page has {now}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// A way to the service that can break: hands every byte on, and keeps what it was asked.
struct Way {
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
    open: Arc<Mutex<JoinSet<()>>>,
}

impl Way {
    async fn to(service: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let way = Self { address, asked: Arc::default(), open: Arc::default() };
        let (asked, open) = (way.asked.clone(), way.open.clone());
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(&service).await.unwrap();
                open.lock().unwrap().spawn(hand_on(near, far, asked.clone()));
            }
        });
        way
    }

    /// Breaks every connection; new ones come through.
    fn cut(&self) {
        self.open.lock().unwrap().abort_all();
    }

    /// The place that each request for events said that it had come to.
    fn places(&self) -> Vec<Option<String>> {
        let asked = self.asked.lock().unwrap();
        let for_events = asked.iter().filter(|head| head.lines().next().is_some_and(|line| line.contains("/events")));
        let place = |line: &str| {
            line.split_once(": ")
                .filter(|(name, _)| name.eq_ignore_ascii_case("last-event-id"))
                .map(|(_, id)| id.to_owned())
        };
        for_events.map(|head| head.lines().find_map(place)).collect()
    }
}

/// Until either side ends. The head of a request is one piece: it is small, and the way is short.
async fn hand_on(near: TcpStream, far: TcpStream, asked: Arc<Mutex<Vec<String>>>) {
    let (mut from_page, mut to_page) = near.into_split();
    let (mut from_service, mut to_service) = far.into_split();
    let asks = async {
        let mut piece = vec![0; 16 << 10];
        while let Ok(count @ 1..) = from_page.read(&mut piece).await {
            asked.lock().unwrap().push(String::from_utf8_lossy(&piece[..count]).into_owned());
            to_service.write_all(&piece[..count]).await.unwrap();
        }
    };
    tokio::select! {
        () = asks => {}
        _ = copy(&mut from_service, &mut to_page) => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_the_service_itself_follows_events_over_a_broken_connection() {
    let system = System::start(1).await;
    let client = system.client();
    // It is cancelled in the end, and must not be done before.
    let mut endless = model_job("mlp");
    endless["steps"] = json!(2_000_000);
    let id = submit(&client, &endless, "followed").await;
    until(&client, &id, "a start", |job| job.progress.is_some_and(|p| p.step > 0)).await;
    let way = Way::to(system.service.ready().url.trim_start_matches("http://").trim_end_matches('/').to_owned()).await;

    let mut page = Page::open(&system.path("browser"), &format!("{}/v1/server", way.address)).await;
    let types: Vec<&str> = kinds().filter(|kind| *kind != JOB_PROGRESS).collect();
    let script = r#"window.came = []; window.source = new EventSource("/v1/jobs/JOB/events?from=0-0");
        for (const type of TYPES) source.addEventListener(type, event => came.push([event.lastEventId, JSON.parse(event.data)]));
        true"#;
    page.evaluate(&script.replace("JOB", &id).replace("TYPES", &json!(types).to_string())).await;
    let of_type = |kind: &str| format!("came.some(([_, event]) => event.type === 'dev.ebb.{kind}.v1')");
    let came = |value: &Value| *value == true;
    page.until("the job's start", &of_type("generation.active"), came).await;

    way.cut();
    client.cancel(&id).await.unwrap_or_else(|e| panic!("{e}"));
    page.until("what was decided meanwhile", &of_type("job.cancelled"), came).await;
    let seen = page.evaluate("came").await;
    let seen = seen.as_array().unwrap();
    let events = client.all_events(&Events::of_job(&id)).await.unwrap_or_else(|e| panic!("{e}"));
    assert!(seen.iter().all(|pair| pair[0] == pair[1]["id"]), "each event's id is the stream's: {seen:?}");
    let seen: Vec<&Value> = seen.iter().map(|pair| &pair[1]).collect();
    assert_eq!(seen, events.iter().take(seen.len()).collect::<Vec<_>>(), "each once, and in order");

    let [first, again, ..] = &way.places()[..] else { panic!("it did not come back") };
    assert_eq!(first, &None);
    let place = again.as_ref().expect("it says how far it came");
    assert!(events.iter().any(|event| event["id"] == place.as_str()), "{place} is no event's id");
}

/// A picture of a report is saved as PNG in a browser without a network, by the only script that its page lets itself run.
#[tokio::test(flavor = "multi_thread")]
async fn every_picture_of_a_report_is_saved_as_png() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let generated = ["simulate", "run", "--generate", "poisson:6x4", "--cluster", "2x4:t4", "--policies", "fifo,ebb"];
    let ran = std::process::Command::new(EBB).args(generated).arg("--report").arg(&report).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let url = format!("file://{}", report.join("index.html").display());
    let mut page = Page::open(&folder.path().join("browser"), &url).await;
    // Instead of a download the page itself looks at what would be saved: how large it is, and how many colours it has.
    let look = r#"window.seen = {};
        HTMLAnchorElement.prototype.click = function () {
            const image = new Image(), name = this.download;
            image.onload = () => {
                const canvas = document.createElement("canvas"), [width, height] = [image.naturalWidth, image.naturalHeight];
                [canvas.width, canvas.height] = [width, height];
                const drawn = canvas.getContext("2d");
                drawn.drawImage(image, 0, 0);
                const colours = new Set(new Uint32Array(drawn.getImageData(0, 0, width, height).data.buffer)).size;
                seen[name] = {width, colours, kind: image.src.slice(0, 14)};
            };
            image.src = this.href;
        };
        const buttons = [...document.querySelectorAll("figure button")];
        buttons.forEach(button => button.click());
        buttons.length"#;
    let buttons = page.evaluate(look).await;
    assert_eq!(buttons, 6);
    let seen = page.until("six pictures", "seen", |seen| seen.as_object().is_some_and(|seen| seen.len() == 6)).await;
    for name in ["completion", "jobs", "results", "slots", "utilization", "waiting"] {
        let picture = &seen[format!("{name}.png")];
        assert_eq!((&picture["width"], &picture["kind"]), (&json!(1_840), &json!("data:image/png")), "{seen}");
        assert!(picture["colours"].as_u64().unwrap() > 20, "letters and lines have many shades: {seen}");
    }
}
