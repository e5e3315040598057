//! Turns of the sweep over a store that tells of each request, and in which something happens just before it.
#![allow(clippy::unwrap_used)]

use super::*;
use controller_cell::{Committed, Positions};
use events_log::MemoryLog;
use events_schema::fact::Fact;
use events_schema::job::JobSpec;
use events_schema::{Cell, CommandId, Digest, JobId, Offset, TenantId, Term, TimeMs};
use object_store::Result;
use object_store::local::LocalFileSystem;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;
use storage::watched::WatchedStore;
use tokio::sync::watch;

const OWN: u64 = 1;
const NEIGHBOUR: u64 = 7;
/// More than anything has to be old for.
const LONG_AGO: Duration = Duration::from_secs(8 * 86_400);

/// A folder, and a sweep of the installation [`OWN`] over it.
struct Place {
    folder: tempfile::TempDir,
    store: Arc<WatchedStore>,
    sweep: Sweep,
    /// Somebody has to know what counts.
    _committed: watch::Sender<Option<Committed>>,
}

impl Place {
    /// With a job for each of these uploads of code.
    fn with_jobs(named: &[Upload], happens: impl Fn(&Files, &str) -> Result<()> + Send + Sync + 'static) -> Self {
        let mut state = State::new(Cell(0));
        named.iter().enumerate().for_each(|(number, upload)| state.apply(TimeMs(1), &accepted(number, *upload)));
        let inputs = Positions::default();
        let committed = Committed { state, term: Term(1), position: Offset(1), inputs, installation: Some(OWN) };
        let (known, committed) = watch::channel(Some(committed));
        let folder = tempfile::tempdir().unwrap();
        let files = Files(folder.path().to_owned());
        let inner = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
        let store = WatchedStore::new(Arc::new(inner), move |request| happens(&files, request));
        let sweep = Sweep { store: store.clone(), log: Arc::new(MemoryLog::new()), cell: Cell(0), committed };
        Self { folder, store, sweep, _committed: known }
    }

    fn files(&self) -> Files {
        Files(self.folder.path().to_owned())
    }

    /// Whether the turn was full, how many objects are gone, and what was asked.
    async fn turn(&self) -> (bool, u64, Vec<String>) {
        let mut swept = Swept::default();
        let is_full = self.sweep.turn(&mut swept).await.unwrap();
        (is_full, swept.objects, self.store.heard())
    }
}

/// What lies in a folder, written past the store.
struct Files(PathBuf);

impl Files {
    fn put(&self, key: &str, ago: Duration) {
        let path = self.0.join(key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "").unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(SystemTime::now() - ago).unwrap();
    }

    /// Code that the installation noted long ago.
    fn put_noted(&self, upload: Upload) {
        self.put(&upload.object(), LONG_AGO);
        self.put(&upload.note(OWN), LONG_AGO);
    }

    fn has(&self, key: &str) -> bool {
        self.0.join(key).exists()
    }
}

fn uploads(count: usize) -> Vec<Upload> {
    (0..count).map(|number| Upload::Code(Digest::of(&number.to_le_bytes()))).collect()
}

fn accepted(number: usize, upload: Upload) -> Fact {
    let Upload::Code(code) = upload else { unreachable!("jobs here name code") };
    let model = json!({"kind": "command", "command": ["train"], "code": code.to_string(), "elastic": "fixed"});
    let spec = JobSpec::parse(&json!({"name": "gang", "model": model, "workers": {"max": 1}})).unwrap();
    Fact::JobAccepted {
        job: JobId::parse(&format!("job-{number}")).unwrap(),
        tenant: TenantId::parse("local").unwrap(),
        command: CommandId::parse(&format!("cmd-{number}")).unwrap(),
        spec: Box::new(spec),
        body_digest: Digest::of(b""),
    }
}

fn nothing(_: &Files, _: &str) -> Result<()> {
    Ok(())
}

