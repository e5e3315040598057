//! Abandoned uploads: found page by page, ended only if they are old or somebody asks for all.

use crate::place::{Place, Server};
use crate::proxy::Fault;
use crate::rules::{access, serve};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::Method;
use std::time::Duration;
use storage_bucket::uploads::{self, AGE_STANDARD, Outcome, UPLOADS_MAX};
use storage_bucket::{Bucket, BucketAddress};

async fn begin(place: &Place, key: &str) {
    place.root.create_multipart_upload().bucket(place.address.bucket()).key(key).send().await.unwrap();
}

#[tokio::test]
async fn old_ones_below_the_address_are_ended_and_no_others() {
    let place = Place::on(Server::Versitygw).await;
    let other = Place::on(Server::Versitygw).await;
    for name in ["jobs/a/model.safetensors", "jobs/b/model.safetensors", "x"] {
        begin(&place, &place.address.key(name)).await;
    }
    begin(&other, &other.address.key("jobs/a/model.safetensors")).await;
    let bucket = place.bucket().await;
    let found = uploads::list(&bucket, Duration::ZERO).await.unwrap();
    let keys: Vec<_> = found.uploads.iter().map(|u| u.key.clone()).collect();
    assert!(keys.len() == 3 && keys.iter().all(|key| key.starts_with(&place.address.key_prefix())), "{found:?}");
    assert!(found.uploads.iter().all(|u| u.age_s.is_some_and(|s| s < 600) && u.outcome == Outcome::Left), "{found:?}");

    let young = uploads::list(&bucket, AGE_STANDARD).await.unwrap();
    assert!(young.uploads.is_empty() && !young.more, "none of them is old: {young:?}");

    let ended = uploads::abort(&bucket, found.clone()).await;
    assert!(ended.uploads.iter().all(|u| u.outcome == Outcome::Aborted), "{ended:?}");
    assert!(uploads::list(&bucket, Duration::ZERO).await.unwrap().uploads.is_empty());
    // Ended by somebody else in between: gone is gone.
    let again = uploads::abort(&bucket, found).await;
    assert!(again.uploads.iter().all(|u| u.outcome == Outcome::Aborted), "{again:?}");
    let elsewhere = other.bucket().await;
    let left = uploads::list(&elsewhere, Duration::ZERO).await.unwrap();
    assert_eq!(left.uploads.len(), 1);
    uploads::abort(&elsewhere, left).await;
}

/// As many pages of a thousand young uploads, then one with an old one.
async fn pages(State(young): State<usize>, request: Request) -> String {
    let marker = request.uri().query().unwrap_or("").split('&').find_map(|field| field.strip_prefix("key-marker="));
    let page: usize = marker.map_or(0, |marker| marker.parse().unwrap());
    let upload = |key: String, begun: &str| {
        format!("<Upload><Key>{key}</Key><UploadId>1</UploadId><Initiated>{begun}</Initiated></Upload>")
    };
    let uploads: String = if page < young {
        (0..1_000).map(|number| upload(format!("{page}-{number}"), "2999-01-01T00:00:00.000Z")).collect()
    } else {
        upload("old".to_owned(), "2020-01-01T00:00:00.000Z")
    };
    let next = if page < young { format!("<NextKeyMarker>{}</NextKeyMarker>", page + 1) } else { String::new() };
    let more = page < young;
    format!("<ListMultipartUploadsResult><IsTruncated>{more}</IsTruncated>{next}{uploads}</ListMultipartUploadsResult>")
}

/// A run looked at so many and no further, and the next one at the same.
#[tokio::test]
async fn old_ones_are_found_behind_any_number_of_young_ones() {
    let young = UPLOADS_MAX / 1_000 + 1;
    let endpoint = serve(Router::new().fallback(pages).with_state(young)).await;
    let bucket = Bucket::open(BucketAddress::parse("s3://b").unwrap(), &access(endpoint)).await.unwrap();
    let found = uploads::list(&bucket, AGE_STANDARD).await.unwrap();
    let keys: Vec<&str> = found.uploads.iter().map(|upload| upload.key.as_str()).collect();
    assert!(keys == ["old"] && !found.more, "{keys:?}");
    let all = uploads::list(&bucket, Duration::ZERO).await.unwrap();
    assert!(all.more && all.uploads.len() == UPLOADS_MAX, "{}", all.uploads.len());
}

#[tokio::test]
async fn one_that_cannot_be_ended_says_so() {
    let place = Place::on(Server::Versitygw).await;
    begin(&place, &place.address.key("x")).await;
    let bucket = place.bucket().await;
    let found = uploads::list(&bucket, Duration::ZERO).await.unwrap();
    place.proxy.fail(Fault::SlowDown, Method::DELETE, u64::MAX);
    let failed = uploads::abort(&bucket, found.clone()).await;
    assert!(matches!(&failed.uploads[0].outcome, Outcome::Failed(why) if why.contains("slow down")), "{failed:?}");
    place.proxy.fail(Fault::SlowDown, Method::DELETE, 0);
    uploads::abort(&bucket, found).await;
}
