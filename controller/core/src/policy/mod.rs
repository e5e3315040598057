//! Who gets how many slots: `view → plan`, pure, without clock and without ids.
//!
//! The problem is reduced to small numbers here (jobs in order of arrival, capacity per kind of slot) and translated back at
//! the door (`decide/plan.rs`): which slots, which facts. The live controller and the simulator call the same code.
//! Contract, checked by the property tests: shares never exceed a class's capacity; a share is 0 or within min..=max; a job
//! that holds slots stays in its class; planning again from the plan's own outcome changes nothing.
//!
//! Policies: [`fifo`] (the simplest; read it first), [`ebb`] (the default), [`tiresias`], [`elastic_tiresias`], [`ibm_dp`], [`lyra`], [`easyscale`] and [`antman`]. [`srtf`], [`afs`], [`optimus_like`],
//! [`pollux_like`] and [`gandiva_like`] are there to be compared with. Speeds come from
//! [`speeds`]. `docs/policies.md` says how to write one.

pub mod afs;
mod allotment;
pub mod antman;
mod assumed;
#[cfg(test)]
mod contract;
pub mod easyscale;
pub mod ebb;
pub mod effort;
pub mod elastic_tiresias;
#[cfg(test)]
mod example;
pub mod fifo;
pub mod gain;
pub mod gandiva_like;
pub mod ibm_dp;
mod lending;
pub mod lyra;
pub mod optimizer;
pub mod optimus_like;
pub mod pollux_like;
pub mod scalability;
pub mod speeds;
pub mod srtf;
pub mod stride;
pub mod tiresias;
mod work;
mod wraps;

pub use assumed::WithAssumedSpeeds;
use effort::Effort;
use events_schema::stride::Stride;
pub use lending::WithLending;
use speeds::{SpeedCurve, Speeds, slowest};
use std::cmp::Reverse;
use stride::Batches;
pub use wraps::Wraps;

/// A scheduling policy.
pub trait Policy: Send + Sync {
    /// The name it is chosen by and that reasons carry.
    fn name(&self) -> &'static str;

    /// The share of every job of the view. Same view, same plan.
    fn plan(&self, view: &View) -> Plan;

    /// What every job is sure of, and why others wait: the cheap first move of [`Policy::plan`], for who only asks why.
    fn guarantees(&self, view: &View) -> Vec<Share> {
        self.plan(view).shares
    }

    /// Where slots for a job are looked for first.
    fn packing(&self) -> Packing {
        Packing::FirstFit
    }

    /// Whether it knows of quotas. The view then says whose jobs are and what tenants have guaranteed, as soon as any of them has a quota.
    fn knows_quotas(&self) -> bool {
        false
    }

    /// The queue of the jobs whose slots are shared with others, if any are. The view then has the guest slots beside such jobs, as classes of their own.
    fn shared_queue(&self) -> Option<u8> {
        None
    }

    /// Whether it knows how busy hosts are, and beside which nobody begins as a guest: those that use so many hundredths of their slot, or more. Nobody begins beside one
    /// that was not measured yet. None: whatever a host uses; those that are known to use least come first all the same.
    fn host_busy_percent_max(&self) -> Option<u8> {
        None
    }

    /// Whether it gives jobs that may be on slots of several types such slots at once. For one that does not, what such a job has of other types than most of its
    /// slots counts as of that one.
    fn mixes_types(&self) -> bool {
        false
    }

    /// Whether it is told how fast jobs were measured to be, where that is known; otherwise all speeds are assumed, and none are measured.
    fn is_told_measured_speeds(&self) -> bool {
        true
    }

    /// Steps that one update of a job takes on so many slots, where its spec leaves that open; the smallest batch, if a policy has no rule for it.
    fn stride(&self, _job: &Batches<'_>, _slots: u16) -> Stride {
        Stride::ONE
    }

    /// After how long fleets' needs come again, if what they are going to need is forecast, and slots go back before they are asked for; none: all lending
    /// is reactive.
    fn forecast_day_ms(&self) -> Option<u64> {
        None
    }

