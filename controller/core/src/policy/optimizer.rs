//! The optimizer of [`super::ibm_dp`]: how many slots each of some jobs gets, so that the sum of what they get out of them is the largest
//! ("Effective Elastic Scaling of Deep Learning Workloads", §III-C, by dynamic programming over equation 4).
//!
//! P(j, K) = max over k of P(j−1, K−k) + 𝒯_j(k): the most that the first j jobs get out of K slots, every job having its fewest at least.
//! It follows equation 4; algorithm 1 as printed looks 𝒯 up for all slots instead of for those of the job. Here K counts what is
//! handed out beyond everybody's fewest, because less is never given: rows are as short as what there is to decide. Slots may be left
//! over. Of equal sums the later job gets fewer, as the printed loop has it, which keeps the first of equals.
//!
//! Whole numbers, so that equal sums are equal and the same jobs get the same on every machine.

/// Cells of the table P at most, 128 MiB: 2,000 jobs that share 8,000 slots beyond their fewest. Beyond them the last jobs stay at their
/// fewest.
pub const CELLS_MAX: usize = 1 << 24;

/// What a job gets out of how many slots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options(Vec<(u16, u64)>);

/// Sizes that are no options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionsError {
    sizes: Vec<(u16, u64)>,
}

impl std::fmt::Display for OptionsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of = &self.sizes;
        write!(f, "{of:?} are no options of a job; expected at least one (slots, factor), both rising, slots from 1 on")
    }
}

impl std::error::Error for OptionsError {}

impl Options {
    /// Sizes and what each is worth, in millionths of what the job gets out of a single slot. A larger size that is worth no more is left out
    /// beforehand: nobody would choose it.
    pub fn new(sizes: Vec<(u16, u64)>) -> Result<Self, OptionsError> {
        let rising = sizes.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1);
        let legal = rising && sizes.first().is_some_and(|(slots, _)| *slots > 0);
        if legal { Ok(Self(sizes)) } else { Err(OptionsError { sizes }) }
    }

    /// The fewest slots that it can have.
    #[must_use]
    pub fn fewest(&self) -> u16 {
        self.0.first().map_or(0, |(slots, _)| *slots)
    }

    /// The most that are of any use to it, beyond its fewest.
    fn useful(&self) -> usize {
        self.0.last().map_or(0, |(slots, _)| usize::from(slots - self.fewest()))
    }

    /// Slots beyond its fewest, and what it gets out of all it has then.
    fn beyond(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.0.iter().map(|&(slots, factor)| (usize::from(slots - self.fewest()), factor))
    }

    /// The row of P with this job, from the one without it.
    fn extend(&self, before: &[u64], after: &mut [u64]) {
        let width = after.len();
        for (more, factor) in self.beyond().take_while(|(more, _)| *more < width) {
            for (sum, without) in after[more..].iter_mut().zip(before) {
                *sum = (*sum).max(without + factor);
            }
        }
    }

    /// The smallest choice, beyond its fewest, that makes the sum of its row of the sums of the row before.
    fn chosen(&self, before: &[u64], beyond: usize, sum: u64) -> usize {
        let makes = |&(more, factor): &(usize, u64)| more <= beyond && before[beyond - more] + factor == sum;
        self.beyond().find(makes).map_or(0, |(more, _)| more)
    }
}

/// Cells of the table that are filled in about the time of another step of a plan.
const CELLS_OF_A_STEP: u64 = 16;

/// What [`optimize`] takes at most, in steps of a plan.
#[must_use]
pub fn steps(jobs: &[Options], slots: u32) -> u64 {
    let sizes: u64 = jobs.iter().map(|job| job.0.len() as u64).sum();
    let fewest: u64 = jobs.iter().map(|job| u64::from(job.fewest())).sum();
    sizes.saturating_mul(u64::from(slots).saturating_sub(fewest)) / CELLS_OF_A_STEP
}

