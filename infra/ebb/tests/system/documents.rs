//! What the documents say to paste is pasted: the commands of those for users into one shell, in the order of the document, and their programs into one Python,
//! against a service, a broker and a bucket that run. Only what a reader has to fill in is filled in. A new block fails here until somebody has said what a
//! reader has by then.

use crate::demand_follow::{Exporter, explained, scraping, vllm};
use crate::store::{self, OnS3};
use crate::support::{EBB, System, WAIT_MAX, finished, kafka, model_job, submit, text, until, until_needed};
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
# What has no end, for so many seconds.
for_seconds() { timeout "$@" || [ $? = 124 ]; }
"#;

/// What commands to paste ask the service with.
const CURL: &[&str] = &["curl "];

/// A block of a document, or a command within a sentence.
struct Paste {
    line: usize,
    text: String,
}

/// All that a document says to paste and that holds one of these words.
fn pastes(document: &str, words: &[&str]) -> Vec<Paste> {
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
        // What is between two parts is a part of the block if it is empty.
        let is_inside = |end: &usize| {
            let next = lines[*end..].iter().find(|line| !line.trim().is_empty());
            next.is_some_and(is_code)
        };
        let end = (at..lines.len()).find(|end| !is_inside(end)).unwrap_or(lines.len());
        let block = &lines[at..end];
        let written = block.iter().filter(|line| !line.trim().is_empty());
        let margin = written.map(|line| line.len() - line.trim_start().len()).min().unwrap_or_default();
        let text: Vec<&str> = block.iter().map(|line| line.get(margin..).unwrap_or_default()).collect();
        found.push(Paste { line: at + 1, text: text.join("\n") });
        at = end;
    }
    found.retain(|paste| words.iter().any(|word| paste.text.contains(word)));
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

