//! What policies are told of jobs that the controller itself does not know: how much work they have left, and how fast they are by slots.
//!
//! A policy in here sees a view to which that is added; nothing else of a run changes with it. Who may know nothing is told nothing, also of
//! what the controller could have worked out, so that policies of one class are compared on the same terms.

use crate::agents::class_of;
use crate::guarantees::Quotas;
use crate::random::Random;
use crate::setup::{Job, Setup};
use controller_core::Policy;
use controller_core::policy::speeds::SpeedCurve;
use controller_core::policy::{Plan, Share, View, WorkLeft, Wraps};
use events_schema::Digest;
use events_schema::fact::Fact;
use events_schema::slot_type::SlotType;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Largest deviation of guesses: with 3 a guess in twenty is wrong by a factor of 350.
const SIGMA_MAX: f64 = 3.0;
/// The share of jobs whose work nobody guesses, where nothing else is said.
const UNDECLARED: f64 = 0.1;
/// How sure work is that follows from steps, in thousandths, as the controller takes it.
const STEPPED_SIGMA_MILLI: u32 = 500;
/// Beside the seed, so that guesses do not come of the same chance as the jobs.
const GUESSES: u64 = 0x6775_6573;

/// What policies know of the work that is left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[serde(rename_all = "lowercase", tag = "work")]
pub enum Information {
    /// They know what jobs have had, and nothing of what is to come.
    #[default]
    Unknown,
    /// As live: nothing before a job has stepped, and from then on what is left of it, taken for a guess as steps differ between sizes.
    Stepped,
    /// A guess for each job at its submission, off by a log-normally distributed factor.
    Estimated {
        /// Standard deviation of the factor's logarithm.
        sigma: f64,
        /// The share of jobs without any.
        undeclared: f64,
    },
    /// All of it.
    Known,
}

/// Why a text is no information.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is nothing that can be known of jobs' work; expected unknown, known, stepped, or estimated:SIGMA as in estimated:0.5, with the share of jobs without an estimate as in estimated:0.5,0.2 (SIGMA 0 to 3, the share 0 to 1)"
)]
pub struct InformationError {
    text: String,
}

impl FromStr for Information {
    type Err = InformationError;
    fn from_str(text: &str) -> Result<Self, InformationError> {
        let within = |text: &str, max: f64| text.parse().ok().filter(|number| (0.0..=max).contains(number));
        let estimated = |of: &str| {
            let (sigma, undeclared) = of.split_once(',').map_or((of, None), |(sigma, share)| (sigma, Some(share)));
            let undeclared = undeclared.map_or(Some(UNDECLARED), |share| within(share, 1.0))?;
            Some(Self::Estimated { sigma: within(sigma, SIGMA_MAX)?, undeclared })
        };
        let known = match text {
            "unknown" => Some(Self::Unknown),
            "known" => Some(Self::Known),
            "stepped" => Some(Self::Stepped),
            _ => text.strip_prefix("estimated:").and_then(estimated),
        };
        known.ok_or_else(|| InformationError { text: text.to_owned() })
    }
}

