//! Bodies of requests: from a well-formed document to typed values, or every problem in it by field. Pure.
//!
//! The spec of a job is parsed by `events-schema`, whose `job.rs` is the next file on a job's path.

use controller_core::limits::{self, RECLAIM_DEADLINE_MS_MAX};
use events_schema::command::{
    Demand, FORESEEN_MAX, FORESEEN_MS_MAX, Foreseen, NEEDED_MAX, Needs, OfferMode, Recall, SEQUENCE_MAX, SLO_MS_MAX,
    Slo, TARGET_MILLI, UTILIZATION_MILLI_MAX,
};
use events_schema::dataset::{SampleShape, parse_sample_shape};
use events_schema::fields::{Fields, PROBLEMS_MAX, Problem, Problems, shown, whole};
use events_schema::{DatasetName, Digest, ServerId, SlotId};
use serde_json::Value;
use std::collections::BTreeSet;
use storage::dataset::{ColumnNames, ElementType};

/// Most slots one request names: a cell has about a thousand servers with eight each.
const SLOTS_MAX: usize = 8_192;
/// Most slots of one server.
const SERVER_SLOTS_MAX: u64 = 1_024;
/// Most files of one dataset; each footer is read once, here.
const URIS_MAX: usize = 4_096;
/// Longest URI, key or column name.
const TEXT_LEN_MAX: usize = 2_048;
/// Shortest and longest time from a reclaim to the kill. Below 100 ms no boundary would be reached.
const RECLAIM_DEADLINE_MS: std::ops::RangeInclusive<u64> = 100..=RECLAIM_DEADLINE_MS_MAX;
/// Time from a reclaim to the kill if the fleet does not say: enough for a boundary and the exit of a process.
const RECLAIM_DEADLINE_MS_DEFAULT: u64 = 10_000;
/// Utilization that a fleet wants of each of its slots, if it does not say.
const TARGET_DEFAULT: f64 = 0.8;

/// A fleet as declared.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetDeclaration {
    /// Its slots, sorted, each once.
    pub slots: Vec<SlotId>,
    /// How they are offered.
    pub offers: OfferMode,
    /// Time from a reclaim to the kill of an executor.
    pub reclaim_deadline_ms: u64,
}

/// A demand signal as sent.
#[derive(Debug, Clone, PartialEq)]
pub struct DemandBody {
    /// What is needed.
    pub needs: Needs,
    /// Its number; minted if absent.
    pub sequence: Option<u64>,
}

/// A dataset to be registered.
#[derive(Debug, Clone, PartialEq)]
pub struct DatasetBody {
    /// Its name.
    pub name: DatasetName,
    /// Where its rows or its metadata are.
    pub source: DatasetSource,
}

/// Where a dataset comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum DatasetSource {
    /// Files to be read here: their footers now, their rows when trained on.
    Files(DatasetFiles),
    /// A metadata object that an import has already written to the store.
    Metadata {
        /// Its key.
        key: String,
        /// Digest of its bytes.
        digest: Digest,
    },
}

/// Files and how to read them.
#[derive(Debug, Clone, PartialEq)]
pub struct DatasetFiles {
    /// Addresses, in the order of the dataset.
    pub uris: Vec<String>,
    /// What a row holds; found out from the files if absent.
    pub sample: Option<SampleShape>,
    /// Which columns hold it.
    pub columns: ColumnNames,
    /// Type of the elements of binary columns.
    pub element: Option<ElementType>,
    /// Stored elements are multiplied by this.
    pub scale: Option<f32>,
}

/// `PUT /v1/fleets/{fleet}`: `{servers: [{server, slots: N | [index…]}], offers?, reclaim_deadline_ms?}`.
pub fn fleet(body: &Value) -> Result<FleetDeclaration, Problems> {
    let mut f = Fields::new("", body);
    let slots = f.nested_required("servers", "a list such as [{server: local, slots: 4}]", fleet_servers);
    let offers = f.word("offers", &[("by_demand", OfferMode::ByDemand), ("explicit", OfferMode::Explicit)]);
    let reclaim_deadline_ms =
        f.integer("reclaim_deadline_ms", RECLAIM_DEADLINE_MS).unwrap_or(RECLAIM_DEADLINE_MS_DEFAULT);
    f.finish(slots.map(|slots| FleetDeclaration {
        slots,
        offers: offers.unwrap_or(OfferMode::ByDemand),
        reclaim_deadline_ms,
    }))
}

