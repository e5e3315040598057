//! The canonical tree over ranks `0..W`, and which member hosts which ranks. (Buddy allocation.)
//!
//! Gradients are summed along this one tree whatever the placement, so the sum's bits never depend on who hosts what.
//! Pure arithmetic: controller, executors and tests compute the same answer from the same numbers.

use crate::Rank;
use minicbor::{Decode, Encode};
use serde::Serialize;

/// A node of the canonical tree: ranks `first .. first + count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, Serialize)]
pub struct Node {
    /// Lowest rank below it.
    #[n(0)]
    pub first: u16,
    /// Ranks below it; at least 1.
    #[n(1)]
    pub count: u16,
}

impl Node {
    /// The root of the tree over `workers` ranks (at least 1).
    #[must_use]
    pub fn root(workers: u16) -> Self {
        Self { first: 0, count: workers.max(1) }
    }

    /// The two halves, split at the largest power of two below the count; `None` for a single rank.
    #[must_use]
    pub fn children(self) -> Option<(Node, Node)> {
        if self.count < 2 {
            return None;
        }
        let left = 1 << (u16::BITS - 1 - (self.count - 1).leading_zeros());
        Some((Node { first: self.first, count: left }, Node { first: self.first + left, count: self.count - left }))
    }

    /// The ranks below this node, in order.
    pub fn ranks(self) -> impl Iterator<Item = Rank> {
        (self.first..self.first + self.count).map(Rank)
    }

    /// The largest nodes of powers of two that it is made of, left to right.
    fn powers_of_two(self) -> Vec<Node> {
        match self.children() {
            Some((left, right)) if !self.count.is_power_of_two() => {
                let mut nodes = vec![left];
                nodes.extend(right.powers_of_two());
                nodes
            }
            _ => vec![self],
        }
    }

    /// The largest nodes that lie wholly inside `hosted` (sorted ranks), left to right: what one member sums by itself.
    #[must_use]
    pub fn cover(self, hosted: &[Rank]) -> Vec<Node> {
        let below = |end: u16| hosted.partition_point(|rank| rank.0 < end);
        let inside = below(self.first + self.count) - below(self.first);
        if inside == usize::from(self.count) {
            return vec![self];
        }
        match self.children() {
            Some((left, right)) if inside > 0 => {
                let mut nodes = left.cover(hosted);
                nodes.extend(right.cover(hosted));
                nodes
            }
            _ => Vec::new(),
        }
    }
}

/// Sums leaves along the tree below `node`: `leaf` gives a node's value if it is known, `add` joins left and right.
/// `None` when a value is missing.
pub fn fold<T>(node: Node, leaf: &mut impl FnMut(Node) -> Option<T>, add: &mut impl FnMut(T, T) -> T) -> Option<T> {
    if let Some(value) = leaf(node) {
        return Some(value);
    }
    let (left, right) = node.children()?;
    let left = fold(left, leaf, add)?;
    let right = fold(right, leaf, add)?;
    Some(add(left, right))
}

/// A member whose ranks are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hosting<'a> {
    /// Its host: members of one have the same number.
    pub host: u16,
    /// What it hosts so far, sorted; nothing, if it is new.
    pub ranks: &'a [Rank],
}

/// Places `workers` ranks on `members` members (1 ..= workers) of one host: sizes differ by at most one, larger shares first, each share
/// made of few tree nodes. Member i gets the i-th list, sorted.
#[must_use]
pub fn place(workers: u16, members: u16) -> Vec<Vec<Rank>> {
    place_on(workers, &vec![0; usize::from(members.clamp(1, workers.max(1)))])
}

/// The same for members of several hosts, of which each is named: also what the members of a host get together is made of few nodes, because they sum
/// those before anything is sent to another host.
#[must_use]
pub fn place_on(workers: u16, hosts: &[u16]) -> Vec<Vec<Rank>> {
    let workers = workers.max(1);
    let nobody_hosts = vec![Vec::new(); hosts.len()];
    let sizes = sizes(workers, &nobody_hosts);
    fill(workers, nobody_hosts, &sizes, &by_host(hosts))
}

