//! What waits for a plan, and what does not. A plan takes no time here: what comes while it is made, its policy says itself.

use crate::support::{World, fleet, has_dataset, slot};
use controller_core::policy::effort::QUESTION_STEPS;
use controller_core::policy::{Plan, View};
use controller_core::{Interrupt, Policy, policy_by_name};
use events_rule::Stream;
use events_schema::batch::{Batch, InputStream};
use events_schema::command::Command;
use events_schema::fact::Fact;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Looks at its jobs for a while, and plans as `fifo` does.
struct Looks {
    fifo: Box<dyn Policy>,
    begun: Arc<AtomicU64>,
    made: Arc<AtomicU64>,
    /// Whether something comes when the next plan has begun.
    comes: Arc<AtomicBool>,
    presses: Arc<AtomicBool>,
}

impl Policy for Looks {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn plan(&self, view: &View) -> Plan {
        self.begun.fetch_add(1, Ordering::Relaxed);
        view.effort.spend(QUESTION_STEPS);
        if self.comes.swap(false, Ordering::Relaxed) {
            self.presses.store(true, Ordering::Relaxed);
        }
        view.effort.spend(QUESTION_STEPS);
        self.made.fetch_add(1, Ordering::Relaxed);
        self.fifo.plan(view)
    }
}

/// A cell with a policy that looks for long, and what happens to it.
struct Cell {
    world: World,
    begun: Arc<AtomicU64>,
    made: Arc<AtomicU64>,
    comes: Arc<AtomicBool>,
    presses: Arc<AtomicBool>,
}

impl Cell {
    /// Four slots are lent, and a job waits for what no server has.
    fn lent() -> Self {
        let (begun, made): (Arc<AtomicU64>, Arc<AtomicU64>) = Default::default();
        let (comes, presses): (Arc<AtomicBool>, Arc<AtomicBool>) = Default::default();
        let policy = Looks {
            fifo: policy_by_name("fifo").unwrap(),
            begun: Arc::clone(&begun),
            made: Arc::clone(&made),
            comes: Arc::clone(&comes),
            presses: Arc::clone(&presses),
        };
        let seen = Arc::clone(&presses);
        let interrupt = Interrupt::new(move || seen.load(Ordering::Relaxed));
        let mut world = World::led_by(Arc::new(policy), interrupt);
        world.log.register("digits");
        world.log.put_fleet(&["s1"], 4);
        world.log.submit("job-a");
        world.pass(100);
        world.log.demand(1, 0);
        world.pass(1_000);
        let mut cell = Self { world, begun, made, comes, presses };
        assert_eq!(cell.lent_slots(), 4);
        assert!(cell.made.load(Ordering::Relaxed) > 0);
        cell
    }

    fn lent_slots(&mut self) -> usize {
        self.world.first().state().fleet(&fleet()).unwrap().lent
    }

    fn counts(&self) -> (u64, u64) {
        (self.begun.load(Ordering::Relaxed), self.made.load(Ordering::Relaxed))
    }

    /// The batches from a place in `events` on.
    fn batches_since(&self, from: usize) -> Vec<Batch> {
        self.world.log.batches().split_off(from)
    }
}

fn reclaims(batch: &Batch) -> usize {
    batch.facts.iter().filter(|fact| matches!(fact, Fact::SlotReclaimed { .. })).count()
}

#[test]
fn a_plan_that_something_presses_upon_leaves_nothing_and_is_made_anew() {
    let mut cell = Cell::lent();
    let ((begun, made), end) = (cell.counts(), cell.world.log.end(Stream::Events));
    cell.comes.store(true, Ordering::Relaxed);
    // A tick has a plan made, which nothing comes of while something presses that never comes in.
    cell.world.pass(400);
    let (begun_now, made_now) = cell.counts();
    assert_eq!((begun_now, made_now, cell.world.log.end(Stream::Events)), (begun + 1, made, end));
    cell.presses.store(false, Ordering::Relaxed);
    cell.world.pass(10);
    assert_eq!(cell.counts().1, made + 1);
    let facts: Vec<Fact> = cell.world.log.batches().into_iter().flat_map(|batch| batch.facts).collect();
    assert!(!facts.iter().any(|fact| matches!(fact, Fact::PlanFailed { .. })), "{facts:?}");
    assert_eq!(cell.world.log.fold().state.digest(), cell.world.first().state().digest());
}

#[test]
fn a_plan_is_put_off_for_a_bounded_time() {
    let mut cell = Cell::lent();
    let (_, made) = cell.counts();
    cell.presses.store(true, Ordering::Relaxed);
    // The first one that is abandoned is that of the next tick, within 200 ms.
    cell.world.pass(900);
    assert_eq!(cell.counts().1, made);
    cell.world.pass(400);
    assert_eq!(cell.counts().1, made + 1);
    cell.world.pass(700);
    assert_eq!(cell.counts().1, made + 1, "and the next one is put off again");
}

#[test]
fn what_was_decided_before_a_plan_is_abandoned_stands() {
    let mut cell = Cell::lent();
    cell.comes.store(true, Ordering::Relaxed);
    cell.world.log.register("d2");
    cell.world.pass(50);
    assert!(cell.presses.load(Ordering::Relaxed));
    assert!(has_dataset(cell.world.first().state(), "d2"));
}

#[test]
fn slots_go_back_in_a_batch_of_their_own_before_a_plan() {
    for by_name in [false, true] {
        let mut cell = Cell::lent();
        let (begun, from) = (cell.counts().0, cell.world.log.batches().len());
        match by_name {
            false => cell.world.log.demand(2, 4),
            true => {
                // Of the same batch, and before it.
                cell.world.log.register("d2");
                let slots = (0..4).map(|index| slot("s1", index)).collect();
                cell.world.log.command("back", Command::ReclaimSlots { fleet: fleet(), slots });
            }
        }
        cell.world.pass(10);
        let batches = cell.batches_since(from);
        let back = batches.iter().find(|batch| reclaims(batch) > 0).unwrap();
        let plans = |fact: &Fact| matches!(fact, Fact::PlanAdopted { .. } | Fact::PolicyChosen { .. });
        assert_eq!((reclaims(back), back.facts.iter().any(plans)), (4, false));
        let stream = if by_name { InputStream::Commands } else { InputStream::Demand };
        assert!(back.taken.iter().any(|taken| taken.stream == stream));
        // The plans of the batch are one, after it.
        assert_eq!((cell.lent_slots(), cell.counts().0), (0, begun + 1));
    }
}
