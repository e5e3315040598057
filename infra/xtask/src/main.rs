//! Contributor commands. `cargo xtask check` keeps the rules that the compiler does not: who may depend on whom, what pure
//! crates may pull in, how files begin and how long they grow, that a job can be followed from header to header, that the documents name files that exist, that paths of the API stand in one place, and that
//! messages to people are sentences.
//!
//! Next: `dependencies.rs` (the table), then `files.rs` and `messages.rs`.

mod dependencies;
mod files;
mod manifests;
mod messages;
mod path;
mod routes;

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask check | messages\n\ncheck     the dependency table, manifests, file headers and sizes, doc comments of one word, a job's path from header to header, paths named in documents, paths of the API, and docs/messages.md\nmessages  writes docs/messages.md: every sentence that people may read";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["check"] => ended(check()),
        ["messages"] => ended(root().and_then(|root| messages::write(&root)).map(|()| true)),
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

fn ended(outcome: Result<bool>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs every check and prints every violation; whether there were none.
fn check() -> Result<bool> {
    let root = root()?;
    let mut violations = dependencies::check(&root)?;
    violations.extend(manifests::check(&root)?);
    violations.extend(files::check(&root)?);
    violations.extend(path::check(&root)?);
    violations.extend(messages::check(&root)?);
    violations.extend(routes::check(&root)?);
    for violation in &violations {
        eprintln!("{violation}");
    }
    let count = violations.len();
    if count == 0 {
        println!("xtask check: dependency table, manifests, headers, sizes, document paths and messages hold");
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