/// `PUT /v1/tenants/{tenant}`: `{quota_slots: N}`.
pub fn quota(body: &Value) -> Result<u32, Problems> {
    let mut f = Fields::new("", body);
    // More than there may be slots says nothing more.
    let slots = f.integer_required("quota_slots", 0..=limits::SLOTS_MAX);
    f.finish(slots.and_then(|slots| u32::try_from(slots).ok()))
}

fn fleet_servers(path: &str, value: &Value) -> Result<Vec<SlotId>, Problems> {
    let Some(servers) = value.as_array() else {
        return Err(wrong(path, value, "a list such as [{server: local, slots: 4}]"));
    };
    let (mut slots, mut problems) = (BTreeSet::new(), Vec::new());
    for (index, server) in servers.iter().enumerate() {
        match fleet_server(&format!("{path}[{index}]"), server) {
            Ok(own) => {
                let twice = own.iter().find(|slot| slots.contains(*slot)).cloned();
                problems.extend(
                    twice.map(|slot| problem(&format!("{path}[{index}]"), &slot.to_string(), "each slot once")),
                );
                slots.extend(own);
            }
            Err(part) => problems.extend(part.0),
        }
        if slots.len() > SLOTS_MAX {
            problems.push(problem(path, "too many slots", &format!("at most {SLOTS_MAX} slots in all")));
        }
        if slots.len() > SLOTS_MAX || problems.len() >= PROBLEMS_MAX {
            break;
        }
    }
    if problems.is_empty() { Ok(slots.into_iter().collect()) } else { Err(Problems(problems)) }
}

fn fleet_server(path: &str, value: &Value) -> Result<Vec<SlotId>, Problems> {
    let mut f = Fields::new(path, value);
    let server =
        f.text_required("server", "the name of a server", |s| ServerId::parse(s).map_err(|e| e.expected.to_owned()));
    let indices = f.nested_required("slots", SERVER_SLOTS_EXPECTED, slot_indices);
    f.finish(
        server.zip(indices).map(|(server, indices)| {
            indices.into_iter().map(|index| SlotId { server: server.clone(), index }).collect()
        }),
    )
}

const SERVER_SLOTS_EXPECTED: &str = "a number of slots from 1 to 1024, or a list of slot numbers below 1024, each once";

fn slot_indices(path: &str, value: &Value) -> Result<Vec<u16>, Problems> {
    let below_max = |value: &Value| whole(value).filter(|n| *n < SERVER_SLOTS_MAX).map(|n| n as u16);
    let indices: Option<Vec<u16>> = match value {
        Value::Number(_) => {
            whole(value).filter(|n| (1..=SERVER_SLOTS_MAX).contains(n)).map(|n| (0..n as u16).collect())
        }
        Value::Array(list) => list.iter().map(below_max).collect(),
        _ => None,
    };
    let once =
        |indices: &Vec<u16>| indices.iter().collect::<BTreeSet<_>>().len() == indices.len() && !indices.is_empty();
    indices.filter(once).ok_or_else(|| wrong(path, value, SERVER_SLOTS_EXPECTED))
}

/// `POST /v1/fleets/{fleet}/offers` and `/reclaims`: `{slots: [SERVER/INDEX…]}`. Sorted, each once.
pub fn slots(body: &Value) -> Result<Vec<SlotId>, Problems> {
    let mut f = Fields::new("", body);
    let slots = f.nested_required("slots", "a list of slots such as [local/0]", slot_list);
    f.finish(slots)
}

/// `POST /v1/fleets/{fleet}/recall`: `{slots: N}`, or `{}` for all.
pub fn recall(body: &Value) -> Result<Recall, Problems> {
    let mut f = Fields::new("", body);
    let slots = f.integer("slots", 1..=SLOTS_MAX as u64);
    f.finish(Some(slots.map_or(Recall::All, |slots| Recall::Slots(slots as u32))))
}

