//! Phase 2 of `lyra`: slots beyond the fewest, by a knapsack for each class.
//!
//! A job on one type is a group in the knapsack of its class. One that may be on several is a group in that of its *flexible class*: the one that it has slots of
//! beyond its fewest, or if it has none, the one where it gains most, of equals rather one that fleets may want back. It has to come no earlier in the
//! job's order of classes than its base demand, or that would be another one in the next plan.
//!
//! So who got nothing where it was, or less than it could have of what is idle elsewhere, asks there, and a plan is what such rounds come to that change nothing
//! any more. They end: with each all knapsacks together are worth more, of the most important jobs first. A group that got nothing leaves its knapsack worth what it
//! was, and one that moves takes less away than what is idle is worth to it; where all are worth the same, everybody stays as it is.

use super::super::{FASTEST_MILLI, Part, View};
use super::base::Base;
use super::knapsack::{Group, Item, choose};
use super::{own_first, times_ms};
use std::cell::OnceCell;
use std::cmp::Reverse;

/// Rounds of one plan at most: more than a few there are only where very much changed at once.
const ROUNDS_MAX: usize = 64;

/// A job moves what it has beyond its fewest to another class if that saves it more time by one part in so many: each move is a pause.
const MOVE_PART: u64 = 4;

/// What a job has beyond its fewest slots, or may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extra {
    pub job: usize,
    pub class: usize,
    pub slots: u16,
}

/// What everybody gets beyond its fewest slots.
pub(super) fn flexible_demand(view: &View, base: &Base) -> Vec<Extra> {
    let flexible = Flexible::of(view, base);
    let (mut asks, mut before) = (flexible.placed(flexible.held()), None);
    for _ in 0..ROUNDS_MAX {
        let given = flexible.share_out(&asks, before.as_deref());
        asks = flexible.placed(given.clone());
        if asks == given {
            break;
        }
        before = Some(given);
    }
    asks
}

/// A job that can use more than its fewest slots.
struct Wanting {
    job: usize,
    /// The classes that it may have them of, and what sizes are worth there; of those that are as fast it stands at the first one.
    classes: Vec<(usize, OnceCell<Vec<Item>>)>,
}

pub(super) struct Flexible<'a> {
    view: &'a View,
    base: &'a Base,
    /// The most important ones first.
    jobs: Vec<Wanting>,
}

impl<'a> Flexible<'a> {
    pub fn of(view: &'a View, base: &'a Base) -> Self {
        let is_flexible = |job: &usize| !base.parts[*job].is_empty() && view.jobs[*job].max > view.jobs[*job].min;
        let mut jobs: Vec<usize> = (0..view.jobs.len()).filter(is_flexible).collect();
        jobs.sort_by_key(|&job| Reverse(view.jobs[job].priority));
        let wanting = |job: usize| {
            let classes = flexible_classes(view, job, &base.parts[job]);
            Wanting { job, classes: classes.into_iter().map(|class| (class, OnceCell::new())).collect() }
        };
        Self { view, base, jobs: jobs.into_iter().map(wanting).collect() }
    }

    /// What they have now. Of a job with such slots of several classes those of the most count, and the others are let go.
    pub fn held(&self) -> Vec<Extra> {
        let held = |wanting: &Wanting| {
            let (job, of) = (wanting.job, &self.view.jobs[wanting.job]);
            let beyond = |class: usize| {
                let fewest = self.base.parts[job].iter().find(|part| part.class == class).map_or(0, |part| part.slots);
                self.view.held_of(job, class).saturating_sub(fewest).min(of.max - of.min)
            };
            let all = wanting.classes.iter().map(|(class, _)| Extra { job, class: *class, slots: beyond(*class) });
            all.reduce(|most, next| if next.slots > most.slots { next } else { most })
        };
        self.jobs.iter().filter_map(held).collect()
    }

