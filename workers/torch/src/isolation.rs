//! Which files the programs of jobs can reach, where the kernel has Landlock: their code, their environment, what their operator names, folders of
//! their own to write to, and what every program on a machine needs. Everything else is refused by the kernel, also to what they start.
//!
//! A set of rules is made here once for each process. One that is started here is started by a thread that has taken the rules on, so it has
//! them before its first instruction; one that is forked from a warm process is given them as a descriptor, and takes them on before it reads a
//! line of the job's (`python/ebb/forkserver.py`). Not files: network, memory and processors are as they are.

use crate::own_folder::OwnFolder;
use crate::spawn::spawn;
use events_schema::control::{FileAccess, TorchHost};
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathFd, PathFdError, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, Scope, path_beneath_rules,
};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// The newest rules that are asked for; what a kernel does not know of them it leaves out.
const NEWEST: ABI = ABI::V6;
/// What programs of a machine need to run at all: programs, libraries, settings, certificates, where names are resolved, and what the kernel tells.
/// What the kernel tells of processes that are not a job's, it refuses by itself.
#[rustfmt::skip]
const SYSTEM: &[&str] = &[
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/etc", "/proc", "/sys", "/nix", "/gnu", "/run/current-system",
    "/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager", "/var/lib/ca-certificates", "/var/cache/fontconfig",
];
/// Devices that any program may use. Disks and the machine's memory are not among them, whoever runs the agent.
const DEVICES: &[&str] =
    &["null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "dri", "kfd", "infiniband"];
/// All devices whose names begin so are GPUs.
const GPUS: &str = "nvidia";
/// Where CUDA writes the names of its threads as it begins, and gives up with error 304 where it cannot. Which processes those are is known only
/// once they run, so a program that computes on a GPU may write to all of it that the kernel lets its user write; memory and such of processes
/// that are not its own the kernel refuses all the same, because they have not its rules.
const PROCESSES: &str = "/proc";
/// What processes share through memory.
const SHARED_MEMORY: &str = "/dev/shm";
/// What is taken of the folder that a Python is in. Never all of it: a Python at `~/bin/python` would open a home.
const OF_PYTHON: &[&str] = &["bin", "lib", "lib64", "libexec", "include", "share", "etc", "ssl", "pyvenv.cfg"];
/// The variable by which Python finds the packages that the user who runs this installed for themselves, whatever its home is.
pub const USER_PACKAGES: &str = "PYTHONUSERBASE";
/// Files that are read of a folder of tensors.
const TENSORS: &str = "safetensors";
const ABOUT_TENSORS: &str = "json";

/// Why the files of a program cannot be kept from it. All: stop this executor.
#[derive(Debug, thiserror::Error)]
pub enum IsolationError {
    /// Its agent would not have started with this kernel.
    #[error("this server has no Landlock, and its operator wants jobs isolated")]
    NotOffered,
    /// The kernel refuses the rules.
    #[error("the files of a job's program cannot be kept from it")]
    Rules(#[from] RulesetError),
    /// A descriptor.
    #[error("the operating system refuses")]
    System(#[from] io::Error),
    /// What Ebb itself put there for the program is gone.
    #[error("the program's own folder `{path}` cannot be opened to it")]
    NotThere {
        /// The folder, or file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: PathFdError,
    },
    /// Refuse: jobs could have put it there, and it would be started without any rules.
    #[error(
        "`python:` is `{0}`, which programs of jobs can write; name one that the operator of the servers has installed"
    )]
    Planted(PathBuf),
}

/// Whether this kernel can do it.
#[must_use]
pub fn is_offered() -> bool {
    let asked = Ruleset::default().set_compatibility(CompatLevel::HardRequirement).handle_access(AccessFs::ReadFile);
    asked.and_then(Ruleset::create).is_ok()
}

/// What is so for programs of jobs because this kernel has not all kinds of rules, of which newer ones have more.
#[must_use]
pub fn shortcomings() -> Vec<&'static str> {
    let keeps = |access: AccessFs| {
        let hard = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        hard.handle_access(access).and_then(Ruleset::create).is_ok()
    };
    let keeps_signals = || {
        let hard = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        hard.scope(Scope::Signal).and_then(Ruleset::create).is_ok()
    };
    let known = [
        (keeps(AccessFs::Refer), "they cannot move anything from one folder to another (before Linux 5.19)"),
        (keeps(AccessFs::Truncate), "they can empty this user's files by their paths (before Linux 6.2)"),
        (
            keeps(AccessFs::IoctlDev),
            "they can send commands to any device that is open to this user (before Linux 6.10)",
        ),
        (keeps_signals(), "they can send signals to other processes of this user (before Linux 6.12)"),
    ];
    known.into_iter().filter(|(kept, _)| !kept).map(|(_, otherwise)| otherwise).collect()
}

