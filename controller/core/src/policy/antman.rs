//! `antman`: tenants have quotas; jobs within them are guaranteed, and others use what is idle until it is wanted (Xiao et al., AntMan, OSDI 2020, §3.3).
//!
//! 1. *Guaranteed* jobs run on what they asked for and keep it. A tenant's jobs go in the order of arrival, as far as its quota goes; one for which
//!    there is quota and not enough room has what there is *reserved*: no other guaranteed job gets it, opportunistic ones do.
//! 2. *Opportunistic* jobs share what guaranteed ones do not use, reserved slots included: each its fewest, then up to what it asked for. They give
//!    way to guaranteed jobs at once: what they have beyond their fewest first, then the latest all of it. Opportunistic is a job of a tenant
//!    without any quota, one with a priority below 0 by its own wish, and one that has waited for quota for [`PATIENCE_MS`] or is expected to, by what is known of the
//!    work that its tenant's guaranteed jobs have left.
//! 3. *Upgrade*: an opportunistic job that has all that it asked for becomes a guaranteed one as soon as its tenant has the quota; before anybody
//!    is launched (§3.3, "prefers to upgrade the opportunistic job rather than launch a new one").
//!
//! 4. An operator may set quotas while jobs run, which the paper does not say anything of: guaranteed jobs beyond what their tenant has then become
//!    opportunistic, the latest ones.
//!
//! Which of the two a job is stands in its queue, as a fact, so a policy remembers nothing.
//!
//! 5. *Sharing*: where servers have guest slots an opportunistic job that finds no idle slots shares those of guaranteed jobs, one beside each, and one
//!    that has to give way goes on there. It goes to slots of its own when it is upgraded, or when all that it asked for are idle; else it stays until it
//!    ends. What it gets of the time is its agent's matter (`workers/agent-core/src/sharing.rs`).
//!    Who begins on them is decided last and takes no part in what the plan's own outcome comes to, so guaranteed jobs have what they would have without. One
//!    that never ran and whose tenant has the quota for it is no guest: that would bind it to a numeric class, and so change what is reserved for it.
//! 6. *Candidates* are slots whose host used less than [`M_PERCENT`] of them over ten seconds, the freest first. A guest that is there stays when its host
//!    becomes busier, and its agent sees to the host. The paper reads a counter that always says something; here a host is known once it has trained for ten
//!    seconds, and before that it is no candidate: it has not shown what it leaves, and whoever began beside it would stay.
//!
//! Left out: memory in steps beside a guaranteed job, and the trial of memory among opportunistic ones.
//! Quotas count slots of all kinds together, and no guest slots. How the paper estimates how long a job would wait it does not say: here until enough guaranteed jobs of its tenant will have ended (`QuotaWait`).

use super::allotment::ordered;
use super::work::expected_ms;
use super::{Gangs, JobView, Plan, Policy, QueueMove, Share, View, Wait, WorkLeft};

/// How long a job waits for its tenant's quota, or is expected to, for which it becomes opportunistic: ten minutes, of the order of the production cluster's mean queueing
/// after AntMan (550 s, table 4).
pub const PATIENCE_MS: u64 = 600_000;
/// Slots whose host uses so much of them are no candidates: "M (set as 80% for now)".
pub const M_PERCENT: u8 = 80;
/// The queue of guaranteed jobs.
const GUARANTEED: u8 = 0;
/// The queue of opportunistic jobs; all others are guaranteed.
pub(super) const OPPORTUNISTIC: u8 = 1;
/// Plans that are made of a plan's own outcome: an upgrade is one more.
const SETTLING_MAX: usize = 8;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub struct Antman;

