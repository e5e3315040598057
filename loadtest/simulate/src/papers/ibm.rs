//! Tables III and IV of "Effective Elastic Scaling of Deep Learning Workloads" (Saxena et al., MASCOTS 2020): jobs of four categories come in
//! bursts, and are scaled with the best batch on each size, or with a batch that chance gave them.
//!
//! The baseline (§IV-B) is no policy of its own: "the allocation of GPUs to baseline jobs is done through the same optimizer". It is the
//! mode of this scenario in which a job's total batch is drawn uniformly from its range and stays, so that it fits on no fewer slots than
//! that needs.

use super::{Found, Free, Inputs, Kind, PapersError, Scenario, cluster};
use crate::costs::Costs;
use crate::curve::Tables;
use crate::outcome::Outcome;
use crate::random::Random;
use crate::setup::{Setup, Shape, jobs};
use crate::trace::{TraceJob, Work};
use controller_core::policy::ibm_dp::{IbmDp, Unfit};
use controller_core::policy::scalability::{Exchange, Processing, Scalability};
use std::collections::BTreeMap;

/// Most slots of a job (§III-C2: "for 400 GPUs and k_max = 10").
const SLOTS_MAX: u16 = 10;
/// Rates alternate every so often, the high one first (§IV-G).
const PERIOD_MS: f64 = 7_200_000.0;
/// A change of members waits for the step in flight. The paper's simulator has no steps; a short one is nearest to that.
const STEP_MS: u64 = 100;
/// Weights whose exchange was measured (§III-B2: 10M, 20M, … 100M).
const WEIGHTS_M: std::ops::RangeInclusive<u64> = 1..=10;
/// Slots of a server (§IV: "2 P100 GPUs"), and bytes per ms that an exchange gets within one and between several (10 GbE).
const SERVER_SLOTS: u16 = 2;
const WITHIN_BYTES_PER_MS: f64 = 5.3e6;
const BETWEEN_BYTES_PER_MS: f64 = 1.25e6;

/// A category of jobs.
struct Category {
    /// Minutes on one slot, with the largest batch that fits (§IV-G).
    length_min: f64,
    /// Of table I.
    weights_m: u64,
    /// Of table I.
    batch: (u32, u32),
    /// The share of a step on as many samples as fit that is there with one sample as well.
    fixed: f64,
    /// Whether it may run on several slots.
    elastic: bool,
}

const CATEGORIES: [Category; 4] = [
    Category { length_min: 16.0, weights_m: 24, batch: (32, 256), fixed: 0.17, elastic: true },
    Category { length_min: 21.0, weights_m: 58, batch: (16, 256), fixed: 0.95, elastic: true },
    Category { length_min: 41.0, weights_m: 10, batch: (16, 1_024), fixed: 0.17, elastic: true },
    Category { length_min: 27.0, weights_m: 58, batch: (128, 128), fixed: 0.17, elastic: false },
];

/// What was fitted on the baseline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chosen {
    /// Jobs a minute, in the two hours of many and in those of few.
    pub rates: (f64, f64),
    /// Of each category, how many samples fit on a slot.
    pub per_slot_max: [u32; 4],
    /// Of each category, ms of a step on as many.
    pub step_ms: [f64; 4],
}

/// One of the two tables.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    cluster: &'static str,
    hours: f64,
    /// What is used of what the paper does not print.
    pub chosen: Chosen,
    /// Whether it was fitted on this table.
    fitted: bool,
    /// Elastic and baseline with drop, then both without: SJS efficiency in %, drop ratio in %, mean completion in minutes.
    printed: [(f64, Option<f64>, f64); 4],
}

/// Table III.
pub const THREE: Table = Table {
    cluster: "20x2:p100",
    hours: 12.0,
    chosen: Chosen { rates: (1.567, 0.776), per_slot_max: [32, 64, 256, 128], step_ms: [87.8, 123.0, 18.0, 100.0] },
    fitted: true,
    printed: [(80.46, Some(10.09), 22.98), (50.49, Some(39.57), 28.10), (86.03, None, 27.75), (41.94, None, 320.32)],
};

/// Table IV.
pub const FOUR: Table = Table {
    cluster: "200x2:p100",
    hours: 8.0,
    chosen: Chosen { rates: (15.67, 7.76), ..THREE.chosen },
    fitted: false,
    printed: [(81.00, Some(1.23), 22.83), (46.64, Some(38.28), 27.84), (81.53, None, 22.96), (43.10, None, 166.82)],
};

impl Table {
    /// With other numbers that the paper does not print.
    #[must_use]
    pub fn with(self, chosen: Chosen) -> Self {
        Self { chosen, ..self }
    }
}

const PAPER: &str = "Saxena et al., Effective Elastic Scaling of Deep Learning Workloads, MASCOTS 2020";

