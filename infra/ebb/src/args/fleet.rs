//! `ebb fleet …` and `ebb slot …`.

use super::{duration, finite_f64, ms};
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use events_schema::{FleetId, ServerId, SlotId};
use gateway_api::DemandAhead;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `ebb fleet …`
#[derive(Debug, Clone, Subcommand)]
pub enum FleetCommand {
    /// Declare a fleet and the slots it owns; again to change it
    #[command(after_help = "Example: ebb fleet put chat --server gpu-1 --slots 4 --server gpu-2 --slots 2")]
    Put(FleetPutArgs),
    /// Make a token with which a fleet takes its own slots back at an agent, and no others
    #[command(
        after_help = "Example, on the agent's machine: ebb fleet token chat --slot 0 --slot 1 --to chat.token\nThere is no list of such tokens: to end them all, remove take-back.token from the agent's directory and start it again."
    )]
    Token(crate::take_back::FleetTokenArgs),
    /// List fleets
    List,
    /// Show one fleet
    Show {
        /// Its name.
        name: FleetId,
    },
    /// Say how many of its slots a fleet needs for itself
    Demand(DemandArgs),
    /// Lend slots of a fleet
    Offer(SlotsArgs),
    /// Take slots of a fleet back through the controller
    Reclaim(SlotsArgs),
    /// Red button: take a fleet's slots back at once, and keep them until `release`
    #[command(after_help = RECALL_HELP)]
    Recall(RecallArgs),
    /// Which slot was lent to which job from when to when, and how long each return took
    #[command(after_help = LEDGER_HELP)]
    Ledger(LedgerArgs),
    /// End a recall: the fleet's demand decides again, at once, by its last signal
    Release {
        /// The fleet.
        fleet: FleetId,
    },
}

/// Arguments of `ebb fleet put`.
#[derive(Debug, Clone, Args)]
pub struct FleetPutArgs {
    /// Its name.
    pub name: FleetId,
    /// A server of the fleet; give it once per server.
    #[arg(long, required = true)]
    pub server: Vec<ServerId>,
    /// How many slots of the server before it (all of 0..N).
    #[arg(long, required = true, value_name = "N")]
    pub slots: Vec<u16>,
    /// How slots are offered.
    #[arg(long, value_enum, default_value = "by-demand")]
    pub offers: OffersName,
    /// From a reclaim to the kill of an executor that did not leave.
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    pub reclaim_deadline_ms: u64,
}

/// How a fleet's slots are offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OffersName {
    /// A demand signal that needs fewer offers the rest.
    ByDemand,
    /// Only `ebb offer` does.
    Explicit,
}

/// A fleet and some of its slots.
#[derive(Debug, Clone, Args)]
pub struct SlotsArgs {
    /// The fleet.
    pub fleet: FleetId,
    /// Its slots, as SERVER/INDEX.
    #[arg(required = true, value_name = "SLOT")]
    pub slots: Vec<SlotId>,
}

/// `ebb demand …`
#[derive(Debug, Clone, Subcommand)]
pub enum DemandCommand {
    /// Keep saying it, from the metrics that Prometheus has of the fleet's servers
    #[command(after_help = crate::demand_follow::HELP)]
    Follow(Box<crate::demand_follow::FollowArgs>),
}

/// Arguments of `ebb demand`.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = DEMAND_HELP)]
pub struct DemandArgs {
    /// What to do instead of saying it once.
    #[command(subcommand)]
    pub command: Option<DemandCommand>,
    /// The fleet.
    #[arg(required = true)]
    pub fleet: Option<FleetId>,
    /// So many slots.
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        required_unless_present = "utilization",
        conflicts_with = "utilization"
    )]
    pub needed: Option<u32>,
    /// Utilization summed over the fleet's slots, for example 1.7.
    #[arg(long, value_name = "U", value_parser = finite_f64, allow_negative_numbers = true)]
    pub utilization: Option<f64>,
    /// Wanted utilization of one slot.
    #[arg(long, value_name = "T", default_value_t = 0.8, requires = "utilization", value_parser = finite_f64, allow_negative_numbers = true)]
    pub target: f64,
    /// It is going to need so many in so long, until the next such time; again for each, in order
    #[arg(long, value_name = "TIME=N", value_parser = ahead)]
    pub forecast: Vec<DemandAhead>,
    /// What 99 of 100 of its requests take now; while that is longer than they may, all its slots go back
    #[arg(long, value_name = "TIME", requires = "p99_limit", value_parser = duration)]
    pub p99: Option<Duration>,
    /// What they may take.
    #[arg(long, value_name = "TIME", requires = "p99", value_parser = duration)]
    pub p99_limit: Option<Duration>,
}

