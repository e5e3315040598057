//! Where settings come from: a file, then the environment, then the command line, the later one wins. Each flag of a role has a key
//! (`KEYS`), so that there is one place that says what a value may be: the flag itself. Values of file and environment become that
//! flag's default, and are tried at once, each by itself, so that a wrong one is told with its own name.
//!
//! Secrets are in files that settings name, or in variables of the libraries that need them (`AWS_…`, `EBB_KAFKA_PASSWORD`); a password
//! inside an address is never shown.

use crate::args::Cli;
use crate::failure::Failure;
use crate::output::{self, Output, table};
use clap::error::ErrorKind;
use clap::{Arg, Command, CommandFactory};
use events_log::LogUrl;
use serde_json::json;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use storage::store::without_secrets;

/// A setting and the flags that it stands for, as (command, name of the argument); the command `""` is every one, that of a noun
/// is `noun verb`.
#[derive(Debug)]
struct Key {
    name: &'static str,
    flags: &'static [(&'static str, &'static str)],
}

const fn key(name: &'static str, flags: &'static [(&'static str, &'static str)]) -> Key {
    Key { name, flags }
}

/// Every setting.
const KEYS: &[Key] = &[
    key("url", &[("", "url")]),
    key("credential_file", &[("", "credential_file")]),
    key("ca_file", &[("", "ca_file")]),
    key("output", &[("", "output"), ("model get", "output")]),
    key("log.format", &[("", "log_format")]),
    key(
        "data",
        &[
            ("up", "data"),
            ("controller", "data"),
            ("agent", "data"),
            ("take-back", "data"),
            ("slot take-back", "data"),
            ("log verify", "data"),
            ("log export", "data"),
            ("log skip", "data"),
        ],
    ),
    key(
        "log.url",
        &[
            ("up", "log"),
            ("gateway", "log"),
            ("controller", "log"),
            ("log verify", "log"),
            ("log export", "log"),
            ("log skip", "log"),
        ],
    ),
    key("store.url", &[("up", "store"), ("gateway", "store"), ("controller", "store"), ("agent", "store")]),
    key("gateway.listen", &[("up", "listen"), ("gateway", "listen")]),
    key("gateway.allow_anyone", &[("up", "allow_anyone"), ("gateway", "allow_anyone")]),
    key("gateway.allow_host", &[("up", "allow_host"), ("gateway", "allow_host")]),
    key("gateway.dataset_root", &[("up", "dataset_root"), ("gateway", "dataset_root")]),
    key("gateway.demand_topics", &[("up", "demand_topics"), ("gateway", "demand_topics")]),
    key("controller.listen", &[("up", "listen_agents"), ("controller", "listen_agents")]),
    key("controller.policy", &[("up", "policy"), ("controller", "policy")]),
    key("controller.speeds", &[("up", "speeds"), ("controller", "speeds")]),
    key("controller.lending", &[("up", "lending"), ("controller", "lending")]),
    key("controller.name", &[("controller", "name")]),
    key("controller.listen_metrics", &[("controller", "listen_metrics")]),
    key("metrics.to_anyone", &[("controller", "metrics_to_anyone"), ("agent", "metrics_to_anyone")]),
    key("metrics.allow_host", &[("controller", "allow_host"), ("agent", "allow_host")]),
    key("controller.url", &[("gateway", "controller"), ("agent", "controller")]),
    key("controller.token_file", &[("gateway", "token_file"), ("agent", "token_file")]),
    key("agent.slots", &[("up", "slots"), ("agent", "slots")]),
    key("agent.server", &[("agent", "server")]),
    key("agent.host", &[("agent", "host")]),
    key("agent.listen", &[("agent", "listen")]),
    key("agent.python", &[("up", "python"), ("agent", "python"), ("bench", "python")]),
    key("agent.secrets", &[("up", "secrets"), ("agent", "secrets")]),
    key("agent.cache_mib", &[("up", "cache_mib"), ("agent", "cache_mib")]),
    key("agent.isolate", &[("up", "isolate"), ("agent", "isolate")]),
    key("agent.readable", &[("up", "readable"), ("agent", "readable")]),
    key("agent.threads_per_slot", &[("up", "threads_per_slot"), ("agent", "threads_per_slot")]),
    key("agent.guests", &[("up", "guests"), ("agent", "guests")]),
    key("agent.gradient_memory", &[("up", "gradient_memory"), ("agent", "gradient_memory")]),
    key("agent.devices", &[("up", "devices"), ("agent", "devices")]),
    key("agent.type", &[("up", "slot_type"), ("agent", "slot_type")]),
];

