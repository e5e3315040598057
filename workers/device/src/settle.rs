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

/// How long a device has to be as it was, without a break, when its slot was in quarantine a second time within [`FORGOTTEN_MS`]. Twice as long each time
/// after that: each quarantine and its end are facts for ever, and who plans on the slot loses an executor by each.
const STEADY_MS: u64 = 5_000;
/// Longest such time: a slot whose device comes and goes makes so few facts at last, and is of no use meanwhile.
const STEADY_MS_MAX: u64 = 600_000;
/// A slot that was not in quarantine for so long begins anew. Longer than the longest wait, or that would never be reached.
const FORGOTTEN_MS: u64 = 3_600_000;

/// Most processes of others that a reason names: it is kept in the log for ever, and a few of them say whose they are.
const NAMED_MAX: usize = 4;

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
        if used <= before.saturating_add(TOLERANCE_BYTES) {
            return None;
        }
        let (used, before) = (used >> 20, before >> 20);
        let others = self.others(reading).unwrap_or_default();
        Some(format!(
            "{used} MiB of it are still taken, where it was {before} MiB before, and no process of the executor is left{others}"
        ))
    }

    /// Who else is on the device, as the driver lists them: whom somebody has to ask, where the memory is not the executor's. In a container the
    /// numbers are those of the machine.
    fn others(&self, reading: &Reading) -> Option<String> {
        let listed = reading.processes.as_ref()?;
        let mut others = listed.difference(&self.ground.processes);
        let named: Vec<String> = others.by_ref().take(NAMED_MAX).map(u32::to_string).collect();
        let more = others.count();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        (!named.is_empty())
            .then(|| format!("; other processes that the driver lists on it: {}{more}", named.join(", ")))
    }

    fn processes_left(&self, reading: &Reading) -> Option<String> {
        let listed = reading.processes.as_ref()?;
        let left = self.ground.processes.intersection(listed).next()?;
        Some(format!("the driver still lists the process {left}, which has ended"))
    }
}

/// How often a slot was in quarantine lately.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Flapping {
    times: u32,
    last_ms: u64,
}

impl Flapping {
    /// It is once more.
    pub fn again(&mut self, now_ms: u64) -> Quarantine {
        if now_ms.saturating_sub(self.last_ms) > FORGOTTEN_MS {
            self.times = 0;
        }
        let doublings = self.times.checked_sub(1);
        (self.times, self.last_ms) = (self.times.saturating_add(1), now_ms);
        // The first time nobody waits longer than the device takes.
        let doubled = |doublings: u32| STEADY_MS.saturating_mul(1_u64.checked_shl(doublings).unwrap_or(u64::MAX));
        Quarantine { steady_ms: doublings.map_or(0, doubled).min(STEADY_MS_MAX), back_since_ms: None }
    }
}

/// A slot whose device is not as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantine {
    steady_ms: u64,
    back_since_ms: Option<u64>,
}

impl Quarantine {
    /// How long its device has to be as it was before it ends.
    #[must_use]
    pub fn steady_ms(&self) -> u64 {
        self.steady_ms
    }

    /// Whether it ends with what was seen now.
    pub fn ends(&mut self, now_ms: u64, seen: &Verdict) -> bool {
        if *seen != Verdict::Back {
            self.back_since_ms = None;
            return false;
        }
        now_ms.saturating_sub(*self.back_since_ms.get_or_insert(now_ms)) >= self.steady_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE_MS: u64 = 100 + SETTLE_TIMEOUT_MS;

    fn taken(used_bytes: u64, processes: Option<&[u32]>) -> Result<Reading, DriverError> {
        Ok(Reading {
            used_bytes,
            busy_percent: None,
            processes: processes.map(|listed| listed.iter().copied().collect()),
        })
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
    fn other_peoples_processes_on_a_device_are_named_where_its_memory_does_not_come_back() {
        let settling = Settling::new(100, Ground { before_bytes: 0, processes: [7].into() });
        let said = |listed: &[u32]| match settling.look(LATE_MS, &taken(2 << 30, Some(listed)), false) {
            Verdict::Held(why) => why,
            other => panic!("{other:?}"),
        };
        assert!(
            said(&[7, 40, 41]).ends_with("; other processes that the driver lists on it: 40, 41"),
            "{}",
            said(&[7, 40, 41])
        );
        assert!(said(&[1, 2, 3, 4, 5, 6]).ends_with("on it: 1, 2, 3, 4 and 2 more"));
        assert!(said(&[7]).ends_with("no process of the executor is left"));
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
    fn a_device_that_comes_and_goes_makes_ever_fewer_quarantines() {
        let (mut flapping, mut now_ms, mut begun) = (Flapping::default(), 0, Vec::new());
        // Back a second after each loss, and lost a second after each quarantine: a day of it.
        while now_ms < 24 * 3_600_000 {
            begun.push(now_ms);
            let mut quarantine = flapping.again(now_ms);
            while !quarantine.ends(now_ms, &Verdict::Back) {
                now_ms += 1_000;
            }
            now_ms += 2_000;
        }
        assert_eq!(begun[..4], [0, 2_000, 9_000, 21_000], "at once the first time, then after 5 s, 10 s, …");
        let at_last = usize::try_from(now_ms / STEADY_MS_MAX);
        assert!(at_last.is_ok_and(|at_last| begun.len() < at_last + 10), "{} in a day", begun.len());
    }

    #[test]
    fn a_quarantine_ends_when_its_device_was_back_without_a_break_and_is_forgotten_at_last() {
        let mut flapping = Flapping::default();
        assert!(flapping.again(0).ends(7, &Verdict::Back));
        let mut second = flapping.again(10);
        assert_eq!(second.steady_ms(), STEADY_MS);
        assert!(!second.ends(100, &Verdict::Back));
        assert!(!second.ends(STEADY_MS + 99, &Verdict::Lost("gone".to_owned())));
        assert!(!second.ends(STEADY_MS + 100, &Verdict::Back));
        assert!(second.ends(2 * STEADY_MS + 100, &Verdict::Back));
        assert_eq!(flapping.again(10 + FORGOTTEN_MS + 1).steady_ms(), 0);
        for _ in 0..100 {
            assert!(flapping.again(10 + FORGOTTEN_MS + 2).steady_ms() <= STEADY_MS_MAX);
        }
    }

    #[test]
    fn a_device_that_is_gone_is_not_waited_for() -> Result<(), crate::UuidError> {
        let gone = Err(DriverError::Lost("GPU-00000000-0000-0000-0000-000000000001".parse()?));
        let settling = Settling::new(0, Ground::default());
        assert!(matches!(settling.look(1, &gone, true), Verdict::Lost(why) if why.contains("GPU-00000000")));
        Ok(())
    }
}
