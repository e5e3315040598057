//! The `ebb` program as a library: every role of the service and the client of its users.
//!
//! Reading order: [`args`] (what can be asked), [`mod@configuration`] (where settings come from), [`up`] (the service in one process) and
//! [`roles`] (its parts, each also alone), [`home`] (a data directory), `gateway-client`
//! and [`failure`] (how commands speak with it), `jobs.rs`, `watch.rs`, [`verify`], `fleets.rs`, `datasets.rs`, `tenants.rs`, [`take_back`], then what
//! [`demo`] and [`mod@bench`] print of `loadtest/demo` and `loadtest/bench`. Only this crate reads arguments, prints, and ends the process.

pub mod args;
mod begin_with;
pub mod bench;
pub mod configuration;
mod datasets;
mod demand_follow;
pub mod demo;
pub mod event_list;
mod explain;
pub mod failure;
mod find;
mod first_start;
mod fleets;
pub mod home;
mod job_file;
mod jobs;
mod ledger;
mod links;
mod load;
pub mod log;
mod logs;
pub mod output;
mod replay;
mod replay_setup;
pub mod roles;
mod sentences;
pub mod simulate;
mod simulate_again;
pub mod simulate_ask;
mod simulate_detailed;
mod simulate_files;
pub mod simulate_options;
pub mod simulate_papers;
mod simulate_report;
pub mod simulate_run;
pub mod simulate_setup;
pub mod store;
pub mod take_back;
mod tenants;
mod top;
pub mod trace;
mod try_here;
pub mod up;
pub mod verify;
mod watch;
pub mod wire;

use args::{Cli, Command, ConfigCommand, DatasetCommand, EventCommand, FleetCommand, JobArgs, JobCommand};
use args::{ModelCommand, SlotCommand};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};
use configuration::Configuration;
use ebb_telemetry::{Options, Telemetry};
use failure::Failure;
use gateway_client::{Client, ClientOptions};
use jobs::Change;
use output::Output;
use std::ffi::OsString;
use std::process::ExitCode;
use tokio::runtime::Handle;
use workers_executor::collective::Memory;

/// Threads of a program at least: while a plan keeps one, another reads what interrupts it.
const THREADS_MIN: usize = 2;

/// Runs one command line; the exit code says how it went (see `ebb --help`).
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let configuration = match configuration(&arguments) {
        Ok(configuration) => configuration,
        Err(failure) => {
            failure.print();
            return ExitCode::from(failure.exit_code());
        }
    };
    let parsed = configuration.command().try_get_matches_from(arguments);
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => Cli { command: cli.command.in_full(), ..cli },
        Err(mut error) => {
            hide(&mut error);
            // Help and version are errors of clap with code 0.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(failure::exit_code::USAGE));
        }
    };
    match dispatch(&cli, &configuration) {
        Ok(code) => code,
        Err(failure) => {
            failure.print();
            ExitCode::from(failure.exit_code())
        }
    }
}

/// The settings of file and environment.
fn configuration(arguments: &[OsString]) -> Result<Configuration, Failure> {
    if reads_configuration(arguments) {
        configuration::of_this_process(arguments)
    } else {
        Ok(Configuration::default())
    }
}

/// Not what only this program starts, and not who only asks how it is used.
fn reads_configuration(arguments: &[OsString]) -> bool {
    let command = arguments.get(1).and_then(|argument| argument.to_str()).unwrap_or_default();
    !matches!(command, "executor" | "bench-member" | "help" | "completion" | "--help" | "-h" | "--version" | "-V")
}

/// Takes hidden commands out of the list of those that a bare `ebb` could have been.
fn hide(error: &mut clap::Error) {
    if error.kind() != ErrorKind::MissingSubcommand {
        return;
    }
    let command = Cli::command();
    let hidden = |name: &String| command.find_subcommand(name).is_some_and(clap::Command::is_hide_set);
    if let Some(ContextValue::Strings(names)) = error.get(ContextKind::ValidSubcommand) {
        let shown = names.iter().filter(|name| !hidden(name)).cloned().collect();
        error.insert(ContextKind::ValidSubcommand, ContextValue::Strings(shown));
    }
}

