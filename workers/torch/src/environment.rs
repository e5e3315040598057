//! The environment that a job's requirements ask for: built once on a server for its content, and found there afterwards. By `uv` where it
//! is to be had, else by pip. Where packages come from is the server's to say, in variables and files of these programs.
//!
//! It lies over the environment of the Python that it is built with: what that has is used as it is, above all PyTorch, and only what it
//! lacks is installed. What both programs agree on, and they alone, is left to them. With what rights they run is `build_site.rs`'s.

use crate::build_site::BuildSite;
use crate::cache::{Cache, Held};
use crate::isolation::Isolation;
use crate::job::TorchError;
use crate::output::{Output, told};
use events_schema::Digest;
use events_schema::control::TorchHost;
use events_schema::torch::Requirements;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// File in the new environment by which Python finds the packages of the one below.
const BELOW: &str = "_ebb_below.pth";
/// How often what a package turned out to need is installed as well; each time brings in at least one.
const ROUNDS_MAX: usize = 4;

/// A Python with all that a job needs.
#[derive(Debug)]
pub(crate) struct Environment {
    /// The program.
    pub python: String,
    /// Keeps it where it is.
    held: Option<Held>,
}

impl Environment {
    /// The folder that was built for it, if one was.
    pub fn folder(&self) -> Option<PathBuf> {
        self.held.as_ref().map(|held| held.path().to_owned())
    }
}

/// What a Python has.
#[derive(Debug, Deserialize)]
struct Base {
    executable: String,
    version: String,
    folders: Vec<String>,
    installed: BTreeMap<String, String>,
    needed: Vec<Needed>,
    conflict: Option<String>,
    pip: bool,
}

/// A line that it does not meet.
#[derive(Debug, Clone, Deserialize)]
struct Needed {
    line: String,
    name: String,
}

#[derive(Debug, Deserialize)]
struct Missing {
    missing: Vec<Lack>,
}

#[derive(Debug, Deserialize)]
struct Lack {
    name: String,
    what: String,
}

/// What installs packages.
enum Installer {
    Uv(PathBuf),
    Pip,
}

impl Installer {
    fn name(&self) -> &'static str {
        match self {
            Self::Uv(_) => "uv",
            Self::Pip => "pip",
        }
    }

    /// A program that is not the Python's own.
    fn program(&self) -> Option<&Path> {
        match self {
            Self::Uv(program) => Some(program),
            Self::Pip => None,
        }
    }
}

/// The environment of a job on this server; built if it is not there. `package` is the folder of the package `ebb`.
pub(crate) fn prepare(
    host: &TorchHost,
    python: &str,
    requirements: Option<&Requirements>,
    cache: &Cache,
    package: &Path,
) -> Result<Environment, TorchError> {
    let Some(requirements) = requirements else { return Ok(Environment { python: python.to_owned(), held: None }) };
    let site = BuildSite::new(host, python, package)?;
    let question = json!({"ask": "base", "lines": requirements.lines()});
    let base: Base = ask(Path::new(python), &site, site.rules(None, &[], None)?.as_ref(), &question)?;
    if !requirements.is_full() {
        if let Some(conflict) = &base.conflict {
            return Err(TorchError::Refused(format!(
                "{conflict}; leave torch out of the requirements, name a Python that has it as `python:`, or say `full: true` to build an environment with a PyTorch of its own"
            )));
        }
        if base.needed.is_empty() {
            tracing::info!(python, "it has all that the requirements ask for");
            return Ok(Environment { python: python.to_owned(), held: None });
        }
    }
    let installer = installer(&base)?;
    let held = cache.hold(&name(&base, requirements), |folder| {
        let rules = site.rules(Some(folder), &[&base.executable], installer.program())?;
        let rules = rules.as_ref();
        Building { folder, base: &base, requirements, installer: &installer, site: &site, rules }.build()
    })?;
    Ok(Environment { python: program_of(held.path()).display().to_string(), held: Some(held) })
}

/// Whatever decides what is in it.
fn name(base: &Base, requirements: &Requirements) -> String {
    let content = json!([base.executable, base.version, base.installed, requirements]);
    format!("environment-{}", Digest::of(content.to_string().as_bytes()))
}

