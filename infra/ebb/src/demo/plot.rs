//! The demo as a picture: who has which slots over time, and the loss below, with the events of the story as numbered lines.
//! Writes SVG text; knows nothing of how the moments were seen.

use std::fmt::Write;

/// Pixels: the plot's width, the height of each of its two panels, and the room around them.
const WIDTH: f64 = 860.0;
const PANEL: f64 = 130.0;
const GAP: f64 = 34.0;
const LEFT: f64 = 56.0;
const TOP: f64 = 44.0;
/// Of one line of the legend.
const LINE: f64 = 18.0;
/// Colours: training, between the two (starting, or taken back by name), at the fleet, the loss, lines and letters.
const TRAINING: &str = "#2563eb";
const IDLE: &str = "#93c5fd";
const SERVING: &str = "#f59e0b";
const LOSS: &str = "#111827";
const INK: &str = "#374151";

/// What was seen at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Moment {
    /// Seconds since the demo began.
    pub at: f64,
    /// The job.
    pub job: String,
    /// Slots that train.
    pub training: u16,
    /// Slots that the fleet needs.
    pub needed: u16,
    /// The loss; 0 before there is one.
    pub loss: f64,
}

/// Everything that was seen and told.
#[derive(Debug, Clone, Default)]
pub struct Recording {
    /// In order of time.
    pub moments: Vec<Moment>,
    /// Events of the story: when, and in words.
    pub events: Vec<(f64, String)>,
}

/// The picture of a demo on a machine of so many slots.
#[must_use]
pub fn svg(recording: &Recording, slots: u16) -> String {
    let scale = Scale::of(recording, slots);
    let panels = 2.0 * PANEL + GAP;
    let height = TOP + panels + 3.0 * LINE + LINE * recording.events.len() as f64;
    let mut picture = String::new();
    let total = LEFT + WIDTH + 20.0;
    let _ = writeln!(
        picture,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total:.0} {height:.0}" font-family="sans-serif" font-size="12" fill="{INK}"><rect width="100%" height="100%" fill="white"/>"#
    );
    titles(&mut picture);
    for (moment, until) in spans(recording) {
        bars(&mut picture, &scale, moment, until);
    }
    losses(&mut picture, &scale, &recording.moments);
    axes(&mut picture, &scale);
    events(&mut picture, &scale, &recording.events, TOP + panels + 2.0 * LINE);
    picture.push_str("</svg>\n");
    picture
}

/// Where values lie.
struct Scale {
    /// From 0.
    seconds: f64,
    slots: f64,
    /// Logarithms to base 10 of the smallest and the largest loss.
    loss: (f64, f64),
}

impl Scale {
    fn of(recording: &Recording, slots: u16) -> Self {
        let end = recording.moments.last().map_or(1.0, |m| m.at);
        let losses = recording.moments.iter().map(|m| m.loss).filter(|loss| *loss > 0.0).map(f64::log10);
        let (low, high) = losses.fold((0.0, 0.0), |(low, high): (f64, f64), l| (low.min(l), high.max(l)));
        let loss = (low.floor(), high.ceil().max(low.floor() + 1.0));
        Self { seconds: end.max(1e-3), slots: f64::from(slots.max(1)), loss }
    }

    fn x(&self, at: f64) -> f64 {
        LEFT + at.clamp(0.0, self.seconds) / self.seconds * WIDTH
    }

    fn slots_y(&self, slots: f64) -> f64 {
        TOP + PANEL * (1.0 - slots / self.slots)
    }

    fn loss_y(&self, loss: f64) -> f64 {
        let (low, high) = self.loss;
        TOP + PANEL + GAP + PANEL * (high - loss.log10()) / (high - low)
    }
}

/// Each moment that begins something new, and when the next one does.
fn spans(recording: &Recording) -> Vec<(&Moment, f64)> {
    let same = |a: &Moment, b: &Moment| (a.training, a.needed, &a.job) == (b.training, b.needed, &b.job);
    let mut starts: Vec<&Moment> = recording.moments.iter().collect();
    starts.dedup_by(|next, first| same(first, next));
    let end = recording.moments.last().map_or(0.0, |m| m.at);
    let ends = starts.iter().skip(1).map(|m| m.at).chain([end]);
    starts.iter().copied().zip(ends).collect()
}

