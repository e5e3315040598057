//! Panels over one time axis as an SVG: bars and lines, titles in the colours of what they name, numbered marks with their meaning below.
//! Knows nothing of what is drawn. Pure.

use std::fmt::Write;

/// Pixels: the width of the panels, the height of each, and the room between and around them.
const WIDTH: f64 = 860.0;
const PANEL: f64 = 130.0;
const GAP: f64 = 34.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 44.0;
/// Of one line of text.
const LINE: f64 = 18.0;
/// Of lines and letters, and of a grid.
const INK: &str = "#374151";
const GRID: &str = "#e5e7eb";

/// A picture.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// The time axis ends here.
    pub seconds: f64,
    /// From above.
    pub panels: Vec<Panel>,
    /// Moments, and what happened then.
    pub marks: Vec<(f64, String)>,
}

/// One panel.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// Pieces of its title, each in a colour, or in that of letters.
    pub title: Vec<(String, Option<&'static str>)>,
    /// What its height means.
    pub axis: Axis,
    /// Drawn in this order.
    pub layers: Vec<Layer>,
}

/// What a panel's height means.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Axis {
    /// From 0 to this, with a mark at some whole numbers.
    Whole(f64),
    /// From one power of ten to another.
    Powers {
        /// The logarithm of the lowest value.
        low: f64,
        /// The logarithm of the highest.
        high: f64,
    },
}

/// Something in a panel.
#[derive(Debug, Clone, PartialEq)]
pub enum Layer {
    /// Rectangles of one colour.
    Bars {
        /// Colour of their lines.
        colour: &'static str,
        /// From when to when, from which value to which.
        bars: Vec<[f64; 4]>,
    },
    /// A line through points.
    Line {
        /// Its colour.
        colour: &'static str,
        /// When, and the value.
        points: Vec<(f64, f64)>,
    },
}

impl Layer {
    /// A line that keeps each value until the next.
    #[must_use]
    pub fn steps(colour: &'static str, values: &[(f64, f64)]) -> Self {
        let mut points = Vec::with_capacity(values.len() * 2);
        for (at, value) in values {
            points.extend(points.last().map(|(_, before): &(f64, f64)| (*at, *before)));
            points.push((*at, *value));
        }
        Self::Line { colour, points }
    }

    /// Bars from 0, each up to the next value's time.
    #[must_use]
    pub fn areas(colour: &'static str, values: &[(f64, f64)]) -> Self {
        let spans = values.iter().zip(values.iter().skip(1));
        let bars = spans.filter(|((from, value), (to, _))| to > from && *value > 0.0);
        Self::Bars { colour, bars: bars.map(|((from, value), (to, _))| [*from, *to, 0.0, *value]).collect() }
    }
}

impl Axis {
    /// Where a value lies, from 0 at the bottom to 1.
    fn height(self, value: f64) -> f64 {
        match self {
            Self::Whole(most) => value / most.max(f64::MIN_POSITIVE),
            Self::Powers { low, high } => {
                (value.max(f64::MIN_POSITIVE).log10() - low) / (high - low).max(f64::MIN_POSITIVE)
            }
        }
    }

    /// Values that are written beside it; of powers a line is drawn, too.
    fn ticks(self) -> Vec<f64> {
        match self {
            Self::Whole(most) => {
                // At most ten or so.
                let every = (most / 10.0).ceil().max(1.0);
                (0..).map(|n| f64::from(n) * every).take_while(|value| *value <= most).collect()
            }
            Self::Powers { low, high } => (low as i32..=high as i32).map(|power| 10f64.powi(power)).collect(),
        }
    }
}

