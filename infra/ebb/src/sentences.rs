//! A public event as a sentence, for people. Pure; what is not known here is told by its fields, so a newer service is understood as far as
//! its words are.

use crate::wire::{percent, short, slow_link, words};
use serde_json::Value;
use std::time::UNIX_EPOCH;

/// What all types begin with.
const PREFIX: &str = "dev.ebb.";

/// The type of an event without what all of them begin and end with: `job.planned`.
#[must_use]
pub fn kind(event: &Value) -> &str {
    event["type"].as_str().unwrap_or_default().trim_start_matches(PREFIX).trim_end_matches(".v1")
}

/// A time of an event in milliseconds since 1970.
#[must_use]
pub fn time_ms(time: &Value) -> Option<u64> {
    let time = humantime::parse_rfc3339(time.as_str()?).ok()?;
    u64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}

/// What an event says.
#[must_use]
pub fn sentence(event: &Value) -> String {
    let data = &event["data"];
    let word = |name: &str| plain(&data[name]);
    let cause = |name: &str| words(&data[name]);
    match kind(event) {
        "job.accepted" => format!("accepted as `{}`", word("name")),
        "job.planned" => planned(data),
        "job.scaled" => format!(
            "trains on {} instead of {}, {} ms after that was decided",
            word("to"),
            counted(&data["from"], "slot"),
            word("took_ms")
        ),
        "job.suspending" => "has to write a checkpoint and give back its slots".to_owned(),
        "job.suspended" => "is suspended".to_owned(),
        "job.resumed" => "was resumed by its user".to_owned(),
        "job.cancelled" => "was cancelled by its user".to_owned(),
        "job.failed" => format!("failed: {}", word("reason")),
        "job.finished" => format!("finished at step {} with model {}", word("step"), word("model_digest")),
        "job.restarted" => format!("went back to step {}{}", word("from_step"), went_back(data)),
        "job.stalled" => format!(
            "made no progress at step {}: it waited for {}; done about it: {}",
            word("step"),
            cause("cause"),
            cause("remedy")
        ),
        "job.slot_avoided" => format!("does not use {} until {}: {}", word("slot"), word("until"), cause("cause")),
        "job.growth_paused" => {
            format!("does not grow until {}: newcomer {} was {}", word("until"), word("executor"), cause("cause"))
        }
        "executor.assigned" => format!("{} starts on {}", word("executor"), word("slot")),
        "executor.leaving" => format!("{} has to leave by {}: {}", word("executor"), word("deadline"), cause("cause")),
        "executor.gone" => format!("{} on {} ended: {}", word("executor"), word("slot"), ended(data)),
        "executor.stuck" => format!("{} on {} was killed and does not end", word("executor"), word("slot")),
        "generation.member_lost" => {
            format!("lost {} on {}: noticed by {}", word("executor"), word("slot"), cause("noticed"))
        }
        "generation.abandoned" => format!("membership {} is given up: {}", word("generation"), cause("cause")),
        "generation.peers_missing" => format!("{} cannot reach {}", word("by"), word("peers")),
        "generation.member_straggles" if data["cause"] == "network" => format!(
            "{} on {} straggles: steps take {} µs instead of {} µs, because its link became slow",
            word("executor"),
            word("slot"),
            word("unit_us"),
            word("peers_unit_us")
        ),
        "generation.member_straggles" => format!(
            "{} on {} straggles: {} µs for what takes the others {} µs{}",
            word("executor"),
            word("slot"),
            word("unit_us"),
            word("peers_unit_us"),
            match data["cause"].as_str() {
                None => "",
                Some("compute") => ", because it computes more slowly",
                Some("data") => ", because it waits for rows",
                Some(_) => ", for another reason",
            }
        ),
        "generation.replicas_differed" if data["slots"].as_array().is_some_and(Vec::is_empty) => format!(
            "replicas differed at step {}, and no majority was equal; it goes back to its last checkpoint",
            word("step")
        ),
        "generation.replicas_differed" => format!(
            "{} on {} had other replicas than the others at step {}; nothing is trained there any more, and it goes back to its last checkpoint",
            word("executors"),
            word("slots"),
            word("step")
        ),
        "checkpoint.damaged" => format!(
            "the checkpoint of step {} is damaged ({}); step {} is used instead",
            word("step"),
            word("reason"),
            word("instead_step")
        ),
        "checkpoint.unreadable" => {
            format!("the checkpoint of step {} needs another build: {}", word("step"), word("reason"))
        }
        "fleet.demand" => format!(
            "fleet {} said that it needs {} of its slots (signal {})",
            word("fleet"),
            word("needed"),
            word("sequence")
        ),
        "fleet.recalled" if data["slots"].is_null() => {
            format!("fleet {} was recalled: all its slots stay with it", word("fleet"))
        }
        "fleet.recalled" => {
            format!("fleet {} was recalled: {} of its slots stay with it", word("fleet"), word("slots"))
        }
        "fleet.released" => format!("fleet {} was released: its demand decides again", word("fleet")),
        "fleet.declared" => format!("fleet {} declares {}", word("fleet"), word("slots")),
        "tenant.quota_set" if data["quota_slots"].is_null() => {
            format!("tenant {} has no quota any more", word("tenant"))
        }
        "tenant.quota_set" => {
            format!("tenant {} has {} guaranteed", word("tenant"), counted(&data["quota_slots"], "slot"))
        }
        "slot.offered" => format!("fleet {} lends {}", word("fleet"), word("slots")),
        "slot.borrowed" => format!("{} is used from now on", word("slot")),
        "slot.reclaimed" => format!("{} has to be free by {}: {}", word("slot"), word("deadline"), cause("cause")),
        "slot.returned" if data["took_ms"].is_null() => format!("{} is free", word("slot")),
        "slot.returned" => format!("{} is free, {} ms after it was asked back", word("slot"), word("took_ms")),
        "slot.quarantined" => format!("{} is of no use: {}", word("slot"), word("reason")),
        "slot.recovered" => format!("the device of {} is as it was", word("slot")),
        "agent.joined" => format!("server {} is there with {}", word("server"), counted(&data["slots"], "slot")),
        "job.evaluated" => {
            format!("was evaluated at step {}: loss {}", word("step"), plain(&data["evaluation"]["loss"]))
        }
        "executor.ready" => format!("{} is built and can join", word("executor")),
        "executor.replica_held" => format!("{} holds the whole replica of step {}", word("executor"), word("step")),
        "generation.proposed" => {
            let members = counted(&count(&data["members"]).into(), "member");
            format!("membership {} is proposed, with {members}{}", word("generation"), at_once(data))
        }
        "generation.active" => {
            format!("membership {} is in force from step {} on", word("generation"), word("step"))
        }
        "generation.throughput_measured" => {
            let what = if data["stride"].is_null() { "a step" } else { "an update" };
            let error = data["error_micro"].as_u64().and_then(|micro| u32::try_from(micro).ok());
            let sure = error.map(|micro| format!(" ± {}", percent(micro))).unwrap_or_default();
            let on = counted(&data["members"], "slot");
            format!("{what} takes {} µs{sure} on {on}{}", word("step_us"), at_once(data))
        }
        "generation.stepped" => format!("step {} of membership {} is its first", word("step"), word("generation")),
        "generation.departed" => format!("{} left at step {}; the others go on", word("executor"), word("step")),
        "generation.member_keeps_up" => format!("{} keeps up again", word("executor")),
        "checkpoint.accepted" => format!("the checkpoint of step {} counts ({} bytes)", word("step"), word("bytes")),
        "dataset.registered" => format!("dataset {} is there with {} rows", word("dataset"), word("rows")),
        "dataset.removed" => format!("dataset {} is forgotten", word("dataset")),
        "fleet.signals_refused" => {
            format!("{} signals of fleet {} could not be used: {}", word("count"), word("fleet"), word("reason"))
        }
        "server.forgotten" => format!("server {} is forgotten: it was gone for long", word("server")),
        "server.link_measured" => {
            let rate = data["bytes_per_s"].as_u64().unwrap_or_default() as f64 / 1e6;
            format!("the link of server {} carries {rate:.1} MB/s from {}", word("server"), word("from"))
        }
        "command.refused" => format!("what was asked about {} was refused: {}", word("subject"), word("reason")),
        "input.refused" => {
            format!("the record at {} of `{}` was passed over: {}", word("offset"), word("stream"), word("reason"))
        }
        "plan.failed" => format!("policy {} gave no plan: {}", word("policy"), word("reason")),
        "policy.chosen" => format!("policy {} plans from now on", word("policy")),
        "store.swept" => {
            format!("{} objects that nothing counts were deleted, {} bytes", word("objects"), word("bytes"))
        }
        "agent.gone" => format!("server {} is not heard of any more", word("server")),
        other => {
            let fields = data.as_object().into_iter().flatten();
            let told: Vec<String> = fields.map(|(name, value)| format!("{name}: {}", words(value))).collect();
            format!("{other}  {}", told.join("  "))
        }
    }
}

