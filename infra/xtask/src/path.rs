//! The path of one job through the files, from its request to its end: each one's header names the next, so that a newcomer can follow it.
//! `docs/architecture.md` tells the same with reasons. Knows nothing of what the files do.

use anyhow::{Context, Result};
use std::path::Path;

/// In order.
const FILES: &[&str] = &[
    "gateway/src/routes.rs",
    "gateway/src/handlers/jobs.rs",
    "events/schema/src/job.rs",
    "gateway/src/submit.rs",
    "gateway/call/src/lib.rs",
    "events/schema/src/command.rs",
    "events/log/src/lib.rs",
    "controller/server/src/run.rs",
    "controller/cell/src/intake.rs",
    "controller/core/src/decide/mod.rs",
    "controller/cell/src/lead.rs",
    "controller/core/src/apply/mod.rs",
    "controller/core/src/orders.rs",
    "controller/cell/src/links.rs",
    "workers/agent-core/src/lib.rs",
    "workers/agent/src/lib.rs",
    "workers/executor/src/lib.rs",
    "workers/executor/src/trainer.rs",
    "workers/member/src/member.rs",
    "workers/session/src/lib.rs",
    "storage/src/loader.rs",
    "workers/executor/src/workload.rs",
    "workers/engine/src/lib.rs",
    "workers/member/src/reduce.rs",
    "workers/executor/src/sums.rs",
    "workers/executor/src/checkpoint.rs",
    "storage/src/checkpoint/mod.rs",
    "controller/core/src/decide/checkpoints.rs",
    "controller/core/src/decide/leaders.rs",
];

/// A violation for each file whose header does not name the next one.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut violations = Vec::new();
    for pair in FILES.windows(2) {
        let [file, next] = pair else { continue };
        let text = std::fs::read_to_string(root.join(file)).with_context(|| format!("{file} is on a job's path"))?;
        let mut header = text.lines().take_while(|line| line.starts_with("//!"));
        let wanted = format!("Next on a job's path: `{next}`");
        if !header.any(|line| line.contains(&wanted)) {
            violations.push(format!("{file}: its header does not say \"{wanted}\""));
        }
    }
    Ok(violations)
}
