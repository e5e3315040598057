//! From a need that is read now and then to one that is published: it rises at once, falls after a stated time, and silence lends
//! nothing. Time is an input and must not go back.
//!
//! Silence is no reading for longer than a reading's lifetime: no samples, samples that are too old, or no answer. What a fleet needs is
//! then unknown, so
//!
//! - at once nothing new is lent: the need becomes what is not on loan, so that slots which wait to be borrowed come back;
//! - after three lifetimes what is on loan comes back too, one slot at a time, so that jobs shrink rather than end all at once; or
//!   everything at once with the silence, if the fleet says so;
//! - and when something is heard again, the need rises at once if it has to, and falls after the stated time at the earliest.

use events_schema::TimeMs;
use std::collections::VecDeque;

/// Silent for so many lifetimes, a fleet gets back what it lent.
const LIFETIMES_UNTIL_RETURN: u64 = 3;

/// A need that was read and counts is said again after so long, while the fleet has more slots than it needs: what went back to it before it needed it is lent
/// again then.
const REPEATED_MS: u64 = 60_000;

/// What a fleet does when nothing is known of its load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnSilence {
    /// After three lifetimes, one slot more each time this is over.
    Paced {
        /// The pause between two slots.
        every_ms: u64,
    },
    /// Everything, as soon as it is silence.
    AtOnce,
}

/// How the need is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// A lower need counts once nothing higher was read for so long.
    pub fall_after_ms: u64,
    /// How long a reading is good for.
    pub lifetime_ms: u64,
    /// What comes after that.
    pub on_silence: OnSilence,
}

/// What is known of the fleet at the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FleetView {
    /// Its slots.
    pub slots: u32,
    /// Those that a job is on and that nobody has asked back.
    pub borrowed: u32,
    /// Those that it neither lends nor has asked back.
    pub own: u32,
    /// The need that counts; `None` if it never said one.
    pub needed: Option<u32>,
}

/// Whether the load is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// A reading is good.
    Heard,
    /// Nothing new is lent.
    Silent,
    /// What is lent comes back.
    Returning,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Whether the load is known.
    pub standing: Standing,
    /// The need that should count now.
    pub wish: Wish,
    /// Whether to publish it: another one counts, or it is time to say again that slots which went back early are not needed.
    pub publish: bool,
}

/// A need and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// As read.
    Read(u32),
    /// More was needed a while ago: it falls then at the earliest.
    Held {
        /// The need.
        needed: u32,
        /// When a lower one may count.
        until: TimeMs,
    },
    /// Nothing is known.
    Unknown(u32),
}

impl Wish {
    /// The slots.
    #[must_use]
    pub fn needed(self) -> u32 {
        match self {
            Self::Read(needed) | Self::Held { needed, .. } | Self::Unknown(needed) => needed,
        }
    }
}

/// Follows one fleet.
#[derive(Debug)]
pub struct Follower {
    settings: Settings,
    /// Needs that were read, each lower than the one before it, and when: the first is the highest of the time that counts.
    highest: VecDeque<(TimeMs, u32)>,
    /// Up to when the last reading was good.
    good_until: TimeMs,
    /// The silence that was noticed and not broken.
    silent: bool,
    /// When slots began to come back, and the need just before.
    returning: Option<(TimeMs, u32)>,
    /// When the need was last to be published.
    said_at: TimeMs,
}

impl Follower {
    /// Begins. Nothing was heard yet, so what counts at the service stands until something is, or until it is silence.
    #[must_use]
    pub fn new(now: TimeMs, settings: Settings) -> Self {
        let good_until = now.plus_ms(settings.lifetime_ms);
        Self { settings, highest: VecDeque::new(), good_until, silent: true, returning: None, said_at: now }
    }

    /// Takes in a look: the need that was read and how old its samples are, if any was, and the fleet as it is.
    pub fn look(&mut self, now: TimeMs, read: Option<(u32, u64)>, fleet: FleetView) -> Step {
        let fresh = read.filter(|(_, age_ms)| *age_ms <= self.settings.lifetime_ms);
        // Beyond its slots a fleet cannot need anything; and a fleet that never said a need has all of them.
        let counts = fleet.needed.unwrap_or(fleet.slots).min(fleet.slots);
        let (standing, wish) = match fresh {
            Some((needed, age_ms)) => {
                self.heard(now, needed.min(fleet.slots), age_ms, counts);
                (Standing::Heard, self.held(now))
            }
            // Not long enough to be silence: what counts stands.
            None if now < self.good_until => (Standing::Heard, Wish::Unknown(counts)),
            None => self.unheard(now, fleet, counts),
        };
        let differs = fleet.needed != Some(wish.needed());
        let again =
            matches!(wish, Wish::Read(needed) if fleet.own > needed) && now.since_ms(self.said_at) >= REPEATED_MS;
        if differs || again {
            self.said_at = now;
        }
        Step { standing, wish, publish: differs || again }
    }

