//! Samples of generations whose updates take several steps.

use super::{job, proposal};
use events_schema::fact::{Fact, Proposal};
use events_schema::report::Report;
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
        Fact::ThroughputMeasured { job: job(), members: 2, step_us: 61_000, stride },
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
    vec![stepped, Report::ThroughputMeasured { job: job(), generation, members: 2, step_us: 61_000, stride }]
}
