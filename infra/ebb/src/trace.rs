//! `ebb trace import`: what Ebb's own log recorded as files for `ebb simulate run`. What of a log is a recording is in
//! `loadtest/simulate/src/imported`; here are only the files and what is printed.

use crate::args::Since;
use crate::failure::Failure;
use crate::output::{Output, json as print_json, line};
use crate::simulate_run::write;
use clap::{Args, Subcommand, ValueHint};
use controller_core::policy::POLICY_NAMES;
use controller_core::policy::ibm_dp::DELTA_MS;
use events_schema::TimeMs;
use gateway_api::rfc3339;
use loadtest_simulate::Cluster;
use loadtest_simulate::imported::{Import, Imported, Policy, Window};
use serde_json::json;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// What `ebb trace` does.
#[derive(Debug, Clone, Subcommand)]
pub enum TraceCommand {
    /// Make jobs and demand of a log, so that last week runs again under another policy
    #[command(after_help = HELP)]
    Import(ImportArgs),
}

const HELP: &str = "\
Examples:
  ebb log export --data ./ebb-data > log.jsonl
  ebb trace import log.jsonl --into last-week --from 7d
  ebb trace import log.jsonl --into november --from 2026-11-01T00:00:00Z --to 2026-12-01T00:00:00Z

Writes jobs.csv, demand.csv if fleets ever needed slots, and speeds/ if any were measured, and prints the `ebb simulate run` that runs them. docs/simulator.md says what
of a log becomes what.";

/// Arguments of `ebb trace import`.
#[derive(Debug, Clone, Args)]
pub struct ImportArgs {
    /// What `ebb log export` printed.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub export: PathBuf,
    /// Folder for the files; made if it is not there.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub into: PathBuf,
    /// Only jobs that came from then on, or were there: a time such as 2026-11-01T00:00:00Z, or how long before the log's end, such as 7d.
    #[arg(long, value_name = "TIME")]
    pub from: Option<Since>,
    /// Only jobs that came before then, said in the same way.
    #[arg(long, value_name = "TIME")]
    pub to: Option<Since>,
}

/// `ebb trace …`.
pub fn trace(command: &TraceCommand, output: Output) -> Result<(), Failure> {
    let TraceCommand::Import(args) = command;
    let import = read(&args.export)?;
    let Some(lasts_ms) = import.lasts_ms() else {
        return Err(Failure::plain(format!("nothing stands in {}", args.export.display())));
    };
    let found = finish(import, window(args, lasts_ms)?);
    if found.jobs.is_empty() {
        let when = if args.from.is_some() || args.to.is_some() { " in that time" } else { "" };
        let (file, untrained, unfinished) = (args.export.display(), found.untrained, found.unfinished);
        let why = format!(
            "no job of {file} trained{when} and ended, so there is nothing to run again ({untrained} never trained, {unfinished} go on)"
        );
        return Err(Failure::plain(why));
    }
    let (jobs, demand) = (args.into.join("jobs.csv"), args.into.join("demand.csv"));
    let cannot = |error| Failure::local(format!("{} cannot be made", args.into.display()), error);
    std::fs::create_dir_all(&args.into).map_err(cannot)?;
    write(&jobs, &found.jobs_csv())?;
    if !found.serving.is_empty() {
        write(&demand, &found.demand_csv())?;
    }
    let tables = args.into.join("speeds");
    clear(&tables, &found)?;
    for table in &found.tables {
        write(&tables.join(format!("{}.csv", table.name)), &table.csv())?;
    }
    let again = again(&found, &jobs, &demand, &tables);
    match output {
        Output::Json => print_json(&json!({
            "jobs": found.jobs.len(), "began_before": found.began_before, "untrained": found.untrained, "unfinished": found.unfinished,
            "tables": found.tables.iter().map(|table| &table.name).collect::<Vec<_>>(),
            "cluster": found.cluster.groups, "inference": found.serving.iter().map(|of| &of.group).collect::<Vec<_>>(),
            "left_out": found.left_out, "command": again,
        })),
        Output::Table | Output::Name => {
            let before = match found.began_before {
                0 => String::new(),
                count => format!(", {count} of them with what was left of them when that time began"),
            };
            line(format!("{} jobs{before}", found.jobs.len()));
            found.left_out.iter().for_each(|what| line(format!("left out: {what}")));
            line(again);
        }
    }
    Ok(())
}