/// `uv` is looked for beside the Python, then where programs are.
fn installer(base: &Base) -> Result<Installer, TorchError> {
    let beside = Path::new(&base.executable).parent().map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let uv = beside.into_iter().chain(std::env::split_paths(&path)).map(|folder| folder.join("uv"));
    match uv.into_iter().find(|program| program.is_file()) {
        Some(uv) => Ok(Installer::Uv(uv)),
        None if base.pip => Ok(Installer::Pip),
        None => Err(TorchError::Refused(format!(
            "the job's requirements cannot be installed: this server has no uv, and `{}` no pip; its operator installs either",
            base.executable
        ))),
    }
}

fn program_of(folder: &Path) -> PathBuf {
    folder.join("bin").join("python")
}

/// An environment while it is built.
struct Building<'a> {
    folder: &'a Path,
    base: &'a Base,
    requirements: &'a Requirements,
    installer: &'a Installer,
    site: &'a BuildSite<'a>,
    /// Of all programs that are started for it: packages bring code of their own.
    rules: Option<&'a Isolation>,
}

impl Building<'_> {
    fn build(&self) -> Result<(), TorchError> {
        let began = Instant::now();
        let (python, with) = (&self.base.executable, self.installer.name());
        tracing::info!(python, with, "building the environment of the job's requirements");
        if self.site.lacks(self.rules) {
            tracing::warn!(
                "this kernel has no Landlock, so what packages run while they are installed can read and write every file of the agent's user"
            );
        }
        let mut venv = self.site.tool(&self.base.executable);
        venv.args(["-m", "venv", "--without-pip"]).arg(self.folder);
        self.run("venv", venv)?;
        if self.requirements.is_full() {
            self.install(self.requirements.lines(), &BTreeSet::new())?;
        } else {
            self.install_over_base()?;
        }
        let took_ms = began.elapsed().as_millis();
        tracing::info!(took_ms, folder = %self.folder.display(), "the environment is built");
        Ok(())
    }

    /// What the Python below lacks, and what that turns out to need.
    fn install_over_base(&self) -> Result<(), TorchError> {
        let packages = packages_of(self.folder)?;
        fs::write(packages.join(BELOW), below(&self.base.folders))?;
        let mut lines: Vec<String> = self.base.needed.iter().map(|needed| needed.line.clone()).collect();
        let mut own: BTreeSet<String> = self.base.needed.iter().map(|needed| needed.name.clone()).collect();
        for _ in 0..ROUNDS_MAX {
            self.install(&lines, &own)?;
            let question = json!({"ask": "missing", "folder": packages});
            let Missing { missing } = ask(&program_of(self.folder), self.site, self.rules, &question)?;
            // Of what lies below only PyTorch must stay as it is.
            let more: Vec<&Lack> =
                missing.iter().filter(|lack| lack.name != "torch" && !own.contains(&lack.name)).collect();
            if more.is_empty() {
                return missing.first().map_or(Ok(()), |lack| Err(refused_for(lack, self.base)));
            }
            lines.extend(more.iter().map(|lack| lack.name.clone()));
            own.extend(more.iter().map(|lack| lack.name.clone()));
        }
        Err(TorchError::Refused(
            "the job's requirements need ever more packages than they name; name all of them".to_owned(),
        ))
    }

    /// Installs lines. `own` are packages that the new environment has itself, whatever lies below.
    fn install(&self, lines: &[String], own: &BTreeSet<String>) -> Result<(), TorchError> {
        let full = self.requirements.is_full();
        let file = |name: &str, lines: Vec<String>| -> io::Result<PathBuf> {
            let path = self.folder.join(name);
            fs::write(&path, lines.join("\n") + "\n")?;
            Ok(path)
        };
        let wanted = file("requirements.txt", lines.to_vec())?;
        match self.installer {
            Installer::Uv(program) => {
                // It does not see what lies below, so that is taken out of what it looks for.
                let there = self.base.installed.keys().filter(|name| !full && !own.contains(*name));
                let overrides =
                    file("overrides.txt", there.map(|name| format!("{name}; python_version < '0'")).collect())?;
                let mut uv = self.site.tool(program);
                uv.args(["pip", "install", "--no-progress", "--python"]).arg(program_of(self.folder));
                uv.arg("--overrides").arg(overrides).arg("-r").arg(wanted);
                self.run("uv", uv)
            }
            Installer::Pip => {
                let torch = self.base.installed.get("torch").filter(|_| !full);
                let constraints =
                    file("constraints.txt", torch.map(|version| format!("torch=={version}")).into_iter().collect())?;
                let mut pip = self.site.tool(&self.base.executable);
                pip.args(["-m", "pip", "--python"]).arg(program_of(self.folder));
                pip.args(["install", "--no-input", "--disable-pip-version-check", "--progress-bar", "off", "-c"])
                    .arg(constraints);
                pip.arg("-r").arg(wanted);
                self.run("pip", pip)
            }
        }
    }

    /// Runs a program to its end; what it says is in the job's log.
    fn run(&self, name: &str, mut command: Command) -> Result<(), TorchError> {
        let (reader, writer) = io::pipe()?;
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let program = command.get_program().display().to_string();
        let spawned = Isolation::spawn(self.rules, &mut command);
        drop(command);
        let mut child = spawned.map_err(|source| TorchError::Start { python: program, source })?;
        let output = Output::follow(reader)?;
        let status = child.wait()?;
        if status.success() {
            return Ok(());
        }
        let what = format!("{name} ended with {status}");
        match status.signal() {
            // Somebody ended it; the requirements may be well.
            Some(_) => Err(TorchError::Ended { why: format!("the environment is not built: {what}"), by_code: false }),
            None => Err(TorchError::Environment { what, last_lines: output.last_lines() }),
        }
    }
}

