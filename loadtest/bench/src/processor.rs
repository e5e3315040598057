//! How much processor time a virtual machine wanted and did not get: without it, a figure measured on a shared host cannot be
//! told from a slow program. Linux only; elsewhere nothing is known.

/// Where Linux counts processor time, first line, in ticks: user, nice, system, idle, iowait, irq, softirq, steal.
const COUNTS_FILE: &str = "/proc/stat";
/// Columns of time in use.
const USED: [usize; 5] = [0, 1, 2, 5, 6];
/// Column of time that the host gave to others while something here wanted to run.
const STEAL: usize = 7;

/// Counts since the machine started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time {
    used: u64,
    stolen: u64,
}

impl Time {
    /// Reads the counts, if the system tells them.
    pub fn now() -> Option<Self> {
        Self::parse(&std::fs::read_to_string(COUNTS_FILE).ok()?)
    }

    /// Stolen ÷ wanted since an earlier reading; nothing if nothing ran.
    pub fn stolen_since(self, earlier: Self) -> Option<f64> {
        let stolen = self.stolen.checked_sub(earlier.stolen)? as f64;
        let wanted = stolen + self.used.checked_sub(earlier.used)? as f64;
        (wanted > 0.0).then(|| stolen / wanted)
    }

    fn parse(text: &str) -> Option<Self> {
        let counts = text.lines().next()?.strip_prefix("cpu ")?;
        let counts: Vec<u64> = counts.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let used = USED.iter().map(|column| counts.get(*column).copied()).sum::<Option<u64>>()?;
        Some(Self { used, stolen: *counts.get(STEAL)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_a_share_of_what_was_wanted() {
        let at = |line: &str| Time::parse(line).expect("counts");
        let before = at("cpu  100 10 20 5000 7 1 2 50 0 0\ncpu0 1 1 1 1");
        let after = at("cpu  160 10 30 9000 9 2 6 75 0 0\ncpu0 1 1 1 1");
        assert_eq!(after.stolen_since(before), Some(0.25));
        assert_eq!(after.stolen_since(after), None);
        assert_eq!((Time::parse("cpu  1 2"), Time::parse("intr 1")), (None, None));
    }
}
