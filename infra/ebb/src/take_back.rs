//! `ebb take-back`: the direct way to a slot. Speaks only with the node agent, so it works with gateway, controller and log gone.
//!
//! The agent answers when the slots are free; what training then does about it is not this command's business.

use crate::args::TakeBackArgs;
use crate::failure::Failure;
use crate::output::{Output, json, line, table};
use clap::{Args, ValueHint};
use events_schema::FleetId;
use serde_json::json;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use workers_agent::{AgentToken, FleetToken};
use workers_agent_client::{AgentClient, access};

/// Arguments of `ebb fleet token`.
#[derive(Debug, Clone, Args)]
pub struct FleetTokenArgs {
    /// The fleet, as it stands in answers and logs.
    pub name: FleetId,
    /// A slot that it may take back, as its number at that agent; once for each.
    #[arg(long = "slot", required = true, value_name = "INDEX")]
    pub slots: Vec<u16>,
    /// The file to make; it must not be there.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub to: PathBuf,
    /// Data directory of the `ebb up` or `ebb agent` that runs on this machine.
    #[arg(long, value_name = "DIR", default_value = "./ebb-data", value_hint = ValueHint::DirPath)]
    pub data: PathBuf,
}

/// `ebb fleet token`.
pub fn fleet_token(output: Output, args: &FleetTokenArgs) -> Result<(), Failure> {
    let access = access(&args.data)?;
    let operator = AgentToken::read(&access.token_file).map_err(|e| {
        Failure::local("the agent's token cannot be read", e).advise("run this as the user who runs the agent")
    })?;
    let token = FleetToken::derive(&operator, &access.server, args.name.clone(), args.slots.iter().copied().collect());
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&args.to)
        .map_err(|e| Failure::local(format!("`{}` cannot be made", args.to.display()), e))?;
    writeln!(file, "{}", token.expose())
        .map_err(|e| Failure::local(format!("`{}` cannot be written", args.to.display()), e))?;
    match output {
        Output::Json => {
            json(&json!({"fleet": args.name, "server": access.server, "slots": args.slots, "token_file": args.to}))
        }
        Output::Name => line(args.name.as_str()),
        Output::Table => line(format!(
            "`{}` may take back {} with --agent {} --token-file {}",
            args.name,
            args.slots.iter().map(|slot| format!("{}/{slot}", access.server)).collect::<Vec<_>>().join(", "),
            access.url,
            args.to.display()
        )),
    }
    Ok(())
}

/// `ebb take-back`.
pub async fn take_back(output: Output, args: &TakeBackArgs) -> Result<(), Failure> {
    let agent = match (&args.agent, &args.token_file) {
        (Some(url), Some(token_file)) => AgentClient::new(url, &PathBuf::from(token_file))?,
        _ => AgentClient::of_directory(&args.data)?,
    };
    let freed = agent.take_back(&args.slots, args.deadline_ms).await?;
    match output {
        Output::Json => json(
            &json!({"slots": freed.iter().map(|f| json!({"slot": f.slot, "elapsed_ms": f.elapsed_ms, "killed": f.killed})).collect::<Vec<_>>()}),
        ),
        Output::Name => freed.iter().for_each(|slot| line(&slot.slot)),
        Output::Table => {
            let rows: Vec<Vec<String>> = freed
                .iter()
                .map(|f| {
                    vec![
                        f.slot.clone(),
                        format!("{} ms", f.elapsed_ms),
                        if f.killed { "killed at the deadline".into() } else { "left by itself".into() },
                    ]
                })
                .collect();
            line(table(&["SLOT", "FREE AFTER", "ITS EXECUTOR"], &rows));
        }
    }
    Ok(())
}
