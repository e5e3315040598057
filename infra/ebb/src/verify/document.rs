//! What `ebb verify` hands on: a document that says what was retrained, what was compared and what came of it. Pure: its types, the verdict from what
//! was compared, and how a person reads it. Whoever has the document needs neither the service nor this program to read it.

use crate::output::{pairs, table};
use serde::Serialize;
use std::collections::BTreeMap;

/// What kind of document this is.
const KIND: &str = "ebb-verification";
/// Of this format; a field is added, never given another meaning.
const FORMAT_VERSION: u32 = 1;
/// Characters of a digest that people are shown; programs read all of it.
const DIGEST_SHOWN: usize = 16;
/// Comparisons that people are shown: the first differing one is named anyway.
const COMPARED_SHOWN: usize = 12;
/// Events of the original run that people are shown.
const EVENTS_SHOWN: usize = 12;

/// What a verification came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Everything that was compared is the same, bit for bit.
    Equal,
    /// Something is not.
    Different,
    /// Nothing can be said: it could not be retrained, or nothing was there to compare with.
    Impossible,
}

/// The document.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Document {
    /// Always `ebb-verification`.
    pub document: &'static str,
    /// The format of this document.
    pub format_version: u32,
    /// What it came to.
    pub verdict: Verdict,
    /// The same as a sentence, with the reason.
    pub says: String,
    /// The job that is verified.
    pub job: JobOf,
    /// What it trained on; null where its code brings its own rows.
    pub dataset: Option<DatasetOf>,
    /// Which steps; null if that could not be found out.
    pub stretch: Option<StretchOf>,
    /// What happened to the job's executors in that stretch when it ran; null without a stretch.
    pub original_run: Option<RunOf>,
    /// The job that trained it once more; null if there was none.
    pub retraining: Option<RetrainingOf>,
    /// What was compared, by step.
    pub compared: Vec<Compared>,
    /// What differs; null unless something does.
    pub difference: Option<Difference>,
    /// Who says so.
    pub versions: Versions,
    /// When the verification began, RFC 3339.
    pub began_at: String,
    /// When it ended, RFC 3339.
    pub ended_at: String,
}

/// The job that is verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JobOf {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Where it is in its life.
    pub phase: String,
    /// Digest of its spec.
    pub spec_digest: String,
    /// Numeric class of the servers that it trained on; null if it never did.
    pub numeric_class: Option<String>,
    /// Slots of this installation that are of that class.
    pub slots_of_class: usize,
    /// When it was accepted, RFC 3339.
    pub submitted_at: String,
    /// When it ended, RFC 3339; null of one that goes on.
    pub finished_at: Option<String>,
}

/// A dataset as it is registered now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DatasetOf {
    /// Its name.
    pub name: String,
    /// Digest of its list of partitions, which holds the digest of each.
    pub metadata_digest: String,
    /// Its rows.
    pub rows: u64,
}

/// Which steps are compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StretchOf {
    /// It begins with the replica of this step.
    pub from_step: u64,
    /// Digest of the replica that it begins with; null for the job's beginning.
    pub from_replica_digest: Option<String>,
    /// It ends with the replica of this step.
    pub to_step: u64,
}

/// What happened to a job's executors in a stretch, as the log has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RunOf {
    /// Fewest slots it was planned on.
    pub slots_least: Option<u64>,
    /// Most slots it was planned on.
    pub slots_most: Option<u64>,
    /// How often its number of executors changed.
    pub scalings: u64,
    /// How many members were lost that nobody had told to leave.
    pub losses: u64,
    /// How often it went back to a checkpoint.
    pub restarts: u64,
    /// All of these, in the order of the log.
    pub events: Vec<Told>,
    /// Events beyond those.
    pub events_left_out: u64,
}

/// An event as a sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Told {
    /// Its id: its place in the log.
    pub id: String,
    /// When, RFC 3339.
    pub at: String,
    /// What it says.
    pub says: String,
}

/// The job that trained the stretch once more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RetrainingOf {
    /// Its id.
    pub job: String,
    /// How it ended.
    pub phase: String,
    /// The number of its executors, which never changed.
    pub slots: u64,
    /// When it first trained, RFC 3339.
    pub started_at: Option<String>,
    /// When it ended, RFC 3339.
    pub finished_at: Option<String>,
    /// What happened to its executors: it was taken off its slots, or lost one, and went on from its own checkpoint.
    pub run: RunOf,
}

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Everything that an update reads or writes.
    Replica,
    /// The parameters that the job ended with.
    Model,
}

impl What {
    fn name(self) -> &'static str {
        match self {
            Self::Replica => "replica",
            Self::Model => "model",
        }
    }
}

