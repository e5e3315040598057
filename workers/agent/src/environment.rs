//! What of the agent's environment an executor gets. It runs what jobs ask for, so it gets what it needs by name, and nothing else: not the
//! credentials of the log, not what the machine's operator happens to have set. Next file: `process.rs`.

use std::ffi::{OsStr, OsString};
use workers_torch::VISIBLE_DEVICES_VARIABLE;

/// Variables that executors get, each with its reason.
const NAMES: &[&str] = &[
    // where programs, libraries, settings and temporary files are
    "PATH",
    "LD_LIBRARY_PATH",
    "HOME",
    "TMPDIR",
    // what its messages and times are written in
    "LANG",
    "LC_ALL",
    "TZ",
    // the way to the object store: who vouches for it, and what stands between
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    // which GPUs there are
    VISIBLE_DEVICES_VARIABLE,
    "NVIDIA_VISIBLE_DEVICES",
    // how much it says, and how many threads it may use
    "EBB_LOG",
    "RUST_LOG",
    "RUST_BACKTRACE",
    "RAYON_NUM_THREADS",
];

/// Variables whose names begin so are the object store's settings and credentials: whoever can start jobs reads and writes that store through
/// them anyway. Or they say where packages come from (pip, uv): what builds a job's environment gets them, the job does not.
const PREFIXES: &[&str] = &["AWS_", "GOOGLE_", "AZURE_", "PIP_", "UV_"];

/// Those of the given variables that an executor gets.
pub(crate) fn for_executors(
    all: impl IntoIterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = (OsString, OsString)> {
    all.into_iter().filter(|(name, _)| is_passed_on(name))
}

fn is_passed_on(name: &OsStr) -> bool {
    // A name that is no text is nobody's here.
    name.to_str().is_some_and(|name| NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_of_the_store_are_passed_on_and_those_of_the_log_are_not() {
        for (name, expected) in [
            ("AWS_SECRET_ACCESS_KEY", true),
            ("GOOGLE_SERVICE_ACCOUNT", true),
            ("PATH", true),
            ("EBB_LOG", true),
            ("PIP_INDEX_URL", true),
            ("UV_FIND_LINKS", true),
            ("EBB_KAFKA_PASSWORD", false),
            ("GITHUB_TOKEN", false),
            ("MY_AWS_KEY", false),
            ("LD_PRELOAD", false),
        ] {
            assert_eq!(is_passed_on(OsStr::new(name)), expected, "{name}");
        }
    }
}
