//! What it costs to start, to come together, to grow, to save and to leave: measured figures, each with its row of `docs/measurements.md`.
//!
//! All are times in which no step is made. They are those of the machine of that page; a run can be given others.

use serde::Serialize;

/// A process starts and builds its model: "PyTorch cold start, without a process to fork from".
pub const START_MS: u64 = 6_419;
/// Members of a first generation come together: "pause of the members at scale out", p99, of a small replica.
pub const LINK_MS: u64 = 15;
/// A running job goes on with other members, none of whom is new: "pause of the stayers at scale in", p99.
pub const SWITCH_MS: u64 = 23;
/// The survivors of a loss come together: "kill -9 of an executor → training again".
pub const RECOVER_MS: u64 = 41;
/// A process ends and its slot is free: "taken back at the agent → slot free", p99.
pub const EXIT_MS: u64 = 46;
/// A replica, in MB: that of the measured cold start ("200 MB out 169, in 61").
pub const REPLICA_MB: u64 = 200;
/// Copying a replica to newcomers, in MB per second: 200 MB out in 169 ms and in within 61 ms.
pub const COPY_MB_PER_S: u64 = 869;
/// Writing a checkpoint, in MB per second: "checkpoint write, 64 MB" in 140 ms. Reading one is not measured and taken to be as fast.
pub const STORE_MB_PER_S: u64 = 457;
/// A server that is gone is given up: the lease of its agent.
pub const LEASE_MS: u64 = 4_500;
/// Between two checkpoints that nobody asked for: half an hour, so that an hour's loss is a quarter of an hour in the mean.
pub const CHECKPOINT_EVERY_MS: u64 = 1_800_000;

/// The costs of a run, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Costs {
    /// See [`START_MS`].
    pub start_ms: u64,
    /// See [`LINK_MS`].
    pub link_ms: u64,
    /// See [`SWITCH_MS`].
    pub switch_ms: u64,
    /// See [`RECOVER_MS`].
    pub recover_ms: u64,
    /// See [`EXIT_MS`].
    pub exit_ms: u64,
    /// Newcomers are sent the replica, while the others stand still.
    pub copy_ms: u64,
    /// A checkpoint is written, while all stand still: one that is asked for because everybody has to go.
    pub save_ms: u64,
    /// A checkpoint is read.
    pub restore_ms: u64,
    /// See [`LEASE_MS`].
    pub lease_ms: u64,
    /// After a job's last step its model is written; 0 unless a live run measured it.
    #[serde(skip_serializing_if = "is_none")]
    pub finish_ms: u64,
    /// See [`CHECKPOINT_EVERY_MS`]. Writing these stops nobody ("pause per checkpoint": one memory copy).
    pub checkpoint_every_ms: u64,
}

fn is_none(ms: &u64) -> bool {
    *ms == 0
}

impl Costs {
    /// As measured, with a replica of so many MB.
    #[must_use]
    pub fn measured(replica_mb: u64) -> Self {
        let at = |mb_per_s: u64| (replica_mb * 1_000).div_ceil(mb_per_s);
        Self {
            start_ms: START_MS,
            link_ms: LINK_MS,
            switch_ms: SWITCH_MS,
            recover_ms: RECOVER_MS,
            exit_ms: EXIT_MS,
            copy_ms: at(COPY_MB_PER_S),
            save_ms: at(STORE_MB_PER_S),
            restore_ms: at(STORE_MB_PER_S),
            lease_ms: LEASE_MS,
            finish_ms: 0,
            checkpoint_every_ms: CHECKPOINT_EVERY_MS,
        }
    }

    /// What a job loses that is stopped and started again.
    #[must_use]
    pub fn stopped_and_started_ms(&self) -> u32 {
        let all = self.save_ms + self.exit_ms + self.start_ms + self.link_ms + self.restore_ms;
        u32::try_from(all).unwrap_or(u32::MAX)
    }

    /// Nothing costs anything: what a policy could do at best.
    #[must_use]
    pub fn none() -> Self {
        Self {
            start_ms: 0,
            link_ms: 0,
            switch_ms: 0,
            recover_ms: 0,
            exit_ms: 0,
            copy_ms: 0,
            save_ms: 0,
            restore_ms: 0,
            lease_ms: 0,
            finish_ms: 0,
            checkpoint_every_ms: CHECKPOINT_EVERY_MS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_takes_what_its_bytes_take() {
        let costs = Costs::measured(REPLICA_MB);
        assert_eq!((costs.copy_ms, costs.save_ms), (231, 438));
        assert_eq!(Costs::measured(0).copy_ms, 0);
    }
}
