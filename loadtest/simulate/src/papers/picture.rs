//! Reports as one picture: every figure of a run as a share of its paper's, beside that. It computes nothing that is not in the table.

use super::{Report, Row};
use crate::report::figure::{Figure, Panel, Plot, Style};

/// What bars are.
const OURS: Style = Style::nth(0);
const FITTED: Style = Style::nth(2);
const PAPER: Style = Style::nth(6);

/// Panels beside each other: names of runs and of figures have room then.
const COLUMNS: usize = 2;

/// Ours ÷ the paper's, a panel for each run of each scenario.
#[must_use]
pub fn picture(reports: &[Report]) -> Figure {
    Figure {
        name: "results",
        title: "Results of papers, and ours as a multiple of them",
        about: "1 is what the paper printed.".to_owned(),
        legend: vec![
            (PAPER, "the paper".to_owned()),
            (FITTED, "ours, that free parameters were fitted on".to_owned()),
            (OURS, "ours, as it then comes out".to_owned()),
        ],
        columns: COLUMNS,
        panels: reports.iter().flat_map(panels).collect(),
    }
}

fn panels(report: &Report) -> Vec<Panel> {
    let of_run = |rows: &[Row]| {
        let bar = |row: &Row| {
            let style = if row.baseline { FITTED } else { OURS };
            (row.figure.to_owned(), style, Some(row.ratio))
        };
        let bars = [("the paper".to_owned(), PAPER, Some(1.0))].into_iter().chain(rows.iter().map(bar)).collect();
        let title = format!("{}: {}", report.scenario.name, rows[0].run);
        Panel { title, plot: Plot::Bars { unit: "", bars } }
    };
    report.rows.chunk_by(|a, b| a.run == b.run).map(of_run).collect()
}
