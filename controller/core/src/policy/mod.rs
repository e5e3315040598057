//! Who gets how many slots: `view → plan`, pure, without clock and without ids.
//!
//! The problem is reduced to small numbers here (jobs in order of arrival, capacity per kind of slot) and translated back at
//! the door (`decide/plan.rs`): which slots, which facts. The live controller and the simulator call the same code.
//! Contract, checked by the property tests: shares never exceed a class's capacity; a share is 0 or within min..=max; a job
//! that holds slots stays in its class; planning again from the plan's own outcome changes nothing.
//!
//! Policies: [`fifo`] (the simplest; read it first), [`ebb`] (the default), [`tiresias`] and [`elastic_tiresias`]. Speeds come from
//! [`gain`]. `docs/policies.md` says how to write one.

#[cfg(test)]
mod contract;
pub mod ebb;
pub mod elastic_tiresias;
pub mod fifo;
pub mod gain;
pub mod tiresias;

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
}

/// Where slots for a job are looked for, after the servers that it is on. The policy says how many, the planner which.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Packing {
    /// On the first server that has all of them; else on one after the other, in order.
    #[default]
    FirstFit,
    /// On the server that has most, the first of equals, again and again: on as few servers as there can be.
    WorstFit,
}

/// The names [`policy_by_name`] knows, the default first.
pub const POLICY_NAMES: [&str; 4] = ["ebb", "fifo", "tiresias", "elastic-tiresias"];

/// The policy of a name.
#[must_use]
pub fn policy_by_name(name: &str) -> Option<Box<dyn Policy>> {
    match name {
        "ebb" => Some(Box::new(ebb::Ebb)),
        "fifo" => Some(Box::new(fifo::Fifo)),
        "tiresias" => Some(Box::new(tiresias::Tiresias::default())),
        "elastic-tiresias" => Some(Box::new(elastic_tiresias::ElasticTiresias::default())),
        _ => None,
    }
}

/// What is to be shared out, and among whom.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// Kinds of slots; those of a job are of one kind at a time.
    pub classes: Vec<ClassView>,
    /// Jobs that run or wait, in the order of their arrival.
    pub jobs: Vec<JobView>,
}

/// Slots of one kind: of one numeric class, and all of them devices or none.
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
}

/// A job, as a policy sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobView {
    /// Fewest executors it runs on.
    pub min: u16,
    /// Most executors, and the number of its logical workers W.
    pub max: u16,
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
    /// Whether its size was left alone long enough to be exchanged against another's.
    pub settled: bool,
    /// How much of slots it has had.
    pub service: ServiceView,
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
    /// Whether a job may have slots of a class: those it has now, or before it has any, whatever has what it needs.
    #[must_use]
    pub fn suits(&self, job: usize, class: usize) -> bool {
        let (job, of) = (&self.jobs[job], &self.classes[class]);
        match job.class.filter(|_| job.held > 0) {
            Some(held) => held == class,
            None => job.numeric.is_none_or(|bound| bound == of.numeric) && (of.device || !job.device),
        }
    }
}

/// A share for every job of the view, in the view's order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// As many as the view has jobs.
    pub shares: Vec<Share>,
    /// Jobs that come into another queue.
    pub moves: Vec<QueueMove>,
    /// After how long the plan may be another one, though nothing else has changed; the live controller asks every tick anyhow.
    pub wake_in_ms: Option<u64>,
}

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
    /// Of which class; of no meaning when `slots` is 0.
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
    /// The job at this place in the view goes first.
    Behind(usize),
}

/// Hands out whole gangs in order, and remembers who blocks whom. Both policies start with it.
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

    /// Starts a waiting job on `slots` of the class with most room, or says why not.
    pub fn start(&mut self, job: usize, slots: u16) -> Share {
        let view = self.view;
        let candidates = || (0..view.classes.len()).filter(|&class| view.suits(job, class));
        let open = candidates().filter(|&class| self.blocked[class].is_none() && self.pool[class] >= u32::from(slots));
        // Devices are left to who needs them, where there is room beside them. The first of equals, so that the choice is stable.
        let best = open.max_by_key(|&class| (!view.classes[class].device, self.pool[class], std::cmp::Reverse(class)));
        if let Some(class) = best {
            self.pool[class] -= u32::from(slots);
            return Share { class, slots, waits: None };
        }
        let roomiest = candidates().max_by_key(|&class| (self.pool[class], std::cmp::Reverse(class)));
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
    let mut order: Vec<usize> = (0..view.jobs.len()).collect();
    order.sort_by_key(|&job| (std::cmp::Reverse(view.jobs[job].priority), view.jobs[job].held == 0, job));
    order
}