/// One comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Compared {
    /// The step.
    pub step: u64,
    /// Of what the digests are.
    pub what: What,
    /// As the log has it since the job ran.
    pub recorded: String,
    /// As it was computed now; null where the retraining saved nothing at this step, so that nothing is said of it.
    pub recomputed: Option<String>,
    /// Whether both are the same; null as above.
    pub equal: Option<bool>,
}

/// What differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The first compared step at which it does.
    pub first_step: u64,
    /// The last compared step before, at which all was the same; null: the beginning of the stretch.
    pub last_equal_step: Option<u64>,
    /// The tensors of both models at the end of the stretch; null if they could not be compared.
    pub tensors: Option<Tensors>,
    /// Why not.
    pub tensors_unknown: Option<String>,
}

/// Tensors of two models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tensors {
    /// The step of both.
    pub at_step: u64,
    /// The first that differs, in the order of the parameters; null: none does, so what differs is what an update keeps beside them.
    pub first: Option<FirstTensor>,
    /// How many differ.
    pub different: u64,
    /// Of so many.
    pub all: u64,
}

/// The first tensor that differs, and in it the first element.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FirstTensor {
    /// Its name in the model.
    pub name: String,
    /// The element's place in it; null if the tensors are of different types or shapes, or one of the models has none of this name.
    pub element: Option<u64>,
    /// Its bytes in the recorded model, hexadecimal.
    pub recorded: String,
    /// Its bytes in the recomputed model, hexadecimal.
    pub recomputed: String,
}

/// Who says it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Versions {
    /// This program.
    pub ebb: String,
    /// The service.
    pub service: String,
    /// The cell that it serves.
    pub cell: u32,
}

/// Which digests stand at which steps in a job's log. A step has several where the job came by it more than once.
pub type Recorded = BTreeMap<u64, Vec<String>>;

/// The replicas from one step (not itself) to another that a job recorded, beside those that its retraining came to.
#[must_use]
pub fn compare(recorded: &Recorded, recomputed: &Recorded, from: u64, to: u64) -> Vec<Compared> {
    let of_stretch = recorded.iter().filter(|(step, _)| (from + 1..=to).contains(step));
    let each = of_stretch.flat_map(|(step, digests)| digests.iter().map(move |digest| (*step, digest)));
    each.map(|(step, digest)| {
        let found = recomputed.get(&step).and_then(|found| found.last()).cloned();
        compared(step, What::Replica, digest.clone(), found)
    })
    .collect()
}

/// One comparison.
#[must_use]
pub fn compared(step: u64, what: What, recorded: String, recomputed: Option<String>) -> Compared {
    let equal = recomputed.as_ref().map(|recomputed| *recomputed == recorded);
    Compared { step, what, recorded, recomputed, equal }
}

/// What comparisons come to, as a verdict and a sentence. Of the end of the stretch something has to be known: whatever happens in between shows
/// there.
#[must_use]
pub fn judge(compared: &[Compared], from: u64, to: u64) -> (Verdict, String) {
    if let Some(first) = compared.iter().find(|one| one.equal == Some(false)) {
        let Compared { step, what, .. } = first;
        return (
            Verdict::Different,
            format!("retrained from step {from}, the {} of step {step} is another one", what.name()),
        );
    }
    let done = compared.iter().filter(|one| one.equal == Some(true)).count();
    if compared.iter().any(|one| one.step == to && one.equal == Some(true)) {
        let what = if done == 1 { "the one digest" } else { "all digests" };
        return (
            Verdict::Equal,
            format!("retrained from step {from} to step {to}, {what} of {done} compared: the same bit for bit"),
        );
    }
    let says = format!(
        "of step {to}, where the stretch ends, nothing could be compared, so {done} equal digests before it say too little"
    );
    (Verdict::Impossible, says)
}

/// The first differing step, and the last compared one before it.
#[must_use]
pub fn first_difference(compared: &[Compared]) -> Option<(u64, Option<u64>)> {
    let first = compared.iter().find(|one| one.equal == Some(false))?.step;
    let before = compared.iter().filter(|one| one.step < first && one.equal == Some(true));
    Some((first, before.map(|one| one.step).max()))
}

impl Document {
    /// Of the file that it is written to: a job may be verified again, and what was found first is to be compared with that.
    #[must_use]
    pub fn file_name(&self) -> String {
        let again = self.retraining.as_ref().map_or_else(String::new, |retraining| format!("-{}", retraining.job));
        format!("verification-{}{again}.json", self.job.id)
    }

