//! How well a job's logical workers fit on some devices: the analytical model of §3.4.1 (equations 1a to 1e), the configuration that it chooses
//! for given devices, and the proposals for one more of them that a job makes (§3.4.2, intra-job scheduler).
//!
//! Devices of several types may be mixed here, as in the paper; a type has a capability in logical workers' steps per second, which holds what the
//! hardware and the model make of each other. A step is over when the most loaded device is done (synchronous training), so with the *overload* f
//! of that one, all W workers take f, and whatever a device could have done meanwhile is waste.
//!
//! As printed equation 1c sums over types without their numbers; with it the performance is W / f, and 1e agrees with the time of a step.

use std::cmp::Ordering;

/// Of what devices could do, so much may be wasted at most, in a configuration that is proposed (§3.4.2).
pub const WASTE_MAX: f64 = 0.3;
/// Logical workers of a capability are whole where rounding of the division by it is all that is missing.
const ROUNDING: f64 = 1e-9;

/// Devices of one type, as one job finds them.
#[derive(Debug, Clone, PartialEq)]
pub struct Devices {
    /// Logical workers' steps that one does in a second, with one executor on it: C.
    pub capability: f64,
    /// Of how many executors on it at once, from 1 on, each does how much of what it does alone: I. As many as fit into its memory.
    pub interference: Vec<f64>,
}

impl Devices {
    /// With one executor each.
    #[must_use]
    pub fn alone(capability: f64) -> Self {
        Self { capability, interference: vec![1.0] }
    }

    /// What a device does with so many executors: MC = m · C · I.
    fn of_executors(&self, executors: u16) -> f64 {
        let interference = usize::from(executors).checked_sub(1).and_then(|place| self.interference.get(place));
        f64::from(executors) * self.capability * interference.copied().unwrap_or(0.0)
    }
}

/// Where a job's logical workers are, by type of devices, and what that comes to.
#[derive(Debug, Clone, PartialEq)]
pub struct Configuration {
    /// Devices of each type.
    pub nums: Vec<u32>,
    /// Executors on each of them.
    pub executors: Vec<u16>,
    /// Logical workers of each of those.
    pub threads: Vec<u16>,
    /// What is wasted, as a share of what the devices could do (1d).
    pub waste: f64,
    /// Logical workers' steps per second (1e).
    pub perf: f64,
}

impl Configuration {
    /// What a configuration comes to, by equations 1a to 1e; none if not all logical workers have a place, or a device is there for nothing.
    #[must_use]
    pub fn of(types: &[Devices], nums: &[u32], executors: &[u16], threads: &[u16], workers: u16) -> Option<Self> {
        let used = || (0..types.len()).filter(|&of| nums[of] > 0);
        let does = |of: usize| types[of].of_executors(executors[of]);
        let has = |of: usize| f64::from(executors[of]) * f64::from(threads[of]);
        let sum = |each: &dyn Fn(usize) -> f64| used().map(|of| f64::from(nums[of]) * each(of)).sum::<f64>();
        if used().any(|of| does(of) <= 0.0 || threads[of] == 0) {
            return None;
        }
        let capacity = sum(&has);
        let overload = used().map(|of| has(of) / does(of)).max_by(f64::total_cmp)?;
        if capacity < f64::from(workers) {
            return None;
        }
        let wasted = sum(&|of| does(of) - has(of) / overload) + (capacity - f64::from(workers)) / overload;
        let all = sum(&does);
        let (nums, executors, threads) = (nums.to_vec(), executors.to_vec(), threads.to_vec());
        Some(Self { nums, executors, threads, waste: wasted / all, perf: all - wasted })
    }

