//! Multiple-choice knapsack, exactly: at most one item of each group, as much value as a capacity holds.
//!
//! First the groups' upper hulls by gain per weight, as the linear relaxation takes them. If they fill the capacity exactly, or all of them fit,
//! that is the best there is, and mostly they do. Otherwise groups are gone through one after the other, and of the weights
//! that they can add up to only those go on that may still be better than what the hulls gave; that is a table of capacity × groups at worst. If
//! it would be larger than [`SUMS_MAX`], as of thousands of groups that are alike, the hulls' answer stands: a plan has to be done within a second.
//! Whole numbers throughout: the same groups have the same answer everywhere.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Group<'a> {
    /// In any order.
    pub items: &'a [Item],
    /// The weight that is chosen now, or 0. Of answers that are worth the same, the one that leaves most groups as they are.
    pub present: u32,
}

/// The weight chosen from each group; 0 is none.
pub(crate) fn choose(groups: &[Group<'_>], capacity: u32) -> Vec<u32> {
    let ways = Ways::of(groups, capacity);
    let best: Vec<usize> = ways.groups().map(|ways| ways.len() - 1).collect();
    if ways.weight_of(&best) <= u64::from(capacity) {
        return ways.chosen(&best);
    }
    let relaxed = relax(&ways, capacity);
    let found = relaxed.price.and_then(|price| improve(&ways, capacity, price, ways.value_of(&relaxed.taken)));
    ways.chosen(found.as_deref().unwrap_or(&relaxed.taken))
}

/// A choice from a group: nothing, or an item of which no lighter one is worth as much.
#[derive(Debug, Clone, Copy)]
struct Way {
    weight: u32,
    /// Its value, with room below for how many groups stay as they are.
    value: i128,
}

/// Those of every group, one group after the other: by weight, and so by value, and the first of each is nothing.
struct Ways {
    all: Vec<Way>,
    /// Where each group ends.
    ends: Vec<usize>,
}

impl Ways {
    fn of(groups: &[Group<'_>], capacity: u32) -> Self {
        let (mut all, mut items) = (Vec::with_capacity(groups.len()), Vec::new());
        // All groups that stay are worth less together than one unit of value.
        let unit = groups.len() as i128 + 1;
        let add = |group: &Group<'_>| {
            items.clear();
            items.push(Item { weight: 0, value: 0 });
            items.extend(group.items.iter().filter(|item| item.weight <= capacity));
            items[1..].sort_by_key(|item| (item.weight, Reverse(item.value)));
            items.dedup_by(|next, last| next.value <= last.value || next.weight <= last.weight);
            all.extend(items.iter().map(|item| {
                let stays = i128::from(item.weight == group.present);
                Way { weight: item.weight, value: i128::from(item.value) * unit + stays }
            }));
            all.len()
        };
        let ends = groups.iter().map(add).collect();
        Self { all, ends }
    }

    fn groups(&self) -> impl Iterator<Item = &[Way]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, end)| &self.all[begin..*end])
    }

    fn weight_of(&self, taken: &[usize]) -> u64 {
        self.groups().zip(taken).map(|(ways, way)| u64::from(ways[*way].weight)).sum()
    }

    fn value_of(&self, taken: &[usize]) -> i128 {
        self.groups().zip(taken).map(|(ways, way)| ways[*way].value).sum()
    }

    fn chosen(&self, taken: &[usize]) -> Vec<u32> {
        self.groups().zip(taken).map(|(ways, way)| ways[*way].weight).collect()
    }
}

/// How much is gained for a weight; more for each unit of it is more.
#[derive(Debug, Clone, Copy)]
struct Slope {
    gain: i128,
    weight: u32,
}

impl Slope {
    fn between(from: &Way, to: &Way) -> Self {
        Self { gain: to.value - from.value, weight: to.weight - from.weight }
    }
}

impl Ord for Slope {
    fn cmp(&self, other: &Self) -> Ordering {
        // Most are of one slot more.
        if self.weight == other.weight {
            return self.gain.cmp(&other.gain);
        }
        (self.gain * i128::from(other.weight)).cmp(&(other.gain * i128::from(self.weight)))
    }
}

