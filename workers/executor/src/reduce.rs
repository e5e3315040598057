//! The canonical reduction of one step: partial sums of tree nodes in, the whole sum out, the same bits whatever the placement or order of
//! arrival. Pure: it says what to send, `network.rs` sends it.
//!
//! The flat gradient is cut into one chunk per member. A member sends its partial sums of every other member's chunk to that
//! member, which adds them in tree order, piece by piece as they become whole, and sends the sum to all. With m partials on member
//! i of p it sends (m + 1)·N·(p − 1)/p elements.

use crate::wire::{Kind, PIECE_ELEMENTS};
use crate::work::{Partial, add};
use events_schema::Step;
use events_schema::tree::{Node, fold};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use workers_session::{Membership, Peer, Tag};

/// A stretch of a flat vector that a peer has to get.
#[derive(Debug, Clone)]
pub struct Parcel {
    /// Who.
    pub to: Peer,
    /// What it is.
    pub kind: Kind,
    /// Where `range` begins in the flat vector.
    pub offset: usize,
    /// Holds it.
    pub data: Arc<Vec<f32>>,
    /// Which of `data`.
    pub range: Range<usize>,
}

/// What a peer sent does not fit this step. Cut the link: a correct peer of this membership cannot send it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{from} sent {what} that does not fit step {step}")]
pub struct Unfit {
    /// Who.
    pub from: Peer,
    /// What.
    pub what: &'static str,
    /// When.
    pub step: Step,
}

/// The part of a vector of `len` elements that belongs to member `index` of `count`.
#[must_use]
pub fn chunk(len: usize, index: usize, count: usize) -> Range<usize> {
    let cut = |i: usize| (len as u128 * i as u128 / count.max(1) as u128) as usize;
    cut(index)..cut(index + 1)
}

/// A piece of this member's chunk on its way to be whole: what others sent of it, by node.
#[derive(Debug, Default)]
struct Piece {
    parts: BTreeMap<Node, Vec<f32>>,
    summed: bool,
}

/// One step's reduction on one member.
#[derive(Debug)]
pub struct Reduction {
    tag: Tag,
    step: Step,
    root: Node,
    me: usize,
    /// Every member and the nodes it sums.
    covers: Vec<(Peer, Vec<Node>)>,
    own: BTreeMap<Node, Partial>,
    chunk: Range<usize>,
    pieces: Vec<Piece>,
    sum: Vec<f32>,
    /// Elements of the sum still to come, own chunk included.
    missing: usize,
    /// Elements received of every other member's chunk; they come in order.
    received: Vec<usize>,
}

impl Reduction {
    /// The reduction of `step` on member `me`. `sum` is a buffer to use, of any length.
    #[must_use]
    pub fn new(
        membership: &Membership,
        me: Peer,
        workers: u16,
        step: Step,
        parameter_count: usize,
        mut sum: Vec<f32>,
    ) -> Self {
        let root = Node::root(workers);
        let covers: Vec<(Peer, Vec<Node>)> = membership.seats.iter().map(|s| (s.peer, root.cover(&s.ranks))).collect();
        let index = membership.index(me).unwrap_or(0);
        let chunk = chunk(parameter_count, index, covers.len());
        // Alone, the root's partial becomes the sum; no second buffer.
        sum.resize(if covers.len() > 1 { parameter_count } else { 0 }, 0.0);
        let pieces = (0..chunk.len().div_ceil(PIECE_ELEMENTS)).map(|_| Piece::default()).collect();
        let received = vec![0; covers.len()];
        Self {
            tag: membership.tag,
            step,
            root,
            me: index,
            own: BTreeMap::new(),
            pieces,
            sum,
            missing: parameter_count,
            received,
            covers,
            chunk,
        }
    }

    /// The membership it runs in.
    #[must_use]
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// The step it sums.
    #[must_use]
    pub fn step(&self) -> Step {
        self.step
    }

    /// Takes one of this member's own sums; gives what to send.
    pub fn on_own(&mut self, partial: Partial) -> Vec<Parcel> {
        let node = partial.sums.node;
        let mut parcels = Vec::new();
        let (len, count) = (partial.gradient.len(), self.covers.len());
        for (index, (peer, _)) in self.covers.iter().enumerate().filter(|(i, _)| *i != self.me) {
            let range = chunk(len, index, count);
            if !range.is_empty() {
                parcels.push(Parcel {
                    to: *peer,
                    kind: Kind::Partial(node),
                    offset: range.start,
                    data: Arc::clone(&partial.gradient),
                    range,
                });
            }
        }
        self.own.insert(node, partial);
        if count > 1 {
            (0..self.pieces.len()).for_each(|i| self.sum_piece(i, &mut parcels));
        } else if let Some(root) = self.own.remove(&self.root) {
            self.sum = Arc::unwrap_or_clone(root.gradient);
            self.missing = 0;
        }
        parcels
    }

