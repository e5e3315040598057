//! Which events a subscriber wants: those of a job or a fleet, of some types, about one subject. Pure.

use crate::problem::{ApiError, Kind};
use crate::query::Query;
use events_public::{JOB_PROGRESS, PublicEvent, kinds};
use events_schema::fact::Fact;
use events_schema::fields::nearest;
use events_schema::{FleetId, JobId};

/// Types that one request may name: more than there are kinds of things to be told of.
const TYPES_MAX: usize = 16;
/// Longest subject: an executor's id is the longest name there is.
const SUBJECT_LEN_MAX: usize = 256;
/// What every type begins with; a request may leave it out.
const PREFIX: &str = "dev.ebb.";

/// Of whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Of {
    /// Of all.
    Everything,
    /// Of one job.
    Job(JobId),
    /// Of one fleet and its slots.
    Fleet(FleetId),
}

/// Which events are wanted.
#[derive(Debug)]
pub struct Selection {
    of: Of,
    /// Beginnings of types, or whole ones; all if there are none.
    types: Vec<Wanted>,
    subject: Option<String>,
}

/// Types of events.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    One(String),
    /// All that begin so.
    Beginning(String),
}

impl Wanted {
    fn holds(&self, kind: &str) -> bool {
        match self {
            Wanted::One(wanted) => kind == wanted,
            Wanted::Beginning(beginning) => kind.starts_with(beginning.as_str()),
        }
    }
}

impl Selection {
    /// Parameters that select.
    pub const PARAMETERS: [&str; 2] = ["type", "subject"];

    /// Reads `type` and `subject`.
    pub fn parse(of: Of, query: &Query) -> Result<Self, ApiError> {
        let types = query.text("type").map(types).transpose()?.unwrap_or_default();
        let expected = format!("the id or name of what events are about, of 1 to {SUBJECT_LEN_MAX} characters");
        let legal = |text: &str| (1..=SUBJECT_LEN_MAX).contains(&text.len()).then(|| text.to_owned());
        let subject = query.get("subject", &expected, legal)?;
        Ok(Self { of, types, subject })
    }

    /// The job whose progress is to be told, if it is wanted.
    #[must_use]
    pub fn progress_of(&self) -> Option<&JobId> {
        let Of::Job(job) = &self.of else { return None };
        let kind = self.types.is_empty() || self.types.iter().any(|wanted| wanted.holds(JOB_PROGRESS));
        let subject = self.subject.as_deref().is_none_or(|subject| subject == job.as_str());
        (kind && subject).then_some(job)
    }

    /// The public event of a fact, if it is wanted.
    #[must_use]
    pub fn event(&self, fact: &Fact) -> Option<PublicEvent> {
        let event = PublicEvent::of(fact)?;
        let whose = match &self.of {
            Of::Everything => true,
            Of::Job(job) => event.subject() == job.as_str(),
            Of::Fleet(fleet) => event.fleet() == Some(fleet.as_str()),
        };
        let kind = self.types.is_empty() || self.types.iter().any(|wanted| wanted.holds(event.kind()));
        let subject = self.subject.as_deref().is_none_or(|subject| event.subject() == subject);
        (whose && kind && subject).then_some(event)
    }
}

fn types(text: &str) -> Result<Vec<Wanted>, ApiError> {
    let names: Vec<&str> = text.split(',').map(str::trim).collect();
    if names.len() > TYPES_MAX {
        return Err(ApiError::of_field(Kind::InvalidQuery, "type", text, format!("at most {TYPES_MAX} types")));
    }
    names.into_iter().map(one_type).collect()
}

fn one_type(name: &str) -> Result<Wanted, ApiError> {
    let full = if name.starts_with(PREFIX) { name.to_owned() } else { format!("{PREFIX}{name}") };
    let wanted = match full.strip_suffix('*') {
        Some(beginning) => Wanted::Beginning(beginning.to_owned()),
        None => Wanted::One(full),
    };
    if kinds().any(|kind| wanted.holds(kind)) {
        return Ok(wanted);
    }
    let near = nearest(name, kinds().map(|kind| kind.trim_start_matches(PREFIX)));
    let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
    let expected = format!("types of events with commas between, for example `job.scaled.v1,slot.*`{near}");
    Err(ApiError::of_field(Kind::InvalidQuery, "type", name, expected))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::SlotId;

    fn selection(of: Of, raw: &str) -> Result<Selection, ApiError> {
        Selection::parse(of, &Query::parse(Some(raw), &Selection::PARAMETERS).unwrap())
    }

    fn returned(fleet: &str) -> Fact {
        let slot: SlotId = "local/0".parse().unwrap();
        Fact::SlotReturned { slot, fleet: Some(FleetId::parse(fleet).unwrap()), took_ms: None }
    }

    #[test]
    fn types_are_whole_or_beginnings_with_or_without_what_all_begin_with() {
        for raw in
            ["", "type=slot.*", "type=dev.ebb.slot.returned.v1", "type=job.*,slot.returned.v1", "subject=local/0"]
        {
            assert!(selection(Of::Everything, raw).unwrap().event(&returned("chat")).is_some(), "{raw}");
        }
        for raw in ["type=job.*", "subject=local/1"] {
            assert!(selection(Of::Everything, raw).unwrap().event(&returned("chat")).is_none(), "{raw}");
        }
    }

    #[test]
    fn a_type_that_is_none_is_refused_with_the_nearest() {
        let error = selection(Of::Everything, "type=job.scalled.v1").unwrap_err();
        assert!(error.detail.contains("did you mean `job.scaled.v1`?"), "{}", error.detail);
        assert!(selection(Of::Everything, "type=").is_err());
        assert!(selection(Of::Everything, &format!("type={}", vec!["job.*"; 17].join(","))).is_err());
    }

    #[test]
    fn a_fleets_events_are_of_its_slots() {
        let chat = selection(Of::Fleet(FleetId::parse("chat").unwrap()), "").unwrap();
        assert!(chat.event(&returned("chat")).is_some() && chat.event(&returned("search")).is_none());
    }
}
