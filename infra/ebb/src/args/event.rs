//! `ebb event …`.

use clap::{Args, Subcommand};

/// `ebb event …`
#[derive(Debug, Clone, Subcommand)]
pub enum EventCommand {
    /// Read events, of one job or of all
    List(EventsArgs),
}

/// Arguments of `ebb event list`.
#[derive(Debug, Clone, Args)]
pub struct EventsArgs {
    /// Only of this job: its id, or its first characters.
    pub id: Option<String>,
    /// Print them as they happen: of a job after what has happened so far, of all from now on (--from 0-0: from the beginning).
    #[arg(long)]
    pub follow: bool,
    /// Begin after this cursor.
    #[arg(long, value_name = "CURSOR")]
    pub from: Option<String>,
}
