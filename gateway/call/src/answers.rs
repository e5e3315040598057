//! What became of inputs: taken, refused, set aside, or passed over without a word. Bounded; old answers are forgotten. Pure.
//!
//! Filled by whoever folds facts (the gateway's read model), asked by a [`crate::Call`].

use events_schema::batch::{InputStream, Taken};
use events_schema::fact::{Fact, Refusal};
use events_schema::{CommandId, FleetId, JobId, Offset};
use std::collections::{BTreeMap, VecDeque};

/// Answers kept: of exactly the commands that the controller remembers, so that an id is either known to both or new to both.
const ANSWERS_MAX: usize = controller_core::state::bounds::COMMANDS_REMEMBERED;
/// Accepted signals kept: each is asked for within seconds.
const SIGNALS_MAX: usize = 8_192;
/// Refused submits kept by their job: of those that were answered before they were decided, somebody looks for the job.
const REFUSED_JOBS_MAX: usize = 8_192;
/// Set-aside inputs kept; each is a defect that an operator looks at.
const SET_ASIDE_MAX: usize = 1_024;

/// What the controller made of an input.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum Answer {
    /// It had its effect.
    Taken,
    /// It had none.
    Refused {
        /// The job, fleet or dataset it was about.
        subject: String,
        refusal: Refusal,
    },
    /// It could not be read, or would have broken the state.
    SetAside(String),
    /// It was read and changed nothing: a repeat of something known.
    Unremarked,
}

/// The latest answers.
#[derive(Debug, Default)]
pub struct Answers {
    commands: BTreeMap<CommandId, Answer>,
    in_order: VecDeque<CommandId>,
    /// The need that counts under each number.
    signals: BTreeMap<(FleetId, u64), u32>,
    signals_in_order: VecDeque<(FleetId, u64)>,
    /// Why a submit was refused, by the job that it would have made.
    refused_jobs: BTreeMap<JobId, Refusal>,
    refused_jobs_in_order: VecDeque<JobId>,
    set_aside: BTreeMap<(InputStream, Offset), String>,
    set_aside_in_order: VecDeque<(InputStream, Offset)>,
    taken_to: BTreeMap<InputStream, Offset>,
}

impl Answers {
    /// What became of a command by its id alone.
    #[must_use]
    pub fn of_command(&self, id: &CommandId) -> Option<&Answer> {
        self.commands.get(id)
    }

    /// What became of the command `id` that stands at `offset`; `None` while it is undecided.
    #[must_use]
    pub fn of_command_at(&self, id: &CommandId, offset: Offset) -> Option<Answer> {
        self.commands.get(id).cloned().or_else(|| self.at(InputStream::Commands, offset))
    }

    /// What became of the input at a place, as far as its place tells.
    #[must_use]
    pub fn at(&self, stream: InputStream, offset: Offset) -> Option<Answer> {
        if let Some(reason) = self.set_aside.get(&(stream, offset)) {
            return Some(Answer::SetAside(reason.clone()));
        }
        self.taken_to.get(&stream).is_some_and(|to| *to > offset).then_some(Answer::Unremarked)
    }

    /// Whether this very signal counts; another need under the same number is another signal.
    #[must_use]
    pub fn accepted_signal(&self, fleet: &FleetId, sequence: u64, needed: u32) -> bool {
        self.signals.get(&(fleet.clone(), sequence)) == Some(&needed)
    }

    /// What became of a demand signal that stands at `offset`; `None` while it is undecided.
    #[must_use]
    pub fn of_signal_at(&self, fleet: &FleetId, sequence: u64, needed: u32, offset: Offset) -> Option<Answer> {
        let accepted = self.accepted_signal(fleet, sequence, needed);
        if accepted { Some(Answer::Taken) } else { self.at(InputStream::Demand, offset) }
    }

    /// Why there is no such job, if its submit was refused.
    #[must_use]
    pub fn refused_job(&self, job: &JobId) -> Option<&Refusal> {
        self.refused_jobs.get(job)
    }

