//! What a client does when nobody, somebody mute or a stranger answers, and what it never tells.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::{WantedSlots, canned};
use gateway_api::ProblemKind;
use tokio::net::TcpListener;

#[tokio::test]
async fn only_a_connection_that_was_never_there_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    // Takes what comes and ends without a word.
    let mute = tokio::spawn(async move {
        for _ in 0..2 {
            let (stream, _) = listener.accept().await.unwrap();
            stream.readable().await.unwrap();
        }
    });
    let read = client.get::<Value>("/v1/jobs").await.unwrap_err();
    assert!(matches!(read, ClientError::NoAnswer { within: None, may_have_effect: false, .. }), "{read}");
    let changed = client.ask::<Value>(Method::POST, "/v1/jobs", Some(Body::json(&Value::Null)), &[]).await.unwrap_err();
    assert!(changed.to_string().contains("may still have an effect"), "{changed}");
    mute.await.unwrap();
    let nobody = client.ask::<Value>(Method::POST, "/v1/jobs", Some(Body::json(&Value::Null)), &[]).await.unwrap_err();
    assert!(matches!(nobody, ClientError::Unreachable { .. }), "{nobody}");
}

#[tokio::test]
async fn https_is_spoken_and_other_schemes_are_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(&format!("https://localhost:{}", listener.local_addr().unwrap().port())).unwrap();
    let greeted = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut first = [0; 3];
        tokio::io::AsyncReadExt::read_exact(&mut stream, &mut first).await.unwrap();
        first
    });
    assert!(client.get::<Value>("/v1/jobs").await.is_err());
    // The beginning of a TLS handshake.
    assert_eq!(greeted.await.unwrap()[..2], [0x16, 0x03]);
    for wrong in ["ftp://a", "unix:/run/ebb", "http:///"] {
        let refused = Client::new(wrong).unwrap_err().to_string();
        assert!(refused.contains("http://HOST:PORT") || refused.contains("no URL"), "{refused}");
    }
}

/// A proxy before the service may want a password, which then stood in every failure.
#[tokio::test]
async fn a_password_in_the_address_is_never_shown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = Client::new(&format!("http://user:secret@{address}/")).unwrap();
    let failure = client.get::<Value>("/v1/jobs").await.unwrap_err();
    let mut told = vec![client.base().to_owned(), failure.to_string(), format!("{failure:?}")];
    let mut cause = std::error::Error::source(&failure);
    while let Some(source) = cause {
        told.push(source.to_string());
        cause = source.source();
    }
    told.push(Client::new("ftp://user:secret@host").unwrap_err().to_string());
    assert!(told.iter().all(|text| !text.contains("secret")), "{told:?}");
    assert!(told[1].contains(&address.to_string()), "{told:?}");
}

