//! The memory in which the child finds the rows of Ebb datasets: room for several batches beside each other, so that the next are written while the
//! child works on one. Who writes where, and when, is its callers' to say.

use events_schema::dataset::{SampleShape, Samples};
use events_schema::job::{Determinism, JobSpec};
use events_schema::{Rank, Step};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Batches that are written ahead at a time: the child works on one, one waits for it, one is being made.
pub const AHEAD_PLACES: usize = 3;
/// The place for what is asked for at once: what is evaluated, and what nobody foresaw.
pub const DIRECT_PLACE: usize = 0;
/// All places; those that are written ahead come after the first.
pub const PLACES: usize = 1 + AHEAD_PLACES;
/// Batches begin at whole cache lines.
const ALIGN_BYTES: u64 = 64;

/// The memory of one child. Clones are of the same.
#[derive(Debug, Clone)]
pub struct BatchMemory {
    file: Arc<File>,
    /// From one place to the next.
    bytes: u64,
    /// Batches written so far.
    written: Arc<AtomicU64>,
}

/// A batch in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Its first byte.
    pub(crate) start: u64,
    /// None of what is not there, but read by the job's code.
    pub(crate) rows: u32,
    /// Of what was written there, counted from 1: what is written into the same place later has another.
    pub(crate) number: u64,
}

/// A batch that lies there already and is asked for next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Following {
    /// Whose turn it is: of several, the first.
    pub rank: Rank,
    /// In which step.
    pub step: Step,
    /// Where its rows are, which stay until it is asked for or never is.
    pub batch: Batch,
}

/// One of the steps whose gradients are added up, one after the other, for an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addend {
    /// Whose rows its gradient is of.
    pub step: Step,
    /// Nothing is there yet that its gradient is added to.
    pub first: bool,
    /// Then the gradient is whole.
    pub last: bool,
}

impl Batch {
    /// Of rows that the job's code brings itself.
    pub const OWN: Self = Self { start: 0, rows: 0, number: 0 };
}

impl BatchMemory {
    /// That of a child which gave this file, with places of so many bytes.
    #[must_use]
    pub fn new(file: File, bytes: u64) -> Self {
        Self { file: Arc::new(file), bytes, written: Arc::default() }
    }

    /// Whether this is the memory of the same child.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.file, &other.file)
    }

    /// Puts samples into a place, which nobody may be reading: labels first, so that everything is aligned.
    pub fn write(&self, place: usize, samples: &Samples) -> io::Result<Batch> {
        let wide =
            |values: &[u32]| values.iter().flat_map(|&value| i64::from(value).to_le_bytes()).collect::<Vec<u8>>();
        let (first, then): (Vec<u8>, &[u8]) = match samples {
            Samples::Classified { features, labels } => (wide(labels), bytemuck::cast_slice(features)),
            Samples::Tokens { tokens, .. } => (wide(tokens), &[]),
        };
        let start = place as u64 * self.bytes;
        if place >= PLACES || (first.len() + then.len()) as u64 > self.bytes {
            return Err(io::Error::other(format!("{} rows do not fit into place {place} of a batch", samples.len())));
        }
        self.file.write_all_at(&first, start)?;
        self.file.write_all_at(then, start + first.len() as u64)?;
        let rows = u32::try_from(samples.len()).map_err(io::Error::other)?;
        Ok(Batch { start, rows, number: self.written.fetch_add(1, Ordering::Relaxed) + 1 })
    }
}

/// Logical workers whose rows are computed with at once, at most. Without determinism that is all: a job that loses executors may come below its
/// `workers.min` until it is grown again.
pub(crate) fn hosted_max(spec: &JobSpec) -> u16 {
    match spec.determinism {
        Determinism::D1 => 1,
        Determinism::None => spec.workers.max,
    }
}

/// Most bytes of the samples of these shapes that are computed with at once, with what aligns the next.
pub(crate) fn place_bytes<'a>(spec: &JobSpec, shapes: impl Iterator<Item = &'a SampleShape>) -> u64 {
    let row = |sample: &SampleShape| match sample {
        SampleShape::Classified { shape, .. } => 8 + 4 * shape.iter().map(|&n| u64::from(n)).product::<u64>(),
        SampleShape::Tokens { length, .. } => 8 * u64::from(*length),
    };
    let rows = u64::from(spec.batch_size) * u64::from(hosted_max(spec));
    (shapes.map(row).max().unwrap_or(0) * rows).next_multiple_of(ALIGN_BYTES)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn there_is_room_for_all_that_is_computed_with_at_once() {
        let spec = |more: serde_json::Value| {
            let mut document = json!({"name": "a", "model": {"kind": "mlp"}, "dataset": "digits", "workers": {"min": 3, "max": 4}, "batch_size": 5, "steps": 1});
            document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            JobSpec::parse(&document).unwrap()
        };
        let shapes =
            [SampleShape::Tokens { length: 3, vocabulary: 9 }, SampleShape::Tokens { length: 16, vocabulary: 9 }];
        assert_eq!(place_bytes(&spec(json!({})), shapes.iter()), 5 * 16 * 8);
        assert_eq!(place_bytes(&spec(json!({"determinism": "none"})), shapes.iter()), 4 * 5 * 16 * 8);
    }

    #[test]
    fn batches_lie_beside_each_other_labels_first_and_none_runs_into_the_next() {
        let memory = BatchMemory::new(tempfile::tempfile().unwrap(), 64);
        let one = |value: u32| Samples::Classified { features: vec![0.5; 4], labels: vec![value; 2] };
        let (first, second) = (memory.write(DIRECT_PLACE, &one(7)).unwrap(), memory.write(1, &one(9)).unwrap());
        assert_eq!((first, second), (Batch { start: 0, rows: 2, number: 1 }, Batch { start: 64, rows: 2, number: 2 }));
        let mut read = [0u8; 32];
        for (start, label) in [(0, 7), (64, 9)] {
            memory.file.read_exact_at(&mut read, start).unwrap();
            assert_eq!(read[..8], i64::to_le_bytes(label));
            assert_eq!(read[16..20], 0.5f32.to_le_bytes());
        }
        let long = Samples::Tokens { tokens: vec![1; 9], length: 9 };
        assert!(memory.write(1, &long).is_err() && memory.write(PLACES, &one(1)).is_err());
        assert!(memory.is(&memory.clone()));
    }
}