impl PartialOrd for Slope {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Slope {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Slope {}

struct Relaxed {
    /// The place of the way chosen from each group: the hulls' best as far as whole segments fit.
    taken: Vec<usize>,
    /// Of the first segment that did not fit; none if that is no loss, because nothing was left for it.
    price: Option<Slope>,
}

/// Goes along the hulls of all groups, each time by the segment that gains most per weight, and of equals by that of the first group.
fn relax(ways: &Ways, capacity: u32) -> Relaxed {
    let hulls: Vec<Vec<usize>> = ways.groups().map(hull).collect();
    let groups: Vec<&[Way]> = ways.groups().collect();
    let next = |group: usize, corner: usize| {
        let (from, to) = (hulls[group][corner], *hulls[group].get(corner + 1)?);
        Some((Slope::between(&groups[group][from], &groups[group][to]), Reverse(group), corner + 1))
    };
    let mut open: BinaryHeap<_> = (0..hulls.len()).filter_map(|group| next(group, 0)).collect();
    let (mut taken, mut left, mut price) = (vec![0; hulls.len()], capacity, None);
    while left > 0
        && let Some((slope, Reverse(group), corner)) = open.pop()
    {
        if slope.weight <= left {
            left -= slope.weight;
            taken[group] = hulls[group][corner];
            if let Some(next) = next(group, corner) {
                open.push(next);
            }
        } else {
            // What follows in this group comes after this segment.
            price = price.or(Some(slope));
        }
    }
    Relaxed { taken, price }
}

/// The corners of a group's upper hull, by their places: from each to the next is more gain per weight than from there on.
fn hull(ways: &[Way]) -> Vec<usize> {
    let slope = |from: usize, to: usize| Slope::between(&ways[from], &ways[to]);
    let mut corners: Vec<usize> = Vec::with_capacity(ways.len());
    for next in 0..ways.len() {
        while let [.., before, last] = corners[..] {
            if slope(before, last) > slope(last, next) {
                break;
            }
            corners.pop();
        }
        corners.push(next);
    }
    corners
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
fn improve(ways: &Ways, capacity: u32, price: Slope, value: i128) -> Option<Vec<usize>> {
    let weight = i128::from(price.weight);
    let worth = |way: &Way| way.value * weight - i128::from(way.weight) * price.gain;
    let bests: Vec<i128> = ways.groups().map(|ways| ways.iter().map(worth).max().unwrap_or(0)).collect();
    let bound = bests.iter().sum::<i128>() + price.gain * i128::from(capacity);
    let slack = bound - value * weight;
    let (mut stages, mut looked_at) = (vec![vec![Sum { weight: 0, loss: 0, from: 0, way: 0 }]], 0usize);
    for (ways, best) in ways.groups().zip(&bests) {
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
    let mut taken = Vec::with_capacity(bests.len());
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

    fn group(items: &[(u32, u64)], present: u32) -> Group<'static> {
        let items: Vec<Item> = items.iter().map(|&(weight, value)| Item { weight, value }).collect();
        Group { items: items.leak(), present }
    }

    /// What a choice is worth; none if it is none of the items.
    pub fn worth(groups: &[Group<'_>], weights: &[u32]) -> Option<u64> {
        let of = |(group, weight): (&Group<'_>, &u32)| match weight {
            0 => Some(0),
            weight => group.items.iter().filter(|item| item.weight == *weight).map(|item| item.value).max(),
        };
        groups.iter().zip(weights).map(of).sum()
    }

    /// The most value that any choice has, and the most groups that stay as they are among those.
    pub fn brute(groups: &[Group<'_>], capacity: u32) -> (u64, usize) {
        let Some((first, rest)) = groups.split_first() else { return (0, 0) };
        let nothing = Item { weight: 0, value: 0 };
        let fits = first.items.iter().chain([&nothing]).filter(|item| item.weight <= capacity);
        let worth = fits.map(|item| {
            let (value, stay) = brute(rest, capacity - item.weight);
            (value + item.value, stay + usize::from(item.weight == first.present))
        });
        worth.max().unwrap_or((0, 0))
    }

    fn any_group() -> impl Strategy<Value = Group<'static>> {
        let items = proptest::collection::vec((1u32..7, 0u64..40), 0..5);
        (items, 0u32..7).prop_map(|(items, present)| group(&items, present))
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
            let again: Vec<Group<'_>> = groups.iter().zip(&weights).map(|(group, &present)| Group { present, ..*group }).collect();
            prop_assert_eq!(choose(&again, capacity), weights);
        }
    }

    /// Every case of two groups with two items of a few weights and values, at every capacity.
    #[test]
    fn it_is_exact_in_every_small_case() {
        let items = || (1u32..4).flat_map(|weight| [1u64, 2, 3, 5].map(|value| (weight, value)));
        let groups: Vec<Group<'_>> = items().flat_map(|a| items().map(move |b| group(&[a, b], 0))).collect();
        for first in &groups {
            for second in &groups {
                let both = [*first, *second];
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
        let groups: Vec<Group<'_>> =
            (0..500u64).map(|job| group(&[(1, 100 + job), (3, 170 + 2 * job), (7, 310 + job * 3)], 0)).collect();
        let weights = choose(&groups, 1_001);
        let value = worth(&groups, &weights);
        assert!(weights.iter().sum::<u32>() <= 1_001);
        let swapped = choose(&groups, 1_000);
        assert!(value >= worth(&groups, &swapped));
    }
}