    /// Who loses slots that a fleet takes back, when those above their minimum have given what they can. A reclaim waits for no plan, so this is asked of the
    /// policy of a name alone.
    fn victims(&self) -> Victims {
        Victims::Jobs
    }
}

/// Whose slots go back to a fleet that names none, when idle ones and those beyond the minimums are not enough.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Victims {
    /// Those of the least important job, then of the latest.
    #[default]
    Jobs,
    /// Those of the server whose jobs are spread over most others: the smallest sum, over its jobs, of 1 / (servers of the fleet that the job is on);
    /// then of the next, without the jobs that this ended.
    Servers,
}

/// Where slots for a job are looked for, after the servers that it is on. The policy says how many, the planner which.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Packing {
    /// On the first server that has all of them; else on one after the other, in order.
    #[default]
    FirstFit,
    /// On the server that has most, the first of equals, again and again: on as few servers as there can be.
    WorstFit,
    /// On the fullest server that has all of them; else on the one that has most, again and again. Largest demands first; a job's fewest
    /// slots rather on servers of fleets that need none of their own, and what it has beyond them rather on those that may be wanted back.
    BestFitApart,
}

/// The names of policies under which every job runs in the end, the default first. [`policy_by_name`] also knows `ibm-dp-drop`, which rejects
/// jobs and is for who asks for that by its name.
pub const POLICY_NAMES: [&str; 13] = [
    "ebb",
    "fifo",
    "tiresias",
    "elastic-tiresias",
    "ibm-dp",
    "lyra",
    "easyscale",
    "antman",
    "srtf",
    "afs",
    "optimus-like",
    "pollux-like",
    "gandiva-like",
];

/// The policy of a name.
#[must_use]
pub fn policy_by_name(name: &str) -> Option<Box<dyn Policy>> {
    policy_on_clock(name, 0)
}

/// The same, by a clock that is so many ms ahead of what views say where it decides at moments of one: a run that is simulated from another moment on than it was
/// recorded at has the moments of the recorded one.
#[must_use]
pub fn policy_on_clock(name: &str, ahead_ms: u64) -> Option<Box<dyn Policy>> {
    let ibm_dp =
        |unfit| Some(Box::new(ibm_dp::IbmDp::new(ibm_dp::DELTA_MS, unfit).on_clock(ahead_ms)) as Box<dyn Policy>);
    match name {
        "ebb" => Some(Box::new(ebb::Ebb::default())),
        "fifo" => Some(Box::new(fifo::Fifo)),
        "tiresias" => Some(Box::new(tiresias::Tiresias::default())),
        "elastic-tiresias" => Some(Box::new(elastic_tiresias::ElasticTiresias::default())),
        "lyra" => Some(Box::new(lyra::Lyra)),
        "easyscale" => Some(Box::new(easyscale::EasyScale)),
        "antman" => Some(Box::new(antman::Antman)),
        "ibm-dp" => ibm_dp(ibm_dp::Unfit::Wait),
        "ibm-dp-drop" => ibm_dp(ibm_dp::Unfit::AreDropped),
        "srtf" => Some(Box::new(srtf::Srtf)),
        "afs" => Some(Box::new(afs::Afs)),
        "optimus-like" => Some(Box::new(optimus_like::OptimusLike)),
        "pollux-like" => Some(Box::new(pollux_like::PolluxLike)),
        "gandiva-like" => Some(Box::new(gandiva_like::GandivaLike)),
        _ => None,
    }
}

/// What is to be shared out, and among whom.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// Kinds of slots; those of a job are of one kind at a time, or of several that [`ClassView::mixes_with`] each other.
    pub classes: Vec<ClassView>,
    /// What jobs that may be on several kinds at once have of each; jobs name theirs by its place. Empty under a policy that mixes none
    /// ([`Policy::mixes_types`]).
    pub mixtures: Vec<Mixture>,
    /// Jobs that run or wait, in the order of their arrival.
    pub jobs: Vec<JobView>,
    /// Measured speeds; jobs name theirs by its place.
    pub curves: Vec<SpeedCurve>,
    /// Whose the jobs are; jobs name theirs by its place. Empty where nobody has a quota, and under a policy that knows of none
    /// ([`Policy::knows_quotas`]).
    pub tenants: Vec<TenantView>,
    /// When this is, in ms of the controller's clock: for what is done at equal distances of time.
    pub now_ms: u64,
    /// What its plan has taken so far.
    pub effort: Effort,
}