fn refused_for(lack: &Lack, base: &Base) -> TorchError {
    TorchError::Refused(format!(
        "the job's requirements do not fit what `{}` has: {}; ask for other versions, name another Python as `python:`, or say `full: true`",
        base.executable, lack.what
    ))
}

/// The one folder of packages of a new environment.
fn packages_of(folder: &Path) -> io::Result<PathBuf> {
    for entry in fs::read_dir(folder.join("lib"))? {
        let packages = entry?.path().join("site-packages");
        if packages.is_dir() {
            return Ok(packages);
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "the new environment has no folder for packages"))
}

/// Their own files of paths count too, which a plain path in ours would leave out.
fn below(folders: &[String]) -> String {
    let line = |folder: &String| format!("import site; site.addsitedir({})\n", Value::from(folder.as_str()));
    folders.iter().map(line).collect()
}

/// Asks a Python what it has.
fn ask<T: for<'a> Deserialize<'a>>(
    python: &Path,
    site: &BuildSite<'_>,
    rules: Option<&Isolation>,
    question: &Value,
) -> Result<T, TorchError> {
    let mut command = site.command(python);
    command.args(["-m", "ebb.environment"]).env("PYTHONPATH", site.package()).env("PYTHONDONTWRITEBYTECODE", "1");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let not_started = |source| TorchError::Start { python: python.display().to_string(), source };
    let mut child = Isolation::spawn(rules, &mut command).map_err(not_started)?;
    if let Some(mut input) = child.stdin.take() {
        // One that does not read says why when it has ended.
        let _ = input.write_all(question.to_string().as_bytes());
    }
    let output = child.wait_with_output()?;
    serde_json::from_slice(&output.stdout).map_err(|error| TorchError::Environment {
        what: format!("`{}` does not say what it has ({}: {error})", python.display(), output.status),
        last_lines: told(&String::from_utf8_lossy(&output.stderr)),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn however_much_a_python_says_that_does_not_answer_its_end_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let python = folder.path().join("python");
        // Written by another process: one that this process writes could not be run while a test beside forks.
        let write = "printf '#!/bin/sh\nyes noise | head -n 600000 >&2\necho the end >&2\nexit 3\n' > $0; chmod 700 $0";
        assert!(Command::new("sh").args(["-c", write]).arg(&python).status().unwrap().success());
        let host = TorchHost {
            folder: folder.path().display().to_string(),
            python: "python3".to_owned(),
            secrets: None,
            cache_mib: None,
            warm: None,
            files: None,
        };
        let site = BuildSite::new(&host, "python3", folder.path()).unwrap();
        let error = ask::<Base>(&python, &site, None, &json!({})).unwrap_err();
        let TorchError::Environment { what, last_lines } = error else { panic!("{error}") };
        assert!(what.contains("exit status: 3"), "{what}");
        assert!(last_lines.len() < 2_000 && last_lines.ends_with("the end"), "{} bytes", last_lines.len());
    }
}
