//! What the documents say to paste is pasted: every line with `curl` in those for users, in the order of the document, into one shell, against a service that
//! runs. Only what a reader has to fill in is filled in. A new block fails here until somebody has said what a reader has by then.

use crate::support::{EBB, System, model_job, submit, text, until};
use gateway_client::Client;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// As a shell does it that stops at the first thing that goes wrong. A refusal of the service is that too, but of `-I`, which asks whether something is there,
/// and where the document says so itself; a stream ends with its first event.
const SHELL: &str = r#"set -euo pipefail
curl() {
  local refused=--fail-with-body stream= status
  for argument in "$@"; do
    case "$argument" in -f*) refused= ;; -sI) refused=--no-fail ;; -N | -sN) stream=yes ;; esac
  done
  [ -n "$stream" ] || { command curl ${refused:+"$refused"} --max-time 120 "$@"; return; }
  # Whoever reads no further ends curl with a failure to write.
  if command curl ${refused:+"$refused"} --max-time 120 "$@" | sed -u '/^data: ./q'; then status=("${PIPESTATUS[@]}"); else status=("${PIPESTATUS[@]}"); fi
  [ "${status[0]}" = 23 ] || return "${status[0]}"
}
"#;

/// A block of a document, or a command within a sentence.
struct Paste {
    line: usize,
    text: String,
}

/// All that a document says to paste and that asks the service with curl.
fn pastes(document: &str) -> Vec<Paste> {
    let lines: Vec<&str> = document.lines().collect();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < lines.len() {
        let is_code = |line: &&str| line.starts_with("    ");
        let begins = is_code(&lines[at]) && (at == 0 || lines[at - 1].trim().is_empty());
        if !begins {
            let commands = lines[at].split('`').skip(1).step_by(2).filter(|code| code.starts_with("curl "));
            found.extend(commands.map(|code| Paste { line: at + 1, text: code.to_owned() }));
            at += 1;
            continue;
        }
        let block: Vec<&str> = lines[at..].iter().copied().take_while(is_code).collect();
        let margin = block.iter().map(|line| line.len() - line.trim_start().len()).min().unwrap_or_default();
        let text: Vec<&str> = block.iter().map(|line| &line[margin..]).collect();
        found.push(Paste { line: at + 1, text: text.join("\n") });
        at += block.len();
    }
    found.retain(|paste| paste.text.contains("curl "));
    found
}

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// What is known of a block: a text by which it is known, what was done before it, what in it the reader fills in, and what it has to say.
struct Known<'a> {
    block: &'a str,
    before: &'a str,
    fill_in: &'a [(&'a str, &'a str)],
    says: &'a [&'a str],
}

