//! Uploads in a real store: what no job names goes, what may still be wanted stays, whoever it is of.

use crate::support::{CELL, Folded, Secrets, WAIT_MAX, command, config, controller};
use controller_server::{ControllerConfig, start};
use events_log::{EventLog, MemoryLog, Stream};
use events_schema::batch::{EventRecord, from_bytes};
use events_schema::command::Command;
use events_schema::fact::Fact;
use events_schema::job::JobSpec;
use events_schema::{Digest, JobId, Offset};
use object_store::ObjectStore;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use storage::keys::Upload;

/// More than anything has to be old for, and less.
const LONG_AGO: Duration = Duration::from_secs(8 * 86_400);
const LATELY: Duration = Duration::from_secs(6 * 86_400);
/// Of somebody else who keeps things in the same store.
const NEIGHBOUR: u64 = 7;

struct Place {
    folder: tempfile::TempDir,
    store: Arc<dyn ObjectStore>,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = storage::open_store(&format!("file://{}", folder.path().display())).unwrap();
        Self { folder, store }
    }

    fn put(&self, key: &str, text: &str, ago: Duration) {
        let path = self.folder.path().join(key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(SystemTime::now() - ago).unwrap();
    }

    /// Code that an installation noted so long ago.
    async fn upload(&self, text: &str, installation: u64, ago: Duration) -> Upload {
        let upload = Upload::Code(Digest::of(text.as_bytes()));
        storage::uploads::note(&*self.store, upload, installation).await.unwrap();
        self.put(&upload.object(), text, ago);
        self.put(&upload.note(installation), "", ago);
        upload
    }

    fn has(&self, key: &str) -> bool {
        self.folder.path().join(key).exists()
    }
}

async fn installation(log: &Arc<dyn EventLog>) -> u64 {
    let first = log.read(Stream::Events, CELL, Offset(0), 1 << 20).await.unwrap().remove(0);
    match from_bytes(&first.bytes).unwrap() {
        EventRecord::Claim { incarnation, .. } => incarnation,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn uploads_that_no_job_names_are_swept_up_and_those_of_others_stay() {
    let log: Arc<dyn EventLog> = Arc::new(MemoryLog::new());
    // The claim of the first controller names the installation.
    controller(&log, "first").await.shutdown().await;
    let (place, own) = (Place::new(), installation(&log).await);
    let unwanted = place.upload("unwanted", own, LONG_AGO).await;
    let waiting = place.upload("waiting", own, LATELY).await;
    let named = place.upload("named", own, LONG_AGO).await;
    // As of a job of a build that made no notes; another installation looks at the notes alone.
    std::fs::remove_file(place.folder.path().join(named.note(own))).unwrap();
    let shared = place.upload("shared", own, LONG_AGO).await;
    place.upload("shared", NEIGHBOUR, LONG_AGO).await;
    let foreign = place.upload("foreign", NEIGHBOUR, LONG_AGO).await;
    let of_an_earlier_build = Upload::Code(Digest::of(b"earlier"));
    place.put(&of_an_earlier_build.object(), "earlier", LONG_AGO);
    let Upload::Code(code) = named else { unreachable!() };
    let model = json!({"kind": "command", "command": ["train"], "code": code.to_string(), "elastic": "fixed"});
    let spec = JobSpec::parse(&json!({"name": "gang", "model": model, "workers": {"max": 1}})).unwrap();
    let job = JobId::parse("job-a").unwrap();
    // Not decided when the next controller begins.
    command(&log, "submit", Command::SubmitJob { job, spec: Box::new(spec), body_digest: Digest::of(b"") }).await;

    let secrets = Secrets::new();
    let config = ControllerConfig { store: Arc::clone(&place.store), ..config(&log, "second", &secrets) };
    let controller = start(config).await.unwrap();
    let swept = async {
        loop {
            let end = log.end(Stream::Events, CELL).await.unwrap();
            let folded = Folded::read(&log).await;
            let swept = folded.facts().find_map(|fact| match fact {
                Fact::ObjectsSwept { objects, bytes } => Some((*objects, *bytes)),
                _ => None,
            });
            if let Some(swept) = swept {
                return swept;
            }
            log.wait(Stream::Events, CELL, end).await.unwrap();
        }
    };
    let swept = tokio::time::timeout(WAIT_MAX, swept).await.unwrap();
    controller.shutdown().await;
    assert_eq!(swept, (1, "unwanted".len() as u64));
    assert!(!place.has(&unwanted.object()) && !place.has(&unwanted.note(own)));
    for kept in [waiting, named, shared, foreign, of_an_earlier_build] {
        assert!(place.has(&kept.object()), "{kept:?} is gone");
    }
    assert!(place.has(&waiting.note(own)) && place.has(&named.note(own)) && place.has(&shared.note(NEIGHBOUR)));
    assert!(!place.has(&shared.note(own)), "it is the neighbour's alone now");
}
