//! What the check, the rule and the sweep of uploads say about real S3 servers, with every fault that an operator meets: wrong settings,
//! single rights that are missing, servers that are busy, far or late. Each test works under a prefix of its own and looks, as root,
//! whether anything was left.
//!
//! Wants EBB_TEST_S3 and EBB_TEST_MINIO with their companions in the environment; `infra/servers/s3.sh` and `minio.sh` start servers and
//! print them.
#![allow(clippy::unwrap_used)]

mod place;
#[path = "../../../tests/storage/proxy.rs"]
mod proxy;
mod rules;
mod uploads;

use aws_smithy_async::time::{SharedTimeSource, TimeSource};
use axum::http::Method;
use place::{Place, Server};
use proxy::Fault;
use std::time::{Duration, SystemTime};
use storage_bucket::check::{FOLDER, check};
use storage_bucket::report::{Finding, Item, Report, Verdict};
use storage_bucket::{Access, BucketAddress};

fn finding(report: &Report, item: Item) -> &Finding {
    report.checks.iter().find(|finding| finding.item == item).unwrap()
}

fn failed(report: &Report) -> Vec<Item> {
    report.checks.iter().filter(|f| f.verdict == Verdict::Failed).map(|f| f.item).collect()
}

/// As the caller that also asks the client of services.
fn with_services(report: Report) -> Report {
    report.with_services(None)
}

#[tokio::test]
async fn real_servers_have_what_ebb_needs() {
    for server in [Server::Versitygw, Server::Minio] {
        let place = Place::on(server).await;
        let report = with_services(place.check(&place.access).await);
        assert!(report.usable && failed(&report).is_empty(), "{server:?}: {report:#?}");
        assert!(report.checks.iter().all(|f| f.verdict != Verdict::NotTried), "{report:#?}");
        for item in [Item::PutIfAbsent, Item::PutIfUnchanged, Item::UploadConditions, Item::Clock, Item::CleanUp] {
            assert_eq!(finding(&report, item).verdict, Verdict::Ok, "{server:?}: {report:#?}");
        }
        assert!(finding(&report, Item::Versioning).found.contains("off"), "{report:#?}");
        place.assert_empty().await;
    }
}

/// MinIO lists uploads by their whole key only; a check says so, because the sweep of uploads is blind there.
#[tokio::test]
async fn a_server_whose_uploads_cannot_be_swept_is_told() {
    let place = Place::on(Server::Minio).await;
    let found = finding(&place.check(&place.access).await, Item::UploadList).clone();
    assert!(found.verdict == Verdict::Note && found.found.contains("whole key only"), "{found:?}");
    let place = Place::on(Server::Versitygw).await;
    assert_eq!(finding(&place.check(&place.access).await, Item::UploadList).verdict, Verdict::Ok);
}

/// A write that happened although its answer was lost is repeated, and the repetition of a conditional one is refused: told as odd at
/// worst, never as a server that honours nothing.
#[tokio::test]
async fn lost_answers_do_not_make_a_good_server_a_bad_one() {
    let place = Place::on(Server::Versitygw).await;
    place.proxy.fail(Fault::LostAnswer, Method::PUT, 1);
    let report = with_services(place.check(&place.access).await);
    assert!(report.usable && place.proxy.pending() == 0, "{report:#?}");
    place.assert_empty().await;
}

/// An upload that was begun although the answer was lost is one that nobody here knows of.
#[tokio::test]
async fn an_upload_whose_beginning_was_not_answered_is_given_up() {
    for server in [Server::Versitygw, Server::Minio] {
        let place = Place::on(server).await;
        place.proxy.fail_query(Fault::LostAnswer, Method::POST, "uploads", 1);
        let report = check(place.address.clone(), &place.access, "run").await;
        assert!(place.proxy.pending() == 0 && finding(&report, Item::CleanUp).verdict == Verdict::Ok, "{report:#?}");
        place.assert_empty().await;
        // MinIO lists by whole keys.
        let uploads = place.root.list_multipart_uploads().bucket(place.address.bucket());
        let uploads = uploads.prefix(place.address.key(&format!("{FOLDER}/run/upload"))).send().await.unwrap();
        assert!(uploads.uploads().is_empty(), "{server:?}: {uploads:?}");
    }
}