fn titles(picture: &mut String) {
    let y = TOP - 24.0;
    let _ = writeln!(
        picture,
        r#"<text x="{LEFT}" y="{y}" font-size="14">slots: <tspan fill="{TRAINING}">training</tspan>, <tspan fill="{SERVING}">with the inference fleet</tspan>, <tspan fill="{IDLE}">between the two</tspan></text>"#
    );
    let _ = writeln!(picture, r#"<text x="{LEFT}" y="{}" font-size="14">loss</text>"#, TOP + PANEL + GAP - 8.0);
}

/// Training from below, the fleet from above, and what is on the way between them.
fn bars(picture: &mut String, scale: &Scale, moment: &Moment, until: f64) {
    let training = f64::from(moment.training).min(scale.slots);
    let serving = f64::from(moment.needed).min(scale.slots - training);
    let (x, width) = (scale.x(moment.at), scale.x(until) - scale.x(moment.at));
    let parts = [
        (0.0, training, TRAINING),
        (training, scale.slots - training - serving, IDLE),
        (scale.slots - serving, serving, SERVING),
    ];
    for (from, count, colour) in parts.into_iter().filter(|(_, count, _)| *count > 0.0) {
        let y = scale.slots_y(from + count);
        let height = scale.slots_y(from) - y;
        let _ = writeln!(
            picture,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{colour}"/>"#
        );
    }
}

/// One line per job.
fn losses(picture: &mut String, scale: &Scale, moments: &[Moment]) {
    for run in moments.chunk_by(|a, b| a.job == b.job) {
        let points = run.iter().filter(|m| m.loss > 0.0);
        let points: Vec<String> = points.map(|m| format!("{:.1},{:.1}", scale.x(m.at), scale.loss_y(m.loss))).collect();
        let _ = writeln!(picture, r#"<polyline fill="none" stroke="{LOSS}" points="{}"/>"#, points.join(" "));
    }
}

fn axes(picture: &mut String, scale: &Scale) {
    for slots in 0..=scale.slots as u32 {
        label(picture, LEFT - 8.0, scale.slots_y(f64::from(slots)) + 4.0, "end", &slots.to_string());
    }
    for power in scale.loss.0 as i32..=scale.loss.1 as i32 {
        let loss = 10f64.powi(power);
        let y = scale.loss_y(loss);
        let _ = writeln!(picture, r##"<path d="M{LEFT} {y:.1}h{WIDTH}" stroke="#e5e7eb"/>"##);
        label(picture, LEFT - 8.0, y + 4.0, "end", &loss.to_string());
    }
    let below = TOP + 2.0 * PANEL + GAP + LINE;
    // About ten marks, at whole seconds.
    let every = (scale.seconds / 10.0).ceil().max(1.0);
    let mut at = 0.0;
    while at <= scale.seconds {
        label(picture, scale.x(at), below, "middle", &format!("{at:.0} s"));
        at += every;
    }
}

/// Numbered lines through both panels, and what they mean below.
fn events(picture: &mut String, scale: &Scale, events: &[(f64, String)], top: f64) {
    for (index, (at, what)) in events.iter().enumerate() {
        let (number, x) = (index + 1, scale.x(*at));
        let _ = writeln!(
            picture,
            r#"<path d="M{x:.1} {TOP}v{:.0}" stroke="{INK}" stroke-dasharray="2 3"/>"#,
            2.0 * PANEL + GAP
        );
        label(picture, x, TOP - 6.0, "middle", &number.to_string());
        label(picture, LEFT, top + LINE * number as f64, "start", &format!("{number}   {at:.1} s   {what}"));
    }
}

fn label(picture: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(picture, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(at: f64, training: u16, needed: u16, loss: f64) -> Moment {
        Moment { at, job: "job-a".to_owned(), training, needed, loss }
    }

    #[test]
    fn bars_show_who_has_which_slots() {
        let recording = Recording {
            moments: vec![
                moment(1.0, 4, 0, 0.0),
                moment(2.0, 4, 0, 2.0),
                moment(3.0, 1, 2, 0.2),
                moment(5.0, 1, 2, 0.02),
            ],
            events: vec![(2.5, "a spike: 4 < 5 & rising".to_owned())],
        };
        let spans = spans(&recording);
        assert_eq!(spans.iter().map(|(m, until)| (m.at, *until)).collect::<Vec<_>>(), [(1.0, 3.0), (3.0, 5.0)]);
        let picture = svg(&recording, 4);
        let count = |colour: &str| picture.matches(&format!(r#"fill="{colour}"/>"#)).count();
        assert_eq!((count(TRAINING), count(IDLE), count(SERVING)), (2, 1, 1));
        assert!(picture.contains("a spike: 4 &lt; 5 &amp; rising") && picture.ends_with("</svg>\n"));
    }

    #[test]
    fn a_demo_that_saw_nothing_is_still_a_picture() {
        assert!(!svg(&Recording::default(), 4).contains("NaN"));
    }
}
