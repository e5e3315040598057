//! How fast a training gets on where a step gains more in some epochs than in others: progress by the epoch, as Pollux measures it.
//!
//! A step on a batch of `s` times the smallest batch size gains (v + g) / (v / s + g), where g and v are the squared norm and the variance
//! of gradients in the epoch (Pollux, OSDI 2021, §3.1, as `simulator.py` of petuum/adaptdl has it); an epoch ends at a progress that was
//! measured. What its simulator does beside that is kept, because figures are compared with it: batches are rounded as there, an epoch
//! ends on a whole second, and whoever is stopped loses nothing of a step in flight.

use std::collections::BTreeMap;

/// GPUs of a server of the measurements.
const GPUS: u16 = 4;
/// Models of which larger local batches were measured than that simulator lets fit.
const LOCAL_MAX: [(&str, u32); 1] = [("yolov3", 8)];
/// An epoch ends on a multiple of this.
const EPOCH_ENDS_MS: f64 = 1_000.0;
/// Longest time of a pace: no run lasts so long.
const TAKES_MS_MAX: f64 = 1e15;

/// Seconds of a step, and of its exchange of gradients.
type Times = (f64, f64);

/// What was measured of a model, by local batch size.
type ByLocal = BTreeMap<u32, Times>;

/// Sums of what was measured with as many servers and GPUs, and of how many they are, by local batch size.
type SumsByLocal = BTreeMap<u32, (Times, u32)>;

/// What was measured of the training of one model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Goodput {
    /// By the GPUs on each server, the smallest of its rotations.
    placements: BTreeMap<Vec<u16>, ByLocal>,
    /// By GPUs, then by servers, over all placements with so many.
    shapes: BTreeMap<u16, BTreeMap<u16, SumsByLocal>>,
    /// Epochs in order, by batch size.
    epochs: BTreeMap<u32, Vec<Epoch>>,
    local_max: u32,
    /// Whether a step has the batch that it gains most with in its epoch.
    takes_best_batch: bool,
}

/// One epoch at a batch size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Epoch {
    /// At its end.
    pub progress: f64,
    /// Squared norm of the gradient.
    pub grad_sqr: f64,
    /// Its variance.
    pub grad_var: f64,
}

/// A batch as it is really computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Batch {
    /// Samples of a pass on one GPU.
    local: u32,
    /// Passes before the one that exchanges gradients.
    accumulated: u32,
    /// Samples of a step, over all GPUs.
    total: u32,
}

impl Goodput {
    /// Adds the times of a placement: the GPUs on each server.
    pub(crate) fn add_placement(&mut self, place: &[u16], local: u32, times: Times) {
        self.placements.entry(rotated(place)).or_default().insert(local, times);
        self.local_max = self.local_max.max(local);
        self.add_shape(place.len() as u16, place.iter().sum(), local, times);
    }

    /// Adds times of which only is known on how many servers and GPUs.
    pub(crate) fn add_shape(&mut self, servers: u16, gpus: u16, local: u32, (step_s, sync_s): Times) {
        let ((step, sync), count) =
            self.shapes.entry(gpus).or_default().entry(servers).or_default().entry(local).or_default();
        (*step, *sync, *count) = (*step + step_s, *sync + sync_s, *count + 1);
    }

    pub(crate) fn add_epoch(&mut self, batch_size: u32, epoch: Epoch) {
        self.epochs.entry(batch_size).or_default().push(epoch);
    }

    /// Keeps local batches as small as its model's have to be.
    pub(crate) fn named(mut self, model: &str) -> Self {
        let capped = LOCAL_MAX.iter().find(|(name, _)| *name == model);
        self.local_max = capped.map_or(self.local_max, |(_, most)| self.local_max.min(*most));
        self
    }

    /// Takes of the measured batch sizes, and the one that was asked for, in each epoch the one that a placement gains most with.
    pub(crate) fn with_best_batches(self) -> Self {
        Self { takes_best_batch: true, ..self }
    }

    /// Whether enough was measured to train with so many samples a step.
    #[must_use]
    pub fn knows(&self, batch_size: u32) -> bool {
        let sizes = self.epochs.first_key_value().zip(self.epochs.last_key_value());
        sizes.is_some_and(|((low, _), (high, _))| (*low..=*high).contains(&batch_size)) && !self.placements.is_empty()
    }

    /// Progress at the end of each epoch: the least over batch sizes, of epochs that all of them have.
    fn ends(&self) -> Vec<f64> {
        let count = self.epochs.values().map(Vec::len).min().unwrap_or(0);
        let least = |epoch: usize| self.epochs.values().map(|of| of[epoch].progress).fold(f64::INFINITY, f64::min);
        (0..count).map(least).collect()
    }

