//! `tiresias`: whoever has had least of the slots goes first (discretized two-dimensional least attained service; Amoeba §6.2, after Gu et
//! al., NSDI 2019).
//!
//! A job begins in queue 0 and comes into the next one when it has attained a quantum of service, slots × time. Queues are served in order,
//! and within one whoever came into it first. A job runs on the slots that it asked for; one that does not find them is passed over, and
//! preempted if it runs. Who has been kept waiting in a later queue for far longer than it ever ran is promoted to queue 0, and its service
//! counts from there on.
//!
//! What the papers leave open: quanta count from the last promotion on, so a job enters queue 2 at 200,000 slot·s in all; a job that a
//! fleet left fewer slots than it asked for goes on with what is left for it, instead of being preempted for that; and nobody asks for more than
//! fleets declare at all.

use super::work::counted_slot_ms;
use super::{JobView, PROMOTED, Packing, Plan, Policy, QueueMove, Share, View, Wait};
use std::cmp::Reverse;

/// Slot·ms after which a job comes into the next queue (Amoeba §6.2: 10,000 and 200,000 GPU·s).
pub const QUANTA_SLOT_MS: [u64; 2] = [10_000_000, 200_000_000];
/// A job is promoted when it has waited so many times as long as it ran. The papers name the rule and no number: with 8 a job of an hour
/// waits for a night at most.
pub const STARVATION_RATIO: u32 = 8;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tiresias {
    quanta_slot_ms: Vec<u64>,
    starvation_ratio: Option<u32>,
}

impl Default for Tiresias {
    fn default() -> Self {
        Self { quanta_slot_ms: QUANTA_SLOT_MS.to_vec(), starvation_ratio: Some(STARVATION_RATIO) }
    }
}

/// Quanta that make no queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantaError {
    quanta: Vec<u64>,
}

impl std::fmt::Display for QuantaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of = &self.quanta;
        write!(
            f,
            "quanta of {of:?} slot·ms make no queues; expected 1 to {QUANTA_MAX}, each larger than the one before"
        )
    }
}

impl std::error::Error for QuantaError {}

/// Most quanta: a queue is a number of one byte, and more than a handful only sort by age.
pub const QUANTA_MAX: usize = 16;
const _: () = assert!(QUANTA_MAX < PROMOTED as usize, "no queue of service is that of who waited too long elsewhere");

impl Tiresias {
    /// With other queues, and another patience: `starvation_ratio` times as long as it ran, or without end.
    pub fn new(quanta_slot_ms: Vec<u64>, starvation_ratio: Option<u32>) -> Result<Self, QuantaError> {
        let rising =
            quanta_slot_ms.is_sorted_by(|a, b| a < b) && quanta_slot_ms.first().is_some_and(|first| *first > 0);
        if !rising || quanta_slot_ms.len() > QUANTA_MAX {
            return Err(QuantaError { quanta: quanta_slot_ms });
        }
        Ok(Self { quanta_slot_ms, starvation_ratio })
    }

    /// Where everybody belongs now, and who has to move for that.
    pub(super) fn queues(&self, view: &View) -> Queues {
        let (mut queues, mut moves) = (Vec::with_capacity(view.jobs.len()), Vec::new());
        for (job, known) in view.effort.each(view.jobs.iter().enumerate()) {
            let promoted = self.starves(known);
            let queue = if promoted { 0 } else { self.queue_of(known) };
            if promoted || queue != known.service.queue {
                moves.push(QueueMove { job, queue, promoted });
            }
            queues.push(queue);
        }
        let mut order: Vec<usize> = view.places().collect();
        let moved = |job: usize| moves.binary_search_by_key(&job, |known: &QueueMove| known.job).is_ok();
        order.sort_by_cached_key(|&job| {
            let known = &view.jobs[job];
            // Who comes in now comes after all who were there.
            let since = if moved(job) { u64::MAX } else { known.service.queued_at_ms };
            (Reverse(known.priority), queues[job], since, job)
        });
        Queues { of: queues, order, moves }
    }