/// A report that nothing is left has to have looked, also where nobody says whether the bucket has versions.
#[tokio::test]
async fn old_versions_go_also_where_the_setting_may_not_be_read() {
    let mut place = Place::on(Server::Minio).await;
    place.address = place.versioned_bucket().await;
    let access = place.session(&denying("s3:GetBucketVersioning")).await;
    let report = place.check(&access).await;
    assert_eq!(finding(&report, Item::CleanUp).verdict, Verdict::Ok, "{report:#?}");
    let versions = place.root.list_object_versions().bucket(place.address.bucket()).send().await.unwrap();
    assert!(versions.versions().is_empty() && versions.delete_markers().is_empty(), "{versions:?}");
    place.root.delete_bucket().bucket(place.address.bucket()).send().await.unwrap();
}

/// One right after the other, denied by the policy of a session: the report names that right, and nothing is left.
#[tokio::test]
async fn a_missing_right_is_named_and_nothing_is_left() {
    let cases: [(&str, &[Item], bool); 8] = [
        ("s3:PutObject", &[Item::Put, Item::UploadBegin], false),
        ("s3:GetObject", &[Item::Get, Item::Range], false),
        ("s3:ListBucket", &[Item::List], false),
        ("s3:DeleteObject", &[Item::Delete], false),
        ("s3:AbortMultipartUpload", &[Item::UploadAbort], false),
        ("s3:ListBucketMultipartUploads", &[Item::UploadList], true),
        ("s3:GetBucketVersioning", &[], true),
        ("s3:GetLifecycleConfiguration", &[], true),
    ];
    let place = Place::on(Server::Minio).await;
    for (right, items, usable) in cases {
        let access = place.session(&denying(right)).await;
        let report = with_services(place.check(&access).await);
        let found = failed(&report);
        assert!(items.iter().all(|item| found.contains(item)), "{right}: {report:#?}");
        assert_eq!(report.usable, usable, "{right}: {report:#?}");
        for item in items {
            let advice = &finding(&report, *item).advice;
            assert!(advice.contains(right) || item.right() != right, "{right}: {advice}");
        }
        let noted = report.checks.iter().filter(|f| f.item.right() == right).all(|f| f.verdict != Verdict::Ok);
        assert!(noted, "{right}: {report:#?}");
        place.assert_empty().await;
    }
}

fn denying(right: &str) -> String {
    let all = r#""Resource":["arn:aws:s3:::*"]"#;
    format!(
        r#"{{"Version":"2012-10-17","Statement":[{{"Effect":"Allow","Action":["s3:*"],{all}}},{{"Effect":"Deny","Action":["{right}"],{all}}}]}}"#
    )
}

#[tokio::test]
async fn wrong_settings_are_told_apart() {
    for server in [Server::Versitygw, Server::Minio] {
        let place = Place::on(server).await;
        let (key, secret) = (place.key.as_str(), place.secret.as_str());
        let region = Access { region: Some("mars-north-1".to_owned()), ..place.access.clone() };
        let nobody = Access { endpoint: Some("http://127.0.0.1:9".to_owned()), ..place.access.clone() };
        let with_password = place.proxy.url.replace("://", "://user:wrong-secret@");
        let plaintext = Access { endpoint: Some(with_password), allow_http: false, ..place.access.clone() };
        for (what, access, item, part) in [
            (
                "secret",
                place.access.clone().with_credentials(key, "wrong-secret", None),
                Item::Credentials,
                "AWS_SECRET_ACCESS_KEY",
            ),
            (
                "key",
                place.access.clone().with_credentials("nobody", secret, None),
                Item::Credentials,
                "AWS_ACCESS_KEY_ID",
            ),
            ("region", region, Item::Region, "AWS_REGION"),
            ("endpoint", nobody, Item::Server, "AWS_ENDPOINT"),
            ("plaintext", plaintext, Item::Server, "AWS_ALLOW_HTTP"),
        ] {
            let report = place.check(&access).await;
            assert_eq!(failed(&report), [item], "{server:?} {what}: {report:#?}");
            assert!(finding(&report, item).advice.contains(part) && !report.usable, "{server:?} {what}: {report:#?}");
            let told = serde_json::to_string(&report).unwrap();
            assert!(!told.contains(secret) && !told.contains("wrong-secret"), "{server:?} {what}: a secret was told");
        }
        let missing = BucketAddress::parse("s3://no-such-bucket/x").unwrap();
        let report = check(missing, &place.access, "run").await;
        assert_eq!(failed(&report), [Item::Bucket], "{server:?}: {report:#?}");
        assert!(finding(&report, Item::Bucket).advice.contains("create it"), "{report:#?}");
        // A session's key without its token.
        if server == Server::Minio {
            let session = place.session(&denying("s3:PutObject")).await.credentials.unwrap();
            let access =
                place.access.clone().with_credentials(session.access_key_id(), session.secret_access_key(), None);
            assert_eq!(failed(&place.check(&access).await), [Item::Credentials]);
        }
    }
}