/// Why a job went back, and what of it is known. Earlier builds did not say why.
fn went_back(data: &Value) -> String {
    let (who, cause) = (plain(&data["executors"]), words(&data["cause"]));
    let noticed = words(&data["noticed"]);
    match (cause.as_str(), who.is_empty()) {
        ("", _) => String::new(),
        ("lost", _) => format!(": {who} was lost (noticed by {noticed}), and nobody that was to stay had the replica"),
        ("left", _) => ": its slots changed, and whoever had the replica had to leave".to_owned(),
        ("stalled", true) => format!(": it did not get past that step, waiting for {}", words(&data["stall"])),
        ("stalled", false) => format!(": {who} held up the others, which waited for {}", words(&data["stall"])),
        ("differed", true) => ": its members had different replicas, and no majority was equal".to_owned(),
        ("differed", false) => format!(": {who} had another replica than the others"),
        (cause, _) => format!(": {cause} {who}").trim_end().to_owned(),
    }
}

/// So many of them.
#[must_use]
pub fn counted(count: &Value, what: &str) -> String {
    let plural = if count.as_u64() == Some(1) { "" } else { "s" };
    format!("{} {what}{plural}", plain(count))
}

fn count(items: &Value) -> usize {
    items.as_array().map_or(0, Vec::len)
}

