//! What the replicas of the world have to be: those of the reference, or of a job without determinism those of one history each.

use super::World;
use super::numbers::{Element, add, gradient_of, update};
use events_schema::job::Determinism;
use events_schema::stride::Stride;
use events_schema::tree::{Node, fold};
use events_schema::{Rank, Step};
use workers_member::GradientFrom;
use workers_session::{Membership, Peer, Tag, stride_between};

impl World {
    pub(super) fn check_membership(&mut self, membership: Option<Membership>) {
        let membership = membership.unwrap();
        assert!(membership.is_whole(self.workers));
        let known = self.memberships.entry(membership.tag).or_insert_with(|| membership.clone());
        assert_eq!(*known, membership, "two memberships of one tag");
    }

    /// The bits of the reference, or of what somebody made of a whole sum of every step before.
    pub(super) fn check_replica(&self, replica: &[Element], step: Step) {
        match self.determinism {
            Determinism::D1 => assert!(replica == self.reference.replicas[step.0 as usize], "other bits"),
            Determinism::None => {
                let history = self.made.get(replica).expect("nobody made this replica");
                assert_eq!(history.len() as u64, step.0, "each step is taken once");
            }
        }
    }

    /// A replica takes so many steps.
    pub(super) fn apply(&mut self, me: Peer, (step, stride): (Step, Stride), mean: Vec<Element>, from: GradientFrom) {
        let shell = self.shells.get_mut(&me).unwrap();
        let (before, tag) = (shell.replica.clone(), shell.member.session().membership().map(|m| m.tag));
        update(&mut shell.replica, &mean, step);
        let replica = shell.replica.clone();
        (shell.step, shell.gradient) = (Some(stride.end(step)), Some(mean.clone()));
        match self.determinism {
            Determinism::D1 => assert!(mean == self.reference.sums[step.0 as usize], "another gradient"),
            Determinism::None if from != GradientFrom::Supply => self.make(&before, &mean, &replica, tag),
            Determinism::None => {}
        }
        self.check_replica(&replica, stride.end(step));
    }

    /// Another replica, by the sum of an update over the members of one membership, which together use the samples of every worker once.
    fn make(&mut self, before: &[Element], mean: &[Element], after: &[Element], tag: Option<Tag>) {
        let tag = tag.expect("only members make anything");
        let mut history = self.made[before].clone();
        let membership = &self.memberships[&tag];
        let at = Step(history.len() as u64);
        let config = self.config(membership.leader);
        let stride = stride_between(at, config.stops().after(at, membership.stride));
        let (gradients, computing) = membership.computing(self.workers, Determinism::None);
        let of_rank = |rank: Rank| {
            let seat = computing.seats.iter().find(|seat| seat.ranks == [rank]).unwrap();
            gradient_of(at, stride, membership.ranks(seat.peer), before)
        };
        let mut leaf = |node: Node| (node.count == 1).then(|| of_rank(Rank(node.first)));
        let sum = fold(Node::root(gradients), &mut leaf, &mut |l, r| add(&l, &r)).unwrap();
        assert!(mean == sum, "another gradient");
        (0..stride.steps()).for_each(|_| history.push(tag));
        // The same members take a step in two memberships alike.
        let known = self.made.entry(after.to_vec()).or_insert_with(|| history.clone());
        assert_eq!(known.len(), history.len(), "each step is taken once");
    }
}
