//! The page of a report: settings, the table of policies, the figures in the page itself, what single jobs lived through. One file that asks
//! for nothing outside itself, which it forbids itself as well, as any script but `save.js`; all that is not ours in it is escaped.

use super::figure::{Figure, colours, escaped};
use super::lives::Life;
use crate::outcome::ROWS;
use serde_json::Value;
use std::fmt::Write;

/// The beginning of every page, by which a folder is known to hold a report.
pub const MARK: &str = "<!doctype html>\n<!-- ebb simulate run --report -->\n";

/// The only script that a page may run: it saves figures as PNG.
const SAVE: &str = include_str!("save.js");
/// Its digest, by which browsers know it: `(echo; cat save.js) | openssl dgst -sha256 -binary | base64`. With another one there are no buttons, which
/// `browser.rs` of the system tests sees.
const SAVE_DIGEST: &str = "sha256-ctK04t6FTc38XiCZHbqCDY0L+Uf8XhpAB3UWiNX6QLM=";

/// How it looks, but for the colours of figures.
const STYLE: &str = "body{margin:0 auto;padding:24px;max-width:960px;font:15px/1.5 system-ui,sans-serif;color:#1f2937;background:#fff}\
h1{font-size:24px;margin:0 0 4px}h2{font-size:18px;margin:32px 0 8px}\
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}\
th,td{padding:3px 10px 3px 0;text-align:right;white-space:nowrap;border-bottom:1px solid #e5e7eb}th:first-child{text-align:left}\
dl{columns:2 360px;column-gap:32px;font-size:13px;margin:0}dl div{display:flex;gap:12px;break-inside:avoid;border-bottom:1px solid #e5e7eb;padding:2px 0}\
dt{flex:0 0 190px;font-weight:600}dd{margin:0;overflow-wrap:anywhere}figure{margin:24px 0}figcaption,.note{color:#4b5563;font-size:13px}.wrong{color:#b91c1c;font-weight:600}\
svg{width:100%;height:auto;display:block}button{float:right;font:inherit;font-size:13px}a{color:#0072b2}\
@media(prefers-color-scheme:dark){body{color:#e5e7eb;background:#111827}th,td,dl div{border-color:#334155}figcaption,.note{color:#94a3b8}a{color:#56b4e9}.wrong{color:#fca5a5}}";

/// What a page is made of.
#[derive(Debug, Clone, Copy)]
pub struct Page<'a> {
    /// As the command prints it.
    pub document: &'a Value,
    /// Said below the table.
    pub notes: &'a [String],
    /// From above.
    pub figures: &'a [Figure],
    /// Told in a table.
    pub lives: &'a [Life],
    /// Other files, relative to this one.
    pub files: &'a [String],
}

