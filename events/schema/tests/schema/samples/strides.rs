//! Samples of generations whose updates take several steps, and of how sure it is what an update takes.

use super::{Sample, job, proposal, sample};
use events_schema::fact::{Fact, Proposal};
use events_schema::report::Report;
use events_schema::spread::Spread;
use events_schema::stride::Stride;
use events_schema::{Generation, Step};

/// Of a generation whose updates take several steps.
pub fn facts_of_strides() -> Vec<Fact> {
    let (stride, proposal) = (Stride::of(4), proposal());
    vec![
        Fact::GenerationProposed { job: job(), proposal: Proposal { stride, ..proposal } },
        Fact::GenerationStepped {
            job: job(),
            generation: Generation(4),
            step: Step(102),
            first_step_us: 64_000,
            usual_step_us: Some(61_000),
            members: Some(2),
            stride,
        },
        Fact::ThroughputMeasured { job: job(), members: 2, step_us: 61_000, stride, spread: None },
    ]
}

/// Of a generation whose updates take several steps.
pub fn reports_of_strides() -> Vec<Report> {
    let (generation, stride) = (Generation(4), Stride::of(4));
    let stepped = Report::GenerationStepped {
        job: job(),
        generation,
        step: Step(102),
        first_step_us: 64_000,
        usual_step_us: Some(61_000),
        usual_members: Some(2),
        stride,
    };
    vec![stepped, measured(61_000, stride, None)]
}

/// What a leader measured.
pub fn measured(step_us: u64, stride: Stride, spread: Option<Spread>) -> Report {
    Report::ThroughputMeasured { job: job(), generation: Generation(4), members: 2, step_us, stride, spread }
}

/// Of speeds that say how sure they are.
pub fn of_spread() -> Vec<Sample> {
    let (stride, spread) = (Stride::ONE, Some(Spread { updates: 9, deviation_us: 740 }));
    let fact = Fact::ThroughputMeasured { job: job(), members: 2, step_us: 17_600, stride, spread };
    vec![
        sample("Fact(spread)::ThroughputMeasured", &fact),
        sample("Report(spread)::ThroughputMeasured", &measured(61_000, Stride::of(4), spread)),
        sample("Report(spread, one step)::ThroughputMeasured", &measured(61_000, Stride::ONE, spread)),
    ]
}
