//! The mean gradient that an update is given: of this executor's own sum, or as peers sent it. It stays where it was summed: in the pieces that this
//! executor added up and lends its peers, and in theirs if their memory can be read here. To copy it out first took a gradient of memory, and made
//! everybody wait for the copy. Only a workload that needs one vector has it in one.
//!
//! What is lent is changed by nobody, so a sum is divided by its weight where it is read. Nothing is looked at before all of it is there, which is the
//! machine's to say (`workers/member/src/replica.rs`). A loan goes back when the mean is dropped; until then its lender changes none of it, and if the
//! lender dies its memory stays (`lending.rs`). Decides nothing.

use crate::buffers::{Buffer, Pool};
use crate::lending::Borrowed;
use crate::stretch::Stretch;
use crate::wire::PIECE_ELEMENTS;
use events_schema::Step;
use events_schema::stride::Stride;
use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::sync::Arc;
use workers_engine::{Update, blocks};

/// A mean gradient, or what has come of one.
#[derive(Debug, Default)]
pub struct Mean {
    /// All of it in one vector of this executor's.
    one: Option<Arc<Buffer>>,
    /// Where it lies otherwise, by the first element.
    parts: BTreeMap<usize, Part>,
    /// By what each element is still to be divided.
    weight: Option<f32>,
    /// The stretch that was divided for others, in pieces.
    divided: Option<(Range<usize>, Vec<Arc<Buffer>>)>,
}

/// Elements that lie together.
#[derive(Debug)]
enum Part {
    /// The first ones of a piece of this executor's.
    Here(Arc<Buffer>, usize),
    /// In a peer's memory.
    Lent(Borrowed),
}

impl Deref for Part {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Self::Here(piece, len) => &piece[..*len],
            Self::Lent(lent) => lent,
        }
    }
}

/// Elements that follow each other, and where they begin in the flat vector.
type Run<'a> = (usize, &'a [f32]);

/// A stretch as it can be sent.
#[derive(Debug)]
pub struct Given {
    /// Where it begins in the flat vector.
    pub offset: usize,
    /// Holds it.
    pub data: Arc<Buffer>,
    /// Which of `data`.
    pub range: Range<usize>,
}

impl From<Buffer> for Mean {
    fn from(one: Buffer) -> Self {
        Arc::new(one).into()
    }
}

impl From<Arc<Buffer>> for Mean {
    fn from(one: Arc<Buffer>) -> Self {
        Self { one: Some(one), ..Self::default() }
    }
}

impl Mean {
    /// Takes elements: copies them where it is to be in one vector, and else leaves them where they are.
    pub fn put(&mut self, offset: usize, elements: Stretch) {
        match elements {
            elements if self.one.is_some() => self.copy(offset, &elements),
            Stretch::Here { piece, len } => self.keep(offset, Arc::new(piece), len),
            Stretch::Lent(lent) => self.borrow(offset, lent),
        }
    }

    /// The same of the first elements of a piece that others are sent.
    pub fn put_shared(&mut self, offset: usize, piece: &Arc<Buffer>, len: usize) {
        match self.one {
            Some(_) => self.copy(offset, &piece[..len]),
            None => self.keep(offset, Arc::clone(piece), len),
        }
    }

    fn copy(&mut self, offset: usize, elements: &[f32]) {
        let place = self.one_mut().and_then(|one| one.get_mut(offset..offset + elements.len()));
        if let Some(place) = place {
            place.copy_from_slice(elements);
        }
    }

    fn keep(&mut self, offset: usize, piece: Arc<Buffer>, len: usize) {
        self.parts.insert(offset, Part::Here(piece, len));
    }

    fn borrow(&mut self, offset: usize, elements: Borrowed) {
        let before = self.parts.range_mut(..offset).next_back().filter(|(start, part)| *start + part.len() == offset);
        let apart = match before {
            Some((_, Part::Lent(lent))) => lent.extend(elements),
            _ => Err(elements),
        };
        if let Err(elements) = apart {
            self.parts.insert(offset, Part::Lent(elements));
        }
    }

    /// What was taken is a sum: each of its elements counts divided by this.
    pub fn divide_by(&mut self, weight: f64) {
        self.weight = Some(weight as f32);
    }

    /// The one vector that it is in, to be changed: copied first if others read it. None where it is in parts.
    pub fn one_mut(&mut self) -> Option<&mut [f32]> {
        self.one.as_mut().map(|one| &mut Arc::make_mut(one)[..])
    }

