//! Contributor commands. `cargo xtask check` keeps the rules that the compiler does not: who may depend on whom, what pure
//! crates may pull in, how files begin and how long they grow, and that the documents name files that exist.
//!
//! Next: `dependencies.rs` (the table), then `files.rs`.

mod dependencies;
mod files;
mod manifests;

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask check\n\nChecks the dependency table, manifests, file headers and sizes, and paths named in documents.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["check"] => match check() {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("xtask: {error:#}");
                ExitCode::FAILURE
            }
        },
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Runs every check and prints every violation; whether there were none.
fn check() -> Result<bool> {
    let root = root()?;
    let mut violations = dependencies::check(&root)?;
    violations.extend(manifests::check(&root)?);
    violations.extend(files::check(&root)?);
    for violation in &violations {
        eprintln!("{violation}");
    }
    let count = violations.len();
    if count == 0 {
        println!("xtask check: dependency table, manifests, headers, sizes and document paths hold");
    } else {
        eprintln!("xtask check: {count} violation{}", if count == 1 { "" } else { "s" });
    }
    Ok(count == 0)
}

/// The workspace's root, two folders above this crate.
fn root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).map(Path::to_path_buf).context("the crate has moved: its folder has no second parent")
}
