//! What Ebb needs of a store, tried on each kind: memory, a local folder, and a real S3 server.
//!
//! The S3 part wants EBB_TEST_S3 and its companions in the environment; `infra/servers/s3.sh` starts a server and prints them.

use bytes::Bytes;
use events_schema::job::JobSpec;
use events_schema::stride::Stride;
use events_schema::{DatasetName, Digest, Generation, JobId, Rank, Step, WriterToken};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use std::io::Cursor;
use std::sync::Arc;
use storage::checkpoint::{
    CheckpointWriteError, Manifest, RestoreError, ShardElements, cut_shards, delete, read_manifest, read_model,
    read_replica, replica_digest, write_manifest, write_model, write_shard,
};
use storage::dataset::{CsvOptions, import_csv, load_metadata, register_digits, remove};
use storage::keys::CheckpointName;
use storage::stored::objects_of_job;
use storage::{Loader, LoaderLimits, open_store};

#[tokio::test]
async fn memory() {
    contract(open_store("memory:///").unwrap()).await;
}

#[tokio::test]
async fn local_folder() {
    let folder = tempfile::tempdir().unwrap();
    contract(open_store(&format!("file://{}/store", folder.path().display())).unwrap()).await;
}

#[tokio::test]
async fn s3() {
    contract(open_s3()).await;
}

/// A fresh prefix of the test server's bucket. The client's settings come from the environment as a user's would.
fn open_s3() -> Arc<dyn ObjectStore> {
    let get = |name: &str| {
        std::env::var(name).unwrap_or_else(|_| {
            panic!("{name} is not set; start a server and export what it prints: infra/servers/s3.sh start DIR")
        })
    };
    let (endpoint, access, secret, bucket) =
        (get("EBB_TEST_S3"), get("EBB_TEST_S3_ACCESS"), get("EBB_TEST_S3_SECRET"), get("EBB_TEST_S3_BUCKET"));
    let fresh = tempfile::tempdir().unwrap();
    let prefix = fresh.path().file_name().unwrap().to_str().unwrap().trim_start_matches('.').to_owned();
    let url = format!("s3://{bucket}/{prefix}");
    let store = storage::store::open_store_with(
        &url,
        [
            ("AWS_ENDPOINT", endpoint.as_str()),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_ACCESS_KEY_ID", &access),
            ("AWS_SECRET_ACCESS_KEY", &secret),
            ("AWS_REGION", "us-east-1"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    store.unwrap()
}

async fn contract(store: Arc<dyn ObjectStore>) {
    storage::store::probe(store.as_ref()).await.unwrap();
    objects(&store).await;
    one_writer_wins(&store).await;
    checkpoints(&store).await;
    datasets(&store).await;
}

/// Put, get, range, list, delete.
async fn objects(store: &Arc<dyn ObjectStore>) {
    let (path, body) = (Path::from("objects/a/b.bin"), Bytes::from_static(b"0123456789"));
    store.put(&path, body.clone().into()).await.unwrap();
    assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), body);
    assert_eq!(store.get_range(&path, 3..6).await.unwrap().as_ref(), b"345");
    let listed: Vec<String> =
        store.list(Some(&Path::from("objects"))).map_ok(|m| m.location.to_string()).try_collect().await.unwrap();
    assert_eq!(listed, ["objects/a/b.bin"]);
    store.delete(&path).await.unwrap();
    assert!(matches!(store.get(&path).await, Err(object_store::Error::NotFound { .. })));
}

/// `PutMode::Create` by many at once: exactly one succeeds, and its bytes stay.
async fn one_writer_wins(store: &Arc<dyn ObjectStore>) {
    let path = Path::from("objects/won");
    let attempts = (0..16u8).map(|i| {
        let (store, path) = (Arc::clone(store), path.clone());
        async move {
            store
                .put_opts(&path, Bytes::from(vec![i]).into(), PutOptions::from(PutMode::Create))
                .await
                .is_ok()
                .then_some(i)
        }
    });
    let winners: Vec<u8> =
        futures::stream::iter(attempts).buffer_unordered(16).filter_map(std::future::ready).collect().await;
    assert_eq!(winners.len(), 1);
    assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap().as_ref(), winners);
}

async fn checkpoints(store: &Arc<dyn ObjectStore>) {
    let (job, generation, step) = (JobId::parse("job-contract").unwrap(), Generation(2), Step(9));
    let name = CheckpointName { job: job.clone(), generation, step, writer: Some(WriterToken([5; 16])) };
    // Large enough that shards go up in parts.
    let replica: Arc<Vec<f32>> = Arc::new((0..6_000_000).map(|i| i as f32 * 0.5).collect());
    let mut shards = Vec::new();
    for range in cut_shards(replica.len() as u64, 2) {
        let elements = ShardElements::of(range, Arc::clone(&replica));
        shards.push(write_shard(store, &name, range, &elements).await.unwrap());
    }
    let manifest = Manifest {
        format_version: 1,
        job: job.clone(),
        spec_digest: Digest::of(b"spec"),
        numeric_class: Digest::of(b"class"),
        generation,
        step,
        replica_len: replica.len() as u64,
        replica_digest: replica_digest(&replica),
        shards,
        written_by: None,
    };
    let key = write_manifest(store, &name, &manifest).await.unwrap();
    assert_eq!(write_manifest(store, &name, &manifest).await.unwrap(), key);
    let other = Manifest { numeric_class: Digest::of(b"another class"), ..manifest.clone() };
    assert!(matches!(write_manifest(store, &name, &other).await, Err(CheckpointWriteError::Taken { .. })));
    let read = read_manifest(store, &name).await.unwrap();
    assert!(read == manifest && read_replica(store, &name, &read).await.unwrap() == *replica);
    let shown = objects_of_job(store, &job, |object| object.key == key, 9).await.unwrap();
    let age = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64 - shown[0].written_at.0;
    assert!(shown.len() == 1 && age < 3_600_000, "{shown:?}");
    delete(store, &name).await.unwrap();
    assert!(objects_of_job(store, &job, |_| true, 9).await.unwrap().is_empty());
    assert!(matches!(read_manifest(store, &name).await, Err(RestoreError::Missing { .. })));
    write_model(store, &job, vec![7; 9 << 20]).await.unwrap();
    assert_eq!(read_model(store, &job).await.unwrap(), vec![7; 9 << 20]);
}

async fn datasets(store: &Arc<dyn ObjectStore>) {
    let digits = register_digits(store).await.unwrap();
    let text =
        r#"{"name":"t","model":{"kind":"mlp"},"dataset":"digits","workers":{"max":4},"batch_size":32,"epochs":1}"#;
    let spec = JobSpec::parse(&serde_json::from_str(text).unwrap()).unwrap();
    let loader = Loader::open(Arc::clone(store), &spec, &digits.dataset, LoaderLimits::default()).await.unwrap();
    let mut samples = 0;
    for step in 0..loader.steps_total() {
        for rank in 0..4 {
            loader.prefetch(&[Rank(rank)], (Step(step), Stride::ONE), 2);
            samples += loader.samples(Rank(rank), Step(step)).await.unwrap().len();
        }
    }
    assert_eq!(samples, 1_437);
    let name = DatasetName::parse("rows").unwrap();
    let imported = import_csv(store, &name, Cursor::new("1,2,0\n3,4,1\n"), &CsvOptions::default()).await.unwrap();
    remove(store, &imported.dataset).await.unwrap();
    assert!(load_metadata(store, &imported.dataset).await.is_err());
}