/// The blocks of a document that hold one of these words, filled in, as one script: before each `mark` says where it is.
fn script(name: &str, words: &[&str], known: &[Known<'_>], url: &str, mark: impl Fn(usize) -> String) -> String {
    let document = std::fs::read_to_string(repository().join("docs").join(name)).unwrap();
    let found = pastes(&document, words);
    assert_eq!(found.len(), known.len(), "{name} has other blocks to paste than this test knows");
    let mut script = String::new();
    for (number, (paste, known)) in found.iter().zip(known).enumerate() {
        assert!(paste.text.contains(known.block), "{name}:{}: a block that this test does not know", paste.line);
        let mut text = paste.text.replace("http://127.0.0.1:7878", url);
        text = text.replace("localhost:7878", url.trim_start_matches("http://"));
        for (placeholder, value) in known.fill_in {
            assert!(text.contains(placeholder), "{name}:{}: {placeholder} is not there to be filled in", paste.line);
            text = text.replace(placeholder, value);
        }
        script += &format!("{}\n{}\n{text}\n", known.before, mark(number));
    }
    script + &mark(known.len()) + "\n"
}

/// Runs a script by a program that reads it from standard input, and holds what it said against what is known.
async fn run(name: &str, mut program: Command, script: &str, known: &[Known<'_>]) {
    let mut running =
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    running.stdin.take().unwrap().write_all(script.as_bytes()).await.unwrap();
    let ended = tokio::time::timeout(2 * WAIT_MAX, running.wait_with_output()).await;
    let output = ended.unwrap_or_else(|_| panic!("{name} does not come to its end:\n{script}")).unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} does not run; {}:\n{said}\n{errors}", output.status);
    for (number, known) in known.iter().enumerate() {
        let begin = format!("== {number}\n");
        let own = said.split_once(&begin).map(|(_, rest)| rest.split("\n== ").next().unwrap_or_default());
        let own = own.unwrap_or_else(|| panic!("block {number} of {name} was not run: {said}\n{errors}"));
        for wanted in known.says {
            assert!(own.contains(wanted), "block {number} of {name} does not say {wanted}:\n{own}\n{errors}");
        }
    }
}

/// Pastes the commands of a document into one shell whose folder has the repository's `docs`.
async fn paste(system: &System, name: &str, words: &[&str], environment: &[(&str, String)], known: &[Known<'_>]) {
    let url = &system.service.ready().url;
    let folder = system.path(&format!("pasted-{name}"));
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink(repository().join("docs"), folder.join("docs")).unwrap();
    let script = SHELL.to_owned() + &script(name, words, known, url, |number| format!("echo '== {number}'"));
    let program = Path::new(EBB).parent().unwrap();
    let mut shell = Command::new("bash");
    shell
        .current_dir(&folder)
        .env("PATH", format!("{}:{}", program.display(), std::env::var("PATH").unwrap()))
        .env("EBB_URL", url)
        .envs(environment.iter().cloned());
    run(name, shell, &script, known).await;
}

/// Pastes the programs of a document into one Python.
async fn paste_into_python(system: &System, name: &str, environment: &[(&str, String)], known: &[Known<'_>]) {
    let python = std::env::var("EBB_TEST_PYTHON").expect(
        "EBB_TEST_PYTHON is not set: it names a python3 with the packages confluent-kafka, cloudevents and boto3; `infra/run test tests` sets one up",
    );
    let url = &system.service.ready().url;
    let script = script(name, &["import "], known, url, |number| format!("print('== {number}', flush=True)"));
    let folder = system.path(&format!("pasted-python-{name}"));
    std::fs::create_dir(&folder).unwrap();
    let mut program = Command::new(python);
    program.arg("-").current_dir(folder).envs(environment.iter().cloned());
    run(name, program, &script, known).await;
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
        Known { block: "\"forecast\": [{\"in_ms\": 900000", says: &["\"needed\":1"], ..NOTHING },
        Known {
            block: "/v1/take-back",
            fill_in: &[("./ebb-data", &data), ("127.0.0.1:PORT", &agent)],
            says: &["\"free\":true"],
            ..NOTHING
        },
    ];
    paste(&system, "http.md", CURL, &[], &known).await;
    drop(client);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_of_events_runs_as_it_stands() {
    let system = System::start(2).await;
    let id = long_job(&system.client()).await;
    let known =
        [Known { block: "/v1/fleets/local/events?from=0-0", says: &["event: dev.ebb.fleet.declared.v1"], ..NOTHING }];
    paste(&system, "events.md", CURL, &[], &known).await;
    let metrics = [Known {
        block: "grep ebb_jobs",
        fill_in: &[
            ("ebb up &\n", ""),
            // It would run until somebody ends it.
            ("OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 ebb up --log-format json", ""),
        ],
        says: &["ebb_jobs{phase=\"running\""],
        ..NOTHING
    }];
    paste(&system, "operations.md", CURL, &[], &metrics).await;
    system.client().cancel(&id).await.unwrap();
    system.stop().await;
}

/// A subscriber and a fleet with stock tools: Python's Kafka client, and the commands that Kafka comes with.
#[tokio::test(flavor = "multi_thread")]
async fn the_documents_of_events_and_demand_run_on_kafka_as_they_stand() {
    let (broker, prefix) = (kafka(), format!("documents-{}", std::process::id()));
    let tools = std::env::var("EBB_TEST_KAFKA_TOOLS")
        .expect("EBB_TEST_KAFKA_TOOLS is not set: `infra/servers/kafka.sh start DIR` prints it");
    let (log, needs) = (format!("kafka://{broker}?plaintext=allow&prefix={prefix}"), format!("{prefix}-needs"));
    let system = System::start_with_in(2, &["--log", &log, "--demand-topics", &needs], &[]).await;
    let mut document = model_job("mlp");
    document["steps"] = 50.into();
    finished(&system.client(), &submit(&system.client(), &document, "read").await).await;

    // A reader leaves the loop when enough was seen; the second block goes on with the last record.
    let leave = "json.loads(record.value()))\n    if headers[\"ce_type\"] == \"dev.ebb.job.finished.v1\": break";
    let programs = [
        Known {
            block: "consumer.subscribe",
            fill_in: &[
                ("HOST:9093", &broker),
                ("\"ssl\"", "\"plaintext\""),
                ("ebb.public", &format!("{prefix}.public")),
                ("json.loads(record.value()))", leave),
            ],
            says: &[
                "dev.ebb.fleet.declared.v1 local {",
                "dev.ebb.job.accepted.v1 job-",
                "dev.ebb.job.finished.v1 job-",
            ],
            ..NOTHING
        },
        Known { block: "kafka.from_binary_event", says: &["dev.ebb.job.finished.v1 job-"], ..NOTHING },
    ];
    paste_into_python(&system, "events.md", &[], &programs).await;

    let exporter = Exporter::start(&vllm(6, 2)).await;
    let folder = tempfile::tempdir().unwrap();
    let (_prometheus, metrics) = scraping(folder.path(), &exporter).await;
    // Until there are samples nothing can be explained.
    explained(&system, &["--prometheus", &metrics, "--metrics", "vllm", "--requests-per-slot", "16"]).await;
    let own: &[(&str, &str)] = &[("127.0.0.1:9092", &broker), ("ebb.demand", &needs)];
    let commands = [
        // The service runs, as the block says it.
        Known { block: "--demand-topics ebb.demand", fill_in: &[("ebb up", ": ebb up")], ..NOTHING },
        Known { block: "kafka-topics.sh", fill_in: own, says: &["Created topic"], ..NOTHING },
        // What is published next is newer than what the topic says.
        Known {
            block: "kafka-acls.sh",
            before: "for _ in $(seq 600); do curl -s $EBB_URL/v1/fleets/local | jq -e '.needed == 2' >/dev/null && break; sleep 0.1; done",
            fill_in: own,
            says: &["principal=User:local", "operation=READ"],
        },
        Known { block: "signals_refused", says: &["\"events\":"], ..NOTHING },
        Known {
            block: "--explain",
            fill_in: &[("http://127.0.0.1:9090", &metrics), ("--explain\nebb", "--explain\nfor_seconds 5 ebb")],
            says: &["vllm:num_requests_running", "local needs 2 slots (less is needed now"],
            ..NOTHING
        },
        Known { block: "--forecast 15m=4", says: &["local needs 2 of its slots"], ..NOTHING },
    ];
    let path = format!("{tools}:{}", std::env::var("PATH").unwrap());
    let program = Path::new(EBB).parent().unwrap().display().to_string();
    let environment = [("PATH", format!("{program}:{path}"))];
    paste(&system, "demand.md", &["curl ", "ebb ", "kafka-"], &environment, &commands).await;
    until_needed(&system.client(), "local", 2).await;
    system.stop().await;
}

/// An operator of a bucket, and whoever reads it with a client of their own.
#[tokio::test(flavor = "multi_thread")]
async fn the_document_of_the_store_runs_as_it_stands() {
    let OnS3 { system, prefix, _folder } = OnS3::start(1).await;
    let client = system.client();
    let mut document = model_job("mlp");
    document["steps"] = 130.into();
    let id = submit(&client, &document, "stored").await;
    finished(&client, &id).await;
    let checkpoints = client.checkpoints(&id, gateway_client::Stretch::default(), None).await.unwrap();
    let manifest = format!("\"{}\"", checkpoints.last().unwrap().manifest_key);
    let (bucket, mut environment) = (store::get("EBB_TEST_S3_BUCKET"), store::environment("EBB_TEST_S3"));
    environment.push(("AWS_ALLOW_HTTP", "true".to_owned()));
    environment.push(("AWS_ENDPOINT_URL", store::get("EBB_TEST_S3")));
    let place: &[(&str, &str)] = &[("BUCKET/PREFIX", &format!("{bucket}/{prefix}"))];
    let commands = [
        Known { block: "ebb store check", fill_in: place, says: &["Ebb can work with this store."], ..NOTHING },
        Known { block: "ebb store setup", fill_in: place, ..NOTHING },
        Known { block: "ebb store uploads", fill_in: place, ..NOTHING },
        Known { block: "ebb model link", fill_in: &[("JOB", &id)], ..NOTHING },
        Known { block: "ebb dataset links digits", ..NOTHING },
    ];
    paste(&system, "store.md", &["curl ", "ebb "], &environment, &commands).await;
    let pasted = system.path("pasted-store.md");
    assert!(pasted.join("model.safetensors").exists() && pasted.join("digits-00000.parquet").exists());

    let programs = [Known {
        block: "import json, boto3",
        fill_in: &[("BUCKET", &bucket), ("PREFIX", &prefix), ("MANIFEST_KEY", &manifest), ("JOB", &id)],
        ..NOTHING
    }];
    paste_into_python(&system, "store.md", &environment, &programs).await;
    let model = std::fs::read(pasted.join("model.safetensors")).unwrap();
    assert_eq!(std::fs::read(system.path("pasted-python-store.md/model.safetensors")).unwrap(), model);
    system.stop().await;
}