fn slot_list(path: &str, value: &Value) -> Result<Vec<SlotId>, Problems> {
    let list = value.as_array().filter(|list| (1..=SLOTS_MAX).contains(&list.len()));
    let Some(list) = list else {
        return Err(wrong(path, value, &format!("a list of 1 to {SLOTS_MAX} slots such as [local/0]")));
    };
    let (mut slots, mut problems) = (BTreeSet::new(), Vec::new());
    for (index, value) in list.iter().enumerate() {
        if problems.len() >= PROBLEMS_MAX {
            break;
        }
        match value.as_str().map(str::parse::<SlotId>) {
            Some(Ok(slot)) => {
                slots.insert(slot);
            }
            _ => problems.push(problem(
                &format!("{path}[{index}]"),
                &shown(value),
                "SERVER/INDEX, for example `local/0`",
            )),
        }
    }
    if problems.is_empty() { Ok(slots.into_iter().collect()) } else { Err(Problems(problems)) }
}

/// `POST /v1/fleets/{fleet}/demand`: `{needed: N}` or `{utilization: U, target?: T}`, each with `sequence?`, `forecast?` and `slo?`.
pub fn demand(body: &Value) -> Result<DemandBody, Problems> {
    let mut f = Fields::new("", body);
    let needed = f.integer("needed", 0..=u64::from(NEEDED_MAX));
    let utilization = f.number("utilization", 0.0..=UTILIZATION_MILLI_MAX as f64 / 1e3);
    let target = f.number("target", *TARGET_MILLI.start() as f64 / 1e3..=*TARGET_MILLI.end() as f64 / 1e3);
    let sequence = f.integer("sequence", 0..=SEQUENCE_MAX);
    let (forecast, slo) = (f.nested("forecast", forecast), f.nested("slo", slo));
    let given = |name: &str| body.get(name).is_some_and(|value| !value.is_null());
    match (given("needed"), given("utilization")) {
        (true, true) => f.wrong("utilization", "either `needed` or `utilization`, not both"),
        (false, false) if body.is_object() => {
            f.wrong("needed", "`needed` (slots) or `utilization` (sum over the slots, 0 or more)")
        }
        (true, false) if given("target") => f.wrong("target", "a target only beside `utilization`"),
        _ => {}
    }
    let milli = |number: f64| (number * 1_000.0).round() as u64;
    let share =
        |sum: f64| Demand::Utilization { sum_milli: milli(sum), target_milli: milli(target.unwrap_or(TARGET_DEFAULT)) };
    let demand = needed.map(|n| Demand::Needed(n as u32)).or_else(|| utilization.map(share));
    f.finish(demand.map(|demand| DemandBody { needs: Needs { demand, forecast, slo }, sequence }))
}

/// What a fleet is going to need: `[{in_ms, needed}…]`.
fn forecast(path: &str, value: &Value) -> Result<Vec<Foreseen>, Problems> {
    let list = value.as_array().filter(|list| (1..=FORESEEN_MAX).contains(&list.len()));
    let Some(list) = list else {
        let expected = format!("a list of 1 to {FORESEEN_MAX} times such as [{{in_ms: 900000, needed: 4}}]");
        return Err(wrong(path, value, &expected));
    };
    let (mut foreseen, mut problems): (Vec<Foreseen>, Vec<Problem>) = (Vec::new(), Vec::new());
    for (index, value) in list.iter().enumerate() {
        let path = format!("{path}[{index}]");
        match time_ahead(&path, value) {
            Ok(next) if foreseen.last().is_some_and(|last| last.in_ms >= next.in_ms) => {
                let expected = "a time after the one before it: each entry holds until the next";
                problems.push(problem(&format!("{path}.in_ms"), &next.in_ms.to_string(), expected));
            }
            Ok(next) => foreseen.push(next),
            Err(found) => problems.extend(found.0),
        }
        if problems.len() >= PROBLEMS_MAX {
            break;
        }
    }
    if problems.is_empty() { Ok(foreseen) } else { Err(Problems(problems)) }
}

fn time_ahead(path: &str, value: &Value) -> Result<Foreseen, Problems> {
    let mut f = Fields::new(path, value);
    let in_ms = f.integer_required("in_ms", 1..=FORESEEN_MS_MAX);
    let needed = f.integer_required("needed", 0..=u64::from(NEEDED_MAX));
    f.finish(in_ms.zip(needed).map(|(in_ms, needed)| Foreseen { in_ms, slots: needed as u32 }))
}