    /// By its service alone. A job goes back to an earlier queue by promotion only, also if quanta were smaller once.
    fn queue_of(&self, job: &JobView) -> u8 {
        let passed = self.quanta_slot_ms.iter().filter(|quantum| **quantum <= counted_slot_ms(job)).count() as u8;
        // Who waited too long under `ebb` has come into no later queue by that.
        let before = if job.service.queue == PROMOTED { 0 } else { job.service.queue };
        passed.max(before.min(self.quanta_slot_ms.len() as u8))
    }

    /// Whether it has waited too long in a later queue than the first.
    fn starves(&self, job: &JobView) -> bool {
        job.held == 0
            && self.queue_of(job) > 0
            && self.patience_ms(job).is_some_and(|patience| job.service.waited_ms >= patience)
    }

    /// How long it may wait: a multiple of what it ran since it was last promoted, as if on all its slots.
    fn patience_ms(&self, job: &JobView) -> Option<u64> {
        let ran_ms = counted_slot_ms(job) / u64::from(job.asked().max(1));
        self.starvation_ratio.map(|ratio| ran_ms.saturating_mul(u64::from(ratio)).max(1))
    }

    /// When the first job passes a quantum or has waited long enough, if everybody has what the plan gives it.
    pub(super) fn wake_in_ms(&self, view: &View, queues: &Queues, shares: &[Share]) -> Option<u64> {
        let of = |(job, share): (usize, &Share)| {
            let (known, queue) = (&view.jobs[job], queues.of[job]);
            if share.slots > 0 {
                let quantum = *self.quanta_slot_ms.get(usize::from(queue))?;
                let moved = queues.moves.binary_search_by_key(&job, |moved| moved.job);
                let promoted = moved.is_ok_and(|place| queues.moves[place].promoted);
                let counted = if promoted { 0 } else { counted_slot_ms(known) };
                return Some(quantum.saturating_sub(counted).div_ceil(u64::from(share.slots)).max(1));
            }
            let left_ms = self.patience_ms(known)?.saturating_sub(known.service.waited_ms);
            (queue > 0).then(|| left_ms.max(1))
        };
        view.effort.each(shares.iter().enumerate()).filter_map(of).min()
    }
}

/// Where jobs are, and in which order they are served.
pub(super) struct Queues {
    /// The queue of each job.
    pub of: Vec<u8>,
    /// Places in the view.
    pub order: Vec<usize>,
    /// By their place in the view.
    pub moves: Vec<QueueMove>,
}

/// The slots that a job asked for, as far as fleets declare so many.
pub(super) fn requested(view: &View, job: usize) -> u16 {
    let known = &view.jobs[job];
    let declared = (0..view.classes.len()).filter(|&class| view.suits(job, class));
    let declared = declared.map(|class| view.classes[class].declared).max().unwrap_or(0);
    known.asked().min(u16::try_from(declared).unwrap_or(u16::MAX)).max(known.min)
}

/// Goes through jobs in order: each gets its size if there is room, whoever was passed over before it. `bound`: the class that a job
/// has to find it in, whatever else it could use.
pub(super) fn walk(
    view: &View,
    order: &[usize],
    size: impl Fn(usize) -> u16,
    bound: impl Fn(usize) -> Option<usize>,
) -> (Vec<Share>, Vec<u32>) {
    let mut pool: Vec<u32> = view.classes.iter().map(|class| class.capacity).collect();
    let mut shares = vec![Share::default(); view.jobs.len()];
    for &job in view.effort.each(order.iter()) {
        let (known, wanted) = (&view.jobs[job], size(job));
        let suits = |class: &usize| bound(job).is_none_or(|bound| bound == *class);
        let suiting = || view.suiting(job).filter(suits);
        let roomiest = |slots: u16| view.roomiest(suiting(), &pool, slots);
        // Who has less than that already, because a fleet took some, goes on with what there is.
        let is_short = known.held > 0 && known.held < wanted;
        let left = |class: usize| (class, pool[class].min(u32::from(wanted)) as u16);
        let fits = roomiest(wanted).map(|class| (class, wanted));
        let fits = fits.or_else(|| roomiest(known.min).filter(|_| is_short).map(left));
        shares[job] = match fits {
            Some((class, slots)) => {
                pool[class] -= u32::from(slots);
                Share { class, slots, waits: None }
            }
            None => {
                let most = suiting().map(|class| pool[class]).max().unwrap_or(0);
                let missing = u32::from(wanted).saturating_sub(most).max(1);
                Share { waits: Some(Wait::Slots(missing)), ..Share::default() }
            }
        };
    }
    (shares, pool)
}

