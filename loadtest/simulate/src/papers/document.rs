//! Reports as text: a table for a terminal, and a page of Markdown. The same reports give the same bytes.

use super::{Kind, Report, Row, SCENARIOS, Scenario};
use std::fmt::Write;

/// Columns of the table.
const RUN_WIDTH: usize = 24;
const FIGURE_WIDTH: usize = 22;
const NUMBER_WIDTH: usize = 12;

/// How far the numbers of a scenario are its paper's, in words.
fn told(kind: Kind) -> &'static str {
    match kind {
        Kind::Recorded => "the paper's own recording and rules",
        Kind::Calibrated => "the paper's distributions; free parameters fitted on its baseline alone",
        Kind::Declared => "other data than the paper's; free parameters chosen beforehand, and fitted on nothing",
        Kind::ByConstruction => "by construction: none of the paper's data",
    }
}

fn ours(row: &Row) -> String {
    match row.half_width_95 {
        Some(half_width) => format!("{:.2} ± {half_width:.2}", row.ours),
        None => format!("{:.2}", row.ours),
    }
}

/// Which runs figures are of.
fn seeds(of: &Scenario) -> String {
    match of.seeds {
        1 => of.seed.to_string(),
        seeds => format!("{} to {}", of.seed, of.seed + seeds - 1),
    }
}

fn figure(row: &Row) -> String {
    format!("{}, {}", row.figure, row.unit)
}

/// A report for people at a terminal.
#[must_use]
pub fn table(report: &Report) -> String {
    let of = &report.scenario;
    let mut text = format!("{}: {}\n  {}\n  {}\n", of.name, of.about, of.paper, told(of.kind));
    let _ = writeln!(text, "  seeds {}", seeds(of));
    for free in of.free {
        let _ = writeln!(text, "  free: {} = {} ({})", free.name, free.value, free.how);
    }
    let head = ["paper", "ours", "ratio"].map(|name| format!("{name:>NUMBER_WIDTH$}")).concat();
    let _ = writeln!(text, "{:RUN_WIDTH$}{:FIGURE_WIDTH$}{head}", "", "");
    for row in &report.rows {
        let (run, figure) = (&row.run, figure(row));
        let _ = write!(text, "{run:RUN_WIDTH$}{figure:FIGURE_WIDTH$}{:>NUMBER_WIDTH$.2}", row.paper);
        let mark = if row.baseline { "  fitted" } else { "" };
        let _ = writeln!(text, "{:>NUMBER_WIDTH$.2}{:>NUMBER_WIDTH$.3}{mark}", row.ours, row.ratio);
    }
    for of in &report.decisions {
        let (run, p50, p99) = (&of.run, of.p50_ms, of.p99_ms);
        let _ = writeln!(text, "{run:RUN_WIDTH$}{} plans, p50 {p50:.3} ms, p99 {p99:.3} ms *", of.count);
    }
    for note in of.notes {
        let _ = writeln!(text, "  note: {note}");
    }
    text
}

/// Reports as a page, without what the clock of a machine measured, beside the file of their picture if that has one.
#[must_use]
pub fn markdown(reports: &[Report], picture: Option<&str>) -> String {
    let mut text = "# Results of papers, and ours\n\n\
        Written by `ebb simulate papers --write docs/results.md`; what is fitted, seeds, and where numbers are from is said with each. \
        Rows that free parameters were fitted on are marked; all others are what then comes out.\n"
        .to_owned();
    if let Some(file) = picture {
        let _ = writeln!(text, "\n![Every figure as a multiple of the paper's]({file})");
    }
    let is_missing = |name: &&str| reports.iter().all(|report| report.scenario.name != *name);
    let missing: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).filter(is_missing).collect();
    if !missing.is_empty() {
        let _ = writeln!(text, "\nNot run for this page: {}.", missing.join(", "));
    }
    for report in reports {
        let of = &report.scenario;
        let _ = write!(text, "\n## {}\n\n{}. {}.\n\n", of.name, of.about, of.paper);
        let _ = writeln!(text, "- *Kind*: {}.", told(of.kind));
        let what = if of.seeds > 1 { "ours is their mean, with its 95 % interval" } else { "ours is one run" };
        let _ = writeln!(text, "- *Seeds*: {}; {what}.", seeds(of));
        for source in of.sources {
            let _ = writeln!(text, "- *Source*: {source}.");
        }
        for free in of.free {
            let _ = writeln!(text, "- *Free*: {} = {}; {}.", free.name, free.value, free.how);
        }
        text.push_str("\n| run | figure | paper | ours | ratio | |\n| --- | --- | --- | --- | --- | --- |\n");
        for row in &report.rows {
            let mark = if row.baseline { "fitted on" } else { "" };
            let (run, figure, paper, ratio) = (&row.run, figure(row), row.paper, row.ratio);
            let _ = writeln!(text, "| {run} | {figure} | {paper:.2} | {} | {ratio:.3} | {mark} |", ours(row));
        }
        if !of.notes.is_empty() {
            text.push('\n');
        }
        for note in of.notes {
            let _ = writeln!(text, "What does not come out: {note}.");
        }
        for what in &report.violations {
            let _ = writeln!(text, "\nThis must not be: {what}.");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::ibm;
    use super::*;

    #[test]
    fn a_row_says_the_papers_figure_and_ours() {
        let row = |baseline| Row {
            run: "elastic".to_owned(),
            figure: "drop ratio",
            unit: "%",
            paper: 10.0,
            ours: 9.0,
            ratio: 0.9,
            half_width_95: Some(0.5),
            baseline,
        };
        let report = Report {
            scenario: ibm::TABLE_3,
            rows: vec![row(false), row(true)],
            violations: Vec::new(),
            decisions: Vec::new(),
        };
        let page = markdown(std::slice::from_ref(&report), Some("results.svg"));
        assert!(page.contains("](results.svg)\n"), "{page}");
        let svg = crate::papers::picture(std::slice::from_ref(&report)).file();
        assert!(svg.contains("ibm-table3: elastic") && svg.contains(">drop ratio<") && svg.contains("0.9<"), "{svg}");
        assert!(page.contains("| elastic | drop ratio, % | 10.00 | 9.00 ± 0.50 | 0.900 |  |"), "{page}");
        assert!(
            page.contains("\nNot run for this page: ibm-table4, amoeba-table2, amoeba-fig8, lyra-basic,"),
            "{page}"
        );
        assert!(page.contains("| 0.900 | fitted on |") && page.contains("- *Free*: k_max = 10"), "{page}");
        assert!(table(&report).contains("       10.00        9.00       0.900  fitted"), "{}", table(&report));
        assert!(page.contains("- *Seeds*: 1 to 10; ours is their mean, with its 95 % interval.\n"), "{page}");
        let once = Report { scenario: Scenario { seeds: 1, ..report.scenario }, ..report };
        let page = markdown(std::slice::from_ref(&once), None);
        assert!(page.contains("- *Seeds*: 1; ours is one run.\n"), "{page}");
        assert!(table(&once).contains("\n  seeds 1\n"), "{}", table(&once));
    }
}