/// How long a fleet's own requests take, and may take: `{p99_ms, limit_ms}`.
fn slo(path: &str, value: &Value) -> Result<Slo, Problems> {
    let mut f = Fields::new(path, value);
    let p99_ms = f.integer_required("p99_ms", 0..=SLO_MS_MAX);
    let limit_ms = f.integer_required("limit_ms", 1..=SLO_MS_MAX);
    f.finish(p99_ms.zip(limit_ms).map(|(p99_ms, limit_ms)| Slo { p99_ms, limit_ms }))
}

/// `POST /v1/datasets`: `{name, uris, sample?, columns?, element?, scale?}` or `{name, metadata_key, metadata_digest}`.
pub fn dataset(body: &Value) -> Result<DatasetBody, Problems> {
    let mut f = Fields::new("", body);
    let name =
        f.text_required("name", "a name for the dataset", |s| DatasetName::parse(s).map_err(|e| e.expected.to_owned()));
    let uris = f.nested("uris", uri_list);
    let sample = f.nested("sample", parse_sample_shape);
    let columns = f.nested("columns", columns);
    let element = f.word("element", &[("u8", ElementType::U8), ("f32", ElementType::F32)]);
    let scale = f.number("scale", 1e-12..=1e12).map(|scale| scale as f32);
    let key = f.text("metadata_key", text);
    let digest = f.text("metadata_digest", |s| s.parse::<Digest>().map_err(|e| e.expected.to_owned()));
    let given = |name: &str| body.get(name).is_some_and(|value| !value.is_null());
    match (given("uris"), given("metadata_key") || given("metadata_digest")) {
        (true, true) => f.wrong("metadata_key", "either `uris` or `metadata_key` with `metadata_digest`, not both"),
        (false, false) if body.is_object() => {
            f.wrong("uris", "`uris` of Parquet or Arrow files, or `metadata_key` with `metadata_digest`")
        }
        (false, true) if !given("metadata_key") => {
            f.wrong("metadata_key", "the key of the object that `metadata_digest` is of")
        }
        (false, true) if !given("metadata_digest") => {
            f.wrong("metadata_digest", "the digest of the object at `metadata_key`")
        }
        (false, true) => {
            let said = ["sample", "columns", "element", "scale"].into_iter().filter(|name| given(name));
            said.for_each(|name| f.wrong(name, "nothing here: the metadata object says it"));
        }
        _ => {}
    }
    let files = uris.map(|uris| {
        DatasetSource::Files(DatasetFiles { uris, sample, columns: columns.unwrap_or_default(), element, scale })
    });
    let source = files.or_else(|| key.zip(digest).map(|(key, digest)| DatasetSource::Metadata { key, digest }));
    f.finish(name.zip(source).map(|(name, source)| DatasetBody { name, source }))
}

fn uri_list(path: &str, value: &Value) -> Result<Vec<String>, Problems> {
    let expected = format!("a list of 1 to {URIS_MAX} addresses such as file:///data/part-0.parquet");
    let list = value.as_array().filter(|list| (1..=URIS_MAX).contains(&list.len()));
    let Some(list) = list else { return Err(wrong(path, value, &expected)) };
    let one = |(index, value): (usize, &Value)| {
        let parsed = value.as_str().ok_or_else(|| "a text".to_owned()).and_then(text);
        parsed.map_err(|expected| wrong(&format!("{path}[{index}]"), value, &expected))
    };
    list.iter().enumerate().map(one).collect()
}

fn columns(path: &str, value: &Value) -> Result<ColumnNames, Problems> {
    let mut f = Fields::new(path, value);
    let columns = ColumnNames {
        features: f.text("features", text),
        label: f.text("label", text),
        tokens: f.text("tokens", text),
    };
    f.finish(Some(columns))
}

fn text(value: &str) -> Result<String, String> {
    let legal = (1..=TEXT_LEN_MAX).contains(&value.len()) && !value.chars().any(char::is_control);
    if legal {
        Ok(value.to_owned())
    } else {
        Err(format!("a text of 1 to {TEXT_LEN_MAX} bytes without control characters"))
    }
}

fn wrong(path: &str, value: &Value, expected: &str) -> Problems {
    Problems(vec![problem(path, &shown(value), expected)])
}

