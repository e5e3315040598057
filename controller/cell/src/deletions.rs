//! Deletes the objects of checkpoints as they are retired, one after the other. What is to be deleted derives from what counts;
//! deleting twice is harmless, so nothing is written down about it. What was retired before this controller began, and is still
//! there, the sweep finds (`controller/core/src/sweep.rs`).

use crate::message::Out;
use crate::note::Note;
use crate::outbox::Outbox;
use controller_core::{State, next_retirement, retired_objects};

/// Pause after a store that did not answer; garbage can wait.
const RETRY_PAUSE_MS: u64 = 10_000;

#[derive(Debug, Clone, Default)]
pub(crate) struct Deletions {
    /// Everything retired below this number is deleted, or for the sweep.
    next: Option<u64>,
    on_its_way: Option<(u64, String)>,
    again_ms: Option<u64>,
}

impl Deletions {
    pub fn go_on(&mut self, state: &State, now_ms: u64, out: &mut Outbox) {
        if self.on_its_way.is_some() || self.again_ms.is_some_and(|again_ms| again_ms > now_ms) {
            return;
        }
        self.again_ms = None;
        let next = *self.next.get_or_insert_with(|| next_retirement(state));
        if let Some(retired) = retired_objects(state, next).next() {
            let (number, manifest_key) = (retired.number, retired.name.manifest());
            out.push(Out::Delete { number, name: retired.name });
            self.on_its_way = Some((number, manifest_key));
        }
    }

    pub fn deleted(&mut self, number: u64) {
        if self.on_its_way.take_if(|(expected, _)| *expected == number).is_some() {
            self.next = Some(number + 1);
        }
    }

    pub fn failed(&mut self, number: u64, now_ms: u64, out: &mut Outbox) {
        if let Some((_, manifest_key)) = self.on_its_way.take_if(|(expected, _)| *expected == number) {
            self.again_ms = Some(now_ms + RETRY_PAUSE_MS);
            out.note(Note::DeletionWaits { manifest_key });
        }
    }

    pub fn next_ms(&self) -> Option<u64> {
        self.again_ms
    }
}