    /// Who may have slots of several classes asks where it gains most of what nobody has: if it has nothing, or gains far more there. Who has nothing, where there
    /// is nothing, asks where it would gain most of all there is.
    fn placed(&self, mut asks: Vec<Extra>) -> Vec<Extra> {
        let mut room = self.base.pool.clone();
        for extra in &asks {
            room[extra.class] = room[extra.class].saturating_sub(extra.slots.into());
        }
        for (at, best) in self.choosing(&asks) {
            let (wanting, extra) = (&self.jobs[at], &mut asks[at]);
            let found = self.elsewhere(wanting, extra, &room);
            if let Some((class, best)) = found {
                *extra = Extra { class, slots: 0, ..*extra };
                room[class] -= best.weight;
            } else if let Some((class, _)) = best {
                extra.class = class;
            }
        }
        asks
    }

    /// Who may have slots of several classes, the most important first; of those that have none first who would gain most of all there is, because others can do with
    /// what it leaves. And where that is.
    fn choosing(&self, asks: &[Extra]) -> Vec<(usize, Option<(usize, Item)>)> {
        let several = (0..asks.len()).filter(|&at| self.jobs[at].classes.len() > 1);
        let best = |at: usize| self.best(&self.jobs[at], &self.base.pool, |_| true);
        let mut choosing: Vec<_> = several.map(|at| (at, if asks[at].slots > 0 { None } else { best(at) })).collect();
        choosing.sort_by_key(|&(at, best)| {
            let (priority, has) = (self.view.jobs[asks[at].job].priority, asks[at].slots > 0);
            (Reverse(priority), has, Reverse(best.map(|(_, item)| item.value)), at)
        });
        choosing
    }

    /// The class where a job gains more than by what it has, and how many slots that are there it takes for it.
    fn elsewhere(&self, wanting: &Wanting, extra: &Extra, room: &[u32]) -> Option<(usize, Item)> {
        if extra.slots == 0 {
            return self.best(wanting, room, |_| true);
        }
        let of = &self.view.jobs[extra.job];
        if !of.settled {
            return None;
        }
        let speed = |class: usize| self.view.mixture(extra.job).map_or(0, |of| of.speed_milli[class]);
        // Nobody gains by as many slots that are no faster.
        let is_more = |class: usize| {
            let (has_all, is_faster) = (extra.slots == of.max - of.min, speed(class) > speed(extra.class));
            class != extra.class && room[class] > 0 && (is_faster || !has_all && room[class] > extra.slots.into())
        };
        let found = self.best(wanting, room, is_more)?;
        let place = wanting.classes.iter().position(|(class, _)| *class == extra.class)?;
        let has = self.items(wanting, place).iter().find(|item| item.weight == u32::from(extra.slots));
        let has = has.map_or(0, |item| item.value);
        (found.1.value > has + has / MOVE_PART).then_some(found)
    }

    /// Where a job gains most of so much room, of equals rather of a class that may be wanted back; none if it gains nothing.
    fn best(&self, wanting: &Wanting, room: &[u32], among: impl Fn(usize) -> bool) -> Option<(usize, Item)> {
        let gain = |(at, (class, _)): (usize, &(usize, OnceCell<Vec<Item>>))| {
            let fits = self.items(wanting, at).iter().filter(|item| item.weight <= room[*class]);
            Some((*class, *fits.max_by_key(|item| (item.value, Reverse(item.weight)))?))
        };
        let classes = wanting.classes.iter().enumerate().filter(|(_, (class, _))| among(*class) && room[*class] > 0);
        // The first of equals.
        let key = |(class, item): &(usize, Item)| (item.value, self.view.classes[*class].wanted_back);
        classes.filter_map(gain).reduce(|best, next| if key(&next) > key(&best) { next } else { best })
    }

