//! What the members of the world send and add up of gradients, in the order that their machines say. Asserts that it is the order of the reference.

use super::numbers::{Element, PARAMETERS, add};
use super::{PART, PIECE, Packet, World};
use events_schema::Step;
use events_schema::job::Determinism;
use workers_member::{Action, Bulk, Kind, Part, SumOp};
use workers_session::{Peer, Tag};

impl World {
    /// A stretch of the gradient that a member computes is final.
    pub(super) fn part(&mut self, me: Peer) {
        let shell = self.shells.get_mut(&me).unwrap();
        let (leaf, gradient, starts) = shell.computing.as_mut().unwrap();
        let start = starts.pop().unwrap();
        let part = start..(start + PART).min(PARAMETERS);
        let (leaf, elements) = (*leaf, gradient[part.clone()].to_vec());
        shell.begin(leaf, start, &elements);
        for part in shell.member.part(part) {
            match part {
                Part::Join(node, range) => {
                    let shell = self.shells.get_mut(&me).unwrap();
                    let (left, right) = node.children().unwrap();
                    let sum = add(&shell.stretch(left, range.clone()), &shell.stretch(right, range.clone()));
                    shell.begin(node, range.start, &sum);
                }
                Part::Reduce(tag, step, action) => {
                    self.parts_sent += usize::from(matches!(action, Action::Send { .. }));
                    self.parts_summed += usize::from(matches!(action, Action::Sum { .. }));
                    self.reduce(me, tag, step, action);
                }
            }
        }
    }

    pub(super) fn reduce(&mut self, me: Peer, tag: Tag, step: Step, action: Action<Vec<Element>>) {
        let shell = self.shells.get_mut(&me).unwrap();
        let bulk = |kind, offset: usize| Bulk { kind, tag, step, offset: offset as u64, elements: 0 };
        match action {
            Action::Send { to, node, range } => {
                let elements = shell.stretch(node, range.clone());
                self.post_bulk(me, to, bulk(Kind::Partial(node), range.start), &elements);
            }
            Action::Sum { kind, range, operations, to } => {
                let mut stack: Vec<Vec<Element>> = Vec::new();
                for operation in operations {
                    match operation {
                        SumOp::Own(node) => stack.push(shell.stretch(node, range.clone())),
                        SumOp::Foreign(_, payload) => stack.push(payload),
                        SumOp::Add => {
                            let (right, left) = (stack.pop().unwrap(), stack.pop().unwrap());
                            stack.push(add(&left, &right));
                        }
                    }
                }
                let sum = stack.pop().unwrap();
                assert!(stack.is_empty());
                let d1 = self.determinism == Determinism::D1;
                let whole = kind == Kind::Reduced;
                assert!(
                    !d1 || !whole || sum == self.reference.sums[step.0 as usize][range.clone()],
                    "another order of additions"
                );
                self.summed_for_others += usize::from(!whole);
                for (place, element) in shell.total[range.clone()].iter_mut().zip(&sum).filter(|_| whole) {
                    assert!(place.replace(*element).is_none());
                }
                to.into_iter().for_each(|to| self.post_bulk(me, to, bulk(kind, range.start), &sum));
            }
            Action::Place { offset, payload, to } => {
                for (place, element) in shell.total[offset..].iter_mut().zip(&payload) {
                    assert!(place.replace(*element).is_none());
                }
                to.into_iter().for_each(|to| self.post_bulk(me, to, bulk(Kind::Reduced, offset), &payload));
            }
            Action::Whole(node) => {
                shell.total = shell.sums.remove(&node).unwrap().into_iter().map(Some).collect();
            }
        }
    }

    pub(super) fn post_bulk(&mut self, from: Peer, to: Peer, bulk: Bulk, elements: &[Element]) {
        for (index, piece) in elements.chunks(PIECE).enumerate() {
            let offset = bulk.offset + (index * PIECE) as u64;
            let bulk = Bulk { offset, elements: piece.len(), ..bulk };
            self.post(from, to, Packet::Bulk(bulk, piece.to_vec()));
        }
    }
}
