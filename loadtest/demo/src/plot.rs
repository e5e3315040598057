//! The demo as a picture: who has which slots over time, and the loss below, with the events of the story as numbered lines.
//! Knows nothing of how the moments were seen; how panels are drawn is `loadtest/src/chart.rs`.

use loadtest::chart::{Axis, Chart, Layer, Panel};

/// Colours: training, between the two (starting, or taken back by name), at the fleet, the loss.
const TRAINING: &str = "#2563eb";
const IDLE: &str = "#93c5fd";
const SERVING: &str = "#f59e0b";
const LOSS: &str = "#111827";

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
    let seconds = recording.moments.last().map_or(1.0, |m| m.at);
    let panels = vec![shares(recording, f64::from(slots.max(1))), losses(&recording.moments)];
    Chart { seconds, panels, marks: recording.events.clone() }.svg()
}

/// Training from below, the fleet from above, and what is on the way between them.
fn shares(recording: &Recording, slots: f64) -> Panel {
    let (mut training, mut idle, mut serving) = (Vec::new(), Vec::new(), Vec::new());
    for (moment, until) in spans(recording) {
        let at_work = f64::from(moment.training).min(slots);
        let at_the_fleet = f64::from(moment.needed).min(slots - at_work);
        for (bars, low, high) in [
            (&mut training, 0.0, at_work),
            (&mut idle, at_work, slots - at_the_fleet),
            (&mut serving, slots - at_the_fleet, slots),
        ] {
            bars.extend((high > low).then_some([moment.at, until, low, high]));
        }
    }
    let layers = [(TRAINING, training), (IDLE, idle), (SERVING, serving)];
    let word = |text: &str, colour| (text.to_owned(), colour);
    Panel {
        title: vec![
            word("slots: ", None),
            word("training", Some(TRAINING)),
            word(", ", None),
            word("with the inference fleet", Some(SERVING)),
            word(", ", None),
            word("between the two", Some(IDLE)),
        ],
        axis: Axis::Whole(slots),
        layers: layers.into_iter().map(|(colour, bars)| Layer::Bars { colour, bars }).collect(),
    }
}

/// One line per job.
fn losses(moments: &[Moment]) -> Panel {
    let logarithms = moments.iter().map(|m| m.loss).filter(|loss| *loss > 0.0).map(f64::log10);
    let (low, high) = logarithms.fold((0.0, 0.0), |(low, high): (f64, f64), l| (low.min(l), high.max(l)));
    let low = low.floor();
    let line = |run: &[Moment]| {
        let points = run.iter().filter(|m| m.loss > 0.0).map(|m| (m.at, m.loss)).collect();
        Layer::Line { colour: LOSS, points }
    };
    Panel {
        title: vec![("loss".to_owned(), None)],
        axis: Axis::Powers { low, high: high.ceil().max(low + 1.0) },
        layers: moments.chunk_by(|a, b| a.job == b.job).map(line).collect(),
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