impl Information {
    /// The factor that a job's guess is off by; none of a job that nobody guesses.
    fn factor(self, seed: u64, job: usize) -> Option<f64> {
        let Self::Estimated { sigma, undeclared } = self else { return Some(1.0) };
        let mut random = Random::new(seed ^ GUESSES ^ (job as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        (random.share() >= undeclared).then(|| libm::exp(sigma * random.normal()))
    }

    /// What is told of a job that takes so long in all, and is so far, on the slots that it asked for.
    pub(crate) fn told(self, seed: u64, job: usize, total_ms: u64, left_ms: u64) -> WorkLeft {
        match self {
            Self::Unknown => WorkLeft::Unknown,
            Self::Known => WorkLeft::Known { ms: left_ms },
            Self::Stepped if left_ms >= total_ms => WorkLeft::Unknown,
            Self::Stepped => {
                let done_ms = total_ms.saturating_sub(left_ms);
                WorkLeft::Estimated { total_ms, done_ms, sigma_milli: STEPPED_SIGMA_MILLI }
            }
            Self::Estimated { sigma, .. } => match self.factor(seed, job) {
                None => WorkLeft::Unknown,
                Some(factor) => WorkLeft::Estimated {
                    total_ms: (total_ms as f64 * factor) as u64,
                    done_ms: total_ms.saturating_sub(left_ms),
                    sigma_milli: (sigma * 1e3) as u32,
                },
            },
        }
    }
}

/// The speeds of jobs as policies see them, worked out once for each.
#[derive(Debug)]
pub(crate) struct Curves(Vec<OnceLock<Option<SpeedCurve>>>);

impl Curves {
    /// Of so many jobs, of which none is known yet.
    pub fn new(jobs: usize) -> Self {
        Self(std::iter::repeat_with(OnceLock::new).take(jobs).collect())
    }

    /// Of the job at a place of its setup.
    fn of(&self, number: usize, job: &Job) -> Option<SpeedCurve> {
        self.0.get(number)?.get_or_init(|| curve(job)).clone()
    }
}

/// Speeds at every size that a job may have, and at smaller ones that were measured, as multiples of that on the slots that it asked for.
fn curve(job: &Job) -> Option<SpeedCurve> {
    let asked_ms = job.takes_ms(job.asked, 1.0)?;
    let micro = |slots: u16| Some((slots, (asked_ms / job.takes_ms(slots, 1.0)? * 1e6) as u64));
    let fewest = job.curve.range().0.clamp(1, job.spec.workers.min);
    let points = (fewest..=job.spec.workers.max).filter_map(micro).filter(|(_, micro)| *micro > 0);
    SpeedCurve::new(points.collect()).ok()
}

/// A policy that is told of jobs what it may know.
pub(crate) struct Informed<'a> {
    pub policy: &'a dyn Policy,
    pub jobs: &'a [Job],
    pub curves: &'a Curves,
    pub restart_ms: u32,
    /// The setup's types.
    pub classes: &'a Classes,
    /// What is left of a job, by its place in the setup.
    pub left: &'a (dyn Fn(usize) -> WorkLeft + Sync),
    /// What tenants have guaranteed.
    pub quotas: &'a Quotas,
    /// Whom the plan kept from it.
    pub denied: Mutex<BTreeSet<usize>>,
}

impl Informed<'_> {
    fn view(&self, view: &View) -> View {
        let curves = Vec::with_capacity(view.jobs.len());
        let (classes, jobs, tenants) = (view.classes.clone(), view.jobs.clone(), view.tenants.clone());
        let mut mixtures = view.mixtures.clone();
        // Nobody is measured here: what would be known in the end is known at once.
        let known = self.classes.speed_milli.as_ref();
        known.iter().for_each(|speeds| mixtures.iter_mut().for_each(|of| of.speed_milli.clone_from(speeds)));
        let (now_ms, effort) = (view.now_ms, view.effort.clone());
        let mut told = View { classes, mixtures, jobs, curves, tenants, now_ms, effort };
        for of in &mut told.jobs {
            // Jobs are accepted in the order of the setup, and none is refused.
            let number = of.arrival as usize;
            let Some(job) = self.jobs.get(number) else { continue };
            (of.requested, of.left, of.restart_ms) = (Some(job.asked), (self.left)(number), self.restart_ms);
            let bound = self.classes.bound.get(number).copied().flatten();
            match known {
                // The bound is a type, and not what it computes.
                Some(_) => of.only = bound,
                None => of.numeric = of.numeric.or(bound),
            }
            // Of a job that is measured nothing else is known than what was measured.
            let curve = match job.is_measured() {
                true => of.curve.and_then(|place| view.curves.get(place).cloned()),
                false => self.curves.of(number, job),
            };
            of.curve = curve.map(|curve| {
                told.curves.push(curve);
                told.curves.len() - 1
            });
        }
        told
    }
}

impl Wraps for Informed<'_> {
    fn inner(&self) -> &dyn Policy {
        self.policy
    }

    fn wrapped_plan(&self, view: &View) -> Plan {
        let told = self.view(view);
        let plan = self.policy.plan(&told);
        *self.denied.lock().unwrap_or_else(PoisonError::into_inner) = self.quotas.denied(&told, &plan);
        plan
    }

    fn wrapped_guarantees(&self, view: &View) -> Vec<Share> {
        self.policy.guarantees(&self.view(view))
    }
}

/// What views say of the setup's types: theirs are in the order of classes' digests, and of types within one class.
#[derive(Debug)]
pub(crate) struct Classes {
    /// The number of the only one that each job can use, by its place in the setup; the core has no such bound before a job has run. A type that there is none of
    /// has a number that no class has.
    bound: Vec<Option<usize>>,
    /// How fast each is, in thousandths of the fastest, where they are of one numeric class.
    speed_milli: Option<Vec<u32>>,
}