    /// A document about a job of which nothing is known yet but itself.
    #[must_use]
    pub fn of(job: JobOf, versions: Versions, began_at: String) -> Self {
        Self {
            document: KIND,
            format_version: FORMAT_VERSION,
            verdict: Verdict::Impossible,
            says: String::new(),
            job,
            dataset: None,
            stretch: None,
            original_run: None,
            retraining: None,
            compared: Vec::new(),
            difference: None,
            versions,
            ended_at: began_at.clone(),
            began_at,
        }
    }

    /// The verdict, with its reason.
    pub fn conclude(&mut self, verdict: Verdict, says: String) {
        (self.verdict, self.says) = (verdict, says);
    }

    /// For people.
    #[must_use]
    pub fn shown(&self) -> String {
        let none = String::new;
        let Self { job, stretch, .. } = self;
        let class = job
            .numeric_class
            .as_deref()
            .map_or_else(none, |class| format!("{} ({} slots here are of it)", short(class), job.slots_of_class));
        let stretch = stretch.as_ref().map_or_else(none, |s| format!("step {} to step {}", s.from_step, s.to_step));
        let dataset = self
            .dataset
            .as_ref()
            .map_or_else(none, |d| format!("{} ({}, {} rows)", d.name, short(&d.metadata_digest), d.rows));
        let retraining = self.retraining.as_ref();
        let rows = pairs(&[
            ("verdict", format!("{}: {}", verdict(self.verdict), self.says)),
            ("job", format!("{} `{}`, {}", job.id, job.name, job.phase)),
            ("spec", short(&job.spec_digest)),
            ("numeric class", class),
            ("dataset", dataset),
            ("stretch", stretch),
            ("as it ran", self.original_run.as_ref().map_or_else(none, RunOf::sentence)),
            (
                "retrained by",
                retraining.map_or_else(none, |r| format!("{} on {} slots, {}", r.job, r.slots, r.run.sentence())),
            ),
            ("difference", self.difference.as_ref().map_or_else(none, Difference::sentence)),
            ("when", format!("{} to {}", self.began_at, self.ended_at)),
            (
                "said by",
                format!("ebb {}, service {}, cell {}", self.versions.ebb, self.versions.service, self.versions.cell),
            ),
        ]);
        [rows, self.shown_comparisons(), self.shown_events()]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join("\n\n")
    }

    fn shown_comparisons(&self) -> String {
        if self.compared.is_empty() {
            return String::new();
        }
        let row = |one: &Compared| {
            let same = match one.equal {
                Some(true) => "same",
                Some(false) => "DIFFERENT",
                None => "not saved",
            };
            let recomputed = one.recomputed.as_deref().map(short).unwrap_or_default();
            vec![one.step.to_string(), one.what.name().to_owned(), short(&one.recorded), recomputed, same.to_owned()]
        };
        // The newest are shown: what differed once differs to the end.
        let left_out = self.compared.len().saturating_sub(COMPARED_SHOWN);
        let rows: Vec<Vec<String>> = self.compared.iter().skip(left_out).map(row).collect();
        let shown = table(&["STEP", "OF", "RECORDED", "RECOMPUTED", ""], &rows);
        if left_out == 0 { shown } else { format!("{shown}\n({left_out} before these stand in the document)") }
    }

    fn shown_events(&self) -> String {
        let Some(run) = self.original_run.as_ref().filter(|run| !run.events.is_empty()) else { return String::new() };
        let mut lines: Vec<String> =
            run.events.iter().take(EVENTS_SHOWN).map(|event| format!("{}  {}", event.at, event.says)).collect();
        let more = run.events.len().saturating_sub(EVENTS_SHOWN) as u64 + run.events_left_out;
        if more > 0 {
            lines.push(format!("({more} more of the run)"));
        }
        lines.join("\n")
    }
}

impl RunOf {
    fn sentence(&self) -> String {
        let slots = match (self.slots_least, self.slots_most) {
            (Some(least), Some(most)) if least == most => format!("{least} slots, "),
            (Some(least), Some(most)) => format!("{least} to {most} slots, "),
            _ => String::new(),
        };
        format!("{slots}{} changes of size, {} lost members, {} restarts", self.scalings, self.losses, self.restarts)
    }
}

