//! The HTTP API is what its document says: requests made from the document by a stock tool meet no defect, and no answer that is not in it.

use crate::support::{System, finished, submit};
use serde_json::json;
use tokio::process::Command;

/// What every answer is held against.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
response_schema_conformance,unsupported_method,allow_header_conformance,negative_data_rejection";
/// Seconds of requests: enough for each operation's every parameter and body field, legal and not, and for chains of them.
const SECONDS: &str = "60";

fn python() -> String {
    std::env::var("EBB_TEST_PYTHON").expect(
        "EBB_TEST_PYTHON is not set: it names a python3 with the packages schemathesis and openapi-spec-validator; `infra/run test tests` sets one up",
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_is_legal_and_the_service_keeps_it() {
    let system = System::start(2).await;
    let client = system.client();
    let document = client.openapi().await.unwrap();
    let file = system.path("openapi.json");
    std::fs::write(&file, document.to_string()).unwrap();
    let linted = Command::new(python())
        .args(["-m", "openapi_spec_validator"])
        .arg(&file)
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    assert!(linted.status.success(), "{}", String::from_utf8_lossy(&linted.stdout));

    // With a job that has a model, checkpoints and a story, and one that waits.
    let job = json!({"name": "small", "model": {"kind": "mlp", "hidden": [4]}, "dataset": "digits", "batch_size": 16, "steps": 20});
    finished(&client, &submit(&client, &job, "ended").await).await;
    let mut waiting = job.clone();
    waiting["suspend"] = true.into();
    submit(&client, &waiting, "waiting").await;

    let mut tried = Command::new(python());
    tried.args(["-m", "schemathesis.cli", "run"]).arg(&file).args(["-u", &system.service.ready().url]);
    // Event streams have no end; their pages are tried.
    tried.args(["-H", "Accept: application/json", "--checks", CHECKS, "--seed", "20", "--max-time", SECONDS]);
    tried.args(["--max-examples", "40", "--no-shrink", "--continue-on-failure", "--request-timeout", "30"]);
    let output = tried.current_dir(system.path(".")).kill_on_drop(true).output();
    let output = tokio::time::timeout(crate::support::WAIT_MAX, output).await.expect("it ends").unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(told.contains("Tested:"), "{told}");
}
