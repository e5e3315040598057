//! `ebb simulate run --detailed`: each policy once more, in the world where agents, executors, sessions and messages are real machines, beside what the fast mode
//! says of it. What happens there is in `loadtest/world`, and what is made of it in `loadtest/simulate/src/detailed`.

use crate::failure::Failure;
use controller_core::Policy;
use loadtest_simulate::detailed::{self, COMPARED, document, longest_ms, ratios, run};
use loadtest_simulate::outcome::table;
use loadtest_simulate::{Outcome, Setup};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;

/// What stands between a policy's name and that it is of the detailed mode.
const MODE: &str = "detailed";

/// Whether a setup can be run in detail, known before anything takes time.
pub(crate) fn fits(setup: &Setup, policies: &[Arc<dyn Policy>]) -> Result<(), Failure> {
    let fit = policies.iter().try_for_each(|policy| detailed::fits(setup, policy.name()));
    fit.map_err(|error| Failure::Usage(error.to_string()))
}

/// One policy in detail: its figures, and what must not be.
pub(crate) fn detailed(
    setup: &Setup,
    policy: &Arc<dyn Policy>,
    fast: &Outcome,
) -> Result<(Value, Vec<String>), Failure> {
    let deadlines: Vec<Option<u64>> = setup.jobs.iter().map(|job| job.deadline_ms).collect();
    let begun = Instant::now();
    // A machine that panics is a finding, with its words; they are not to stand between the lines as well.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let outcome = run(setup, policy, longest_ms(fast));
    std::panic::set_hook(hook);
    let outcome = outcome.map_err(|error| Failure::Usage(error.to_string()))?;
    let figures = document(&outcome, &deadlines, begun.elapsed().as_secs_f64());
    Ok((figures, outcome.tally.violations))
}

/// The figures of each policy in detail, with what the fast mode says ÷ what the detailed one does.
pub(crate) fn compared(fast: &[Value], detailed: &[Value]) -> Vec<Value> {
    let with_ratios = |(fast, detailed): (&Value, &Value)| {
        let mut with = detailed.clone();
        with["fast_over_detailed"] = ratios(fast, detailed);
        with
    };
    fast.iter().zip(detailed).map(with_ratios).collect()
}

/// A table with both modes of each policy side by side, and how far they differ.
pub(crate) fn side_by_side(fast: &[Value], detailed: &[Value]) -> String {
    let named = |of: &Value| {
        let mut of = of.clone();
        of["policy"] = json!(format!("{} {MODE}", of["policy"].as_str().unwrap_or_default()));
        of
    };
    let both: Vec<Value> = fast.iter().zip(detailed).flat_map(|(fast, of)| [fast.clone(), named(of)]).collect();
    let ratio = |of: &Value| {
        let said = |(name, key): (&str, &str)| {
            let ratio = of["fast_over_detailed"][key].as_f64();
            format!("{name} {}", ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}")))
        };
        format!("{}: fast ÷ detailed: {}", of["policy"].as_str().unwrap_or_default(), COMPARED.map(said).join(", "))
    };
    let ratios: Vec<String> = detailed.iter().map(ratio).collect();
    format!("{}\n{}", table(&both).trim_end(), ratios.join("\n"))
}
