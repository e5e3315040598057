//! The rule for abandoned uploads: on servers that refuse it, and on one that plays Amazon's part of keeping the document.

use crate::place::{Place, Server};
use aws_sdk_s3::types::{
    BucketLifecycleConfiguration, ExpirationStatus, LifecycleExpiration, LifecycleRule, LifecycleRuleFilter,
};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use storage_bucket::lifecycle::{DAYS, Outcome, setup};
use storage_bucket::{Access, Bucket, BucketAddress};

/// A rule of somebody else's.
const OTHER: &str = "<Rule><ID>theirs</ID><Filter><Prefix>logs/</Prefix></Filter><Status>Enabled</Status><Expiration><Days>30</Days></Expiration></Rule>";

/// Neither server here takes such a rule, and neither loses those it has by being asked.
#[tokio::test]
async fn a_server_that_refuses_the_rule_is_told_and_keeps_its_others() {
    for server in [Server::Versitygw, Server::Minio] {
        let place = Place::on(server).await;
        if server == Server::Minio {
            let expiration = LifecycleExpiration::builder().days(30).build();
            let rule = LifecycleRule::builder()
                .id("theirs")
                .status(ExpirationStatus::Enabled)
                .filter(LifecycleRuleFilter::builder().prefix("logs/").build())
                .expiration(expiration)
                .build()
                .unwrap();
            let document = BucketLifecycleConfiguration::builder().rules(rule).build().unwrap();
            let put = place.root.put_bucket_lifecycle_configuration().bucket(place.address.bucket());
            put.lifecycle_configuration(document).send().await.unwrap();
        }
        let bucket = place.bucket().await;
        let dry = setup(&bucket, true).await.unwrap().outcome;
        // versitygw knows no rules at all, so that even looking tells it; MinIO refuses this one only when it is sent.
        let expected = matches!(dry, Outcome::Refused { .. }) == (server == Server::Versitygw);
        assert!(expected && (server == Server::Versitygw || dry == Outcome::WouldAdd), "{server:?}: {dry:?}");
        let told = setup(&bucket, false).await.unwrap();
        // As docs/store.md has it: a server that answers otherwise by now may take the rule.
        let answer = if server == Server::Minio { "400 (InvalidArgument)" } else { "NotImplemented" };
        assert!(matches!(&told.outcome, Outcome::Refused { why } if why.contains(answer)), "{server:?}: {told:?}");
        if server == Server::Minio {
            let kept = place.root.get_bucket_lifecycle_configuration().bucket(place.address.bucket()).send().await;
            assert_eq!(kept.unwrap().rules()[0].id(), Some("theirs"));
            assert_eq!(told.other_rules, 1);
        }
    }
}

/// Keeps one document, as Amazon does.
async fn keep(State(document): State<Arc<Mutex<Option<String>>>>, request: Request) -> (StatusCode, String) {
    if request.uri().query().is_none_or(|query| !query.contains("lifecycle")) {
        return (StatusCode::NOT_FOUND, "<Error><Code>NoSuchKey</Code></Error>".to_owned());
    }
    if request.method() == Method::PUT {
        let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
        *document.lock().unwrap() = Some(String::from_utf8(body.to_vec()).unwrap());
        return (StatusCode::OK, String::new());
    }
    match document.lock().unwrap().clone() {
        Some(document) => (StatusCode::OK, document),
        None => (StatusCode::NOT_FOUND, "<Error><Code>NoSuchLifecycleConfiguration</Code></Error>".to_owned()),
    }
}

/// A 404 of anybody else's was taken for a bucket without rules, and the rules of others were gone.
#[tokio::test]
async fn rules_that_cannot_be_read_are_not_replaced() {
    for (code, written) in [("NoSuchLifecycleConfiguration", true), ("NoSuchKey", false), ("", false)] {
        let puts = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&puts);
        let endpoint = serve(Router::new().fallback(move |request: Request| async move {
            if request.method() == Method::PUT {
                counted.fetch_add(1, Ordering::SeqCst);
            }
            (StatusCode::NOT_FOUND, format!("<Error><Code>{code}</Code></Error>"))
        }));
        let bucket = Bucket::open(BucketAddress::parse("s3://b/ebb").unwrap(), &access(endpoint.await)).await.unwrap();
        let error = setup(&bucket, false).await.unwrap_err();
        assert_eq!(puts.load(Ordering::SeqCst) > 0, written, "{code}: {error:?}");
        let dry = setup(&bucket, true).await;
        assert_eq!(dry.is_ok(), written, "{code}: {dry:?}");
    }
}

/// A server of this test's on a port of its own; its URL.
pub async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    url
}

pub fn access(endpoint: String) -> Access {
    Access { endpoint: Some(endpoint), allow_http: true, ..Access::default() }.with_credentials("key", "secret", None)
}

#[tokio::test]
async fn the_rule_comes_once_and_others_stay() {
    let document = Arc::new(Mutex::new(None));
    let access = access(serve(Router::new().fallback(keep).with_state(Arc::clone(&document))).await);
    let bucket = |url: &'static str| Bucket::open(BucketAddress::parse(url).unwrap(), &access);
    let kept = || document.lock().unwrap().clone().unwrap_or_default();

    let ebb = bucket("s3://b/ebb").await.unwrap();
    assert_eq!(setup(&ebb, true).await.unwrap().outcome, Outcome::WouldAdd);
    assert_eq!(kept(), "", "a dry run changes nothing");
    assert_eq!(setup(&ebb, false).await.unwrap().outcome, Outcome::Added);
    assert!(
        kept().contains("<Prefix>ebb/</Prefix>") && kept().contains(&format!("<DaysAfterInitiation>{DAYS}<")),
        "{}",
        kept()
    );
    let once = kept();
    assert!(matches!(setup(&ebb, false).await.unwrap().outcome, Outcome::Present { .. }));
    assert_eq!(kept(), once);

    *document.lock().unwrap() = Some(format!("<LifecycleConfiguration>{OTHER}</LifecycleConfiguration>"));
    let told = setup(&ebb, false).await.unwrap();
    assert_eq!((told.other_rules, told.outcome), (1, Outcome::Added));
    for part in ["<ID>theirs</ID>", "<Prefix>logs/</Prefix>", "<Days>30</Days>", "ebb-abandoned-uploads ebb"] {
        assert!(kept().contains(part), "{part}: {}", kept());
    }
    // A second installation in the same bucket.
    assert_eq!(setup(&bucket("s3://b/other").await.unwrap(), false).await.unwrap().outcome, Outcome::Added);
    assert_eq!(kept().matches("<Rule>").count(), 3);
    *document.lock().unwrap() =
        Some(kept().replace(&format!("<DaysAfterInitiation>{DAYS}<"), "<DaysAfterInitiation>99<"));
    assert_eq!(setup(&ebb, false).await.unwrap().outcome, Outcome::Replaced);
}