/// Prefix of the variables.
const PREFIX: &str = "EBB_";
/// Beginnings of variables that are no settings: the file's, what is written to standard error, Kafka's credentials, what jobs and executors are
/// told, and those of the project's own tests.
const OTHERS: [&str; 12] = [
    "EBB_CONFIG",
    "EBB_LOG",
    "EBB_KAFKA_USERNAME",
    "EBB_KAFKA_PASSWORD",
    workers_torch::NONCE_VARIABLE,
    "EBB_CHECKPOINT_DIR",
    "EBB_TORCH_",
    "EBB_TEST_",
    "EBB_CACHE",
    "EBB_GOLDEN",
    "EBB_SCHEDULES",
    "EBB_FRESH_SEEDS",
];
/// Names the file.
const FILE_VARIABLE: &str = "EBB_CONFIG";
const FILE_FLAG: &str = "--config";
/// Largest file: some hundred settings, and far less than memory.
const FILE_LEN_MAX: u64 = 1 << 20;

/// Where a value stands.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    File(PathBuf),
    Variable(String),
}

#[derive(Debug, Clone)]
struct Setting {
    /// One, or several of a flag that may be repeated.
    values: Vec<String>,
    source: Source,
}

/// What file and environment say.
#[derive(Debug, Default)]
pub struct Configuration {
    settings: BTreeMap<&'static str, Setting>,
    file: Option<PathBuf>,
}

impl Configuration {
    /// Reads the file that `--config` or `EBB_CONFIG` names, or else the user's own if there is one, then the environment. Every name
    /// and every value is checked.
    pub fn load(
        arguments: &[OsString],
        environment: impl Fn(&str) -> Option<OsString>,
        names: impl Iterator<Item = OsString>,
    ) -> Result<Self, Failure> {
        let named = flag_value(arguments).or_else(|| environment(FILE_VARIABLE)).map(PathBuf::from);
        let own = own_file(&environment).filter(|path| path.exists());
        let file = named.or(own);
        let mut settings = match &file {
            Some(path) => read(path)?,
            None => BTreeMap::new(),
        };
        ensure_known(names)?;
        for key in KEYS {
            let variable = variable(key.name);
            let Some(value) = environment(&variable).filter(|value| !value.is_empty()) else { continue };
            let value = value.into_string().map_err(|value| {
                Failure::Usage(format!("{variable} is `{}`, which is no UTF-8 text", value.to_string_lossy()))
            })?;
            let values = if repeats(key) { value.split(',').map(str::to_owned).collect() } else { vec![value] };
            settings.insert(key.name, Setting { values, source: Source::Variable(variable) });
        }
        let configuration = Self { settings, file };
        configuration.check()?;
        Ok(configuration)
    }