fn ahead(text: &str) -> Result<DemandAhead, String> {
    let expected = || format!("`{text}`: expected in how long it needs how many slots, for example 15m=4");
    let (time, needed) = text.split_once('=').ok_or_else(expected)?;
    Ok(DemandAhead { in_ms: ms(duration(time)?), needed: needed.parse().map_err(|_| expected())? })
}

/// Arguments of `ebb fleet recall`.
#[derive(Debug, Clone, Args)]
pub struct RecallArgs {
    /// The fleet.
    pub fleet: FleetId,
    /// Only so many of its slots.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "all")]
    pub slots: Option<u32>,
    /// All that it has, and will have; the same as without --slots.
    #[arg(long)]
    pub all: bool,
}

/// Arguments of `ebb fleet ledger`.
#[derive(Debug, Clone, Args)]
pub struct LedgerArgs {
    /// The fleet.
    pub fleet: FleetId,
    /// Only what was not over by then: a time such as 2026-01-01T00:00:00Z, or how long ago, such as 2h.
    #[arg(long, value_name = "TIME")]
    pub since: Option<Since>,
}

/// A time in the past.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// So long ago.
    Ago(Duration),
    /// From this time on.
    At(SystemTime),
}

impl Since {
    /// In milliseconds since 1970, given what it is now.
    #[must_use]
    pub fn ms(self, now_ms: u64) -> u64 {
        match self {
            Self::Ago(ago) => now_ms.saturating_sub(ms(ago)),
            Self::At(time) => ms(time.duration_since(UNIX_EPOCH).unwrap_or_default()),
        }
    }
}

impl FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let at = humantime::parse_rfc3339(text).map(Self::At);
        at.or_else(|_| duration(text).map(Self::Ago)).map_err(|_| {
            "expected a time such as 2026-01-01T00:00:00Z, or how long ago, such as 90s, 15m, 2h or 3days".to_owned()
        })
    }
}

/// `ebb slot …`
#[derive(Debug, Clone, Subcommand)]
pub enum SlotCommand {
    /// List slots: whose they are and what runs on them
    List,
    /// Take slots back directly at their agent; works with gateway and controller stopped
    TakeBack(TakeBackArgs),
}

/// Arguments of `ebb take-back`.
#[derive(Debug, Clone, Args)]
#[command(after_help = TAKE_BACK_HELP)]
pub struct TakeBackArgs {
    /// Slots, as SERVER/INDEX, or as INDEX at that agent.
    #[arg(required = true, value_name = "SLOT")]
    pub slots: Vec<String>,
    /// The agent's own address [default: as the agent of --data wrote it down].
    #[arg(long, value_name = "URL", requires = "token_file")]
    pub agent: Option<String>,
    /// File with the token that the agent asks of fleets.
    #[arg(long, value_name = "FILE", requires = "agent", value_hint = ValueHint::FilePath)]
    pub token_file: Option<PathBuf>,
    /// Data directory of the `ebb up` or `ebb agent` that runs on this machine.
    #[arg(long, value_name = "DIR", default_value = "./ebb-data", value_hint = ValueHint::DirPath)]
    pub data: PathBuf,
    /// Kill executors that have not left by then [default: 5000].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(0..=600_000))]
    pub deadline_ms: Option<u64>,
}

const DEMAND_HELP: &str = "\
Examples:
  ebb demand local --needed 3              the fleet takes 3 of its slots, lends the rest
  ebb demand local --utilization 1.7       1.7 slots' worth of work at 0.8 each: 3 slots
  ebb demand chat --needed 1 --forecast 15m=4 --forecast 1h=2
  ebb demand chat --needed 1 --p99 310ms --p99-limit 250ms
  ebb demand follow chat --prometheus http://127.0.0.1:9090 --metrics vllm --requests-per-slot 16";

const TAKE_BACK_HELP: &str = "\
Examples:
  ebb take-back local/2                    on the machine of `ebb up`, from where it was started
  ebb take-back 0 1 --agent http://127.0.0.1:41203 --token-file /srv/ebb/agent/take-back.token

Returns when the slots are free. They are not used again until offered again.";

const RECALL_HELP: &str = "\
Examples:
  ebb fleet recall chat                    everything, now; jobs checkpoint and wait
  ebb fleet recall chat --slots 3          at least three stay with the fleet
  ebb fleet release chat                   lend again what the last demand signal does not need

Slots are free within the fleet's reclaim deadline. Until the release they are in nobody's plan,
neither `ebb demand` nor `ebb offer` lends them, and a second recall can only hold more.
`ebb fleet show` says that a fleet is recalled.";

const LEDGER_HELP: &str = "\
Examples:
  ebb fleet ledger chat --since 1h
  ebb fleet ledger chat -o json | jq '.rows[] | select(.return.in_time == false)'

A row is the stay of one job on one slot. WITHIN is what the fleet asked for (its reclaim deadline,
or that of the take-back), TOOK the time from the first request until the slot was free.";