/// The slots of each job, in their order; none if there are not enough for everybody's fewest.
#[must_use]
pub fn optimize(jobs: &[Options], slots: u32) -> Option<Vec<u16>> {
    optimize_asking(jobs, slots, || {})
}

/// The same, with a call before each row of the table: for who may have to stop.
pub(super) fn optimize_asking(jobs: &[Options], slots: u32, ask: impl Fn()) -> Option<Vec<u16>> {
    let fewest: u64 = jobs.iter().map(|job| u64::from(job.fewest())).sum();
    let free = u64::from(slots).checked_sub(fewest)?;
    let useful: usize = jobs.iter().map(Options::useful).sum();
    let free = useful.min(usize::try_from(free).unwrap_or(usize::MAX));
    let mut chosen: Vec<u16> = jobs.iter().map(Options::fewest).collect();
    // Whoever is beyond the table stays at its fewest.
    let counted = jobs.len().min((CELLS_MAX / (free + 1)).saturating_sub(1));
    if free == 0 || counted == 0 {
        return Some(chosen);
    }
    let jobs = &jobs[..counted];
    let table = sums(jobs, free + 1, ask);
    let row = |number: usize| &table[number * (free + 1)..(number + 1) * (free + 1)];
    let mut beyond = free;
    for (number, job) in jobs.iter().enumerate().rev() {
        let more = job.chosen(row(number), beyond, row(number + 1)[beyond]);
        beyond -= more;
        chosen[number] += more as u16;
    }
    Some(chosen)
}

