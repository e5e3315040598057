//! What a check says: one finding for each thing that was looked at, with its verdict and what to do about it. Asks nobody. Next: `check.rs`.

use crate::fault::Fault;
use serde::Serialize;

/// What is looked at, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Item {
    /// Somebody answers.
    Server,
    /// The server takes our signature.
    Credentials,
    /// The bucket is in the region that requests name.
    Region,
    /// There is such a bucket.
    Bucket,
    /// The clocks agree.
    Clock,
    /// Delete one object.
    Delete,
    /// Write an object.
    Put,
    /// Read it.
    Get,
    /// Read a part of it.
    Range,
    /// List objects.
    List,
    /// Delete by the request for many.
    DeleteMany,
    /// Of several writers of one key, one wins.
    PutIfAbsent,
    /// A write that expects another state is refused.
    PutIfUnchanged,
    /// Begin an upload in parts.
    UploadBegin,
    /// Send a part.
    UploadPart,
    /// List uploads.
    UploadList,
    /// Complete one.
    UploadComplete,
    /// A completion that expects another state is refused.
    UploadConditions,
    /// Give one up.
    UploadAbort,
    /// Whether old versions are kept.
    Versioning,
    /// Whether the bucket gives up abandoned uploads.
    AbandonedUploads,
    /// Nothing of the check is left.
    CleanUp,
    /// The client that moves all data finds the store with the same settings; whoever has one says it ([`Report::with_services`]).
    Services,
}

impl Item {
    /// All, in order.
    pub const ALL: [Self; 23] = [
        Self::Server,
        Self::Credentials,
        Self::Region,
        Self::Bucket,
        Self::Clock,
        Self::Delete,
        Self::Put,
        Self::Get,
        Self::Range,
        Self::List,
        Self::DeleteMany,
        Self::PutIfAbsent,
        Self::PutIfUnchanged,
        Self::UploadBegin,
        Self::UploadPart,
        Self::UploadList,
        Self::UploadComplete,
        Self::UploadConditions,
        Self::UploadAbort,
        Self::Versioning,
        Self::AbandonedUploads,
        Self::CleanUp,
        Self::Services,
    ];

    /// Its name, for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Credentials => "credentials",
            Self::Region => "region",
            Self::Bucket => "bucket",
            Self::Clock => "clock",
            Self::Delete => "delete",
            Self::Put => "put",
            Self::Get => "get",
            Self::Range => "get a range",
            Self::List => "list",
            Self::DeleteMany => "delete many",
            Self::PutIfAbsent => "put if absent",
            Self::PutIfUnchanged => "put if unchanged",
            Self::UploadBegin => "upload: begin",
            Self::UploadPart => "upload: part",
            Self::UploadList => "upload: list",
            Self::UploadComplete => "upload: complete",
            Self::UploadConditions => "upload: conditions",
            Self::UploadAbort => "upload: abort",
            Self::Versioning => "versioning",
            Self::AbandonedUploads => "abandoned uploads",
            Self::CleanUp => "clean-up",
            Self::Services => "services",
        }
    }

    /// Whether Ebb cannot work without it. The others are for operators, or for what comes later.
    #[must_use]
    pub fn is_needed(self) -> bool {
        !matches!(
            self,
            Self::PutIfUnchanged
                | Self::UploadList
                | Self::UploadConditions
                | Self::Versioning
                | Self::AbandonedUploads
                | Self::CleanUp
        )
    }

    /// The name of the right that it takes in a policy; empty if it is no matter of rights.
    #[must_use]
    pub fn right(self) -> &'static str {
        match self {
            Self::Delete | Self::DeleteMany => "s3:DeleteObject",
            Self::Put | Self::PutIfAbsent | Self::PutIfUnchanged | Self::UploadBegin | Self::UploadPart => {
                "s3:PutObject"
            }
            Self::UploadComplete | Self::UploadConditions => "s3:PutObject",
            Self::Get | Self::Range => "s3:GetObject",
            Self::List => "s3:ListBucket",
            Self::UploadList => "s3:ListBucketMultipartUploads",
            Self::UploadAbort => "s3:AbortMultipartUpload",
            Self::Versioning => "s3:GetBucketVersioning",
            Self::AbandonedUploads => "s3:GetLifecycleConfiguration",
            Self::Server
            | Self::Credentials
            | Self::Region
            | Self::Bucket
            | Self::Clock
            | Self::CleanUp
            | Self::Services => "",
        }
    }
}

/// How it stands with one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Good enough for Ebb; an operator should know.
    Note,
    /// Not as it should be.
    Failed,
    /// Not looked at, because something before it failed.
    NotTried,
}

/// One line of a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub item: Item,
    /// How it stands.
    pub verdict: Verdict,
    /// Whether Ebb cannot work without it.
    pub needed: bool,
    /// What was found.
    pub found: String,
    /// What to do about it; empty if nothing.
    pub advice: String,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The address.
    pub store: String,
    /// The server.
    pub endpoint: String,
    /// The region that requests named.
    pub region: String,
    /// One for each [`Item`], in order.
    pub checks: Vec<Finding>,
    /// Whether everything that Ebb needs was tried and is as it should be.
    pub usable: bool,
}