/// What one program may reach beside what all may.
#[derive(Debug, Default)]
pub struct Reach {
    /// Pythons that it uses, as they are named.
    pub pythons: Vec<String>,
    /// Files and folders that Ebb itself put there for it.
    pub readable: Vec<PathBuf>,
    /// What its operator names for it alone, but for what is hidden in that.
    pub named: Vec<PathBuf>,
    /// Folders of its own.
    pub writable: Vec<PathBuf>,
    /// Tensors at a path that the job names.
    pub tensors: Option<PathBuf>,
    /// A program that the job names.
    pub program: Option<PathBuf>,
    /// Whether it computes on a GPU.
    pub gpu: bool,
}

impl Reach {
    /// Leaves out what the job names where jobs write: it may be a link to anything, such as keys of the agent's user.
    fn leave_planted(&mut self, written: &[PathBuf]) {
        let own = |path: &Path| !is_planted(path, written);
        self.pythons.retain(|python| where_is(Path::new(python)).is_some_and(|path| own(&path)));
        self.tensors.take_if(|path| !own(path));
        self.program.take_if(|path| !where_is(path).is_some_and(|path| own(&path)));
    }
}

/// Rules for one program and all that it starts.
#[derive(Debug)]
pub struct Isolation {
    rules: RulesetCreated,
    /// The same, to be given away.
    descriptor: OwnedFd,
}

impl Isolation {
    /// Of a program on this server; none where the operator does not want it, or the kernel has it not.
    pub fn of(host: &TorchHost, mut reach: Reach) -> Result<Option<Self>, IsolationError> {
        let Some(access) = &host.files else { return Ok(None) };
        reach.leave_planted(&written(Path::new(&host.folder)));
        let reach = &reach;
        if !is_offered() {
            return if access.required { Err(IsolationError::NotOffered) } else { Ok(None) };
        }
        let all = AccessFs::from_all(NEWEST);
        // Whoever runs as root could make a disk's device for itself.
        let write = all & !(AccessFs::MakeChar | AccessFs::MakeBlock);
        let device =
            AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
        let rules = Ruleset::default()
            .handle_access(all)?
            // It may not end processes that are not its own; the agent and other executors are of the same user.
            .scope(Scope::Signal)?
            .create()?
            .add_rules(path_beneath_rules(there(readable(host, access, reach)), AccessFs::from_read(NEWEST)))?
            .add_rules(path_beneath_rules(own(&reach.readable)?, AccessFs::from_read(NEWEST)))?
            .add_rules(path_beneath_rules(there(devices()), device))?
            .add_rules(path_beneath_rules(there(vec![SHARED_MEMORY.into()]), write & !AccessFs::Execute))?
            .add_rules(path_beneath_rules(own(&reach.writable)?, write))?;
        let rules = if reach.gpu {
            rules.add_rules(path_beneath_rules([PROCESSES], AccessFs::WriteFile | AccessFs::Truncate))?
        } else {
            rules
        };
        let rules = match reach.tensors.as_deref().filter(|path| path.is_dir() && !tensors(path).is_empty()) {
            // Its names alone; of what is in it, see `tensors`.
            Some(folder) => rules.add_rules(path_beneath_rules([folder], BitFlags::from(AccessFs::ReadDir)))?,
            None => rules,
        };
        let descriptor: Option<OwnedFd> = rules.try_clone()?.into();
        Ok(Some(Self { rules, descriptor: descriptor.ok_or(IsolationError::NotOffered)? }))
    }

