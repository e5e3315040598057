//! The variables of a Python process: all of them, and which of them decide already while Python and torch are loaded.
//! A process that was forked after that is given only the others (`warm.rs`), so what is not known to be harmless is named here. Reads
//! this process's own environment and nothing else.

use crate::isolation;
use crate::job::TorchStart;
use events_schema::torch::TorchDevice;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

/// Variables that a job's programs get of their executor's environment: where programs and libraries are, how texts are written, which GPU is its
/// slot's. Credentials of the store are not among them.
const NAMES: &[&str] = &[
    "PATH",
    "HOME",
    "LD_LIBRARY_PATH",
    "TMPDIR",
    "LANG",
    "LC_ALL",
    "TZ",
    VISIBLE_DEVICES,
    "NVIDIA_VISIBLE_DEVICES",
    NONCE,
];

/// Variables whose names begin so are read by the C library, by Python, or by what torch and NumPy load, before the first line of a
/// job's code; a process that was started with others is another one. Found by noting every name that an import of torch 2.15 asks for, 538 of them.
#[rustfmt::skip]
const READ_AT_IMPORT: &[&str] = &[
    // the loader, the allocator and the C library: locales, time zone, where things are
    "LD_", "GLIBC", "MALLOC_", "LANG", "LC_", "TZ", "PATH", "HOME", "TMP", "TEMP", "XDG_", "USER", "LOGNAME", "LNAME", "OPENSSL_", "SSL_",
    // Python and its packages, hash seed included
    "PYTHON", "_PYTHON", "__PYVENV", "SYMPY_", "MPMATH_", "CI", "CXX", "LOG_",
    // threads and instruction sets of libraries that compute
    "OMP_", "KMP_", "GOMP_", "MKL", "BLIS_", "OPENBLAS_", "GOTO_", "NVPL_", "VECLIB_", "NUMEXPR_", "ATEN_", "ONEDNN_", "DNNL_", "NPY_", "NUMPY_",
    "XNNPACK_", "FBGEMM_", "SLEEF_", "KINETO_", "ITT_", "INTEL_", "VML_", "GFORTRAN_", "LLVM_", "MPI", "OMPI_", "I_MPI_", "ACC_",
    // torch and what it brings
    "TORCH", "PYTORCH", "AOT", "INDUCTOR_", "TRITON", "C10_", "CAFFE2_", "FUNCTORCH_", "PT_", "PT2_", "DISABLE_", "ENABLE_", "SPLIT_", "GLOO_", "NCCL",
    "UCX_", "TP_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "COMPILE_", "DUMP_", "FAKE_", "FX_", "PARTITIONER_", "UNSAFE_", "FLYDSL_", "TLX_",
    // devices, but for which of them is the slot's
    "CUDA_", "CUBLAS", "CUDNN", "CUFFT", "CUTE", "CUTLASS", "NVIDIA_", "NV_", "NVRTC", "LIBNVVM_", "PTXAS_", "CASK_", "HIP_", "ROCM_", "HSA_",
];

/// Says which devices a process sees. The slot's, not the server's: the driver reads it when a program first asks for a device.
pub const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
/// Marks an executor and every process that it starts, unless the process removes it, for who looks for leftovers.
pub const NONCE: &str = "EBB_EXECUTOR_NONCE";
/// What CUDA's matrix products need to be the same each time.
pub(crate) const CUBLAS_WORKSPACE: (&str, &str) = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8");

/// What every program of a job is given of this process's environment, whoever starts it.
pub fn given() -> impl Iterator<Item = (String, OsString)> {
    NAMES.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var_os(name)?)))
}

/// Everything that a child finds in its environment, the descriptors that it is given and its secrets, apart.
pub(crate) fn all(start: &TorchStart, package: &Path) -> BTreeMap<String, OsString> {
    let threads = start.model.threads.to_string();
    let mut all: BTreeMap<String, OsString> = given().collect();
    let fixed = [
        ("OMP_NUM_THREADS", threads.as_str()),
        ("MKL_NUM_THREADS", &threads),
        CUBLAS_WORKSPACE,
        ("PYTHONUNBUFFERED", "1"),
        ("PYTHONDONTWRITEBYTECODE", "1"),
        // Where compiled code crashes, the lines of Python that led there are the last that it says.
        ("PYTHONFAULTHANDLER", "1"),
        // The order of sets of texts is chance otherwise.
        ("PYTHONHASHSEED", "0"),
    ];
    all.extend(fixed.map(|(name, value)| (name.to_owned(), value.into())));
    all.extend(start.model.environment.iter().map(|(name, value)| (name.clone(), value.into())));
    all.insert("PYTHONPATH".to_owned(), package.into());
    if start.host.files.is_some()
        && let Some(base) = isolation::user_packages()
    {
        all.entry(isolation::USER_PACKAGES.to_owned()).or_insert_with(|| base.into());
    }
    // Which GPU it is, is for the slot to say, and not for the job.
    let visible = std::env::var_os(VISIBLE_DEVICES);
    match (start.model.device, visible) {
        (TorchDevice::Cpu, _) => all.insert(VISIBLE_DEVICES.to_owned(), OsString::new()),
        (TorchDevice::Cuda, Some(visible)) => all.insert(VISIBLE_DEVICES.to_owned(), visible),
        (TorchDevice::Cuda, None) => all.remove(VISIBLE_DEVICES),
    };
    all
}

/// Which of them have to be there before Python starts, and which come as late as a fork. None if one is no text, which no request can carry.
pub(crate) fn split(all: BTreeMap<String, OsString>) -> Option<(BTreeMap<String, String>, BTreeMap<String, String>)> {
    Some(texts(all)?.into_iter().partition(|(name, _)| is_read_at_import(name)))
}

/// Values as a request can carry them; none if one cannot.
pub(crate) fn texts(all: BTreeMap<String, OsString>) -> Option<BTreeMap<String, String>> {
    all.into_iter().map(|(name, value)| Some((name, value.into_string().ok()?))).collect()
}

pub(crate) fn is_read_at_import(name: &str) -> bool {
    name != VISIBLE_DEVICES && READ_AT_IMPORT.iter().any(|beginning| name.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_decides_before_the_first_line_is_no_matter_of_a_fork() {
        for (name, expected) in [
            ("PYTHONHASHSEED", true),
            ("OMP_NUM_THREADS", true),
            ("ATEN_CPU_CAPABILITY", true),
            ("CUDA_MODULE_LOADING", true),
            ("CUDA_VISIBLE_DEVICES", false),
            ("LEARNING_RATE", false),
            ("HF_HOME", false),
        ] {
            assert_eq!(is_read_at_import(name), expected, "{name}");
        }
    }

    #[test]
    fn nothing_is_lost_and_what_is_no_text_cannot_be_asked_for() {
        let all = |value: OsString| BTreeMap::from([("PATH".to_owned(), "/bin".into()), ("MINE".to_owned(), value)]);
        let (before, after) = split(all("x".into())).unwrap();
        assert_eq!((before["PATH"].as_str(), after["MINE"].as_str()), ("/bin", "x"));
        let no_text = std::os::unix::ffi::OsStringExt::from_vec(vec![0xff]);
        assert!(split(all(no_text)).is_none());
    }
}