    /// Progress at the end of its last epoch.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.ends().last().copied().unwrap_or(0.0)
    }

    /// How fast it gets on with a batch size on so many GPUs of each server, those with most first, and whether that had to be taken from beyond what was measured.
    #[must_use]
    pub fn pace(&self, batch_size: u32, servers: &[u16]) -> (Pace, bool) {
        let ends = self.ends();
        let (mut rates, mut beyond) = self.rates(batch_size, servers, ends.len());
        for size in self.epochs.keys().filter(|_| self.takes_best_batch) {
            let (others, is_beyond) = self.rates(*size, servers, ends.len());
            for (rate, other) in rates.iter_mut().zip(others).filter(|(rate, other)| other > *rate) {
                (*rate, beyond) = (other, beyond || is_beyond);
            }
        }
        (Pace { stretches: ends.into_iter().zip(rates).collect(), flows: true }, beyond)
    }

    /// The same of one batch size: its rate in each epoch.
    fn rates(&self, batch_size: u32, servers: &[u16], epochs: usize) -> (Vec<f64>, bool) {
        let gpus = servers.iter().sum::<u16>().max(1);
        let batch = self.batch(batch_size, gpus);
        let ((step_s, sync_s), beyond) = self.times(servers, batch.local);
        let takes_s = step_s + f64::from(batch.accumulated) * (step_s - sync_s);
        ((0..epochs).map(|epoch| self.gain(batch.total, epoch) / takes_s / 1_000.0).collect(), beyond)
    }

    /// The batch that is computed where so many samples were asked for.
    fn batch(&self, asked: u32, gpus: u16) -> Batch {
        let sizes = self.epochs.first_key_value().zip(self.epochs.last_key_value());
        let (smallest, largest) = sizes.map_or((asked, asked), |((low, _), (high, _))| (*low, *high));
        let share = asked.div_ceil(u32::from(gpus));
        let passes = share.div_ceil(self.local_max.max(1)).max(1);
        // The variance of gradients is measured between passes, so a single GPU needs two of them.
        let passes = if gpus == 1 && asked > smallest { passes.max(2) } else { passes };
        let parts = u32::from(gpus) * passes;
        let local = share.div_ceil(passes).min(largest / parts).max(1);
        Batch { local, accumulated: passes - 1, total: local * parts }
    }

    /// What a step gains in an epoch, in steps with the smallest batch size.
    fn gain(&self, total: u32, epoch: usize) -> f64 {
        let of = |(size, epochs): (&u32, &Vec<Epoch>)| epochs.get(epoch).map(|known| (*size, *known));
        let below = self.epochs.range(..=total).next_back().and_then(of);
        let above = self.epochs.range(total..).next().and_then(of);
        let smallest = self.epochs.first_key_value().map_or(1, |(size, _)| *size);
        let Some(((low, from), (high, to))) = below.or(above).zip(above.or(below)) else { return 0.0 };
        let share = if high > low { f64::from(total - low) / f64::from(high - low) } else { 0.0 };
        let between = |of: fn(&Epoch) -> f64| of(&from) * (1.0 - share) + of(&to) * share;
        let (sqr, var) = (between(|epoch| epoch.grad_sqr), between(|epoch| epoch.grad_var));
        (var + sqr) / (var / (f64::from(total) / f64::from(smallest)) + sqr)
    }

    /// Step and exchange, and whether they are those of the nearest that was measured, because nothing on both sides was.
    fn times(&self, servers: &[u16], local: u32) -> (Times, bool) {
        if let Some(known) = self.placements.get(&rotated(servers)) {
            return between(local, known.range(..=local).next_back(), known.range(local..).next(), |times, _| {
                (*times, false)
            });
        }
        let (gpus, count) = (servers.iter().sum::<u16>(), servers.len() as u16);
        let below = self.shapes.range(..=gpus).next_back();
        between(gpus, below, self.shapes.range(gpus..).next(), |shapes, gpus| {
            // So many GPUs are on as many servers at most, and on a fourth at least.
            let count = count.clamp(gpus.div_ceil(GPUS), gpus);
            between(count, shapes.range(..=count).next_back(), shapes.range(count..).next(), |known, _| {
                let mean = |((step, sync), count): &(Times, u32), _| {
                    let of = |sum: f64| sum / f64::from((*count).max(1));
                    ((of(*step), of(*sync)), false)
                };
                between(local, known.range(..=local).next_back(), known.range(local..).next(), mean)
            })
        })
    }
}