    /// Starts a program that has them, or one without.
    pub fn spawn(of: Option<&Self>, command: &mut Command) -> io::Result<Child> {
        let Some(isolation) = of else { return spawn(command) };
        let rules = isolation.rules.try_clone()?;
        // A thread takes them on for itself alone, and whatever it starts has them.
        let started = std::thread::scope(|scope| {
            let start = move || rules.restrict_self().map_err(io::Error::other).and_then(|_| spawn(command));
            std::thread::Builder::new()
                .name("ebb-start".to_owned())
                .spawn_scoped(scope, start)?
                .join()
                .map_err(|_| io::Error::other("the thread that starts a program panicked"))
        });
        started?
    }
}

impl AsFd for Isolation {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Variables of a program that has a folder of its own: its home is not open to it. Those that its job sets stay.
#[must_use]
pub fn variables(own: &OwnFolder, set: &BTreeMap<String, String>) -> BTreeMap<String, OsString> {
    let variables = [("HOME", own.home()), ("TMPDIR", own.temporary().to_owned())];
    let free = variables.into_iter().filter(|(name, _)| !set.contains_key(*name));
    free.map(|(name, path)| (name.to_owned(), path.into())).collect()
}

/// Where packages are that the user who runs this installed for themselves, which a Python with another home would not find. Of what is there
/// only those can be read.
#[must_use]
pub fn user_packages() -> Option<PathBuf> {
    Some(PathBuf::from(std::env::var_os("HOME")?).join(".local")).filter(|base| base.join("lib").is_dir())
}

/// Of what was found, what rules can be made for. What has gone meanwhile needs none; of the rest it is said, once for each program.
fn there(mut found: Vec<PathBuf>) -> Vec<PathBuf> {
    found.retain(|path| match PathFd::new(path) {
        Ok(_) => true,
        Err(PathFdError::OpenCall { source, .. }) if source.kind() == io::ErrorKind::NotFound => false,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "it should be open to the job's program, and stays closed");
            false
        }
    });
    found
}

/// What Ebb itself put there: without it the program could do nothing, and nobody would know why.
fn own(paths: &[PathBuf]) -> Result<&[PathBuf], IsolationError> {
    for path in paths {
        PathFd::new(path).map_err(|source| IsolationError::NotThere { path: path.clone(), source })?;
    }
    Ok(paths)
}

/// What of a Python programs of jobs could not read, because it lies within what is hidden.
#[must_use]
pub fn hidden_of_python(python: &str, hidden: &[PathBuf]) -> Option<PathBuf> {
    let hidden: Vec<PathBuf> = hidden.iter().filter_map(|path| fs::canonicalize(path).ok()).collect();
    let mut parts = of_python(Path::new(python)).into_iter().filter_map(|part| fs::canonicalize(part).ok());
    parts.find(|part| hidden.iter().any(|hidden| part.starts_with(hidden)))
}

fn readable(host: &TorchHost, access: &FileAccess, reach: &Reach) -> Vec<PathBuf> {
    let hidden: Vec<PathBuf> =
        access.hidden.iter().chain(&host.secrets).filter_map(|path| fs::canonicalize(path).ok()).collect();
    let mut found = Vec::new();
    let library_path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let libraries = std::env::split_paths(&library_path).filter(|path| path.is_absolute());
    let named = access.readable.iter().map(PathBuf::from).chain(reach.named.iter().cloned());
    for root in SYSTEM.iter().map(PathBuf::from).chain(named).chain(libraries) {
        open(&root, &hidden, &mut found);
    }
    let of_job = reach.pythons.iter().flat_map(|python| of_python(Path::new(python)));
    let of_job = of_job.chain(user_packages().map(|base| base.join("lib")));
    let of_job = of_job.chain(reach.tensors.iter().flat_map(|path| tensors(path)));
    let of_job = of_job.chain(reach.program.iter().filter_map(|path| where_is(path)).filter(|path| is_program(path)));
    of_job.for_each(|path| open(&path, &hidden, &mut found));
    found
}

/// Opens a folder but for what is hidden in it. Rules can only add, so where something is, its neighbours are opened one by one.
fn open(root: &Path, hidden: &[PathBuf], found: &mut Vec<PathBuf>) {
    // Links are opened as where they lead. What is not there needs no rule.
    let Ok(root) = fs::canonicalize(root) else { return };
    if hidden.iter().any(|hidden| root.starts_with(hidden)) {
        return;
    }
    if !hidden.iter().any(|hidden| hidden.starts_with(&root)) {
        found.push(root);
        return;
    }
    for entry in fs::read_dir(&root).into_iter().flatten().flatten() {
        // A link in it may lead around what is hidden.
        if !entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
            open(&entry.path(), hidden, found);
        }
    }
}