/// Pastes everything of a document into one shell whose folder has the repository's `docs`.
async fn paste(system: &System, name: &str, known: &[Known<'_>]) {
    let document = std::fs::read_to_string(repository().join("docs").join(name)).unwrap();
    let url = &system.service.ready().url;
    let folder = system.path(&format!("pasted-{name}"));
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink(repository().join("docs"), folder.join("docs")).unwrap();
    let found = pastes(&document);
    assert_eq!(found.len(), known.len(), "{name} has other blocks to paste than this test knows");
    let mut script = SHELL.to_owned();
    for (paste, known) in found.iter().zip(known) {
        assert!(paste.text.contains(known.block), "{name}:{}: a block that this test does not know", paste.line);
        let mut text = paste.text.replace("http://127.0.0.1:7878", url);
        text = text.replace("localhost:7878", url.trim_start_matches("http://"));
        for (placeholder, value) in known.fill_in {
            assert!(text.contains(placeholder), "{name}:{}: {placeholder} is not there to be filled in", paste.line);
            text = text.replace(placeholder, value);
        }
        script += &format!("{}\necho '== {}'\n{text}\n", known.before, paste.line);
    }
    script += "echo '== end'\n";
    let program = Path::new(EBB).parent().unwrap();
    let mut shell = Command::new("bash")
        .current_dir(&folder)
        .env("PATH", format!("{}:{}", program.display(), std::env::var("PATH").unwrap()))
        .env("EBB_URL", url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    shell.stdin.take().unwrap().write_all(script.as_bytes()).await.unwrap();
    let output = shell.wait_with_output().await.unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} does not run; {}:\n{said}\n{errors}", output.status);
    for (paste, known) in found.iter().zip(known) {
        let begin = format!("== {}\n", paste.line);
        let own = said.split_once(&begin).map(|(_, rest)| rest.split("\n== ").next().unwrap_or_default());
        let own = own.unwrap_or_else(|| panic!("{name}:{} was not run: {said}", paste.line));
        for wanted in known.says {
            assert!(own.contains(wanted), "{name}:{} does not say {wanted}:\n{own}", paste.line);
        }
    }
}

/// A job that trains for as long as anybody asks.
async fn long_job(client: &Client) -> String {
    let mut document = model_job("cnn");
    document["steps"] = 1_000_000.into();
    let id = submit(client, &document, "long").await;
    until(client, &id, "training", |job| job.progress.is_some_and(|progress| progress.step > 5)).await;
    id
}

const NOTHING: Known<'static> = Known { block: "", before: "", fill_in: &[], says: &[] };

#[tokio::test(flavor = "multi_thread")]
async fn the_document_of_the_api_runs_as_it_stands() {
    let root = tempfile::tempdir().unwrap();
    let system = System::start_with_in(4, &["--dataset-root", &text(root.path())], &[]).await;
    let client = system.client();
    // Files of one's own: as an import wrote them.
    let mine = root.path().join("mine");
    std::fs::create_dir(&mine).unwrap();
    for file in std::fs::read_dir(system.path("data/store/datasets/digits")).unwrap() {
        let file = file.unwrap();
        if file.path().extension().is_some_and(|ending| ending == "parquet") {
            std::fs::copy(file.path(), mine.join(file.file_name())).unwrap();
        }
    }
    let mine = format!("file://{}/", mine.display());
    let data = text(&system.path("data"));
    let agent = system.agent().url().to_owned();
    let agent = agent.trim_start_matches("http://").to_owned();
    // The job of the first block has ended when the second begins; the later ones look at it.
    let again = "JOB=$(curl -sS -H 'content-type: application/yaml' --data-binary @docs/examples/digits.yaml $URL/v1/jobs | jq -r .id)";
    let finished = "JOB=$(curl -sS \"$URL/v1/jobs?phase=finished\" | jq -r '.jobs[0].id')";
    let known = [
        Known {
            block: "digits.yaml \"$URL/v1/jobs?dry_run=true\"",
            says: &["\"dry_run\":true", "event: dev.ebb.job.finished.v1", "\"phase\": \"finished\""],
            ..NOTHING
        },
        Known { block: "/suspend", before: again, says: &["suspending", "job.suspended.v1", "cancelled"], ..NOTHING },
        Known {
            block: "/v1/slots?state=borrowed",
            before: finished,
            fill_in: &[
                ("JOB", "$JOB"),
                ("'http", "\"http"),
                ("'\n", "\"\n"),
                // A folder gives no links, which is the answer.
                ("to_number=9'", "to_number=9\" || true"),
                ("NAME", "digits"),
            ],
            says: &["\"slots\":", "\"checkpoints\":", "\"logs\":", "no-links"],
        },
        Known { block: "If-Match: $tag", says: &["\"fleet\":\"local\""], ..NOTHING },
        Known { block: "curl -C -", fill_in: &[("JOB", "$JOB")], ..NOTHING },
        Known {
            block: "/v1/models/$MODEL",
            before: "cp mnist.safetensors model.safetensors",
            says: &["HTTP/1.1 404", "\"model\":\""],
            ..NOTHING
        },
        Known { block: "/v1/code/$CODE", fill_in: &[("/tmp/", "./")], says: &["\"code\":\"", "\"phase\":"], ..NOTHING },
        Known {
            block: "\"uris\": [\"s3://bucket/data/mine/\"]",
            fill_in: &[
                ("s3://bucket/data/mine/", &mine),
                ("\"x\"", "\"features\""),
                ("\"y\"", "\"label\""),
                ("[10]", "[1, 8, 8]"),
                ("\"classes\": 3", "\"classes\": 10"),
            ],
            says: &["\"name\":\"mine\""],
            ..NOTHING
        },
        Known { block: "$URL/v1/fleets/chat/recall", says: &["\"fleet\":\"chat\"", "\"recalled\":2"], ..NOTHING },
        Known {
            block: "slot.returned.v1",
            before: "curl -H \"$JSON\" $URL/v1/fleets/chat/demand -d '{\"needed\": 0}'",
            fill_in: &[("?type", "?from=0-0&type")],
            says: &["event: dev.ebb.slot.returned.v1"],
        },
        Known {
            block: "/v1/take-back",
            fill_in: &[("./ebb-data", &data), ("127.0.0.1:PORT", &agent)],
            says: &["\"free\":true"],
            ..NOTHING
        },
    ];
    paste(&system, "http.md", &known).await;
    drop(client);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_of_events_runs_as_it_stands() {
    let system = System::start(2).await;
    let id = long_job(&system.client()).await;
    let known =
        [Known { block: "/v1/fleets/local/events?from=0-0", says: &["event: dev.ebb.fleet.declared.v1"], ..NOTHING }];
    paste(&system, "events.md", &known).await;
    let metrics = [Known {
        block: "grep ebb_jobs",
        fill_in: &[("ebb up &\n", "")],
        says: &["ebb_jobs{phase=\"running\""],
        ..NOTHING
    }];
    paste(&system, "operations.md", &metrics).await;
    let refused = [Known { block: "signals_refused", says: &["\"events\":"], ..NOTHING }];
    paste(&system, "demand.md", &refused).await;
    system.client().cancel(&id).await.unwrap();
    system.stop().await;
}
