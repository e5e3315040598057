//! `evaluation` of a job spec: on what its model is evaluated while it trains, and how often.

use crate::DatasetName;
use crate::fields::{Fields, Problems};
use crate::job::parse_dataset;
use minicbor::{Decode, Encode};
use serde::Serialize;
use serde_json::Value;

/// Held-out evaluation.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct EvaluationSpec {
    /// What it is evaluated on; none where the code of a PyTorch job brings its own rows.
    #[n(0)]
    pub dataset: Option<DatasetName>,
    /// Steps between two evaluations; the last step is always evaluated.
    #[n(1)]
    pub every_steps: u64,
}

pub(crate) fn parse_evaluation(path: &str, value: &Value, own_rows: bool) -> Result<EvaluationSpec, Problems> {
    let mut f = Fields::new(path, value);
    let dataset = parse_dataset(&mut f, own_rows);
    let every_steps = f.integer("every_steps", 1..=1_000_000_000).unwrap_or(100);
    f.finish(dataset.map(|dataset| EvaluationSpec { dataset, every_steps }))
}