fn devices() -> Vec<PathBuf> {
    let named = DEVICES.iter().map(|name| Path::new("/dev").join(name));
    let all = fs::read_dir("/dev").into_iter().flatten().flatten();
    let gpus = all.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(GPUS.as_bytes()));
    named.chain(gpus.map(|entry| entry.path())).collect()
}

/// A Python where it is named, where that leads, and what it was made from. A job may name any file so, and what is no program is not opened.
fn of_python(python: &Path) -> Vec<PathBuf> {
    let Some(python) = where_is(python).filter(|python| is_program(python)) else { return Vec::new() };
    let mut programs = vec![python.clone()];
    programs.extend(fs::canonicalize(&python));
    let mut found = programs.clone();
    // An environment's Python says where the one below it is.
    for program in programs.clone() {
        let settings = program.parent().and_then(Path::parent).map(|prefix| prefix.join("pyvenv.cfg"));
        let text = settings.and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
        let value = |line: &str| {
            line.split_once('=').map(|(name, value)| (name.trim().to_owned(), PathBuf::from(value.trim())))
        };
        programs.extend(
            text.lines().filter_map(value).filter(|(name, _)| name == "home").map(|(_, home)| home.join("python")),
        );
    }
    let prefixes = programs.iter().filter_map(|program| program.parent().filter(|bin| bin.ends_with("bin"))?.parent());
    found.extend(prefixes.flat_map(|prefix| OF_PYTHON.iter().map(move |name| prefix.join(name))));
    found
}