/// A value on the line between two that were measured, or the nearest one, which is said.
fn between<K: Copy + Into<f64> + PartialEq, V>(
    at: K,
    below: Option<(&K, &V)>,
    above: Option<(&K, &V)>,
    value: impl Fn(&V, K) -> (Times, bool),
) -> (Times, bool) {
    match (below, above) {
        (Some((low, from)), Some((high, to))) if low != high => {
            let share = (at.into() - (*low).into()) / ((*high).into() - (*low).into());
            let (((a, b), of), ((c, d), and)) = (value(from, *low), value(to, *high));
            ((a * (1.0 - share) + c * share, b * (1.0 - share) + d * share), of || and)
        }
        (Some((key, known)), Some(_)) => value(known, *key),
        (Some((key, known)), None) | (None, Some((key, known))) => (value(known, *key).0, true),
        (None, None) => ((f64::INFINITY, 0.0), true),
    }
}

/// GPUs on each server as measurements name them: the servers with most first, then the smallest rotation.
fn rotated(servers: &[u16]) -> Vec<u16> {
    let turned = |from: usize| servers[from..].iter().chain(&servers[..from]).copied().collect();
    (0..servers.len()).map(turned).min().unwrap_or_default()
}

/// So many GPUs on as few servers as hold them.
#[must_use]
pub fn densest(gpus: u16) -> Vec<u16> {
    let rest = [gpus % GPUS].into_iter().filter(|rest| *rest > 0);
    (0..gpus / GPUS).map(|_| GPUS).chain(rest).collect()
}

/// How fast a job gets on: a rate up to some progress, another one from there on.
#[derive(Debug, Clone, PartialEq)]
pub struct Pace {
    /// Until which progress, and how much of it in a millisecond.
    stretches: Vec<(f64, f64)>,
    /// Whether there are no steps that are whole or lost, and stretches end on whole seconds.
    flows: bool,
}

impl Pace {
    /// Always the same, in whole steps.
    #[must_use]
    pub fn even(rate: f64) -> Self {
        Self { stretches: vec![(f64::INFINITY, rate)], flows: false }
    }

    /// The same on faster servers.
    #[must_use]
    pub fn times(mut self, factor: f64) -> Self {
        self.stretches.iter_mut().for_each(|(_, rate)| *rate *= factor);
        self
    }

    /// Whether it can be stopped at any time without loss.
    #[must_use]
    pub fn flows(&self) -> bool {
        self.flows
    }

    fn from(&self, at: f64) -> &[(f64, f64)] {
        &self.stretches[self.stretches.partition_point(|(end, _)| *end <= at)..]
    }

    /// How much in a millisecond, where it is now.
    #[must_use]
    pub fn rate(&self, at: f64) -> f64 {
        self.from(at).first().or(self.stretches.last()).map_or(0.0, |(_, rate)| *rate)
    }

    /// Where it is after a while.
    #[must_use]
    pub fn after(&self, mut at: f64, ms: u64) -> f64 {
        let mut left = ms as f64;
        for (end, rate) in self.from(at) {
            let takes = crossing_ms(*end - at, *rate);
            if takes > left {
                return (at + left * rate).min(*end);
            }
            (at, left) = (*end, left - takes);
        }
        at
    }

    /// How long it takes to get somewhere, in whole milliseconds.
    #[must_use]
    pub fn takes_ms(&self, mut at: f64, to: f64) -> u64 {
        let mut ms = 0.0;
        for (end, rate) in self.from(at) {
            if to < *end {
                ms += ((to - at).max(0.0) / rate).ceil();
                break;
            }
            ms += crossing_ms(*end - at, *rate);
            at = *end;
        }
        ms.min(TAKES_MS_MAX) as u64
    }
}

