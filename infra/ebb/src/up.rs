//! `ebb up`: gateway, controller and node agent in one process, as [`crate::roles`] starts each; executors are processes of the agent.
//! Wires and watches them; decides nothing of what they do.
//!
//! Next on a job's path: `gateway/src/routes.rs`.

use crate::args::{MetricsArgs, UpArgs};
use crate::failure::Failure;
use crate::first_start;
use crate::home::Home;
use crate::output::{Output, mention};
use crate::roles::agent::AgentParts;
use crate::roles::controller::ControllerParts;
use crate::roles::ending::{goodbye, run_until_stopped};
use crate::roles::gateway::GatewayParts;
use crate::roles::signals::Signals;
use crate::roles::{self, descriptors, open};
use crate::sentences::counted;
use controller_server::Controller;
use events_log::LogUrl;
use events_schema::ServerId;
use gateway::Gateway;
use gateway_client::Client;
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use storage::store::without_secrets;
use tokio::net::TcpListener;
use workers_agent::Agent;

/// Name of the one server of `ebb up`.
pub const LOCAL_SERVER: &str = "local";

/// `ebb up`: runs until a signal or a fatal error.
pub async fn up(args: &UpArgs, output: Output) -> Result<(), Failure> {
    roles::gateway::ensure_meant(&args.api)?;
    if !args.data.exists() {
        ensure_free(args).await?;
    }
    let home = Home::open(&args.data)?;
    let service = Running::start(args, &home).await?;
    if let Err(failure) = service.set_up(&home).await {
        service.stop().await?;
        return Err(failure);
    }
    let signals = Signals::listen()?;
    service.announce(output);
    let goodbye = goodbye(output, "stopping; jobs go on from their last checkpoint at the next start");
    run_until_stopped(service, Running::failed, Running::stop, args.run.until_input_ends, goodbye, signals).await
}

/// Refuses a taken address before a data directory is made that nobody asked for. Who has one is told first who else uses it.
async fn ensure_free(args: &UpArgs) -> Result<(), Failure> {
    for (name, address) in [("--listen", args.api.listen), ("--listen-agents", args.cell.listen_agents)] {
        TcpListener::bind(address).await.map_err(|e| {
            Failure::local(format!("`ebb up` cannot listen on {address}"), e)
                .advise(format!("choose another address with {name}"))
        })?;
    }
    Ok(())
}

/// The parts, running.
struct Running {
    gateway: Gateway,
    controller: Controller,
    agent: Agent,
    agent_token_file: PathBuf,
    store_url: String,
    slots: u16,
    server: ServerId,
}

impl Running {
    async fn start(args: &UpArgs, home: &Home) -> Result<Self, Failure> {
        let devices = roles::agent::devices(&args.devices.devices).await?;
        let slots = roles::agent::slots(args.slots, devices.as_ref())?.unwrap_or_else(roles::agent::cores);
        let shares = descriptors::share(descriptors::raise(), slots)?;
        let log_url = match &args.log {
            Some(text) => LogUrl::parse(text).map_err(|e| Failure::Usage(e.to_string()))?,
            None => LogUrl::file(home.log_file()),
        };
        let log = open::log(&log_url).await?;
        let store_url = args.store.clone().map_or_else(|| home.store_url(), Ok)?;
        let store = open::store(&store_url).await?;
        let parts = ControllerParts {
            log: log.clone(),
            store: store.clone(),
            name: LOCAL_SERVER.to_owned(),
            connections_max: shares.agents,
        };
        let controller = roles::controller::start(&args.cell, home, parts).await?;
        let parts = GatewayParts {
            log,
            store,
            store_url: store_url.clone(),
            progress: controller.telemetry(),
            connections_max: shares.api,
            set_up: false,
        };
        let gateway = roles::gateway::start(&args.api, parts).await?;
        let server = ServerId::parse(LOCAL_SERVER).map_err(|e| Failure::plain(e.to_string()))?;
        let parts = AgentParts {
            server: server.clone(),
            slots,
            controller_url: controller.agent_url(),
            token: roles::controller::agent_token(home)?,
            data_dir: home.agent_folder(),
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            metrics: MetricsArgs::default(),
            host: Ipv4Addr::LOCALHOST.to_string(),
            store_url: store_url.clone(),
            python: args.python.clone(),
            hidden: vec![home.folder().to_owned()],
            devices,
            slot_type: args.devices.slot_type,
            executors: args.executors.clone(),
        };
        let agent = roles::agent::start(parts).await?;
        let agent_token_file = roles::controller::agent_token_file(home);
        Ok(Self { gateway, controller, agent, agent_token_file, store_url, slots, server })
    }

    /// Declares what a first start needs, over the API like any client.
    async fn set_up(&self, home: &Home) -> Result<(), Failure> {
        let client = Client::new(&self.gateway.url())?;
        first_start::prepare(&client, &self.store_url, &self.server, self.slots, home.slots_before()).await?;
        home.note_slots(self.slots)?;
        self.gateway.is_set_up();
        Ok(())
    }

    /// Says where everything is, if anybody reads it.
    fn announce(&self, output: Output) {
        let url = self.gateway.url();
        let agent = format!("http://{}", self.agent.address());
        match output {
            Output::Json => mention(json!({"url": url, "controller": self.controller.agent_url(), "agent": agent, "agent_token_file": self.agent_token_file, "store_url": without_secrets(&self.store_url)}).to_string()),
            _ => mention(format!(
                "Ebb listens on {url} with {} (agents: {}, take-back: {agent})\n\nnext, in another terminal:\n  ebb submit docs/examples/digits.yaml\n  ebb watch\n  ebb demand local --needed 1\n\nCtrl-C stops it.",
                counted(&self.slots.into(), "slot"),
                self.controller.agent_url()
            )),
        }
    }

    /// Waits until a part ends by itself; what it said.
    async fn failed(&self) -> String {
        tokio::select! {
            end = self.gateway.stopped() => roles::gateway::ended(&end),
            end = self.controller.stopped() => roles::controller::ended(&end).unwrap_or_else(|| "the controller ended".to_owned()),
            end = self.agent.stopped() => roles::agent::ended(&end).unwrap_or_else(|| "the agent ended".to_owned()),
        }
    }

    /// No new requests, then no executors (their last reports still reach the log), then no controller. An error if a part
    /// failed while nobody looked, as a log does whose file meets an error just when it is asked to stop.
    async fn stop(self) -> Result<(), Failure> {
        let gateway = self.gateway.shutdown().await.err().map(|end| roles::gateway::ended(&end));
        let agent = roles::agent::ended(&self.agent.shutdown().await);
        let controller = roles::controller::ended(&self.controller.shutdown().await);
        // The controller's says most: it is what holds the log.
        controller.or(gateway).or(agent).map_or(Ok(()), |what| Err(Failure::plain(what)))
    }
}