fn where_is(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return std::path::absolute(program).ok();
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// A file of tensors, or those of a folder: a job may name any path, and must not read by that what is something else.
fn tensors(path: &Path) -> Vec<PathBuf> {
    let is = |path: &Path, extension: &str| path.extension().is_some_and(|found| found == extension) && path.is_file();
    if !path.is_dir() {
        return if is(path, TENSORS) { vec![path.to_owned()] } else { Vec::new() };
    }
    let files: Vec<PathBuf> = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    if !files.iter().any(|file| is(file, TENSORS)) {
        return Vec::new();
    }
    files.into_iter().filter(|file| is(file, TENSORS) || is(file, ABOUT_TENSORS)).collect()
}

/// A Python is asked what it has, and imports PyTorch for others, without any rules. So it must not be a job's own work. `folder` is the
/// server's for what executors share, with all that programs of jobs can write to.
pub(crate) fn refuse_planted(python: &str, folder: &Path) -> Result<(), IsolationError> {
    let Some(python) = where_is(Path::new(python)) else { return Ok(()) };
    if is_planted(&python, &written(folder)) { Err(IsolationError::Planted(python)) } else { Ok(()) }
}

/// Where programs of jobs write, or what they hold is found.
fn written(folder: &Path) -> Vec<PathBuf> {
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    [folder, Path::new(SHARED_MEMORY), Path::new("/proc")].map(real).into()
}

/// Whether any part of the way to a file is there. Where the way ends says too little: a link in such a place may lead to a Python of the system,
/// which then reads settings beside the link.
fn is_planted(path: &Path, written: &[PathBuf]) -> bool {
    let parts = path.ancestors().filter_map(|part| fs::canonicalize(part).ok());
    parts.chain([path.to_owned()]).any(|real| written.iter().any(|place| real.starts_with(place)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::symlink;

    fn host(folder: &Path) -> TorchHost {
        let (python, secrets, cache_mib, warm) = ("python3".to_owned(), None, None, None);
        let files = FileAccess { required: true, ..FileAccess::default() };
        TorchHost { folder: folder.display().to_string(), python, secrets, cache_mib, warm, files: Some(files) }
    }

    fn shell(isolation: &Isolation, script: &str) -> bool {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        Isolation::spawn(Some(isolation), &mut command).unwrap().wait().unwrap().success()
    }

    #[test]
    fn a_program_reaches_what_is_its_own_and_the_systems_and_nothing_else() {
        let all = tempfile::tempdir().unwrap();
        let at = |name: &str| all.path().join(name);
        for folder in ["code", "own", "data/rows", "data/service"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        for file in ["code/train.py", "data/rows/0", "data/service/token", "model.safetensors", "other"] {
            fs::write(at(file), "x").unwrap();
        }
        symlink(at("data/service"), at("data/around")).unwrap();
        let mut host = host(&at("shared"));
        let access = host.files.as_mut().unwrap();
        access.readable.push(at("data").display().to_string());
        access.hidden.push(at("data/service").display().to_string());
        let reach = Reach {
            readable: vec![at("code")],
            writable: vec![at("own")],
            tensors: Some(at("model.safetensors")),
            ..Reach::default()
        };
        let isolation = Isolation::of(&host, reach).unwrap().unwrap();
        let runs = |script: &str| shell(&isolation, &script.replace("$ALL", all.path().to_str().unwrap()));
        for works in [
            "cat $ALL/code/train.py $ALL/data/rows/0 $ALL/model.safetensors /etc/hostname /proc/self/status > /dev/null",
            "ls $ALL/data/rows && mkdir $ALL/own/a && echo x > $ALL/own/a/b && mv $ALL/own/a/b $ALL/own/c && sh -c 'cat $ALL/own/c'",
            "ls /usr/bin > /dev/null && head -c 8 /dev/urandom > /dev/null",
        ] {
            assert!(runs(works), "{works}");
        }
        for refused in [
            "cat $ALL/other",
            "cat $ALL/data/service/token",
            "cat $ALL/data/around/token",
            "sh -c 'cat $ALL/other'",
            "ls $ALL",
            "echo x > $ALL/code/train.py",
            "echo x > $ALL/code/new",
            "rm $ALL/code/train.py",
            "rm $ALL/data/rows/0",
            "echo x > $ALL/new",
            // Of the process that runs this test, where credentials may stand. Who has all rights of the machine may look all the same.
            "[ $(id -u) != 0 ] && cat /proc/$PPID/environ",
            "kill -0 $PPID",
        ] {
            assert!(!runs(refused), "{refused}");
        }
        assert!(at("code/train.py").exists() && fs::read(at("other")).is_ok(), "only what was started has the rules");
    }

    #[test]
    fn a_program_on_a_gpu_may_name_its_threads() {
        let all = tempfile::tempdir().unwrap();
        let names_itself = "echo named > /proc/$$/task/$$/comm && [ $(cat /proc/$$/comm) = named ]";
        for gpu in [false, true] {
            let isolation = Isolation::of(&host(all.path()), Reach { gpu, ..Reach::default() }).unwrap().unwrap();
            assert_eq!(shell(&isolation, names_itself), gpu);
            assert!(!shell(&isolation, "cat /dev/null > /proc/$PPID/mem"), "another's memory stays closed");
        }
    }

    #[test]
    fn a_job_opens_by_a_name_only_what_the_name_is_for() {
        let all = tempfile::tempdir().unwrap();
        let at = |name: &str| all.path().join(name);
        for (file, mode) in [
            ("model/a.safetensors", 0o600),
            ("model/config.json", 0o600),
            ("model/key", 0o600),
            ("keys/k.json", 0o600),
            ("key", 0o600),
            ("run", 0o700),
        ] {
            fs::create_dir_all(at(file).parent().unwrap()).unwrap();
            fs::write(at(file), "x").unwrap();
            fs::set_permissions(at(file), fs::Permissions::from_mode(mode)).unwrap();
        }
        let host = host(all.path());
        let opened = |reach: Reach| readable(&host, host.files.as_ref().unwrap(), &reach);
        let of_tensors = |name: &str| opened(Reach { tensors: Some(at(name)), ..Reach::default() });
        let model = of_tensors("model");
        assert!(model.contains(&at("model/a.safetensors")) && model.contains(&at("model/config.json")));
        assert!(!model.contains(&at("model/key")) && !model.contains(&at("model")));
        assert!(!of_tensors("key").contains(&at("key")) && !of_tensors("keys").contains(&at("keys/k.json")));
        let of_program = |name: &str| opened(Reach { program: Some(at(name)), ..Reach::default() });
        assert!(of_program("run").contains(&at("run")) && !of_program("key").contains(&at("key")));
        let of_python =
            |name: &str| opened(Reach { pythons: vec![at(name).display().to_string()], ..Reach::default() });
        assert!(!of_python("bin/python").contains(&all.path().to_owned()));
        assert!(of_python("run").contains(&at("run")) && !of_python("key").contains(&at("key")));
    }

    #[test]
    fn a_folder_of_ebbs_that_is_gone_is_an_error_and_what_others_name_is_not() {
        let all = tempfile::tempdir().unwrap();
        let mut host = host(all.path());
        host.files.as_mut().unwrap().readable.push("/nowhere/rows".to_owned());
        let gone = all.path().join("gone");
        for reach in [
            Reach { readable: vec![gone.clone()], ..Reach::default() },
            Reach { writable: vec![gone.clone()], ..Reach::default() },
        ] {
            let error = Isolation::of(&host, reach).unwrap_err();
            assert!(matches!(&error, IsolationError::NotThere { path, .. } if *path == gone), "{error}");
        }
        assert!(Isolation::of(&host, Reach::default()).unwrap().is_some());
        assert_eq!(there(vec!["/nowhere/rows".into(), "/usr".into()]), [PathBuf::from("/usr")]);
    }

    #[test]
    fn a_python_in_what_is_hidden_is_found_also_where_only_what_is_below_it_lies_there() {
        let all = tempfile::tempdir().unwrap();
        let at = |name: &str| all.path().join(name);
        for python in ["data/base/bin/python", "venv/bin/python", "other/bin/python"] {
            fs::create_dir_all(at(python).parent().unwrap()).unwrap();
            fs::write(at(python), "").unwrap();
            fs::set_permissions(at(python), fs::Permissions::from_mode(0o700)).unwrap();
        }
        fs::write(at("venv/pyvenv.cfg"), format!("home = {}\n", at("data/base/bin").display())).unwrap();
        let hidden = [at("data")];
        let found = |name: &str| hidden_of_python(at(name).to_str().unwrap(), &hidden);
        assert_eq!(found("data/base/bin/python"), fs::canonicalize(at("data/base/bin/python")).ok());
        assert!(found("venv/bin/python").is_some_and(|part| part.starts_with(fs::canonicalize(at("data")).unwrap())));
        assert_eq!(found("other/bin/python"), None);
    }

    #[test]
    fn a_python_that_a_job_could_have_written_is_refused() {
        let all = tempfile::tempdir().unwrap();
        let (shared, outside) = (all.path().join("torch"), all.path().join("python"));
        fs::create_dir_all(shared.join("scratch")).unwrap();
        let planted = shared.join("scratch").join("python");
        fs::write(&planted, "#!/bin/sh").unwrap();
        symlink(&planted, &outside).unwrap();
        // As a virtual environment is made: the Python is the system's, and what is beside the link is not.
        let environment = shared.join("scratch").join("bin");
        fs::create_dir(&environment).unwrap();
        symlink("/bin/sh", environment.join("python")).unwrap();
        let around = Path::new("/usr/..").join(environment.strip_prefix("/").unwrap()).join("python");
        let linked = all.path().join("linked");
        symlink(&environment, &linked).unwrap();
        let named = [planted.as_path(), &outside, &around, &linked.join("python")];
        for named in named.into_iter().chain([Path::new("/dev/shm/python"), Path::new("/proc/self/fd/9")]) {
            let refused = refuse_planted(named.to_str().unwrap(), &shared).unwrap_err();
            assert!(matches!(refused, IsolationError::Planted(_)), "{refused}");
        }
        refuse_planted("/usr/bin/python3", &shared).unwrap();
        refuse_planted("sh", &shared).unwrap();
    }

    #[test]
    fn what_a_job_names_in_a_place_that_jobs_write_is_not_opened() {
        let all = tempfile::tempdir().unwrap();
        let shared = all.path().join("torch");
        fs::create_dir_all(shared.join("scratch/bin")).unwrap();
        fs::write(all.path().join("key"), "x").unwrap();
        for link in ["a.safetensors", "lib", "run"] {
            symlink(all.path().join("key"), shared.join("scratch").join(link)).unwrap();
        }
        let at = |name: &str| shared.join("scratch").join(name);
        let python = at("bin/python").display().to_string();
        let mut reach = Reach {
            pythons: vec![python, "/usr/bin/python3".to_owned()],
            tensors: Some(at("a.safetensors")),
            program: Some(at("run")),
            ..Reach::default()
        };
        reach.leave_planted(&written(&shared));
        assert_eq!((reach.pythons, reach.tensors, reach.program), (vec!["/usr/bin/python3".to_owned()], None, None));
    }
}