/// The table P: a row for no job, then one more with each; in a row the sum for 0, 1, … slots beyond everybody's fewest.
fn sums(jobs: &[Options], width: usize, ask: impl Fn()) -> Vec<u64> {
    let mut table = vec![0; (jobs.len() + 1) * width];
    for (number, job) in jobs.iter().enumerate() {
        ask();
        let (before, after) = table.split_at_mut((number + 1) * width);
        job.extend(&before[number * width..], &mut after[..width]);
    }
    table
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn options(sizes: &[(u16, u64)]) -> Options {
        Options::new(sizes.to_vec()).unwrap()
    }

    /// Table II: a job of category 1 on two slots, with 32 samples on each, is 1.66 times as fast as on one. Beside it one that is bound by
    /// its exchanges.
    fn computes() -> Options {
        options(&[(1, 1_000_000), (2, 1_660_000)])
    }

    fn exchanges() -> Options {
        options(&[(1, 1_000_000), (2, 1_100_000)])
    }

    #[test]
    fn equation_four_by_hand() {
        // P(1, K) is 1, 1.66, 1.66 for K = 1, 2, 3; P(2, K) is 2, 2.66, 2.76 for K = 2, 3, 4.
        let jobs = [computes(), exchanges()];
        assert_eq!(sums(&jobs, 3, || {}), [0, 0, 0, 1_000_000, 1_660_000, 1_660_000, 2_000_000, 2_660_000, 2_760_000]);
        assert_eq!(optimize(&jobs, 2), Some(vec![1, 1]));
        assert_eq!(optimize(&jobs, 3), Some(vec![2, 1]), "max(1 + 1.1, 1.66 + 1)");
        assert_eq!(optimize(&jobs, 9), Some(vec![2, 2]), "and the rest is left over");
    }

    #[test]
    fn with_fewer_slots_than_everybodys_fewest_it_is_infeasible() {
        assert_eq!(optimize(&[computes(), exchanges()], 1), None);
        assert_eq!(optimize(&[options(&[(4, 2_000_000)])], 3), None);
        assert_eq!(optimize(&[], 0), Some(vec![]));
    }

    #[test]
    fn of_equal_sums_the_later_job_gets_fewer() {
        assert_eq!(optimize(&[computes(), computes(), computes()], 4), Some(vec![2, 1, 1]));
    }

    #[test]
    fn a_step_over_a_size_that_is_no_faster_is_taken_where_it_pays() {
        // Three slots are on two servers and slower than two; five are worth it.
        let jumps = options(&[(1, 1_000_000), (2, 1_660_000), (5, 2_080_000)]);
        assert_eq!(optimize(&[jumps.clone(), exchanges()], 5), Some(vec![2, 2]));
        assert_eq!(optimize(&[jumps, exchanges()], 6), Some(vec![5, 1]), "2.08 + 1 are more than 1.66 + 1.1");
    }

    #[test]
    fn what_are_no_options_is_said() {
        for sizes in [vec![], vec![(0, 1)], vec![(2, 1), (1, 2)], vec![(1, 2), (2, 2)]] {
            let error = Options::new(sizes).unwrap_err().to_string();
            assert!(error.contains("are no options of a job; expected at least one"), "{error}");
        }
    }

    /// The largest sum of all that could be chosen.
    fn brute_force(jobs: &[Options], slots: u32) -> Option<u64> {
        let Some((first, rest)) = jobs.split_first() else { return Some(0) };
        let with =
            |&(size, factor): &(u16, u64)| Some(brute_force(rest, slots.checked_sub(u32::from(size))?)? + factor);
        first.0.iter().filter_map(with).max()
    }

    fn worth(jobs: &[Options], chosen: &[u16]) -> u64 {
        let of = |(job, slots): (&Options, &u16)| job.0.iter().find(|(size, _)| size == slots).unwrap().1;
        jobs.iter().zip(chosen).map(of).sum()
    }

    fn any_options() -> impl Strategy<Value = Options> {
        (1u16..4, proptest::collection::vec((1u16..4, 1u64..5), 0..4)).prop_map(|(fewest, steps)| {
            let mut sizes = vec![(fewest, u64::from(fewest))];
            for (slots, factor) in steps {
                let (size, worth) = sizes[sizes.len() - 1];
                sizes.push((size + slots, worth + factor));
            }
            Options::new(sizes).unwrap()
        })
    }

    /// Up to three jobs whose options are every subset of the sizes 1 to 3, each worth 0, 1 or 2 more than the one before.
    #[test]
    fn it_is_brute_force_on_all_small_cases() {
        let mut all = Vec::new();
        for fewest in 1..=3u16 {
            for steps in 0..9u64 {
                let mut sizes = vec![(fewest, 1)];
                for (place, gain) in [(1, steps % 3), (2, steps / 3)] {
                    let before = sizes[sizes.len() - 1].1;
                    if gain > 0 {
                        sizes.push((fewest + place, before + gain));
                    }
                }
                all.push(Options::new(sizes).unwrap());
            }
        }
        let mut cases = 0;
        for (first, second, third) in all
            .iter()
            .flat_map(|a| all.iter().map(move |b| (a, b)))
            .flat_map(|(a, b)| all.iter().map(move |c| (a, b, c)))
        {
            let jobs = [first.clone(), second.clone(), third.clone()];
            for slots in 2..=12 {
                let found = optimize(&jobs, slots);
                let sum = found.as_ref().map(|chosen| worth(&jobs, chosen));
                assert_eq!(sum, brute_force(&jobs, slots), "{jobs:?} on {slots}");
                let used = found.map_or(0, |chosen| chosen.iter().copied().map(u32::from).sum());
                assert!(used <= slots);
                cases += 1;
            }
        }
        assert_eq!(cases, 27 * 27 * 27 * 11);
    }

    proptest! {
        #[test]
        fn it_is_brute_force_on_others(jobs in proptest::collection::vec(any_options(), 0..5), slots in 0u32..24) {
            let found = optimize(&jobs, slots);
            prop_assert_eq!(found.as_ref().map(|chosen| worth(&jobs, chosen)), brute_force(&jobs, slots));
        }

        #[test]
        fn more_slots_are_never_worth_less(jobs in proptest::collection::vec(any_options(), 1..6), slots in 0u32..24) {
            let of = |slots| optimize(&jobs, slots).map(|chosen| worth(&jobs, &chosen));
            prop_assert!(of(slots) <= of(slots + 1));
        }
    }
}
