//! Where the environment of a job's requirements is built: what the programs that build it find in their variables, which folders are theirs, and which
//! files they can reach. To install a package is to run what it brings, so they are kept from files as a job's own program is. Knows nothing of what they do.

use crate::isolation::{self, Isolation, Reach};
use crate::job::TorchError;
use crate::own_folder::OwnFolder;
use crate::variables;
use events_schema::control::TorchHost;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Variables of the server that say where packages come from.
const NAMES: &[&str] = &[
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];
/// All that begin so are settings of the two programs that install.
const PREFIXES: &[&str] = &["PIP_", "UV_"];
/// Those of them that are left out where files are kept apart: what one job's packages leave in a cache, another's would install.
const CACHES: &[&str] = &["PIP_CACHE_DIR", "UV_CACHE_DIR"];
/// Where either finds its own settings, below [`CONFIG`].
const SETTINGS: [&str; 2] = ["pip", "uv"];
/// The folder of settings of the user who runs this, below their home.
const CONFIG: &str = ".config";
/// Names that folder, for programs that have another home.
const CONFIG_VARIABLE: &str = "XDG_CONFIG_HOME";

/// Where one environment is built.
pub(crate) struct BuildSite<'a> {
    host: &'a TorchHost,
    python: &'a str,
    package: &'a Path,
    /// Home and temporary files of what builds; none where files are not kept apart.
    own: Option<OwnFolder>,
    /// The server's word on where packages come from.
    settings: BTreeMap<OsString, OsString>,
}

impl<'a> BuildSite<'a> {
    /// For a Python; `package` is the folder of the package `ebb`.
    pub fn new(host: &'a TorchHost, python: &'a str, package: &'a Path) -> io::Result<Self> {
        let own = host.files.as_ref().map(|_| OwnFolder::of(host)).transpose()?;
        let is_setting = |name: &str| NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        let is_given = |name: &str| is_setting(name) && (own.is_none() || !CACHES.contains(&name));
        let settings = std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_given)).collect();
        Ok(Self { host, python, package, own, settings })
    }

    /// The folder of the package `ebb`.
    pub fn package(&self) -> &Path {
        self.package
    }

    /// The files of what builds: its own folder and the environment's to write to, to read the Pythons, the program that installs, and
    /// what settings name. None where the operator does not want it, or the kernel has it not.
    pub fn rules(
        &self,
        folder: Option<&Path>,
        pythons: &[&str],
        program: Option<&Path>,
    ) -> Result<Option<Isolation>, TorchError> {
        let Some(own) = &self.own else { return Ok(None) };
        let settings = config().into_iter().flat_map(|config| SETTINGS.map(|name| config.join(name)));
        let reach = Reach {
            pythons: [self.python].iter().chain(pythons).map(|python| (*python).to_owned()).collect(),
            readable: vec![self.package.to_owned()],
            named: settings.chain(self.settings.values().flat_map(|value| paths_in(value))).collect(),
            writable: folder.map(Path::to_owned).into_iter().chain([own.home()]).collect(),
            program: program.map(Path::to_owned),
            ..Reach::default()
        };
        Ok(Isolation::of(self.host, reach)?)
    }

    /// Whether it should have rules, and the kernel has none.
    pub fn lacks(&self, rules: Option<&Isolation>) -> bool {
        self.own.is_some() && rules.is_none()
    }

    /// A program with nothing in its environment but what all programs of a job get.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env_clear().envs(variables::given()).stdin(Stdio::null());
        if let Some(own) = &self.own {
            command.envs(isolation::variables(own, &BTreeMap::new())).current_dir(own.home());
            command.envs(isolation::user_packages().map(|base| (isolation::USER_PACKAGES, base)));
        }
        command
    }

    /// A program that builds, with the server's settings for it and nothing of the job's.
    pub fn tool(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.command(program);
        command.envs(&self.settings);
        if self.own.is_some() {
            command.envs(config().map(|config| (CONFIG_VARIABLE, config)));
        }
        command
    }
}

fn config() -> Option<PathBuf> {
    std::env::var_os("HOME").map(|home| Path::new(&home).join(CONFIG))
}

/// Whole paths that a setting names: of packages, certificates, further settings. A list has spaces, commas or colons between them.
fn paths_in(value: &OsStr) -> Vec<PathBuf> {
    let Some(text) = value.to_str() else { return Vec::new() };
    let words = text.split(|between: char| between.is_whitespace() || between == ',');
    let words = words.map(|word| word.strip_prefix("file://").unwrap_or(word)).filter(|word| word.starts_with('/'));
    words.flat_map(|word| word.split(':')).map(PathBuf::from).filter(|path| path.is_absolute()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_setting_names_is_found_however_it_is_written() {
        for (value, expected) in [
            ("/srv/wheels", &["/srv/wheels"][..]),
            ("/srv/a https://index.internal/simple file:///srv/b", &["/srv/a", "/srv/b"]),
            ("/srv/a,/srv/b", &["/srv/a", "/srv/b"]),
            ("/etc/certificates:/srv/certificates", &["/etc/certificates", "/srv/certificates"]),
            ("https://user:word@index.internal/simple", &[]),
            ("1", &[]),
            ("", &[]),
        ] {
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(paths_in(OsStr::new(value)), expected, "{value}");
        }
    }
}