/// What a job that may be on slots of several classes at once has of each, and how fast they are for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mixture {
    /// Slots that its plan has, by class.
    pub held: Vec<u16>,
    /// How fast one is, by class, in thousandths of the fastest; all the same before any was measured.
    pub speed_milli: Vec<u32>,
}

/// Slots of one kind: of one numeric class and type, and all of them devices or none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClassView {
    /// Slots that may be used by the view's jobs, including those they hold.
    pub capacity: u32,
    /// Slots that fleets declare, lent or not: what could ever be had.
    pub declared: u32,
    /// Its numeric class: a job that has run goes on within it.
    pub numeric: usize,
    /// Whether its slots are devices.
    pub device: bool,
    /// Whether its slots are guest slots: places beside jobs that run and may be shared with ([`Policy::shared_queue`]).
    pub guest: bool,
    /// Whether most of its slots are of fleets that need some of their own, and so may want these back. Said where jobs may be on several classes.
    pub wanted_back: bool,
    /// How much of their slots the hosts use beside which somebody could begin, in hundredths, in the mean; of guest slots alone. Which of them a job gets is
    /// no policy's part: those beside the least busy ones.
    pub busy_percent: u8,
}

impl ClassView {
    /// Whether a job can be on slots of both at once: they differ in their type alone.
    #[must_use]
    pub fn mixes_with(&self, other: &Self) -> bool {
        (self.numeric, self.device, self.guest) == (other.numeric, other.device, other.guest)
    }
}

/// Who submits jobs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TenantView {
    /// Slots that it has guaranteed; none: as many as there are.
    pub quota: Option<u32>,
}

/// A job, as a policy sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobView {
    /// Fewest executors it runs on.
    pub min: u16,
    /// Most executors, and the number of its logical workers W.
    pub max: u16,
    /// The executors that it asked for, if that is not as many as it can use: see [`JobView::asked`].
    pub requested: Option<u16>,
    /// Slots its plan has now; 0 while it waits.
    pub held: u16,
    /// Higher goes first.
    pub priority: i32,
    /// The class of the slots that it holds.
    pub class: Option<usize>,
    /// The numeric class it is bound to; `None` before it ran.
    pub numeric: Option<usize>,
    /// Whether it runs on devices only.
    pub device: bool,
    /// Whether its size was left alone for a while: `lyra` does not change it again before that.
    pub settled: bool,
    /// How much of slots it has had.
    pub service: ServiceView,
    /// Its place among all jobs that were ever accepted, from 0; those of a view rise.
    pub arrival: u64,
    /// What is known of the work that it has left.
    pub left: WorkLeft,
    /// Its measured speeds, by their place in the view; without them they are assumed of W.
    pub curve: Option<usize>,
    /// What it loses by being stopped and started again, in ms without a step: saved, started, read again.
    pub restart_ms: u32,
    /// Whose it is, by its place in the view.
    pub tenant: usize,
    /// What it has of each class, by its place among the view's mixtures; none of one that is on slots of one class at a time. `class` is then the one that most
    /// of its slots are of.
    pub mixes: Option<usize>,
    /// The only class that it can use; none: whatever has what it needs. Only the simulator says it.
    pub only: Option<usize>,
}

/// How long a job still takes on the slots that it asked for. Who withholds or falsifies it is whoever makes the view: a policy knows no more
/// than stands here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WorkLeft {
    /// Nobody knows.
    #[default]
    Unknown,
    /// Somebody guessed how long all of it takes.
    Estimated {
        /// All of it, as guessed, in ms on the slots that it asked for.
        total_ms: u64,
        /// What is done of it, in the same measure and not guessed; may be more than the guess.
        done_ms: u64,
        /// How sure the guess is: the standard deviation of its logarithm, in thousandths.
        sigma_milli: u32,
    },
    /// It is so much.
    Known {
        /// In ms on the slots that it asked for.
        ms: u64,
    },
}

