//! NVIDIA's management library behind [`Driver`]. The library is loaded by name at run time; each function that it lacks is an error of that call alone.

use crate::{Device, Driver, DriverError, Reading, Uuid};
use nvml_wrapper::error::NvmlError;
use std::ffi::OsStr;
use std::path::PathBuf;

/// The library's name for the system's loader.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// The file of a device, but for its number.
const NODE: &str = "/dev/nvidia";

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
        let (parts, node) = (parts(&device)?, told(device.minor_number())?);
        let node = node.map(|minor| PathBuf::from(format!("{NODE}{minor}")));
        Ok(Device { uuid, name: device.name()?, total_bytes: memory.total, used_bytes: memory.used, parts, node })
    }

    fn reading(&self, device: &Uuid) -> Result<Reading, NvmlError> {
        let device = self.0.device_by_uuid(device.to_string())?;
        let used_bytes = device.memory_info()?.used;
        // Not every machine lets it be known; memory is counted all the same.
        let processes = device.running_compute_processes().ok();
        let processes = processes.map(|listed| listed.iter().map(|process| process.pid).collect());
        // Parts of a device do not say it, nor do some drivers; nothing but guests depends on it.
        let busy_percent = device.utilization_rates().ok().and_then(|rates| u8::try_from(rates.gpu.min(100)).ok());
        Ok(Reading { used_bytes, busy_percent, processes })
    }
}

/// What a device in MIG mode is cut into. One that is to be cut, or whole, only when the machine starts anew is what it is now.
fn parts(device: &nvml_wrapper::Device<'_>) -> Result<Option<Vec<Uuid>>, NvmlError> {
    if told(device.mig_mode())?.is_none_or(|mode| mode.current == 0) {
        return Ok(None);
    }
    let places = told(device.mig_device_count())?.unwrap_or(0);
    // Not every place has a part.
    let part = |index| device.mig_device_by_index(index).and_then(|part| part.uuid()).ok();
    Ok(Some((0..places).filter_map(|index| part(index)?.parse().ok()).collect()))
}

/// What not every device or library can say.
fn told<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match answer {
        Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => Ok(None),
        answer => answer.map(Some),
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
