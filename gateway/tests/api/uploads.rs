//! What is uploaded before a job names it: whether it is there, and that somebody wants it is noted; and logs, which lie in the store as well.

use crate::support::{Answer, Rig, job_with};
use events_schema::{Digest, ExecutorId, JobId};
use futures::{FutureExt, StreamExt};
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;
use storage::keys::Upload;
use storage::watched::WatchedStore;

/// A packed folder with a file of this text.
fn packed(text: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("train.py"), text).unwrap();
    storage::code::pack(folder.path()).unwrap()
}

async fn upload(rig: &Rig, bytes: &[u8]) -> Answer {
    let path = format!("/v1/code/{}", Digest::of(bytes));
    let request = rig.client.put(rig.url(&path)).header("content-type", "application/octet-stream");
    Answer::of(request.body(bytes.to_vec()).send().await.unwrap()).await
}

/// Everything that is noted in the store.
async fn notes(rig: &Rig) -> Vec<String> {
    let listed = rig.store.list(Some(&"uploads".into()));
    listed.map(|object| object.unwrap().location.filename().unwrap().to_owned()).collect().await
}

async fn forget_notes(rig: &Rig) {
    let all: Vec<_> =
        rig.store.list(Some(&"uploads".into())).map(|object| Ok(object.unwrap().location)).collect().await;
    let deleted = rig.store.delete_stream(futures::stream::iter(all).boxed());
    deleted.for_each(|gone| async move { drop(gone.unwrap()) }).await;
}

#[tokio::test]
async fn who_uploads_asks_or_submits_notes_what_is_wanted_if_it_is_there() {
    let rig = Rig::with_datasets().await;
    let bytes = packed("print('tide')");
    let digest = Digest::of(&bytes).to_string();
    let (path, note) = (format!("/v1/code/{digest}"), format!("code-{digest}"));
    let model = json!({"kind": "command", "command": ["python", "train.py"], "code": digest, "elastic": "fixed"});
    let job = json!({"name": "gang", "model": model, "workers": {"max": 1}, "suspend": true});
    for path in [path.clone(), format!("/v1/models/{digest}")] {
        let asked = rig.get(&path).await;
        assert_eq!((asked.status.as_u16(), asked.slug()), (404, "unknown-upload"), "{}", asked.text);
    }
    let refused = rig.post("/v1/jobs", &job).await;
    assert_eq!((refused.status.as_u16(), refused.slug()), (422, "unknown-reference"), "{}", refused.text);
    let tensors = rig.client.put(rig.url(&format!("/v1/models/{digest}"))).body(b"no safetensors file".to_vec());
    let refused = tensors.header("content-type", "application/octet-stream").send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    assert_eq!(notes(&rig).await, Vec::<String>::new(), "whoever asks for what is not there leaves nothing");

    assert_eq!(upload(&rig, &bytes).await.status, StatusCode::CREATED);
    assert_eq!(notes(&rig).await, [note.as_str()]);
    forget_notes(&rig).await;
    let there = rig.get(&path).await;
    assert_eq!(there.json, json!({"code": digest, "bytes": bytes.len()}));
    assert_eq!(notes(&rig).await, [note.as_str()], "what was seen is to stay");
    assert_eq!(rig.send(Method::HEAD, &path, &[], None).await.status, StatusCode::OK);
    assert_eq!(upload(&rig, &bytes).await.status, StatusCode::OK);
    assert_eq!(
        rig.get(&format!("/v1/models/{digest}")).await.slug(),
        "unknown-upload",
        "the same name of another thing"
    );

    // Whatever became of the notes, a job that names it is one who wants it.
    forget_notes(&rig).await;
    rig.submit(&job).await;
    assert_eq!(notes(&rig).await, [note]);
}

/// A sweep that looked at the notes before there was this one deletes behind it.
#[tokio::test]
async fn what_is_swept_up_while_it_is_asked_for_is_not_there() {
    let bytes = packed("print('tide')");
    let upload = Upload::Code(Digest::of(&bytes));
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let swept = Arc::clone(&store);
    let watched = WatchedStore::new(Arc::clone(&store), move |request| {
        if request.starts_with("PUT uploads/") {
            swept.delete(&upload.object().into()).now_or_never().unwrap()?;
        }
        Ok(())
    });
    let rig = Rig::with_datasets_over(watched).await;
    store.put(&upload.object().into(), bytes.clone().into()).await.unwrap();
    let asked = rig.get(&format!("/v1/code/{}", Digest::of(&bytes))).await;
    assert_eq!((asked.status.as_u16(), asked.slug()), (404, "unknown-upload"), "{}", asked.text);
    assert_eq!(notes(&rig).await.len(), 1);
}

#[tokio::test]
async fn logs_are_listed_by_executor_and_by_when_they_grew() {
    let rig = Rig::with_datasets().await;
    let id = rig.submit(&job_with(json!({}))).await;
    let job = JobId::parse(&id).unwrap();
    for number in 0..3 {
        let key = storage::keys::log_chunk(&ExecutorId { job: job.clone(), number }, 0);
        rig.store.put_opts(&key.into(), "said\n".into(), object_store::PutOptions::default()).await.unwrap();
    }
    let numbers = async |query: &str| {
        let shown = rig.get(&format!("/v1/jobs/{id}/logs?{query}")).await;
        let logs = shown.json["logs"].as_array().unwrap_or_else(|| panic!("{}", shown.text)).clone();
        logs.iter().map(|log: &Value| log["number"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    for (query, wanted) in [
        ("", [0, 1, 2].as_slice()),
        ("executor=1", &[1]),
        ("executor=7", &[]),
        ("changed_since=2026-01-01T00:00:00Z", &[0, 1, 2]),
        ("changed_since=9999-01-01T00:00:00Z", &[]),
    ] {
        assert_eq!(numbers(query).await, wanted, "{query}");
    }
    for wrong in ["executor=-1", "changed_since=yesterday"] {
        let refused = rig.get(&format!("/v1/jobs/{id}/logs?{wrong}")).await;
        assert_eq!((refused.status.as_u16(), refused.slug()), (400, "invalid-query"), "{wrong}");
    }
}
