//! `ebb agent`: a node agent in its own process, for another machine than the controller's. Runs until a signal.

use crate::args::AgentArgs;
use crate::descriptors;
use crate::failure::Failure;
use crate::home::keep_private;
use crate::output::{Output, mention};
use crate::signals::Signals;
use crate::up::{AgentParts, start_agent, usable_store};
use serde_json::json;
use storage::store::without_secrets;
use url::Url;
use workers_agent::{AgentEnd, AgentToken};

/// Runs the agent.
pub async fn agent(args: &AgentArgs, output: Output) -> Result<(), Failure> {
    ensure_http(&args.controller)?;
    descriptors::raise();
    keep_private(&args.data).map_err(|e| {
        Failure::local(format!("the agent's directory `{}` cannot be made its owner's alone", args.data.display()), e)
            .advise("choose another with --data DIR")
    })?;
    usable_store(&args.store).await?;
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
        Output::Json => mention(json!({"agent": address, "server": args.server, "slots": args.slots}).to_string()),
        // Whether the controller takes it is not known yet; a refusal comes as a line on standard error.
        Output::Table => mention(format!(
            "agent of `{0}` with {1} slots, looking for its controller at {2}; take-back: {address}\n\nnext: ebb slots (lists {0}/0 once the controller has it)\n      ebb fleet put NAME --server {0} --slots {1}\n\nCtrl-C stops it.",
            args.server, args.slots, args.controller
        )),
    }
    let mut signals = Signals::listen()?;
    let failed = tokio::select! {
        () = signals.next() => None,
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

/// An agent shows its token, never a password of its address.
fn is_plain_http(url: &Url) -> bool {
    url.scheme() == "http" && url.has_host() && url.username().is_empty() && url.password().is_none()
}

/// Refuses what would only show as a line in the log when the agent first looks for its controller.
fn ensure_http(controller: &str) -> Result<(), Failure> {
    let url = Url::parse(controller).ok().filter(is_plain_http);
    url.map(drop).ok_or_else(|| {
        Failure::Usage(format!(
            "--controller `{}` is no http:// address without a user; its `ebb up` prints the one for agents, for example http://10.0.0.1:7879",
            without_secrets(controller)
        ))
    })
}
