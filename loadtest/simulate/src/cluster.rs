//! What there is to run on, as people write it: `16x4:t4` are 16 servers of 4 slots of the type `t4`; `8x8:v100@3` are three times as fast.

use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// Slots of one server at most, as an agent can hold.
const SLOTS_MAX: u16 = 1_024;
/// Servers of one group at most: with the most slots of a cell one each.
const SERVERS_MAX: u32 = 100_000;

/// Servers that are alike.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Group {
    /// How many.
    pub servers: u32,
    /// Slots of each.
    pub slots: u16,
    /// Their type: a job's slots are of one type, unless a setup mixes them.
    pub kind: String,
    /// How many times as fast as the measured curves say.
    pub speed: f64,
}

/// Groups of servers, each a fleet.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Cluster {
    /// As they were written, from the left.
    pub groups: Vec<Group>,
}

/// Why a text is no cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no group of servers; expected SERVERSxSLOTS:TYPE or SERVERSxSLOTS:TYPE@SPEED, as in 16x4:t4 (1 to {SERVERS_MAX} servers of 1 to {SLOTS_MAX} slots; a speed above 0)"
)]
pub struct ClusterError {
    text: String,
}

impl Group {
    /// Its slots in all.
    #[must_use]
    pub fn slots_total(&self) -> u64 {
        u64::from(self.servers) * u64::from(self.slots)
    }
}

impl fmt::Display for Group {
    /// As people write it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}:{}", self.servers, self.slots, self.kind)?;
        if self.speed == 1.0 { Ok(()) } else { write!(f, "@{}", self.speed) }
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups: Vec<String> = self.groups.iter().map(Group::to_string).collect();
        f.write_str(&groups.join(","))
    }
}

impl Cluster {
    /// Its slots in all.
    #[must_use]
    pub fn slots_total(&self) -> u64 {
        self.groups.iter().map(Group::slots_total).sum()
    }
}

impl FromStr for Group {
    type Err = ClusterError;
    fn from_str(text: &str) -> Result<Self, ClusterError> {
        group(text.trim()).ok_or_else(|| ClusterError { text: text.trim().to_owned() })
    }
}

fn group(text: &str) -> Option<Group> {
    let (counts, kind) = text.split_once(':')?;
    let (servers, slots) = counts.split_once('x')?;
    let (kind, speed) = match kind.split_once('@') {
        Some((kind, speed)) => (kind, speed.parse().ok()?),
        None => (kind, 1.0),
    };
    let legal = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let group = Group { servers: servers.parse().ok()?, slots: slots.parse().ok()?, kind: kind.to_owned(), speed };
    let fits = (1..=SERVERS_MAX).contains(&group.servers)
        && (1..=SLOTS_MAX).contains(&group.slots)
        && (speed.is_finite() && speed > 0.0)
        && !kind.is_empty()
        && kind.chars().all(legal);
    fits.then_some(group)
}

impl FromStr for Cluster {
    type Err = ClusterError;
    fn from_str(text: &str) -> Result<Self, ClusterError> {
        text.split(',').map(str::parse).collect::<Result<_, _>>().map(|groups| Self { groups })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn groups_are_read_as_people_write_them() {
        let cluster: Cluster = "16x4:t4, 2x8:v100@3".parse().unwrap();
        let (first, second) = (&cluster.groups[0], &cluster.groups[1]);
        assert_eq!((first.servers, first.slots, first.kind.as_str(), first.speed), (16, 4, "t4", 1.0));
        assert_eq!((second.slots_total(), second.speed, cluster.slots_total()), (16, 3.0, 80));
        assert_eq!(cluster.to_string(), "16x4:t4,2x8:v100@3");
    }

    #[test]
    fn what_is_no_cluster_is_named() {
        for text in ["", "16", "16x4", "0x4:t4", "4x0:t4", "4x4:", "4x4:t4@0", "4x4:t4@x", "4x4:t4,", "-1x4:t4"] {
            let error = text.parse::<Cluster>().unwrap_err().to_string();
            assert!(error.contains("expected SERVERSxSLOTS:TYPE"), "{text}: {error}");
        }
    }
}
