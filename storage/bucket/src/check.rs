//! Whether a bucket can do what Ebb needs: everything is tried, one thing at a time, with objects of a few bytes in a folder of its own,
//! which is empty again afterwards. Nothing is written before it is known that it can be deleted. Next: `lifecycle.rs`.

use crate::address::{Access, BucketAddress, REGION, without_password};
use crate::client::Bucket;
use crate::fault::Fault;
use crate::lifecycle;
use crate::probe::{Begun, Versioning, When};
use crate::report::{Findings, Item, Report, Verdict, usable};
use std::time::Duration;

/// The folder of checks, below the address.
pub const FOLDER: &str = "ebb-store-check";
/// All of a check, without its cleaning: a few dozen small requests, each bounded by itself, need seconds.
const CHECK_TIME_MAX: Duration = Duration::from_secs(120);
/// Cleaning up after it.
const CLEANING_TIME_MAX: Duration = Duration::from_secs(60);
/// Writers that race for one object; a server that lets two of so few win does it often.
const RACERS: usize = 8;
/// Looked at of one check, which makes fewer than this.
const UPLOADS_MAX: i32 = 100;
/// Left by checks that were killed; more are left to the next check.
const LEFTOVERS_MAX: i32 = 100;
/// No check lasts so long, so what is older is of one that was killed.
const LEFTOVER_AGE_S: i64 = 3_600;
/// Beyond this, ages and the ends of links are visibly wrong; signatures hold for 900.
const SKEW_S_MAX: i64 = 60;

const BODY: &[u8] = b"0123456789";
const OTHER_BODY: &[u8] = b"abcdefghij";
const RANGE: (u64, u64) = (2, 4);
const WRONG_TAG: &str = "\"00000000000000000000000000000000\"";

/// Tries everything. Ends within three minutes, whatever the server does. `run_name` has to be another one for every check.
pub async fn check(address: BucketAddress, access: &Access, run_name: &str) -> Report {
    let store = address.to_string();
    let endpoint = access.endpoint.as_deref().map_or("Amazon S3".to_owned(), without_password);
    let region = access.region.clone().unwrap_or_else(|| REGION.to_owned());
    let mut findings = Findings::default();
    match Bucket::open(address, access).await {
        Err(fault) => {
            let item = if matches!(fault, Fault::NoCredentials(_)) { Item::Credentials } else { Item::Server };
            findings.fault(item, &fault);
        }
        Ok(bucket) => {
            let folder = bucket.address.key(&format!("{FOLDER}/{run_name}/"));
            let mut run = Run { bucket, folder, region: region.clone(), findings, made: Vec::new(), open: Vec::new() };
            let ended = tokio::time::timeout(CHECK_TIME_MAX, run.everything()).await;
            if ended.is_err() {
                run.findings.stopped_by = format!("the check took longer than {} s", CHECK_TIME_MAX.as_secs());
            }
            if run.findings.verdict(Item::Delete).is_some()
                && tokio::time::timeout(CLEANING_TIME_MAX, run.clean_up()).await.is_err()
            {
                let found = format!("not done within {} s", CLEANING_TIME_MAX.as_secs());
                run.findings.failed(Item::CleanUp, found, format!("delete {} by hand", run.folder));
            }
            findings = run.findings;
        }
    }
    let checks = findings.in_order();
    Report { store, endpoint, region, usable: usable(&checks), checks }
}

struct Run {
    bucket: Bucket,
    /// Ends in a slash.
    folder: String,
    region: String,
    findings: Findings,
    /// Objects that were written, or may have been.
    made: Vec<String>,
    open: Vec<Begun>,
}

