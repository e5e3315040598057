//! Short forms: commands that were there before the nouns, and the ones typed most. Each is another name of a command in full and has no code of its own.

use super::{
    CheckpointsArgs, Command, DemandArgs, EventCommand, EventsArgs, ExplainArgs, FleetCommand, JobArg, JobArgs,
    JobCommand, JobsArgs, LogsArgs, SlotCommand, TenantCommand,
};
use super::{SlotsArgs, SubmitArgs, TakeBackArgs, VerifyArgs, WaitArgs, WatchArgs};
use clap::Subcommand;

/// Every short form. Hidden, because the help of `ebb` lists them in one paragraph; shells complete them all the same.
#[derive(Debug, Clone, Subcommand)]
pub enum Short {
    /// Submit a job from a YAML or JSON file (`ebb job submit`)
    #[command(hide = true)]
    Submit(SubmitArgs),
    /// List jobs, newest first (`ebb job list`)
    #[command(hide = true)]
    Jobs(JobsArgs),
    /// End a job; its last checkpoint stays (`ebb job cancel`)
    #[command(hide = true)]
    Cancel(JobArg),
    /// Checkpoint a job and give its slots back (`ebb job suspend`)
    #[command(hide = true)]
    Suspend(JobArg),
    /// Let a suspended job run again (`ebb job resume`)
    #[command(hide = true)]
    Resume(JobArg),
    /// Watch a job, or all unfinished ones (`ebb job watch`)
    #[command(hide = true)]
    Watch(WatchArgs),
    /// Wait until jobs are over, or have come to a phase (`ebb job wait`)
    #[command(hide = true)]
    Wait(WaitArgs),
    /// Tell every decision about a job, with its reason (`ebb job explain`)
    #[command(hide = true)]
    Explain(ExplainArgs),
    /// Show what a job's executors said (`ebb job logs`)
    #[command(hide = true)]
    Logs(LogsArgs),
    /// List a job's checkpoints (`ebb job checkpoints`)
    #[command(hide = true)]
    Checkpoints(CheckpointsArgs),
    /// Train a job once more and compare it bit for bit (`ebb job verify`)
    #[command(hide = true)]
    Verify(VerifyArgs),
    /// List fleets (`ebb fleet list`)
    #[command(hide = true)]
    Fleets,
    /// Say how many of its slots a fleet needs for itself (`ebb fleet demand`)
    #[command(hide = true)]
    Demand(DemandArgs),
    /// Lend slots of a fleet (`ebb fleet offer`)
    #[command(hide = true)]
    Offer(SlotsArgs),
    /// Take slots of a fleet back through the controller (`ebb fleet reclaim`)
    #[command(hide = true)]
    Reclaim(SlotsArgs),
    /// List slots: whose they are and what runs on them (`ebb slot list`)
    #[command(hide = true)]
    Slots,
    /// List tenants (`ebb tenant list`)
    #[command(hide = true)]
    Tenants,
    /// Take slots back directly at their agent (`ebb slot take-back`)
    #[command(hide = true)]
    TakeBack(TakeBackArgs),
    /// Read events, of one job or of all (`ebb event list`)
    #[command(hide = true)]
    Events(EventsArgs),
}

impl Short {
    /// The command in full.
    #[must_use]
    pub fn in_full(self) -> Command {
        let job = |command| Command::Job(JobArgs { id: None, command: Some(command) });
        let fleet = |command| Command::Fleet { command };
        match self {
            Self::Submit(args) => job(JobCommand::Submit(args)),
            Self::Jobs(args) => job(JobCommand::List(args)),
            Self::Cancel(args) => job(JobCommand::Cancel(args)),
            Self::Suspend(args) => job(JobCommand::Suspend(args)),
            Self::Resume(args) => job(JobCommand::Resume(args)),
            Self::Watch(args) => job(JobCommand::Watch(args)),
            Self::Wait(args) => job(JobCommand::Wait(args)),
            Self::Explain(args) => job(JobCommand::Explain(args)),
            Self::Logs(args) => job(JobCommand::Logs(args)),
            Self::Checkpoints(args) => job(JobCommand::Checkpoints(args)),
            Self::Verify(args) => job(JobCommand::Verify(args)),
            Self::Fleets => fleet(FleetCommand::List),
            Self::Demand(args) => fleet(FleetCommand::Demand(args)),
            Self::Offer(args) => fleet(FleetCommand::Offer(args)),
            Self::Reclaim(args) => fleet(FleetCommand::Reclaim(args)),
            Self::Slots => Command::Slot { command: SlotCommand::List },
            Self::Tenants => Command::Tenant { command: TenantCommand::List },
            Self::TakeBack(args) => Command::Slot { command: SlotCommand::TakeBack(args) },
            Self::Events(args) => Command::Event { command: EventCommand::List(args) },
        }
    }
}
