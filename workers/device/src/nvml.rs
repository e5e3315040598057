//! NVIDIA's management library behind [`Driver`]. The library is loaded by name at run time; each function that it lacks is an error of that call alone.

use crate::{Device, Driver, DriverError, Reading, Uuid};
use nvml_wrapper::error::NvmlError;
use std::ffi::OsStr;

/// The library's name for the system's loader.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// The loaded library.
#[derive(Debug)]
pub struct Nvml(nvml_wrapper::Nvml);

impl Nvml {
    /// Loads the system's, or the one at a path.
    pub fn load(path: Option<&OsStr>) -> Result<Self, DriverError> {
        let library = nvml_wrapper::Nvml::builder().lib_path(path.unwrap_or(LIBRARY.as_ref())).init();
        library.map(Self).map_err(|error| DriverError::Missing(error.to_string()))
    }

    fn device(&self, index: u32) -> Result<Device, NvmlError> {
        let device = self.0.device_by_index(index)?;
        let (memory, uuid) = (device.memory_info()?, device.uuid()?);
        let uuid = uuid.parse().map_err(|_| NvmlError::UnexpectedVariant(index))?;
        Ok(Device { uuid, name: device.name()?, total_bytes: memory.total, used_bytes: memory.used })
    }

    fn reading(&self, device: &Uuid) -> Result<Reading, NvmlError> {
        let device = self.0.device_by_uuid(device.to_string())?;
        let used_bytes = device.memory_info()?.used;
        // Not every machine lets it be known; memory is counted all the same.
        let processes = device.running_compute_processes().ok();
        let processes = processes.map(|listed| listed.iter().map(|process| process.pid).collect());
        Ok(Reading { used_bytes, processes })
    }
}

impl Driver for Nvml {
    fn version(&self) -> Result<String, DriverError> {
        self.0.sys_driver_version().map_err(failed)
    }

    fn list(&self) -> Result<Vec<Device>, DriverError> {
        let count = self.0.device_count().map_err(failed)?;
        (0..count).map(|index| self.device(index).map_err(failed)).collect()
    }

    fn read(&self, device: &Uuid) -> Result<Reading, DriverError> {
        self.reading(device).map_err(|error| match error {
            NvmlError::GpuLost | NvmlError::NotFound => DriverError::Lost(device.clone()),
            error => failed(error),
        })
    }
}

fn failed(error: NvmlError) -> DriverError {
    DriverError::Failed(error.to_string())
}
