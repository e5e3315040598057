//! `ebb agent`: a node agent in its own process, for another machine than the controller's. Runs until a signal.

use crate::args::AgentArgs;
use crate::failure::Failure;
use crate::output::{Output, line};
use crate::up::{AgentParts, start_agent};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use workers_agent::{AgentEnd, AgentToken};

/// Runs the agent.
pub async fn agent(args: &AgentArgs, output: Output) -> Result<(), Failure> {
    let token = AgentToken::read(&args.token_file).map_err(|e| {
        Failure::local("the token for the controller cannot be read", e)
            .advise("copy DIR/secrets/agent.token of its `ebb up`, with mode 600")
    })?;
    let parts = AgentParts {
        server: args.server.clone(),
        slots: args.slots,
        controller_url: args.controller.clone(),
        token,
        data_dir: args.data.clone(),
        listen: args.listen,
        host: args.host.clone(),
        store_url: args.store.clone(),
    };
    let agent = start_agent(parts).await?;
    let address = format!("http://{}", agent.address());
    match output {
        Output::Json => line(json!({"agent": address, "server": args.server, "slots": args.slots}).to_string()),
        Output::Table => line(format!(
            "agent of `{0}` with {1} slots; take-back: {address}\n\nnext: ebb fleet put NAME --server {0} --slots {1}\n\nCtrl-C stops it.",
            args.server, args.slots
        )),
    }
    let mut interrupt =
        signal(SignalKind::interrupt()).map_err(|e| Failure::local("signals cannot be listened for", e))?;
    let mut terminate =
        signal(SignalKind::terminate()).map_err(|e| Failure::local("signals cannot be listened for", e))?;
    let failed = tokio::select! {
        _ = interrupt.recv() => None,
        _ = terminate.recv() => None,
        end = agent.stopped() => Some(end),
    };
    let end = match failed {
        Some(end) => end,
        None => agent.shutdown().await,
    };
    match end {
        AgentEnd::Failed(reason) => Err(Failure::plain(format!("the agent ended: {reason}"))),
        AgentEnd::Shutdown => Ok(()),
    }
}