/// What a machine with a wrong clock sends.
#[derive(Debug)]
struct Ahead(Duration);

impl TimeSource for Ahead {
    fn now(&self) -> SystemTime {
        SystemTime::now() + self.0
    }
}

#[tokio::test]
async fn a_wrong_clock_is_told_before_and_after_signatures_fail() {
    for server in [Server::Versitygw, Server::Minio] {
        let place = Place::on(server).await;
        let ahead = |minutes: u64| {
            let clock = SharedTimeSource::new(Ahead(Duration::from_secs(minutes * 60)));
            Access { clock, ..place.access.clone() }
        };
        let report = place.check(&ahead(5)).await;
        let found = finding(&report, Item::Clock);
        assert!(found.verdict == Verdict::Note && found.found.contains("behind"), "{server:?}: {found:?}");
        assert_eq!(finding(&report, Item::Put).verdict, Verdict::Ok);
        let report = place.check(&ahead(60)).await;
        assert_eq!(failed(&report), [Item::Clock], "{server:?}: {report:#?}");
        assert!(finding(&report, Item::Clock).advice.contains("NTP"), "{report:#?}");
    }
}

#[tokio::test]
async fn expired_credentials_are_told() {
    let place = Place::on(Server::Versitygw).await;
    place.proxy.fail(Fault::Expired, Method::GET, u64::MAX);
    let report = place.check(&place.access).await;
    let found = finding(&report, Item::Credentials);
    assert!(found.verdict == Verdict::Failed && found.found.contains("expired"), "{report:#?}");
}

/// A busy moment is no finding; a server that always says so is one, after a few requests.
#[tokio::test]
async fn a_busy_server_is_waited_for_and_then_told() {
    let place = Place::on(Server::Versitygw).await;
    place.proxy.fail(Fault::SlowDown, Method::PUT, 2);
    let report = with_services(place.check(&place.access).await);
    assert!(report.usable && place.proxy.pending() == 0, "{report:#?}");
    let before = place.proxy.requests();
    place.proxy.fail(Fault::SlowDown, Method::GET, u64::MAX);
    let report = place.check(&place.access).await;
    assert!(
        failed(&report) == [Item::Server] && finding(&report, Item::Server).found.contains("slow down"),
        "{report:#?}"
    );
    assert!(place.proxy.requests() - before <= 3, "one request with its repetitions");
    place.proxy.fail(Fault::SlowDown, Method::GET, 0);
    place.assert_empty().await;
}

/// Bodies that end early on every read: told as such, and what was written goes again.
#[tokio::test]
async fn answers_that_are_cut_short_are_told() {
    let place = Place::on(Server::Versitygw).await;
    place.proxy.fail(Fault::CutShort, Method::GET, u64::MAX);
    let report = place.check(&place.access).await;
    assert!(!report.usable, "{report:#?}");
    place.proxy.fail(Fault::CutShort, Method::GET, 0);
    place.assert_empty().await;
}
