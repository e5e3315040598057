//! How long one rank's gradient takes a job on slots of each type, from what its members on slots of several types say that they have computed. Pure; part of the
//! watch (`watch.rs`), which hears it and reports it. Does not say what to do: `decide/types.rs` writes it down, `decide/proposals.rs` places ranks by it.
//!
//! Types are compared where they compute side by side, so that what else changes between two times of a job says nothing. The median of a type's members counts,
//! so that one slow server is a straggler (`straggle.rs`) and no slow type, where the type has others.

use crate::decide::types::merged;
use crate::state::{Job, State};
use crate::straggle::median;
use events_schema::control::Gradients;
use events_schema::report::Report;
use events_schema::slot_type::{SlotType, TypeTime};
use events_schema::{ExecutorId, JobId};
use std::collections::BTreeMap;

/// What members do is compared over so long at least. Short, because until then a mixed job waits for its slowest type at every step.
pub const WINDOW_MS: u64 = 10_000;
/// Gradients that every member has to have computed in a window: fewer say little.
pub const GRADIENTS_MIN: u64 = 4;
/// Windows in a row that have to say something else than what is known, before that is another time: ranks that move cost a boundary.
pub const WINDOWS: u32 = 2;

/// What members have computed when a window began, and in how many before it their types were otherwise than is known.
#[derive(Debug, Clone)]
struct Window {
    since_ms: u64,
    before: BTreeMap<ExecutorId, Gradients>,
    otherwise: u32,
}

/// The windows of all jobs that are on slots of several types.
#[derive(Debug, Clone, Default)]
pub struct TypeTimes {
    windows: BTreeMap<JobId, Window>,
}

impl TypeTimes {
    /// Forgets who is gone.
    pub fn retain(&mut self, job: impl Fn(&JobId) -> bool) {
        self.windows.retain(|id, _| job(id));
    }

    /// Takes what all members of a job have computed so far; what its types take, if that is news.
    pub fn look(
        &mut self,
        now_ms: u64,
        (id, job): (&JobId, &Job),
        totals: &BTreeMap<ExecutorId, Gradients>,
        state: &State,
    ) -> Option<Report> {
        // A first gradient may compile.
        if !state.is_mixed(job) || totals.values().any(|total| total.count == 0) {
            self.windows.remove(id);
            return None;
        }
        let known = self.windows.get(id).filter(|window| window.before.keys().eq(totals.keys())).cloned();
        let Some(window) = known else {
            self.windows.insert(id.clone(), Window { since_ms: now_ms, before: totals.clone(), otherwise: 0 });
            return None;
        };
        if now_ms.saturating_sub(window.since_ms) < WINDOW_MS {
            return None;
        }
        let times = times(job, &window.before, totals, state)?;
        let is_news = merged(&job.type_times, &times).is_some();
        let otherwise = if is_news { window.otherwise + 1 } else { 0 };
        self.windows.insert(id.clone(), Window { since_ms: now_ms, before: totals.clone(), otherwise });
        let is_known = times.iter().all(|of| job.type_times.iter().any(|known| known.slot_type == of.slot_type));
        (is_news && (!is_known || otherwise >= WINDOWS)).then(|| Report::TypesMeasured { job: id.clone(), times })
    }
}

/// What each type took in a window; none while a member did too little to tell. Who is known to straggle is slow for another reason, if its type has others.
fn times(
    job: &Job,
    before: &BTreeMap<ExecutorId, Gradients>,
    totals: &BTreeMap<ExecutorId, Gradients>,
    state: &State,
) -> Option<Vec<TypeTime>> {
    let mut units: BTreeMap<Option<SlotType>, Vec<(bool, u64)>> = BTreeMap::new();
    for (executor, total) in totals {
        let before = before.get(executor)?;
        let count = total.count.saturating_sub(before.count);
        if count < GRADIENTS_MIN {
            return None;
        }
        let unit_us = total.took_us.saturating_sub(before.took_us) / count;
        units.entry(state.type_of(executor)).or_default().push((job.stragglers.contains_key(executor), unit_us));
    }
    let time = |(slot_type, units): (Option<SlotType>, Vec<(bool, u64)>)| {
        let any_well = units.iter().any(|(straggles, _)| !straggles);
        let counted = units.into_iter().filter(|(straggles, _)| !any_well || !straggles).map(|(_, unit_us)| unit_us);
        TypeTime { slot_type, unit_us: median(counted).max(1) }
    };
    Some(units.into_iter().map(time).collect())
}
