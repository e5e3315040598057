//! Figures as SVG: panels with axes and a legend, in colours that are told apart by the colour-blind, on light and on dark paper. It knows
//! nothing of what it draws, and a figure names nothing outside itself: it opens without a network.
//!
//! `loadtest/src/chart.rs` draws a load over one axis of seconds; here axes are of any unit, logarithmic ones too, panels stand beside each
//! other, and what draws is pure.

use super::scale::{Scale, number};
use std::fmt::Write;

/// Pixels: a figure's width, the room around a panel's plot, and of a line of text.
const WIDTH: f64 = 920.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 24.0;
const ABOVE: f64 = 26.0;
const BELOW: f64 = 42.0;
const LINE: f64 = 20.0;
/// From a bar to the next, and of the names beside bars.
const BAR: f64 = 19.0;
const NAMES: f64 = 164.0;
/// About how wide a letter is.
const LETTER: f64 = 6.4;

/// Colours of lines, on light and on dark paper: Okabe's and Ito's, and two that go with them.
const COLOURS: [(&str, &str); 7] = [
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#ff8c42"),
    ("#009e73", "#2ed3a6"),
    ("#b4578d", "#f2a6cf"),
    ("#8c6d00", "#f0e442"),
    ("#4b3fa7", "#a99cf5"),
    ("#4b5563", "#cbd5e1"),
];
/// Lines differ in their strokes as well. Seven colours and four of these are 28 kinds of lines.
const DASHES: [&str; 4] = ["", "7 3", "2 2", "9 3 2 3"];

/// A figure: its panels from the left to the right, and from above.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Of its file, without `.svg`.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// How it is read.
    pub about: String,
    /// What kinds of lines mean.
    pub legend: Vec<(Style, String)>,
    /// Panels beside each other.
    pub columns: usize,
    /// From the left to the right, then below.
    pub panels: Vec<Panel>,
}

/// One panel.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// Above it.
    pub title: String,
    /// In it.
    pub plot: Plot,
}

/// What is in a panel.
#[derive(Debug, Clone, PartialEq)]
pub enum Plot {
    /// Lines and areas over two axes.
    Lines {
        /// Of the plot, in pixels.
        height: f64,
        /// To the right.
        across: Axis,
        /// What the axis that goes upwards is of.
        up: Axis,
        /// Drawn in this order.
        lines: Vec<Line>,
    },
    /// A bar for each name.
    Bars {
        /// Of their lengths.
        unit: &'static str,
        /// From above; none: there is no such figure.
        bars: Vec<(String, Style, Option<f64>)>,
    },
}

/// What a direction means.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// With its unit.
    pub label: String,
    /// Where values lie.
    pub scale: Scale,
}

/// A line through points, or the area below it.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// How it looks.
    pub style: Style,
    /// To the right and upwards; each value holds until the next.
    pub points: Vec<(f64, f64)>,
}

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    colour: usize,
    dash: usize,
    filled: bool,
}

impl Style {
    /// The nth of lines that are all different.
    #[must_use]
    pub const fn nth(n: usize) -> Self {
        Self { colour: n % COLOURS.len(), dash: n % DASHES.len(), filled: false }
    }

    /// The area below it instead.
    #[must_use]
    pub const fn filled(self) -> Self {
        Self { filled: true, ..self }
    }
}

/// The colours of everything, by the paper that whoever looks at it prefers.
#[must_use]
pub fn colours() -> String {
    let mut text = ".paper{fill:#fff}.ink{fill:#1f2937}.axis{stroke:#4b5563}.grid{stroke:#e5e7eb}".to_owned();
    for (place, (light, _)) in COLOURS.iter().enumerate() {
        let _ = write!(text, ".c{place}{{color:{light}}}");
    }
    text += "@media(prefers-color-scheme:dark){.paper{fill:#111827}.ink{fill:#e5e7eb}.axis{stroke:#94a3b8}.grid{stroke:#334155}";
    for (place, (_, dark)) in COLOURS.iter().enumerate() {
        let _ = write!(text, ".c{place}{{color:{dark}}}");
    }
    text + "}"
}

/// Text of others in a page or a picture: no markup, and nothing that a picture may not hold.
#[must_use]
pub fn escaped(words: &str) -> String {
    let mut text = String::with_capacity(words.len());
    for letter in words.chars() {
        match letter {
            '&' => text.push_str("&amp;"),
            '<' => text.push_str("&lt;"),
            '>' => text.push_str("&gt;"),
            '"' => text.push_str("&quot;"),
            '\'' => text.push_str("&#39;"),
            letter if letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}') => text.push('\u{fffd}'),
            letter => text.push(letter),
        }
    }
    text
}