    /// The one vector that it is in; of no elements where it is in parts.
    #[must_use]
    pub fn into_one(self) -> Arc<Buffer> {
        self.one.unwrap_or_else(|| Arc::new(Buffer::from(Vec::new())))
    }

    /// A range of it, for others: from where it lies, if that is one vector of this executor's that holds the mean, or can. Otherwise it is divided into
    /// pieces of their own, once for all who are given the same range.
    pub fn give(&mut self, range: Range<usize>, pieces: &Pool) -> Vec<Given> {
        if let (Some(weight), Some(one)) = (self.weight, self.one.as_mut().and_then(Arc::get_mut)) {
            divide(one, weight);
            self.weight = None;
        }
        if let (None, Some(one)) = (self.weight, &self.one) {
            return vec![Given { offset: range.start, data: Arc::clone(one), range }];
        }
        if self.divided.as_ref().is_none_or(|(of, _)| *of != range) {
            self.divided = Some((range.clone(), self.divide_into(pieces, &range)));
        }
        let divided = self.divided.iter().flat_map(|(_, pieces)| pieces);
        let give = |(piece, data): (Range<usize>, &Arc<Buffer>)| Given {
            offset: piece.start,
            data: Arc::clone(data),
            range: 0..piece.len(),
        };
        pieces_of(&range, PIECE_ELEMENTS).zip(divided).map(give).collect()
    }

    fn divide_into(&self, pieces: &Pool, range: &Range<usize>) -> Vec<Arc<Buffer>> {
        let runs = self.runs();
        let piece = |part: Range<usize>| {
            let mut piece = pieces.take();
            self.read(&runs, &part, &mut piece[..part.len()]);
            Arc::new(piece)
        };
        pieces_of(range, PIECE_ELEMENTS).map(piece).collect()
    }

    /// Turns the replica at `step` into the one that is so many steps further, with the bits that one vector would give.
    pub fn apply(&self, update: &Update, replica: &mut [f32], step: Step, stride: Stride) {
        let runs = self.runs();
        let whole = 0..runs.last().map_or(0, |(start, run)| start + run.len());
        // Blocks of the norm, which stay in the cache between their division and what is done with them.
        let mut room = [0.0; blocks::BLOCK_LEN];
        let mut norm = || {
            let blocks = pieces_of(&whole, blocks::BLOCK_LEN);
            let squares = blocks.map(|block| blocks::block_squares(self.block(&runs, &block, &mut room)));
            blocks::norm_of(&squares.collect::<Vec<_>>())
        };
        let factors = update.factors_of(&mut norm, step, stride);
        for block in pieces_of(&whole, blocks::BLOCK_LEN) {
            let mean = self.block(&runs, &block, &mut room);
            update.apply_range(replica, mean, block, &factors);
        }
    }

    /// The mean of a block: where it lies, if it lies there, and else made in `room`.
    fn block<'a>(&self, runs: &[Run<'a>], block: &Range<usize>, room: &'a mut [f32]) -> &'a [f32] {
        if let (None, Some((_, whole))) =
            (self.weight, overlaps(runs, block).next().filter(|(_, run)| run.len() == block.len()))
        {
            return whole;
        }
        let room = &mut room[..block.len()];
        self.read(runs, block, room);
        room
    }

    /// The mean of a range.
    fn read(&self, runs: &[Run<'_>], range: &Range<usize>, mean: &mut [f32]) {
        for (start, run) in overlaps(runs, range) {
            mean[start - range.start..][..run.len()].copy_from_slice(run);
        }
        if let Some(weight) = self.weight {
            divide(mean, weight);
        }
    }

    #[cfg(test)]
    pub(crate) fn to_vec(&self) -> Vec<f32> {
        let (runs, len) = (self.runs(), self.runs().iter().map(|(_, run)| run.len()).sum());
        let start = runs.first().map_or(0, |(start, _)| *start);
        let mut elements = vec![0.0; len];
        self.read(&runs, &(start..start + len), &mut elements);
        elements
    }

    /// Where it lies, in order and without gaps.
    fn runs(&self) -> Vec<Run<'_>> {
        match &self.one {
            Some(one) => vec![(0, &***one)],
            None => self.parts.iter().map(|(&start, part)| (start, &**part)).collect(),
        }
    }
}

/// The mean of a sum; exact zeros when nothing had weight.
pub fn divide(sum: &mut [f32], weight: f32) {
    if weight.is_nan() || weight <= 0.0 {
        return sum.fill(0.0);
    }
    sum.iter_mut().for_each(|element| *element /= weight);
}