/// As it stands: names may hold what a word's `_` stands for.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        other => words(other),
    }
}

/// How large the batches are, of a job that says a range of them.
fn at_once(data: &Value) -> String {
    data["stride"].as_u64().map_or_else(String::new, |steps| format!(", of {steps} steps at once"))
}

fn planned(data: &Value) -> String {
    let (from, to) = (data["from"].as_u64(), data["to"].as_u64().unwrap_or_default());
    let size = match from {
        Some(from) => format!("{from} → {}", counted(&to.into(), "slot")),
        None => counted(&to.into(), "slot"),
    };
    let why = match data["cause"].as_str().unwrap_or_default() {
        "guarantee" => "its guaranteed minimum",
        "gain" => "slots were there, and its policy gave them to it",
        "reclaimed" => "a fleet takes slots back",
        "gave_way" => "another job goes first",
        "lost" => "a process or a server was lost",
        "nothing" => "it waits, is suspended or has ended",
        "speed" => "it was measured to be as fast, or faster, on fewer slots",
        "link" => "the link of a server is too slow for its gradients",
        "profile" => "its speed is measured at this size (`profile`)",
        other => other,
    };
    let waits = &data["waits"];
    let missing = waits["missing"].as_u64();
    let waits = match waits["what"].as_str() {
        None => String::new(),
        Some("slots") => format!("; waits for {} more that others have", missing.unwrap_or_default()),
        Some("job") => format!("; waits behind {}", plain(&waits["job"])),
        Some("resume") => "; waits for its user".to_owned(),
        Some("device") => "; waits for a slot with a device, and no fleet has one".to_owned(),
        Some("class") => {
            let class = short(waits["class"].as_str().unwrap_or_default());
            format!("; waits for a slot of its numeric class ({class}): all others that are lent are of another one")
        }
        Some("type") => {
            "; waits for a slot of the type that it is on: all others that are lent are of another one, and it is on one at a time".to_owned()
        }
        Some("quota") => format!("; waits for {} more of its tenant's quota", missing.unwrap_or_default()),
        Some("speed") => "; on more slots it was measured to be no faster".to_owned(),
        Some("link") => match serde_json::from_value(waits["link"].clone()) {
            Ok(link) => format!("; waits for a server with a faster link: {}", slow_link(&link)),
            Err(_) => "; waits for a server with a faster link".to_owned(),
        },
        Some("offers") => "; waits for any slot to be lent".to_owned(),
        Some("backoff") => format!("; tried again after {}", plain(&waits["until"])),
        Some(other) => format!("; waits for {other}"),
    };
    let slots = if to == 0 { String::new() } else { format!(" ({})", plain(&data["slots"])) };
    format!("{size}{slots}: {why}{waits} (policy {})", plain(&data["policy"]))
}

