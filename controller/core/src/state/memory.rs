//! What is remembered of commands: the ids of the newest ones, so that a repeated command has one effect. Bounded.

use super::bounds::COMMANDS_REMEMBERED;
use crate::table::Table;
use events_schema::CommandId;
use minicbor::{Decode, Encode};

/// The newest [`COMMANDS_REMEMBERED`] command ids.
#[derive(Debug, Clone, Default, PartialEq, Encode, Decode)]
pub struct CommandMemory {
    #[n(0)]
    numbers: Table<CommandId, u64>,
    #[n(1)]
    by_age: Table<u64, CommandId>,
    #[n(2)]
    next: u64,
}

impl CommandMemory {
    /// Whether this command had its effect already.
    #[must_use]
    pub fn knows(&self, command: &CommandId) -> bool {
        self.numbers.contains(command)
    }

    /// How many are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_age.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    pub(crate) fn remember(&mut self, command: &CommandId) {
        if self.knows(command) {
            return;
        }
        self.numbers.insert(command.clone(), self.next);
        self.by_age.insert(self.next, command.clone());
        self.next += 1;
        if self.by_age.len() > COMMANDS_REMEMBERED {
            let oldest = self.by_age.first().map(|(number, id)| (*number, id.clone()));
            if let Some((number, id)) = oldest {
                self.by_age.remove(&number);
                self.numbers.remove(&id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_first() {
        let id = |n: usize| CommandId::parse(&format!("c{n}")).unwrap();
        let mut memory = CommandMemory::default();
        (0..COMMANDS_REMEMBERED + 5).for_each(|n| memory.remember(&id(n)));
        memory.remember(&id(COMMANDS_REMEMBERED));
        assert_eq!(memory.len(), COMMANDS_REMEMBERED);
        assert!(!memory.knows(&id(4)) && memory.knows(&id(5)) && memory.knows(&id(COMMANDS_REMEMBERED + 4)));
    }
}