fn dispatch(cli: &Cli, configuration: &Configuration) -> Result<ExitCode, Failure> {
    match &cli.command {
        Command::Executor { copy, threads } => {
            // It exports nothing: what it does for a trace its agent says, and its lines are kept beside it.
            let _no_exports = telemetry(cli, "ebb-executor", "info", None)?;
            let memory = if *copy { Memory::Copied } else { Memory::Lent };
            return workers_executor::run(ebb_telemetry::follow, memory, usize::from(*threads))
                .map(|()| ExitCode::SUCCESS)
                .map_err(|e| Failure::local("the executor ended before its job", e));
        }
        Command::BenchMember(args) => return bench::member(args).map(|()| ExitCode::SUCCESS),
        Command::Simulate { command } => {
            return match command {
                simulate::SimulateCommand::Chaos(args) => simulate::chaos(args, cli.output),
                simulate::SimulateCommand::Run(args) => simulate_run::simulate_run(args, cli.output),
                simulate::SimulateCommand::Again(args) => simulate_again::again(args, cli.output),
                simulate::SimulateCommand::Ask(args) => simulate_ask::simulate_ask(args, cli.output),
                simulate::SimulateCommand::Papers(args) => simulate_papers::simulate_papers(args, cli.output),
            };
        }
        Command::Trace { command } => return trace::trace(command, cli.output).map(|()| ExitCode::SUCCESS),
        Command::Completion { shell } => {
            // Not straight to standard output: the generator panics when nobody reads to the end.
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "ebb", &mut script);
            output::bytes(&script);
            return Ok(ExitCode::SUCCESS);
        }
        Command::Config { command: ConfigCommand::Show } => {
            configuration.show(cli.output);
            return Ok(ExitCode::SUCCESS);
        }
        _ => {}
    }
    let threads = std::thread::available_parallelism().map_or(THREADS_MIN, |cores| cores.get().max(THREADS_MIN));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .map_err(|e| Failure::local("the runtime cannot be set up", e))?;
    let telemetry = match &cli.command {
        Command::Up(_) => telemetry(cli, "ebb", "warn", Some(runtime.handle()))?,
        Command::Gateway(_) => telemetry(cli, "ebb-gateway", "warn", Some(runtime.handle()))?,
        Command::Controller(_) => telemetry(cli, "ebb-controller", "warn", Some(runtime.handle()))?,
        Command::Agent(_) => telemetry(cli, "ebb-agent", "warn", Some(runtime.handle()))?,
        _ => telemetry(cli, "ebb-client", "error", None)?,
    };
    let ended = runtime.block_on(execute(cli));
    telemetry.stop();
    ended.map(|()| ExitCode::SUCCESS)
}

/// How the service is spoken with.
fn client(cli: &Cli) -> Result<Client, Failure> {
    let mut options = ClientOptions::default();
    if let Some(file) = &cli.ca_file {
        options = options.with_ca_file(file);
    }
    if let Some(file) = &cli.credential_file {
        options = options.with_bearer_file(file)?;
    }
    Ok(Client::with(&cli.url, &options)?)
}

async fn execute(cli: &Cli) -> Result<(), Failure> {
    let output = cli.output;
    match &cli.command {
        Command::Up(args) => return up::up(args, output).await,
        Command::Gateway(args) => return roles::gateway::run(args, output).await,
        Command::Controller(args) => return roles::controller::run(args, output).await,
        Command::Agent(args) => return roles::agent::run(args, output).await,
        Command::Slot { command: SlotCommand::TakeBack(args) } => return take_back::take_back(output, args).await,
        Command::Fleet { command: FleetCommand::Token(args) } => return take_back::fleet_token(output, args),
        Command::Demo(args) => return demo::demo(args, output).await,
        Command::Bench(args) => return bench::bench(args, output).await,
        Command::Log { command } => return log::log(command, output).await,
        Command::Store { command } => return store::store(command, output).await,
        _ => {}
    }
    let client = client(cli)?;
    match &cli.command {
        Command::Job(args) => job(&client, output, args).await,
        Command::Model { command: ModelCommand::Get { id, file, output, direct } } => {
            jobs::model_get(&client, *output, id, file, *direct).await
        }
        Command::Model { command: ModelCommand::Link { id } } => links::model_link(&client, output, id).await,
        Command::Dataset { command } => dataset(&client, output, command).await,
        Command::Fleet { command } => fleet(&client, output, command).await,
        Command::Slot { command: SlotCommand::List } => fleets::slots(&client, output).await,
        Command::Tenant { command } => tenants::tenant(&client, output, command).await,
        Command::Event { command: EventCommand::List(args) } => event_list::events(&client, output, args).await,
        Command::Top(args) => top::top(&client, output, args).await,
        Command::Load(args) => load::load(&client, output, args).await,
        Command::Replay(args) => replay::replay(&client, output, args).await,
        // Done before there was a client, or another name of one of these.
        Command::Up(_)
        | Command::Gateway(_)
        | Command::Controller(_)
        | Command::Agent(_)
        | Command::Config { .. }
        | Command::Slot { command: SlotCommand::TakeBack(_) }
        | Command::Demo(_)
        | Command::Bench(_)
        | Command::Simulate { .. }
        | Command::Trace { .. }
        | Command::Log { .. }
        | Command::Store { .. }
        | Command::BenchMember(_)
        | Command::Executor { .. }
        | Command::Completion { .. }
        | Command::Short(_) => Ok(()),
    }
}

