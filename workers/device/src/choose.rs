//! Which devices are slots: what an operator writes, and what that is on this server.

use crate::{Device, Driver, DriverError, Uuid};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Most slots that are devices on one server; what a list names more of is a mistake.
pub const SLOTS_MAX: usize = 64;

/// Which devices are slots.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Wanted {
    /// None: slots are numbers.
    #[default]
    None,
    /// All that there are, each one slot.
    Auto,
    /// These, in this order. One that stands there twice is two slots, whose executors share it.
    Named(Vec<Name>),
}

/// How a device is named on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Name {
    /// For good.
    Uuid(Uuid),
    /// Its place in the driver's order, which may change when the machine starts anew.
    Index(usize),
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Uuid(uuid) => uuid.fmt(f),
            Name::Index(index) => index.fmt(f),
        }
    }
}

/// What names no devices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WantedError {
    /// One is no name.
    #[error(
        "`{0}` names no device; write its UUID as `nvidia-smi -L` shows it (GPU-8f6e5f0a-1b2c-3d4e-5f60-718293a4b5c6), its number there, `auto` for all, or `none`"
    )]
    Name(String),
    /// Too many.
    #[error("{0} slots are named, and at most {SLOTS_MAX} of a server can be devices")]
    TooMany(usize),
}

impl FromStr for Wanted {
    type Err = WantedError;

    fn from_str(text: &str) -> Result<Self, WantedError> {
        match text {
            "none" => return Ok(Self::None),
            "auto" => return Ok(Self::Auto),
            _ => {}
        }
        let named = text.split(',').map(|name| parse(name.trim())).collect::<Result<Vec<_>, _>>()?;
        if named.len() > SLOTS_MAX { Err(WantedError::TooMany(named.len())) } else { Ok(Self::Named(named)) }
    }
}

fn parse(text: &str) -> Result<Name, WantedError> {
    let index = || text.parse::<u16>().ok().map(|index| Name::Index(usize::from(index)));
    let name = text.parse().ok().map(Name::Uuid).or_else(index);
    name.ok_or_else(|| WantedError::Name(text.to_owned()))
}

/// Why there are no such slots. Stop and tell the operator.
#[derive(Debug, thiserror::Error)]
pub enum ChooseError {
    /// The driver.
    #[error("devices are to be slots")]
    Driver(#[from] DriverError),
    /// One is not there.
    #[error("the device {missing} is not on this server, which has {there}")]
    NotThere {
        /// What was named.
        missing: Name,
        /// Those that are.
        there: String,
    },
    /// One is cut into parts, and neither it nor a part of it can be a slot: a program sees one part at most, and what is taken of the whole says nothing of it.
    #[error(
        "the device {device} is in MIG mode ({parts}), and slots are whole devices; end that with `nvidia-smi -i {device} -mig 0`, or name others{others}"
    )]
    Cut {
        /// The one that is cut.
        device: Uuid,
        /// Into what.
        parts: String,
        /// Devices that are whole, as they are named.
        others: String,
    },
    /// Programs cannot reach one.
    #[error(
        "nothing can compute on the device {device}, because `{}` is not there; run `nvidia-modprobe -u -c=0` as root once (with the device's number instead of 0), or give this container its devices", node.display()
    )]
    Unreachable {
        /// The one that nothing reaches.
        device: Uuid,
        /// The file through which it is reached.
        node: PathBuf,
    },
    /// There are none at all.
    #[error("this server has no device; say `none` for slots without")]
    Nothing,
}

/// The devices that are slots, in the order of the slots.
pub fn choose(wanted: &Wanted, driver: &dyn Driver) -> Result<Vec<Device>, ChooseError> {
    let named = match wanted {
        Wanted::None => return Ok(Vec::new()),
        Wanted::Auto => None,
        Wanted::Named(named) => Some(named),
    };
    let there = driver.list()?;
    if there.is_empty() {
        return Err(ChooseError::Nothing);
    }
    let found = |name: &Name| {
        let device = match name {
            Name::Index(index) => there.get(*index),
            Name::Uuid(uuid) => there.iter().find(|device| device.uuid == *uuid || is_cut_into(device, uuid)),
        };
        device.cloned().ok_or_else(|| ChooseError::NotThere { missing: name.clone(), there: listed(there.iter()) })
    };
    let chosen: Vec<Device> =
        named.map_or_else(|| Ok(there.clone()), |named| named.iter().map(found).collect::<Result<_, _>>())?;
    match chosen.iter().find_map(|device| Some((device, device.parts.as_ref()?))) {
        None => Ok(chosen),
        Some((device, parts)) => Err(cut(device, parts, &there)),
    }
}

fn is_cut_into(device: &Device, part: &Uuid) -> bool {
    device.parts.iter().flatten().any(|found| found == part)
}

fn cut(device: &Device, parts: &[Uuid], there: &[Device]) -> ChooseError {
    let parts = match parts {
        [] => "cut into no parts yet".to_owned(),
        parts => format!("cut into {}", parts.iter().map(Uuid::to_string).collect::<Vec<_>>().join(", ")),
    };
    let whole = listed(there.iter().filter(|device| device.parts.is_none()));
    let others = if whole.is_empty() { String::new() } else { format!(": --devices {}", whole.replace(", ", ",")) };
    ChooseError::Cut { device: device.uuid.clone(), parts, others }
}

fn listed<'a>(devices: impl Iterator<Item = &'a Device>) -> String {
    devices.map(|device| device.uuid.to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const ONE: &str = "GPU-00000000-0000-0000-0000-000000000001";

    #[test]
    fn what_is_no_device_is_named_with_what_would_be() {
        let named = Wanted::Named(vec![Name::Uuid(ONE.parse().unwrap()), Name::Index(0), Name::Index(0)]);
        assert_eq!("auto".parse(), Ok(Wanted::Auto));
        assert_eq!("none".parse(), Ok(Wanted::None));
        assert_eq!(format!("{ONE}, 0,0").parse(), Ok(named));
        for text in [
            "",
            "all",
            "-1",
            "GPU-1",
            "GPU-00000000-0000-0000-0000-00000000000g",
            "GPU-0000000000000000-0000-0000-000000000001",
        ] {
            let error = text.parse::<Wanted>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")) && error.contains("auto"), "{error}");
        }
        let many = vec!["0"; SLOTS_MAX + 1].join(",");
        assert_eq!(many.parse::<Wanted>(), Err(WantedError::TooMany(SLOTS_MAX + 1)));
    }
}