const SOURCES: &[&str] = &[
    "table I: weights and batch ranges of the four categories; §IV-G: their lengths on one GPU, equal shares, two hours of many and two of few arrivals in turn",
    "table II: a step of category 1 is a straight line of its samples, 17 % of one with 32 is there without any, and between two GPUs exchanges take 20.4 % of it (all five points within 3 %)",
    "§IV-D: five GPUs with 160 samples are 1.6 times as fast as two with 32, so exchanges between servers of two GPUs take 1.4 steps of 32; both agree with 4 bytes a weight in a ring over 5.3 GB/s within a server and 10 GbE between them",
    "§III-E, §IV-H: plans at every arrival and end, and a change of size costs nothing",
];

const CALIBRATED: &str = "fitted on the five figures of the baseline in table III";

const FREE_SERVICE: [Free; 4] = [
    Free {
        name: "most samples on a GPU, categories 1 to 4",
        value: "32, 64, 256, 128",
        how: "1: as in §IV-D (160 on five); 2, 3: fitted on the five figures of the baseline in table III; 4: it runs on one GPU",
    },
    Free {
        name: "ms of a step with as many, categories 1 to 3",
        value: "87.8, 123, 18",
        how: "1: by 10 GbE and §IV-D; 2, 3: fitted on the same figures. Only exchanges ÷ steps matter",
    },
    Free {
        name: "share of a step that does not depend on its samples, categories 2 and 3",
        value: "0.95, 0.17",
        how: "2: §IV-E, the best factor at the fewest samples is 1.3 times smaller than category 1's; 3: as category 1",
    },
    Free { name: "k_max", value: "10", how: "the example of §III-C2" },
];

const FREE_3: &[Free] = &[
    Free { name: "jobs a minute, very high and very low", value: "1.567, 0.776", how: CALIBRATED },
    FREE_SERVICE[0],
    FREE_SERVICE[1],
    FREE_SERVICE[2],
    FREE_SERVICE[3],
];

const FREE_4: &[Free] = &[
    Free {
        name: "jobs a minute, very high and very low",
        value: "15.67, 7.76",
        how: "ten times those of table III, for ten times as many GPUs",
    },
    FREE_SERVICE[0],
    FREE_SERVICE[1],
    FREE_SERVICE[2],
    FREE_SERVICE[3],
];

/// 40 GPUs for twelve hours.
pub const TABLE_3: Scenario = Scenario {
    name: "ibm-table3",
    about: "40 GPUs: ibm-dp with the best batch on each size, beside the same with a batch by chance; jobs without room are dropped, or wait",
    paper: PAPER,
    kind: Kind::Calibrated,
    sources: SOURCES,
    free: FREE_3,
    notes: &[
        "the drop ratio of elastic jobs is about half of the printed one. It follows from how far the high rate is above what 40 GPUs serve one by one, and the baseline hardly tells the two rates apart: with 1.8 and 0.55 jobs a minute an independent program of the same set-up is as near to it (efficiency 49 and 44 %, drops 44 %, completion 29 and 311 min), and the drop ratio of elastic jobs is 11.7 %, their completion 22.5 and 30.1 min",
    ],
    needs: None,
    seed: 1,
    seeds: 10,
    run: |inputs, found| run(&THREE, inputs, found),
};

/// 400 GPUs for eight hours.
pub const TABLE_4: Scenario = Scenario {
    name: "ibm-table4",
    about: "400 GPUs: the same",
    paper: PAPER,
    kind: Kind::Calibrated,
    sources: SOURCES,
    free: FREE_4,
    notes: &[
        "of drops and completions two runs say little: their intervals are up to several times as wide as what they are about",
    ],
    needs: None,
    seed: 1,
    seeds: 2,
    run: |inputs, found| run(&FOUR, inputs, found),
};

const RUNS: [(&str, Mode, Unfit); 4] = [
    ("elastic, with drop", Mode::Elastic, Unfit::AreDropped),
    ("baseline, with drop", Mode::Baseline, Unfit::AreDropped),
    ("elastic, no drop", Mode::Elastic, Unfit::Wait),
    ("baseline, no drop", Mode::Baseline, Unfit::Wait),
];

fn run(table: &Table, inputs: &Inputs<'_>, found: &mut Found<'_>) -> Result<(), PapersError> {
    let exchange = exchange();
    for ((name, mode, unfit), (efficiency, drops, completion)) in RUNS.into_iter().zip(table.printed) {
        let policy = IbmDp::new(0, unfit);
        let mut figures = Vec::new();
        for seed in inputs.seeds.clone() {
            let setup = setup(table, mode, &exchange, inputs.scale, seed)?;
            figures.push(Figures::of(&found.ran(name, &setup, &policy)));
        }
        let all = |of: fn(&Figures) -> f64| figures.iter().map(of).collect::<Vec<f64>>();
        let baseline = mode == Mode::Baseline && table.fitted;
        found.add(name, ("SJS efficiency", "%"), efficiency, &all(|of| of.efficiency), baseline);
        if let Some(drops) = drops {
            found.add(name, ("drop ratio", "%"), drops, &all(|of| of.drops), baseline);
        }
        found.add(name, ("mean completion", "min"), completion, &all(|of| of.completion), baseline);
    }
    Ok(())
}