impl Difference {
    /// Where it begins, and in which tensor.
    #[must_use]
    pub fn sentence(&self) -> String {
        let equal = self.last_equal_step.map(|step| format!(", step {step} is the same")).unwrap_or_default();
        let tensors = match (&self.tensors, &self.tensors_unknown) {
            (Some(Tensors { at_step, first: Some(first), different, all }), _) => {
                let element = first.element.map(|element| {
                    format!(", element {element}: {} recorded, {} now", first.recorded, first.recomputed)
                });
                format!(
                    "; at step {at_step} {different} of {all} tensors differ, first `{}`{}",
                    first.name,
                    element.unwrap_or_default()
                )
            }
            (Some(Tensors { at_step, first: None, all, .. }), _) => {
                format!("; at step {at_step} all {all} tensors are the same, so it is what an update keeps beside them")
            }
            (None, Some(why)) => format!("; its tensors could not be compared: {why}"),
            (None, None) => String::new(),
        };
        format!("first at step {}{equal}{tensors}", self.first_step)
    }
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Equal => "EQUAL",
        Verdict::Different => "DIFFERENT",
        Verdict::Impossible => "IMPOSSIBLE",
    }
}

fn short(digest: &str) -> String {
    digest.chars().take(DIGEST_SHOWN).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn steps(all: &[(u64, &[&str])]) -> Recorded {
        all.iter().map(|(step, digests)| (*step, digests.iter().map(|&d| d.to_owned()).collect())).collect()
    }

    #[test]
    fn a_stretch_is_equal_only_if_its_end_is() {
        let recorded = steps(&[(20, &["a"]), (40, &["b"]), (60, &["c"]), (80, &["d"])]);
        let all = compare(&recorded, &recorded, 20, 60);
        assert_eq!(all.iter().map(|one| one.step).collect::<Vec<_>>(), [40, 60], "not what it begins with");
        assert_eq!(judge(&all, 20, 60).0, Verdict::Equal);
        let without_end = compare(&recorded, &steps(&[(40, &["b"])]), 20, 60);
        assert_eq!((without_end[1].equal, judge(&without_end, 20, 60).0), (None, Verdict::Impossible));
        assert_eq!(judge(&[], 0, 60).0, Verdict::Impossible);
    }

    #[test]
    fn the_first_difference_is_named_also_if_later_digests_agree_again() {
        let recorded = steps(&[(20, &["a"]), (40, &["b"]), (60, &["c"])]);
        let all = compare(&recorded, &steps(&[(20, &["a"]), (40, &["x"]), (60, &["c"])]), 0, 60);
        let (verdict, says) = judge(&all, 0, 60);
        assert_eq!(verdict, Verdict::Different);
        assert!(says.ends_with("the replica of step 40 is another one"), "{says}");
        assert_eq!(first_difference(&all), Some((40, Some(20))));
    }

    #[test]
    fn a_step_that_was_recorded_twice_has_to_be_the_same_both_times() {
        let all = compare(&steps(&[(20, &["a", "b"])]), &steps(&[(20, &["b"])]), 0, 20);
        assert_eq!(all.iter().map(|one| one.equal).collect::<Vec<_>>(), [Some(false), Some(true)]);
        assert_eq!(judge(&all, 0, 20).0, Verdict::Different);
    }

    fn document() -> Document {
        let job = JobOf {
            id: "job-a".into(),
            name: "digits".into(),
            phase: "finished".into(),
            spec_digest: "0123456789abcdef0123".into(),
            numeric_class: None,
            slots_of_class: 0,
            submitted_at: "t".into(),
            finished_at: None,
        };
        let versions = Versions { ebb: "1".into(), service: "2".into(), cell: 0 };
        Document::of(job, versions, "2026-02-02T02:40:00.000Z".into())
    }

    #[test]
    fn whoever_reads_it_sees_verdict_step_and_tensor() {
        let mut document = document();
        document.compared = vec![compared(40, What::Replica, "aa".into(), Some("bb".into()))];
        let first = FirstTensor {
            name: "layers.0.weight".into(),
            element: Some(7),
            recorded: "0000803f".into(),
            recomputed: "01".into(),
        };
        let tensors = Tensors { at_step: 60, first: Some(first), different: 2, all: 4 };
        document.difference =
            Some(Difference { first_step: 40, last_equal_step: None, tensors: Some(tensors), tensors_unknown: None });
        let (verdict, says) = judge(&document.compared, 0, 60);
        document.conclude(verdict, says);
        let shown = document.shown();
        for words in [
            "DIFFERENT: retrained from step 0",
            "first at step 40; at step 60 2 of 4 tensors differ, first `layers.0.weight`, element 7: 0000803f recorded",
        ] {
            assert!(shown.contains(words), "{shown}");
        }
        let json = serde_json::to_value(&document).unwrap();
        assert_eq!((&json["verdict"], &json["document"]), (&"different".into(), &"ebb-verification".into()));
        assert_eq!(json["difference"]["tensors"]["first"]["name"], "layers.0.weight");
    }
}
