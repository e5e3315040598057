//! The mean gradient that an update is given: of this executor's own sum, or as peers sent it. What executors of the same host lent stays in their memory
//! and is applied from there: to copy it first, beside the update of those who lent it, made everybody wait for the copy.
//!
//! Nothing is looked at before all of it is there, which is the machine's to say (`workers/member/src/replica.rs`). A loan goes back when the mean is
//! dropped; until then its lender changes none of it, and if the lender dies its memory stays (`lending.rs`). Decides nothing.

use crate::buffers::{Buffer, Pool};
use crate::lending::Borrowed;
use events_schema::Step;
use events_schema::stride::Stride;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use workers_engine::{Update, blocks};

/// A mean gradient, or what has come of one.
#[derive(Debug, Default)]
pub struct Mean {
    /// In memory of this executor: all that is not lent.
    here: Option<Arc<Buffer>>,
    /// Where it lies in peers' memory, by the first element.
    lent: BTreeMap<usize, Borrowed>,
}

impl From<Arc<Buffer>> for Mean {
    fn from(here: Arc<Buffer>) -> Self {
        Self { here: Some(here), lent: BTreeMap::new() }
    }
}

impl Mean {
    /// Copies elements into memory of this executor.
    pub fn copy(&mut self, offset: usize, elements: &[f32], buffers: &Pool) {
        let here = Arc::make_mut(self.here.get_or_insert_with(|| Arc::new(buffers.take())));
        if let Some(place) = here.get_mut(offset..offset + elements.len()) {
            place.copy_from_slice(elements);
        }
    }

    /// Leaves elements where they are lent.
    pub fn borrow(&mut self, offset: usize, elements: Borrowed) {
        let before = self.lent.range_mut(..offset).next_back().filter(|(start, lent)| *start + lent.len() == offset);
        let apart = match before {
            Some((_, lent)) => lent.extend(elements),
            None => Err(elements),
        };
        if let Err(elements) = apart {
            self.lent.insert(offset, elements);
        }
    }

    /// All of it in one buffer of this executor's; what was lent goes back.
    pub fn into_buffer(self, buffers: &Pool) -> Arc<Buffer> {
        let Self { here, lent } = self;
        let mut here =
            here.unwrap_or_else(|| Arc::new(if lent.is_empty() { Buffer::from(Vec::new()) } else { buffers.take() }));
        for (offset, elements) in lent {
            if let Some(place) = Arc::make_mut(&mut here).get_mut(offset..offset + elements.len()) {
                place.copy_from_slice(&elements);
            }
        }
        here
    }

    /// Turns the replica at `step` into the one that is so many steps further, with the bits that one vector would give.
    pub fn apply(&self, update: &Update, replica: &mut [f32], step: Step, stride: Stride) {
        let runs = self.runs();
        if runs.len() < 2 {
            let whole = runs.first().map_or(&[][..], |(_, whole)| whole);
            update.apply_strided(replica, whole, step, stride);
            return;
        }
        let factors = update.factors_of(|| norm(&runs), step, stride);
        for (start, elements) in runs {
            update.apply_range(replica, elements, start..start + elements.len(), &factors);
        }
    }

    /// Where it lies, in order and without gaps.
    fn runs(&self) -> Vec<(usize, &[f32])> {
        let (mut runs, mut done) = (Vec::new(), 0);
        let here =
            |range: Range<usize>| self.here.as_ref().and_then(|here| here.get(range)).filter(|run| !run.is_empty());
        for (&start, lent) in &self.lent {
            runs.extend(here(done..start).map(|run| (done, run)));
            runs.push((start, &**lent));
            done = start + lent.len();
        }
        let end = self.here.as_ref().map_or(done, |here| here.len());
        runs.extend(here(done..end).map(|run| (done, run)));
        runs
    }
}

/// The L2 norm of runs that follow each other: that of one vector, so by its blocks.
fn norm(runs: &[(usize, &[f32])]) -> f64 {
    let len = runs.last().map_or(0, |(start, run)| start + run.len());
    let squares = (0..len)
        .step_by(blocks::BLOCK_LEN)
        .map(|start| blocks::block_squares(&elements(runs, start..(start + blocks::BLOCK_LEN).min(len))));
    blocks::norm_of(&squares.collect::<Vec<_>>())
}

/// Elements of runs that follow each other; copied where they are of several.
fn elements<'a>(runs: &[(usize, &'a [f32])], range: Range<usize>) -> Cow<'a, [f32]> {
    let first = runs.partition_point(|(start, run)| start + run.len() <= range.start);
    let of = |(start, run): &(usize, &'a [f32])| {
        &run[range.start.saturating_sub(*start).min(run.len())..range.end.saturating_sub(*start).min(run.len())]
    };
    match runs[first..].first().map(of) {
        Some(whole) if whole.len() == range.len() => Cow::Borrowed(whole),
        _ => Cow::Owned(runs[first..].iter().flat_map(of).copied().collect()),
    }
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
    fn expected(workload: &mut Workload) -> Vec<f32> {
        let (mut replica, elements) = (replica(workload), workload.lengths().gradient);
        replica.keep_gradient(gradient(elements).into());
        replica.apply(workload, (Step(0), Stride::ONE)).unwrap();
        replica.shared(workload).unwrap().to_vec()
    }

    #[test]
    fn parts_that_are_lent_and_parts_that_were_copied_give_the_bits_of_the_whole() {
        for clip in [None, Some(0.5), Some(1e6)] {
            let mut workload = workload(clip);
            let (expected, len) = (expected(&mut workload), workload.lengths().gradient);
            let initial = replica(&mut workload).shared(&mut workload).unwrap();
            let (elements, buffers) = (gradient(len), workload.pool());
            for cuts in [vec![], vec![1], vec![blocks::BLOCK_LEN], vec![3, 9, 5_000, 5_001, len - 1]] {
                let bounds: Vec<usize> = std::iter::once(0).chain(cuts).chain(std::iter::once(len)).collect();
                for first_is_lent in [true, false] {
                    let mut mean = Mean::default();
                    for (number, part) in bounds.windows(2).enumerate() {
                        let (mut start, end) = (part[0], part[1]);
                        if number.is_multiple_of(2) != first_is_lent {
                            mean.copy(start, &elements[start..end], &buffers);
                            continue;
                        }
                        for piece in lent(&elements, start..end) {
                            let len = piece.len();
                            mean.borrow(start, piece);
                            start += len;
                        }
                    }
                    let mut data = initial.to_vec();
                    let Workload::Native { update, .. } = &workload else { panic!("a native model") };
                    mean.apply(update, &mut data, Step(0), Stride::ONE);
                    assert!(data == expected, "{clip:?} {bounds:?} {first_is_lent}");
                    assert!(mean.runs().len() < bounds.len(), "pieces of one loan are one stretch");
                    assert_eq!(**mean.into_buffer(&buffers), *elements, "others are sent the same");
                }
            }
        }
    }

    /// Over a real link of one process with itself.
    #[test]
    fn a_gradient_is_applied_where_it_is_lent_and_goes_back_with_the_next() {
        let mut workload = workload(Some(0.5));
        let (expected, elements) = (expected(&mut workload), workload.lengths().gradient);
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
        newcomer.keep_gradient(gradient(elements).into());
        // Until the lender hears of that.
        while Arc::strong_count(&sent) > 1 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_was_lent_is_there_when_its_lender_is_not() {
        let mut workload = workload(None);
        let (expected, elements) = (expected(&mut workload), workload.lengths().gradient);
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
        assert_eq!(**newcomer.gradient().unwrap(), *gradient(elements), "others can be sent it");
    }
}