    /// The fastest one on given devices; of equals the one with fewer executors.
    ///
    /// The paper rounds capabilities up and down for each number of workers on each type. Overloads other than those at which some type takes one
    /// more worker are never better, so of each of them only the roundings down have to be looked at, and of those the first that has room.
    #[must_use]
    pub fn best(types: &[Devices], nums: &[u32], workers: u16) -> Option<Self> {
        let mut best: Option<Self> = None;
        for executors in choices(types, nums) {
            for of in (0..types.len()).filter(|&of| nums[of] > 0) {
                let found = Self::filled(types, nums, &executors, of, workers);
                let faster = |found: &Self, best: &Self| found.perf > best.perf * (1.0 + ROUNDING);
                if let Some(found) = found.filter(|found| best.as_ref().is_none_or(|best| faster(found, best))) {
                    best = Some(found);
                }
            }
        }
        best
    }

    /// The one with the least workers on the devices of one type with which all have a place, where the others have as many as are done by then.
    fn filled(types: &[Devices], nums: &[u32], executors: &[u16], of: usize, workers: u16) -> Option<Self> {
        let does = |of: usize| types[of].of_executors(executors[of]);
        let threads = |count: u16| -> Vec<u16> {
            let overload = f64::from(executors[of]) * f64::from(count) / does(of);
            let fits = |other: usize| (overload * does(other) / f64::from(executors[other]) + ROUNDING) as u16;
            (0..types.len()).map(|other| if nums[other] > 0 { fits(other).min(workers) } else { 0 }).collect()
        };
        let has_room = |count: u16| {
            let of_type =
                |(of, threads): (usize, u16)| u64::from(nums[of]) * u64::from(executors[of]) * u64::from(threads);
            threads(count).into_iter().enumerate().map(of_type).sum::<u64>() >= u64::from(workers)
        };
        let (mut low, mut high) = (1, workers.max(1));
        while low < high {
            let middle = low + (high - low) / 2;
            if has_room(middle) { high = middle } else { low = middle + 1 }
        }
        Self::of(types, nums, executors, &threads(low), workers)
    }
}

/// Executors on the devices of each type, in every way that their memory permits, fewest first.
fn choices(types: &[Devices], nums: &[u32]) -> Vec<Vec<u16>> {
    let mut all = vec![Vec::new()];
    for (of, num) in types.iter().zip(nums) {
        let most = if *num > 0 { of.interference.len().max(1) as u16 } else { 1 };
        all = (1..=most)
            .flat_map(|count| all.iter().map(move |begun: &Vec<u16>| [&begun[..], &[count]].concat()))
            .collect();
    }
    all
}

/// A job would like more devices of one type.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    /// The job that wants them, by its place.
    pub job: usize,
    /// The place of their type.
    pub of: usize,
    /// How many, beyond those that it has.
    pub more: u32,
    /// By what share of its speed it becomes faster, per device.
    pub speedup: f64,
}

impl Proposal {
    /// The order of algorithm 1: the largest speed-up per device first, of equals the one of more devices; then the earlier job's.
    #[must_use]
    pub fn order(&self, other: &Self) -> Ordering {
        let by_speedup = other.speedup.total_cmp(&self.speedup);
        by_speedup.then(other.more.cmp(&self.more)).then(self.job.cmp(&other.job)).then(self.of.cmp(&other.of))
    }
}

/// What a job with some devices proposes, best first, at most so many proposals: of each type as few more as make it faster without much waste.
///
/// The paper proposes one more. Where that changes nothing, because the fullest device has as many workers as before, the next number is
/// proposed: else a job of eight on four devices would stay there for ever. `available` are the devices of each type that nobody has.
#[must_use]
pub fn proposals(
    job: usize,
    types: &[Devices],
    held: &[u32],
    available: &[u32],
    workers: u16,
    most: usize,
) -> Vec<Proposal> {
    let now = Configuration::best(types, held, workers).map_or(0.0, |now| now.perf);
    let has: u32 = held.iter().sum();
    let of_type = |of: usize| {
        // More devices than workers are there for nothing.
        let room = available[of].min(u32::from(workers).saturating_sub(has));
        (1..=room).find_map(|more| {
            let mut nums = held.to_vec();
            nums[of] += more;
            let found = Configuration::best(types, &nums, workers)?;
            let faster = found.waste <= WASTE_MAX + ROUNDING && found.perf > now * (1.0 + ROUNDING);
            // Who has nothing yet is as many times as fast as it would then be.
            let speedup = if now > 0.0 { found.perf / now - 1.0 } else { found.perf };
            faster.then(|| Proposal { job, of, more, speedup: speedup / f64::from(more) })
        })
    };
    let mut found: Vec<Proposal> = (0..types.len()).filter_map(of_type).collect();
    found.sort_by(Proposal::order);
    found.truncate(most);
    found
}