impl JobView {
    /// The executors that it asked for, within its bounds: what gang policies give it. As many as it can use if it did not say.
    #[must_use]
    pub fn asked(&self) -> u16 {
        self.requested.unwrap_or(self.max).clamp(self.min, self.max.max(self.min))
    }
}

/// How much of slots a job has had until now, and where that has put it. Facts carry it, so a policy remembers nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServiceView {
    /// Slot·ms that it has held in all.
    pub attained_slot_ms: u64,
    /// The same when a policy last promoted it, or 0: what counts for its queue is what it has attained beyond that.
    pub promoted_slot_ms: u64,
    /// The queue that it is in.
    pub queue: u8,
    /// When it came into that queue, in ms of the controller's clock: for order alone.
    pub queued_at_ms: u64,
    /// How long it has had no slots; 0 while it has some.
    pub waited_ms: u64,
}

impl View {
    /// The place of each job.
    pub(crate) fn places(&self) -> impl Iterator<Item = usize> {
        self.effort.each(0..self.jobs.len())
    }

    /// How fast a job is by slots.
    #[must_use]
    pub fn speeds(&self, job: usize) -> Speeds<'_> {
        self.effort.spend(1);
        let of = &self.jobs[job];
        Speeds::new(of.max, of.curve.and_then(|place| self.curves.get(place)))
    }

    /// Whether a job may have slots of a class: those it has now, or before it has any slot of its own, whatever has what it needs and is no guest slot.
    #[must_use]
    pub fn suits(&self, job: usize, class: usize) -> bool {
        let (job, of) = (&self.jobs[job], &self.classes[class]);
        if job.only.is_some_and(|only| only != class) {
            return false;
        }
        match job.class.filter(|&held| job.held > 0 && !self.classes[held].guest) {
            Some(held) if job.mixes.is_some() => self.classes[held].mixes_with(of),
            Some(held) => held == class,
            // A guest goes to a slot of its own where a policy says so, and nobody by itself to a guest slot.
            None if of.guest => false,
            None => job.numeric.is_none_or(|bound| bound == of.numeric) && (of.device || !job.device),
        }
    }

    /// What a job that may be on several classes at once has of each.
    #[must_use]
    pub fn mixture(&self, job: usize) -> Option<&Mixture> {
        self.jobs[job].mixes.and_then(|place| self.mixtures.get(place))
    }

    /// How many times as fast a job is on such slots as on as many of its fastest type, whoever is slowest with its ranks: they are shared out by speed.
    #[must_use]
    pub fn mixed_factor(&self, job: usize, parts: &[Part]) -> f64 {
        let slots = parts.iter().map(|part| u32::from(part.slots)).sum::<u32>().max(1);
        let even = u64::from(u32::from(self.jobs[job].max).div_ceil(slots).max(1)) * unit_of(FASTEST_MILLI);
        even as f64 / self.slowest_with(job, parts).max(1) as f64
    }

    /// How long a step takes a job on such slots, as far as its ranks say: whoever is slowest with those decides. In parts of which one rank takes a thousand on the
    /// fastest type.
    #[must_use]
    pub fn slowest_with(&self, job: usize, parts: &[Part]) -> u64 {
        self.effort.spend(1);
        let speed = |class: usize| self.mixture(job).map_or(FASTEST_MILLI, |of| of.speed_milli[class]);
        let of = |part: &Part| (unit_of(speed(part.class)), u32::from(part.slots));
        let types: Vec<(u64, u32)> = parts.iter().filter(|part| part.slots > 0).map(of).collect();
        slowest(self.jobs[job].max, &types)
    }

    /// What a job has, by class.
    #[must_use]
    pub fn held_by_class(&self, job: usize) -> Vec<Part> {
        let part = |class: usize| Part { job, class, slots: self.held_of(job, class) };
        (0..self.classes.len()).map(part).filter(|part| part.slots > 0).collect()
    }

    /// What a job has of a class.
    #[must_use]
    pub fn held_of(&self, job: usize, class: usize) -> u16 {
        match (self.mixture(job), self.jobs[job].class) {
            (Some(mixture), _) => mixture.held[class],
            (None, Some(held)) if held == class => self.jobs[job].held,
            (None, _) => 0,
        }
    }

    /// The classes that a job may have slots of.
    pub(crate) fn suiting(&self, job: usize) -> impl Iterator<Item = usize> {
        (0..self.classes.len()).filter(move |&class| self.suits(job, class))
    }

    /// The classes of guest slots that a job could go to.
    pub(crate) fn suiting_guests(&self, job: usize) -> impl Iterator<Item = usize> {
        let known = self.jobs[job];
        let suits = move |class: &ClassView| {
            class.guest && known.numeric.is_none_or(|bound| bound == class.numeric) && (class.device || !known.device)
        };
        // No class of guest slots is the one that a job can use that can use only one.
        (0..self.classes.len()).filter(move |&class| known.only.is_none() && suits(&self.classes[class]))
    }

    /// Of guest slots those beside the least busy hosts, if there are so many; of equals the roomiest.
    pub(crate) fn freest(&self, job: usize, left: &[u32], slots: u16) -> Option<usize> {
        let open = || self.suiting_guests(job).filter(|&class| left[class] >= u32::from(slots));
        let least = open().map(|class| self.classes[class].busy_percent).min()?;
        self.roomiest(open().filter(|&class| self.classes[class].busy_percent == least), left, slots)
    }

    /// Of some classes the one with most room, by what is left of each, if there is room for so many slots. Devices are left to who needs them,
    /// where there is room beside them; the first of equals, so that the choice is stable.
    pub(crate) fn roomiest(&self, among: impl Iterator<Item = usize>, left: &[u32], slots: u16) -> Option<usize> {
        let open = among.filter(|&class| left[class] >= u32::from(slots));
        open.max_by_key(|&class| (!self.classes[class].device, left[class], Reverse(class)))
    }
}