impl Chart {
    /// The picture as text.
    #[must_use]
    pub fn svg(&self) -> String {
        let panels = self.panels.len() as f64;
        let bottom = TOP + panels * PANEL + (panels - 1.0).max(0.0) * GAP;
        let (width, height) = (LEFT + WIDTH + RIGHT, bottom + 3.0 * LINE + LINE * self.marks.len() as f64);
        let mut svg = format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" font-family="sans-serif" font-size="12" fill="{INK}"><rect width="100%" height="100%" fill="white"/>"#
        );
        svg.push('\n');
        for (index, panel) in self.panels.iter().enumerate() {
            self.panel(&mut svg, panel, TOP + index as f64 * (PANEL + GAP));
        }
        // About ten marks, at whole seconds.
        let every = (self.seconds / 10.0).ceil().max(1.0);
        let mut at = 0.0;
        while at <= self.seconds {
            text(&mut svg, self.x(at), bottom + LINE, "middle", &format!("{at:.0} s"));
            at += every;
        }
        self.marked(&mut svg, bottom);
        svg.push_str("</svg>\n");
        svg
    }

    fn x(&self, at: f64) -> f64 {
        let end = self.seconds.max(1e-3);
        LEFT + at.clamp(0.0, end) / end * WIDTH
    }

    fn panel(&self, svg: &mut String, panel: &Panel, top: f64) {
        let y = |value: f64| top + PANEL * (1.0 - panel.axis.height(value).clamp(0.0, 1.0));
        let title: String = panel
            .title
            .iter()
            .map(|(words, colour)| match colour {
                Some(colour) => format!(r#"<tspan fill="{colour}">{}</tspan>"#, escaped(words)),
                None => escaped(words),
            })
            .collect();
        let _ = writeln!(
            svg,
            r#"<text x="{LEFT}" y="{:.0}" font-size="14">{title}</text>"#,
            top - 8.0 - if top == TOP && !self.marks.is_empty() { 16.0 } else { 0.0 }
        );
        for layer in &panel.layers {
            match layer {
                Layer::Bars { colour, bars } => {
                    for [from, to, low, high] in bars {
                        let (x, width, y, bottom) = (self.x(*from), self.x(*to) - self.x(*from), y(*high), y(*low));
                        let _ = writeln!(
                            svg,
                            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{:.1}" fill="{colour}"/>"#,
                            bottom - y
                        );
                    }
                }
                Layer::Line { colour, points } => {
                    let points: Vec<String> =
                        points.iter().map(|(at, value)| format!("{:.1},{:.1}", self.x(*at), y(*value))).collect();
                    let _ = writeln!(svg, r#"<polyline fill="none" stroke="{colour}" points="{}"/>"#, points.join(" "));
                }
            }
        }
        for value in panel.axis.ticks() {
            if matches!(panel.axis, Axis::Powers { .. }) {
                let _ = writeln!(svg, r#"<path d="M{LEFT} {:.1}h{WIDTH}" stroke="{GRID}"/>"#, y(value));
            }
            text(svg, LEFT - 8.0, y(value) + 4.0, "end", &value.to_string());
        }
        let _ = writeln!(svg, r#"<path d="M{LEFT} {:.1}h{WIDTH}" stroke="{INK}"/>"#, top + PANEL);
    }

    /// Numbered lines through all panels, and what they mean below.
    fn marked(&self, svg: &mut String, bottom: f64) {
        for (index, (at, what)) in self.marks.iter().enumerate() {
            let (number, x) = (index + 1, self.x(*at));
            let _ =
                writeln!(svg, r#"<path d="M{x:.1} {TOP}v{:.0}" stroke="{INK}" stroke-dasharray="2 3"/>"#, bottom - TOP);
            text(svg, x, TOP - 6.0, "middle", &number.to_string());
            text(
                svg,
                LEFT,
                bottom + 2.0 * LINE + LINE * number as f64,
                "start",
                &format!("{number}   {at:.1} s   {what}"),
            );
        }
    }
}

fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;")
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let _ = writeln!(svg, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#, escaped(words));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_kept_until_the_next() {
        let values = [(0.0, 1.0), (2.0, 3.0), (2.0, 0.0), (4.0, 0.0)];
        let Layer::Line { points, .. } = Layer::steps("red", &values) else { panic!("a line") };
        assert_eq!(points, [(0.0, 1.0), (2.0, 1.0), (2.0, 3.0), (2.0, 3.0), (2.0, 0.0), (4.0, 0.0), (4.0, 0.0)]);
        let Layer::Bars { bars, .. } = Layer::areas("red", &values) else { panic!("bars") };
        assert_eq!(bars, [[0.0, 2.0, 0.0, 1.0]]);
    }

    #[test]
    fn a_picture_holds_what_it_is_given_and_no_markup_of_others() {
        let title = vec![("a < b & c".to_owned(), None), (", red".to_owned(), Some("red"))];
        let layers = vec![Layer::areas("red", &[(0.0, 1.0), (5.0, 0.0)])];
        let panel = Panel { title, axis: Axis::Whole(4.0), layers };
        let losses = Layer::Line { colour: "black", points: vec![(0.0, 2.0), (5.0, 0.01)] };
        let powers = Panel { title: Vec::new(), axis: Axis::Powers { low: -2.0, high: 1.0 }, layers: vec![losses] };
        let svg = Chart { seconds: 10.0, panels: vec![panel, powers], marks: vec![(2.5, "5 > 4".to_owned())] }.svg();
        assert!(svg.contains("a &lt; b &amp; c") && svg.contains(r#"<tspan fill="red">"#) && svg.ends_with("</svg>\n"));
        assert_eq!((svg.matches("<rect").count(), svg.matches("<polyline").count()), (2, 1));
        assert!(svg.contains("1   2.5 s   5 > 4") && svg.contains(">0.01<"), "{svg}");
    }

    #[test]
    fn nothing_is_still_a_picture() {
        let empty = Panel { title: Vec::new(), axis: Axis::Whole(0.0), layers: vec![Layer::steps("red", &[])] };
        let svg = Chart { seconds: 0.0, panels: vec![empty], marks: Vec::new() }.svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
