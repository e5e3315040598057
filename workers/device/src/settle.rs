//! When a device is free again: what an executor took of it is back. A driver gives memory back a while after the last process of a
//! context is gone, and a broken one never does. Pure: it is told times and readings.
//!
//! Memory is counted for a whole device, so where others compute on it, it says nothing about one of them: then an executor is off it when none of
//! its processes is in the driver's list. Where the list cannot be told apart either (a container's numbers are others than the driver's),
//! whoever leaves last answers for all.

use crate::{DriverError, Reading};
use std::collections::BTreeSet;

/// Longest wait for a device whose processes are gone, until its slot is said to be in quarantine; healthy ones take tenths of a second.
pub const SETTLE_TIMEOUT_MS: u64 = 5_000;
/// What may be taken more than before: the driver's own bookkeeping moves by so much, a context is several times as large.
pub const TOLERANCE_BYTES: u64 = 64 << 20;

/// What a device is held against.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ground {
    /// Taken before the first of those who were on it together.
    pub before_bytes: u64,
    /// Processes of the executor that were seen in the driver's list.
    pub processes: BTreeSet<u32>,
}

/// A device whose executor has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settling {
    ground: Ground,
    until_ms: u64,
}

/// What a reading means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// What it took is back: the slot is free.
    Back,
    /// Not yet; look again.
    Wait,
    /// It should have been back. The slot is not free until it is; why, for who has to act.
    Held(String),
    /// The device is not there any more.
    Lost(String),
}

impl Settling {
    /// From now on.
    #[must_use]
    pub fn new(now_ms: u64, ground: Ground) -> Self {
        Self { ground, until_ms: now_ms.saturating_add(SETTLE_TIMEOUT_MS) }
    }

    /// What a reading at a time means; `shared` says that executors of other slots are on the device.
    #[must_use]
    pub fn look(&self, now_ms: u64, reading: &Result<Reading, DriverError>, shared: bool) -> Verdict {
        let wrong = match reading {
            Err(DriverError::Lost(device)) => return Verdict::Lost(format!("the device {device} is gone")),
            Err(error) => Some(error.to_string()),
            Ok(reading) if shared => self.processes_left(reading),
            Ok(reading) => self.memory_left(reading),
        };
        match wrong {
            None => Verdict::Back,
            Some(_) if now_ms < self.until_ms => Verdict::Wait,
            Some(why) => Verdict::Held(why),
        }
    }

    fn memory_left(&self, reading: &Reading) -> Option<String> {
        let (used, before) = (reading.used_bytes, self.ground.before_bytes);
        let is_back = used <= before.saturating_add(TOLERANCE_BYTES);
        let (used, before) = (used >> 20, before >> 20);
        (!is_back).then(|| {
            format!("{used} MiB of it are still taken, where it was {before} MiB before, and no process of the executor is left")
        })
    }

    fn processes_left(&self, reading: &Reading) -> Option<String> {
        let listed = reading.processes.as_ref()?;
        let left = self.ground.processes.intersection(listed).next()?;
        Some(format!("the driver still lists the process {left}, which has ended"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE_MS: u64 = 100 + SETTLE_TIMEOUT_MS;

    fn taken(used_bytes: u64, processes: Option<&[u32]>) -> Result<Reading, DriverError> {
        Ok(Reading { used_bytes, processes: processes.map(|listed| listed.iter().copied().collect()) })
    }

    fn failed() -> Result<Reading, DriverError> {
        Err(DriverError::Failed("busy".to_owned()))
    }

    #[test]
    fn a_device_is_free_when_its_memory_is_back_and_not_when_it_should_be() {
        let settling = Settling::new(100, Ground { before_bytes: 1 << 30, ..Ground::default() });
        let look = |now_ms, reading| settling.look(now_ms, &reading, false);
        assert_eq!(look(100, taken((1 << 30) + TOLERANCE_BYTES, None)), Verdict::Back);
        assert_eq!(look(101, taken(2 << 30, None)), Verdict::Wait);
        assert_eq!(look(101, failed()), Verdict::Wait);
        assert!(matches!(look(LATE_MS, taken(2 << 30, None)), Verdict::Held(why) if why.contains("2048 MiB")));
        assert!(matches!(look(LATE_MS, failed()), Verdict::Held(_)));
        assert_eq!(look(LATE_MS + 1, taken(0, None)), Verdict::Back, "late, but back");
    }

    #[test]
    fn beside_others_an_executor_is_off_a_device_when_none_of_its_processes_is_listed() {
        let ground = |processes: &[u32]| Ground { before_bytes: 0, processes: processes.iter().copied().collect() };
        let settling = Settling::new(100, ground(&[7, 8]));
        let look = |now_ms, reading| settling.look(now_ms, &reading, true);
        assert_eq!(look(100, taken(9 << 30, Some(&[5]))), Verdict::Back, "what is taken is the others'");
        assert_eq!(look(100, taken(9 << 30, Some(&[5, 8]))), Verdict::Wait);
        assert!(
            matches!(look(LATE_MS, taken(9 << 30, Some(&[5, 8]))), Verdict::Held(why) if why.contains("process 8"))
        );
        assert_eq!(look(100, taken(9 << 30, None)), Verdict::Back, "who leaves last answers for all");
        assert_eq!(Settling::new(100, ground(&[])).look(100, &taken(9 << 30, Some(&[5])), true), Verdict::Back);
        assert_eq!(settling.look(100, &taken(9 << 30, Some(&[])), false), Verdict::Wait, "the last one");
    }

    #[test]
    fn a_device_that_is_gone_is_not_waited_for() -> Result<(), crate::UuidError> {
        let gone = Err(DriverError::Lost("GPU-00000000-0000-0000-0000-000000000001".parse()?));
        let settling = Settling::new(0, Ground::default());
        assert!(matches!(settling.look(1, &gone, true), Verdict::Lost(why) if why.contains("GPU-00000000")));
        Ok(())
    }
}
