//! `ebb demo`: prints what came of the demo (`loadtest/demo`), and fails if it broke a promise.

use crate::args::DemoArgs;
use crate::failure::Failure;
use crate::output::{Output, line, pairs, terminal};
use crate::roles::signals::unless_interrupted;
use loadtest_demo::DemoOptions;
use loadtest_harness::scratch::Scratch;

/// `ebb demo`.
pub async fn demo(args: &DemoArgs, output: Output) -> Result<(), Failure> {
    let folder = Scratch::fresh("ebb-demo")?;
    let options = DemoOptions {
        log: args.log.as_deref(),
        store: args.store.as_deref(),
        plot: args.plot.as_deref(),
        live: terminal(),
    };
    let Some(result) = unless_interrupted(async { Ok(loadtest_demo::run(&options, &folder).await?) }).await else {
        folder.remove().await?;
        return Err(Failure::Interrupted);
    };
    let verdict = result?;
    match output {
        Output::Json => line(verdict.json().to_string()),
        Output::Table | Output::Name => line(pairs(&verdict.rows())),
    }
    if args.keep {
        line(format!("kept: {}", folder.path().display()));
    } else {
        folder.remove().await?;
    }
    verdict.check().map_err(|broken| Failure::from(broken).advise("run it again with --keep and look at its directory"))
}