    /// The command line with these settings as defaults of its flags.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Cli::command();
        for key in KEYS {
            let Some(setting) = self.settings.get(key.name) else { continue };
            for (name, flag) in key.flags {
                command = on(command, name, |command| {
                    command.mut_arg(flag, |arg| arg.required(false).default_values(setting.values.clone()))
                });
            }
        }
        command
    }

    /// Tries each value by itself.
    fn check(&self) -> Result<(), Failure> {
        for key in KEYS {
            let Some(setting) = self.settings.get(key.name) else { continue };
            for (command, flag) in key.flags {
                let long = long(command, flag);
                for value in &setting.values {
                    let is_switch = argument(command, flag).is_some_and(|arg| !arg.get_action().takes_values());
                    if is_switch {
                        if !["true", "false"].contains(&value.as_str()) {
                            return Err(wrong(key.name, &setting.source, value, "expected true or false"));
                        }
                        continue;
                    }
                    let line = ["ebb"].into_iter().chain(command.split(' ')).filter(|part| !part.is_empty());
                    let line = line.map(str::to_owned).chain([format!("--{long}={value}")]);
                    if let Err(error) = Cli::command().try_get_matches_from(line)
                        && matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation)
                    {
                        return Err(wrong(key.name, &setting.source, value, &expected(&error)));
                    }
                }
            }
        }
        Ok(())
    }

    /// `ebb config show`: every setting, its value and where that comes from.
    pub fn show(&self, output: Output) {
        let rows: Vec<(&str, String, String)> = KEYS.iter().map(|key| self.row(key)).collect();
        if output == Output::Json {
            let settings: serde_json::Map<_, _> = rows
                .into_iter()
                .map(|(name, value, from)| {
                    (name.to_owned(), json!({"value": value, "from": from, "variable": variable(name)}))
                })
                .collect();
            output::line(json!({"file": self.file, "settings": settings}).to_string());
            return;
        }
        let rows: Vec<Vec<String>> =
            rows.into_iter().map(|(name, value, from)| vec![name.to_owned(), variable(name), value, from]).collect();
        output::line(table(&["KEY", "VARIABLE", "VALUE", "FROM"], &rows));
    }

    fn row(&self, key: &'static Key) -> (&'static str, String, String) {
        // The address of a log that makes sense holds no secret, and its parameters say which log it is.
        let hidden = |value: &String| match value.parse::<LogUrl>() {
            Ok(log) if key.name == "log.url" => log.to_string(),
            _ => without_secrets(value),
        };
        match self.settings.get(key.name) {
            Some(setting) => {
                let from = match &setting.source {
                    Source::File(path) => path.display().to_string(),
                    Source::Variable(variable) => variable.clone(),
                };
                (key.name, setting.values.iter().map(hidden).collect::<Vec<_>>().join(","), from)
            }
            None => {
                let (command, flag) = key.flags[0];
                let defaults = argument(command, flag).map(|arg| {
                    arg.get_default_values()
                        .iter()
                        .map(|value| value.to_string_lossy().into_owned())
                        .collect::<Vec<_>>()
                });
                (key.name, defaults.unwrap_or_default().join(","), "default".to_owned())
            }
        }
    }
}

/// Whatever follows `--config`. The command line is parsed only after the file is read, which gives its defaults.
fn flag_value(arguments: &[OsString]) -> Option<OsString> {
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument == FILE_FLAG {
            return arguments.next().cloned();
        }
        let value = argument.to_str().and_then(|text| text.strip_prefix(FILE_FLAG)?.strip_prefix('='));
        if let Some(value) = value {
            return Some(value.into());
        }
    }
    None
}

/// `$XDG_CONFIG_HOME/ebb/config.toml`, or the same below `~/.config`.
fn own_file(environment: &impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(folder.join("ebb/config.toml"))
}

fn read(path: &Path) -> Result<BTreeMap<&'static str, Setting>, Failure> {
    let cannot = |e: std::io::Error| {
        Failure::local(format!("the configuration file `{}` cannot be read", path.display()), e)
            .advise("name another with --config FILE or EBB_CONFIG")
    };
    let len = std::fs::metadata(path).map_err(cannot)?.len();
    if len > FILE_LEN_MAX {
        return Err(Failure::Usage(format!(
            "the configuration file `{}` has {len} bytes; expected at most {FILE_LEN_MAX}",
            path.display()
        )));
    }
    let text = std::fs::read_to_string(path).map_err(cannot)?;
    let document: toml::Table = text
        .parse()
        .map_err(|e| Failure::local(format!("the configuration file `{}` is no TOML", path.display()), Box::new(e)))?;
    let mut found = BTreeMap::new();
    collect(path, "", &document, &mut found)?;
    Ok(found)
}

