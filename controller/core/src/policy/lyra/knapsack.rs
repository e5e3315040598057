//! Multiple-choice knapsack, exactly: at most one item of each group, as much value as a capacity holds.
//!
//! First the groups' upper hulls by gain per weight, as the linear relaxation takes them. If they fill the capacity exactly, or all of them fit,
//! that is the best there is, and mostly they do. Otherwise groups are gone through one after the other, and of the weights
//! that they can add up to only those go on that may still be better than what the hulls gave; that is a table of capacity × groups at worst. If
//! it would be larger than [`SUMS_MAX`], as of thousands of groups that are alike, the hulls' answer stands: a plan has to be done within a second.
//! Whole numbers throughout: the same groups have the same answer everywhere.

use std::cmp::Ordering;

/// Sums that are looked at at most, and so kept: 128 MiB of them.
const SUMS_MAX: usize = 1 << 22;

/// One way to choose from a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Item {
    /// How much of the capacity it takes.
    pub weight: u32,
    /// What it is worth; the same unit in all groups.
    pub value: u64,
}

/// Items of which at most one is chosen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Group {
    /// In any order.
    pub items: Vec<Item>,
    /// The weight that is chosen now, or 0. Of answers that are worth the same, the one that leaves most groups as they are.
    pub present: u32,
}

/// The weight chosen from each group; 0 is none.
pub(crate) fn choose(groups: &[Group], capacity: u32) -> Vec<u32> {
    let ways: Vec<Vec<Way>> = groups.iter().map(|group| ways(group, groups.len(), capacity)).collect();
    let best: Vec<usize> = ways.iter().map(|ways| ways.len() - 1).collect();
    if weight_of(&ways, &best) <= u64::from(capacity) {
        return chosen(&ways, &best);
    }
    let relaxed = relax(&ways, capacity);
    let found = relaxed.price.and_then(|price| improve(&ways, capacity, price, value_of(&ways, &relaxed.taken)));
    chosen(&ways, found.as_deref().unwrap_or(&relaxed.taken))
}

/// A choice from a group: nothing, or an item of which no lighter one is worth as much.
#[derive(Debug, Clone, Copy)]
struct Way {
    weight: u32,
    /// Its value, with room below for how many groups stay as they are.
    value: i128,
}

/// By weight, and so by value; the first is nothing.
fn ways(group: &Group, groups: usize, capacity: u32) -> Vec<Way> {
    let mut items: Vec<Item> = group.items.iter().filter(|item| item.weight <= capacity).copied().collect();
    items.sort_by_key(|item| (item.weight, std::cmp::Reverse(item.value)));
    let mut ways = vec![Item { weight: 0, value: 0 }];
    for item in items {
        if ways.last().is_some_and(|last| last.value < item.value && last.weight < item.weight) {
            ways.push(item);
        }
    }
    // All groups that stay are worth less together than one unit of value.
    let unit = groups as i128 + 1;
    let stays = |item: &Item| i128::from(item.weight == group.present);
    ways.iter().map(|item| Way { weight: item.weight, value: i128::from(item.value) * unit + stays(item) }).collect()
}

fn weight_of(ways: &[Vec<Way>], taken: &[usize]) -> u64 {
    ways.iter().zip(taken).map(|(ways, way)| u64::from(ways[*way].weight)).sum()
}

fn value_of(ways: &[Vec<Way>], taken: &[usize]) -> i128 {
    ways.iter().zip(taken).map(|(ways, way)| ways[*way].value).sum()
}

fn chosen(ways: &[Vec<Way>], taken: &[usize]) -> Vec<u32> {
    ways.iter().zip(taken).map(|(ways, way)| ways[*way].weight).collect()
}

/// A step along the upper hull of a group.
#[derive(Debug, Clone, Copy)]
struct Segment {
    group: usize,
    to: usize,
    gain: i128,
    width: u32,
}

impl Segment {
    /// More gain per weight first.
    fn before(&self, other: &Self) -> Ordering {
        let crossed = (other.gain * i128::from(self.width)).cmp(&(self.gain * i128::from(other.width)));
        crossed.then(self.group.cmp(&other.group)).then(self.to.cmp(&other.to))
    }
}

/// Gain per weight, as a fraction.
#[derive(Debug, Clone, Copy)]
struct Price {
    gain: i128,
    weight: i128,
}

struct Relaxed {
    /// The place of the way chosen from each group: the hulls' best as far as whole segments fit.
    taken: Vec<usize>,
    /// Of the first segment that did not fit; none if that is no loss, because nothing was left for it.
    price: Option<Price>,
}