/// How far the rows of a table's baseline are from the printed ones, as shares, each the mean over seeds: efficiency, drops and completion with
/// drop, efficiency and completion without. What free parameters are fitted on, and nothing else is.
pub fn baseline_errors(table: &Table, seeds: std::ops::Range<u64>) -> Result<[f64; 5], PapersError> {
    let exchange = exchange();
    let mut errors = Vec::new();
    for ((_, mode, unfit), (efficiency, drops, completion)) in RUNS.into_iter().zip(table.printed) {
        if mode != Mode::Baseline {
            continue;
        }
        let mut sums = [0.0; 3];
        for seed in seeds.clone() {
            let setup = setup(table, mode, &exchange, 1.0, seed)?;
            let of = Figures::of(&crate::run(&setup, &IbmDp::new(0, unfit), &mut || 0));
            sums.iter_mut().zip([of.efficiency, of.drops, of.completion]).for_each(|(sum, of)| *sum += of);
        }
        let mean = sums.map(|sum| sum / seeds.clone().count() as f64);
        errors.push(mean[0] / efficiency - 1.0);
        errors.extend(drops.map(|drops| mean[1] / drops - 1.0));
        errors.push(mean[2] / completion - 1.0);
    }
    errors.try_into().or(Ok([f64::NAN; 5]))
}

/// What is printed of a run.
struct Figures {
    efficiency: f64,
    drops: f64,
    completion: f64,
}

impl Figures {
    fn of(outcome: &Outcome) -> Self {
        let figures = outcome.figures(&vec![None; outcome.jobs.len()]);
        let of = |key: &str| figures[key].as_f64().unwrap_or(f64::NAN);
        Self {
            efficiency: of("sjs_efficiency") * 100.0,
            drops: of("drop_ratio") * 100.0,
            completion: of("mean_completion_s") / 60.0,
        }
    }
}

/// How jobs choose their batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// The best one on each size.
    Elastic,
    /// One by chance, for good.
    Baseline,
}

/// A ring over as many slots, as few servers as there can be.
fn exchange() -> Exchange {
    let mut exchange = Exchange::default();
    for slots in 2..=SLOTS_MAX {
        let bytes_per_ms = if slots <= SERVER_SLOTS { WITHIN_BYTES_PER_MS } else { BETWEEN_BYTES_PER_MS };
        for weights in WEIGHTS_M.map(|tens| tens * 10_000_000) {
            let bytes = 4.0 * weights as f64 * 2.0 * f64::from(slots - 1) / f64::from(slots);
            exchange.add(slots, weights, bytes / bytes_per_ms);
        }
    }
    exchange
}

/// The factors of a job of a category by slots, from one slot on; with a batch that is fixed, those beyond one slot on which it fits.
fn curve(number: usize, chosen: &Chosen, exchange: &Exchange, batch: Option<u32>) -> Vec<(u16, f64)> {
    let (category, per_slot_max, whole_ms) = (&CATEGORIES[number], chosen.per_slot_max[number], chosen.step_ms[number]);
    let step_ms = |samples: u32| {
        let share = f64::from(samples) / f64::from(per_slot_max);
        whole_ms * (category.fixed + (1.0 - category.fixed) * share)
    };
    let points = [1, per_slot_max].map(|samples| (samples, step_ms(samples)));
    let Ok(processing) = Processing::new(points.to_vec()) else { return Vec::new() };
    let job = Scalability {
        processing: &processing,
        exchange,
        parameters: category.weights_m * 1_000_000,
        batch: category.batch.0..=category.batch.1,
        per_slot_max,
    };
    let most = if category.elastic { SLOTS_MAX } else { 1 };
    let mut points = job.curve(most, batch);
    if points.first().is_some_and(|(slots, _)| *slots > 1) {
        // What factors are multiples of was measured all the same (§III-B1).
        points.insert(0, (1, 1.0));
    }
    points
}

