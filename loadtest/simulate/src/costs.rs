//! What it costs to start, to come together, to grow, to save and to leave: measured figures, each with its row of `docs/measurements.md`.
//!
//! All but the copy of a replica are times in which no step is made. They are those of the machine of that page; a run can be given others.

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
/// Copying a replica to newcomers, in MB per second: 200 MB out in 169 ms and in within 61 ms. The others step meanwhile.
pub const COPY_MB_PER_S: u64 = 869;
/// Newcomers come in, by the MB of the replica, in microseconds: "pause at scale out" of a small replica, of 106 and of 655 MB, p50. Between two of them it is taken to lie
/// on a straight line; above the last one it is that one (of 2 GB one growth was measured, of 27 ms). All were measured as a second member came in.
pub const GROW_US: [(u64, u64); 3] = [(0, 4_300), (106, 8_700), (655, 39_600)];
/// By how much steps are longer while a newcomer follows, in percent: 690 ms where they took 632 before, "655 MB, native, once more". Of 106 MB it was 3.
pub const FOLLOWED_PERCENT: u64 = 9;
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
    /// Newcomers are sent the replica, while the others step; 0 where it is sent at the boundary at which they come in.
    pub copy_ms: u64,
    /// Newcomers come in, and all stand still: the pause itself, and what the others' steps took longer while the replica was sent.
    pub grow_ms: u64,
    /// MB of a replica, as executors say it; 0 if they do not.
    pub replica_mb: u64,
    /// A whole replica is written by one member: a checkpoint that is asked for because everybody has to go, while all stand still.
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
            grow_ms: pause_ms(replica_mb) + at(COPY_MB_PER_S) * FOLLOWED_PERCENT / 100,
            replica_mb,
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
            grow_ms: 0,
            replica_mb: 0,
            save_ms: 0,
            restore_ms: 0,
            lease_ms: 0,
            finish_ms: 0,
            checkpoint_every_ms: CHECKPOINT_EVERY_MS,
        }
    }
}

/// How long all stand still when newcomers with such a replica come in.
fn pause_ms(replica_mb: u64) -> u64 {
    let above = GROW_US.partition_point(|(mb, _)| *mb <= replica_mb);
    let us = match (GROW_US[above - 1], GROW_US.get(above)) {
        ((low, from_us), Some((high, to_us))) => from_us + (to_us - from_us) * (replica_mb - low) / (high - low),
        ((_, us), None) => us,
    };
    (us + 500) / 1_000
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

    #[test]
    fn a_pause_is_that_of_the_measured_replicas_and_between_them() {
        assert_eq!([0, 106, 200, 655, 100_000].map(pause_ms), [4, 9, 14, 40, 40]);
        // And nine in a hundred of the copy.
        assert_eq!([0, REPLICA_MB].map(|mb| Costs::measured(mb).grow_ms), [4, 14 + 20]);
    }
}
