//! `ebb store …` as an operator runs it, against both S3 servers, and a model that goes from the bucket to its reader by a link.

use crate::support::{EBB, System, finished, model_job, submit, text, write_program};
use object_store::ObjectStore;
use serde_json::{Value, json};
use std::process::Output;
use std::sync::Arc;
use tokio::process::Command;

pub fn get(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: start servers with infra/servers/s3.sh start DIR and infra/servers/minio.sh start DIR, which print it")
    })
}

/// What a shell exports for one of the servers.
pub fn environment(server: &str) -> Vec<(&'static str, String)> {
    vec![
        ("AWS_ENDPOINT", get(server)),
        ("AWS_ACCESS_KEY_ID", get(&format!("{server}_ACCESS"))),
        ("AWS_SECRET_ACCESS_KEY", get(&format!("{server}_SECRET"))),
        ("AWS_REGION", "us-east-1".to_owned()),
    ]
}

/// Without any other setting of AWS, profiles and the machine's metadata included.
async fn ebb(arguments: &[&str], environment: &[(&str, String)]) -> Output {
    let nothing = tempfile::tempdir().unwrap();
    let mut command = Command::new(EBB);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("AWS_")) {
        command.env_remove(name);
    }
    command.args(arguments).env("HOME", nothing.path()).env("AWS_EC2_METADATA_DISABLED", "true");
    command.envs(environment.iter().cloned()).output().await.unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_is_checked_over_tls_with_an_authority_of_ones_own() {
    let url = format!("s3://{}/checked", get("EBB_TEST_MINIO_BUCKET"));
    let arguments = ["store", "check", &url, "--output", "json"];
    let mut environment = environment("EBB_TEST_MINIO");
    let distrusted = ebb(&arguments, &environment).await;
    let report: Value = serde_json::from_slice(&distrusted.stdout).unwrap();
    assert!(distrusted.status.code() == Some(1) && report["usable"] == false, "{}", said(&distrusted));
    let server = &report["checks"][0];
    assert!(server["item"] == "server" && server["advice"].as_str().unwrap().contains("SSL_CERT_FILE"), "{report}");

    environment.push(("SSL_CERT_FILE", get("EBB_TEST_MINIO_CA")));
    let checked = ebb(&arguments, &environment).await;
    let report: Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert!(checked.status.success() && report["usable"] == true, "{}", said(&checked));
    // The last one asks by the client that services use: both honour the file.
    assert_eq!(report["checks"].as_array().unwrap().last().unwrap()["verdict"], "ok", "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_ends_with_advice_and_without_secrets() {
    let bucket = get("EBB_TEST_S3_BUCKET");
    let url = format!("s3://{bucket}/checked");
    let mut environment = environment("EBB_TEST_S3");
    environment.push(("AWS_ALLOW_HTTP", "true".to_owned()));
    let good = ebb(&["store", "check", &url], &environment).await;
    assert!(good.status.success() && said(&good).contains("Ebb can work with this store."), "{}", said(&good));
    for (name, wrong, part) in [
        ("AWS_SECRET_ACCESS_KEY", "wrong-secret", "set AWS_SECRET_ACCESS_KEY"),
        ("AWS_ALLOW_HTTP", "false", "AWS_ALLOW_HTTP=true"),
        ("AWS_REGION", "mars-north-1", "set AWS_REGION"),
    ] {
        let changed: Vec<_> = environment
            .iter()
            .map(|(key, value)| (*key, if *key == name { wrong.to_owned() } else { value.clone() }))
            .collect();
        let output = ebb(&["store", "check", &url], &changed).await;
        let text = said(&output);
        assert!(output.status.code() == Some(1) && text.contains(part), "{name}: {text}");
        assert!(
            !text.contains("wrong-secret") && !text.contains(&get("EBB_TEST_S3_SECRET")),
            "{name}: a secret was told"
        );
    }
    let nobody: Vec<_> = environment.iter().filter(|(name, _)| !name.contains("KEY")).cloned().collect();
    let output = ebb(&["store", "check", &url], &nobody).await;
    assert!(output.status.code() == Some(1) && said(&output).contains("set AWS_ACCESS_KEY_ID"), "{}", said(&output));
    let folder = ebb(&["store", "check", "file:///data"], &environment).await;
    assert!(folder.status.code() == Some(2) && said(&folder).contains("s3://BUCKET/PREFIX"), "{}", said(&folder));

    let setup = ebb(&["store", "setup", &url], &environment).await;
    assert!(setup.status.success() && said(&setup).contains("ebb store uploads"), "{}", said(&setup));
    let uploads = ebb(&["store", "uploads", &url, "--output", "json"], &environment).await;
    let found: Value = serde_json::from_slice(&uploads.stdout).unwrap();
    assert!(uploads.status.success() && found["uploads"].as_array().unwrap().is_empty(), "{}", said(&uploads));
}

/// A service whose store is a place of its own in the bucket of the tests.
pub struct OnS3 {
    pub system: System,
    pub prefix: String,
    pub _folder: tempfile::TempDir,
}

impl OnS3 {
    pub async fn start(slots: u16) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("ebb-on-s3");
        let exports: String =
            environment("EBB_TEST_S3").iter().map(|(name, value)| format!("export {name}='{value}'\n")).collect();
        let prefix = folder.path().file_name().unwrap().to_str().unwrap().trim_start_matches('.').to_owned();
        let store = format!("s3://{}/{prefix}", get("EBB_TEST_S3_BUCKET"));
        let script = format!("#!/bin/sh\n{exports}export AWS_ALLOW_HTTP=true\nexec '{EBB}' \"$@\" --store '{store}'\n");
        write_program(&program, &script);
        let system = System::start_program(program, slots, None).await;
        Self { system, prefix, _folder: folder }
    }

    /// The same place, for who looks into it from outside.
    pub fn store(&self) -> Arc<dyn ObjectStore> {
        let allowed = ("AWS_ALLOW_HTTP".to_owned(), "true".to_owned());
        let settings = environment("EBB_TEST_S3").into_iter().map(|(name, value)| (name.to_owned(), value));
        storage::store::open_store_with(&self.system.service.ready().store_url, settings.chain([allowed])).unwrap()
    }
}