/// Takes in a table of the file, and those in it.
fn collect(
    path: &Path,
    prefix: &str,
    table: &toml::Table,
    found: &mut BTreeMap<&'static str, Setting>,
) -> Result<(), Failure> {
    for (part, value) in table {
        let name = if prefix.is_empty() { part.clone() } else { format!("{prefix}.{part}") };
        if let toml::Value::Table(inner) = value {
            collect(path, &name, inner, found)?;
            continue;
        }
        let Some(key) = KEYS.iter().find(|key| key.name == name) else {
            return Err(unknown(&format!("`{name}` in `{}`", path.display()), &name, KEYS.iter().map(|key| key.name)));
        };
        let values = values(value).filter(|values| values.len() == 1 || repeats(key));
        let source = Source::File(path.to_owned());
        let values = values.ok_or_else(|| {
            let expected = if repeats(key) {
                "expected a text or a list of texts"
            } else {
                "expected one text, number, true or false"
            };
            wrong(key.name, &source, &value.to_string(), expected)
        })?;
        found.insert(key.name, Setting { values, source });
    }
    Ok(())
}

fn values(value: &toml::Value) -> Option<Vec<String>> {
    let one = |value: &toml::Value| match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Boolean(switch) => Some(switch.to_string()),
        _ => None,
    };
    match value {
        toml::Value::Array(several) => several.iter().map(one).collect(),
        single => one(single).map(|value| vec![value]),
    }
}

/// Refuses a variable that looks like a setting and is none, which would otherwise be without effect and without a word.
fn ensure_known(names: impl Iterator<Item = OsString>) -> Result<(), Failure> {
    let known: Vec<String> = KEYS.iter().map(|key| variable(key.name)).collect();
    let ours = names.filter_map(|name| name.into_string().ok());
    let is_other = |name: &String| {
        let with_ending = |other: &str| other.ends_with('_') && name.starts_with(other);
        OTHERS.iter().any(|other| name == *other || with_ending(other)) || is_service_link(name)
    };
    let mut strays = ours.filter(|name| name.starts_with(PREFIX) && !known.contains(name));
    let stray = strays.find(|name| !is_other(name));
    match stray {
        None => Ok(()),
        Some(name) => {
            Err(unknown(&format!("the environment variable {name}"), &name, known.iter().map(String::as_str)))
        }
    }
}

/// Whether Kubernetes sets it in each container for a Service whose name begins with `ebb`.
fn is_service_link(name: &str) -> bool {
    let parts = ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT_"];
    parts.iter().any(|part| name.contains(part)) || name.ends_with("_PORT")
}

fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> Failure {
    let nearest = known.max_by(|a, b| strsim::jaro_winkler(name, a).total_cmp(&strsim::jaro_winkler(name, b)));
    let hint = nearest.map(|nearest| format!(" (did you mean `{nearest}`?)")).unwrap_or_default();
    Failure::Usage(format!("{what} is no setting of Ebb{hint}; `ebb config show` lists all"))
}

fn wrong(key: &str, source: &Source, value: &str, expected: &str) -> Failure {
    let place = match source {
        Source::File(path) => format!("`{key}` in `{}`", path.display()),
        Source::Variable(variable) => format!("{variable} (`{key}`)"),
    };
    Failure::Usage(format!("{place} is `{}`: {expected}", without_secrets(value)))
}