    fn heard(&mut self, now: TimeMs, needed: u32, age_ms: u64, counts: u32) {
        if self.silent {
            // What counts was not read, but it falls no sooner than if it had been.
            self.highest.clear();
            self.highest.push_back((now, counts));
        }
        (self.silent, self.returning) = (false, None);
        self.good_until = now.plus_ms(self.settings.lifetime_ms.saturating_sub(age_ms));
        while self.highest.back().is_some_and(|(_, lower)| *lower <= needed) {
            self.highest.pop_back();
        }
        self.highest.push_back((now, needed));
    }

    /// The highest need of the time that counts.
    fn held(&mut self, now: TimeMs) -> Wish {
        let over = |at: TimeMs| now.since_ms(at) >= self.settings.fall_after_ms;
        while self.highest.len() > 1 && self.highest.front().is_some_and(|(at, _)| over(*at)) {
            self.highest.pop_front();
        }
        match (self.highest.front(), self.highest.back()) {
            (Some((at, highest)), Some((_, newest))) if highest > newest => {
                Wish::Held { needed: *highest, until: at.plus_ms(self.settings.fall_after_ms) }
            }
            (_, newest) => Wish::Read(newest.map_or(0, |(_, needed)| *needed)),
        }
    }

    fn unheard(&mut self, now: TimeMs, fleet: FleetView, counts: u32) -> (Standing, Wish) {
        self.silent = true;
        let silent_ms = now.since_ms(self.good_until);
        let lends_nothing_new = counts.max(fleet.slots.saturating_sub(fleet.borrowed));
        let every_ms = match self.settings.on_silence {
            OnSilence::AtOnce => return (Standing::Returning, Wish::Unknown(fleet.slots)),
            OnSilence::Paced { every_ms } => every_ms,
        };
        // The first lifetime was over when the silence began.
        let returns_after = self.settings.lifetime_ms.saturating_mul(LIFETIMES_UNTIL_RETURN - 1);
        if silent_ms < returns_after {
            return (Standing::Silent, Wish::Unknown(lends_nothing_new));
        }
        let (begun, before) = *self.returning.get_or_insert((now, lends_nothing_new));
        let back = u32::try_from(now.since_ms(begun) / every_ms.max(1)).unwrap_or(u32::MAX).saturating_add(1);
        let needed = before.saturating_add(back).max(lends_nothing_new).min(fleet.slots);
        (Standing::Returning, Wish::Unknown(needed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FALL_MS: u64 = 60_000;
    const LIFE_MS: u64 = 30_000;
    const PACE_MS: u64 = 10_000;

    fn settings() -> Settings {
        Settings { fall_after_ms: FALL_MS, lifetime_ms: LIFE_MS, on_silence: OnSilence::Paced { every_ms: PACE_MS } }
    }

    fn fleet(needed: u32) -> FleetView {
        FleetView { slots: 8, borrowed: 3, own: needed, needed: Some(needed) }
    }

    /// A follower and the need that counts, because everything it wishes is published.
    struct World {
        follower: Follower,
        fleet: FleetView,
    }

    impl World {
        fn new(needed: u32) -> Self {
            Self { follower: Follower::new(TimeMs(0), settings()), fleet: fleet(needed) }
        }

        fn at(&mut self, now_ms: u64, read: Option<u32>) -> (Standing, u32) {
            let step = self.follower.look(TimeMs(now_ms), read.map(|needed| (needed, 1_000)), self.fleet);
            assert_eq!(step.publish, self.fleet.needed != Some(step.wish.needed()));
            (self.fleet.needed, self.fleet.own) = (Some(step.wish.needed()), step.wish.needed());
            (step.standing, step.wish.needed())
        }
    }

    #[test]
    fn it_rises_at_once_and_falls_after_the_stated_time() {
        let mut world = World::new(1);
        assert_eq!(world.at(0, Some(4)), (Standing::Heard, 4));
        assert_eq!(world.at(10_000, Some(2)), (Standing::Heard, 4));
        assert_eq!(world.at(30_000, Some(3)), (Standing::Heard, 4));
        assert_eq!(world.at(59_999, Some(2)), (Standing::Heard, 4));
        assert_eq!(world.at(60_000, Some(2)), (Standing::Heard, 3), "to the highest of the last minute");
        assert_eq!(world.at(90_000, Some(2)), (Standing::Heard, 2));
        assert_eq!(world.at(90_001, Some(7)), (Standing::Heard, 7));
    }

    #[test]
    fn while_it_has_more_than_it_needs_it_says_so_every_minute() {
        let mut follower = Follower::new(TimeMs(0), settings());
        let mut says = |at_ms, own| follower.look(TimeMs(at_ms), Some((4, 0)), FleetView { own, ..fleet(4) }).publish;
        let said =
            [(60_000, 4), (65_000, 5), (70_000, 5), (124_999, 5), (125_000, 5)].map(|(at_ms, own)| says(at_ms, own));
        assert_eq!(said, [false, true, false, false, true]);
    }

    #[test]
    fn what_counted_before_it_began_falls_no_sooner() {
        let mut world = World::new(6);
        assert_eq!(world.at(5_000, Some(0)).1, 6);
        assert_eq!(world.at(5_000 + FALL_MS, Some(0)).1, 0);
        let mut never_said = Follower::new(TimeMs(0), settings());
        let step = never_said.look(TimeMs(1), Some((0, 0)), FleetView { slots: 8, borrowed: 0, own: 8, needed: None });
        assert_eq!((step.wish.needed(), step.publish), (8, true), "all slots are its own until it falls");
    }

    #[test]
    fn one_look_that_fails_is_no_silence() {
        let mut world = World::new(1);
        world.at(0, Some(2));
        assert_eq!(world.at(20_000, None), (Standing::Heard, 2));
        assert_eq!(world.at(28_999, None), (Standing::Heard, 2));
        assert_eq!(world.at(29_000, None), (Standing::Silent, 5), "its samples were a second old; nothing new is lent");
    }

    #[test]
    fn samples_that_are_too_old_are_silence() {
        let mut follower = Follower::new(TimeMs(0), settings());
        follower.look(TimeMs(0), Some((2, 0)), fleet(1));
        let step = follower.look(TimeMs(LIFE_MS + 1), Some((2, LIFE_MS + 1)), fleet(2));
        assert_eq!((step.standing, step.wish.needed()), (Standing::Silent, 5));
    }

    #[test]
    fn after_three_lifetimes_slots_come_back_one_by_one() {
        let mut world = World::new(1);
        world.at(0, Some(1));
        assert_eq!(world.at(89_000 - 1, None), (Standing::Silent, 5));
        assert_eq!(world.at(89_000, None), (Standing::Returning, 6));
        assert_eq!(world.at(98_000, None), (Standing::Returning, 6));
        assert_eq!(world.at(99_000, None), (Standing::Returning, 7));
        assert_eq!(world.at(500_000, None), (Standing::Returning, 8));
    }

    #[test]
    fn a_fleet_may_want_everything_at_once() {
        let mut follower = Follower::new(TimeMs(0), Settings { on_silence: OnSilence::AtOnce, ..settings() });
        let step = follower.look(TimeMs(LIFE_MS), None, fleet(1));
        assert_eq!((step.standing, step.wish.needed()), (Standing::Returning, 8));
    }

    #[test]
    fn what_is_heard_again_lends_after_the_stated_time_only() {
        let mut world = World::new(1);
        world.at(0, Some(1));
        world.at(40_000, None);
        assert_eq!(world.at(50_000, Some(0)), (Standing::Heard, 5));
        assert_eq!(world.at(50_000 + FALL_MS - 1, Some(0)).1, 5);
        assert_eq!(world.at(50_000 + FALL_MS, Some(0)).1, 0);
    }

    #[test]
    fn what_somebody_else_published_is_corrected() {
        let mut follower = Follower::new(TimeMs(0), settings());
        assert!(follower.look(TimeMs(0), Some((4, 0)), fleet(1)).publish);
        assert!(!follower.look(TimeMs(5_000), Some((4, 0)), fleet(4)).publish);
        assert!(follower.look(TimeMs(10_000), Some((4, 0)), fleet(0)).publish);
    }

    proptest! {
        /// Never below the newest reading, nor above the highest of the time that counts; and no memory without end.
        #[test]
        fn the_need_lies_between_the_newest_and_the_highest(reads in prop::collection::vec(0..9u32, 1..200)) {
            let mut world = World::new(0);
            for (index, needed) in reads.iter().enumerate() {
                let (standing, wish) = world.at(index as u64 * 5_000, Some(*needed));
                let since = index.saturating_sub((FALL_MS / 5_000) as usize - 1);
                let highest = reads[since..=index].iter().max().copied().unwrap_or(0);
                prop_assert_eq!((standing, wish), (Standing::Heard, (*needed).min(8).max(highest.min(8))));
                prop_assert!(world.follower.highest.len() <= 9);
            }
        }
    }
}
