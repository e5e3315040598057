//! `ebb simulate ask`: an operator's question, answered by running the same jobs several times. What is varied and what the figures say is in
//! `loadtest/simulate/src/questions`; here are only the arguments, the clock and what is printed.

use crate::failure::{Failure, exit_code};
use crate::output::{Output, advise, json as print_json, line};
use crate::simulate_files::Files;
use crate::simulate_options::Given;
use crate::simulate_setup::{Rules, SetupArgs, resolved, setup};
use clap::{Args, ValueEnum};
use loadtest_simulate::outcome::options;
use loadtest_simulate::questions::{Question, QuestionError, Ran, answer};
use loadtest_simulate::run;
use serde_json::json;
use std::process::ExitCode;

/// Examples of `ebb simulate ask`.
pub const HELP: &str = "\
Examples:
  ebb simulate ask savings --jobs docs/examples/simulate/jobs.csv --cluster 2x4:t4 --policies fifo,ebb
  ebb simulate ask lending --jobs docs/examples/simulate/jobs.csv --cluster 1x4:t4 \\
    --inference 1x8:t4 --demand docs/examples/load/servegen-day.csv:rate_req_s

Takes the files and options of `ebb simulate run`; `ebb trace import` makes them of your own log. Each row is a run of its own, which
`ebb simulate run` makes again with --lent-max, --headroom or --cluster. docs/simulator.md says what each question means.";

/// What can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Asked {
    /// How much would these policies have saved, beside the one that there was?
    Savings,
    /// How many lent slots are worth the trouble?
    Lending,
    /// How many slots must fleets keep back so that they never lack one?
    Headroom,
    /// How many slots does it take until no job misses its deadline?
    Deadlines,
    /// What if fleets need, or jobs ask for, twice as much?
    Growth,
}

/// Arguments of `ebb simulate ask`.
#[derive(Debug, Clone, Args)]
pub struct AskArgs {
    /// The question.
    #[arg(value_enum)]
    pub question: Asked,
    /// What is simulated.
    #[command(flatten)]
    pub setup: SetupArgs,
    /// The policy, ebb without it; savings: the one that there was, and those to compare with it, fifo,ebb without it.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub policies: Vec<String>,
    /// Numbers to try instead of the usual ones: slots lent, kept back, or more in the cluster; growth: times as much.
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    pub at: Vec<f64>,
}

impl Asked {
    fn question(self) -> Question {
        match self {
            Self::Savings => Question::Savings,
            Self::Lending => Question::Lending,
            Self::Headroom => Question::Headroom,
            Self::Deadlines => Question::Deadlines,
            Self::Growth => Question::Growth,
        }
    }

    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The policies of a question: one, but for savings.
fn policies(args: &AskArgs) -> Result<Vec<String>, Failure> {
    let usual: &[&str] = if args.question == Asked::Savings { &["fifo", "ebb"] } else { &["ebb"] };
    let names =
        if args.policies.is_empty() { usual.iter().map(ToString::to_string).collect() } else { args.policies.clone() };
    if args.question != Asked::Savings && names.len() > 1 {
        let why = format!("--policies: `{}` is asked of one policy; expected one name", args.question.name());
        return Err(Failure::Usage(why));
    }
    if args.question == Asked::Savings && !args.at.is_empty() {
        return Err(Failure::Usage("--at: `savings` varies policies and no number; leave it out".to_owned()));
    }
    Ok(names)
}

/// `ebb simulate ask`.
pub fn simulate_ask(args: &Given<AskArgs>, output: Output) -> Result<ExitCode, Failure> {
    let rules = Rules::of(&args.setup)?;
    let names = policies(args)?;
    let policies = names.iter().map(|name| rules.policy(name, &args.setup)).collect::<Result<Vec<_>, _>>()?;
    let (was, notes, trace) = setup(&args.setup, &rules, args.setup.seed, &mut Files::default())?;
    let named: Vec<&str> = names.iter().map(String::as_str).collect();
    let wrong = |error: QuestionError| Failure::Usage(error.to_string());
    let cases = args.question.question().cases(&was, &named, &args.at).map_err(wrong)?;
    let mut said = args.options();
    said.insert("policies".to_owned(), json!(names));
    said.extend(resolved(&args.setup, &rules, &was, &trace, &notes));
    if let Output::Table | Output::Name = output {
        line(options(said.clone()).trim_end());
        line("");
    }
    let (mut ran, mut violations) = (Vec::new(), Vec::new());
    for case in cases {
        let setup = case.setup(&was);
        let Some(policy) = policies.get(case.policy) else { continue };
        // Nothing of an answer is from the clock.
        let outcome = run(&setup, policy.as_ref(), &mut || 0);
        violations.extend(outcome.tally.violations.iter().map(|what| format!("{}: {what}", case.name)));
        ran.push(Ran::of(case, &setup, &outcome));
    }
    let answer = answer(args.question.question(), ran);
    match output {
        Output::Json => {
            let question = args.question.name();
            print_json(&json!({
                "question": question, "options": said, "rows": answer.rows, "answer": answer.answer, "violations": violations,
            }));
        }
        Output::Table | Output::Name => {
            line(answer.table().trim_end());
            line("");
            line(&answer.answer);
        }
    }
    violations.iter().for_each(|what| advise(format!("this must not be: {what}")));
    Ok(if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(exit_code::FAILED) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn args(of: &[&str]) -> AskArgs {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            ask: AskArgs,
        }
        let line = ["ask"].iter().chain(of).chain(&["--jobs", "jobs.csv", "--cluster", "1x1:t4"]);
        clap::Parser::try_parse_from(line).map(|Line { ask }| ask).unwrap()
    }

    #[test]
    fn savings_are_of_several_policies_and_all_else_is_of_one() {
        assert_eq!(policies(&args(&["savings"])).unwrap(), ["fifo", "ebb"]);
        assert_eq!(policies(&args(&["growth"])).unwrap(), ["ebb"]);
        assert_eq!(policies(&args(&["savings", "--policies", "ebb,afs,fifo"])).unwrap(), ["ebb", "afs", "fifo"]);
        let error = policies(&args(&["growth", "--policies", "ebb,afs"])).unwrap_err().to_string();
        assert!(error.contains("`growth` is asked of one policy"), "{error}");
        let error = policies(&args(&["savings", "--at", "1,2"])).unwrap_err().to_string();
        assert!(error.contains("--at"), "{error}");
    }
}
