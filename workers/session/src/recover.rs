//! Whose replica counts when a generation begins: the newest. Everybody else is brought to it before the next step.
//!
//! One rule for a fresh start, a start from a checkpoint and a start after losses.

use crate::message::{Holding, Lagging, Need, Peer, Start};
use events_schema::job::Determinism;
use std::collections::BTreeMap;

/// Decides from what every member holds. `None` when no member has a replica.
///
/// A member one update behind gets the last gradient if someone still has it; by determinism that makes the same bits as the replica
/// itself. More than one behind cannot come from one generation (an update needs everybody), but costs no more to handle: the replica.
///
/// Without determinism a step that is done again in another membership leads to another replica, or takes other steps with it, so what counts is that of the newest membership, and whoever
/// held its own in another is sent the replica: a member that was left out and comes back may hold a step that the others took otherwise.
pub(crate) fn choose_start(
    joins: &BTreeMap<Peer, Option<Holding>>,
    park: bool,
    determinism: Determinism,
) -> Option<Start> {
    let newest = joins.values().flatten().max_by_key(|h| (h.step, h.tag))?;
    let step = newest.step;
    let same_history = |h: &Holding| determinism == Determinism::D1 || h.tag == newest.tag;
    // With updates of several steps, of whose number another membership may say otherwise, who was in the newest one is behind by one of its updates.
    let is_one_behind = |h: &Holding| match determinism {
        Determinism::D1 => h.step.next() == step,
        Determinism::None => h.step < step && h.tag.is_some(),
    };
    let at_step = |holding: &Option<Holding>| holding.is_some_and(|h| h.step == step && same_history(&h));
    let holders: Vec<Peer> = joins.iter().filter(|(_, h)| at_step(h)).map(|(&p, _)| p).collect();
    let gradient_from = joins.iter().find(|(_, h)| at_step(h) && h.is_some_and(|h| h.gradient)).map(|(&p, _)| p);
    let need = |holding: &Option<Holding>| match holding {
        Some(h) if is_one_behind(h) && gradient_from.is_some() && same_history(h) => Need::Gradient,
        _ => Need::Replica,
    };
    let lagging = joins.iter().filter(|(_, h)| !at_step(h)).map(|(&peer, h)| Lagging { peer, need: need(h) }).collect();
    Some(Start { step, park, holders, gradient_from, lagging })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::message::Tag;
    use events_schema::{Generation, Step};

    fn joins(holdings: &[Option<(u64, bool)>]) -> BTreeMap<Peer, Option<Holding>> {
        (0..)
            .map(Peer)
            .zip(holdings.iter().map(|h| h.map(|(step, gradient)| Holding { step: Step(step), gradient, tag: None })))
            .collect()
    }

    #[test]
    fn the_newest_step_wins_and_laggards_get_the_least_that_helps() {
        let start = choose_start(
            &joins(&[Some((6, true)), Some((7, false)), Some((7, true)), None, Some((3, true))]),
            false,
            Determinism::D1,
        );
        let lag = |peer, need| Lagging { peer: Peer(peer), need };
        let expected = Start {
            step: Step(7),
            park: false,
            holders: vec![Peer(1), Peer(2)],
            gradient_from: Some(Peer(2)),
            lagging: vec![lag(0, Need::Gradient), lag(3, Need::Replica), lag(4, Need::Replica)],
        };
        assert_eq!(start, Some(expected));
    }

    #[test]
    fn a_laggard_gets_the_replica_when_nobody_has_the_gradient() {
        let start =
            choose_start(&joins(&[Some((6, true)), Some((7, false))]), false, Determinism::D1).map(|s| s.lagging);
        assert_eq!(start, Some(vec![Lagging { peer: Peer(0), need: Need::Replica }]));
    }

    #[test]
    fn without_any_replica_there_is_nothing_to_start_from() {
        assert_eq!(choose_start(&joins(&[None, None]), false, Determinism::D1), None);
    }

    /// The member that was left out took step 6 with others, who are gone; those that stayed took it again, without it.
    #[test]
    fn without_determinism_one_history_counts_and_who_has_another_gets_the_replica() {
        let held = |step, generation| {
            let tag = Some(Tag { generation: Generation(generation), revision: 0 });
            Some(Holding { step: Step(step), gradient: true, tag })
        };
        let all = |holdings: &[Option<Holding>]| (0..).map(Peer).zip(holdings.iter().copied()).collect();
        let start =
            |holdings: &[Option<Holding>], determinism| choose_start(&all(holdings), false, determinism).unwrap();
        let lacks = |start: &Start| start.lagging.iter().map(|l| (l.peer.0, l.need)).collect::<Vec<_>>();

        let together = [held(7, 1), held(7, 2), held(6, 2), None];
        let chosen = start(&together, Determinism::None);
        assert_eq!((&chosen.holders[..], chosen.gradient_from), (&[Peer(1)][..], Some(Peer(1))));
        assert_eq!(lacks(&chosen), [(0, Need::Replica), (2, Need::Gradient), (3, Need::Replica)]);
        let chosen = start(&together, Determinism::D1);
        assert_eq!((chosen.holders.len(), lacks(&chosen)), (2, vec![(2, Need::Gradient), (3, Need::Replica)]));

        let ahead = start(&[held(7, 1), held(6, 2)], Determinism::None);
        assert_eq!(lacks(&ahead), [(1, Need::Replica)], "its gradient is of another replica");
    }
}