/// How fast the fastest type of a mixture is.
pub const FASTEST_MILLI: u32 = 1_000;

/// What one rank takes on a type of a mixture, in parts of which it takes a thousand on the fastest.
fn unit_of(speed_milli: u32) -> u64 {
    u64::from(FASTEST_MILLI) * 1_000 / u64::from(speed_milli.max(1))
}

/// A share for every job of the view, in the view's order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// As many as the view has jobs.
    pub shares: Vec<Share>,
    /// How shares are made up that are of several classes, in the order of the jobs; of a job that is not in it all slots are of its share's class.
    pub parts: Vec<Part>,
    /// Jobs that come into another queue.
    pub moves: Vec<QueueMove>,
    /// Places in the view of jobs that wait and are rejected: they end without having run.
    pub rejections: Vec<usize>,
    /// After how long the plan may be another one, though nothing else has changed; the live controller asks every tick anyhow.
    pub wake_in_ms: Option<u64>,
}

/// Slots of one class that are a part of what a job has, or gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Its place in the view.
    pub job: usize,
    /// The class.
    pub class: usize,
    /// How many.
    pub slots: u16,
}

impl Plan {
    /// What a job gets, by class. A share that was changed since it was made up is of its class alone.
    #[must_use]
    pub fn by_class(&self, job: usize) -> Vec<Part> {
        match self.made_up(job) {
            Some(parts) => parts.iter().filter(|part| part.slots > 0).copied().collect(),
            None => vec![Part { job, class: self.shares[job].class, slots: self.shares[job].slots }],
        }
    }

    /// What a job gets of a class.
    #[must_use]
    pub fn given_of(&self, job: usize, class: usize) -> u16 {
        let share = self.shares[job];
        match self.made_up(job) {
            Some(parts) => parts.iter().find(|part| part.class == class).map_or(0, |part| part.slots),
            None if share.class == class => share.slots,
            None => 0,
        }
    }

    /// What a share is made up of; none of one that is of its class alone.
    fn made_up(&self, job: usize) -> Option<&[Part]> {
        let first = self.parts.partition_point(|part| part.job < job);
        let count = self.parts[first..].iter().take_while(|part| part.job == job).count();
        let parts = &self.parts[first..first + count];
        let slots = parts.iter().map(|part| u32::from(part.slots)).sum::<u32>();
        (slots == u32::from(self.shares[job].slots)).then_some(parts)
    }
}

