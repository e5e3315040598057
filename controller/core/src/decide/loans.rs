//! Growth that fits its loan: a job that trains is not given slots that are likely to be wanted again before it has started and copied its replica there, and
//! trained for as long.
//!
//! How long a loan is going to last, the forecast of its fleet says (`ahead.rs`); what goes back first is idle, in the order of `victims.rs`. A server of which
//! some idle slots stay is as good as any. Rather for a short time than not at all: a job's fewest slots are not looked at in this way.

use super::idle::Idle;
use super::{ahead, victims};
use crate::limits::{LOAN_TIMES, START_ASSUMED_MS};
use crate::policy::Packing;
use crate::state::past::HORIZONS;
use crate::state::{Fleet, Job, Past, State};
use events_schema::orders::LINK_FAST_BYTES_PER_S;
use events_schema::{JobId, ServerId, SlotId, TimeMs};
use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// How long what is idle is likely to go on being lent: looked up once for all jobs of a plan.
pub(crate) struct Loans<'a> {
    state: &'a State,
    at: TimeMs,
    lenders: Vec<Lender<'a>>,
    /// Whether any job may have to stand still: looked up once, because most of the day none has.
    any_stands_still: OnceCell<bool>,
    /// Looked up only where a loan is too short.
    idle: OnceCell<Idle>,
    /// By the bytes of a replica, which is all of a job that loans are compared with: many jobs train models of one size.
    too_short: RefCell<BTreeMap<u64, Rc<BTreeSet<ServerId>>>>,
    stand_still: RefCell<BTreeMap<u64, bool>>,
}

struct Lender<'a> {
    past: &'a Past,
    fleet: &'a Fleet,
    /// What nobody is on, in the order in which it goes back: looked up only where anything does.
    idle: OnceCell<Vec<&'a SlotId>>,
    /// How many of what it lends goes back within a horizon.
    goes: [OnceCell<usize>; HORIZONS],
    /// Servers whose idle slots are all likely to go back within a horizon.
    ends: [OnceCell<BTreeSet<ServerId>>; HORIZONS],
}

impl<'a> Loans<'a> {
    /// Nothing but where fleets' needs are forecast.
    pub fn of(state: &'a State, at: TimeMs) -> Self {
        let known = state.pasts.keys().filter_map(|id| ahead::of(state, id)).filter(|(_, fleet)| fleet.lent > 0);
        let lender = |(past, fleet)| Lender {
            past,
            fleet,
            idle: OnceCell::new(),
            goes: Default::default(),
            ends: Default::default(),
        };
        let lenders: Vec<_> = known.map(lender).collect();
        let (any_stands_still, idle, too_short, stand_still) = Default::default();
        Self { state, at, lenders, any_stands_still, idle, too_short, stand_still }
    }

    /// Servers on which a job that trains does not begin, because its loan there would be too short.
    pub fn too_short(&self, id: &JobId, job: &Job) -> Rc<BTreeSet<ServerId>> {
        if self.lenders.is_empty() || job.slots().is_empty() {
            return Rc::default();
        }
        let replica_bytes = self.replica_bytes(id);
        let mut known = self.too_short.borrow_mut();
        Rc::clone(known.entry(replica_bytes).or_insert_with(|| Rc::new(self.too_short_for(replica_bytes))))
    }

    fn too_short_for(&self, replica_bytes: u64) -> BTreeSet<ServerId> {
        let slow = self.state.links.iter().filter(|(_, link)| link.is_slow() && self.at < link.until);
        let slow: Vec<_> = slow.map(|(server, link)| (server, worth_ms(replica_bytes, link.bytes_per_s))).collect();
        let mut found = BTreeSet::new();
        for lender in &self.lenders {
            // Nobody has found the other links to be slow.
            found.extend(self.ends(lender, worth_ms(replica_bytes, LINK_FAST_BYTES_PER_S)).iter().cloned());
            let ends_before = slow.iter().filter(|(server, ms)| self.ends(lender, *ms).contains(*server));
            found.extend(ends_before.map(|(server, _)| (*server).clone()));
        }
        found
    }