impl Policy for Antman {
    fn name(&self) -> &'static str {
        "antman"
    }

    fn plan(&self, view: &View) -> Plan {
        let (mut decided, mut carried_out) = (decide(view, view), view.clone());
        for _ in 0..SETTLING_MAX {
            carry_out(&mut carried_out, view, &decided);
            let next = decide(&carried_out, view);
            let is_settled = next == decided;
            decided = next;
            if is_settled {
                break;
            }
        }
        let moved = |(job, (queue, share)): (usize, (&u8, &Share))| {
            let queue = if is_of_guests(view, share) { OPPORTUNISTIC } else { *queue };
            (queue != view.jobs[job].service.queue).then_some(QueueMove { job, queue, promoted: false })
        };
        let moves = decided.queues.iter().zip(&decided.shares).enumerate().filter_map(moved).collect();
        Plan { shares: decided.shares, moves, wake_in_ms: decided.wake_in_ms, ..Plan::default() }
    }

    fn knows_quotas(&self) -> bool {
        true
    }

    fn shared_queue(&self) -> Option<u8> {
        Some(GUARANTEED)
    }

    fn host_busy_percent_max(&self) -> Option<u8> {
        Some(M_PERCENT)
    }
}

/// What a view comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Decided {
    shares: Vec<Share>,
    queues: Vec<u8>,
    wake_in_ms: Option<u64>,
}

/// Whether a share is of guest slots.
fn is_of_guests(view: &View, share: &Share) -> bool {
    share.slots > 0 && view.classes[share.class].guest
}

/// The view once everybody has the slots that were decided. Who would begin on guest slots still waits there: what else it finds is decided as if there were none,
/// so that jobs have what they would have then. And nobody is bound to a numeric class, for nobody has begun on it.
fn carry_out(view: &mut View, before: &View, decided: &Decided) {
    for (at, share) in decided.shares.iter().enumerate() {
        let (job, known) = (&mut view.jobs[at], &before.jobs[at]);
        let is_there = known.held > 0 && known.class == Some(share.class);
        let slots = if view.classes[share.class].guest && !is_there { 0 } else { share.slots };
        if slots > 0 || job.held > 0 {
            job.service.waited_ms = 0;
        }
        (job.held, job.service.queue) = (slots, decided.queues[at]);
        job.class = if slots > 0 { Some(share.class) } else { known.class };
    }
}

/// What is being given out.
struct Draft<'a> {
    view: &'a View,
    /// As it is, without what was decided before.
    before: &'a View,
    gangs: Gangs<'a>,
    shares: Vec<Share>,
    queues: Vec<u8>,
    /// Slots that each tenant may still have guaranteed; none: as many as there are.
    quota: Vec<Option<u32>>,
    /// The job of each tenant that the next ones are behind, and whether it is quota that it waits for.
    head: Vec<Option<(usize, bool)>>,
}

/// How long jobs of a tenant are expected to wait for its quota: until enough of its guaranteed jobs have ended, at the speed that they have now. Of whom nobody
/// knows what it has left, it is not reckoned that it ends, so it may be sooner.
struct QuotaWait {
    left: u32,
    /// What those ask for that go first.
    wanted: u32,
    /// In how many ms how much quota is free in all, rising.
    ends: Vec<(u64, u32)>,
}

impl QuotaWait {
    /// Of jobs that end in so many ms, with the slots that each asked for.
    fn new(left: Option<u32>, mut ends: Vec<(u64, u32)>) -> Self {
        let left = left.unwrap_or(u32::MAX);
        ends.sort_unstable();
        let mut free = left;
        for (_, slots) in &mut ends {
            free = free.saturating_add(*slots);
            *slots = free;
        }
        Self { left, wanted: 0, ends }
    }

    /// A job goes before those that are asked about from now on; not one that wants no quota.
    fn note_waiting(&mut self, job: &JobView) {
        if job.priority >= 0 {
            self.wanted = self.wanted.saturating_add(job.asked().into());
        }
    }

    /// None if more jobs would have to end than those of which it is known what they have left.
    fn of(&self, slots: u16) -> Option<u64> {
        let wanted = self.wanted.saturating_add(slots.into());
        if wanted <= self.left {
            return Some(0);
        }
        self.ends.get(self.ends.partition_point(|(_, free)| *free < wanted)).map(|(ms, _)| *ms)
    }
}