/// Its page is HTML; it says nothing of what is behind it, which may be there again in a moment.
#[tokio::test]
async fn a_proxy_whose_service_is_away_is_asked_again() {
    let page = "<html><head><title>502 Bad Gateway</title></head><body><hr><center>nginx</center></body></html>";
    let proxy =
        |status: &str| canned::answer(status, page).replacen("content-type: application/json", "server: nginx/1.26", 1);
    let answers = ["502 Bad Gateway", "503 Service Unavailable", "504 Gateway Time-out"].map(proxy).to_vec();
    let strange = [canned::answer("404 Not Found", page), canned::answer("200 OK", r#"{"id": "job-a"}"#)];
    let (address, mut heads) = canned::serve([answers, strange.to_vec()].concat(), false).await;
    let client = Client::new(&address).unwrap();
    let read = client.get::<Value>("/v1/jobs").await.unwrap_err();
    assert!(read.may_pass() && read.to_string().contains("(nginx/1.26) answered `502 Bad Gateway`"), "{read}");
    assert!(!read.to_string().contains("effect"), "{read}");
    let changed = client.ask::<Value>(Method::POST, "/v1/jobs", Some(Body::json(&Value::Null)), &[]).await.unwrap_err();
    assert!(changed.may_pass() && changed.to_string().contains("may still have an effect"), "{changed}");
    assert!(client.stream("/v1/events", &[]).await.unwrap_err().may_pass());
    let other = client.get::<Value>("/v1/jobs").await.unwrap_err();
    assert!(!other.may_pass() && other.to_string().contains("does not speak Ebb's API"), "{other}");
    for _ in 0..4 {
        heads.try_recv().unwrap();
    }
    assert!(client.get::<Value>("/v1/jobs/job-a").await.is_ok());
}

/// Then it is uploaded, which that service takes.
#[tokio::test]
async fn a_service_that_does_not_say_what_was_uploaded_has_nothing() {
    let refusal = |kind: ProblemKind| {
        let document = serde_json::to_string(&kind.document("as it is", Vec::new())).unwrap();
        canned::answer(&format!("{} Refused", kind.status()), &document)
    };
    let there = canned::answer("200 OK", r#"{"code": "c", "bytes": 7}"#);
    let kinds = [ProblemKind::MethodNotAllowed, ProblemKind::UnknownPath, ProblemKind::UnknownUpload];
    let answers = kinds.map(refusal).into_iter().chain([there, refusal(ProblemKind::NotReady)]).collect();
    let (address, _heads) = canned::serve(answers, false).await;
    let client = Client::new(&address).unwrap();
    for kind in kinds {
        assert_eq!(client.uploaded_code("c").await.unwrap(), None, "{kind:?}");
    }
    assert_eq!(client.uploaded_code("c").await.unwrap().unwrap().bytes, 7);
    assert!(client.uploaded_model("m").await.unwrap_err().may_pass());
}

#[tokio::test]
async fn a_wait_that_is_over_says_how_long_it_was() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let request = client.http.get(client.url("/v1/jobs"));
    let failure = client.whole("/v1/jobs", request, Duration::from_millis(20)).await.unwrap_err();
    assert!(failure.to_string().contains("within 20ms") && failure.may_pass(), "{failure}");
}

/// A download lasts as long as it takes, but nobody waits for one that does not go on.
#[tokio::test]
async fn what_is_read_as_it_comes_is_bounded_by_silence() {
    let begun = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf";
    let (address, _heads) = canned::serve(vec![String::new(), begun.to_owned()], true).await;
    let client = Client::with_silence(&address, &ClientOptions::default(), Duration::from_millis(50)).unwrap();
    for _ in 0..2 {
        let failure = client.download("/v1/jobs/a/model", &mut Vec::new()).await.unwrap_err();
        assert!(failure.to_string().contains("within 50ms") && failure.may_pass(), "{failure:?}");
    }
}

/// What is missing from a list that is cut would not be seen to be missing.
#[tokio::test]
async fn a_list_that_does_not_end_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let answering = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let page = br#"{"slots": [], "next_cursor": "on"}"#;
        let answer = [format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", page.len()).as_bytes(), page].concat();
        loop {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(tokio::io::AsyncReadExt::read_u8(&mut stream).await.unwrap());
            }
            tokio::io::AsyncWriteExt::write_all(&mut stream, &answer).await.unwrap();
        }
    });
    let failure = client.slots(&WantedSlots::default()).await.unwrap_err();
    assert!(failure.to_string().contains("does not seem to end"), "{failure}");
    answering.abort();
}

#[tokio::test]
async fn a_credential_goes_with_every_request_and_is_never_shown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = ClientOptions::default().with_bearer("s3cret.token\n").unwrap();
    let client = Client::with(&format!("http://{}", listener.local_addr().unwrap()), &options).unwrap();
    let asked = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(tokio::io::AsyncReadExt::read_u8(&mut stream).await.unwrap());
        }
        String::from_utf8(head).unwrap()
    });
    let failure = client.get::<Value>("/v1/jobs").await.unwrap_err();
    assert!(asked.await.unwrap().contains("authorization: Bearer s3cret.token\r\n"));
    let told = format!("{options:?} {client:?} {failure:?}");
    assert!(!told.contains("s3cret"), "{told}");
}

#[test]
fn a_credential_is_not_sent_where_others_could_read_it() {
    let options = ClientOptions::default().with_bearer("token").unwrap();
    for private in ["https://ebb.example.org", "http://127.0.0.1:7878", "http://[::1]:7878", "http://localhost:7878"] {
        Client::with(private, &options).unwrap();
    }
    for public in ["ebb.example.org", "10.0.0.1:7878", "localhost.example.org", "ebb.localhost"] {
        let refused = Client::with(&format!("http://{public}"), &options).unwrap_err().to_string();
        assert!(refused.contains("use https://"), "{refused}");
        for credential in ["user:secret", "secret"] {
            let refused = Client::new(&format!("http://{credential}@{public}")).unwrap_err().to_string();
            assert!(refused.contains("use https://") && !refused.contains("secret"), "{refused}");
        }
        Client::new(&format!("http://{public}")).unwrap();
    }
    Client::new("https://user:secret@ebb.example.org").unwrap();
    let both = Client::with("https://user:secret@ebb.example.org", &options).unwrap_err().to_string();
    assert!(both.contains("two credentials") && !both.contains("secret"), "{both}");
    assert!(ClientOptions::default().with_bearer("two words").is_err());
}

#[test]
fn a_file_without_certificates_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    let with = |file: &std::path::Path| {
        let options = ClientOptions::default().with_ca_file(file);
        Client::with("https://localhost", &options).unwrap_err().to_string()
    };
    assert!(with(&file).contains("ca.pem` cannot be read"));
    std::fs::write(&file, "hello").unwrap();
    assert!(with(&file).contains("BEGIN CERTIFICATE"));
}