fn crossing_ms(left: f64, rate: f64) -> f64 {
    (left / rate / EPOCH_ENDS_MS).round() * EPOCH_ENDS_MS
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn epoch(progress: f64, grad_sqr: f64, grad_var: f64) -> Epoch {
        Epoch { progress, grad_sqr, grad_var }
    }

    /// Batches of 8 and 16 samples, of which 4 fit on a GPU; two epochs.
    fn measured() -> Goodput {
        let mut model = Goodput::default();
        for (place, local, times) in [
            (&[1][..], 2, (1.0, 0.0)),
            (&[1], 4, (2.0, 0.0)),
            (&[1, 1], 2, (2.0, 1.0)),
            (&[1, 1], 4, (3.0, 1.0)),
            (&[2], 2, (1.5, 0.5)),
            (&[2], 4, (2.5, 0.5)),
        ] {
            model.add_placement(place, local, times);
        }
        model.add_shape(4, 4, 4, (5.0, 2.0));
        for size in [8, 16] {
            model.add_epoch(size, epoch(100.0, 1.0, 1.0));
            model.add_epoch(size, epoch(200.0, 1.0, 3.0));
        }
        model
    }

    #[test]
    fn a_batch_is_rounded_as_there() {
        let model = measured();
        let of = |asked, gpus| {
            let batch = model.batch(asked, gpus);
            (batch.local, batch.accumulated, batch.total)
        };
        assert_eq!(of(8, 1), (4, 1, 8));
        assert_eq!(of(8, 2), (4, 0, 8));
        assert_eq!(of(9, 1), (3, 2, 9), "three passes, because four samples fit");
        assert_eq!(of(16, 3), (2, 1, 12), "six samples each in two passes of three are 18, beyond the largest batch");
        let fits = Goodput { local_max: 64, ..measured() };
        assert_eq!(fits.batch(16, 1).accumulated, 1, "a single GPU measures variance between two passes");
        assert_eq!(fits.batch(8, 1).accumulated, 0);
        assert_eq!(measured().named("yolov3").local_max, 4);
        assert_eq!(Goodput { local_max: 64, ..measured() }.named("yolov3").local_max, 8);
    }

    #[test]
    fn a_step_gains_less_than_its_samples_where_gradients_agree() {
        let model = measured();
        assert_eq!(model.gain(8, 0), 1.0);
        // Twice the samples: (1 + 1) / (1/2 + 1), and (3 + 1) / (3/2 + 1).
        assert_eq!((model.gain(16, 0), model.gain(16, 1)), (2.0 / 1.5, 4.0 / 2.5));
        // (1 + 1) / (1/1.5 + 1) between them.
        assert!((model.gain(12, 0) - 1.2).abs() < 1e-12);
    }

    #[test]
    fn times_are_of_the_placement_or_between_those_with_as_many() {
        let model = measured();
        assert_eq!(model.times(&[1, 1], 3), ((2.5, 1.0), false));
        assert_eq!(model.times(&[1, 1], 8), ((3.0, 1.0), true), "nothing larger was measured");
        // Three GPUs on three servers: between two on two, and four on four.
        assert_eq!(model.times(&[1, 1, 1], 4), ((4.0, 1.5), true), "of four on three servers nothing was");
        assert_eq!((rotated(&[4, 4, 2]), densest(10)), (vec![2, 4, 4], vec![4, 4, 2]));
    }

    #[test]
    fn an_epoch_ends_on_a_whole_second_and_the_next_one_has_another_rate() {
        let (pace, beyond) = measured().pace(16, &[2]);
        // Eight samples each: two passes of four. 2.5 s and 2 s before it; gains of 4/3 and 8/5.
        let (slow, fast) = (4.0 / 3.0 / 4.5 / 1e3, 1.6 / 4.5 / 1e3);
        assert!(!beyond && pace.flows());
        assert!((pace.rate(0.0) - slow).abs() < 1e-12 && (pace.rate(100.0) - fast).abs() < 1e-12, "{pace:?}");
        // 337.5 s and 281.25 s.
        assert_eq!(pace.takes_ms(0.0, 200.0), 338_000 + 281_000);
        assert_eq!(pace.after(0.0, 338_000), 100.0);
        assert!((pace.after(0.0, 339_000) - (100.0 + 1_000.0 * fast)).abs() < 1e-9);
        assert_eq!(pace.after(0.0, 1_000_000), 200.0);
        let resumed = pace.after(0.0, 60_000);
        assert_eq!(60_000 + pace.takes_ms(resumed, 200.0), 338_000 + 281_000, "a stop between loses nothing");
    }

    #[test]
    fn the_best_batch_is_of_the_placement_and_of_the_epoch() {
        // On two GPUs of a server 8 samples take 2.5 s for a gain of 1, and 16 samples 4.5 s for 4/3 and later 8/5.
        let (fixed, best) = (measured(), measured().with_best_batches());
        let rates = |model: &Goodput, size| {
            let pace = model.pace(size, &[2]).0;
            [0.0, 100.0].map(|at| (pace.rate(at) * 1e7).round())
        };
        assert_eq!([8, 16].map(|size| rates(&fixed, size)), [[4_000.0; 2], [2_963.0, 3_556.0]]);
        assert_eq!([8, 16].map(|size| rates(&best, size)), [[4_000.0; 2]; 2]);
        // Where exchanges take long the larger one is the better, first when gradients disagree.
        let slow = |mut model: Goodput| {
            model.add_placement(&[2], 4, (13.0, 11.0));
            model
        };
        assert_eq!([8, 16].map(|size| rates(&slow(fixed.clone()), size)), [[769.0; 2], [889.0, 1_067.0]]);
        assert_eq!(rates(&slow(best), 8), [889.0, 1_067.0]);
    }

    #[test]
    fn an_even_pace_goes_on_in_whole_milliseconds() {
        let pace = Pace::even(0.003);
        assert_eq!((pace.takes_ms(1.0, 2.0), pace.after(1.0, 1_000), pace.rate(7.0)), (334, 4.0, 0.003));
        assert_eq!(pace.times(2.0).rate(0.0), 0.006);
    }

    #[test]
    fn what_was_not_measured_is_not_known() {
        assert!(measured().knows(12) && !measured().knows(17) && !Goodput::default().knows(1));
    }
}
