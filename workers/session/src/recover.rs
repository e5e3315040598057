//! Whose replica counts when a generation begins: the newest. Everybody else is brought to it before the next step.
//!
//! One rule for a fresh start, a start from a checkpoint and a start after losses.

use crate::message::{Holding, Lagging, Need, Peer, Start};
use std::collections::BTreeMap;

/// Decides from what every member holds. `None` when no member has a replica.
///
/// A member one step behind gets the last gradient if someone still has it; by determinism that makes the same bits as the replica
/// itself. More than one behind cannot come from one generation (a step needs everybody), but costs no more to handle: the replica.
pub(crate) fn choose_start(joins: &BTreeMap<Peer, Option<Holding>>, park: bool) -> Option<Start> {
    let step = joins.values().flatten().map(|h| h.step).max()?;
    let at_step = |holding: &Option<Holding>| holding.is_some_and(|h| h.step == step);
    let holders: Vec<Peer> = joins.iter().filter(|(_, h)| at_step(h)).map(|(&p, _)| p).collect();
    let gradient_from = joins.iter().find(|(_, h)| h.is_some_and(|h| h.step == step && h.gradient)).map(|(&p, _)| p);
    let need = |holding: &Option<Holding>| match holding {
        Some(h) if h.step.next() == step && gradient_from.is_some() => Need::Gradient,
        _ => Need::Replica,
    };
    let lagging = joins.iter().filter(|(_, h)| !at_step(h)).map(|(&peer, h)| Lagging { peer, need: need(h) }).collect();
    Some(Start { step, park, holders, gradient_from, lagging })
}

#[cfg(test)]
mod tests {
    use super::*;
    use events_schema::Step;

    fn joins(holdings: &[Option<(u64, bool)>]) -> BTreeMap<Peer, Option<Holding>> {
        (0..)
            .map(Peer)
            .zip(holdings.iter().map(|h| h.map(|(step, gradient)| Holding { step: Step(step), gradient })))
            .collect()
    }

    #[test]
    fn the_newest_step_wins_and_laggards_get_the_least_that_helps() {
        let start =
            choose_start(&joins(&[Some((6, true)), Some((7, false)), Some((7, true)), None, Some((3, true))]), false);
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
        let start = choose_start(&joins(&[Some((6, true)), Some((7, false))]), false).map(|s| s.lagging);
        assert_eq!(start, Some(vec![Lagging { peer: Peer(0), need: Need::Replica }]));
    }

    #[test]
    fn without_any_replica_there_is_nothing_to_start_from() {
        assert_eq!(choose_start(&joins(&[None, None]), false), None);
    }
}
