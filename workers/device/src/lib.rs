//! The GPUs of a server, as its agent needs them: which there are, and whether the memory of one is back after its executor ended.
//!
//! Behind [`Driver`] is NVIDIA's management library, loaded when it is asked for, so that everything builds and runs without one. It tells a
//! device's memory without making a context on it ([decision 13](../../../docs/decisions/0013-devices-are-asked-through-nvml.md)). Nothing here
//! starts, stops or resets anything, and nothing decides about slots. Reading order: `choose.rs`, `nodes.rs`, `settle.rs`, `nvml.rs`.

mod choose;
mod nodes;
mod nvml;
mod settle;

pub use choose::{ChooseError, SLOTS_MAX, Wanted, WantedError, choose};
pub use nodes::{UNIFIED_MEMORY, missing};
pub use nvml::Nvml;
pub use settle::{Flapping, Ground, Quarantine, SETTLE_TIMEOUT_MS, Settling, TOLERANCE_BYTES, Verdict};

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The name of a device that it has everywhere and always: `GPU-` or `MIG-`, and five groups of hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Uuid(String);

/// What is no name of a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no UUID of a device")]
pub struct UuidError(String);

impl FromStr for Uuid {
    type Err = UuidError;

    fn from_str(text: &str) -> Result<Self, UuidError> {
        let groups = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-"));
        let lengths = groups.map(|groups| groups.split('-').map(str::len).collect::<Vec<_>>());
        let is_hexadecimal = |text: &str| text.chars().all(|c| c == '-' || c.is_ascii_hexdigit());
        if lengths.is_some_and(|lengths| lengths == [8, 4, 4, 4, 12]) && groups.is_some_and(is_hexadecimal) {
            Ok(Self(text.to_owned()))
        } else {
            Err(UuidError(text.to_owned()))
        }
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A device as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name everywhere.
    pub uuid: Uuid,
    /// What it is, for people.
    pub name: String,
    /// Its memory.
    pub total_bytes: u64,
    /// What of it is taken.
    pub used_bytes: u64,
    /// What it is cut into, if it is in MIG mode.
    pub parts: Option<Vec<Uuid>>,
    /// The file through which programs reach it, if the driver says which; it may not be there.
    pub node: Option<PathBuf>,
}

/// What is on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// Memory that is taken.
    pub used_bytes: u64,
    /// For how much of the last while it computed, whoever for, in hundredths; none if the driver does not say, as of parts of a device.
    pub busy_percent: Option<u8>,
    /// Processes that compute on it, by the driver's numbers, which in a container may be others than the agent sees; none if it does not say.
    pub processes: Option<BTreeSet<u32>>,
}

/// Why a driver does not answer.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// Stop: there is no driver here.
    #[error("there is no NVIDIA driver here: {0}")]
    Missing(String),
    /// Stop using it: the device was there and is not any more.
    #[error("the device {0} is gone")]
    Lost(Uuid),
    /// It may be a moment's: asked again, and counted as gone if it lasts.
    #[error("the NVIDIA driver does not answer: {0}")]
    Failed(String),
}

/// What can be asked of a server's devices. Calls may take as long as the hardware does, so they are made where that holds nobody up.
pub trait Driver: Send + Sync {
    /// Its version, for people.
    fn version(&self) -> Result<String, DriverError>;
    /// All devices, in the driver's order.
    fn list(&self) -> Result<Vec<Device>, DriverError>;
    /// What is on one now.
    fn read(&self, device: &Uuid) -> Result<Reading, DriverError>;
}
