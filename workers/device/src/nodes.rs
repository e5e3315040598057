//! The files through which programs reach devices. Which there should be, by what the driver says; looks at none itself, and makes none.

use crate::{Device, Uuid};
use std::path::{Path, PathBuf};

/// What CUDA's memory goes through, whichever device it is of.
pub const UNIFIED_MEMORY: &str = "/dev/nvidia-uvm";
/// What every program asks first.
const CONTROL: &str = "/dev/nvidiactl";

impl Device {
    /// The number in its file's name.
    #[must_use]
    pub fn node_number(&self) -> Option<u32> {
        let name = self.node.as_ref()?.file_name()?.to_str()?;
        name.trim_start_matches(|letter: char| !letter.is_ascii_digit()).parse().ok()
    }
}

/// For each device that programs could not reach, the first file that is not there. Where the driver names no file of a device, nothing is known of it.
pub fn missing(devices: &[Device], there: impl Fn(&Path) -> bool) -> Vec<(Uuid, PathBuf)> {
    let first_missing = |device: &Device| {
        let nodes = [device.node.clone()?, CONTROL.into(), UNIFIED_MEMORY.into()];
        Some((device.uuid.clone(), nodes.into_iter().find(|node| !there(node))?))
    };
    devices.iter().filter_map(first_missing).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_device_is_reached_by_its_own_file_and_those_of_all() {
        let device = |end: char, node: Option<&str>| Device {
            uuid: format!("GPU-00000000-0000-0000-0000-00000000000{end}").parse().unwrap(),
            name: String::new(),
            total_bytes: 1,
            used_bytes: 0,
            parts: None,
            node: node.map(PathBuf::from),
        };
        let devices = [device('1', Some("/dev/nvidia10")), device('2', Some("/dev/nvidia2")), device('3', None)];
        let without = |gone: &str| {
            let found = missing(&devices, |path| path != Path::new(gone));
            found.into_iter().map(|(_, node)| node).collect::<Vec<_>>()
        };
        assert_eq!(without(""), [""; 0].map(PathBuf::from));
        assert_eq!(without("/dev/nvidia10"), [PathBuf::from("/dev/nvidia10")]);
        assert_eq!(without(UNIFIED_MEMORY), [UNIFIED_MEMORY; 2].map(PathBuf::from));
        assert_eq!(devices.each_ref().map(Device::node_number), [Some(10), Some(2), None]);
    }
}