fn relax(ways: &[Vec<Way>], capacity: u32) -> Relaxed {
    let mut segments: Vec<Segment> = ways.iter().enumerate().flat_map(|(group, ways)| hull(group, ways)).collect();
    segments.sort_by(Segment::before);
    let (mut taken, mut left) = (vec![0; ways.len()], capacity);
    let (mut closed, mut price) = (vec![false; ways.len()], None);
    for segment in segments {
        if closed[segment.group] {
            continue;
        }
        if segment.width <= left {
            left -= segment.width;
            taken[segment.group] = segment.to;
            continue;
        }
        // What follows in this group comes after this segment.
        closed[segment.group] = true;
        if left > 0 && price.is_none() {
            price = Some(Price { gain: segment.gain, weight: i128::from(segment.width) });
        }
    }
    Relaxed { taken, price }
}

/// The steps of a group's upper hull, those with more gain per weight first.
fn hull(group: usize, ways: &[Way]) -> Vec<Segment> {
    let slope = |from: usize, to: usize| (ways[to].value - ways[from].value, ways[to].weight - ways[from].weight);
    let mut corners: Vec<usize> = Vec::new();
    for next in 0..ways.len() {
        while let [.., before, last] = corners[..] {
            let ((gain, width), (more, wide)) = (slope(before, last), slope(last, next));
            if gain * i128::from(wide) > more * i128::from(width) {
                break;
            }
            corners.pop();
        }
        corners.push(next);
    }
    let steps = corners.windows(2).map(|step| (step[1], slope(step[0], step[1])));
    steps.map(|(to, (gain, width))| Segment { group, to, gain, width }).collect()
}

/// What the groups until now can come to: how much they weigh, and what is lost beside the relaxation.
#[derive(Debug, Clone, Copy)]
struct Sum {
    weight: u32,
    loss: i128,
    /// The sum before it and the way that led here.
    from: u32,
    way: u32,
}

/// Ways that are worth more than `value`, if there are any and they can be found by looking at [`SUMS_MAX`] sums: the best of them.
///
/// At a price per weight each group has a best way; every other one loses beside it. All losses together, and the price of what stays empty,
/// are what an answer is below the relaxation: sums that lost too much to be worth more than `value` are dropped.
fn improve(ways: &[Vec<Way>], capacity: u32, price: Price, value: i128) -> Option<Vec<usize>> {
    let worth = |way: &Way| way.value * price.weight - i128::from(way.weight) * price.gain;
    let bests: Vec<i128> = ways.iter().map(|ways| ways.iter().map(worth).max().unwrap_or(0)).collect();
    let bound = bests.iter().sum::<i128>() + price.gain * i128::from(capacity);
    let slack = bound - value * price.weight;
    let (mut stages, mut looked_at) = (vec![vec![Sum { weight: 0, loss: 0, from: 0, way: 0 }]], 0usize);
    for (ways, best) in ways.iter().zip(&bests) {
        let open: Vec<(u32, u32, i128)> = (0..)
            .zip(ways)
            .map(|(place, way)| (place, way.weight, best - worth(way)))
            .filter(|(.., loss)| *loss < slack)
            .collect();
        let sums = stages.last()?;
        looked_at = looked_at.saturating_add(sums.len().saturating_mul(open.len()));
        if looked_at > SUMS_MAX {
            return None;
        }
        let mut next = extend(sums, &open, capacity, slack);
        // Who weighs more has to be worth more.
        let mut most = None;
        next.retain(|sum| {
            let worth = price.gain * i128::from(sum.weight) - sum.loss;
            let is_more = most.is_none_or(|most| most < worth);
            most = most.max(Some(worth));
            is_more
        });
        stages.push(next);
    }
    // What is not used is lost at the price.
    let empty = |sum: &Sum| sum.loss + price.gain * i128::from(capacity - sum.weight);
    let last = stages.last()?;
    let (mut place, end) = last.iter().enumerate().min_by_key(|(_, sum)| empty(sum))?;
    if empty(end) >= slack {
        return None;
    }
    let mut taken = Vec::with_capacity(ways.len());
    for sums in stages.iter().skip(1).rev() {
        let sum = sums[place];
        taken.push(sum.way as usize);
        place = sum.from as usize;
    }
    taken.reverse();
    Some(taken)
}

