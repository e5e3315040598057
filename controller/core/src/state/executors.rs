//! All executors, and beside them the few that time has something to say about: those that are leaving.
//!
//! The second follows from the first. It is kept in step here, where executors change, because every tick asks who has been leaving for too long, and every
//! plan who will not leave; it is no part of a state's bytes, nor of what makes two states equal.

use super::job::Executor;
use crate::table::{Changed, Table};
use events_schema::{ExecutorId, JobId};
use minicbor::encode::Write;
use minicbor::{Decode, Decoder, Encode, Encoder};
use std::fmt;
use std::ops::Bound;

/// Executors by id.
#[derive(Clone, Default)]
pub(crate) struct Executors {
    all: Table<ExecutorId, Executor>,
    /// Told to go, or given up.
    leaving: Table<ExecutorId, ()>,
}

impl Executors {
    pub fn get(&self, id: &ExecutorId) -> Option<&Executor> {
        self.all.get(id)
    }

    /// All of them, by job and number.
    pub fn iter(&self) -> impl Iterator<Item = (&ExecutorId, &Executor)> {
        self.all.iter()
    }

    pub fn range_from<'a>(
        &'a self,
        from: Bound<&ExecutorId>,
    ) -> impl Iterator<Item = (&'a ExecutorId, &'a Executor)> + use<'a> {
        self.all.range_from(from)
    }

    /// What there is of each of these, which are members of a job: those of one stand side by side.
    pub fn each<'a, 'b, I>(&'a self, ids: I) -> impl Iterator<Item = Option<&'a Executor>> + use<'a, 'b, I>
    where
        I: Iterator<Item = &'b ExecutorId>,
    {
        self.all.each(ids)
    }

    /// See [`Table::changed`].
    pub fn changed<'a>(&'a self, before: &'a Self) -> Vec<Changed<'a, ExecutorId, Executor>> {
        self.all.changed(&before.all)
    }

    /// Those that are told to go or are given up, by job and number.
    pub fn leaving(&self) -> impl Iterator<Item = (&ExecutorId, &Executor)> {
        self.leaving.keys().filter_map(|id| Some((id, self.all.get(id)?)))
    }

    /// Whether any of a job is among those.
    pub fn any_leaving(&self, job: &JobId) -> bool {
        if self.leaving.is_empty() {
            return false;
        }
        let from = ExecutorId { job: job.clone(), number: 0 };
        self.leaving.range_from(Bound::Included(&from)).next().is_some_and(|(id, ())| id.job == from.job)
    }

    /// Changes an executor; nothing if it is not there.
    pub fn change<R>(&mut self, id: &ExecutorId, to: impl FnOnce(&mut Executor) -> R) -> Option<R> {
        let executor = self.all.get_mut(id)?;
        let result = to(executor);
        let leaves = is_leaving(executor);
        self.mark(id, leaves);
        Some(result)
    }

    pub fn insert(&mut self, id: ExecutorId, executor: Executor) {
        self.mark(&id, is_leaving(&executor));
        self.all.insert(id, executor);
    }

    pub fn remove(&mut self, id: &ExecutorId) {
        self.all.remove(id);
        self.mark(id, false);
    }

    fn mark(&mut self, id: &ExecutorId, leaves: bool) {
        match (leaves, self.leaving.contains(id)) {
            (true, false) => drop(self.leaving.insert(id.clone(), ())),
            (false, true) => drop(self.leaving.remove(id)),
            _ => {}
        }
    }
}

fn is_leaving(executor: &Executor) -> bool {
    executor.leaving.is_some() || executor.stuck
}

impl From<Table<ExecutorId, Executor>> for Executors {
    fn from(all: Table<ExecutorId, Executor>) -> Self {
        let mut leaving = Table::new();
        for (id, _) in all.iter().filter(|(_, executor)| is_leaving(executor)) {
            leaving.insert(id.clone(), ());
        }
        Self { all, leaving }
    }
}

impl PartialEq for Executors {
    fn eq(&self, other: &Self) -> bool {
        self.all == other.all
    }
}

impl fmt::Debug for Executors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.all.fmt(f)
    }
}

impl<C> Encode<C> for Executors {
    fn encode<W: Write>(&self, e: &mut Encoder<W>, ctx: &mut C) -> Result<(), minicbor::encode::Error<W::Error>> {
        self.all.encode(e, ctx)
    }
}

impl<'b, C> Decode<'b, C> for Executors {
    fn decode(d: &mut Decoder<'b>, ctx: &mut C) -> Result<Self, minicbor::decode::Error> {
        Table::decode(d, ctx).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::state::Leaving;
    use events_schema::fact::LeaveCause;
    use events_schema::{SlotId, TimeMs, batch};
    use proptest::prelude::*;

    fn executor() -> Executor {
        let slot: SlotId = "s/0".parse().unwrap();
        let (assigned_at, address, leaving) = (TimeMs(1), None, None);
        Executor {
            slot,
            assigned_at,
            address,
            leaving,
            replica: false,
            departed: false,
            stuck: false,
            class: None,
            replica_bytes: None,
            gradient_bytes: None,
            busy_percent: None,
        }
    }

    proptest! {
        #[test]
        fn those_that_leave_are_those_that_were_told_to(changes in proptest::collection::vec((0u32..5, 0u8..5), 0..60)) {
            let mut executors = Executors::default();
            for (number, change) in changes {
                let id = ExecutorId { job: JobId::parse("job-a").unwrap(), number };
                let leaving = Some(Leaving { deadline: TimeMs(5), cause: LeaveCause::Plan });
                match change {
                    0 => executors.remove(&id),
                    1 => executors.insert(id, executor()),
                    2 => drop(executors.change(&id, |executor| executor.leaving = leaving)),
                    3 => drop(executors.change(&id, |executor| executor.stuck = true)),
                    _ => drop(executors.change(&id, |executor| executor.replica = true)),
                }
            }
            let told = executors.iter().filter(|(_, executor)| is_leaving(executor));
            prop_assert!(executors.leaving().eq(told));
            let bytes = batch::to_bytes(&executors);
            prop_assert_eq!(&bytes, &batch::to_bytes(&executors.all));
            prop_assert!(batch::from_bytes::<Executors>(&bytes).unwrap().leaving().eq(executors.leaving()));
        }
    }
}
