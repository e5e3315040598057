//! A model that its user wrote in PyTorch: which code, run by which Python, how. What the code does is not known here; an executor
//! starts it (`workers/torch`), and its own reader of these fields is the Python package that is shipped with the executor.

use crate::Digest;
use crate::fields::{Fields, Problems, problem, shown};
use crate::initial::{InitialModel, parse_initial};
pub use crate::requirements::Requirements;
use minicbor::{Decode, Encode, encode};
use serde::ser::Error;
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Most characters of an entry or of a path: what a file system takes.
const TEXT_MAX: usize = 255;
/// Most variables of a job's environment: more are a file in its code.
const VARIABLES_MAX: usize = 64;
/// Most characters of one variable's value.
const VALUE_MAX: usize = 4_096;
/// Most bytes of `parameters`: they stand in the log and travel with every order.
const PARAMETERS_BYTES_MAX: usize = 16_384;
/// Most threads of one logical worker.
const THREADS_MAX: u64 = 256;
/// Variables that begin so are Ebb's own.
const OWN_PREFIX: &str = "EBB_";
/// Most characters of a secret's name.
const SECRET_NAME_MAX: usize = 64;
/// Bounds of a memory limit: with less Python does not import PyTorch, and nobody has more.
pub(crate) const MEMORY_LIMIT_MIB: RangeInclusive<u64> = 64..=67_108_864;

/// What a job of engine `torch` says of its model.
#[derive(Debug, Clone, PartialEq, Encode, Decode, Serialize)]
pub struct TorchSpec {
    /// What to train: `module:Name` of a class, or `module` whose `ebb.fit` call says it.
    #[n(0)]
    pub entry: String,
    /// The packed folder that holds the module, by its content; it is uploaded before the job is submitted.
    #[n(1)]
    pub code: Digest,
    /// The Python that runs it, with PyTorch installed: a path on the servers. None: the one that each server has for such jobs.
    #[n(2)]
    pub python: Option<String>,
    /// Threads that one logical worker computes with. Part of what decides bits.
    #[n(3)]
    pub threads: u16,
    /// What it computes on. Part of what decides bits.
    #[n(4)]
    pub device: TorchDevice,
    /// Variables that it finds in its environment.
    #[n(5)]
    pub environment: BTreeMap<String, String>,
    /// What the code reads as `self.parameters`.
    #[n(6)]
    pub parameters: JsonObject,
    /// What its environment holds beside its Python; none: nothing is built for it.
    #[n(7)]
    pub requirements: Option<Requirements>,
    /// Variables whose values each server reads from files of its operator: the variable's name, and the file's.
    #[n(8)]
    #[cbor(skip_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, String>,
    /// Most memory of the processes that run its code on one slot, in MiB; none: what the machine has.
    #[n(9)]
    pub memory_limit_mib: Option<u32>,
    /// What it begins with instead of what its code makes.
    #[n(10)]
    #[serde(rename = "from", skip_serializing_if = "Option::is_none")]
    pub initial: Option<InitialModel>,
}

/// What a model computes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TorchDevice {
    /// The host's processor.
    #[n(0)]
    Cpu,
    /// The GPU that is the slot's.
    #[n(1)]
    Cuda,
}

/// A JSON object, kept as its text with sorted keys.
#[derive(Debug, Clone, PartialEq, Eq, Decode)]
#[cbor(transparent)]
pub struct JsonObject(#[n(0)] String);

impl JsonObject {
    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl Default for JsonObject {
    fn default() -> Self {
        Self("{}".to_owned())
    }
}

impl<C> Encode<C> for JsonObject {
    fn encode<W: encode::Write>(
        &self,
        e: &mut minicbor::Encoder<W>,
        context: &mut C,
    ) -> Result<(), encode::Error<W::Error>> {
        self.0.encode(e, context)
    }
}

impl Serialize for JsonObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Bytes of a log may hold what is no JSON; then the spec cannot be shown, so it is not taken.
        let value: Value = serde_json::from_str(&self.0).map_err(S::Error::custom)?;
        value.serialize(serializer)
    }
}

/// How a job says on what it computes.
pub(crate) const DEVICES: [(&str, TorchDevice); 2] = [("cpu", TorchDevice::Cpu), ("cuda", TorchDevice::Cuda)];

impl TorchSpec {
    /// Reads the fields of `model`, `kind` apart.
    pub(crate) fn read(f: &mut Fields<'_>) -> Option<Self> {
        let entry = f.text_required("entry", ENTRY_EXPECTED, parse_entry);
        let code = f.text_required("code", CODE_EXPECTED, |text| text.parse().map_err(|_| CODE_EXPECTED.to_owned()));
        let python = f.text("python", parse_python);
        let threads = f.integer("threads", 1..=THREADS_MAX).unwrap_or(1) as u16;
        let device = f.word("device", &DEVICES).unwrap_or(TorchDevice::Cpu);
        let environment = f.nested("environment", parse_environment).unwrap_or_default();
        let parameters = f.nested("parameters", parse_parameters).unwrap_or_default();
        let initial = f.nested("from", parse_initial);
        let requirements = f.nested("requirements", Requirements::parse);
        let secrets = f.nested("secrets", |path, value| parse_secrets(path, value, &environment)).unwrap_or_default();
        let memory_limit_mib = f.integer("memory_limit_mib", MEMORY_LIMIT_MIB).map(|mib| mib as u32);
        Some(Self {
            entry: entry?,
            code: code?,
            python,
            threads,
            device,
            environment,
            parameters,
            requirements,
            secrets,
            memory_limit_mib,
            initial,
        })
    }
}