impl Figure {
    /// As a file of its own.
    #[must_use]
    pub fn file(&self) -> String {
        self.drawn(r#" xmlns="http://www.w3.org/2000/svg""#, &format!("<style>{}</style>", colours()))
    }

    /// As a piece of a page that has the colours already.
    #[must_use]
    pub fn piece(&self) -> String {
        self.drawn("", "")
    }

    fn drawn(&self, attributes: &str, before: &str) -> String {
        let (legend, top) = self.legend();
        let columns = self.columns.max(1);
        let width = WIDTH / columns as f64;
        let (mut body, mut y) = (String::new(), top);
        for row in self.panels.chunks(columns) {
            for (column, panel) in row.iter().enumerate() {
                panel.draw(&mut body, column as f64 * width, y, width);
            }
            y += row.iter().map(Panel::height).fold(0.0, f64::max);
        }
        let title = escaped(self.title);
        format!(
            r#"<svg{attributes} viewBox="0 0 {WIDTH:.0} {y:.0}" role="img" aria-label="{title}" font-family="system-ui,sans-serif" font-size="12">{before}<rect class="paper" width="100%" height="100%"/><text class="ink" x="{LEFT}" y="24" font-size="16" font-weight="600">{title}</text>{legend}
{body}</svg>
"#
        )
    }

    /// The legend, in as many lines as it needs, and where it ends.
    fn legend(&self) -> (String, f64) {
        let (mut text, mut x, mut y) = (String::new(), LEFT, 46.0);
        for (style, words) in &self.legend {
            let width = 44.0 + LETTER * words.chars().count() as f64;
            if x > LEFT && x + width > WIDTH - RIGHT {
                (x, y) = (LEFT, y + LINE);
            }
            let (class, dash) = (style.colour, DASHES[style.dash]);
            let _ = if style.filled {
                write!(
                    text,
                    r#"<path class="c{class}" fill="currentColor" fill-opacity=".35" d="M{x:.0} {:.0}h24v10h-24z"/>"#,
                    y - 9.0
                )
            } else {
                write!(
                    text,
                    r#"<path class="c{class}" stroke="currentColor" stroke-width="2" stroke-dasharray="{dash}" d="M{x:.0} {:.0}h24"/>"#,
                    y - 4.0
                )
            };
            write_text(&mut text, x + 29.0, y, "start", words);
            x += width;
        }
        (text, if self.legend.is_empty() { 36.0 } else { y + 10.0 })
    }
}

impl Panel {
    fn height(&self) -> f64 {
        match &self.plot {
            Plot::Lines { height, .. } => ABOVE + height + BELOW,
            Plot::Bars { bars, .. } => ABOVE + BAR * bars.len() as f64 + BELOW,
        }
    }

    fn draw(&self, text: &mut String, left: f64, top: f64, width: f64) {
        match &self.plot {
            Plot::Lines { height, across, up, lines } => {
                let plot = Area { left: left + LEFT, top: top + ABOVE, width: width - LEFT - RIGHT, height: *height };
                title(text, plot.left, top, &self.title);
                plot.axes(text, across, up);
                for line in lines {
                    plot.line(text, line, across, up);
                }
            }
            Plot::Bars { unit, bars } => {
                let height = BAR * bars.len() as f64;
                // Their figures stand behind them.
                let plot = Area { left: left + NAMES, top: top + ABOVE, width: width - NAMES - 70.0, height };
                title(text, plot.left, top, &self.title);
                plot.bars(text, unit, bars);
            }
        }
    }
}

/// Where something is drawn.
struct Area {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

impl Area {
    fn x(&self, scale: Scale, value: f64) -> f64 {
        self.left + scale.place(value) * self.width
    }

    fn y(&self, scale: Scale, value: f64) -> f64 {
        self.top + (1.0 - scale.place(value)) * self.height
    }