/// The inter-job scheduler (algorithm 1): proposals in their order, each approved if there are still so many devices of its type; `available`
/// becomes what is left. A proposal that cannot be met is passed over; as printed it would be looked at for ever.
///
/// Of several of a job at most the first that can be met: they are of other devices for the same workers.
#[must_use]
pub fn approved(mut proposals: Vec<Proposal>, available: &mut [u32]) -> Vec<Proposal> {
    proposals.sort_by(Proposal::order);
    let mut approved: Vec<Proposal> = Vec::new();
    let mut has_one = std::collections::BTreeSet::new();
    for proposal in proposals {
        let left = &mut available[proposal.of];
        if proposal.more <= *left && has_one.insert(proposal.job) {
            *left -= proposal.more;
            approved.push(proposal);
        }
    }
    approved
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn near(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-9 * one.abs().max(1.0)
    }

    #[test]
    fn the_equations_by_hand() {
        // ResNet50 is 2.45 times as fast on a V100 as on a T4: seven workers as five and two, over 5 / 2.45 and 2 / 1.
        let types = [Devices::alone(2.45), Devices::alone(1.0)];
        let found = Configuration::of(&types, &[1, 1], &[1, 1], &[5, 2], 7).unwrap();
        let overload = 5.0 / 2.45;
        assert!(near(found.perf, 7.0 / overload), "{found:?}");
        assert!(near(found.waste, (1.0 - 2.0 / overload) / 3.45), "{found:?}");
        // With a place too many that one is waste as well.
        let over = Configuration::of(&types, &[1, 1], &[1, 1], &[5, 3], 7).unwrap();
        assert!(near(over.perf, 7.0 / 3.0) && near(over.waste, 1.0 - 7.0 / 3.0 / 3.45), "{over:?}");
        assert_eq!(Configuration::of(&types, &[1, 1], &[1, 1], &[4, 2], 7), None, "1a: six places for seven");
    }

    #[test]
    fn balance_beats_equal_shares() {
        // The devices of figure 8: a V100, a P100 and two T4. Evenly spread the T4s are what everybody waits for.
        let types = [Devices::alone(2.45), Devices::alone(1.5), Devices::alone(1.0)];
        let nums = [1, 1, 2];
        let even = Configuration::of(&types, &nums, &[1; 3], &[4; 3], 16).unwrap();
        let best = Configuration::best(&types, &nums, 16).unwrap();
        assert!(near(even.perf, 4.0) && best.perf > 1.3 * even.perf, "{best:?}");
        assert_eq!(best.threads, [7, 4, 3], "{best:?}");
        assert!(best.waste < 0.11 && even.waste > WASTE_MAX, "{best:?} {even:?}");
    }

    #[test]
    fn alike_devices_share_evenly_and_waste_what_is_not_a_factor() {
        let types = [Devices::alone(1.0)];
        let of = |num: u32| Configuration::best(&types, &[num], 8).unwrap();
        assert_eq!([1, 2, 3, 4, 5, 8].map(|num| of(num).threads[0]), [8, 4, 3, 2, 2, 1]);
        assert!(near(of(3).waste, 1.0 / 9.0) && near(of(5).waste, 0.2) && near(of(8).waste, 0.0));
    }

    #[test]
    fn several_executors_on_a_device_are_worth_it_where_they_do_not_hinder_each_other() {
        let of = |both: f64| {
            let types = [Devices { capability: 1.0, interference: vec![1.0, both] }];
            Configuration::best(&types, &[1], 4).unwrap()
        };
        assert_eq!((of(0.9).executors[0], of(0.9).threads[0], of(0.4).executors[0]), (2, 2, 1));
        assert!(near(of(0.9).perf, 1.8) && near(of(0.4).perf, 1.0));
    }

    #[test]
    fn a_job_asks_for_what_makes_it_faster_without_much_waste() {
        let types = [Devices::alone(2.0), Devices::alone(1.0)];
        let asked = |held: [u32; 2], available: [u32; 2]| {
            let all = proposals(3, &types, &held, &available, 8, 2);
            all.into_iter().map(|of| (of.of, of.more)).collect::<Vec<_>>()
        };
        assert_eq!(asked([4, 0], [4, 0]), [(0, 4)], "with five to seven the fullest has two still");
        assert_eq!(asked([0, 1], [1, 1]), [(0, 1), (1, 1)]);
        assert_eq!(asked([8, 0], [1, 1]), [], "nobody would be on it");
        assert_eq!(proposals(0, &types, &[0, 1], &[1, 1], 8, 1).len(), 1);
        // A slow one beside a fast one, a worker each: 4 % faster, and nearly a third of both would be wasted.
        let uneven = [Devices::alone(10.0), Devices::alone(5.2)];
        assert_eq!(proposals(0, &uneven, &[1, 0], &[0, 1], 2, 2), []);
    }

    #[test]
    fn the_largest_speed_up_per_device_is_approved_first_and_then_more_devices() {
        let of = |job, more, speedup| Proposal { job, of: 0, more, speedup };
        let mut available = [4];
        let all = vec![of(0, 1, 0.5), of(1, 3, 1.0), of(2, 1, 1.0), of(3, 9, 2.0)];
        let jobs: Vec<usize> = approved(all, &mut available).iter().map(|of| of.job).collect();
        // Job 3 asks for more than there are; of the two equals the larger; then there is one left.
        assert_eq!((jobs, available), (vec![1, 2], [0]));
    }

    proptest! {
        #[test]
        fn what_a_configuration_comes_to_agrees_with_the_time_of_a_step(
            capabilities in proptest::collection::vec(0.2f64..5.0, 2), nums in proptest::collection::vec(0u32..4, 2),
            threads in proptest::collection::vec(1u16..7, 2), workers in 1u16..12,
        ) {
            let types: Vec<Devices> = capabilities.iter().map(|of| Devices::alone(*of)).collect();
            if let Some(found) = Configuration::of(&types, &nums, &[1, 1], &threads, workers) {
                let step = (0..2).filter(|&of| nums[of] > 0).map(|of| f64::from(threads[of]) / capabilities[of]).fold(0.0, f64::max);
                prop_assert!(near(found.perf, f64::from(workers) / step));
                prop_assert!((-1e-9..1.0).contains(&found.waste));
            }
        }

        #[test]
        fn the_best_is_that_of_all(
            capabilities in proptest::collection::vec(0.2f64..5.0, 3), nums in proptest::collection::vec(0u32..3, 3), workers in 1u16..9,
        ) {
            let types: Vec<Devices> = capabilities.iter().map(|of| Devices { capability: *of, interference: vec![1.0, 0.7] }).collect();
            let mut all = 0.0f64;
            let sizes = usize::from(workers) + 1;
            for of in 0..sizes.pow(3) * 8 {
                let (threads, executors) = (of / 8, of % 8);
                let threads = [threads % sizes, threads / sizes % sizes, threads / sizes / sizes].map(|of| of as u16);
                let executors = [executors & 1, executors >> 1 & 1, executors >> 2].map(|of| of as u16 + 1);
                all = all.max(Configuration::of(&types, &nums, &executors, &threads, workers).map_or(0.0, |of| of.perf));
            }
            let best = Configuration::best(&types, &nums, workers).map_or(0.0, |of| of.perf);
            prop_assert!(near(best, all), "{best} is not {all}");
        }
    }
}
