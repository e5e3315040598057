//! `ebb tenant …`.

use clap::Subcommand;
use events_schema::TenantId;

/// `ebb tenant …`
#[derive(Debug, Clone, Subcommand)]
pub enum TenantCommand {
    /// List tenants that have a quota or unfinished jobs
    List,
    /// Show one tenant
    Show {
        /// Its name.
        tenant: TenantId,
    },
    /// Say how many slots a tenant has guaranteed, under `--policy antman`
    #[command(after_help = SET_HELP)]
    Set {
        /// Its name, as jobs say it in `tenant`.
        tenant: TenantId,
        /// So many slots, of all kinds together.
        #[arg(long, value_name = "SLOTS")]
        quota: u32,
    },
    /// Take a tenant's quota away; its jobs stay
    Remove {
        /// Its name.
        tenant: TenantId,
    },
}

const SET_HELP: &str = "\
Examples:
  ebb tenant set research --quota 6        six slots are research's as soon as its jobs ask for them
  ebb tenant set labs --quota 0            the same as no quota, as long as anybody has one

As long as nobody has a quota, all jobs are guaranteed what they ask for. Policies that know of no quotas
pass them over.";