/// What the flag's own error says of the value, without the flag.
fn expected(error: &clap::Error) -> String {
    if let Some(source) = std::error::Error::source(error) {
        return source.to_string();
    }
    let possible = error.get(clap::error::ContextKind::ValidValue).map(ToString::to_string);
    possible.map_or_else(
        || "it is not a value that the flag takes".to_owned(),
        |values| format!("expected one of {values}"),
    )
}

/// `gateway.allow_host` as `EBB_GATEWAY_ALLOW_HOST`.
fn variable(name: &str) -> String {
    format!("{PREFIX}{}", name.replace('.', "_").to_uppercase())
}

fn on(command: Command, name: &str, change: impl FnOnce(Command) -> Command) -> Command {
    match name.split_once(' ') {
        Some((noun, verb)) => command.mut_subcommand(noun, |noun| noun.mut_subcommand(verb, change)),
        None if name.is_empty() => change(command),
        None => command.mut_subcommand(name, change),
    }
}

fn argument(command: &str, flag: &str) -> Option<Arg> {
    let all = Cli::command();
    let owner = command.split_whitespace().try_fold(&all, |owner, name| owner.find_subcommand(name));
    owner?.get_arguments().find(|arg| arg.get_id() == flag).cloned()
}

fn long(command: &str, flag: &str) -> String {
    argument(command, flag).and_then(|arg| arg.get_long().map(str::to_owned)).unwrap_or_else(|| flag.replace('_', "-"))
}

fn repeats(key: &Key) -> bool {
    let (command, flag) = key.flags[0];
    argument(command, flag).is_some_and(|arg| matches!(arg.get_action(), clap::ArgAction::Append))
}

