//! What replicas and models of a job have to be: of one with determinism what one process alone would have, of one without it what came of one whole sum of
//! each step.

use crate::numbers::{Element, Made, PARAMETERS, digest};
use crate::world::World;
use events_schema::{Digest, JobId, Step};

impl World {
    /// What a job without determinism has come to so far; none of one that has it.
    pub fn made(&mut self, job: &JobId) -> Option<&mut Made> {
        self.checks.made.get_mut(job)
    }

    /// Whether a replica of a job is right at a step: what one process alone would have, or without determinism one in which each step was taken once.
    pub fn is_replica(&mut self, job: &JobId, step: Step, replica: &[Element]) -> bool {
        match self.made(job) {
            Some(made) => made.holds(step, replica),
            None => self.reference(job).replica(step) == replica,
        }
    }

    /// Whether these are the parameters of a step. Without determinism the replica that is made with them shows it.
    pub fn are_parameters(&mut self, job: &JobId, step: Step, parameters: &[Element]) -> bool {
        self.made(job).is_some() || self.reference(job).replica(step)[..PARAMETERS] == *parameters
    }

    /// Whether a job can have come to a model with this digest by so many steps.
    pub fn is_model(&mut self, job: &JobId, steps: Step, of: Digest) -> bool {
        match self.made(job) {
            Some(made) => made.has_digest(steps, of),
            None => digest(self.reference(job).replica(steps)) == of,
        }
    }
}