    /// Takes a stretch of a peer's sum of `node`; gives what to send.
    pub fn on_partial(
        &mut self,
        from: Peer,
        node: Node,
        offset: u64,
        elements: Vec<f32>,
    ) -> Result<Vec<Parcel>, Unfit> {
        let unfit = Unfit { from, what: "a partial sum", step: self.step };
        let known = self.covers.iter().any(|(peer, nodes)| *peer == from && nodes.contains(&node));
        let place = usize::try_from(offset)
            .ok()
            .and_then(|o| o.checked_sub(self.chunk.start))
            .filter(|p| p.is_multiple_of(PIECE_ELEMENTS));
        let index = place
            .map(|p| p / PIECE_ELEMENTS)
            .filter(|&i| known && i < self.pieces.len())
            .ok_or_else(|| unfit.clone())?;
        if elements.len() != self.piece(index).len()
            || self.pieces[index].summed
            || self.pieces[index].parts.insert(node, elements).is_some()
        {
            return Err(unfit);
        }
        let mut parcels = Vec::new();
        self.sum_piece(index, &mut parcels);
        Ok(parcels)
    }

    /// Takes a stretch of the whole sum from the owner of its chunk.
    pub fn on_reduced(&mut self, from: Peer, offset: u64, elements: &[f32]) -> Result<(), Unfit> {
        let unfit = || Unfit { from, what: "a reduced piece", step: self.step };
        let index =
            self.covers.iter().position(|(peer, _)| *peer == from).filter(|&i| i != self.me).ok_or_else(unfit)?;
        let range = chunk(self.sum.len(), index, self.covers.len());
        let start = range.start + self.received[index];
        let end = start + elements.len();
        if offset != start as u64 || end > range.end || elements.is_empty() {
            return Err(unfit());
        }
        self.sum[start..end].copy_from_slice(elements);
        self.received[index] += elements.len();
        self.missing -= elements.len();
        Ok(())
    }

    /// Whether the whole sum is here.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.missing == 0
    }

    /// The whole sum, and this member's partials to give back.
    #[must_use]
    pub fn into_sum(self) -> (Vec<f32>, Vec<Partial>) {
        (self.sum, self.own.into_values().collect())
    }

    /// Gives up: this member's finished sums stay right for the same step in another membership. Also the buffer.
    #[must_use]
    pub fn abandon(self) -> (Vec<Partial>, Vec<f32>) {
        (self.own.into_values().collect(), self.sum)
    }

    fn piece(&self, index: usize) -> Range<usize> {
        let start = self.chunk.start + index * PIECE_ELEMENTS;
        start..(start + PIECE_ELEMENTS).min(self.chunk.end)
    }

    /// Sums a piece of this member's chunk if every node's part of it is here. Pieces become whole in order, because links keep it.
    fn sum_piece(&mut self, index: usize, parcels: &mut Vec<Parcel>) {
        let range = self.piece(index);
        let foreign: usize =
            self.covers.iter().enumerate().filter(|(i, _)| *i != self.me).map(|(_, (_, nodes))| nodes.len()).sum();
        let (own, piece) = (&self.own, &mut self.pieces[index]);
        if piece.summed || own.len() < self.covers[self.me].1.len() || piece.parts.len() < foreign {
            return;
        }
        piece.summed = true;
        let mut parts = std::mem::take(&mut piece.parts);
        let mut leaf =
            |node: Node| own.get(&node).map(|p| p.gradient[range.clone()].to_vec()).or_else(|| parts.remove(&node));
        let mut join = |mut left: Vec<f32>, right: Vec<f32>| {
            add(&mut left, &right);
            left
        };
        let Some(sum) = fold(self.root, &mut leaf, &mut join) else { return };
        self.sum[range.clone()].copy_from_slice(&sum);
        self.missing -= sum.len();
        let data = Arc::new(sum);
        for (_, (peer, _)) in self.covers.iter().enumerate().filter(|(i, _)| *i != self.me) {
            parcels.push(Parcel {
                to: *peer,
                kind: Kind::Reduced,
                offset: range.start,
                range: 0..data.len(),
                data: Arc::clone(&data),
            });
        }
    }
}

#[cfg(test)]
#[path = "reduce_tests.rs"]
mod tests;
