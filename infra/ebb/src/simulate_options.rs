//! Arguments together with how they were said: each by its name, whether it was given, left to its default, or left out. The list is made of what was
//! parsed, so no option can be missing where all of them are printed.

use clap::error::Error;
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Args, Command, FromArgMatches, Id};
use serde_json::{Map, Value};
use std::ops::Deref;

/// Parsed arguments, and how they were said.
#[derive(Debug, Clone)]
pub struct Given<A> {
    args: A,
    said: Vec<Said>,
}

/// One argument.
#[derive(Debug, Clone)]
struct Said {
    /// What it is called in the list of options.
    name: String,
    kind: Kind,
    /// As typed, or by default; none if it was left out.
    values: Option<Vec<String>>,
    is_typed: bool,
}

/// What can be said of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Switch,
    One,
    /// With commas between.
    Several,
    /// Said once for each.
    Repeated,
}

impl<A> Deref for Given<A> {
    type Target = A;
    fn deref(&self) -> &A {
        &self.args
    }
}

/// What a report is made of ([`crate::simulate_report::ReportArgs`]): no figure follows from it.
const NO_OPTIONS: [&str; 2] = ["report", "job"];

impl<A> Given<A> {
    /// Every option by its name, in the words it was said in; numbers and switches as what they are.
    pub(crate) fn options(&self) -> Map<String, Value> {
        self.all().map(|said| (said.name.clone(), said.value())).collect()
    }

    /// What has to be typed for the same options. Defaults do not: typed, they may stand in the way of other options.
    pub(crate) fn arguments(&self) -> Vec<String> {
        self.all().flat_map(Said::typed).collect()
    }

    fn all(&self) -> impl Iterator<Item = &Said> {
        self.said.iter().filter(|said| !NO_OPTIONS.contains(&said.name.as_str()))
    }
}

impl Said {
    fn value(&self) -> Value {
        let one = |text: &String| match serde_json::from_str(text) {
            Ok(plain @ (Value::Number(_) | Value::Bool(_))) => plain,
            _ => Value::from(text.as_str()),
        };
        match (&self.values, self.kind) {
            (None, Kind::Several | Kind::Repeated) => Value::Array(Vec::new()),
            (None, _) => Value::Null,
            (Some(values), Kind::Several | Kind::Repeated) => values.iter().map(one).collect(),
            (Some(values), _) => values.last().map_or(Value::Null, one),
        }
    }

    fn typed(&self) -> Vec<String> {
        let Some(values) = self.values.as_ref().filter(|_| self.is_typed) else { return Vec::new() };
        let name = self.name.replace('_', "-");
        match self.kind {
            Kind::Switch if values.last().is_some_and(|on| on == "true") => vec![format!("--{name}")],
            Kind::Switch => Vec::new(),
            Kind::One | Kind::Several => vec![format!("--{name}={}", values.join(","))],
            Kind::Repeated => values.iter().map(|value| format!("--{name}={value}")).collect(),
        }
    }
}

fn said(command: &Command, matches: &ArgMatches) -> Vec<Said> {
    let of = |argument: &clap::Arg| {
        let kind = match argument.get_action() {
            ArgAction::SetTrue | ArgAction::SetFalse => Kind::Switch,
            _ if argument.get_value_delimiter().is_some() => Kind::Several,
            ArgAction::Append => Kind::Repeated,
            _ => Kind::One,
        };
        let values = matches.get_raw(argument.get_id().as_str());
        let values = values.map(|values| values.map(|value| value.to_string_lossy().into_owned()).collect());
        let is_typed = matches.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine);
        Said { name: argument.get_id().to_string(), kind, values, is_typed }
    };
    command.get_arguments().map(of).collect()
}

impl<A: Args> FromArgMatches for Given<A> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let said = said(&A::augment_args(Command::new("options")), matches);
        Ok(Self { args: A::from_arg_matches(matches)?, said })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<A: Args> Args for Given<A> {
    fn group_id() -> Option<Id> {
        A::group_id()
    }

    fn augment_args(command: Command) -> Command {
        A::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        A::augment_args_for_update(command)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::simulate_run::RunArgs;
    use clap::Parser;
    use serde_json::json;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        run: Given<RunArgs>,
    }

    fn options(of: &[&str]) -> Map<String, Value> {
        let line = ["run", "--cluster", "1x1:t4", "--generate", "poisson:1x1"];
        Line::try_parse_from(line.iter().chain(of)).unwrap().run.options()
    }

    #[test]
    fn every_argument_is_an_option_whether_it_was_said_or_not() {
        let (plain, said) = (options(&[]), options(&["--guests", "--first", "3", "--quota", "a=1,b=2"]));
        let command = RunArgs::augment_args(Command::new("run"));
        assert!(command.get_arguments().count() > 30);
        for argument in command.get_arguments().filter(|of| !NO_OPTIONS.contains(&of.get_id().as_str())) {
            let name = argument.get_long().unwrap().replace('-', "_");
            assert!(plain.contains_key(&name) && said.contains_key(&name), "{name}");
        }
        let shown = |of: &Map<String, Value>| {
            ["guests", "mixed_types", "first", "quota", "speed_up"].map(|name| of[name].clone())
        };
        assert_eq!(json!(shown(&plain)), json!([false, false, null, [], 1]));
        assert_eq!(json!(shown(&said)), json!([true, false, 3, ["a=1", "b=2"], 1]));
    }

    #[test]
    fn what_is_typed_again_has_the_same_options() {
        let line = [
            "run",
            "--cluster",
            "2x4:t4",
            "--inference",
            "1x1:t4,1x2:t4",
            "--demand",
            "d.csv:a",
            "--demand",
            "d.csv:b",
        ];
        let line = line.into_iter().chain(["--jobs", "a=b.csv", "--quota", "a=1,b=2", "--guests", "--report", "x"]);
        let once = Line::try_parse_from(line).unwrap().run;
        let arguments = once.arguments();
        let typed = "--jobs=a=b.csv --cluster=2x4:t4 --inference=1x1:t4,1x2:t4 --demand=d.csv:a --demand=d.csv:b --quota=a=1,b=2 --guests";
        assert_eq!(arguments.join(" "), typed);
        let again = Line::try_parse_from([&["run".to_owned()][..], &arguments[..]].concat()).unwrap().run;
        assert_eq!((again.options(), again.arguments(), &again.report.report), (once.options(), arguments, &None));
    }
}