    /// One round: what everybody gets of the class that it asks for, after what was given in the round before. Who was resized a moment ago keeps what it has, if
    /// there is room.
    fn share_out(&self, asks: &[Extra], before: Option<&[Extra]>) -> Vec<Extra> {
        let mut given = asks.to_vec();
        for class in 0..self.base.pool.len() {
            let is_same = |(ask, given): (&Extra, &Extra)| ask == given || ask.class != class && given.class != class;
            // Asked for what it has given a knapsack gives the same; one that was too large to be exact is not asked again.
            if before.is_some_and(|before| asks.iter().zip(before).all(is_same)) {
                continue;
            }
            let mut left = self.base.pool[class];
            let of_class: Vec<usize> = (0..asks.len()).filter(|&at| asks[at].class == class).collect();
            let priority = |at: usize| self.view.jobs[asks[at].job].priority;
            for peers in of_class.chunk_by(|&a, &b| priority(a) == priority(b)) {
                let rests = |at: usize| {
                    let of = &self.view.jobs[asks[at].job];
                    !of.settled && (of.held > 0 || before.is_some())
                };
                let kept: u32 = peers.iter().filter(|&&at| rests(at)).map(|&at| u32::from(asks[at].slots)).sum();
                let fits = kept <= left;
                left -= if fits { kept } else { 0 };
                let moving: Vec<usize> = peers.iter().copied().filter(|&at| !(fits && rests(at))).collect();
                let groups: Vec<Group<'_>> = moving.iter().map(|&at| self.group(at, &asks[at])).collect();
                for (&at, slots) in moving.iter().zip(choose(&groups, left)) {
                    left -= slots;
                    given[at].slots = slots as u16;
                }
            }
        }
        given
    }

    pub fn group(&self, at: usize, asks: &Extra) -> Group<'_> {
        let wanting = &self.jobs[at];
        let place = wanting.classes.iter().position(|(class, _)| *class == asks.class);
        let items = place.map_or(&[][..], |place| self.items(wanting, place));
        Group { items, present: asks.slots.into() }
    }

    fn items<'b>(&self, wanting: &'b Wanting, at: usize) -> &'b [Item] {
        let speed = |class: usize| self.view.mixture(wanting.job).map(|of| of.speed_milli[class]);
        let of_class = &wanting.classes[at];
        let (class, items) =
            wanting.classes.iter().find(|(first, _)| speed(*first) == speed(of_class.0)).unwrap_or(of_class);
        items.get_or_init(|| self.worth(wanting.job, *class))
    }

    /// What each number of slots of a class beside its fewest is worth to a job.
    fn worth(&self, job: usize, class: usize) -> Vec<Item> {
        let (view, of) = (self.view, &self.view.jobs[job]);
        let is_fastest = |class: usize| view.mixture(job).is_none_or(|of| of.speed_milli[class] == FASTEST_MILLI);
        let time_ms = times_ms(view, job);
        // As on one type.
        if is_fastest(class) && self.base.parts[job].iter().all(|part| is_fastest(part.class)) {
            return sizes(of.min..=of.max, 1, |slots| time_ms(slots, 1.0));
        }
        let mut parts = self.base.parts[job].clone();
        let place = parts.iter().position(|part| part.class == class).unwrap_or_else(|| {
            parts.push(Part { job, class, slots: 0 });
            parts.len() - 1
        });
        let fewest = parts[place].slots;
        sizes(of.min..=of.max, 1, |slots| {
            parts[place].slots = fewest + (slots - of.min);
            time_ms(slots, view.mixed_factor(job, &parts))
        })
    }
}

/// The classes that flexible demand of a job may be of.
pub(super) fn flexible_classes(view: &View, job: usize, base: &[Part]) -> Vec<usize> {
    let Some(first) = base.first().filter(|_| view.jobs[job].mixes.is_some()) else {
        return base.iter().map(|part| part.class).collect();
    };
    let beside = view.suiting(job).filter(|&class| view.classes[first.class].mixes_with(&view.classes[class]));
    let mut classes = own_first(view, job, beside);
    match classes.iter().rposition(|class| base.iter().any(|part| part.class == *class)) {
        Some(last) => classes.split_off(last),
        None => vec![first.class],
    }
}

/// The larger sizes of a job, by workers of so many slots: what they weigh beyond the fewest, and what time they save.
pub(super) fn sizes(
    workers: std::ops::RangeInclusive<u16>,
    slots: u32,
    mut time_ms: impl FnMut(u16) -> Option<u64>,
) -> Vec<Item> {
    let fewest = *workers.start();
    let Some(longest) = time_ms(fewest) else { return Vec::new() };
    let item = |workers: u16| {
        let saved = longest.checked_sub(time_ms(workers)?).filter(|saved| *saved > 0)?;
        Some(Item { weight: u32::from(workers - fewest) * slots, value: saved })
    };
    let mut items = Vec::with_capacity(workers.len());
    items.extend(workers.skip(1).filter_map(item));
    items
}
