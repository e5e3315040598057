//! The gradient of an update of a model in PyTorch, where it takes several steps: of one step after the other, each added to those before it by the Python process.
//!
//! So memory for rows is that of one step, however far the range of batches goes, and rows and what `collate()` makes of them come ahead as in any job. What chance
//! and data are of a step never depends on which update took it.

use crate::ahead::{Ahead, Ready};
use crate::buffers::Buffer;
use crate::meanwhile::Listen;
use crate::program::{Program, ProgramError};
use crate::workload::{Rows, View, Workload};
use events_schema::stride::Stride;
use events_schema::{Rank, Step};
use std::time::Instant;
use storage::DataError;
use workers_engine::Sums;
use workers_torch::{Addend, OnPart};

impl Program {
    /// See [`Program::gradient`]. Stretches are final in the last step alone.
    pub(crate) fn gradient_in_python(
        &mut self,
        workers: &[Rank],
        (from, stride): (Step, Stride),
        view: View<'_>,
        gradient: &mut Buffer,
        (mut on_part, listen): (Option<OnPart<'_>>, Listen<'_>),
    ) -> Result<Sums, ProgramError> {
        let mut sums = Sums::default();
        let Workload::Torch(torch) = &self.workload else { return Err(ProgramError::NoTorch) };
        let mut mapped = torch.instead_of(gradient)?;
        let (into, end) = (mapped.as_mut().unwrap_or(&mut *gradient), stride.end(from));
        for step in (from.0..end.0).map(Step) {
            let addend = Addend { step, first: step == from, last: step.next() == end };
            let on_part = on_part.take_if(|_| addend.last);
            let of_step = self.add_gradient((workers, addend), view, into, (on_part, listen))?;
            (sums.weight, sums.loss) = (sums.weight + of_step.weight, sums.loss + of_step.loss);
        }
        if let Some(mapped) = mapped {
            gradient.copy_from_slice(&mapped);
        }
        Ok(sums)
    }

    fn add_gradient(
        &mut self,
        (workers, addend): (&[Rank], Addend),
        view: View<'_>,
        gradient: &mut Buffer,
        (on_part, listen): (Option<OnPart<'_>>, Listen<'_>),
    ) -> Result<Sums, ProgramError> {
        let asked = Instant::now();
        // Held until the gradient is there: then its place is free for another.
        let ready = self.ready(workers, addend.step, listen)?;
        let loader = self.training.as_ref().filter(|_| ready.is_none());
        let at = (addend.step, Stride::ONE);
        let samples = loader.map(|loader| self.samples_of(loader, workers, at, listen)).transpose()?;
        if self.ahead.is_some() {
            self.batches_waited += asked.elapsed();
        }
        let rows = match (&ready, &samples) {
            (Some(ready), _) => Rows::Placed(ready.batch, self.ahead.as_mut().and_then(Ahead::following)),
            (None, Some(samples)) => Rows::Read(samples),
            (None, None) => Rows::Own,
        };
        let Workload::Torch(torch) = &mut self.workload else { return Err(ProgramError::NoTorch) };
        torch.gradient(view, (workers, addend), rows, gradient, on_part)
    }

    /// The batch that was made ahead, if one was; whoever has none reads by himself, and meets what was in the way. Waiting for it is waiting for the store.
    fn ready(&mut self, workers: &[Rank], step: Step, listen: Listen<'_>) -> Result<Option<Ready>, ProgramError> {
        let Some(ahead) = &mut self.ahead else { return Ok(None) };
        Ok(self.patience.ask(|| Ok::<_, DataError>(ahead.take(workers, step, listen)), |_| false)?)
    }
}