fn setup(table: &Table, mode: Mode, exchange: &Exchange, scale: f64, seed: u64) -> Result<Setup, PapersError> {
    let mut tables = Tables::default();
    let mut models: BTreeMap<String, (u16, f64)> = BTreeMap::new();
    let mut trace = Vec::new();
    for (number, arrival) in arrivals(table, scale, seed).into_iter().enumerate() {
        let category = &CATEGORIES[arrival.category];
        let batch = (mode == Mode::Baseline).then_some(arrival.batch);
        let model =
            format!("category-{}-{}", arrival.category + 1, batch.map_or("any".to_owned(), |of| of.to_string()));
        let (fewest, factor) = *models.entry(model.clone()).or_insert_with(|| {
            let points = curve(arrival.category, &table.chosen, exchange, batch);
            let fewest = fewest(arrival.category, &table.chosen, batch);
            let factor = points.iter().find(|(slots, _)| *slots == fewest).map_or(1.0, |(_, factor)| *factor);
            tables.add_speeds(&model, points);
            (fewest, factor)
        });
        // On the slots that it asks for, which are its fewest.
        let work = Work::Seconds(category.length_min * 60.0 / factor);
        trace.push(TraceJob {
            submitted_ms: arrival.at_ms,
            min: Some(fewest),
            max: Some(if category.elastic { SLOTS_MAX } else { 1 }),
            model: Some(model),
            ..TraceJob::new(format!("{number}"), fewest, work)
        });
    }
    let shape = Shape { min_share: 0.0, max_share: 1.0, step_ms: STEP_MS, speed_up: 1.0, goodput: false };
    let costs = Costs::none();
    Ok(Setup::of_training_alone(jobs(&trace, &tables, &shape, &costs, seed)?.0, cluster(table.cluster), costs, seed))
}

/// On how many slots a batch fits; the fewest samples that it may train with fit on one.
fn fewest(category: usize, chosen: &Chosen, batch: Option<u32>) -> u16 {
    batch.map_or(1, |batch| batch.div_ceil(chosen.per_slot_max[category]) as u16)
}

struct Arrival {
    at_ms: u64,
    category: usize,
    batch: u32,
}

/// Who comes when, the same in both modes: by the high rate, and at times of the low one only its share of those.
fn arrivals(table: &Table, scale: f64, seed: u64) -> Vec<Arrival> {
    let (high, low) = table.chosen.rates;
    let until = table.hours * 3_600_000.0 * scale;
    let mut random = Random::new(seed);
    let (mut at, mut found) = (0.0, Vec::new());
    loop {
        at += random.exponential_ms(60_000.0 / high) as f64;
        if at >= until {
            return found;
        }
        let many = ((at / PERIOD_MS) as u64).is_multiple_of(2);
        if random.share() * high >= low && !many {
            continue;
        }
        let category = random.below(CATEGORIES.len());
        let (least, most) = CATEGORIES[category].batch;
        let batch = least + random.below((most - least + 1) as usize) as u32;
        found.push(Arrival { at_ms: at as u64, category, batch });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Table II: what category 1 gets out of two slots, by samples on each; and §IV-D: five slots with 160 beside two with 32.
    #[test]
    fn category_one_is_as_printed() {
        let exchange = exchange();
        for (share, printed) in [(16, 1.3), (22, 1.45), (32, 1.66)] {
            let of = curve(0, &THREE.chosen, &exchange, Some(2 * share));
            let factor = of.iter().find(|(slots, _)| *slots == 2).unwrap().1;
            assert!((factor / printed - 1.0).abs() < 0.03, "{share}: {factor} and not {printed}");
        }
        let five = curve(0, &THREE.chosen, &exchange, Some(160)).iter().find(|(slots, _)| *slots == 5).unwrap().1;
        assert!((five / 1.3 - 1.6).abs() < 0.05, "{five}");
    }

    #[test]
    fn a_batch_by_chance_needs_the_slots_that_it_fits_on() {
        let exchange = exchange();
        let sizes = |category: usize, batch| {
            curve(category, &THREE.chosen, &exchange, batch).iter().map(|(slots, _)| *slots).collect::<Vec<_>>()
        };
        assert_eq!(sizes(0, Some(256)), [1, 8, 9, 10]);
        assert_eq!((sizes(0, None), sizes(3, None), sizes(3, Some(128))), ((1..=10).collect(), vec![1], vec![1]));
        assert_eq!(
            [(0, 256), (1, 256), (2, 1_024), (3, 128)].map(|(of, batch)| fewest(of, &THREE.chosen, Some(batch))),
            [8, 4, 4, 1]
        );
    }

    #[test]
    fn many_and_few_come_in_turn() {
        let arrivals = arrivals(&FOUR, 1.0, 3);
        let of_period = |period: u64| arrivals.iter().filter(|of| of.at_ms / 7_200_000 == period).count() as f64;
        assert!(
            (of_period(0) / (15.67 * 120.0) - 1.0).abs() < 0.1 && (of_period(1) / (7.76 * 120.0) - 1.0).abs() < 0.1
        );
        assert_eq!(arrivals.iter().map(|of| of.at_ms / 7_200_000).max(), Some(3));
    }
}