#[tokio::test]
async fn what_is_noted_costs_a_listing_and_no_more() {
    let named = uploads(3);
    let place = Place::with_jobs(&named, nothing);
    named.iter().for_each(|upload| place.files().put_noted(*upload));
    assert_eq!(place.turn().await, (false, 0, Vec::new()));
}

#[tokio::test]
async fn what_jobs_name_is_noted_a_turn_at_a_time() {
    let named = uploads(UPLOADS_PER_TURN_MAX + 1);
    let place = Place::with_jobs(&named, nothing);
    let noted = || named.iter().filter(|upload| place.files().has(&upload.note(OWN))).count();
    assert!(place.turn().await.0);
    assert_eq!(noted(), UPLOADS_PER_TURN_MAX);
    let (is_full, _, asked) = place.turn().await;
    assert!(!is_full && asked.len() == 1 && asked[0].starts_with("PUT uploads/"), "{asked:?}");
    assert_eq!(noted(), named.len());
}

/// A note that the listing comes to when a turn is full already is one all the same.
#[tokio::test]
async fn a_full_turn_goes_through_all_notes() {
    let all = uploads(UPLOADS_PER_TURN_MAX + 9);
    let (named, unnamed) = all.split_at(8);
    let place = Place::with_jobs(named, nothing);
    all.iter().for_each(|upload| place.files().put_noted(*upload));
    let left = || unnamed.iter().filter(|upload| place.files().has(&upload.object())).count();
    let (is_full, objects, asked) = place.turn().await;
    assert_eq!((is_full, objects, left()), (true, UPLOADS_PER_TURN_MAX as u64, 1));
    assert!(asked.iter().all(|request| !request.starts_with("PUT")), "{asked:?}");
    let (is_full, objects, _) = place.turn().await;
    assert_eq!((is_full, objects, left()), (false, 1, 0));
    assert!(named.iter().all(|upload| place.files().has(&upload.object()) && place.files().has(&upload.note(OWN))));
}

/// An unwanted upload, which is wanted just before this request for it.
fn wanted_before(request: impl Fn(Upload) -> String) -> (Place, Upload) {
    let upload = uploads(1)[0];
    let awaited = request(upload);
    let place = Place::with_jobs(&[], move |files, request| {
        if request == awaited {
            files.put(&upload.note(OWN), Duration::ZERO);
        }
        Ok(())
    });
    place.files().put_noted(upload);
    place.files().put(&Upload::Tensors(Digest::of(b"the neighbour's")).note(NEIGHBOUR), LONG_AGO);
    (place, upload)
}

#[tokio::test]
async fn what_is_wanted_while_others_are_asked_stays() {
    for request in [|upload: Upload| upload.note(NEIGHBOUR), |upload: Upload| upload.object()] {
        let (place, upload) = wanted_before(|upload| format!("GET {}", request(upload)));
        let (_, objects, asked) = place.turn().await;
        assert_eq!(objects, 0, "{asked:?}");
        assert!(place.files().has(&upload.object()) && place.files().has(&upload.note(OWN)), "{asked:?}");
    }
}

/// Who looks for it after that does not find it, and uploads it again: then it is noted.
#[tokio::test]
async fn a_note_that_is_newer_than_the_last_look_stays() {
    let (place, upload) = wanted_before(|upload| format!("DELETE {}", upload.object()));
    assert_eq!(place.turn().await.1, 1);
    assert!(!place.files().has(&upload.object()) && place.files().has(&upload.note(OWN)));
}

/// The look at the note was before the first try.
#[tokio::test]
async fn a_deletion_that_fails_is_not_tried_again() {
    let upload = uploads(1)[0];
    let place = Place::with_jobs(&[], move |_, request| match request == format!("DELETE {}", upload.object()) {
        true => Err(object_store::Error::Generic { store: "watched", source: "down".into() }),
        false => Ok(()),
    });
    place.files().put_noted(upload);
    assert!(place.sweep.turn(&mut Swept::default()).await.is_err());
    let deletions = place.store.heard().iter().filter(|request| request.starts_with("DELETE")).count();
    assert!(deletions == 1 && place.files().has(&upload.object()) && place.files().has(&upload.note(OWN)));
}