/// The queue of jobs that `ebb` serves first because they waited too long. No policy counts so many queues; of the others' it is the first.
pub const PROMOTED: u8 = u8::MAX;

/// A job comes into another queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueMove {
    /// Its place in the view.
    pub job: usize,
    /// Which one.
    pub queue: u8,
    /// Whether it is promoted: what it has attained until now counts no more.
    pub promoted: bool,
}

/// What one job gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// Of which class, or most of them ([`Plan::parts`]); of no meaning when `slots` is 0.
    pub class: usize,
    /// How many; 0 is to wait.
    pub slots: u16,
    /// Why it waits, when it gets none.
    pub waits: Option<Wait>,
}

/// Why a job gets nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// So many slots are missing.
    Slots(u32),
    /// So many slots of its tenant's quota are missing.
    Quota(u32),
    /// The job at this place in the view goes first.
    Behind(usize),
}

/// Hands out whole gangs in order, and remembers who blocks whom: what `fifo` is, and how `ibm-dp` begins.
///
/// Within a class nobody overtakes a job that waits for slots it could ever get: a large job is not starved by small ones.
pub(crate) struct Gangs<'a> {
    view: &'a View,
    /// Slots not yet given, per class.
    pub pool: Vec<u32>,
    /// The job that waits first, per class.
    blocked: Vec<Option<usize>>,
    /// The job that waited last, per class: whom the next one is behind.
    last: Vec<Option<usize>>,
}

impl<'a> Gangs<'a> {
    pub fn new(view: &'a View) -> Self {
        let pool = view.classes.iter().map(|class| class.capacity).collect();
        Self { view, pool, blocked: vec![None; view.classes.len()], last: vec![None; view.classes.len()] }
    }

    /// Takes from a class what a job that runs keeps; whether it is there.
    pub fn keep(&mut self, class: usize, slots: u16) -> bool {
        let enough = self.pool[class] >= u32::from(slots);
        if enough {
            self.pool[class] -= u32::from(slots);
        }
        enough
    }

    /// Whether nobody waits for slots of a class whom others would overtake.
    pub fn is_open(&self, class: usize) -> bool {
        self.blocked[class].is_none()
    }

    /// From now on nobody is behind those who wait already.
    pub fn forget_who_waits(&mut self) {
        self.blocked.fill(None);
        self.last.fill(None);
    }

    /// Starts a waiting job on `slots` of the class with most room, or says why not.
    pub fn start(&mut self, job: usize, slots: u16) -> Share {
        let view = self.view;
        view.effort.spend(1);
        let candidates = || view.suiting(job);
        let open = candidates().filter(|&class| self.blocked[class].is_none());
        if let Some(class) = view.roomiest(open, &self.pool, slots) {
            self.pool[class] -= u32::from(slots);
            return Share { class, slots, waits: None };
        }
        let roomiest = candidates().max_by_key(|&class| (self.pool[class], Reverse(class)));
        let behind = candidates().find_map(|class| self.last[class]);
        let possible: Vec<usize> =
            candidates().filter(|&class| self.view.classes[class].declared >= u32::from(slots)).collect();
        for class in possible {
            self.blocked[class].get_or_insert(job);
            self.last[class] = Some(job);
        }
        let missing = u32::from(slots).saturating_sub(roomiest.map_or(0, |class| self.pool[class]));
        let waits = match behind {
            Some(ahead) => Wait::Behind(ahead),
            None => Wait::Slots(missing.max(1)),
        };
        Share { class: 0, slots: 0, waits: Some(waits) }
    }
}

/// Places in the view in the order of service: higher priority, then whoever runs already, then arrival.
pub(crate) fn service_order(view: &View) -> Vec<usize> {
    let mut order: Vec<usize> = view.places().collect();
    order.sort_by_key(|&job| (Reverse(view.jobs[job].priority), view.jobs[job].held == 0, job));
    order
}
