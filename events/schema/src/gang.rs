//! A program that its user brings whole: which command, in which code, and what becomes of it when a slot goes. It runs as a *gang*: one process of it
//! on each slot of the job, all at once or none. What it does is not known here, so whatever a job says of data, steps and updates has no
//! meaning for it and is refused.

use crate::Digest;
use crate::fields::{Fields, Problems, problem, shown};
use crate::torch::{self, DEVICES, MEMORY_LIMIT_MIB, Requirements, TorchDevice, parse_environment, parse_python};
use minicbor::{Decode, Encode};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Restarts that failures of a program may cost if its spec does not say: a program that fails at once fails each time, and whoever wrote it waits.
pub const MAX_RESTARTS: u64 = 3;
/// Most words of a command.
const WORDS_MAX: usize = 256;
/// Most characters of one of them.
const WORD_MAX: usize = 4_096;
/// Most bytes of all: they stand in the log and travel with every order.
const COMMAND_BYTES_MAX: usize = 16_384;
/// A program that takes longer to save itself is better off to save while it runs.
const GRACE_MS_MAX: u64 = 3_600_000;
const GRACE_MS: u64 = 30_000;
/// Looking more often than every second would keep a disk busy with looking.
const SAVE_EVERY_MS_MIN: u64 = 1_000;
const SAVE_EVERY_MS_MAX: u64 = 86_400_000;
const SAVE_EVERY_MS: u64 = 60_000;
/// Variables that say who a member is: nobody else may.
pub const OWN_VARIABLES: [&str; 7] =
    ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"];

/// What a job of engine `command` says of its program.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct CommandSpec {
    /// The program and its arguments; no shell reads them.
    #[n(0)]
    pub command: Vec<String>,
    /// The packed folder that it runs in, by its content; it is uploaded before the job is submitted. None: an empty folder.
    #[n(1)]
    pub code: Option<Digest>,
    /// The Python that `python` and `python3` mean: a path on the servers. None: the one that each server has.
    #[n(2)]
    pub python: Option<String>,
    /// Variables that it finds in its environment.
    #[n(3)]
    pub environment: BTreeMap<String, String>,
    /// Whether it may be restarted at another size.
    #[n(4)]
    pub elastic: Elastic,
    /// Time from SIGTERM to the kill, where no slot's deadline leaves less.
    #[n(5)]
    pub grace_ms: u64,
    /// How often the checkpoint folder is looked at while the program runs.
    #[n(6)]
    pub save_every_ms: u64,
    /// What the slots of its processes have to be. None: any, and it sees no device on those that are one.
    #[n(7)]
    pub device: Option<TorchDevice>,
    /// What the environment of its Python holds beside what is there; none: nothing is built for it.
    #[n(8)]
    pub requirements: Option<Requirements>,
    /// Variables whose values each server reads from files of its operator: the variable's name, and the file's.
    #[n(9)]
    #[cbor(skip_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, String>,
    /// Most memory of each of its processes and what that starts, in MiB; none: what the machine has.
    #[n(10)]
    pub memory_limit_mib: Option<u32>,
}

/// How many members a gang may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Elastic {
    /// As many as its spec says, or it waits.
    #[n(0)]
    Fixed,
    /// Any number within the bounds of its spec; each change of it is a restart.
    #[n(1)]
    Restart,
}

impl CommandSpec {
    /// Reads the fields of `model`, `kind` apart.
    pub(crate) fn read(f: &mut Fields<'_>) -> Option<Self> {
        let command = f.nested_required("command", COMMAND_EXPECTED, parse_command);
        let code = f.text("code", |text| {
            text.parse().map_err(|_| "the digest of an uploaded folder, 64 hexadecimal characters".to_owned())
        });
        let python = f.text("python", parse_python);
        let environment = f.nested("environment", parse_variables).unwrap_or_default();
        let sizes = [("fixed", Elastic::Fixed), ("restart", Elastic::Restart)];
        let elastic = f.word("elastic", &sizes).unwrap_or(Elastic::Fixed);
        let grace_ms = f.integer("grace_ms", 0..=GRACE_MS_MAX).unwrap_or(GRACE_MS);
        let save_every_ms = f.integer("save_every_ms", SAVE_EVERY_MS_MIN..=SAVE_EVERY_MS_MAX).unwrap_or(SAVE_EVERY_MS);
        // `cpu` is what is meant where nothing is said.
        let device = f.word("device", &DEVICES).filter(|device| *device != TorchDevice::Cpu);
        let requirements = f.nested("requirements", Requirements::parse);
        let secrets = f.nested("secrets", |path, value| parse_secrets(path, value, &environment));
        let memory_limit_mib = f.integer("memory_limit_mib", MEMORY_LIMIT_MIB).map(|mib| mib as u32);
        Some(Self {
            command: command?,
            code,
            python,
            environment,
            elastic,
            grace_ms,
            save_every_ms,
            device,
            requirements,
            secrets: secrets.unwrap_or_default(),
            memory_limit_mib,
        })
    }
}

const COMMAND_EXPECTED: &str = "a list of words, the program first, for example [python, train.py]";

fn parse_command(path: &str, value: &Value) -> Result<Vec<String>, Problems> {
    let words = value.as_array().filter(|words| (1..=WORDS_MAX).contains(&words.len()));
    let fits = |word: &str| word.chars().count() <= WORD_MAX && !word.contains('\0');
    let words: Option<Vec<String>> = words
        .and_then(|words| words.iter().map(|w| w.as_str().filter(|word| fits(word)).map(str::to_owned)).collect())
        .filter(|words: &Vec<String>| words.iter().map(String::len).sum::<usize>() <= COMMAND_BYTES_MAX)
        .filter(|words| words.first().is_some_and(|program| !program.is_empty()));
    words.ok_or_else(|| problem(path, shown(value), COMMAND_EXPECTED))
}

fn parse_variables(path: &str, value: &Value) -> Result<BTreeMap<String, String>, Problems> {
    let environment = parse_environment(path, value)?;
    match OWN_VARIABLES.iter().find(|name| environment.contains_key(**name)) {
        Some(name) => {
            let given = environment.get(*name).map(String::as_str).unwrap_or_default();
            Err(problem(format!("{path}.{name}"), format!("{given:?}"), OTHER_NAME))
        }
        None => Ok(environment),
    }
}

const OTHER_NAME: &str = "another name: Ebb says this to each member";

fn parse_secrets(
    path: &str,
    value: &Value,
    environment: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Problems> {
    let secrets = torch::parse_secrets(path, value, environment)?;
    match OWN_VARIABLES.iter().find(|name| secrets.contains_key(**name)) {
        Some(name) => Err(problem(format!("{path}.{name}"), torch::HIDDEN, OTHER_NAME)),
        None => Ok(secrets),
    }
}