/// A range in pieces of so many elements.
fn pieces_of(range: &Range<usize>, elements: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = range.end;
    range.clone().step_by(elements).map(move |start| start..(start + elements).min(end))
}

/// What of a range lies in each of the runs, which follow each other.
fn overlaps<'a>(runs: &[Run<'a>], range: &Range<usize>) -> impl Iterator<Item = Run<'a>> {
    let Range { start, end } = *range;
    let first = runs.partition_point(|(at, run)| at + run.len() <= start);
    runs[first..].iter().take_while(move |(at, _)| *at < end).map(move |&(at, run)| {
        let from = start.max(at);
        (from, &run[from - at..(end - at).min(run.len())])
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::lending::tests::lent;
    use crate::network::tests::{linked, next_bulk};
    use crate::replica::Replica;
    use crate::stretch::Stretch;
    use crate::sums::OutgoingSlice;
    use crate::wire::PIECE_ELEMENTS;
    use crate::workload::Workload;
    use events_schema::Generation;
    use events_schema::dataset::SampleShape;
    use events_schema::job::JobSpec;
    use workers_member::Kind;
    use workers_session::{Peer, Tag};

    /// A model of more than one piece and many blocks, whose gradient is clipped or not.
    fn workload(clip: Option<f64>) -> Workload {
        let spec = serde_json::json!({"name": "x", "dataset": "x", "batch_size": 1, "steps": 9, "model": {"kind": "mlp", "hidden": [800]},
            "optimizer": {"kind": "adamw"}, "gradient_clip_norm": clip});
        let spec = JobSpec::parse(&spec).unwrap();
        let engine = workers_engine::build(&spec, &SampleShape::Classified { shape: vec![95], classes: 2 }).unwrap();
        let update = Update::new(&spec, engine.parameter_info(), 9);
        let workload = Workload::Native { engine, update };
        assert!(workload.lengths().gradient > PIECE_ELEMENTS);
        workload
    }

    fn gradient(elements: usize) -> Vec<f32> {
        (0..elements).map(|at| ((at + 1) as f32).sin()).collect()
    }

    fn replica(workload: &mut Workload) -> Replica {
        let mut replica = Replica::new(workload, workload.pool());
        replica.load(workload.initial_replica().unwrap());
        replica.adopt();
        replica
    }

    /// What one vector makes of it.
    fn expected(workload: &mut Workload, weight: f32) -> Vec<f32> {
        let (mut data, mut mean) = (workload.initial_replica().unwrap(), gradient(workload.lengths().gradient));
        mean.iter_mut().for_each(|element| *element /= weight);
        let Workload::Native { update, .. } = workload else { panic!("a native model") };
        update.apply(&mut data, &mean, Step(0));
        data
    }

    /// All of it, as others are given it.
    fn given(mean: &mut Mean, elements: usize) -> Vec<f32> {
        let given = mean.give(0..elements, &Pool::of_pieces());
        given.into_iter().flat_map(|given| given.data[given.range].to_vec()).collect()
    }

    /// A sum in parts, some of which are lent.
    fn parted(elements: &[f32], cuts: &[usize], first_is_lent: bool) -> Mean {
        let bounds: Vec<usize> = std::iter::once(0).chain(cuts.iter().copied()).chain([elements.len()]).collect();
        let mut mean = Mean::default();
        for (number, part) in bounds.windows(2).enumerate() {
            let (mut start, end) = (part[0], part[1]);
            if number.is_multiple_of(2) != first_is_lent {
                mean.put(start, elements[start..end].to_vec().into());
                continue;
            }
            for piece in lent(elements, start..end) {
                let len = piece.len();
                mean.put(start, Stretch::Lent(piece));
                start += len;
            }
        }
        assert!(mean.runs().len() < bounds.len(), "pieces of one loan are one stretch");
        mean
    }

    #[test]
    fn parts_that_are_lent_and_parts_that_are_here_give_the_bits_of_the_whole() {
        for (clip, weight) in [(None, 1.0), (None, 3.0), (Some(0.5), 1.0), (Some(0.5), 3.0), (Some(1e6), 3.0)] {
            let mut workload = workload(clip);
            let (expected, len) = (expected(&mut workload, weight), workload.lengths().gradient);
            let initial = workload.initial_replica().unwrap();
            let (elements, mut divided) = (gradient(len), gradient(len));
            divide(&mut divided, weight);
            for cuts in [vec![], vec![1], vec![blocks::BLOCK_LEN], vec![3, 9, 5_000, 5_001, len - 1]] {
                for first_is_lent in [true, false] {
                    let mut mean = parted(&elements, &cuts, first_is_lent);
                    mean.divide_by(f64::from(weight));
                    let mut data = initial.clone();
                    let Workload::Native { update, .. } = &workload else { panic!("a native model") };
                    mean.apply(update, &mut data, Step(0), Stride::ONE);
                    assert!(data == expected, "{clip:?} {weight} {cuts:?} {first_is_lent}");
                    assert!(given(&mut mean, len) == divided, "others are given the mean");
                    let mut again = initial.clone();
                    mean.apply(update, &mut again, Step(0), Stride::ONE);
                    assert!(again == expected, "and it is applied as before");
                }
            }
        }
    }

    #[test]
    fn what_had_no_weight_is_exact_zeros() {
        for weight in [0.0, -1.0, f64::NAN] {
            let mut mean = parted(&gradient(5_000), &[9], true);
            mean.divide_by(weight);
            assert!(given(&mut mean, 5_000).iter().all(|element| element.to_bits() == 0));
        }
    }

    #[test]
    fn one_vector_is_given_from_where_it_lies_and_parts_are_divided_once() {
        let mut one = Mean::from(Buffer::from(gradient(9)));
        one.divide_by(3.0);
        let place = one.one.as_ref().unwrap().as_ptr();
        let of_one = one.give(2..5, &Pool::of_pieces());
        assert_eq!((of_one[0].data.as_ptr(), of_one[0].offset, of_one[0].range.clone()), (place, 2, 2..5));
        let mut parts = parted(&gradient(9), &[4], false);
        parts.divide_by(3.0);
        let [first, second] = [(); 2].map(|()| parts.give(2..5, &Pool::of_pieces()).remove(0));
        assert!(Arc::ptr_eq(&first.data, &second.data), "for several newcomers");
        assert_eq!(first.data[first.range], of_one[0].data[2..5]);
    }

    /// Over a real link of one process with itself.
    #[test]
    fn a_gradient_is_applied_where_it_is_lent_and_goes_back_with_the_next() {
        let mut workload = workload(Some(0.5));
        let (expected, elements) = (expected(&mut workload, 1.0), workload.lengths().gradient);
        let [(mut near, _), (_far, far_events)] = linked();
        let mut buffer = workload.pool().take();
        buffer.copy_from_slice(&gradient(elements));
        let sent = Arc::new(buffer);
        let mut newcomer = replica(&mut workload);
        let mut is_lent = false;
        // What is sent before the two have recognised each other is copied.
        while !is_lent {
            newcomer.expect_gradient();
            let (data, tag) = (Arc::clone(&sent) as _, Tag { generation: Generation(1), revision: 0 });
            near.send(
                OutgoingSlice { to: Peer(1), kind: Kind::Gradient, offset: 0, data, range: 0..elements },
                tag,
                Step(1),
            );
            let mut filled = 0;
            while filled < elements {
                let (bulk, stretch) = next_bulk(&far_events);
                is_lent = matches!(stretch, Stretch::Lent(_));
                newcomer.fill(filled, stretch);
                filled += bulk.elements;
            }
        }
        newcomer.take_gradient();
        newcomer.apply(&mut workload, (Step(0), Stride::ONE)).unwrap();
        assert!(*newcomer.shared(&mut workload).unwrap() == expected);
        assert_eq!(Arc::strong_count(&sent), 2, "it is lent as long as others may be sent it");
        newcomer.keep_gradient(Buffer::from(gradient(elements)));
        // Until the lender hears of that.
        while Arc::strong_count(&sent) > 1 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_was_lent_is_there_when_its_lender_is_not() {
        let mut workload = workload(None);
        let (expected, elements) = (expected(&mut workload, 1.0), workload.lengths().gradient);
        let mut newcomer = replica(&mut workload);
        newcomer.expect_gradient();
        let mut filled = 0;
        for piece in lent(&gradient(elements), 0..elements) {
            let len = piece.len();
            newcomer.fill(filled, Stretch::Lent(piece));
            filled += len;
        }
        newcomer.take_gradient();
        newcomer.apply(&mut workload, (Step(0), Stride::ONE)).unwrap();
        assert!(*newcomer.shared(&mut workload).unwrap() == expected);
        assert_eq!(newcomer.gradient_of(0..elements), gradient(elements), "others can be sent it");
    }
}
