//! Phase 1 of `lyra`: whose fewest slots are there, and of which class. What jobs have beyond them is not looked at here, and must not be: it follows from this.
//!
//! Of a job on several types its base demand is of what it has the fewest that count first in one order of the types ([`own_first`]), whatever it has of which. So it
//! is the same before a plan and after, as long as flexible demand is on no type that comes before the last one of these.

use super::super::{Part, View, Wait};
use super::{own_first, time_ms};
use std::cmp::Reverse;

/// Everybody's base demand.
pub(super) struct Base {
    /// What it is made of, by job; nothing of one that waits.
    pub parts: Vec<Vec<Part>>,
    /// Why a job waits.
    pub waits: Vec<Option<Wait>>,
    /// What is left of each class.
    pub pool: Vec<u32>,
}

impl Base {
    /// Of a view.
    pub fn of(view: &View) -> Self {
        let pool: Vec<u32> = view.classes.iter().map(|class| class.capacity).collect();
        let mut base = Self { parts: vec![Vec::new(); view.jobs.len()], waits: vec![None; view.jobs.len()], pool };
        let length_ms = |job: usize| time_ms(view, job, view.jobs[job].min).unwrap_or(u64::MAX);
        let order = |job: usize| (Reverse(view.jobs[job].priority), length_ms(job), job);
        let (holding, mut waiting): (Vec<usize>, Vec<usize>) =
            (0..view.jobs.len()).partition(|&job| view.jobs[job].held > 0 && view.jobs[job].class.is_some());
        // Who lost some of its fewest on several types gets others when all who have theirs have kept them.
        let has_all = |job: &usize| view.jobs[*job].mixes.is_none() || view.jobs[*job].held >= view.jobs[*job].min;
        let (holding, bereft): (Vec<usize>, Vec<usize>) = holding.into_iter().partition(has_all);
        let mut holding: Vec<(usize, Vec<Part>)> = holding.into_iter().map(|job| (job, fewest(view, job))).collect();
        let mut wanted = vec![0u64; base.pool.len()];
        for part in holding.iter().flat_map(|(_, parts)| parts) {
            wanted[part.class] += u64::from(part.slots);
        }
        // Where there is room for all of them, which is nearly always, none comes first.
        if wanted.iter().zip(&base.pool).any(|(wanted, room)| *wanted > u64::from(*room)) {
            holding.sort_by_cached_key(|(job, _)| order(*job));
        }
        for (job, parts) in holding {
            match parts.iter().all(|part| base.pool[part.class] >= u32::from(part.slots)) {
                true => base.take(job, parts),
                false => waiting.push(job),
            }
        }
        for mut jobs in [bereft, waiting] {
            jobs.sort_by_cached_key(|job| order(*job));
            jobs.into_iter().for_each(|job| base.start(view, job));
        }
        base
    }

    fn take(&mut self, job: usize, parts: Vec<Part>) {
        parts.iter().for_each(|part| self.pool[part.class] -= u32::from(part.slots));
        self.parts[job] = parts;
    }

    /// The fewest slots of a job that does not have them, or why it has none.
    fn start(&mut self, view: &View, job: usize) {
        let slots = view.jobs[job].min;
        let found = match view.jobs[job].mixes {
            None => {
                let class = view.roomiest(view.suiting(job), &self.pool, slots);
                class.map(|class| vec![Part { job, class, slots }])
            }
            Some(_) => self.on_several(view, job),
        };
        match found {
            Some(parts) => self.take(job, parts),
            None => self.waits[job] = Some(Wait::Slots(self.missing(view, job))),
        }
    }

    /// Of the first class that has room for all of them; else of as many as it takes. What a job has comes first.
    fn on_several(&self, view: &View, job: usize) -> Option<Vec<Part>> {
        let mut classes = own_first(view, job, view.suiting(job));
        let has = |class: usize| view.mixture(job).is_some_and(|of| of.held[class] > 0);
        classes.sort_by_key(|&class| !has(class));
        let slots = view.jobs[job].min;
        // A job that has some on two types keeps to both, rather than to move to one.
        let fits = |&&class: &&usize| self.pool[class] >= u32::from(slots) && (has(class) || view.jobs[job].held == 0);
        if let Some(&class) = classes.iter().find(fits) {
            return Some(vec![Part { job, class, slots }]);
        }
        let together = |first: &usize| {
            let group = classes.iter().copied().filter(|&class| view.classes[*first].mixes_with(&view.classes[class]));
            first_of(job, group, slots, |class| self.pool[class])
        };
        classes.iter().find_map(together)
    }

    fn missing(&self, view: &View, job: usize) -> u32 {
        let beside = |first: usize| match view.jobs[job].mixes {
            None => self.pool[first],
            Some(_) => {
                let group = view.suiting(job).filter(|&class| view.classes[first].mixes_with(&view.classes[class]));
                group.map(|class| self.pool[class]).sum()
            }
        };
        let most = view.suiting(job).map(beside).max().unwrap_or(0);
        u32::from(view.jobs[job].min).saturating_sub(most).max(1)
    }
}

/// Which of the slots that a job has are its fewest.
fn fewest(view: &View, job: usize) -> Vec<Part> {
    let of = &view.jobs[job];
    match (view.mixture(job), of.class) {
        (Some(mixture), _) => {
            let classes = own_first(view, job, (0..mixture.held.len()).filter(|&class| mixture.held[class] > 0));
            first_of(job, classes.into_iter(), of.min, |class| mixture.held[class].into()).unwrap_or_default()
        }
        (None, Some(class)) => vec![Part { job, class, slots: of.min }],
        (None, None) => Vec::new(),
    }
}

/// So many slots of the first classes that have any; none if all of them have not so many.
fn first_of(
    job: usize,
    classes: impl Iterator<Item = usize>,
    slots: u16,
    there: impl Fn(usize) -> u32,
) -> Option<Vec<Part>> {
    let (mut parts, mut missing) = (Vec::new(), u32::from(slots));
    for class in classes {
        let slots = missing.min(there(class));
        if slots > 0 {
            parts.push(Part { job, class, slots: slots as u16 });
            missing -= slots;
        }
    }
    (missing == 0).then_some(parts)
}