/// Makes the folder of tables, without those of an import before, which would be of other jobs.
fn clear(folder: &Path, found: &Imported) -> Result<(), Failure> {
    let cannot = |error| Failure::local(format!("{} cannot be made anew", folder.display()), error);
    let earlier = match std::fs::read_dir(folder) {
        Ok(listed) => listed.collect::<Result<Vec<_>, _>>().map_err(cannot)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(cannot(error)),
    };
    for file in earlier.iter().filter(|file| file.file_name().to_string_lossy().starts_with("kind-")) {
        std::fs::remove_file(file.path()).map_err(cannot)?;
    }
    if found.tables.is_empty() { Ok(()) } else { std::fs::create_dir_all(folder).map_err(cannot) }
}

/// Which part of a log is wanted, of one that lasts from a moment to another.
fn window(args: &ImportArgs, (begins_ms, ends_ms): (u64, u64)) -> Result<Window, Failure> {
    let all = Window::default();
    let at = |said: Option<Since>, otherwise: u64| said.map_or(otherwise, |said| said.ms(ends_ms));
    let window = Window { from_ms: at(args.from, all.from_ms), to_ms: at(args.to, all.to_ms) };
    let shown = |ms: u64| rfc3339(TimeMs(ms));
    let lasts = format!("the log lasts from {} to {}", shown(begins_ms), shown(ends_ms));
    let wrong = |what: String| Err(Failure::Usage(format!("{what}; {lasts}")));
    if window.from_ms >= window.to_ms {
        return wrong(format!(
            "--from is {} and --to {}, which is not later",
            shown(window.from_ms),
            shown(window.to_ms)
        ));
    }
    if window.from_ms > ends_ms {
        return wrong(format!("--from is {}, when nothing happens any more", shown(window.from_ms)));
    }
    if window.to_ms <= begins_ms {
        return wrong(format!("--to is {}, when nothing has happened yet", shown(window.to_ms)));
    }
    Ok(window)
}

fn read(file: &Path) -> Result<Import, Failure> {
    let cannot = |error| Failure::local(format!("{} cannot be read", file.display()), error);
    let mut import = Import::default();
    // A line is a batch, and a log may be longer than memory.
    for text in BufReader::new(File::open(file).map_err(cannot)?).lines() {
        let text = text.map_err(cannot)?;
        import.line(&text).map_err(|error| Failure::Usage(format!("{}: {error}", file.display())))?;
    }
    Ok(import)
}

/// What a log came to, and what of that this build has no place for.
fn finish(import: Import, window: Window) -> Imported {
    let mut found = import.finish(window);
    if let Some(Policy { name, .. }) = found.policy.as_ref().filter(|policy| !is_known(policy)) {
        found.left_out.push(format!(
            "the policy {name}, which planned: this build has none of that name, so all that it has are run"
        ));
    }
    found
}

fn is_known(policy: &Policy) -> bool {
    POLICY_NAMES.contains(&policy.name.as_str())
}