fn problem(field: &str, value: &str, expected: &str) -> Problem {
    Problem { field: field.to_owned(), value: value.to_owned(), expected: expected.to_owned() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::job::JobSpec;
    use serde_json::json;

    #[test]
    fn a_number_of_slots_and_their_list_mean_the_same() {
        let by_number =
            fleet(&json!({"servers": [{"server": "b", "slots": 2}, {"server": "a", "slots": [1]}]})).unwrap();
        let by_list = fleet(&json!({"servers": [{"server": "a", "slots": [1]}, {"server": "b", "slots": [1, 0]}], "offers": "by_demand"})).unwrap();
        assert_eq!(by_number, by_list);
        assert_eq!(by_number.slots.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a/1", "b/0", "b/1"]);
        assert_eq!(by_number.reclaim_deadline_ms, RECLAIM_DEADLINE_MS_DEFAULT);
    }

    /// What was whole stays whole: bodies at all their bounds, which are added to and never taken away.
    #[test]
    fn what_was_accepted_is_accepted() {
        for line in include_str!("../tests/accepted.txt").lines().filter(|line| !line.starts_with('#')) {
            let (kind, body) = line.split_once(' ').unwrap();
            let body: Value = serde_json::from_str(body).unwrap();
            let refused = match kind {
                "job" => JobSpec::parse(&body).err(),
                "fleet" => fleet(&body).err(),
                "slots" => slots(&body).err(),
                "recall" => recall(&body).err(),
                "demand" => demand(&body).err(),
                "dataset" => dataset(&body).err(),
                _ => panic!("{kind} is no kind of body"),
            };
            assert_eq!(refused, None, "{kind} {body}");
        }
    }

    #[test]
    fn utilization_becomes_slots_rounded_up() {
        let needed = |body: Value| demand(&body).unwrap().needs.demand.needed();
        assert_eq!(needed(json!({"needed": 3})), 3);
        assert_eq!(needed(json!({"utilization": 2.0})), 3);
        assert_eq!(needed(json!({"utilization": 1.6, "target": 0.8})), 2);
        assert_eq!(needed(json!({"utilization": 0})), 0);
        assert_eq!(needed(json!({"utilization": 0.0004})), 0);
        assert_eq!(needed(json!({"utilization": 4, "target": 1})), 4);
    }

    #[test]
    fn what_is_wrong_with_a_forecast_is_told_by_its_entry() {
        let wrong = |body: Value| demand(&body).unwrap_err().0.into_iter().map(|of| of.field).collect::<Vec<_>>();
        let of = |forecast: Value| wrong(json!({"needed": 1, "forecast": forecast}));
        assert_eq!(of(json!([])), ["forecast"]);
        assert_eq!(of(json!({"in_ms": 1})), ["forecast"]);
        assert_eq!(of(json!(vec![json!({"in_ms": 1, "needed": 1}); FORESEEN_MAX + 1])), ["forecast"]);
        assert_eq!(of(json!([{"in_ms": 0, "needed": 1}, {"in_ms": 9}])), ["forecast[0].in_ms", "forecast[1].needed"]);
        assert_eq!(of(json!([{"in_ms": 9, "needed": 1}, {"in_ms": 9, "needed": 2}])), ["forecast[1].in_ms"]);
        assert_eq!(of(json!([{"in_ms": 9, "needed": 1, "p90": 2}])), ["forecast[0].p90"]);
        assert_eq!(wrong(json!({"needed": 1, "slo": {"p99_ms": 1, "limit_ms": 0}})), ["slo.limit_ms"]);
        assert_eq!(wrong(json!({"needed": 1, "slo": 5})), ["slo"]);
        let whole = demand(&json!({"needed": 1, "forecast": [{"in_ms": 9, "needed": 2}], "slo": null})).unwrap();
        assert_eq!(whole.needs.forecast, Some(vec![Foreseen { in_ms: 9, slots: 2 }]));
    }

    #[test]
    fn every_problem_is_told_at_once() {
        let problems =
            fleet(&json!({"servers": [{"sever": "a"}, {"server": "A", "slots": 0}], "offer": "x"})).unwrap_err();
        let fields: Vec<_> = problems.0.iter().map(|p| p.field.as_str()).collect();
        for field in [
            "servers[0].server",
            "servers[0].slots",
            "servers[0].sever",
            "servers[1].server",
            "servers[1].slots",
            "offer",
        ] {
            assert!(fields.contains(&field), "{field} not in {fields:?}");
        }
    }
}