/// What a view comes to that earlier decisions made of `before`.
fn decide(view: &View, before: &View) -> Decided {
    let order = ordered(view, |_| ());
    let tenants = view.jobs.iter().map(|job| job.tenant + 1).max().unwrap_or(0).max(view.tenants.len());
    let quota = |tenant: usize| view.tenants.get(tenant).and_then(|tenant| tenant.quota);
    let mut draft = Draft {
        view,
        before,
        gangs: Gangs::new(view),
        shares: vec![Share::default(); view.jobs.len()],
        queues: view.jobs.iter().map(|job| u8::from(job.service.queue == OPPORTUNISTIC)).collect(),
        quota: (0..tenants).map(quota).collect(),
        head: vec![None; tenants],
    };
    draft.keep_guaranteed(&order);
    draft.upgrade(&order);
    draft.launch(&order);
    let wake_in_ms = draft.share_the_rest(&order);
    Decided { shares: draft.shares, queues: draft.queues, wake_in_ms }
}

impl Draft<'_> {
    fn runs(&self, job: usize) -> Option<usize> {
        self.view.jobs[job].class.filter(|_| self.view.jobs[job].held > 0)
    }

    /// Whether a job runs on guest slots.
    fn is_guest(&self, job: usize) -> bool {
        self.runs(job).is_some_and(|class| self.view.classes[class].guest)
    }

    /// The guest slots that an opportunistic job could have, if there are so many: beside guaranteed jobs that leave most of theirs. None for one that never
    /// ran and is to be guaranteed: its first slots bind it to their numeric class. Other guaranteed jobs would then get what it had reserved, or could have
    /// had, of others, and its own may never have all that it asked for.
    fn guest_class(&self, job: usize, slots: u16) -> Option<usize> {
        let known = &self.view.jobs[job];
        let is_to_be_guaranteed = known.priority >= 0 && self.has_quota(job);
        if known.numeric.is_none() && is_to_be_guaranteed {
            return None;
        }
        self.view.freest(job, &self.gangs.pool, slots)
    }

    fn is_opportunistic(&self, job: usize) -> bool {
        self.queues[job] == OPPORTUNISTIC
    }

    /// Whether a job's tenant has the quota for all that it asked for.
    fn has_quota(&self, job: usize) -> bool {
        let known = &self.view.jobs[job];
        self.quota[known.tenant].is_none_or(|left| left >= u32::from(known.asked()))
    }

    fn take_quota(&mut self, job: usize) {
        let known = &self.view.jobs[job];
        if let Some(left) = &mut self.quota[known.tenant] {
            *left = left.saturating_sub(u32::from(known.asked()));
        }
    }

    /// Guaranteed jobs keep what they have, and regain what a fleet took from them; not those beyond their tenant's quota, which was set meanwhile.
    fn keep_guaranteed(&mut self, order: &[usize]) {
        let mut kept = Vec::new();
        for &job in order {
            let Some(class) = self.runs(job).filter(|_| !self.is_opportunistic(job)) else { continue };
            if !self.has_quota(job) || self.is_guest(job) {
                self.queues[job] = OPPORTUNISTIC;
                continue;
            }
            let known = &self.view.jobs[job];
            let slots = self.gangs.pool[class].min(u32::from(known.held.min(known.max))) as u16;
            if slots >= known.min {
                self.gangs.keep(class, slots);
                self.take_quota(job);
                self.shares[job] = Share { class, slots, waits: None };
                kept.push(job);
            }
        }
        for job in kept {
            self.grow(job);
        }
    }

    /// Up to what a job asked for, as far as there is room.
    fn grow(&mut self, job: usize) {
        let Share { class, slots, .. } = self.shares[job];
        let more = self.gangs.pool[class].min(u32::from(self.view.jobs[job].asked().saturating_sub(slots)));
        self.gangs.pool[class] -= more;
        self.shares[job].slots += more as u16;
    }

    /// Opportunistic jobs that are complete and for which there is quota.
    fn upgrade(&mut self, order: &[usize]) {
        for &job in order {
            let Some(class) = self.runs(job).filter(|_| self.is_opportunistic(job) && !self.is_guest(job)) else {
                continue;
            };
            let known = &self.view.jobs[job];
            let is_complete = known.held >= known.asked() && known.priority >= 0;
            if is_complete && self.has_quota(job) && self.gangs.keep(class, known.asked()) {
                self.take_quota(job);
                self.queues[job] = 0;
                self.shares[job] = Share { class, slots: known.asked(), waits: None };
            }
        }
    }

    /// Jobs that wait, each tenant's in order: who finds quota and no room keeps what there is from the guaranteed jobs after it.
    fn launch(&mut self, order: &[usize]) {
        for &job in order {
            let known = &self.view.jobs[job];
            let is_waiting = known.held == 0 || self.queues[job] != OPPORTUNISTIC && self.shares[job].slots == 0;
            // Who shares others' slots for want of quota, and not by its own wish, is still one of its tenant's jobs in order.
            if !(is_waiting || self.is_guest(job)) || known.priority < 0 {
                continue;
            }
            if let Some((ahead, _)) = self.head[known.tenant] {
                self.shares[job].waits = Some(Wait::Behind(ahead));
                continue;
            }
            if !self.has_quota(job) {
                let left = self.quota[known.tenant].unwrap_or(0);
                self.head[known.tenant] = Some((job, true));
                self.shares[job].waits = Some(Wait::Quota((u32::from(known.asked()) - left).max(1)));
                continue;
            }
            let share = self.gangs.start(job, known.asked());
            self.shares[job] = share;
            if share.slots > 0 {
                self.take_quota(job);
                self.queues[job] = 0;
            } else {
                self.head[known.tenant] = Some((job, false));
            }
        }
    }

    /// What is left goes to opportunistic jobs: those that run, then those that wait, each its fewest; then up to what they asked for. Who finds no slots of
    /// its own shares those of guaranteed jobs. Says after how long somebody else becomes one.
    fn share_the_rest(&mut self, order: &[usize]) -> Option<u64> {
        let mut wake_in_ms: Option<u64> = None;
        let mut may_share = Vec::new();
        for &job in order {
            let Some(class) = self.runs(job).filter(|_| self.is_opportunistic(job)) else { continue };
            if self.shares[job].slots == 0 {
                let min = self.view.jobs[job].min;
                if self.gangs.keep(class, min) {
                    self.shares[job] = Share { class, slots: min, waits: None };
                } else {
                    self.shares[job] = Share { waits: Some(self.missing(job)), ..Share::default() };
                    may_share.push(job);
                }
            }
        }
        let mut quota_waits = self.quota_waits(order);
        for &job in order {
            let known = &self.view.jobs[job];
            let quota = &mut quota_waits[known.tenant];
            if self.shares[job].slots > 0 || known.held > 0 && self.is_opportunistic(job) {
                if self.is_guest(job) {
                    quota.note_waiting(known);
                }
                continue;
            }
            let is_one = self.is_opportunistic(job) || known.priority < 0;
            let waits_for_quota = self.head[known.tenant].is_some_and(|(_, for_quota)| for_quota);
            let has_none = self.view.tenants.get(known.tenant).is_some_and(|tenant| tenant.quota == Some(0));
            let left_ms = PATIENCE_MS.saturating_sub(known.service.waited_ms);
            let waits_long = left_ms == 0 || quota.of(known.asked()) >= Some(left_ms);
            if !(is_one || waits_for_quota && (has_none || waits_long)) {
                quota.note_waiting(known);
                if waits_for_quota {
                    wake_in_ms = Some(wake_in_ms.map_or(left_ms, |earlier| earlier.min(left_ms)));
                }
                continue;
            }
            match self.view.roomiest(self.view.suiting(job), &self.gangs.pool, known.min) {
                Some(class) if self.gangs.keep(class, known.min) => {
                    self.shares[job] = Share { class, slots: known.min, waits: None };
                    self.queues[job] = OPPORTUNISTIC;
                }
                _ => {
                    quota.note_waiting(known);
                    let missing = self.missing(job);
                    self.shares[job].waits.get_or_insert(missing);
                    may_share.push(job);
                }
            }
        }
        self.begin_as_guests(may_share);
        let has_some = |&job: &usize| self.shares[job].slots > 0;
        let shares = |&job: &usize| self.is_opportunistic(job) || is_of_guests(self.view, &self.shares[job]);
        let all: Vec<usize> = order.iter().copied().filter(has_some).filter(shares).collect();
        all.iter().for_each(|&job| self.grow(job));
        // Last, so that a guest takes nothing that anybody could grow by.
        all.into_iter().for_each(|job| self.move_up(job));
        for (job, share) in self.shares.iter_mut().enumerate() {
            if share.slots == 0 {
                share.waits.get_or_insert(Wait::Slots(u32::from(self.view.jobs[job].min).max(1)));
            }
        }
        wake_in_ms
    }

    /// When each tenant's guaranteed jobs are expected to end, as far as it is known what they have left.
    fn quota_waits(&self, order: &[usize]) -> Vec<QuotaWait> {
        let mut ends = vec![Vec::new(); self.quota.len()];
        for &job in order.iter().filter(|&&job| self.shares[job].slots > 0 && !self.is_opportunistic(job)) {
            let known = &self.view.jobs[job];
            if let Some(ms) = self.ends_in_ms(job) {
                ends[known.tenant].push((ms, known.asked().into()));
            }
        }
        self.quota.iter().zip(ends).map(|(left, ends)| QuotaWait::new(*left, ends)).collect()
    }

    /// How long a job is expected to run on the slots that it is to have.
    fn ends_in_ms(&self, job: usize) -> Option<u64> {
        let (known, speeds) = (&self.view.jobs[job], self.view.speeds(job));
        let speed = speeds.speed(self.shares[job].slots);
        let times_longer = speeds.speed(known.asked()) / speed;
        (known.left != WorkLeft::Unknown && speed > 0.0).then(|| (expected_ms(known) as f64 * times_longer) as u64)
    }

    /// Who found no slots of its own shares those of guaranteed jobs, if it can: first those that had some and have to make way.
    fn begin_as_guests(&mut self, mut jobs: Vec<usize>) {
        jobs.sort_by_key(|&job| self.before.jobs[job].held == 0);
        for job in jobs {
            let slots = self.view.jobs[job].min;
            if let Some(class) = self.guest_class(job, slots).filter(|&guest| self.gangs.keep(guest, slots)) {
                self.shares[job] = Share { class, slots, waits: None };
            }
        }
    }

    /// A guest goes to slots of its own when there are all that it asked for, and nobody else has any use of them. It goes over its checkpoint, so not at once
    /// after another move.
    fn move_up(&mut self, job: usize) {
        let (known, Share { class, slots, .. }) = (&self.view.jobs[job], self.shares[job]);
        if !self.is_guest(job) || !self.view.classes[class].guest || slots == 0 || !known.settled {
            return;
        }
        let asked = known.asked();
        if let Some(own) = self.view.roomiest(self.view.suiting(job), &self.gangs.pool, asked)
            && self.gangs.keep(own, asked)
        {
            self.gangs.pool[class] += u32::from(slots);
            self.shares[job] = Share { class: own, slots: asked, waits: None };
        }
    }

    /// What a job that gets nothing lacks of its fewest.
    fn missing(&self, job: usize) -> Wait {
        let most = self.view.suiting(job).map(|class| self.gangs.pool[class]).max().unwrap_or(0);
        Wait::Slots(u32::from(self.view.jobs[job].min).saturating_sub(most).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ClassView, JobView, ServiceView, TenantView};
    use super::*;

    /// Of tenant 0, which has quota, or of tenant 1, which has none.
    fn job(tenant: usize, asked: u16, held: u16) -> JobView {
        let class = (held > 0).then_some(0);
        JobView { min: 1, max: asked, held, class, numeric: class, settled: true, tenant, ..JobView::default() }
    }

    fn opportunistic(job: JobView) -> JobView {
        JobView { service: ServiceView { queue: OPPORTUNISTIC, ..job.service }, ..job }
    }

    fn gang(job: JobView) -> JobView {
        JobView { min: job.max, ..job }
    }

    fn view(capacity: u32, quota: u32, jobs: &[JobView]) -> View {
        let classes = vec![ClassView { capacity, declared: capacity, ..ClassView::default() }];
        let tenants = [Some(quota), Some(0)].map(|quota| TenantView { quota }).to_vec();
        View { classes, tenants, jobs: jobs.to_vec(), ..View::default() }
    }

    /// Slots, and the queues that jobs come into.
    fn planned(view: &View) -> (Vec<u16>, Vec<(usize, u8)>) {
        let plan = Antman.plan(view);
        let moves = plan.moves.iter().map(|moved| (moved.job, moved.queue)).collect();
        (plan.shares.iter().map(|share| share.slots).collect(), moves)
    }

    #[test]
    fn who_has_no_quota_uses_what_is_idle_and_gives_it_back_at_once() {
        let idle = [job(1, 6, 0)];
        assert_eq!(planned(&view(8, 8, &idle)), (vec![6], vec![(0, OPPORTUNISTIC)]));
        // Table 1: B comes 26 minutes after A, has quota, and gets all that it asked for; A is not ended for it where it can do with less.
        let both = [opportunistic(job(1, 6, 6)), gang(job(0, 4, 0))];
        assert_eq!(planned(&view(8, 8, &both)), (vec![4, 4], vec![]));
        let all = [opportunistic(job(1, 6, 6)), gang(job(0, 8, 0))];
        assert_eq!(planned(&view(8, 8, &all)), (vec![0, 8], vec![]), "a slot has one job");
    }

    #[test]
    fn who_is_only_thought_to_run_somewhere_may_still_run_elsewhere() {
        let classes = [4, 7].map(|slots| ClassView {
            capacity: slots,
            declared: slots,
            numeric: slots as usize,
            ..ClassView::default()
        });
        let urgent = JobView { min: 4, priority: 1, ..job(0, 11, 0) };
        let jobs = vec![JobView { min: 3, ..job(0, 7, 0) }, opportunistic(urgent)];
        let view = View { classes: classes.to_vec(), jobs, ..View::default() };
        // Looked at alone the second has the larger class, until the first is found to have it guaranteed.
        assert_eq!(planned(&view).0, [7, 4]);
    }

    #[test]
    fn guaranteed_jobs_stop_at_the_quota_and_are_never_taken_from() {
        let jobs = [job(0, 4, 4), job(0, 4, 0), job(1, 2, 0)];
        assert_eq!(planned(&view(8, 4, &jobs)), (vec![4, 0, 2], vec![(2, OPPORTUNISTIC)]));
        assert_eq!(planned(&view(8, 8, &jobs)), (vec![4, 4, 0], vec![]));
        let urgent = JobView { priority: 5, ..job(0, 8, 0) };
        assert_eq!(planned(&view(8, 8, &[job(0, 4, 4), urgent])).0, [4, 0]);
    }

    #[test]
    fn three_left_and_a_request_for_four_are_reserved_and_used_meanwhile() {
        // "e.g., three GPUs left while there is a request for four": no guaranteed job gets them, opportunistic ones do.
        let jobs = [job(0, 5, 5), gang(job(0, 4, 0)), job(0, 2, 0), job(1, 2, 0)];
        assert_eq!(planned(&view(8, 100, &jobs)), (vec![5, 0, 0, 2], vec![(3, OPPORTUNISTIC)]));
        let freed = [gang(job(0, 4, 0)), job(0, 2, 0), opportunistic(job(1, 2, 2))];
        assert_eq!(planned(&view(8, 100, &freed)), (vec![4, 2, 2], vec![]));
    }

    #[test]
    fn a_complete_job_is_upgraded_before_another_is_launched() {
        let runs = opportunistic(job(0, 4, 4));
        assert_eq!(planned(&view(8, 4, &[job(0, 4, 0), runs])), (vec![0, 4], vec![(1, 0)]));
        // "The partial upgrade does not help": one that lacks a slot is none, and gives way.
        let partly = opportunistic(job(0, 4, 3));
        assert_eq!(planned(&view(4, 4, &[gang(job(0, 4, 0)), partly])), (vec![4, 0], vec![]));
        let by_wish = JobView { priority: -1, ..runs };
        assert_eq!(planned(&view(4, 4, &[by_wish])), (vec![4], vec![]), "it never occupies quota");
    }

    #[test]
    fn who_waits_long_for_quota_becomes_opportunistic() {
        let waits =
            |waited_ms| JobView { service: ServiceView { waited_ms, ..ServiceView::default() }, ..job(0, 4, 0) };
        let plan = Antman.plan(&view(8, 4, &[job(0, 4, 4), waits(PATIENCE_MS - 5)]));
        assert_eq!((plan.shares[1].slots, plan.wake_in_ms), (0, Some(5)));
        let long = [job(0, 4, 4), waits(PATIENCE_MS)];
        assert_eq!(planned(&view(8, 4, &long)), (vec![4, 4], vec![(1, OPPORTUNISTIC)]));
        assert_eq!(planned(&view(4, 8, &long)).0, [4, 0], "for room it waits as it is");
    }

    /// "The global scheduler will estimate the queuing time for jobs without GPU quota granted."
    #[test]
    fn who_is_going_to_wait_long_for_quota_is_opportunistic_at_once() {
        let minutes = |minutes: u64, job: JobView| JobView { left: WorkLeft::Known { ms: minutes * 60_000 }, ..job };
        let of = |first, second| {
            let jobs = [minutes(first, job(0, 2, 2)), minutes(second, job(0, 2, 2)), job(0, 2, 0), job(0, 2, 0)];
            planned(&view(8, 4, &jobs)).0
        };
        assert_eq!(of(9, 9), [2, 2, 0, 0]);
        assert_eq!(of(9, 10), [2, 2, 0, 2], "the second one that waits needs both of them to end");
        assert_eq!(of(10, 10), [2, 2, 2, 2]);
        // The first one finds no room, and goes before the second one all the same.
        let runs = [9, 60, 70].map(|left| minutes(left, job(0, 2, 2)));
        let waits = [gang(job(0, 4, 0)), JobView { min: 1, ..job(0, 2, 0) }];
        assert_eq!(planned(&view(7, 6, &[&runs[..], &waits].concat())).0, [2, 2, 2, 0, 1]);
        let unknown = [minutes(60, job(0, 2, 2)), job(0, 2, 2), job(0, 4, 0)];
        assert_eq!(planned(&view(8, 4, &unknown)).0, [2, 2, 0], "of one of the two nobody knows");
    }

    #[test]
    fn guaranteed_jobs_beyond_a_quota_that_was_set_meanwhile_become_opportunistic_the_latest_first() {
        let jobs = [job(0, 2, 2), job(0, 4, 4), job(0, 2, 2)];
        assert_eq!(planned(&view(8, 4, &jobs)), (vec![2, 4, 2], vec![(1, OPPORTUNISTIC)]), "who fits stays");
        let wanted = [job(1, 6, 6), gang(job(0, 4, 0))];
        assert_eq!(planned(&view(8, 4, &wanted)), (vec![4, 4], vec![(0, OPPORTUNISTIC)]));
    }

    /// With so many guest slots beside guaranteed jobs.
    fn shared(capacity: u32, guests: u32, quota: u32, jobs: &[JobView]) -> View {
        let mut view = view(capacity, quota, jobs);
        view.classes.push(ClassView { capacity: guests, declared: guests, guest: true, ..ClassView::default() });
        view
    }

    /// The classes of those that have slots: 0 of its own, 1 others'.
    fn classes(view: &View) -> Vec<Option<usize>> {
        Antman.plan(view).shares.iter().map(|share| (share.slots > 0).then_some(share.class)).collect()
    }

    #[test]
    fn who_finds_no_idle_slot_shares_those_of_guaranteed_jobs() {
        let jobs = [job(0, 4, 4), gang(job(1, 4, 0)), gang(job(1, 4, 0))];
        let view = shared(8, 4, 8, &jobs);
        assert_eq!(planned(&view), (vec![4, 4, 4], vec![(1, OPPORTUNISTIC), (2, OPPORTUNISTIC)]));
        assert_eq!(classes(&view), [Some(0), Some(0), Some(1)], "idle ones first");
        // Jobs of a tenant with quota that wait for room share nobody's: they are to run alone.
        assert_eq!(planned(&shared(4, 4, 8, &[job(0, 4, 4), job(0, 4, 0)])).0, [4, 0]);
    }

    #[test]
    fn who_has_to_make_way_goes_on_beside_a_guaranteed_job() {
        let makes_way = opportunistic(gang(job(1, 4, 4)));
        let view = shared(8, 4, 8, &[job(0, 4, 4), makes_way, gang(job(0, 4, 0))]);
        assert_eq!(classes(&view), [Some(0), Some(1), Some(0)]);
        assert_eq!(classes(&shared(8, 3, 8, &view.jobs)), [Some(0), None, Some(0)], "as a whole or not at all");
    }

    #[test]
    fn a_guest_is_upgraded_onto_slots_of_its_own_or_moves_there_when_they_are_idle() {
        let guest = |tenant, settled| {
            let of = opportunistic(job(tenant, 4, 4));
            JobView { class: Some(1), numeric: Some(0), settled, ..of }
        };
        let upgraded = shared(8, 4, 8, &[job(0, 4, 4), guest(0, false)]);
        assert_eq!((classes(&upgraded), planned(&upgraded).1), (vec![Some(0), Some(0)], vec![(1, 0)]));
        let moved = shared(8, 4, 8, &[job(0, 4, 4), guest(1, true)]);
        assert_eq!((classes(&moved), planned(&moved).1), (vec![Some(0), Some(0)], vec![]));
        assert_eq!(
            classes(&shared(8, 4, 8, &[job(0, 4, 4), guest(1, false)])),
            [Some(0), Some(1)],
            "it moved just now"
        );
        assert_eq!(classes(&shared(7, 4, 8, &[job(0, 4, 4), guest(1, true)])), [Some(0), Some(1)], "not all are there");
    }

    #[test]
    fn who_has_slots_reserved_and_never_ran_binds_itself_to_no_class_as_a_guest() {
        let kinds = [(8, 0, false), (4, 1, false), (4, 1, true)].map(|(capacity, numeric, guest)| ClassView {
            capacity,
            declared: capacity,
            numeric,
            guest,
            ..ClassView::default()
        });
        let there = JobView { class: Some(1), numeric: Some(1), ..job(0, 4, 4) };
        // Eight it can only have of the first class, and four of them are used by who gives way to it.
        let reserves = opportunistic(JobView { min: 4, ..job(0, 8, 0) });
        let gives_way = JobView { priority: -1, ..opportunistic(gang(job(0, 4, 4))) };
        let jobs = vec![job(0, 4, 4), there, reserves, gang(job(1, 4, 0)), gives_way];
        let mut view = View { classes: kinds.to_vec(), jobs, ..View::default() };
        assert_eq!(planned(&view).0, [4, 4, 0, 0, 4]);
        // The same of one that had slots and did not begin on them before it has to make way.
        view.jobs[0] = job(0, 8, 4);
        view.jobs[2] = JobView { held: 4, class: Some(0), ..reserves };
        view.jobs[4].held = 0;
        assert_eq!(planned(&view).0, [8, 4, 0, 0, 0]);
        view.jobs[2].numeric = Some(0);
        view.classes[2].numeric = 0;
        assert_eq!((planned(&view).0[2], classes(&view)[2]), (4, Some(2)), "who is bound already reserves what it did");
    }

    #[test]
    fn without_quotas_every_job_is_guaranteed() {
        let mut all = view(8, 0, &[job(0, 4, 0), job(1, 4, 0), job(1, 1, 0)]);
        all.tenants.clear();
        assert_eq!(planned(&all), (vec![4, 4, 0], vec![]));
    }
}