impl TorchSpec {
    /// Whether it may be given, by the rule of the doors. Asked where jobs are submitted; what stands in a log is read whatever it is.
    pub(crate) fn ensure_fit(&self) -> Result<(), Problems> {
        // A file is no module, though `train.py` could be the name of one.
        let module = self.entry.split(':').next().unwrap_or_default();
        let is_file = module.ends_with(".py");
        if is_file { Err(problem("model.entry", shown(&self.entry.clone().into()), ENTRY_EXPECTED)) } else { Ok(()) }
    }
}

const ENTRY_EXPECTED: &str =
    "`module:Class`, for example `train:Job` for class Job in train.py, or `module` alone where it calls ebb.fit";
const CODE_EXPECTED: &str =
    "the digest of an uploaded folder, 64 hexadecimal characters; `ebb submit` packs and uploads a folder itself";

fn parse_entry(text: &str) -> Result<String, String> {
    let identifier = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let (module, name) = text.split_once(':').map_or((text, None), |(module, name)| (module, Some(name)));
    let fits = module.split('.').all(identifier) && name.is_none_or(identifier) && text.len() <= TEXT_MAX;
    if fits { Ok(text.to_owned()) } else { Err(ENTRY_EXPECTED.to_owned()) }
}

pub(crate) fn parse_python(text: &str) -> Result<String, String> {
    let absolute = text.starts_with('/') && text.len() <= TEXT_MAX && !text.chars().any(char::is_control);
    if absolute { Ok(text.to_owned()) } else { Err("the absolute path of a Python on the servers".to_owned()) }
}

pub(crate) fn parse_environment(path: &str, value: &Value) -> Result<BTreeMap<String, String>, Problems> {
    let expected = format!("up to {VARIABLES_MAX} names with texts of at most {VALUE_MAX} characters");
    let Some(object) = value.as_object().filter(|o| o.len() <= VARIABLES_MAX) else {
        return Err(problem(path, shown(value), expected));
    };
    let mut environment = BTreeMap::new();
    for (name, value) in object {
        let at = || format!("{path}.{name}");
        ensure_variable(&at(), name, value)?;
        match value.as_str().filter(|text| text.chars().count() <= VALUE_MAX && !text.contains('\0')) {
            Some(text) => environment.insert(name.clone(), text.to_owned()),
            None => return Err(problem(at(), shown(value), format!("a text of at most {VALUE_MAX} characters"))),
        };
    }
    Ok(environment)
}

fn ensure_variable(at: &str, name: &str, value: &Value) -> Result<(), Problems> {
    let fits = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && name.len() <= TEXT_MAX;
    if fits && !name.starts_with(OWN_PREFIX) {
        return Ok(());
    }
    let expected = format!("a name of letters, digits and `_` that does not begin with {OWN_PREFIX}");
    Err(problem(at.to_owned(), shown(value), expected))
}

/// Stands for a value that may be a secret's.
pub(crate) const HIDDEN: &str = "not shown";

/// Of a secret only its file's name is said; whoever writes its value here by mistake is refused without an echo of it.
pub(crate) fn parse_secrets(
    path: &str,
    value: &Value,
    environment: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Problems> {
    let Some(object) = value.as_object().filter(|o| o.len() <= VARIABLES_MAX) else {
        let expected = format!("up to {VARIABLES_MAX} variables with names of secrets, such as {{HF_TOKEN: hf}}");
        return Err(problem(path, HIDDEN, expected));
    };
    let mut secrets = BTreeMap::new();
    for (name, value) in object {
        let at = format!("{path}.{name}");
        ensure_variable(&at, name, &Value::from(HIDDEN))?;
        if environment.contains_key(name) {
            return Err(problem(at, HIDDEN, "a variable that is not in `environment` as well"));
        }
        let file = value.as_str().filter(|text| {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            !text.is_empty() && text.len() <= SECRET_NAME_MAX && !text.starts_with('.') && text.chars().all(plain)
        });
        let expected = format!(
            "the name of a secret, up to {SECRET_NAME_MAX} letters, digits, `.`, `-` and `_`; its value is in a file of this name on the servers"
        );
        let file = file.ok_or_else(|| problem(at, HIDDEN, expected))?;
        secrets.insert(name.clone(), file.to_owned());
    }
    Ok(secrets)
}

fn parse_parameters(path: &str, value: &Value) -> Result<JsonObject, Problems> {
    let text = value.to_string();
    if !value.is_object() || text.len() > PARAMETERS_BYTES_MAX {
        let expected = format!("an object of at most {PARAMETERS_BYTES_MAX} bytes of JSON");
        return Err(problem(path, shown(value), expected));
    }
    // What is read from the log has to be what was written to it, to the last digit.
    if !serde_json::from_str::<Value>(&text).is_ok_and(|read| read == *value) {
        return Err(problem(path, shown(value), "numbers of at most 15 digits"));
    }
    Ok(JsonObject(text))
}