/// What runs it again, under the policy that planned.
fn again(found: &Imported, jobs: &Path, demand: &Path, tables: &Path) -> String {
    let shown = |path: &Path| {
        let path = path.to_string_lossy().into_owned();
        shlex::try_quote(&path).map_or_else(|_| path.clone(), |quoted| quoted.into_owned())
    };
    let mut said = vec![format!("ebb simulate run --jobs {}", shown(jobs))];
    if !found.tables.is_empty() {
        said.push(format!("--tables {}", shown(tables)));
    }
    if !found.cluster.groups.is_empty() {
        said.push(format!("--cluster {}", found.cluster));
    }
    if !found.serving.is_empty() {
        let inference = Cluster { groups: found.serving.iter().map(|of| of.group.clone()).collect() };
        said.push(format!("--inference {inference}"));
        said.extend(found.serving.iter().map(|of| format!("--demand {}:{}", shown(demand), of.column())));
        said.push("--demand-in-slots".to_owned());
        said.extend(found.reclaim_deadline_ms.map(|ms| format!("--reclaim-deadline-ms {ms}")));
    }
    // What policies know of a job that says its steps.
    said.push("--information stepped".to_owned());
    if !found.quotas.is_empty() {
        let quotas: Vec<String> = found.quotas.iter().map(|(tenant, slots)| format!("{tenant}={slots}")).collect();
        said.push(format!("--quota {}", quotas.join(",")));
    }
    let flags = [(found.guests, "--guests"), (found.mixed_types, "--mixed-types"), (found.profile, "--profile")];
    said.extend(flags.into_iter().filter(|(is, _)| *is).map(|(_, flag)| flag.to_owned()));
    said.extend(found.step_ms.map(|ms| format!("--step-ms {ms}")));
    said.extend(found.start_ms.map(|ms| format!("--start-ms {ms}")));
    said.extend(found.replica_mb.map(|mb| format!("--replica-mb {mb}")));
    if let Some(policy) = found.policy.as_ref().filter(|policy| is_known(policy)) {
        said.push(format!("--policies {}", policy.name));
        if policy.forecasts {
            said.push("--lending forecast".to_owned());
        }
        if policy.name.starts_with("ibm-dp") {
            said.push(format!("--delta-s {}", DELTA_MS / 1_000));
        }
    }
    said.join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn args(of: &[&str]) -> ImportArgs {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            import: ImportArgs,
        }
        let line = ["import", "log.jsonl", "--into", "out"].iter().chain(of);
        clap::Parser::try_parse_from(line).map(|Line { import }| import).unwrap()
    }

    fn facts(at_ms: u64, facts: serde_json::Value) -> String {
        json!({"offset": 1, "at_ms": at_ms, "facts": facts}).to_string()
    }

    #[test]
    fn an_export_becomes_files_that_can_be_run() {
        let folder = tempfile::tempdir().unwrap();
        let (export, into) = (folder.path().join("log.jsonl"), folder.path().join("out"));
        let spec = json!({"name": "a", "workers": {"min": 1, "max": 2}, "priority": 0});
        let lines = [
            facts(
                0,
                json!([{"fact": "agent_joined", "server": "s", "slots": 3, "class": "c", "slot_type": "t4"},
                {"fact": "agent_joined", "server": "u", "slots": 2, "class": "c", "slot_type": "v100"},
                {"fact": "fleet_declared", "fleet": "f", "slots": ["s/0", "s/1", "s/2"], "reclaim_deadline_ms": 700},
                {"fact": "demand_accepted", "fleet": "f", "needed": 0},
                {"fact": "fleet_declared", "fleet": "g", "slots": ["u/0", "u/1"], "offers": "explicit", "reclaim_deadline_ms": 500},
                {"fact": "slots_offered", "fleet": "g", "slots": ["u/0", "u/1"]},
                {"fact": "quota_set", "tenant": "labs", "quota_slots": 2},
                {"fact": "policy_chosen", "policy": "ibm-dp", "forecast_day_ms": 1}]),
            ),
            facts(
                1_000,
                json!([{"fact": "job_accepted", "job": "j", "tenant": "local", "spec": spec},
                {"fact": "plan_adopted", "job": "j", "slots": ["s/0", "s/1"]}]),
            ),
            facts(2_000, json!([{"fact": "generation_active", "job": "j"}])),
            facts(3_000, json!([{"fact": "demand_accepted", "fleet": "f", "needed": 1}])),
            facts(4_000, json!([{"fact": "throughput_measured", "job": "j", "members": 2, "step_us": 250_000}])),
            facts(9_000, json!([{"fact": "job_finished", "job": "j"}])),
        ];
        std::fs::write(&export, lines.join("\n")).unwrap();
        let wanted = ImportArgs { export: export.clone(), into: into.clone(), ..args(&[]) };
        trace(&TraceCommand::Import(wanted), Output::Json).unwrap();
        assert!(
            std::fs::read_to_string(into.join("jobs.csv"))
                .unwrap()
                .contains("\"j a\",0,7.000,2,1,2,\"local\",0,,kind-1,2,\n")
        );
        assert_eq!(std::fs::read_to_string(into.join("demand.csv")).unwrap(), "t,f_keeps\n0,0\n2,1\n8,1\n");
        assert_eq!(std::fs::read_to_string(into.join("speeds/kind-1.csv")).unwrap(), "global_batch_size,1,2\n2,2,4\n");
        let found = read(&export).unwrap().finish(Window::default());
        let command = again(&found, Path::new("jobs.csv"), Path::new("a b.csv"), Path::new("speeds"));
        assert_eq!(
            command,
            "ebb simulate run --jobs jobs.csv --tables speeds --cluster 1x2:v100 --inference 1x3:t4 --demand 'a b.csv':f_keeps --demand-in-slots \
             --reclaim-deadline-ms 700 --information stepped --quota labs=2 --step-ms 250 --policies ibm-dp --lending forecast --delta-s 600"
        );
    }

    #[test]
    fn a_policy_that_this_build_does_not_know_is_said_to_be_left_out() {
        let found = |name: &str| {
            let mut import = Import::default();
            import.line(&facts(0, json!([{"fact": "policy_chosen", "policy": name}]))).unwrap();
            let found = finish(import, Window::default());
            let command = again(&found, Path::new("a"), Path::new("b"), Path::new("c"));
            (command.contains("--policies"), found.left_out.iter().filter(|what| what.contains(name)).count())
        };
        assert_eq!([found("fifo"), found("of-tomorrow")], [(true, 0), (false, 1)]);
    }

    /// A log of ten days, from the 1st of January 2026 on.
    const DAYS: (u64, u64) = (1_767_225_600_000, 1_768_089_600_000);

    #[test]
    fn a_window_is_said_by_times_or_back_from_the_logs_end() {
        let of = |said: &[&str]| window(&args(said), DAYS).unwrap();
        assert_eq!(of(&[]), Window::default());
        let seven = Window { from_ms: DAYS.1 - 7 * 86_400_000, ..Window::default() };
        assert_eq!(of(&["--from", "7d"]), seven);
        assert_eq!(of(&["--from", "2026-01-04T00:00:00Z"]), seven);
        assert_eq!(of(&["--from", "7d", "--to", "2d"]), Window { to_ms: DAYS.1 - 2 * 86_400_000, ..seven });
    }

    #[test]
    fn a_window_in_which_nothing_can_be_is_refused_with_what_the_log_has() {
        let said = |of: &[&str]| match window(&args(of), DAYS) {
            Err(Failure::Usage(said)) => said,
            other => panic!("{of:?}: {:?}", other.is_ok()),
        };
        let lasts = "the log lasts from 2026-01-01T00:00:00.000Z to 2026-01-11T00:00:00.000Z";
        let cases: [(&[&str], &str); 4] = [
            (&["--from", "2d", "--to", "7d"], "--from is 2026-01-09T00:00:00.000Z and --to 2026-01-04T00:00:00.000Z"),
            (&["--from", "2d", "--to", "2d"], "which is not later"),
            (&["--from", "2026-02-01T00:00:00Z"], "--from is 2026-02-01T00:00:00.000Z, when nothing happens any more"),
            (&["--to", "30d"], "--to is 2025-12-12T00:00:00.000Z, when nothing has happened yet"),
        ];
        for (arguments, expected) in cases {
            let said = said(arguments);
            assert!(said.contains(expected) && said.contains(lasts), "{said}");
        }
        assert!("last week".parse::<Since>().unwrap_err().contains("2026-01-01T00:00:00Z"));
    }
}