    fn replica_bytes(&self, id: &JobId) -> u64 {
        self.state.executors_of(id).find_map(|(_, executor)| executor.replica_bytes).unwrap_or(0)
    }

    /// Whether a job that trains is told of no more slots than it has, because what another leaves goes back too soon, as all that is idle does. Else it is told of
    /// all: whatever does not last it is not given, and plans do not change with the time of day.
    pub fn stands_still(&self, id: &JobId, job: &Job) -> bool {
        if self.lenders.is_empty() || job.slots().is_empty() || !self.any_stands_still() {
            return false;
        }
        let replica_bytes = self.replica_bytes(id);
        let worth_ms = worth_ms(replica_bytes, LINK_FAST_BYTES_PER_S);
        let stands_still = || self.more_goes_everywhere(|lender| self.horizon(lender, worth_ms));
        *self.stand_still.borrow_mut().entry(replica_bytes).or_insert_with(stands_still)
    }

    /// Most goes back within what is seen farthest ahead: where nobody has to stand still by that, nobody has to at all.
    fn any_stands_still(&self) -> bool {
        *self.any_stands_still.get_or_init(|| {
            let lend = self.state.fleets().filter(|(_, fleet)| fleet.lent > 0).count();
            lend == self.lenders.len() && self.more_goes_everywhere(|_| HORIZONS - 1)
        })
    }

    /// Whether of each fleet that lends more goes back within a horizon than is idle.
    fn more_goes_everywhere(&self, horizon: impl Fn(&Lender<'_>) -> usize) -> bool {
        self.lenders.iter().all(|lender| {
            let count = self.goes(lender, horizon(lender));
            count > 0 && count > self.idle_of(lender).len()
        })
    }

    fn horizon(&self, lender: &Lender<'_>, within_ms: u64) -> usize {
        ahead::horizon(lender.past, lender.fleet, within_ms)
    }

    fn goes(&self, lender: &Lender<'_>, horizon: usize) -> usize {
        *lender.goes[horizon].get_or_init(|| ahead::goes_back(lender.past, lender.fleet, self.at, horizon))
    }

    fn idle_of<'b>(&self, lender: &'b Lender<'a>) -> &'b [&'a SlotId] {
        lender.idle.get_or_init(|| victims::idle(self.state, &lender.fleet.slots))
    }

    fn ends<'b>(&self, lender: &'b Lender<'a>, within_ms: u64) -> &'b BTreeSet<ServerId> {
        let horizon = self.horizon(lender, within_ms);
        lender.ends[horizon].get_or_init(|| {
            let count = self.goes(lender, horizon);
            if count == 0 {
                return BTreeSet::new();
            }
            let idle = self.idle_of(lender);
            let (goes, stays) = idle.split_at(count.min(idle.len()));
            let stays: BTreeSet<&ServerId> = stays.iter().map(|slot| &slot.server).collect();
            goes.iter().map(|slot| &slot.server).filter(|server| !stays.contains(server)).cloned().collect()
        })
    }

    /// Whether a job is given none of the idle slots of its kind, because the loans of all of them are too short.
    pub fn keep_all_from(&self, id: &JobId, job: &Job) -> bool {
        let too_short = self.too_short(id, job);
        let kind = job.slots().first().filter(|_| !too_short.is_empty()).and_then(|slot| self.state.kind(slot));
        let idle = || self.idle.get_or_init(|| Idle::of(self.state, Packing::FirstFit));
        kind.is_some_and(|kind| idle().count(&kind, &too_short) == 0 && idle().count(&kind, &BTreeSet::new()) > 0)
    }
}

/// How long a loan should last on which a job with such a replica begins over such a link.
fn worth_ms(replica_bytes: u64, bytes_per_s: u64) -> u64 {
    let copy_ms = replica_bytes.saturating_mul(1_000) / bytes_per_s.max(1);
    START_ASSUMED_MS.saturating_add(copy_ms).saturating_mul(LOAN_TIMES)
}