/// Reads this process's own configuration.
pub fn of_this_process(arguments: &[OsString]) -> Result<Configuration, Failure> {
    let names = std::env::vars_os().map(|(name, _)| name);
    Configuration::load(arguments, |name: &str| std::env::var_os(OsStr::new(name)), names)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::args;
    use clap::FromArgMatches;

    fn load(file: Option<&str>, variables: &[(&str, &str)]) -> Result<Configuration, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        let mut arguments: Vec<OsString> = vec!["ebb".into(), "up".into()];
        if let Some(text) = file {
            std::fs::write(&path, text).unwrap();
            arguments.extend(["--config".into(), path.into()]);
        }
        let variables: BTreeMap<String, OsString> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
        let names = variables.keys().map(OsString::from).collect::<Vec<_>>();
        Configuration::load(&arguments, |name| variables.get(name).cloned(), names.into_iter())
    }

    fn up(configuration: &Configuration, line: &str) -> args::UpArgs {
        let matches = configuration.command().try_get_matches_from(line.split(' ')).unwrap();
        match Cli::from_arg_matches(&matches).unwrap().command {
            args::Command::Up(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_key_stands_for_flags_that_exist() {
        for key in KEYS {
            for (command, flag) in key.flags {
                assert!(argument(command, flag).is_some(), "{}: {command} {flag}", key.name);
            }
        }
    }

    #[test]
    fn the_command_line_wins_over_the_environment_and_that_over_the_file() {
        let file = "[gateway]\nlisten = \"127.0.0.1:1\"\nallow_host = [\"a.example\", \"b.example\"]\n[agent]\nslots = 3\n[controller]\npolicy = \"fifo\"\n";
        let variables = [("EBB_AGENT_SLOTS", "4"), ("EBB_CONTROLLER_POLICY", "")];
        let configuration = load(Some(file), &variables).unwrap();
        let args = up(&configuration, "ebb up --listen 127.0.0.1:2");
        assert_eq!((args.api.listen.port(), args.slots, args.cell.policy), (2, Some(4), args::PolicyName::Fifo));
        assert_eq!(args.api.allow_host.len(), 2);
        let args = up(&configuration, "ebb up --slots 5 --allow-host c.example");
        assert_eq!((args.api.listen.port(), args.slots, args.api.allow_host.len()), (1, Some(5), 1));
    }

    #[test]
    fn a_required_flag_may_stand_in_the_file() {
        let file = "[log]\nurl = \"kafka://127.0.0.1:9092\"\n[store]\nurl = \"s3://bucket/ebb\"\n";
        let configuration = load(Some(file), &[]).unwrap();
        configuration.command().try_get_matches_from(["ebb", "controller"]).unwrap();
        assert!(load(None, &[]).unwrap().command().try_get_matches_from(["ebb", "controller"]).is_err());
    }

    #[test]
    fn variables_of_others_are_let_be() {
        let others =
            [("EBB_SERVICE_HOST", "10.0.0.1"), ("EBB_PORT_7878_TCP", "tcp://10.0.0.1:7878"), ("EBB_GATEWAY_PORT", "x")];
        let ours = [("EBB_LOG", "debug"), ("EBB_TEST_KAFKA", "x"), ("OTHER", "x")];
        assert!(load(None, &[&others[..], &ours[..]].concat()).is_ok());
    }

    #[test]
    fn wrong_names_and_values_are_told_by_their_own_name() {
        for (file, variables, parts) in [
            (
                Some("[gateway]\nlisen = \"x\""),
                &[][..],
                &["`gateway.lisen` in", "(did you mean `gateway.listen`?)"][..],
            ),
            (Some("[gateway]\nlisten = \"x\""), &[], &["`gateway.listen` in", "is `x`", "invalid socket address"]),
            (Some("[gateway]\nlisten = [\"x\", \"y\"]"), &[], &["expected one text"]),
            (Some("[gateway]\nallow_anyone = \"perhaps\""), &[], &["expected true or false"]),
            (Some("[controller]\npolicy = \"best\""), &[], &["`controller.policy`", "fifo"]),
            (Some("gateway = "), &[], &["is no TOML"]),
            (None, &[("EBB_GATEWAY_LISEN", "x")], &["EBB_GATEWAY_LISEN", "EBB_GATEWAY_LISTEN"]),
            (None, &[("EBB_STORE_URI", "s3://x")], &["EBB_STORE_URI", "EBB_STORE_URL"]),
            (None, &[("EBB_DTA", "d")], &["EBB_DTA", "EBB_DATA"]),
            (None, &[("EBB_LOG_URL", "nonsense")], &["EBB_LOG_URL (`log.url`) is `nonsense`", "kafka://HOST:PORT"]),
            (Some("[store]\nurl = \"ftp://x\""), &[], &["`store.url` in", "is `ftp://x`", "no kind of store"]),
            (None, &[("EBB_AGENT_SLOTS", "0")], &["EBB_AGENT_SLOTS (`agent.slots`) is `0`", "1..=1024"]),
        ] {
            let refused = load(file, variables).unwrap_err();
            let text = format!("{refused} {:?}", std::error::Error::source(&refused).map(ToString::to_string));
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
    }

    #[test]
    fn what_is_shown_hides_passwords() {
        let configuration = load(Some("[store]\nurl = \"s3://KEY:secret@bucket/ebb\""), &[]).unwrap();
        let key = KEYS.iter().find(|key| key.name == "store.url").unwrap();
        let (_, value, from) = configuration.row(key);
        assert!(!value.contains("secret") && from.ends_with("config.toml"), "{value} {from}");
        let log = "kafka://127.0.0.1:9092?prefix=mine&cells=2";
        let configuration = load(Some(&format!("[log]\nurl = \"{log}\"")), &[]).unwrap();
        let key = KEYS.iter().find(|key| key.name == "log.url").unwrap();
        assert_eq!(configuration.row(key).1, log, "what says which log it is, is shown");
        let key = KEYS.iter().find(|key| key.name == "gateway.listen").unwrap();
        assert_eq!(configuration.row(key), ("gateway.listen", "127.0.0.1:7878".to_owned(), "default".to_owned()));
    }
}