impl Page<'_> {
    /// As HTML.
    #[must_use]
    pub fn html(&self) -> String {
        let mut text = begun("Recorded jobs under a policy");
        for what in self.document["violations"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let _ = writeln!(text, "<p class=\"wrong\">This must not be: {}</p>", escaped(what));
        }
        text += "<h2>Settings</h2>\n<dl>\n";
        settings(&mut text, "", &self.document["options"]);
        text += "</dl>\n<h2>Results</h2>\n";
        self.results(&mut text);
        for note in self.notes {
            let _ = writeln!(text, "<p class=\"note\">{}</p>", escaped(note));
        }
        for figure in self.figures {
            let (drawn, about) = (figure.piece(), escaped(&figure.about));
            let _ = writeln!(text, "<figure id=\"{}\">\n{drawn}<figcaption>{about}</figcaption></figure>", figure.name);
        }
        self.jobs(&mut text);
        text += "<h2>Files</h2>\n<p>";
        for file in self.files {
            let name = escaped(file);
            let _ = writeln!(text, "<a href=\"{name}\">{name}</a>");
        }
        text + "</p>\n<script>\n" + SAVE + "</script>\n</html>\n"
    }

    /// The rows that the command prints, without those that the clock of a machine measured.
    fn results(&self, text: &mut String) {
        let policies: Vec<&Value> = self.document["policies"].as_array().into_iter().flatten().collect();
        *text += "<div class=\"wide\"><table>\n<tr><th></th>";
        for policy in &policies {
            let _ = write!(text, "<th>{}</th>", escaped(policy["policy"].as_str().unwrap_or_default()));
        }
        *text += "</tr>\n";
        for (name, key, digits) in ROWS.iter().filter(|(name, ..)| !name.ends_with('*')) {
            let _ = write!(text, "<tr><th>{}</th>", escaped(name));
            for policy in &policies {
                let shown = policy[*key].as_f64().map_or_else(|| "–".to_owned(), |figure| format!("{figure:.digits$}"));
                let _ = write!(text, "<td>{shown}</td>");
            }
            *text += "</tr>\n";
        }
        *text += "</table></div>\n<p class=\"note\">Times are of jobs that finished; a dash stands where a figure cannot be had. What the clock of the machine measured is in run.json.</p>\n";
    }

    fn jobs(&self, text: &mut String) {
        if self.lives.is_empty() {
            return;
        }
        *text += "<div class=\"wide\"><table>\n<tr>";
        for column in [
            "policy",
            "which",
            "job",
            "arrival, s",
            "first start, s",
            "end, s",
            "completion, s",
            "queueing, s",
            "changes of slots",
            "preemptions",
        ] {
            let _ = write!(text, "<th>{column}</th>");
        }
        *text += "</tr>\n";
        for life in self.lives {
            let first_start = life.first_start_s.map_or_else(|| "–".to_owned(), |at| format!("{at:.1}"));
            let _ = writeln!(
                text,
                "<tr><th>{}</th><td>{}</td><td>{}</td><td>{:.1}</td><td>{first_start}</td><td>{:.1}</td><td>{:.1}</td><td>{:.1}</td><td>{}</td><td>{}</td></tr>",
                escaped(life.policy),
                life.which,
                escaped(&life.job),
                life.arrival_s,
                life.end_s,
                life.completion_s,
                life.queueing_s,
                life.size_changes,
                life.preemptions
            );
        }
        *text += "</table></div>\n";
        if let Some(at_s) = self.lives.iter().filter_map(|life| life.unknown_from_s).reduce(f64::min) {
            let _ = writeln!(
                text,
                "<p class=\"note\">There were too many changes to keep all of them: of slots nothing is known from {at_s:.0} s on.</p>"
            );
        }
    }
}

/// What stands in a folder while a run goes on, or after one that was cut off.
#[must_use]
pub fn unfinished() -> String {
    begun("This run has not ended")
        + "<p>It goes on, or it was cut off. The same command writes its report again.</p>\n</html>\n"
}

fn begun(title: &str) -> String {
    format!(
        "{MARK}<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
        <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src '{SAVE_DIGEST}'\">\n\
        <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n<style>{STYLE}</style>\n<style id=\"colours\">{}</style>\n<h1>{title}</h1>\n",
        colours()
    )
}

/// A line for each setting, those within others named by both.
fn settings(text: &mut String, of: &str, value: &Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                settings(text, &if of.is_empty() { name.clone() } else { format!("{of}.{name}") }, value);
            }
        }
        value => {
            let shown = match value {
                Value::Null => "–".to_owned(),
                Value::String(words) => words.clone(),
                Value::Array(all) if all.iter().all(Value::is_string) => {
                    all.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
                }
                other => other.to_string(),
            };
            let _ = writeln!(text, "<div><dt>{}</dt><dd>{}</dd></div>", escaped(of), escaped(&shown));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_others_wrote_is_no_markup() {
        let document = json!({
            "options": {"jobs": {"file": "<script>alert(1)</script>"}, "policies": ["a&b", "c"], "demand": null},
            "policies": [{"policy": "<b>", "jobs": 3, "utilization": 0.5}], "violations": ["1 < 2"],
        });
        let page = Page { document: &document, notes: &["\"<i>\"".to_owned()], figures: &[], lives: &[], files: &[] };
        let html = page.html();
        assert!(
            html.starts_with(MARK)
                && html.matches("<script").count() == 1
                && !html.contains("<b>")
                && !html.contains("<i>")
        );
        for part in ["jobs.file</dt><dd>&lt;script&gt;", "a&amp;b, c", "1 &lt; 2", "<td>0.500</td>", "<dd>–</dd>"] {
            assert!(html.contains(part), "{part}: {html}");
        }
    }

    #[test]
    fn no_page_shows_what_a_clock_measured() {
        let document = json!({"policies": [{"policy": "ebb", "wall_s": 123.4, "decision_p50_ms": 5.678}]});
        let html = Page { document: &document, notes: &[], figures: &[], lives: &[], files: &[] }.html();
        assert!(!html.contains("123.4") && !html.contains("5.678") && unfinished().starts_with(MARK));
    }
}
