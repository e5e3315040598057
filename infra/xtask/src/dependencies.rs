//! Who may depend on whom. The table is the architecture: an edge that is not here is refused, however handy it would be.

use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Our crates and the ones of ours that each may use (tests may use more: dev-dependencies are not checked).
const EDGES: &[(&str, &[&str])] = &[
    ("events-schema", &[]),
    ("events-public", &["events-schema"]),
    ("events-rule", &["events-schema"]),
    ("events-log", &["events-schema", "events-rule"]),
    ("storage-keys", &["events-schema"]),
    ("controller-core", &["events-schema", "storage-keys"]),
    ("controller-fold", &["events-schema", "events-rule", "controller-core"]),
    ("controller-cell", &["events-schema", "events-rule", "controller-core", "controller-fold", "storage-keys"]),
    ("controller-link", &["events-schema"]),
    (
        "controller-server",
        &[
            "events-schema",
            "events-public",
            "events-rule",
            "events-log",
            "controller-core",
            "controller-cell",
            "controller-link",
            "storage",
            "shell",
            "ebb-telemetry",
        ],
    ),
    ("gateway-api", &["events-schema", "events-public"]),
    ("gateway-call", &["events-schema", "controller-core"]),
    ("gateway-client", &["gateway-api"]),
    ("gateway-demand", &["events-schema"]),
    (
        "gateway",
        &[
            "events-schema",
            "events-public",
            "events-rule",
            "events-log",
            "controller-core",
            "controller-fold",
            "gateway-api",
            "gateway-call",
            "storage",
            "http-listener",
            "shell",
            "ebb-telemetry",
        ],
    ),
    ("storage", &["events-schema", "storage-keys", "shell"]),
    ("storage-bucket", &[]),
    ("workers-session", &["events-schema"]),
    ("workers-member", &["events-schema", "storage-keys", "workers-session"]),
    ("workers-engine", &["events-schema"]),
    ("workers-memory", &[]),
    ("workers-torch", &["events-schema", "storage", "workers-memory"]),
    (
        "workers-executor",
        &[
            "events-schema",
            "storage",
            "workers-session",
            "workers-member",
            "workers-engine",
            "workers-memory",
            "workers-torch",
            "shell",
        ],
    ),
    ("workers-device", &[]),
    ("workers-agent-core", &["events-schema", "storage-keys"]),
    (
        "workers-agent",
        &[
            "events-schema",
            "controller-link",
            "gateway-api",
            "workers-agent-core",
            "workers-torch",
            "workers-device",
            "http-listener",
            "shell",
            "storage",
            "ebb-telemetry",
        ],
    ),
    (
        "ebb",
        &[
            "events-schema",
            "events-rule",
            "events-log",
            "controller-core",
            "controller-fold",
            "controller-link",
            "controller-server",
            "gateway",
            "gateway-api",
            "gateway-client",
            "gateway-demand",
            "http-listener",
            "shell",
            "storage",
            "storage-bucket",
            "workers-engine",
            "workers-executor",
            "workers-torch",
            "workers-agent",
            "workers-agent-client",
            "workers-device",
            "ebb-telemetry",
            "loadtest",
            "loadtest-world",
            "loadtest-simulate",
            "loadtest-harness",
            "loadtest-demo",
            "loadtest-bench",
        ],
    ),
    // Only `ebb` depends on what is under `loadtest`.
    ("loadtest-harness", &["gateway-api", "gateway-client", "workers-agent-client"]),
    ("loadtest-demo", &["loadtest", "loadtest-harness", "gateway-api", "gateway-client", "workers-agent-client"]),
    (
        "loadtest-bench",
        &[
            "events-schema",
            "events-log",
            "gateway-api",
            "gateway-client",
            "storage",
            "workers-executor",
            "workers-agent-client",
            "loadtest-harness",
        ],
    ),
    (
        "loadtest-world",
        &[
            "events-schema",
            "events-rule",
            "storage-keys",
            "controller-core",
            "controller-cell",
            "gateway-call",
            "workers-session",
            "workers-member",
            "workers-agent-core",
        ],
    ),
    ("loadtest-simulate", &["events-schema", "controller-core", "loadtest-world"]),
    ("workers-agent-client", &["workers-agent", "gateway-api", "gateway-client", "storage"]),
    ("http-listener", &[]),
    ("shell", &["events-schema"]),
    ("ebb-telemetry", &["events-schema"]),
    ("xtask", &[]),
    ("loadtest", &["events-schema", "gateway-api"]),
];