    fn axes(&self, text: &mut String, across: &Axis, up: &Axis) {
        let bottom = self.top + self.height;
        for value in up.scale.ticks((self.height / 26.0) as usize) {
            let y = self.y(up.scale, value);
            let _ = write!(text, r#"<path class="grid" d="M{:.1} {y:.1}h{:.1}"/>"#, self.left, self.width);
            write_text(text, self.left - 6.0, y + 4.0, "end", &number(value));
        }
        for value in across.scale.ticks((self.width / 64.0) as usize) {
            let x = self.x(across.scale, value);
            let _ = write!(text, r#"<path class="grid" d="M{x:.1} {:.1}v{:.1}"/>"#, self.top, self.height);
            write_text(text, x, bottom + 15.0, "middle", &number(value));
        }
        let _ = write!(
            text,
            r#"<path class="axis" fill="none" d="M{:.1} {:.1}V{bottom:.1}h{:.1}"/>"#,
            self.left, self.top, self.width
        );
        write_text(text, self.left + self.width / 2.0, bottom + 31.0, "middle", &across.label);
        let (x, y) = (self.left - LEFT + 13.0, self.top + self.height / 2.0);
        let _ = writeln!(
            text,
            r#"<text class="ink" text-anchor="middle" transform="translate({x:.1} {y:.1})rotate(-90)">{}</text>"#,
            escaped(&up.label)
        );
    }

    /// Steps: of points that fall upon the same tenth of a pixel one is drawn.
    fn line(&self, text: &mut String, line: &Line, across: &Axis, up: &Axis) {
        let mut path = String::new();
        let mut last: Option<(String, String)> = None;
        for (x, y) in &line.points {
            let (x, y) = (format!("{:.1}", self.x(across.scale, *x)), format!("{:.1}", self.y(up.scale, *y)));
            match &last {
                None => drop(write!(path, "M{x} {y}")),
                Some((_, before)) if *before == y => continue,
                Some((before, _)) if *before == x => drop(write!(path, "V{y}")),
                Some(_) => drop(write!(path, "H{x}V{y}")),
            }
            last = Some((x, y));
        }
        let (Some((first, _)), Some((end, _))) = (line.points.first(), line.points.last()) else { return };
        let end = self.x(across.scale, *end);
        let Style { colour, dash, filled } = line.style;
        let _ = if filled {
            let (bottom, first) = (self.top + self.height, self.x(across.scale, *first));
            writeln!(
                text,
                r#"<path class="c{colour}" fill="currentColor" fill-opacity=".35" d="{path}H{end:.1}V{bottom:.1}H{first:.1}z"/>"#
            )
        } else {
            let dash = DASHES[dash];
            writeln!(
                text,
                r#"<path class="c{colour}" fill="none" stroke="currentColor" stroke-width="1.6" stroke-dasharray="{dash}" d="{path}H{end:.1}"/>"#
            )
        };
    }

    fn bars(&self, text: &mut String, unit: &str, bars: &[(String, Style, Option<f64>)]) {
        let scale = Scale::up_to(bars.iter().filter_map(|(_, _, value)| *value).fold(0.0, f64::max));
        let bottom = self.top + self.height;
        for value in scale.ticks((self.width / 64.0) as usize) {
            let x = self.x(scale, value);
            let _ = write!(text, r#"<path class="grid" d="M{x:.1} {:.1}v{:.1}"/>"#, self.top, self.height);
            write_text(text, x, bottom + 15.0, "middle", &number(value));
        }
        for (place, (name, style, value)) in bars.iter().enumerate() {
            let y = self.top + BAR * place as f64;
            write_text(text, self.left - 6.0, y + 13.0, "end", name);
            let shown = value.map_or_else(|| "no such figure".to_owned(), number);
            let length = value.map_or(0.0, |value| scale.place(value) * self.width);
            let _ = write!(
                text,
                r#"<path class="c{}" fill="currentColor" d="M{:.1} {:.1}h{length:.1}v13h-{length:.1}z"/>"#,
                style.colour,
                self.left,
                y + 3.0
            );
            write_text(text, self.left + length + 5.0, y + 13.0, "start", &shown);
        }
        let _ = write!(text, r#"<path class="axis" d="M{:.1} {:.1}V{bottom:.1}"/>"#, self.left, self.top);
        write_text(text, self.left + self.width / 2.0, bottom + 31.0, "middle", unit);
        text.push('\n');
    }
}

fn title(text: &mut String, x: f64, top: f64, words: &str) {
    let y = top + ABOVE - 8.0;
    let _ = write!(text, r#"<text class="ink" x="{x:.1}" y="{y:.1}" font-weight="600">{}</text>"#, escaped(words));
}

fn write_text(text: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let _ = write!(text, r#"<text class="ink" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#, escaped(words));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(points: Vec<(f64, f64)>) -> Figure {
        let axis = |label: &str, scale| Axis { label: label.to_owned(), scale };
        let lines =
            vec![Line { style: Style::nth(0), points: points.clone() }, Line { style: Style::nth(1).filled(), points }];
        let (across, up) = (axis("time, s", Scale::powers(3.0, 400.0)), axis("slots", Scale::up_to(4.0)));
        let over = Panel { title: "a < b".to_owned(), plot: Plot::Lines { height: 100.0, across, up, lines } };
        let bars = vec![("fifo".to_owned(), Style::nth(0), Some(12.5)), ("ebb".to_owned(), Style::nth(1), None)];
        let bars = Panel { title: "means".to_owned(), plot: Plot::Bars { unit: "s", bars } };
        let legend = vec![(Style::nth(0), "\"one\" & 'two'".to_owned())];
        Figure { name: "a", title: "T", about: String::new(), legend, columns: 2, panels: vec![over, bars] }
    }

    #[test]
    fn a_figure_says_what_it_is_given_and_no_markup_of_others() {
        assert_eq!(escaped("<a href='x'>\"&\u{7}"), "&lt;a href=&#39;x&#39;&gt;&quot;&amp;\u{fffd}");
        let svg = figure(vec![(3.0, 0.0), (50.0, 2.0), (50.0, 3.0), (400.0, 3.0)]).file();
        assert!(svg.contains("a &lt; b") && svg.contains("&quot;one&quot; &amp; &#39;two&#39;"), "{svg}");
        for part in ["time, s", ">slots<", ">100<", "12.5", "no such figure", "prefers-color-scheme:dark"] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
    }

    #[test]
    fn nothing_is_still_a_picture_and_a_piece_names_no_place() {
        for points in [Vec::new(), vec![(0.0, 0.0)], vec![(f64::NAN, f64::INFINITY)]] {
            let svg = figure(points).piece();
            assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("http"), "{svg}");
        }
    }
}