/// What is in the bucket is read by its owner with a client in another language, by the keys that the API shows.
#[tokio::test(flavor = "multi_thread")]
async fn a_stock_client_in_python_reads_models_and_checkpoints_by_key_and_by_link() {
    let python = std::env::var("EBB_TEST_PYTHON").expect("EBB_TEST_PYTHON is not set: it names a python3 with the packages boto3 and safetensors; `infra/run test tests` sets one up");
    let OnS3 { system, prefix, _folder } = OnS3::start(1).await;
    let client = system.client();
    let mut document = model_job("mlp");
    document["steps"] = 130.into();
    let id = submit(&client, &document, "read").await;
    finished(&client, &id).await;
    let shown = system.ebb_json(&["job", "show", &id]).await;
    let kept = system.ebb_json(&["job", "checkpoints", &id]).await;
    let link = system.ebb_json(&["model", "link", &id]).await;
    let newest = kept["checkpoints"].as_array().unwrap().last().unwrap();
    let only = system.ebb_json(&["job", "checkpoints", &id, "--newest", "1"]).await;
    assert_eq!(only["checkpoints"], json!([newest]));
    let (through, fetched) = (system.path("through.safetensors"), system.path("fetched.safetensors"));
    system.ebb_json(&["model", "get", &id, "-o", &text(&through)]).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/system/bucket_reader.py");
    let (model_key, manifest_key) =
        (shown["outcome"]["model_key"].as_str().unwrap(), newest["manifest_key"].as_str().unwrap());
    let bucket = get("EBB_TEST_S3_BUCKET");
    let arguments = [script, &bucket, &prefix, model_key, manifest_key, link["url"].as_str().unwrap(), &text(&fetched)];
    let mut command = Command::new(python);
    // What boto3 calls the setting that services call AWS_ENDPOINT, as the document for operators says.
    command
        .args(arguments)
        .envs(environment("EBB_TEST_S3"))
        .env("AWS_ENDPOINT_URL", get("EBB_TEST_S3"))
        .env_remove("AWS_PROFILE");
    let output = command.kill_on_drop(true).output().await.unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let read: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(std::fs::read(&through).unwrap(), std::fs::read(&fetched).unwrap());
    for held in ["part", "by_link", "by_own_link", "whole_shards"] {
        assert_eq!(read[held], true, "{held}: {read}");
    }
    assert!(!read["tensors"].as_array().unwrap().is_empty(), "{read}");
    assert_eq!(read["elements"], read["replica_len"], "{read}");
    let listed: Vec<&str> = read["listed"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!((listed[0], listed.len() as u64), ("manifest.json", 1 + read["shards"].as_u64().unwrap()), "{read}");
}

/// The service holds the credentials; the reader has none and gets the same bytes from the bucket.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_read_from_the_bucket_by_a_link() {
    let OnS3 { system, .. } = OnS3::start(1).await;
    let client = system.client();
    let mut document = model_job("mlp");
    document["steps"] = 20.into();
    let id = submit(&client, &document, "linked").await;
    finished(&client, &id).await;

    let (through, direct) = (system.path("through.safetensors"), system.path("direct.safetensors"));
    system.ebb_json(&["model", "get", &id, "-o", &text(&through)]).await;
    let got = system.ebb_json(&["model", "get", &id, "-o", &text(&direct), "--direct"]).await;
    assert_eq!(std::fs::read(&through).unwrap(), std::fs::read(&direct).unwrap());
    let link = system.ebb_json(&["model", "link", &id]).await;
    assert_eq!(link["bytes"], got["bytes"]);
    let answer = reqwest::get(link["url"].as_str().unwrap()).await.unwrap();
    assert_eq!(answer.headers()["content-disposition"], format!("attachment; filename=\"{id}.safetensors\""));
    assert_eq!(answer.bytes().await.unwrap(), std::fs::read(&through).unwrap());
    // The same for the files of a dataset, which are Parquet as any reader knows it.
    let linked = system.ebb_json(&["dataset", "links", "digits"]).await;
    let files = linked["files"].as_array().unwrap();
    let shown = system.ebb_json(&["dataset", "show", "digits"]).await;
    assert_eq!(files.iter().map(|file| file["rows"].as_u64().unwrap()).sum::<u64>(), shown["rows"].as_u64().unwrap());
    let beyond = system.ebb_json(&["dataset", "links", "digits", "--from-number", "1", "--to-number", "7"]).await;
    assert_eq!(beyond["files"].as_array().unwrap().len(), files.len().saturating_sub(1), "{beyond}");
    for file in files {
        let answer = reqwest::get(file["url"].as_str().unwrap()).await.unwrap();
        let name = answer.headers()["content-disposition"].to_str().unwrap().to_owned();
        assert!(name.contains(&format!("digits-{:05}.parquet", file["number"].as_u64().unwrap())), "{name}");
        let bytes = answer.bytes().await.unwrap();
        assert!(bytes.starts_with(b"PAR1") && bytes.len() as u64 == file["bytes"].as_u64().unwrap());
    }
    // Good for that object only, and for reading.
    let url = link["url"].as_str().unwrap();
    let other = url.replace("model.safetensors", "other.safetensors");
    assert_eq!(reqwest::get(other).await.unwrap().status(), 403);
    assert_eq!(reqwest::Client::new().delete(url).send().await.unwrap().status(), 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_links_says_how_to_get_the_model() {
    let system = System::start(1).await;
    let client = system.client();
    let mut document = model_job("mlp");
    document["steps"] = 20.into();
    let id = submit(&client, &document, "unlinked").await;
    finished(&client, &id).await;
    let refused = system.ebb(&["model", "link", &id]).await;
    let path = gateway_api::paths::job_model(&id);
    assert!(refused.status.code() == Some(4) && said(&refused).contains(&path), "{}", said(&refused));
    let refused = system.ebb(&["dataset", "links", "digits"]).await;
    assert!(refused.status.code() == Some(4) && said(&refused).contains("datasets/digits/part-"), "{}", said(&refused));
}