impl Policy for Tiresias {
    fn name(&self) -> &'static str {
        "tiresias"
    }

    fn plan(&self, view: &View) -> Plan {
        let queues = self.queues(view);
        let (shares, _) = walk(view, &queues.order, |job| requested(view, job), |_| None);
        let wake_in_ms = self.wake_in_ms(view, &queues, &shares);
        Plan { shares, moves: queues.moves, wake_in_ms, ..Plan::default() }
    }

    fn packing(&self) -> Packing {
        Packing::WorstFit
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{ClassView, ServiceView};
    use super::*;

    fn job(slots: u16, held: u16, attained_slot_s: u64) -> JobView {
        let service = ServiceView { attained_slot_ms: attained_slot_s * 1_000, ..ServiceView::default() };
        let class = (held > 0).then_some(0);
        JobView { min: slots, max: slots, held, class, numeric: class, settled: true, service, ..JobView::default() }
    }

    fn in_queue(queue: u8, queued_at_ms: u64, job: JobView) -> JobView {
        JobView { service: ServiceView { queue, queued_at_ms, ..job.service }, ..job }
    }

    fn view(capacity: u32, jobs: &[JobView]) -> View {
        View {
            classes: vec![ClassView { capacity, declared: capacity, ..ClassView::default() }],
            jobs: jobs.to_vec(),
            ..View::default()
        }
    }

    fn slots(view: &View) -> Vec<u16> {
        Tiresias::default().plan(view).shares.iter().map(|share| share.slots).collect()
    }

    fn moves(view: &View) -> Vec<(usize, u8, bool)> {
        Tiresias::default().plan(view).moves.iter().map(|moved| (moved.job, moved.queue, moved.promoted)).collect()
    }

    /// Amoeba §6.2: "the service quantum for Q0 and Q1 are 10000 GPU·seconds and 200000 GPU·seconds".
    #[test]
    fn a_job_that_has_consumed_its_quantum_comes_into_the_next_queue() {
        let jobs = [
            job(1, 1, 9_999),
            job(1, 1, 10_000),
            in_queue(1, 5, job(1, 1, 199_999)),
            in_queue(1, 5, job(1, 1, 200_000)),
        ];
        assert_eq!(moves(&view(4, &jobs)), [(1, 1, false), (3, 2, false)]);
        // Both quanta at once, if nobody looked for so long.
        assert_eq!(moves(&view(4, &[job(8, 0, 300_000)])), [(0, 2, false)]);
    }

    /// "A running job will be preempted if the scheduler finds that it can not be scheduled given its current priority."
    #[test]
    fn whoever_had_least_goes_first_and_others_are_preempted_for_it() {
        let old = in_queue(1, 5, job(4, 4, 20_000));
        assert_eq!(slots(&view(4, &[old, job(4, 0, 0)])), [0, 4]);
        assert_eq!(slots(&view(8, &[old, job(4, 0, 0)])), [4, 4]);
        assert_eq!(slots(&view(4, &[job(4, 4, 9_000), job(4, 0, 0)])), [4, 0], "within a queue who came first");
        let urgent = JobView { priority: 1, ..old };
        assert_eq!(slots(&view(4, &[urgent, job(4, 0, 0)])), [4, 0]);
    }

    #[test]
    fn who_does_not_fit_is_passed_over() {
        let plan = Tiresias::default().plan(&view(4, &[job(3, 3, 0), job(2, 0, 0), job(1, 0, 0)]));
        let found: Vec<_> = plan.shares.iter().map(|share| (share.slots, share.waits)).collect();
        assert_eq!(found, [(3, None), (0, Some(Wait::Slots(1))), (1, None)]);
    }

    #[test]
    fn within_a_queue_goes_first_who_came_into_it_first() {
        let late = in_queue(1, 9, job(4, 0, 20_000));
        let early = in_queue(1, 5, job(4, 0, 90_000));
        assert_eq!(slots(&view(4, &[late, early])), [0, 4]);
        // Who comes in now is behind both, though it came to Ebb before them.
        assert_eq!(slots(&view(4, &[job(4, 4, 10_000), late, early])), [0, 0, 4]);
    }

    /// "If a job is not scheduled for a long time, it will be moved to Q0 to prevent starvation."
    #[test]
    fn who_waits_far_longer_than_it_ran_is_promoted_and_its_service_counts_anew() {
        let waits = |waited_ms| {
            let job = in_queue(2, 5, job(4, 0, 400_000));
            JobView { service: ServiceView { waited_ms, ..job.service }, ..job }
        };
        // It ran for 100,000 s on its four slots.
        let (just, before) = (800_000_000, 799_999_999);
        assert!(moves(&view(4, &[waits(before), job(4, 4, 0)])).is_empty());
        assert_eq!(Tiresias::default().plan(&view(4, &[waits(before), job(4, 4, 0)])).wake_in_ms, Some(1));
        assert_eq!(moves(&view(4, &[waits(just), job(4, 4, 0)])), [(0, 0, true)]);
        let promoted = in_queue(0, 7, job(4, 0, 400_000));
        let promoted =
            JobView { service: ServiceView { promoted_slot_ms: 400_000_000, ..promoted.service }, ..promoted };
        assert!(moves(&view(4, &[promoted])).is_empty());
        let patient = Tiresias::new(QUANTA_SLOT_MS.to_vec(), None).unwrap();
        assert!(patient.plan(&view(4, &[waits(u64::MAX)])).moves.is_empty());
    }

    #[test]
    fn it_wakes_when_the_first_job_has_consumed_its_quantum() {
        let wake = |jobs: &[JobView]| Tiresias::default().plan(&view(8, jobs)).wake_in_ms;
        assert_eq!(wake(&[job(4, 4, 0), job(2, 2, 9_000)]), Some(500_000));
        assert_eq!(wake(&[in_queue(2, 5, job(4, 4, 300_000))]), None, "it is in the last one");
        assert_eq!(wake(&[in_queue(1, 5, job(4, 4, 10_000))]), Some(47_500_000));
    }

    #[test]
    fn a_job_that_a_fleet_left_fewer_slots_goes_on_with_them() {
        let elastic = |held| JobView { min: 1, ..job(4, held, 0) };
        assert_eq!(slots(&view(6, &[elastic(4), elastic(2)])), [4, 2]);
        assert_eq!(slots(&view(6, &[elastic(4), elastic(0)])), [4, 0], "but it does not start with fewer");
        // Nobody lends eight.
        assert_eq!(slots(&view(6, &[JobView { min: 1, ..job(8, 0, 0) }])), [6]);
    }

    /// Its number is larger than that of any queue of service.
    #[test]
    fn who_waited_too_long_under_ebb_is_in_the_queue_of_its_service() {
        let promoted = |attained_slot_s| in_queue(PROMOTED, 5, job(4, 0, attained_slot_s));
        assert_eq!(moves(&view(4, &[promoted(0)])), [(0, 0, false)]);
        assert_eq!(moves(&view(4, &[promoted(20_000)])), [(0, 1, false)]);
        assert_eq!(slots(&view(4, &[in_queue(1, 5, job(4, 0, 20_000)), promoted(0)])), [0, 4]);
    }

    #[test]
    fn quanta_have_to_rise() {
        assert!(Tiresias::new(vec![57_600_000], None).is_ok());
        for quanta in [vec![], vec![0, 1], vec![2, 2], (1..=17).collect()] {
            let error = Tiresias::new(quanta, None).unwrap_err().to_string();
            assert!(error.contains("make no queues; expected 1 to 16"), "{error}");
        }
    }
}
