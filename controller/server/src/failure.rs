//! What ends a controller. Next file: `hands.rs`.

use events_schema::Term;
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
        /// Its term.
        term: Term,
    },
    /// It could not go on; the text says why, with causes.
    Failed(String),
}

impl fmt::Display for ControllerEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shutdown => f.write_str("it was told to end"),
            Self::Superseded { by, term } => write!(f, "`{by}` took the cell over with term {term}"),
            Self::Failed(reason) => f.write_str(reason),
        }
    }
}