async fn job(client: &Client, output: Output, args: &JobArgs) -> Result<(), Failure> {
    let command = match (&args.id, &args.command) {
        (None, Some(command)) => command,
        (Some(id), None) => return jobs::show(client, output, id).await,
        (Some(id), Some(_)) => {
            return Err(Failure::Usage(format!("`{id}` stands before the command; it goes behind it")));
        }
        (None, None) => return Err(Failure::Usage("which job, or which command?".to_owned())),
    };
    match command {
        JobCommand::Submit(args) => jobs::submit(client, output, args).await,
        JobCommand::List(args) => jobs::list(client, output, args).await,
        JobCommand::Show(job) => jobs::show(client, output, &job.id).await,
        JobCommand::Watch(args) => watch::watch(client, output, args.id.as_deref()).await,
        JobCommand::Wait(args) => watch::wait(client, output, args).await,
        JobCommand::Explain(args) => explain::explain(client, output, args).await,
        JobCommand::Logs(args) => logs::logs(client, output, args).await,
        JobCommand::Cancel(job) => jobs::change(client, output, &job.id, Change::Cancel).await,
        JobCommand::Suspend(job) => jobs::change(client, output, &job.id, Change::Suspend).await,
        JobCommand::Resume(job) => jobs::change(client, output, &job.id, Change::Resume).await,
        JobCommand::Checkpoints(args) => jobs::checkpoints(client, output, args).await,
        JobCommand::Verify(args) => verify::verify(client, output, args).await,
    }
}

async fn dataset(client: &Client, output: Output, command: &DatasetCommand) -> Result<(), Failure> {
    match command {
        DatasetCommand::Register(args) => datasets::register(client, output, args).await,
        DatasetCommand::Import(args) => datasets::import(client, output, args).await,
        DatasetCommand::List => datasets::list(client, output).await,
        DatasetCommand::Show { name } => datasets::show(client, output, name).await,
        DatasetCommand::Links(args) => links::dataset_links(client, output, args).await,
        DatasetCommand::Remove { name } => datasets::remove(client, output, name).await,
    }
}

async fn fleet(client: &Client, output: Output, command: &FleetCommand) -> Result<(), Failure> {
    match command {
        FleetCommand::List => fleets::list(client, output).await,
        FleetCommand::Put(args) => fleets::put(client, output, args).await,
        FleetCommand::Show { name } => fleets::show(client, output, name).await,
        FleetCommand::Demand(args) => fleets::demand(client, output, args).await,
        FleetCommand::Offer(args) => fleets::offer(client, output, args).await,
        FleetCommand::Reclaim(args) => fleets::reclaim(client, output, args).await,
        FleetCommand::Recall(args) => fleets::recall(client, output, args).await,
        FleetCommand::Ledger(args) => ledger::ledger(client, output, args).await,
        FleetCommand::Release { fleet } => fleets::release(client, output, fleet).await,
        // Needs no service.
        FleetCommand::Token(_) => Ok(()),
    }
}

/// Diagnostics to standard error, as much as `EBB_LOG` asks for (`debug`, `gateway=info,warn`, …), and for a service what `OTEL_*` asks for.
fn telemetry(
    cli: &Cli,
    service: &'static str,
    log: &'static str,
    runtime: Option<&Handle>,
) -> Result<Telemetry, Failure> {
    let options = Options { service, log, format: cli.log_format, ansi: output::terminal() };
    ebb_telemetry::start(options, runtime).map_err(|error| Failure::local("telemetry cannot be set up", error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn hidden_commands_stay_hidden() {
        // An option (or EBB_URL) is enough for an error instead of the help.
        let Err(mut error) = Cli::try_parse_from(["ebb", "--output", "json"]) else { panic!("no command is no usage") };
        hide(&mut error);
        let text = error.to_string();
        assert!(text.contains("dataset") && !text.contains("executor") && !text.contains("bench-member"), "{text}");
    }
}