/// All sums with one group more, of each weight the one that loses least.
fn extend(sums: &[Sum], open: &[(u32, u32, i128)], capacity: u32, slack: i128) -> Vec<Sum> {
    if let [(way, weight, loss)] = open {
        // No choice: the sums move on together.
        let moved = (0..).zip(sums).map(|(from, sum)| Sum {
            weight: sum.weight.saturating_add(*weight),
            loss: sum.loss + loss,
            from,
            way: *way,
        });
        return moved.filter(|sum| sum.weight <= capacity && sum.loss < slack).collect();
    }
    let mut next: Vec<Sum> = Vec::with_capacity(sums.len() * open.len());
    for (from, sum) in (0..).zip(sums) {
        for &(way, weight, loss) in open {
            let (weight, loss) = (sum.weight.saturating_add(weight), sum.loss + loss);
            if weight <= capacity && loss < slack {
                next.push(Sum { weight, loss, from, way });
            }
        }
    }
    next.sort_by_key(|sum| (sum.weight, sum.loss));
    next.dedup_by_key(|sum| sum.weight);
    next
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn group(items: &[(u32, u64)], present: u32) -> Group {
        Group { items: items.iter().map(|&(weight, value)| Item { weight, value }).collect(), present }
    }

    /// What a choice is worth; none if it is none of the items.
    pub fn worth(groups: &[Group], weights: &[u32]) -> Option<u64> {
        let of = |(group, weight): (&Group, &u32)| match weight {
            0 => Some(0),
            weight => group.items.iter().filter(|item| item.weight == *weight).map(|item| item.value).max(),
        };
        groups.iter().zip(weights).map(of).sum()
    }

    /// The most value that any choice has, and the most groups that stay as they are among those.
    pub fn brute(groups: &[Group], capacity: u32) -> (u64, usize) {
        let Some((first, rest)) = groups.split_first() else { return (0, 0) };
        let nothing = Item { weight: 0, value: 0 };
        let fits = first.items.iter().chain([&nothing]).filter(|item| item.weight <= capacity);
        let worth = fits.map(|item| {
            let (value, stay) = brute(rest, capacity - item.weight);
            (value + item.value, stay + usize::from(item.weight == first.present))
        });
        worth.max().unwrap_or((0, 0))
    }

    fn any_group() -> impl Strategy<Value = Group> {
        let item = (1u32..7, 0u64..40).prop_map(|(weight, value)| Item { weight, value });
        (proptest::collection::vec(item, 0..5), 0u32..7).prop_map(|(items, present)| Group { items, present })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn it_is_what_trying_everything_finds(groups in proptest::collection::vec(any_group(), 0..6), capacity in 0u32..24) {
            let weights = choose(&groups, capacity);
            prop_assert!(weights.iter().sum::<u32>() <= capacity);
            prop_assert_eq!(worth(&groups, &weights), Some(brute(&groups, capacity).0));
        }

        #[test]
        fn asked_again_with_its_answer_it_answers_the_same(groups in proptest::collection::vec(any_group(), 0..6), capacity in 0u32..24) {
            let weights = choose(&groups, capacity);
            let again: Vec<Group> = groups.iter().zip(&weights).map(|(group, &present)| Group { present, ..group.clone() }).collect();
            prop_assert_eq!(choose(&again, capacity), weights);
        }
    }

    /// Every case of two groups with two items of a few weights and values, at every capacity.
    #[test]
    fn it_is_exact_in_every_small_case() {
        let items = || (1u32..4).flat_map(|weight| [1u64, 2, 3, 5].map(|value| (weight, value)));
        let groups: Vec<Group> = items().flat_map(|a| items().map(move |b| group(&[a, b], 0))).collect();
        for first in &groups {
            for second in &groups {
                let both = [first.clone(), second.clone()];
                for capacity in 0..7 {
                    let weights = choose(&both, capacity);
                    assert_eq!(worth(&both, &weights), Some(brute(&both, capacity).0), "{both:?} in {capacity}");
                }
            }
        }
    }

    #[test]
    fn of_equal_answers_the_one_that_is_there_stays() {
        let alike = |present| group(&[(2, 9)], present);
        assert_eq!(choose(&[alike(0), alike(2)], 3), [0, 2]);
        assert_eq!(choose(&[alike(2), alike(0)], 3), [2, 0]);
        // But nothing stays for that alone.
        assert_eq!(choose(&[group(&[(2, 9)], 2), group(&[(2, 10)], 0)], 3), [0, 2]);
    }

    #[test]
    fn where_too_much_would_have_to_be_looked_at_the_hulls_answer() {
        // All alike, so nothing is ever dropped. One of five with two less of two is worth more than what the hulls take, and fills the capacity.
        let alike = |count: usize| vec![group(&[(2, 9), (5, 20)], 0); count];
        let (few, many) = (alike(300), alike(3_000));
        assert_eq!(worth(&few, &choose(&few, 401)), Some(198 * 9 + 20));
        assert_eq!(worth(&many, &choose(&many, 4_001)), Some(2_000 * 9), "144 MB more for two of 18,000");
    }

    /// As many jobs as a large cell runs, on sizes that are not even: what is left over is a few slots, and few sums are worth looking at.
    #[test]
    fn a_large_case_is_answered_and_not_below_the_hulls() {
        let groups: Vec<Group> =
            (0..500u64).map(|job| group(&[(1, 100 + job), (3, 170 + 2 * job), (7, 310 + job * 3)], 0)).collect();
        let weights = choose(&groups, 1_001);
        let value = worth(&groups, &weights);
        assert!(weights.iter().sum::<u32>() <= 1_001);
        let swapped = choose(&groups, 1_000);
        assert!(value >= worth(&groups, &swapped));
    }
}