/// Places the ranks again when members came or went. `before` are the members (1 ..= workers). Sizes differ by at most one.
///
/// If nobody is new, only ranks move that nobody hosts any more: whoever hosts a rank has its samples at hand. That goes on until somebody would host
/// more than [`nodes_max`] nodes, because each is one more gradient to hold and to send, at every step. Then, and when somebody is new, the shares are
/// those of [`place_on`], and everybody gets one that has most of what it hosts.
#[must_use]
pub fn place_again(workers: u16, before: &[Hosting<'_>]) -> Vec<Vec<Rank>> {
    let workers = workers.max(1);
    let before = &before[..before.len().min(usize::from(workers))];
    if before.is_empty() {
        return Vec::new();
    }
    let hosts: Vec<u16> = before.iter().map(|member| member.host).collect();
    let stay = before.iter().all(|member| !member.ranks.is_empty()).then(|| fill_up(workers, before, &by_host(&hosts)));
    stay.flatten().unwrap_or_else(|| matched_by_host(place_on(workers, &hosts), before, &by_host(&hosts)))
}

/// Places the ranks where not all members are equally fast, so that the slowest is done as soon as it can be: `unit_us` is how long one rank takes each of the
/// members, of which `before` says what they host. Everybody hosts one at least. Ranks move as [`place_again`] moves them, after who hosts too many has let its
/// last ones go. (Amoeba §5.4 replaces a straggler; a rank is the smallest thing to take from one.)
#[must_use]
pub fn place_by_speed(workers: u16, before: &[Hosting<'_>], unit_us: &[u64]) -> Vec<Vec<Rank>> {
    let before = &before[..before.len().min(usize::from(workers.max(1)))];
    let hosted: Vec<usize> = before.iter().map(|member| member.ranks.len()).collect();
    let sizes = sizes_by_speed(workers, &hosted, unit_us);
    let kept =
        |(member, size): (&Hosting<'_>, &u16)| member.ranks[..member.ranks.len().min(usize::from(*size))].to_vec();
    let kept = before.iter().zip(&sizes).map(kept).collect();
    let by_host = by_host(&before.iter().map(|member| member.host).collect::<Vec<_>>());
    let placed = fill(workers, kept, &sizes, &by_host);
    let scattered = are_scattered(workers, &placed, &by_host);
    if scattered { fill(workers, vec![Vec::new(); sizes.len()], &sizes, &by_host) } else { placed }
}

/// How many ranks each of so many members (1 ..= workers) hosts so that the slowest is done as soon as it can be, by how many it hosts so far.
#[must_use]
pub fn sizes_by_speed(workers: u16, hosted: &[usize], unit_us: &[u64]) -> Vec<u16> {
    let mut sizes = vec![1u16; hosted.len()];
    for _ in hosted.len()..usize::from(workers) {
        let would_take = |member: usize| u64::from(sizes[member] + 1).saturating_mul(unit_us[member].max(1));
        // Of equals rather one that keeps a rank.
        let lacks = |member: usize| usize::from(sizes[member]) < hosted[member];
        let next = (0..sizes.len()).min_by_key(|&member| (would_take(member), !lacks(member), member));
        if let Some(next) = next {
            sizes[next] += 1;
        }
    }
    sizes
}

/// How long the slowest member takes for so many ranks that it hosts.
#[must_use]
pub fn longest_us(hosted: impl Iterator<Item = usize>, unit_us: &[u64]) -> u64 {
    hosted.zip(unit_us).map(|(ranks, us)| us.saturating_mul(ranks as u64)).max().unwrap_or(0)
}

/// Whether a share is made of more nodes than one may be.
fn is_scattered(workers: u16, ranks: &[Rank]) -> bool {
    Node::root(workers).cover(ranks).len() > nodes_max(workers, ranks.len() as u16)
}

/// Most tree nodes that a share of so many of all ranks is made of when it is placed again: as many sums as are open while one node of as many ranks is
/// summed; and no more than a newcomer has room for ahead of its first step, which is one for each level of the tree.
#[must_use]
pub fn nodes_max(workers: u16, ranks: u16) -> usize {
    let levels = workers.max(1).ilog2().max(2);
    (ranks.max(1).ilog2() + 1).min(levels) as usize
}

/// Whether a member's share, or what members of one host have together, is.
fn are_scattered(workers: u16, placed: &[Vec<Rank>], by_host: &[Vec<usize>]) -> bool {
    placed.iter().any(|ranks| is_scattered(workers, ranks))
        || by_host.iter().any(|members| is_scattered(workers, &together(placed, members)))
}

/// Members by their hosts, both in order.
fn by_host(hosts: &[u16]) -> Vec<Vec<usize>> {
    let mut members: Vec<(u16, Vec<usize>)> = Vec::new();
    for (member, host) in hosts.iter().enumerate() {
        match members.iter_mut().find(|(of, _)| of == host) {
            Some((_, there)) => there.push(member),
            None => members.push((*host, vec![member])),
        }
    }
    members.into_iter().map(|(_, there)| there).collect()
}

/// What some members host, sorted.
fn together(hosted: &[Vec<Rank>], members: &[usize]) -> Vec<Rank> {
    let mut ranks: Vec<Rank> = members.iter().flat_map(|&member| hosted[member].iter().copied()).collect();
    ranks.sort_unstable();
    ranks
}

/// Everybody keeps what it hosts and gets of the rest, unless that would be out of balance or too scattered.
fn fill_up(workers: u16, before: &[Hosting<'_>], by_host: &[Vec<usize>]) -> Option<Vec<Vec<Rank>>> {
    let hosted: Vec<Vec<Rank>> = before.iter().map(|member| member.ranks.to_vec()).collect();
    let sizes = sizes(workers, &hosted);
    if hosted.iter().zip(&sizes).any(|(ranks, size)| ranks.len() > usize::from(*size)) {
        return None;
    }
    let placed = fill(workers, hosted, &sizes, by_host);
    (!are_scattered(workers, &placed, by_host)).then_some(placed)
}

/// How many ranks each member is to host: those that host most already get the larger shares, then the first ones.
fn sizes(workers: u16, hosted: &[Vec<Rank>]) -> Vec<u16> {
    let members = hosted.len() as u16;
    let (size, larger) = (workers / members, usize::from(workers % members));
    let mut sizes = vec![size; hosted.len()];
    let mut order: Vec<usize> = (0..hosted.len()).collect();
    order.sort_by_key(|&member| (hosted[member].len() <= usize::from(size), member));
    order.into_iter().take(larger).for_each(|member| sizes[member] += 1);
    sizes
}

/// Gives each member what it lacks of its size: first of the ranks that nobody hosts to each host, then of those to each of its members.
fn fill(workers: u16, mut hosted: Vec<Vec<Rank>>, sizes: &[u16], by_host: &[Vec<usize>]) -> Vec<Vec<Rank>> {
    let all: Vec<Rank> = (0..workers).map(Rank).collect();
    let of_hosts: Vec<Vec<Rank>> = by_host.iter().map(|members| together(&hosted, members)).collect();
    let sizes_of = |members: &Vec<usize>| members.iter().map(|&member| sizes[member]).sum();
    let placed = fill_from(workers, &all, of_hosts, &by_host.iter().map(sizes_of).collect::<Vec<u16>>());
    for (members, ranks) in by_host.iter().zip(&placed) {
        let there = members.iter().map(|&member| std::mem::take(&mut hosted[member])).collect();
        let sizes: Vec<u16> = members.iter().map(|&member| sizes[member]).collect();
        for (member, ranks) in members.iter().zip(fill_from(workers, ranks, there, &sizes)) {
            hosted[*member] = ranks;
        }
    }
    hosted
}

/// Gives each member of those ranks of `all` that nobody hosts what it lacks of its size, in blocks of powers of two, largest first, rather one that makes a larger node
/// with what the member hosts, and otherwise of the smallest block that is free.
///
/// With nothing hosted that always finds a block as large as it is asked for: when one of size b is, every larger request is served, so what is free is a
/// multiple of b plus blocks below b of `all` itself, one of each size at most, which together are smaller than b; hence some block of at least b is free.
/// Otherwise what is lacking is made of smaller ones.
fn fill_from(workers: u16, all: &[Rank], mut hosted: Vec<Vec<Rank>>, sizes: &[u16]) -> Vec<Vec<Rank>> {
    let mut hosts: Vec<Option<usize>> = vec![None; usize::from(workers)];
    for (member, ranks) in hosted.iter().enumerate() {
        for rank in ranks.iter().filter(|rank| rank.0 < workers) {
            hosts[usize::from(rank.0)] = Some(member);
        }
    }
    let unhosted: Vec<Rank> = all.iter().copied().filter(|rank| hosts[usize::from(rank.0)].is_none()).collect();
    let mut free: Vec<Node> = Node::root(workers).cover(&unhosted).into_iter().flat_map(Node::powers_of_two).collect();
    for size in (0..u16::BITS).rev().map(|bit| 1u16 << bit) {
        for (member, ranks) in hosted.iter_mut().enumerate() {
            while usize::from(sizes[member]) >= ranks.len() + usize::from(size) {
                let hosts_other_half = |node: &Node| {
                    let other =
                        (node.first ^ node.count)..(node.first ^ node.count).saturating_add(node.count).min(workers);
                    node.count == size
                        && !other.is_empty()
                        && other.into_iter().all(|rank| hosts[usize::from(rank)] == Some(member))
                };
                let large_enough = (0..free.len()).filter(|&i| free[i].count >= size);
                let best = large_enough.min_by_key(|&i| (!hosts_other_half(&free[i]), free[i].count, free[i].first));
                let Some(best) = best else { break };
                let mut node = free.swap_remove(best);
                while node.count > size {
                    let half = node.count / 2;
                    free.push(Node { first: node.first + half, count: half });
                    node.count = half;
                }
                node.ranks().for_each(|rank| hosts[usize::from(rank.0)] = Some(member));
                ranks.extend(node.ranks());
            }
        }
    }
    hosted.iter_mut().for_each(|ranks| ranks.sort_unstable());
    hosted
}

/// Gives each member one of the shares, which are placed on their hosts: first to hosts of as many members those of one host, then to their members.
fn matched_by_host(shares: Vec<Vec<Rank>>, before: &[Hosting<'_>], by_host: &[Vec<usize>]) -> Vec<Vec<Rank>> {
    let hosted: Vec<Vec<Rank>> = before.iter().map(|member| member.ranks.to_vec()).collect();
    let mut placed = vec![Vec::new(); before.len()];
    let mut counts: Vec<usize> = by_host.iter().map(Vec::len).collect();
    counts.sort_unstable();
    counts.dedup();
    for count in counts {
        let alike: Vec<&Vec<usize>> = by_host.iter().filter(|members| members.len() == count).collect();
        let of_hosts = |of: &[Vec<Rank>]| alike.iter().map(|members| together(of, members)).collect::<Vec<_>>();
        let of_host = matched(&of_hosts(&shares), &of_hosts(&hosted));
        for (members, gets) in alike.iter().zip(of_host) {
            let of = |of: &[Vec<Rank>], members: &[usize]| members.iter().map(|&m| of[m].clone()).collect::<Vec<_>>();
            let theirs = of(&shares, alike[gets]);
            for (member, gets) in members.iter().zip(matched(&theirs, &of(&hosted, members))) {
                placed[*member] = theirs[gets].clone();
            }
        }
    }
    placed
}

/// Which of the shares each of as many members gets: of all pairs first the one that has most in common.
fn matched(shares: &[Vec<Rank>], before: &[Vec<Rank>]) -> Vec<usize> {
    let in_common =
        |share: &[Rank], hosted: &[Rank]| share.iter().filter(|rank| hosted.binary_search(rank).is_ok()).count();
    let hosting: Vec<(usize, &Vec<Rank>)> =
        before.iter().enumerate().filter(|(_, hosted)| !hosted.is_empty()).collect();
    let pairs = shares
        .iter()
        .enumerate()
        .flat_map(|(of, share)| hosting.iter().map(move |(member, hosted)| (in_common(share, hosted), *member, of)));
    // Those with nothing in common, nearly all of a large job's, need no order but that of members and shares.
    let mut pairs: Vec<(usize, usize, usize)> = pairs.filter(|(common, ..)| *common > 0).collect();
    pairs.sort_by_key(|&(common, member, of)| (std::cmp::Reverse(common), member, of));
    let (mut gets, mut taken) = (vec![None; before.len()], vec![false; shares.len()]);
    for (_, member, of) in pairs {
        if gets[member].is_none() && !taken[of] {
            (gets[member], taken[of]) = (Some(of), true);
        }
    }
    let mut left = (0..shares.len()).filter(|&of| !taken[of]);
    gets.into_iter().map(|of| of.or_else(|| left.next()).unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_tree_splits_at_the_largest_power_of_two_below() {
        let halves = |n| Node::root(n).children().map(|(l, r)| (l.count, r.count));
        assert_eq!(
            [2, 3, 4, 5, 6, 7, 8, 9].map(halves),
            [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 3), (4, 4), (8, 1)].map(Some)
        );
        assert_eq!(halves(1), None);
    }

    /// Members of the hosts that are named, in turns; of one without any.
    fn members<'a>(before: &'a [Vec<Rank>], hosts: &[u16]) -> Vec<Hosting<'a>> {
        let host = |member: usize| hosts.get(member % hosts.len().max(1)).copied().unwrap_or(0);
        before.iter().enumerate().map(|(member, ranks)| Hosting { host: host(member), ranks }).collect()
    }

    fn again_on(hosts: &[u16], workers: u16, before: &[&[u16]]) -> Vec<Vec<u16>> {
        let before: Vec<Vec<Rank>> = before.iter().map(|ranks| ranks.iter().copied().map(Rank).collect()).collect();
        let placed = place_again(workers, &members(&before, hosts));
        placed.into_iter().map(|ranks| ranks.into_iter().map(|rank| rank.0).collect()).collect()
    }

    fn again(workers: u16, before: &[&[u16]]) -> Vec<Vec<u16>> {
        again_on(&[], workers, before)
    }

    #[test]
    fn what_a_host_gets_makes_whole_nodes_whoever_came_first() {
        let ranks = |of: &[u16]| of.iter().copied().map(Rank).collect::<Vec<_>>();
        assert_eq!(place_on(8, &[0, 1, 0, 1]), [[0, 1], [4, 5], [2, 3], [6, 7]].map(|of| ranks(&of)));
        assert_eq!(place_on(6, &[0, 1, 1]), [[4, 5], [0, 1], [2, 3]].map(|of| ranks(&of)));
        assert_eq!(place_on(4, &[3, 3, 9, 9]), place(4, 4));
        // Each host has a member more: its first one shares what it has with that.
        let grown = again_on(&[0, 1], 8, &[&[0, 1, 2, 3], &[4, 5, 6, 7], &[], &[]]);
        assert_eq!(grown, [[0, 1], [4, 5], [2, 3], [6, 7]]);
        let lost = again_on(&[0, 1], 8, &[&[0, 1], &[4, 5], &[2, 3]]);
        assert_eq!(lost, [vec![0, 1, 6], vec![4, 5, 7], vec![2, 3]], "only those that nobody hosts move");
        // Members that have nothing to sum, neither by themselves nor with who is on their host.
        let apart = again_on(&[0, 1], 16, &[&[0, 2, 4, 6], &[1, 3, 5, 7], &[8, 10, 12, 14], &[9, 11, 13, 15]]);
        assert_eq!(apart, [[0, 1, 2, 3], [12, 13, 14, 15], [4, 5, 6, 7], [8, 9, 10, 11]]);
    }

    #[test]
    fn who_stays_keeps_its_ranks_and_who_comes_gets_whole_nodes() {
        let lost = again(8, &[&[0, 1], &[4, 5], &[6, 7]]);
        assert_eq!(lost, [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7]]);
        assert_eq!(again(8, &[&[0, 1, 2], &[6, 7]]), [vec![0, 1, 2, 3], vec![4, 5, 6, 7]], "what makes whole nodes");
        let grown = again(8, &[&[0, 1, 2], &[3, 4, 5], &[6, 7], &[]]);
        assert_eq!(grown, [vec![0, 1], vec![4, 5], vec![6, 7], vec![2, 3]]);
        let scattered = again(8, &[&[0, 2], &[1, 4], &[3, 6]]);
        assert_eq!(
            scattered,
            [vec![0, 1, 6], vec![4, 5], vec![2, 3, 7]],
            "of three ranks alone each would be a gradient to send"
        );
        assert_eq!(again(4, &[&[], &[]]), [vec![0, 1], vec![2, 3]]);
        assert_eq!(again(4, &[]), Vec::<Vec<u16>>::new());
    }

    /// From a placement without history; of a power of two, as most jobs have them.
    #[test]
    fn a_loss_moves_only_the_ranks_that_were_lost() {
        let sizes = [2, 4, 8, 16, 32].into_iter().flat_map(|workers| (2..=workers).map(move |count| (workers, count)));
        for (workers, count) in sizes {
            for lost in 0..usize::from(count) {
                let mut before = place(workers, count);
                before.remove(lost);
                let after = place_again(workers, &members(&before, &[]));
                let stays = |(before, after): (&Vec<Rank>, &Vec<Rank>)| before.iter().all(|rank| after.contains(rank));
                assert!(before.iter().zip(&after).all(stays), "{workers} {count} {lost}: {before:?} {after:?}");
            }
        }
    }

    #[test]
    fn a_slow_member_hosts_fewer_ranks_and_the_others_keep_theirs() {
        let by_speed = |workers: u16, before: &[&[u16]], unit_us: &[u64]| {
            let before: Vec<Vec<Rank>> = before.iter().map(|ranks| ranks.iter().copied().map(Rank).collect()).collect();
            let placed = place_by_speed(workers, &members(&before, &[]), unit_us);
            placed.into_iter().map(|ranks| ranks.into_iter().map(|rank| rank.0).collect()).collect::<Vec<Vec<u16>>>()
        };
        let two: [&[u16]; 2] = [&[0, 1, 2, 3], &[4, 5, 6, 7]];
        assert_eq!(by_speed(8, &two, &[10, 30]), [vec![0, 1, 2, 3, 6, 7], vec![4, 5]]);
        assert_eq!(by_speed(8, &[&[0, 1, 2, 3, 6, 7], &[4, 5]], &[10, 10]), [vec![0, 1, 2, 3], vec![4, 5, 6, 7]]);
        assert_eq!(by_speed(8, &two, &[10, 10]), two, "equal members are left as they are");
        assert_eq!(by_speed(2, &[&[0], &[1]], &[10, 900]), [[0], [1]], "nobody is without any");
    }

    proptest! {
        #[test]
        fn no_other_shares_are_done_sooner(workers in 1u16..=64, times in proptest::collection::vec(1u64..50, 1..12), seed in 0u16..64, hosts in proptest::collection::vec(0u16..3, 1..4)) {
            let times = &times[..times.len().min(usize::from(workers))];
            let mut before = place(workers, times.len() as u16);
            if seed % 3 == 0 {
                before[usize::from(seed) % times.len()].clear();
            }
            let placed = place_by_speed(workers, &members(&before, &hosts), times);
            let mut all: Vec<Rank> = placed.iter().flatten().copied().collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..workers).map(Rank).collect::<Vec<_>>());
            let sizes = sizes_by_speed(workers, &before.iter().map(Vec::len).collect::<Vec<_>>(), times);
            prop_assert!(placed.iter().map(Vec::len).eq(sizes.into_iter().map(usize::from)));
            prop_assert!(placed.iter().all(|ranks| ranks.is_sorted() && !ranks.is_empty() && !is_scattered(workers, ranks)));
            // What can be done by then, if nobody is without any.
            let done_by = |us: u64| times.iter().map(|unit| (us / unit).max(1)).sum::<u64>() >= u64::from(workers);
            let slowest = times.iter().max().copied().unwrap_or(0);
            let soonest = (slowest..).find(|us| done_by(*us)).unwrap();
            let longest = longest_us(placed.iter().map(Vec::len), times);
            prop_assert!(longest <= soonest, "{:?} {:?}", placed, times);
        }

        #[test]
        fn every_rank_is_placed_once_in_few_nodes(workers in 1u16..=256, seed in 0u16..256, hosts in proptest::collection::vec(0u16..9, 1..20)) {
            let count = 1 + seed % workers;
            let hosts: Vec<u16> = (0..usize::from(count)).map(|member| hosts[member % hosts.len()]).collect();
            let placed = place_on(workers, &hosts);
            prop_assert_eq!(placed.len(), usize::from(count));
            for members in by_host(&hosts) {
                let ranks = together(&placed, &members);
                prop_assert!(Node::root(workers).cover(&ranks).len() <= (ranks.len() as u16).count_ones() as usize);
            }
            let mut all: Vec<Rank> = placed.iter().flatten().copied().collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..workers).map(Rank).collect::<Vec<_>>());
            for ranks in &placed {
                let cover = Node::root(workers).cover(ranks);
                prop_assert!(cover.len() <= (ranks.len() as u16).count_ones() as usize);
                prop_assert!(ranks.len() == usize::from(workers / count) || ranks.len() == usize::from(workers / count + 1));
            }
        }

        /// Members come and go, some at a time.
        #[test]
        fn ranks_that_are_placed_again_are_whole_balanced_and_stay_where_they_can(
            workers in 1u16..=64, changes in proptest::collection::vec((any::<bool>(), 1usize..4, any::<usize>()), 1..12), seed in 0u16..64,
            hosts in proptest::collection::vec(0u16..4, 1..5),
        ) {
            let mut hosted = place(workers, 1 + seed % workers);
            for (comes, count, which) in changes {
                let mut before = hosted.clone();
                for i in 0..count {
                    let at = which.wrapping_add(i.wrapping_mul(7)) % (before.len() + usize::from(comes));
                    match comes {
                        true if before.len() < usize::from(workers) => before.insert(at, Vec::new()),
                        false if before.len() > 1 => drop(before.remove(at)),
                        _ => {}
                    }
                }
                let members = members(&before, &hosts);
                let of_hosts = by_host(&members.iter().map(|member| member.host).collect::<Vec<_>>());
                hosted = place_again(workers, &members);
                prop_assert_eq!(&hosted, &place_again(workers, &members));
                prop_assert_eq!(hosted.len(), before.len());
                let mut all: Vec<Rank> = hosted.iter().flatten().copied().collect();
                all.sort_unstable();
                prop_assert_eq!(all, (0..workers).map(Rank).collect::<Vec<_>>());
                let least = usize::from(workers) / before.len();
                let nodes = |ranks: &[Rank]| Node::root(workers).cover(ranks).len();
                for ranks in &hosted {
                    prop_assert!(ranks.is_sorted() && (least..=least + 1).contains(&ranks.len()));
                    prop_assert!(before.len() == 1 || nodes(ranks) <= nodes_max(workers, ranks.len() as u16));
                }
                let stay = before.iter().zip(&hosted).all(|(before, after)| before.iter().all(|rank| after.contains(rank)));
                for members in of_hosts {
                    let ranks = together(&hosted, &members);
                    prop_assert!(before.len() == 1 || nodes(&ranks) <= nodes_max(workers, ranks.len() as u16));
                }
                let hosts: Vec<u16> = members.iter().map(|member| member.host).collect();
                let (mut shares, mut afresh) = (hosted.clone(), place_on(workers, &hosts));
                shares.sort_unstable();
                afresh.sort_unstable();
                let newcomers = before.iter().any(|ranks| ranks.is_empty());
                prop_assert!(shares == afresh || (stay && !newcomers));
            }
        }

        #[test]
        fn the_sum_is_the_same_for_every_placement(workers in 1u16..=64, members in 1u16..=64, values in proptest::collection::vec(-1e6f32..1e6, 64)) {
            let root = Node::root(workers);
            let alone = fold(root, &mut |n| (n.count == 1).then(|| values[usize::from(n.first)]), &mut |a, b| a + b);
            let placed = place(workers, members.min(workers));
            let partials: std::collections::BTreeMap<Node, f32> = placed.iter().flat_map(|ranks| root.cover(ranks)).map(|node| {
                (node, fold(node, &mut |n| (n.count == 1).then(|| values[usize::from(n.first)]), &mut |a, b| a + b).unwrap())
            }).collect();
            let together = fold(root, &mut |n| partials.get(&n).copied(), &mut |a, b| a + b);
            prop_assert_eq!(alone.map(f32::to_bits), together.map(f32::to_bits));
        }
    }
}