    /// Takes in a fact.
    pub fn apply(&mut self, fact: &Fact) {
        match fact {
            Fact::JobAccepted { command, .. } | Fact::CommandTaken { command } => self.remember(command, Answer::Taken),
            Fact::CommandRefused { command, subject, refusal } => {
                self.remember(command, Answer::Refused { subject: subject.clone(), refusal: refusal.clone() });
                self.remember_refused(subject, refusal);
            }
            Fact::DemandAccepted { fleet, sequence, needed, .. } => {
                self.remember_signal((fleet.clone(), *sequence), *needed)
            }
            Fact::InputRefused { stream, offset, reason } => {
                let Some(stream) = InputStream::ALL.into_iter().find(|known| known.name() == stream) else { return };
                if self.set_aside.insert((stream, *offset), reason.clone()).is_none() {
                    self.set_aside_in_order.push_back((stream, *offset));
                }
                if self.set_aside_in_order.len() > SET_ASIDE_MAX {
                    self.set_aside_in_order.pop_front().map(|oldest| self.set_aside.remove(&oldest));
                }
            }
            _ => {}
        }
    }

    /// Takes in which inputs a batch took. After its facts, so that nothing taken looks unremarked.
    pub fn apply_taken(&mut self, taken: &[Taken]) {
        for run in taken {
            let to = self.taken_to.entry(run.stream).or_default();
            *to = run.to.max(*to);
        }
    }

    /// Other commands' subjects may look like a job's id: whoever asks looks for a job of that id first.
    fn remember_refused(&mut self, subject: &str, refusal: &Refusal) {
        let Ok(job) = JobId::parse(subject) else { return };
        // A cancel behind a refused submit finds no job, which says less than why there is none.
        if matches!(refusal, Refusal::Unknown { kind, name, .. } if kind == "job" && name == subject) {
            return;
        }
        if self.refused_jobs.insert(job.clone(), refusal.clone()).is_none() {
            self.refused_jobs_in_order.push_back(job);
        }
        if self.refused_jobs_in_order.len() > REFUSED_JOBS_MAX {
            self.refused_jobs_in_order.pop_front().map(|oldest| self.refused_jobs.remove(&oldest));
        }
    }

    fn remember_signal(&mut self, signal: (FleetId, u64), needed: u32) {
        if self.signals.insert(signal.clone(), needed).is_none() {
            self.signals_in_order.push_back(signal);
        }
        if self.signals_in_order.len() > SIGNALS_MAX {
            self.signals_in_order.pop_front().map(|oldest| self.signals.remove(&oldest));
        }
    }

    fn remember(&mut self, command: &CommandId, answer: Answer) {
        if self.commands.insert(command.clone(), answer).is_none() {
            self.in_order.push_back(command.clone());
        }
        if self.in_order.len() > ANSWERS_MAX {
            self.in_order.pop_front().map(|oldest| self.commands.remove(&oldest));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn id(n: usize) -> CommandId {
        CommandId::parse(&format!("cmd-{n}")).unwrap()
    }

    #[test]
    fn an_input_is_undecided_until_its_place_is_taken() {
        let mut answers = Answers::default();
        assert_eq!(answers.of_command_at(&id(1), Offset(4)), None);
        answers.apply_taken(&[Taken { stream: InputStream::Commands, from: Offset(0), to: Offset(4) }]);
        assert_eq!(answers.of_command_at(&id(1), Offset(4)), None);
        answers.apply_taken(&[Taken { stream: InputStream::Commands, from: Offset(4), to: Offset(5) }]);
        assert_eq!(answers.of_command_at(&id(1), Offset(4)), Some(Answer::Unremarked));
        answers.apply(&Fact::CommandTaken { command: id(1) });
        assert_eq!(answers.of_command_at(&id(1), Offset(4)), Some(Answer::Taken));
        answers.apply(&Fact::InputRefused { stream: "commands".into(), offset: Offset(9), reason: "why".into() });
        assert_eq!(answers.at(InputStream::Commands, Offset(9)), Some(Answer::SetAside("why".into())));
        assert_eq!(answers.at(InputStream::Demand, Offset(0)), None);
    }

    #[test]
    fn answers_are_bounded() {
        let mut answers = Answers::default();
        for n in 0..ANSWERS_MAX + 10 {
            answers.apply(&Fact::CommandTaken { command: id(n) });
        }
        assert_eq!((answers.commands.len(), answers.in_order.len()), (ANSWERS_MAX, ANSWERS_MAX));
        assert!(answers.of_command(&id(0)).is_none() && answers.of_command(&id(ANSWERS_MAX)).is_some());
    }
}
