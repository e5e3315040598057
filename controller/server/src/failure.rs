//! What ends or interrupts a controller, and how an error reads with its causes. Next file: `recover.rs`.

use crate::fold::UnreadableEvent;
use events_log::{Advice, AppendError, ReadError};
use events_schema::Epoch;
use std::fmt;

/// How a controller ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControllerEnd {
    /// As asked.
    Shutdown,
    /// Another controller claimed the cell: this one dropped its state and does nothing any more.
    Superseded {
        /// Its name.
        by: String,
        /// Its epoch.
        epoch: Epoch,
    },
    /// It could not go on; the text says why, with causes.
    Failed(String),
}

impl fmt::Display for ControllerEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shutdown => f.write_str("it was told to end"),
            Self::Superseded { by, epoch } => write!(f, "`{by}` took the cell over at epoch {epoch}"),
            Self::Failed(reason) => f.write_str(reason),
        }
    }
}

/// Why the loop cannot simply go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Interrupt {
    /// Told to end.
    #[error("the controller was told to end")]
    Shutdown,
    /// What is in the log is not known any more: drop the state, claim, and read.
    #[error("the outcome of an append is unknown")]
    Recover(#[source] Option<AppendError>),
    /// Another controller owns the cell.
    #[error("controller `{by}` claimed the cell at epoch {epoch}")]
    Superseded { by: String, epoch: Epoch },
    /// One record is longer than the log takes; nothing of its batch counts.
    #[error("a batch does not fit the log")]
    TooLarge(#[source] AppendError),
    /// The log does not take records any more.
    #[error("the log cannot be written")]
    Append(#[source] AppendError),
    /// The log cannot be read any more.
    #[error("the log cannot be read")]
    Read(#[source] ReadError),
    /// The log holds what this build cannot read.
    #[error("the log cannot be understood")]
    Unreadable(#[from] UnreadableEvent),
    /// The log stayed unreachable for as long as a start may take.
    #[error("the log did not answer for {attempts} attempts")]
    Attempts {
        attempts: u32,
        #[source]
        last: Box<Interrupt>,
    },
}

impl From<ReadError> for Interrupt {
    fn from(error: ReadError) -> Self {
        Interrupt::Read(error)
    }
}

impl From<AppendError> for Interrupt {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Unknown(_) => Interrupt::Recover(Some(error)),
            AppendError::TooLarge { .. } => Interrupt::TooLarge(error),
            error => Interrupt::Append(error),
        }
    }
}

impl Interrupt {
    /// What to do about it.
    pub fn advice(&self) -> Advice {
        match self {
            Interrupt::Recover(_) => Advice::Recover,
            Interrupt::Append(error) => error.advice(),
            Interrupt::Read(error) => error.advice(),
            Interrupt::TooLarge(_) => Advice::Refuse,
            Interrupt::Shutdown
            | Interrupt::Superseded { .. }
            | Interrupt::Unreadable(_)
            | Interrupt::Attempts { .. } => Advice::Stop,
        }
    }

    /// As the end of a controller.
    pub fn end(self) -> ControllerEnd {
        match self {
            Interrupt::Shutdown => ControllerEnd::Shutdown,
            Interrupt::Superseded { by, epoch } => ControllerEnd::Superseded { by, epoch },
            other => ControllerEnd::Failed(Chain(&other).to_string()),
        }
    }
}

/// An error with its causes, in one line.
pub(crate) struct Chain<'a>(pub &'a dyn std::error::Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