/// Crates without I/O, clock or chance, and everything they may pull in, directly or not.
const PURE: &[&str] = &[
    "events-schema",
    "events-public",
    "events-rule",
    "storage-keys",
    "controller-core",
    "controller-fold",
    "controller-cell",
    "gateway-api",
    "gateway-call",
    "gateway-demand",
    "workers-session",
    "workers-member",
    "workers-agent-core",
    "loadtest-world",
    "loadtest-simulate",
];

/// What a pure crate's tree may hold besides our pure crates: encodings, digests, text, and what macros need to build.
/// Nothing here opens a file or a socket, reads a clock, starts a thread or draws a random number by itself.
const PURE_ALLOWED: &[&str] = &[
    // numbered records, JSON, errors, digests, times as text, "did you mean"
    "minicbor",
    "minicbor-derive",
    "serde",
    "serde_core",
    "serde_derive",
    "serde_json",
    "itoa",
    "ryu",
    "zmij",
    "memchr",
    "indexmap",
    "hashbrown",
    "equivalent",
    "thiserror",
    "thiserror-impl",
    "blake3",
    "arrayref",
    "arrayvec",
    "constant_time_eq",
    "cfg-if",
    "cpufeatures",
    "humantime",
    "strsim",
    "bytes",
    // what `bytes` would count references with on platforms without atomics
    "portable-atomic",
    "critical-section",
    // the keyed generator and arithmetic
    "rand_chacha",
    "rand_core",
    "chacha20",
    "ppv-lite86",
    "zerocopy",
    "zerocopy-derive",
    "libm",
    // JSON Schemas of public events, and ids in paths
    "percent-encoding",
    "schemars",
    "schemars_derive",
    "serde_derive_internals",
    "dyn-clone",
    "ref-cast",
    "ref-cast-impl",
    // macros, at compile time only
    "proc-macro2",
    "quote",
    "syn",
    "unicode-ident",
];

/// The tree is looked at as built for this platform; others add only their own bindings to the operating system.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// Checks both tables against the resolved dependency graph.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let metadata = metadata(root)?;
    let graph = Graph::read(&metadata)?;
    let mut violations = edges(&graph);
    violations.extend(pure(&graph));
    Ok(violations)
}

fn edges(graph: &Graph) -> Vec<String> {
    let table: BTreeMap<&str, &[&str]> = EDGES.iter().copied().collect();
    let mut violations = Vec::new();
    for member in &graph.members {
        let Some(allowed) = table.get(member.as_str()) else {
            violations.push(format!("{member}: not in the dependency table of infra/xtask/src/dependencies.rs; add it with the crates it may use"));
            continue;
        };
        for used in graph.uses(member).filter(|u| graph.members.contains(*u)) {
            if !allowed.contains(&used.as_str()) {
                violations.push(format!(
                    "{member} depends on {used}: the table allows {}",
                    if allowed.is_empty() { "none of ours".to_owned() } else { allowed.join(", ") }
                ));
            }
        }
    }
    violations
}

fn pure(graph: &Graph) -> Vec<String> {
    let mut violations = Vec::new();
    for name in PURE {
        for reached in graph.tree(name) {
            let legal = PURE.contains(&reached.as_str()) || PURE_ALLOWED.contains(&reached.as_str());
            if !legal {
                violations.push(format!(
                    "{name} is pure, but its tree holds {reached} (by {}); see `cargo tree -p {name} -i {reached}`",
                    graph.path(name, &reached)
                ));
            }
        }
    }
    violations
}

