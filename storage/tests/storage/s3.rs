//! How the data path stands what S3 servers and the way to them do: asked to slow down, cut short, answers lost, credentials that end or
//! do not suffice. Against real servers, through a proxy that breaks what it is told to.
//!
//! Wants EBB_TEST_S3 and EBB_TEST_MINIO with their companions in the environment; `infra/servers/s3.sh` and `minio.sh` start servers and
//! print them.

use crate::proxy::{Fault, Proxy};
use axum::http::Method;
use events_schema::JobId;
use futures::FutureExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use storage::checkpoint::{read_model, write_model};
use storage::retry::{RetryPolicy, StoreFault, retrying};
use storage::store::{open_store_with, probe};

/// Requests of the client for one access: the first and its own retries.
const CLIENT_REQUESTS: u64 = 4;

fn get(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set; start servers and export what they print: infra/servers/s3.sh start DIR, infra/servers/minio.sh start DIR")
    })
}

/// A store on a fresh prefix, reached at `endpoint`.
fn store_at(endpoint: &str, access: &str, secret: &str, bucket: &str, region: &str) -> Arc<dyn ObjectStore> {
    let fresh = tempfile::tempdir().unwrap();
    let prefix = fresh.path().file_name().unwrap().to_str().unwrap().trim_start_matches('.').to_owned();
    let settings = [
        ("AWS_ENDPOINT", endpoint),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", access),
        ("AWS_SECRET_ACCESS_KEY", secret),
        ("AWS_REGION", region),
    ];
    open_store_with(
        &format!("s3://{bucket}/{prefix}"),
        settings.map(|(name, value)| (name.to_owned(), value.to_owned())),
    )
    .unwrap()
}

async fn versitygw() -> (Proxy, Arc<dyn ObjectStore>) {
    let proxy = Proxy::before(&get("EBB_TEST_S3"), None).await;
    let (access, secret) = (get("EBB_TEST_S3_ACCESS"), get("EBB_TEST_S3_SECRET"));
    let store = store_at(&proxy.url, &access, &secret, &get("EBB_TEST_S3_BUCKET"), "us-east-1");
    (proxy, store)
}

async fn minio() -> Proxy {
    let authority = get("EBB_TEST_MINIO_CA");
    Proxy::before(&get("EBB_TEST_MINIO"), Some(std::path::Path::new(&authority))).await
}

fn told(error: &dyn Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

fn job() -> JobId {
    JobId::parse("job-faults").unwrap()
}

#[tokio::test]
async fn a_server_that_asks_to_slow_down_is_waited_for() {
    let (proxy, store) = versitygw().await;
    let model = vec![7; 9 << 20];
    // More than the client's own patience, less than ours.
    proxy.fail(Fault::SlowDown, Method::PUT, CLIENT_REQUESTS + 2);
    write_model(&store, &job(), model.clone()).await.unwrap();
    proxy.fail(Fault::SlowDown, Method::GET, CLIENT_REQUESTS + 2);
    assert_eq!(read_model(&store, &job()).await.unwrap(), model);
    assert_eq!(proxy.pending(), 0);
}

#[tokio::test]
async fn one_that_always_asks_for_it_is_given_up_and_named() {
    let (proxy, store) = versitygw().await;
    proxy.fail(Fault::SlowDown, Method::GET, u64::MAX);
    let fault = probe(store.as_ref()).await.unwrap_err();
    assert!(fault.is_transient() && told(&fault).contains("SlowDown"), "{}", told(&fault));
    assert_eq!(proxy.requests(), CLIENT_REQUESTS);
}

#[tokio::test]
async fn a_body_that_ends_early_is_read_again_and_never_taken_for_whole() {
    let (proxy, store) = versitygw().await;
    let model: Vec<u8> = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect();
    write_model(&store, &job(), model.clone()).await.unwrap();
    proxy.fail(Fault::CutShort, Method::GET, 3);
    assert!(read_model(&store, &job()).await.unwrap() == model);
    assert_eq!(proxy.pending(), 0);
    // For good: a fault with the object's name, within the policy's time.
    proxy.fail(Fault::CutShort, Method::GET, u64::MAX);
    let key = storage::keys::model(&job());
    let second = Duration::from_secs(1);
    let brief =
        RetryPolicy { first_wait: second / 100, wait_max: second / 10, deadline: second, attempt_max: second * 30 };
    let fault = retrying(brief, &key, || {
        async {
            let found = store.get(&Path::from(key.as_str())).await.map_err(|e| StoreFault::of(&key, e))?;
            found.bytes().await.map_err(|e| StoreFault::of(&key, e))
        }
        .boxed()
    });
    let fault = fault.await.unwrap_err();
    assert!(fault.is_transient() && fault.key() == key, "{}", told(&fault));
}

#[tokio::test]
async fn a_write_whose_answer_was_lost_is_written_once_more_and_whole() {
    let (proxy, store) = versitygw().await;
    proxy.fail(Fault::LostAnswer, Method::PUT, 2);
    let model = vec![3; 2 << 20];
    write_model(&store, &job(), model.clone()).await.unwrap();
    assert_eq!(proxy.pending(), 0);
    assert_eq!(read_model(&store, &job()).await.unwrap(), model);
}

/// Nobody else's answer: the servers of these tests give credentials for a quarter of an hour at least.
#[tokio::test]
async fn expired_credentials_are_final_and_named() {
    let (proxy, store) = versitygw().await;
    proxy.fail(Fault::Expired, Method::GET, u64::MAX);
    let fault = read_model(&store, &job()).await.unwrap_err();
    assert!(told(&fault).contains("credentials") && told(&fault).contains("ExpiredToken"), "{}", told(&fault));
    assert_eq!(proxy.requests(), 1, "asking again does not help");
}

#[tokio::test]
async fn wrong_settings_are_final_and_named_on_both_servers() {
    let minio = minio().await;
    let versitygw = Proxy::before(&get("EBB_TEST_S3"), None).await;
    for (proxy, server) in [(&versitygw, "EBB_TEST_S3"), (&minio, "EBB_TEST_MINIO")] {
        let of = |part: &str| get(&format!("{server}_{part}"));
        let (access, secret, bucket) = (of("ACCESS"), of("SECRET"), of("BUCKET"));
        for (what, store, part) in [
            ("secret", store_at(&proxy.url, &access, "wrong-secret", &bucket, "us-east-1"), "SignatureDoesNotMatch"),
            ("key", store_at(&proxy.url, "nobody", &secret, &bucket, "us-east-1"), "InvalidAccessKeyId"),
            ("bucket", store_at(&proxy.url, &access, &secret, "no-such-bucket", "us-east-1"), "no such bucket"),
            ("region", store_at(&proxy.url, &access, &secret, &bucket, "mars-north-1"), "AuthorizationHeaderMalformed"),
        ] {
            let before = proxy.requests();
            let fault = probe(store.as_ref()).await.unwrap_err();
            assert!(!fault.is_transient() && told(&fault).contains(part), "{server} {what}: {}", told(&fault));
            assert!(!told(&fault).contains(&secret), "{server} {what}");
            assert_eq!(proxy.requests() - before, 1, "{server} {what}");
        }
    }
}