impl Run {
    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.folder)
    }

    async fn everything(&mut self) {
        if !self.greet().await {
            return;
        }
        self.look_at_settings().await;
        // On a key that is not there: what is written below has to go again.
        let deleted = self.bucket.delete(&self.key("absent")).await;
        if self.findings.outcome(Item::Delete, deleted, "allowed").is_none() {
            self.findings.stopped_by = "what it would write could not be deleted again".to_owned();
            return;
        }
        self.objects().await;
        self.conditions().await;
        self.uploads().await;
    }

    /// The first request, for an object that is not there: its refusal tells most about server, signature and bucket.
    async fn greet(&mut self) -> bool {
        let outcome = self.bucket.get(&self.key("absent"), None).await;
        let fault = outcome.err().unwrap_or(Fault::Condition);
        let findings = &mut self.findings;
        if !fault.is_answer()
            || matches!(fault, Fault::SlowDown { .. } | Fault::Other { .. } | Fault::Unsupported { .. })
        {
            findings.fault(Item::Server, &fault);
            return false;
        }
        findings.ok(Item::Server, "answers");
        match self.bucket.clock.ahead_s() {
            Some(ahead) if ahead.abs() > SKEW_S_MAX => {
                let found =
                    format!("the server's clock is {} s {}", ahead.abs(), if ahead > 0 { "ahead" } else { "behind" });
                findings.note(Item::Clock, found, Fault::Skewed.advice());
            }
            Some(ahead) => findings.ok(Item::Clock, format!("{ahead} s apart, to the second")),
            None => findings.note(Item::Clock, "the server does not tell its time", ""),
        }
        let failed = match fault {
            Fault::UnknownKey | Fault::WrongSecret | Fault::Expired | Fault::WrongToken => Item::Credentials,
            Fault::WrongRegion(_) => Item::Region,
            Fault::Skewed => Item::Clock,
            Fault::NoBucket => {
                findings.ok(Item::Credentials, self.bucket.identity.clone());
                Item::Bucket
            }
            _ => {
                findings.ok(Item::Credentials, self.bucket.identity.clone());
                findings.ok(Item::Region, self.region.clone());
                findings.ok(Item::Bucket, self.bucket.name().to_owned());
                return true;
            }
        };
        if failed == Item::Clock {
            let apart = self.bucket.clock.ahead_s().map(|ahead| format!(" ({} s)", ahead.abs())).unwrap_or_default();
            findings.failed(Item::Clock, format!("{fault}{apart}"), fault.advice());
        } else {
            findings.fault(failed, &fault);
        }
        false
    }

    async fn look_at_settings(&mut self) {
        const VERSIONS: &str = "let a life-cycle rule remove old versions (NoncurrentVersionExpiration), or every deleted checkpoint goes on costing";
        match self.bucket.versioning().await {
            Ok(Versioning::Off) => self.findings.ok(Item::Versioning, "off: what is deleted is gone, as Ebb expects"),
            Ok(Versioning::On) => {
                self.findings.note(Item::Versioning, "on: deleted checkpoints stay as old versions", VERSIONS)
            }
            Ok(Versioning::Suspended) => {
                self.findings.note(
                    Item::Versioning,
                    "suspended: versions of earlier days may still be there",
                    VERSIONS,
                );
            }
            Err(fault) => {
                self.findings.note(Item::Versioning, fault.to_string(), "nothing, Ebb does not need to know it")
            }
        }
        let sweep = "let a timer run `ebb store uploads URL --abort` once a day";
        match lifecycle::present(&self.bucket).await {
            Ok(Some(by)) => self.findings.ok(Item::AbandonedUploads, format!("given up by rule `{by}`")),
            Ok(None) => self.findings.note(
                Item::AbandonedUploads,
                "no rule gives them up",
                format!("run `ebb store setup URL`; where the server refuses the rule, {sweep}"),
            ),
            Err(fault) => self.findings.note(Item::AbandonedUploads, fault.to_string(), sweep),
        }
    }

    async fn objects(&mut self) {
        let key = self.key("object");
        self.made.push(key.clone());
        let put = self.bucket.put(&key, BODY, &When::Always).await;
        let written = self.findings.outcome(Item::Put, put, "allowed").is_some();
        let listed = self.bucket.keys(&self.folder, LEFTOVERS_MAX).await;
        if let Some(keys) = self.findings.outcome(Item::List, listed, "allowed")
            && written
            && !keys.iter().any(|(listed, _)| *listed == key)
        {
            let found = "a listing does not show an object that was just written";
            self.findings.failed(Item::List, found, "use a server with strongly consistent listings");
        }
        if !written {
            return;
        }
        let (first, last) = RANGE;
        let part = BODY.get(first as usize..=last as usize).unwrap_or_default();
        for (item, range, expected) in [(Item::Get, None, BODY), (Item::Range, Some(RANGE), part)] {
            let got = self.bucket.get(&key, range).await;
            if let Some(bytes) = self.findings.outcome(item, got, "allowed")
                && bytes != expected
            {
                let found = format!("{} other bytes came back than the {} asked for", bytes.len(), expected.len());
                self.findings.failed(
                    item,
                    found,
                    "do not keep models on this server; look for a proxy that rewrites answers",
                );
            }
        }
        let many = self.key("many");
        self.made.push(many.clone());
        if self.bucket.put(&many, BODY, &When::Always).await.is_ok() {
            match self.bucket.delete_in_bulk(&many).await {
                Ok(()) => self.findings.ok(Item::DeleteMany, "allowed"),
                Err(fault @ Fault::Denied) => self.findings.fault(Item::DeleteMany, &fault),
                Err(fault) => {
                    self.findings.failed(
                        Item::DeleteMany,
                        fault.to_string(),
                        "set AWS_DISABLE_BULK_DELETE=true for Ebb's services",
                    );
                }
            }
        }
    }

    async fn conditions(&mut self) {
        if self.findings.verdict(Item::Put) != Some(Verdict::Ok) {
            return;
        }
        self.put_if_absent().await;
        let key = self.key("object");
        let refused = self.bucket.put(&key, OTHER_BODY, &When::Tagged(WRONG_TAG.to_owned())).await;
        let tag = self.bucket.put(&key, BODY, &When::Always).await;
        let kept = match tag {
            Ok(tag) => self.bucket.put(&key, BODY, &When::Tagged(tag)).await,
            Err(fault) => Err(fault),
        };
        match (refused, kept) {
            (Err(Fault::Condition), Ok(_)) => self.findings.ok(Item::PutIfUnchanged, "honoured (If-Match)"),
            (Ok(_), _) => self.findings.note(
                Item::PutIfUnchanged,
                "If-Match is not honoured",
                "nothing, Ebb does not need it today",
            ),
            (Err(fault), _) => {
                self.findings.note(Item::PutIfUnchanged, fault.to_string(), "nothing, Ebb does not need it today")
            }
        }
    }

    async fn put_if_absent(&mut self) {
        const ADVICE: &str = "use a server, or a release of it, that honours If-None-Match: without it two leaders of a job can both write the checkpoint that counts";
        let taken = self.key("object");
        match self.bucket.put(&taken, OTHER_BODY, &When::Absent).await {
            Err(Fault::Condition) => {}
            Ok(_) => {
                return self.findings.failed(
                    Item::PutIfAbsent,
                    "If-None-Match is not honoured: an object was overwritten",
                    ADVICE,
                );
            }
            Err(fault) => return self.findings.failed(Item::PutIfAbsent, fault.to_string(), ADVICE),
        }
        let raced = self.key("raced");
        self.made.push(raced.clone());
        let attempts = (0..RACERS).map(|_| self.bucket.put(&raced, BODY, &When::Absent));
        let outcomes = futures::future::join_all(attempts).await;
        let winners = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        // A conflict is how Amazon tells losers of a race.
        let lost = |fault: &Fault| matches!(fault, Fault::Condition | Fault::Other { status: 409, .. });
        let odd = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).find(|fault| !lost(fault));
        match (winners, odd) {
            (1, None) => {
                self.findings.ok(Item::PutIfAbsent, format!("honoured (If-None-Match): one of {RACERS} writers won"))
            }
            (1, Some(fault)) => self.findings.note(
                Item::PutIfAbsent,
                format!("one of {RACERS} writers won, but: {fault}"),
                fault.advice(),
            ),
            _ => {
                self.findings.failed(Item::PutIfAbsent, format!("{winners} of {RACERS} writers of one key won"), ADVICE)
            }
        }
    }

    async fn uploads(&mut self) {
        let key = self.key("upload");
        self.made.push(key.clone());
        let begun = self.bucket.begin(&key).await;
        let Some(upload) = self.findings.outcome(Item::UploadBegin, begun, "allowed") else { return };
        self.open.push(upload.clone());
        self.list_uploads(&upload).await;
        let part = self.bucket.part(&upload, BODY).await;
        let part = self.findings.outcome(Item::UploadPart, part, "allowed");
        if let Some(part) = part {
            let completed = self.bucket.complete(&upload, &part, &When::Always).await;
            if self.findings.outcome(Item::UploadComplete, completed, "allowed").is_some() {
                self.open.clear();
                self.conditions_of_completion(&key).await;
            }
        }
        self.abort_upload(&key).await;
    }

    async fn list_uploads(&mut self, upload: &Begun) {
        let exact = self.bucket.uploads(&upload.key, UPLOADS_MAX).await;
        let below = self.bucket.uploads(&self.folder, UPLOADS_MAX).await;
        let is_in = |uploads: &[(Begun, Option<i64>)]| uploads.iter().any(|(listed, _)| listed.id == upload.id);
        match (exact, below) {
            (_, Ok(below)) if is_in(&below) => self.findings.ok(Item::UploadList, "allowed"),
            (Ok(exact), Ok(_)) if is_in(&exact) => self.findings.note(
                Item::UploadList,
                "the server lists uploads by their whole key only, so `ebb store uploads` finds none",
                "rely on the server's own removal of stale uploads (MinIO: after a day)",
            ),
            (Err(fault), _) | (_, Err(fault)) => self.findings.fault(Item::UploadList, &fault),
            (Ok(_), Ok(_)) => self.findings.note(
                Item::UploadList,
                "an upload that was just begun is not listed",
                "`ebb store uploads` cannot find abandoned uploads here",
            ),
        }
    }

    /// On a key that exists now: both conditions have to refuse. A refusal leaves the upload open.
    async fn conditions_of_completion(&mut self, key: &str) {
        let Ok(upload) = self.bucket.begin(key).await else { return };
        self.open.push(upload.clone());
        let Ok(part) = self.bucket.part(&upload, OTHER_BODY).await else { return };
        let mut findings = Vec::new();
        for (name, when) in [("If-None-Match", When::Absent), ("If-Match", When::Tagged(WRONG_TAG.to_owned()))] {
            match self.bucket.complete(&upload, &part, &when).await {
                Err(Fault::Condition) => {}
                Ok(_) => {
                    findings.push(format!("{name} is not honoured on completion"));
                    self.open.clear();
                    break;
                }
                Err(fault) => findings.push(format!("{name} on completion: {fault}")),
            }
        }
        if findings.is_empty() {
            self.findings.ok(Item::UploadConditions, "honoured (If-None-Match, If-Match)");
        } else {
            self.findings.note(Item::UploadConditions, findings.join("; "), "nothing, Ebb does not need it today");
        }
    }

    /// Gives up the upload that is open, or one more.
    async fn abort_upload(&mut self, key: &str) {
        if self.open.is_empty() {
            match self.bucket.begin(key).await {
                Ok(upload) => self.open.push(upload),
                Err(fault) => return self.findings.fault(Item::UploadAbort, &fault),
            }
        }
        let Some(upload) = self.open.last().cloned() else { return };
        let aborted = self.bucket.abort(&upload).await;
        if self.findings.outcome(Item::UploadAbort, aborted, "allowed").is_some() {
            self.open.pop();
        }
    }

    /// Takes up what is open without our knowledge: the server began it, and its answer was lost. Some servers list by prefix, others by whole
    /// keys only.
    async fn find_uploads(&mut self) -> Result<(), Fault> {
        let key = self.key("upload");
        if !self.made.contains(&key) {
            return Ok(());
        }
        for prefix in [&self.folder, &key] {
            let found = self.bucket.uploads(prefix, UPLOADS_MAX).await?;
            let unknown: Vec<Begun> =
                found.into_iter().map(|(upload, _)| upload).filter(|upload| !self.open.contains(upload)).collect();
            self.open.extend(unknown);
        }
        Ok(())
    }

    /// Removes what the check made. An upload that may not be given up is completed, so that its object can be deleted.
    async fn clean_up(&mut self) {
        let mut left = Vec::new();
        let looked = self.find_uploads().await;
        for upload in std::mem::take(&mut self.open) {
            if self.bucket.abort(&upload).await.is_ok() {
                continue;
            }
            let completed = match self.bucket.part(&upload, BODY).await {
                Ok(part) => self.bucket.complete(&upload, &part, &When::Always).await.is_ok(),
                Err(_) => false,
            };
            if !completed {
                left.push(format!("an upload of {}", upload.key));
            }
        }
        for key in std::mem::take(&mut self.made) {
            if self.bucket.delete(&key).await.is_err() {
                left.push(key);
            }
        }
        self.remove_leftovers().await;
        let versions = self.bucket.remove_versions(&self.folder).await;
        match (left.is_empty(), versions, looked) {
            (true, Ok(()), Ok(())) => self.findings.ok(Item::CleanUp, "nothing is left of this check"),
            (true, Err(fault), _) => self.findings.note(
                Item::CleanUp,
                format!("old versions of a few bytes may be left under {}: {fault}", self.folder),
                "let a life-cycle rule remove old versions (NoncurrentVersionExpiration)",
            ),
            (true, Ok(()), Err(fault)) => self.findings.note(
                Item::CleanUp,
                format!("no object is left; whether an upload is, the server did not say: {fault}"),
                "let a rule give up abandoned uploads (`ebb store setup URL`)",
            ),
            (false, ..) => {
                self.findings.failed(Item::CleanUp, format!("left behind: {}", left.join(", ")), "delete it by hand")
            }
        }
    }

    /// What checks that were killed have left.
    async fn remove_leftovers(&self) {
        let folder = self.bucket.address.key(&format!("{FOLDER}/"));
        let now_s = self.bucket.clock.now_there().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
        let is_left =
            |at_s: &Option<i64>| at_s.is_some_and(|at_s| i64::try_from(now_s).unwrap_or(0) - at_s > LEFTOVER_AGE_S);
        // What does not work here, the next check tries again.
        let uploads = self.bucket.uploads(&folder, LEFTOVERS_MAX).await.unwrap_or_default();
        for (upload, _) in uploads.into_iter().filter(|(_, at_s)| is_left(at_s)) {
            let _ = self.bucket.abort(&upload).await;
        }
        let keys = self.bucket.keys(&folder, LEFTOVERS_MAX).await.unwrap_or_default();
        for (key, _) in keys.into_iter().filter(|(_, at_s)| is_left(at_s)) {
            let _ = self.bucket.delete(&key).await;
        }
    }
}