impl Report {
    /// Why it is not usable: what failed of what Ebb needs, or, where nothing did, what was not tried.
    #[must_use]
    pub fn unfit(&self) -> Vec<&Finding> {
        let unfit = || self.checks.iter().filter(|finding| is_unfit(finding));
        let failed: Vec<&Finding> = unfit().filter(|finding| finding.verdict == Verdict::Failed).collect();
        if failed.is_empty() { unfit().collect() } else { failed }
    }

    /// Whether the bucket was found, so that other clients can be tried on it.
    #[must_use]
    pub fn found_bucket(&self) -> bool {
        self.checks.iter().any(|finding| finding.item == Item::Bucket && finding.verdict == Verdict::Ok)
    }

    /// The same with what the client of services said: nothing, or why it does not find the store and what to do.
    #[must_use]
    pub fn with_services(self, refusal: Option<(String, String)>) -> Self {
        let (verdict, (found, advice)) = match refusal {
            None => (Verdict::Ok, ("find the store with the same settings".to_owned(), String::new())),
            Some(refusal) => (Verdict::Failed, refusal),
        };
        let seen = Finding { item: Item::Services, verdict, needed: Item::Services.is_needed(), found, advice };
        let checks: Vec<Finding> = self
            .checks
            .into_iter()
            .map(|finding| if finding.item == Item::Services { seen.clone() } else { finding })
            .collect();
        Self { usable: usable(&checks), checks, ..self }
    }
}

pub(crate) fn usable(checks: &[Finding]) -> bool {
    !checks.iter().any(is_unfit)
}

fn is_unfit(finding: &Finding) -> bool {
    finding.needed && !matches!(finding.verdict, Verdict::Ok | Verdict::Note)
}

/// Findings as they come.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    list: Vec<Finding>,
    /// Why what is missing in the list was not tried.
    pub(crate) stopped_by: String,
}

impl Findings {
    fn add(&mut self, item: Item, verdict: Verdict, found: impl Into<String>, advice: impl Into<String>) {
        self.list.retain(|finding| finding.item != item);
        self.list.push(Finding { item, verdict, needed: item.is_needed(), found: found.into(), advice: advice.into() });
    }

    pub(crate) fn ok(&mut self, item: Item, found: impl Into<String>) {
        self.add(item, Verdict::Ok, found, "");
    }

    pub(crate) fn note(&mut self, item: Item, found: impl Into<String>, advice: impl Into<String>) {
        self.add(item, Verdict::Note, found, advice);
    }

    pub(crate) fn failed(&mut self, item: Item, found: impl Into<String>, advice: impl Into<String>) {
        self.add(item, Verdict::Failed, found, advice);
        if self.stopped_by.is_empty() {
            self.stopped_by = "something before it failed".to_owned();
        }
    }

    pub(crate) fn fault(&mut self, item: Item, fault: &Fault) {
        let advice = match (fault, item.right()) {
            (Fault::Denied, right) if !right.is_empty() => {
                format!("grant {right} to these credentials (docs/store.md holds a policy to copy)")
            }
            _ => fault.advice(),
        };
        self.failed(item, fault.to_string(), advice);
    }

    /// Records how a request went; what it gave, if it succeeded.
    pub(crate) fn outcome<T>(&mut self, item: Item, outcome: Result<T, Fault>, ok: &str) -> Option<T> {
        match outcome {
            Ok(value) => {
                self.ok(item, ok);
                Some(value)
            }
            Err(fault) => {
                self.fault(item, &fault);
                None
            }
        }
    }

    pub(crate) fn verdict(&self, item: Item) -> Option<Verdict> {
        self.list.iter().find(|finding| finding.item == item).map(|finding| finding.verdict)
    }

    pub(crate) fn in_order(self) -> Vec<Finding> {
        let Self { list, stopped_by } = self;
        let found = |item: Item| list.iter().find(|finding| finding.item == item).cloned();
        let not_tried = |item: Item| Finding {
            item,
            verdict: Verdict::NotTried,
            needed: item.is_needed(),
            found: stopped_by.clone(),
            advice: String::new(),
        };
        Item::ALL.into_iter().map(|item| found(item).unwrap_or_else(|| not_tried(item))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After a time-out nothing has failed, and the list of what is missing was empty.
    #[test]
    fn what_was_not_tried_is_why_a_store_is_not_usable() {
        let mut findings =
            Findings { stopped_by: "the check took longer than 120 s".to_owned(), ..Findings::default() };
        Item::ALL.into_iter().filter(|item| *item != Item::Get).for_each(|item| findings.ok(item, "allowed"));
        findings.note(Item::Put, "odd", "");
        let checks = findings.in_order();
        let (usable, (store, endpoint, region)) = (usable(&checks), Default::default());
        let report = Report { store, endpoint, region, checks, usable };
        assert!(!report.usable);
        assert_eq!(report.unfit().iter().map(|finding| finding.item).collect::<Vec<_>>(), [Item::Get]);
    }
}