impl Classes {
    /// Of a setup.
    pub fn of(setup: &Setup) -> Self {
        let groups = || setup.cluster.groups.iter().chain(&setup.inference.groups);
        let class = |kind: &str| class_of(kind, setup.mixed_types);
        let known: BTreeMap<(Digest, Option<SlotType>), f64> =
            groups().map(|group| (class(&group.kind), group.speed)).collect();
        let number = |kind: &String| known.keys().position(|of| *of == class(kind)).unwrap_or(usize::MAX);
        let fastest = known.values().copied().fold(0.0, f64::max);
        let milli = |speed: &f64| ((speed / fastest * 1e3).round() as u32).max(1);
        let speed_milli = setup.mixed_types.then(|| known.values().map(milli).collect());
        Self { bound: setup.jobs.iter().map(|job| job.only.as_ref().map(number)).collect(), speed_milli }
    }
}

/// Whether a fact changes anything that plans are made of: jobs and their phases, sizes and settling, slots that can be had.
pub(crate) fn is_seen_by_policies(fact: &Fact) -> bool {
    !matches!(
        fact,
        Fact::CommandRefused { .. }
            | Fact::CommandTaken { .. }
            | Fact::JobExplained { .. }
            | Fact::CheckpointAccepted { .. }
            | Fact::CheckpointRetired { .. }
            | Fact::Evaluated { .. }
            | Fact::DatasetRegistered { .. }
            | Fact::DatasetRemoved { .. }
            | Fact::DemandAccepted { .. }
            | Fact::SignalsRefused { .. }
            | Fact::ObjectsSwept { .. }
            | Fact::SlotBorrowed { .. }
            | Fact::ReportsTaken { .. }
            | Fact::ExecutorAssigned { .. }
            | Fact::ExecutorReady { .. }
            | Fact::ReplicaHeld { .. }
            | Fact::GenerationStepped { .. }
            | Fact::JobScaled { .. }
            | Fact::MemberLost { .. }
            | Fact::PolicyChosen { .. }
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_known_is_said_in_a_word() {
        let of = |text: &str| text.parse::<Information>();
        assert_eq!((of("known").unwrap(), of("stepped").unwrap()), (Information::Known, Information::Stepped));
        assert_eq!(of("estimated:0.5").unwrap(), Information::Estimated { sigma: 0.5, undeclared: UNDECLARED });
        assert_eq!(of("estimated:1,0.3").unwrap(), Information::Estimated { sigma: 1.0, undeclared: 0.3 });
        for wrong in ["", "estimated", "estimated:-1", "estimated:4", "estimated:1,2", "estimated:x", "Known"] {
            let error = of(wrong).unwrap_err().to_string();
            assert!(error.contains("expected unknown, known, stepped, or estimated:SIGMA"), "{error}");
        }
    }

    #[test]
    fn guesses_are_off_by_as_much_as_was_said_and_some_jobs_have_none() {
        let class = Information::Estimated { sigma: 0.5, undeclared: 0.2 };
        let factors: Vec<f64> = (0..20_000).filter_map(|job| class.factor(7, job)).collect();
        let logs: Vec<f64> = factors.iter().map(|factor| libm::log(*factor)).collect();
        let mean = logs.iter().sum::<f64>() / logs.len() as f64;
        let deviation = (logs.iter().map(|log| (log - mean) * (log - mean)).sum::<f64>() / logs.len() as f64).sqrt();
        assert!((15_800..16_200).contains(&factors.len()), "{}", factors.len());
        assert!(mean.abs() < 0.02 && (deviation - 0.5).abs() < 0.02, "{mean} {deviation}");
        assert_eq!(class.factor(7, 3), class.factor(7, 3));
    }

    #[test]
    fn who_may_know_nothing_is_told_nothing() {
        assert_eq!(Information::Unknown.told(0, 0, 100, 40), WorkLeft::Unknown);
        assert_eq!(Information::Known.told(0, 0, 100, 40), WorkLeft::Known { ms: 40 });
        let sure = Information::Estimated { sigma: 0.0, undeclared: 0.0 };
        assert_eq!(sure.told(0, 0, 100, 40), WorkLeft::Estimated { total_ms: 100, done_ms: 60, sigma_milli: 0 });
        assert_eq!(Information::Stepped.told(0, 0, 100, 100), WorkLeft::Unknown);
        let stepped = Information::Stepped.told(0, 0, 100, 99);
        assert_eq!(stepped, WorkLeft::Estimated { total_ms: 100, done_ms: 1, sigma_milli: 500 });
        let nobody = Information::Estimated { sigma: 1.0, undeclared: 1.0 };
        assert_eq!(nobody.told(0, 0, 100, 40), WorkLeft::Unknown);
    }
}