fn metadata(root: &Path) -> Result<Value> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", PLATFORM])
        .current_dir(root)
        .output()
        .context("cargo metadata cannot be run")?;
    anyhow::ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    serde_json::from_slice(&output.stdout).context("cargo metadata is no JSON")
}

/// Which package uses which in the programs we ship (what only tests or build scripts use is left out), by name; versions of
/// one name are one node.
struct Graph {
    members: BTreeSet<String>,
    uses: BTreeMap<String, BTreeSet<String>>,
}

impl Graph {
    fn read(metadata: &Value) -> Result<Self> {
        let list = |value: &Value, what: &str| {
            value.as_array().cloned().with_context(|| format!("cargo metadata has no {what}"))
        };
        let mut names = BTreeMap::new();
        for package in list(&metadata["packages"], "packages")? {
            names.insert(text(&package["id"])?, text(&package["name"])?);
        }
        let name =
            |id: &Value| -> Result<String> { names.get(&text(id)?).cloned().context("a package without a name") };
        let members = list(&metadata["workspace_members"], "members")?.iter().map(name).collect::<Result<_>>()?;
        let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for node in list(&metadata["resolve"]["nodes"], "resolved nodes")? {
            let entry = uses.entry(name(&node["id"])?).or_default();
            for dependency in list(&node["deps"], "dependencies of a node")? {
                let shipped =
                    list(&dependency["dep_kinds"], "kinds of a dependency")?.iter().any(|k| k["kind"].is_null());
                if shipped {
                    entry.insert(name(&dependency["pkg"])?);
                }
            }
        }
        Ok(Self { members, uses })
    }

    fn uses(&self, name: &str) -> impl Iterator<Item = &String> {
        self.uses.get(name).into_iter().flatten()
    }

    /// Everything that `name` reaches, and from where it was first reached.
    fn reached(&self, name: &str) -> BTreeMap<String, String> {
        let mut from = BTreeMap::new();
        let mut open = vec![name.to_owned()];
        while let Some(next) = open.pop() {
            for used in self.uses(&next) {
                if used != name && !from.contains_key(used) {
                    from.insert(used.clone(), next.clone());
                    open.push(used.clone());
                }
            }
        }
        from
    }

    fn tree(&self, name: &str) -> Vec<String> {
        self.reached(name).into_keys().collect()
    }

    /// One way from `name` to `reached`, for the message.
    fn path(&self, name: &str, reached: &str) -> String {
        let from = self.reached(name);
        let mut path = vec![reached.to_owned()];
        while let Some(before) = path.last().and_then(|last| from.get(last)) {
            path.push(before.clone());
            if before == name {
                break;
            }
        }
        path.reverse();
        path.join(" → ")
    }
}

fn text(value: &Value) -> Result<String> {
    value.as_str().map(str::to_owned).context("cargo metadata has something else where a text belongs")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(pairs: &[(&str, &str)], members: &[&str]) -> Graph {
        let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (user, used) in pairs {
            uses.entry((*user).to_owned()).or_default().insert((*used).to_owned());
        }
        Graph { members: members.iter().map(|m| (*m).to_owned()).collect(), uses }
    }

    #[test]
    fn an_edge_against_the_arrows_is_refused() {
        let graph = graph(
            &[("events-schema", "events-log"), ("events-log", "events-schema")],
            &["events-schema", "events-log"],
        );
        let found = edges(&graph);
        assert_eq!(found, ["events-schema depends on events-log: the table allows none of ours"]);
    }

    #[test]
    fn input_and_output_deep_in_a_pure_tree_is_found_with_its_path() {
        let found = pure(&graph(&[("controller-core", "innocent"), ("innocent", "tokio")], &[]));
        assert_eq!(found.len(), 2);
        assert!(found[1].contains("controller-core → innocent → tokio"), "{found:?}");
    }

    #[test]
    fn a_crate_outside_the_table_is_refused() {
        assert_eq!(edges(&graph(&[], &["newcomer"])).len(), 1);
    }
}