fn ended(data: &Value) -> String {
    let how = words(&data["exit"]);
    match (data["status"].as_i64(), data["signal"].as_i64(), data["reason"].as_str()) {
        (Some(_), _, Some(why)) => why.to_owned(),
        (Some(status), ..) => format!("{how} {status}"),
        (_, Some(signal), _) => format!("{how} {signal}"),
        (.., Some(reason)) => format!("{how}: {reason}"),
        _ => how,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_plan_says_its_size_its_cause_and_what_is_waited_for() {
        let event = json!({"type": "dev.ebb.job.planned.v1", "data": {"job": "job-a", "from": 4, "to": 2, "slots": ["local/0", "local/1"],
            "cause": "reclaimed", "waits": {"what": "slots", "missing": 2}, "policy": "ebb"}});
        assert_eq!(
            sentence(&event),
            "4 → 2 slots (local/0, local/1): a fleet takes slots back; waits for 2 more that others have (policy ebb)"
        );
    }

    #[test]
    fn one_is_said_of_one() {
        let said = |kind: &str, data: Value| sentence(&json!({"type": format!("dev.ebb.{kind}.v1"), "data": data}));
        assert_eq!(said("agent.joined", json!({"server": "a", "slots": 1})), "server a is there with 1 slot");
        assert_eq!(said("agent.joined", json!({"server": "a", "slots": 0})), "server a is there with 0 slots");
        let proposed = json!({"generation": 3, "members": [{"executor": "job-a/e0"}]});
        assert_eq!(said("generation.proposed", proposed), "membership 3 is proposed, with 1 member");
        let planned = json!({"from": 2, "to": 1, "slots": ["local/0"], "cause": "gave_way", "policy": "ebb"});
        assert!(said("job.planned", planned).starts_with("2 → 1 slot (local/0)"));
    }

    #[test]
    fn a_measurement_says_how_sure_it_is_where_that_is_known() {
        let said = |data: Value| sentence(&json!({"type": "dev.ebb.generation.throughput_measured.v1", "data": data}));
        assert_eq!(said(json!({"members": 2, "step_us": 10_000})), "a step takes 10000 µs on 2 slots");
        let sure = json!({"members": 2, "step_us": 10_000, "stride": 4, "error_micro": 31_400, "updates": 9});
        assert_eq!(said(sure), "an update takes 10000 µs ± 3.1 % on 2 slots, of 4 steps at once");
    }

    #[test]
    fn a_restart_says_why_and_claims_nothing_that_it_does_not_know() {
        let told = |data: Value| sentence(&json!({"type": "dev.ebb.job.restarted.v1", "data": data}));
        for (data, said) in [
            (json!({"from_step": 40}), "went back to step 40"),
            (
                json!({"from_step": 40, "cause": "lost", "executors": ["job-a/e3"], "noticed": "lease"}),
                "went back to step 40: job-a/e3 was lost (noticed by lease), and nobody that was to stay had the replica",
            ),
            (
                json!({"from_step": 40, "cause": "left"}),
                "went back to step 40: its slots changed, and whoever had the replica had to leave",
            ),
            (
                json!({"from_step": 40, "cause": "stalled", "executors": ["job-a/e1", "job-a/e2"], "stall": "unit"}),
                "went back to step 40: job-a/e1, job-a/e2 held up the others, which waited for unit",
            ),
            (
                json!({"from_step": 0, "cause": "differed", "executors": ["job-a/e1"]}),
                "went back to step 0: job-a/e1 had another replica than the others",
            ),
            (json!({"from_step": 0, "cause": "moved_on"}), "went back to step 0: moved on"),
        ] {
            assert_eq!(told(data), said);
        }
    }

    #[test]
    fn times_are_read_to_the_millisecond() {
        assert_eq!(time_ms(&json!("2026-02-02T02:40:00.123Z")), Some(1_770_000_000_123));
        assert_eq!((time_ms(&json!("soon")), time_ms(&Value::Null)), (None, None));
    }

    #[test]
    fn every_type_of_today_has_a_sentence() {
        // Progress is shown as bars, not as a sentence.
        for kind in events_public::kinds().filter(|kind| *kind != events_public::JOB_PROGRESS) {
            let said = sentence(&json!({"type": kind, "data": {}}));
            assert!(!said.starts_with(super::kind(&json!({ "type": kind }))), "{kind}: {said}");
        }
    }

    #[test]
    fn an_unknown_event_is_told_by_its_fields() {
        let event = json!({"type": "dev.ebb.job.sang.v1", "data": {"song": "sea_shanty"}});
        assert_eq!(sentence(&event), "job.sang  song: sea shanty");
    }
}
