//! Which link between two servers is measured next: one at a time in a cell, so that no two disturb each other. Pure, and not part of the state: that a
//! link carries what it should is never logged, and a controller that takes over asks anew.
//!
//! Every server is asked once it is there, and now and then; at once, if the steps of a job there became longer (`pace.rs`). What is slow is measured
//! again, then over another server, because of one pair nobody can say which of the two it is; that comes out as a report, `LinkSurveyed`, and what it means for jobs is decided in `decide/bandwidth.rs`. Who measures, and how
//! much is sent for it: `workers/agent-core/src/burst.rs`.

use crate::limits::{LINK_AGAIN_BEFORE_MS, LINK_AVOID_MS_MIN};
use crate::state::State;
use events_schema::orders::{FarEnd, LINK_FAST_BYTES_PER_S};
use events_schema::report::Report;
use events_schema::{ServerId, TimeMs};
use std::collections::{BTreeMap, BTreeSet};

/// A slow link is measured so often, and the best counts: a process that stands still for a moment, or another's burst, makes no link slow.
const MEASURED_MAX: u32 = 2;
/// Where somebody waits for it, what could not be measured is tried again, so often in all for each other server: beside a job's steps a burst is cut short
/// now and then.
const TRIED_MAX: u32 = 4;
/// What is read of one link beside steps scatters by so many times.
const TIMES_SCATTERED: u64 = 4;
/// Other servers that a server's link is measured over: of two it is its own that is slow.
const PEERS_MAX: usize = 2;
/// Streams that end before their answer comes, within one turn: whose stream opens again and again is not asked again and again, while others wait.
const LOST_MAX: u32 = 2;
/// An answer takes the time of two connections and two bursts, less than two seconds; who says nothing for so long is not waited for.
const ANSWER_MS: u64 = 5_000;
/// From a measurement to the next of the same server: a few MiB each hour.
const AGAIN_MS: u64 = 3_600_000;
/// The same where it was slow, or nothing could be measured: shortly before what is known of it is not counted on any more.
const AGAIN_SLOW_MS: u64 = LINK_AVOID_MS_MIN - LINK_AGAIN_BEFORE_MS;
/// The second of these doubles so often at most, where turns tell nothing: then it is longer than the first.
const DOUBLED_MAX: u32 = 4;
const _: () = assert!(AGAIN_SLOW_MS << DOUBLED_MAX >= AGAIN_MS);

/// Who is due is looked for so often, among all servers.
const LOOK_INTERVAL_MS: u64 = 200;

/// A server whose agent measures links.
#[derive(Debug, Clone)]
struct Surveyed {
    far_end: FarEnd,
    /// When its turn begins; 0, it was never measured.
    due_ms: u64,
    /// Whom it was measured over in this turn; the last one may be measured over again.
    over: Vec<ServerId>,
    /// How often it was over that one, how often in vain, and the best of it.
    measured: u32,
    in_vain: u32,
    best_bytes_per_s: u64,
    /// What was read over the one before.
    before_bytes_per_s: u64,
    /// How many answers of this turn its stream ended before.
    lost: u32,
    /// Whether this turn told anything, and how many in a row before it did not.
    told: bool,
    untold: u32,
    /// Somebody waits for what this turn tells: it is the next.
    hurried: bool,
    /// Whether a reading over anybody was fast since somebody last waited for it: then its own link is not the slow one of a pair.
    well: bool,
    /// How often others were measured over it.
    served: u64,
}

impl Surveyed {
    fn new(far_end: FarEnd) -> Self {
        Self {
            far_end,
            due_ms: 0,
            over: Vec::new(),
            measured: 0,
            in_vain: 0,
            best_bytes_per_s: 0,
            before_bytes_per_s: 0,
            lost: 0,
            told: false,
            untold: 0,
            hurried: false,
            well: false,
            served: 0,
        }
    }

    fn end_turn(&mut self, due_ms: u64) {
        (self.due_ms, self.measured, self.in_vain, self.lost) = (due_ms, 0, 0, 0);
        (self.best_bytes_per_s, self.before_bytes_per_s) = (0, 0);
        (self.told, self.untold, self.hurried) = (false, 0, false);
        self.over.clear();
    }

    /// Of a turn that told of no fast link the next one comes soon; where nothing could be measured, as of servers that cannot reach each other, later
    /// each time.
    fn end_soon(&mut self, now_ms: u64) {
        let untold = if self.told { 0 } else { self.untold.saturating_add(1) };
        let pause_ms = AGAIN_SLOW_MS << untold.saturating_sub(1).min(DOUBLED_MAX);
        self.end_turn(now_ms + pause_ms.min(AGAIN_MS));
        self.untold = untold;
    }

    /// What is said of the link over the last one. Beside a job's steps the same link reads otherwise each time, so over two other servers it is taken for
    /// the server's own if both readings are slow, and about as slow or over servers that others reach fast.
    fn taken_for_one_link(&self, is_fast: bool, peers_are_well: bool) -> u64 {
        let (before, best) = (self.before_bytes_per_s, self.best_bytes_per_s);
        let alike = |one: u64, other: u64| one <= other.saturating_mul(TIMES_SCATTERED);
        let is_same = peers_are_well || alike(before, best) && alike(best, before);
        if is_same && self.hurried && !is_fast && best > 0 && before > 0 { before } else { best }
    }

    fn is_in_turn(&self) -> bool {
        !self.over.is_empty()
    }
}

/// What is under way.
#[derive(Debug, Clone)]
struct Asked {
    number: u64,
    server: ServerId,
    until_ms: u64,
}

/// Somebody is to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Whose agent.
    pub server: ServerId,
    /// Of the request.
    pub number: u64,
    /// Of the server over which.
    pub far_end: FarEnd,
}

/// What is known of the servers that measure links.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    servers: BTreeMap<ServerId, Surveyed>,
    asked: Option<Asked>,
    numbers: u64,
    /// When to look for who is due.
    look_ms: u64,
    found: Vec<(ServerId, Report)>,
}

impl Survey {
    /// An agent is there; without a far end it measures nothing.
    pub fn hello(&mut self, server: &ServerId, far_end: Option<FarEnd>) {
        match far_end {
            Some(far_end) if self.servers.get(server).is_none_or(|known| known.far_end != far_end) => {
                self.servers.insert(server.clone(), Surveyed::new(far_end));
            }
            Some(_) => {}
            None => drop(self.servers.remove(server)),
        }
        self.no_answer_comes(server);
        self.look_ms = 0;
    }

    /// Somebody waits for what is to be said of these servers' links: they are measured next, one after the other.
    pub fn hurry(&mut self, now_ms: u64, servers: &BTreeSet<ServerId>) {
        for server in servers {
            if let Some(surveyed) = self.servers.get_mut(server) {
                (surveyed.due_ms, surveyed.hurried, surveyed.well) = (surveyed.due_ms.min(now_ms), true, false);
            }
        }
        self.look_ms = 0;
    }

    /// Whether all was said that these servers' turns tell.
    #[must_use]
    pub fn has_measured(&self, servers: &BTreeSet<ServerId>) -> bool {
        let hurried = |server: &ServerId| self.servers.get(server).is_some_and(|surveyed| surveyed.hurried);
        self.found.is_empty() && !servers.iter().any(hurried)
    }

    /// Whether a server was reached fast over another one since somebody last waited for what is to be said of it.
    #[must_use]
    pub fn is_well(&self, server: &ServerId) -> bool {
        self.servers.get(server).is_some_and(|surveyed| surveyed.well)
    }

    /// Nobody speaks for a server any more, for a moment or for good; in the first case what was measured stays.
    pub fn closed(&mut self, server: &ServerId, is_known: bool) {
        self.no_answer_comes(server);
        if !is_known {
            self.servers.remove(server);
        }
    }

    /// The stream that a server was asked on is no more. Whom it was asked to measure over was not measured over, and is its next again, unless that happened
    /// too often.
    fn no_answer_comes(&mut self, server: &ServerId) {
        let Some(asked) = self.asked.take_if(|asked| asked.server == *server) else { return };
        let Some(surveyed) = self.servers.get_mut(&asked.server) else { return };
        surveyed.lost += 1;
        if surveyed.lost > LOST_MAX {
            surveyed.end_soon(asked.until_ms);
        } else if surveyed.measured + surveyed.in_vain == 0 {
            surveyed.over.pop();
        }
    }

    /// Who is to measure now, if anybody is.
    pub fn next(&mut self, now_ms: u64, at: TimeMs, state: &State) -> Option<Ask> {
        if let Some(asked) = self.asked.take_if(|asked| asked.until_ms <= now_ms) {
            self.found_out(now_ms, &asked.server, None);
        }
        if self.asked.is_some() || self.servers.len() < 2 || now_ms < self.look_ms {
            return None;
        }
        let ask = self.choose(now_ms, at, state);
        self.look_ms = if ask.is_some() { 0 } else { now_ms + LOOK_INTERVAL_MS };
        ask
    }

    fn choose(&mut self, now_ms: u64, at: TimeMs, state: &State) -> Option<Ask> {
        // One that says hello joins a moment later.
        self.servers.retain(|server, surveyed| surveyed.due_ms == 0 || state.server(server).is_some());
        let there = |server: &ServerId| state.server(server).is_some_and(|server| server.connected);
        if self.servers.keys().filter(|server| there(server)).count() < 2 {
            return None;
        }
        self.look_again_before_forgotten(now_ms, at, state);
        let known =
            |server: &ServerId| state.links.get(server).is_some_and(|link| link.is_known_for(at, LINK_AGAIN_BEFORE_MS));
        let is_due = |(server, surveyed): &(&ServerId, &Surveyed)| {
            surveyed.due_ms <= now_ms && there(server) && (surveyed.is_in_turn() || surveyed.hurried || !known(server))
        };
        let order = |surveyed: &Surveyed| (!surveyed.is_in_turn(), !surveyed.hurried, surveyed.due_ms);
        let due = self.servers.iter().filter(is_due).min_by_key(|(_, surveyed)| order(surveyed));
        let server = due.map(|(server, _)| server.clone())?;
        let again = self.servers.get(&server).filter(|surveyed| surveyed.measured + surveyed.in_vain > 0);
        let peer = match again.and_then(|surveyed| surveyed.over.last()).filter(|peer| there(peer)) {
            Some(peer) => Some(peer.clone()),
            None => self.peer(&server, at, state, there),
        };
        let (Some(peer), Some(surveyed)) = (peer, self.servers.get_mut(&server)) else {
            self.servers.get_mut(&server)?.end_soon(now_ms);
            return None;
        };
        if surveyed.over.last() != Some(&peer) {
            (surveyed.measured, surveyed.in_vain, surveyed.best_bytes_per_s) = (0, 0, 0);
            surveyed.over.push(peer.clone());
        }
        self.numbers += 1;
        let number = self.numbers;
        self.asked = Some(Asked { number, server: server.clone(), until_ms: now_ms + ANSWER_MS });
        let peer = self.servers.get_mut(&peer)?;
        peer.served += 1;
        Some(Ask { server, number, far_end: peer.far_end.clone() })
    }

    /// Whose link is known to be slow is due before that is forgotten, whoever found it out and whenever its turn would be.
    fn look_again_before_forgotten(&mut self, now_ms: u64, at: TimeMs, state: &State) {
        for (server, link) in state.links.iter().filter(|(_, link)| link.is_known_for(at, LINK_AGAIN_BEFORE_MS)) {
            // Of one that carries more a burst tells nothing.
            if let Some(surveyed) = self.servers.get_mut(server).filter(|_| link.bytes_per_s < LINK_FAST_BYTES_PER_S) {
                let again_ms = link.until.since_ms(at) - LINK_AGAIN_BEFORE_MS;
                surveyed.due_ms = surveyed.due_ms.min(now_ms + again_ms);
            }
        }
    }

    /// Over whom a server is measured next: first over whom its link is known to be slow, or that would be forgotten; then over those that host members of
    /// jobs, because a loan is a link to them; not over one whose own link is slow while there is another, nor, where somebody waits, may be; each as often as the
    /// others.
    fn peer(
        &self,
        server: &ServerId,
        at: TimeMs,
        state: &State,
        there: impl Fn(&ServerId) -> bool,
    ) -> Option<ServerId> {
        let Surveyed { over, hurried, .. } = self.servers.get(server)?;
        let slow = |server: &ServerId| state.links.get(server).filter(|link| link.is_slow() && at < link.until);
        let slow_from = slow(server).map_or(&[][..], |link| &link.from);
        let members = state.placed_jobs().filter_map(|(_, job)| job.active()).flat_map(|active| active.members.iter());
        let hosting: BTreeSet<&ServerId> =
            state.executors.each(members).flatten().map(|executor| &executor.slot.server).collect();
        let others = self.servers.iter().filter(|(other, _)| *other != server && !over.contains(other) && there(other));
        let order = |other: &ServerId, surveyed: &Surveyed| {
            let may_be = *hurried && !surveyed.well;
            (!slow_from.contains(other), !hosting.contains(other), slow(other).is_some(), may_be, surveyed.served)
        };
        others.min_by_key(|(other, surveyed)| order(other, surveyed)).map(|(other, _)| other.clone())
    }

    /// An agent has measured. What nobody asked it for, or nobody waits for any more, counts for nothing.
    pub fn answered(&mut self, now_ms: u64, server: &ServerId, number: u64, bytes_per_s: Option<u64>) {
        if self.asked.take_if(|asked| asked.number == number && asked.server == *server).is_some() {
            self.found_out(now_ms, server, bytes_per_s);
        }
    }

    fn found_out(&mut self, now_ms: u64, server: &ServerId, bytes_per_s: Option<u64>) {
        let Some(surveyed) = self.servers.get_mut(server) else { return };
        let Some(peer) = surveyed.over.last().cloned() else { return };
        surveyed.best_bytes_per_s = surveyed.best_bytes_per_s.max(bytes_per_s.unwrap_or(0));
        match bytes_per_s {
            Some(_) => surveyed.measured += 1,
            None => surveyed.in_vain += 1,
        }
        let is_fast = surveyed.best_bytes_per_s >= LINK_FAST_BYTES_PER_S;
        let in_vain_max = if surveyed.hurried { TRIED_MAX } else { 1 };
        if !is_fast && surveyed.measured < MEASURED_MAX && surveyed.in_vain < in_vain_max {
            return;
        }
        let over = surveyed.over.clone();
        let peers_are_well = over.iter().all(|peer| self.is_well(peer));
        let Some(surveyed) = self.servers.get_mut(server) else { return };
        surveyed.well |= is_fast;
        let best = surveyed.taken_for_one_link(is_fast, peers_are_well);
        (surveyed.measured, surveyed.in_vain, surveyed.before_bytes_per_s) = (0, 0, best);
        surveyed.told |= best > 0;
        if is_fast {
            surveyed.end_turn(now_ms + AGAIN_MS);
        } else if surveyed.over.len() >= PEERS_MAX {
            surveyed.end_soon(now_ms);
        }
        if let Some(other) = self.servers.get_mut(&peer) {
            other.well |= is_fast;
        }
        if best == 0 {
            return;
        }
        self.found.push((server.clone(), Report::LinkSurveyed { peer: peer.clone(), bytes_per_s: best }));
        // Then so is the other's. One that is due all the same may be so because it is slow over a third.
        if let Some(other) = self.servers.get_mut(&peer).filter(|other| is_fast && !other.is_in_turn()) {
            if other.due_ms == 0 || other.due_ms > now_ms {
                other.end_turn(now_ms + AGAIN_MS);
            }
            self.found.push((peer, Report::LinkSurveyed { peer: server.clone(), bytes_per_s: best }));
        }
    }

    /// What was found out since this was last asked, each with its server.
    pub fn take_found(&mut self) -> Vec<(ServerId, Report)> {
        std::mem::take(&mut self.found)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::limits::LINK_AVOID_MS_MIN;
    use crate::state::Link;
    use events_schema::fact::Fact;
    use events_schema::{Cell, Digest};

    const FAST: u64 = 1_000_000_000;
    const SLOW: u64 = 5_000_000;

    fn server(name: &str) -> ServerId {
        ServerId::parse(name).unwrap()
    }

    /// A cell of these servers, all there, and what links between them carry.
    struct Play {
        state: State,
        survey: Survey,
        now_ms: u64,
        carries: fn(&str, &str) -> Option<u64>,
        /// Who measured over whom.
        asked: Vec<(String, String)>,
    }

    impl Play {
        fn new(servers: &[&str], carries: fn(&str, &str) -> Option<u64>) -> Self {
            let (state, survey) = (State::new(Cell(0)), Survey::default());
            let mut play = Self { state, survey, now_ms: 1_000, carries, asked: Vec::new() };
            servers.iter().for_each(|name| play.joins(name, 1));
            play
        }

        fn at(&self) -> TimeMs {
            TimeMs(self.now_ms)
        }

        fn joins(&mut self, name: &str, incarnation: u64) {
            let (class, address, devices) = (Digest([1; 32]), String::new(), Vec::new());
            let joined = Fact::AgentJoined {
                server: server(name),
                incarnation,
                slots: 1,
                class,
                address,
                devices,
                guests: false,
                slot_type: None,
            };
            self.state.apply(self.at(), &joined);
            let key = (u128::from(incarnation)).to_be_bytes();
            self.survey.hello(&server(name), Some(FarEnd { address: name.to_owned(), key }));
        }

        /// Everything that is due, and what is found; slow links are known for a while then.
        fn run(&mut self) -> Vec<(String, String, u64)> {
            while let Some(ask) = self.survey.next(self.now_ms, self.at(), &self.state) {
                assert_eq!(self.survey.next(self.now_ms, self.at(), &self.state), None, "one at a time");
                self.now_ms += 100;
                let over = ask.far_end.address.clone();
                self.asked.push((ask.server.to_string(), over.clone()));
                let carries = (self.carries)(ask.server.as_str(), &over);
                self.survey.answered(self.now_ms, &ask.server, ask.number, carries);
            }
            let found = self.survey.take_found().into_iter().map(|(server, report)| {
                let Report::LinkSurveyed { peer, bytes_per_s } = report else { unreachable!() };
                let until = TimeMs(self.now_ms).plus_ms(LINK_AVOID_MS_MIN);
                if bytes_per_s < LINK_FAST_BYTES_PER_S {
                    let link = Link { from: vec![peer.clone()], bytes_per_s, until, found: 1 };
                    self.state.links.insert(server.clone(), link);
                }
                (server.to_string(), peer.to_string(), bytes_per_s)
            });
            found.collect()
        }

        fn asked(&mut self) -> Vec<String> {
            std::mem::take(&mut self.asked).into_iter().map(|(of, over)| format!("{of}-{over}")).collect()
        }
    }

    #[test]
    fn a_healthy_cell_is_measured_once_by_every_other_server_and_then_rarely() {
        let mut play = Play::new(&["a", "b", "c", "d"], |_, _| Some(FAST));
        play.run();
        assert_eq!(play.asked(), ["a-b", "c-a", "d-c"], "each as often as the others");
        play.now_ms += AGAIN_MS / 2;
        play.run();
        assert!(play.asked().is_empty());
        play.now_ms += AGAIN_MS;
        play.run();
        assert!(!play.asked().is_empty());
    }

    #[test]
    fn a_slow_link_is_measured_again_and_over_a_second_server_which_tells_whose_it_is() {
        let slow = |of: &str, over: &str| Some(if of == "far" || over == "far" { SLOW } else { FAST });
        let mut play = Play::new(&["a", "b", "far"], slow);
        let found = play.run();
        let of_far: Vec<&str> = found.iter().filter(|(of, ..)| of == "far").map(|(_, over, _)| over.as_str()).collect();
        assert_eq!(of_far.len(), PEERS_MAX, "{found:?}");
        assert!(!found.iter().any(|(of, _, rate)| of != "far" && *rate == SLOW), "the others' are fast: {found:?}");
        // It is known for a while, and looked at again before that is over.
        play.asked();
        play.now_ms += AGAIN_SLOW_MS / 2;
        play.run();
        assert!(play.asked().is_empty());
        play.now_ms += AGAIN_SLOW_MS / 2 + 1_000;
        assert!(play.state.links.get(&server("far")).unwrap().until > play.at());
        play.run();
        assert_eq!(play.asked(), ["far-b", "far-b", "far-a", "far-a"]);
    }

    /// Who is slow over one alone is measured over that one again, though others are reached fast and another's turn said so meanwhile.
    #[test]
    fn a_slow_pair_is_measured_again_before_it_is_forgotten() {
        let slow =
            |of: &str, over: &str| Some(if [(of, over), (over, of)].contains(&("a", "far")) { SLOW } else { FAST });
        let mut play = Play::new(&["a", "b", "far"], slow);
        // A newcomer found it out, after all were found to be well.
        play.carries = |_, _| Some(FAST);
        play.run();
        play.carries = slow;
        let link = |until| Link { from: vec![server("a")], bytes_per_s: SLOW, until, found: 1 };
        let until = play.at().plus_ms(LINK_AVOID_MS_MIN);
        play.state.links.insert(server("far"), link(until));
        play.run();
        play.joins("b", 2);
        play.asked();
        play.run();
        assert_eq!(play.asked(), ["b-a"], "over one whose link is not slow");
        play.now_ms = until.0 - LINK_AGAIN_BEFORE_MS - 1;
        play.run();
        assert!(play.asked().is_empty());
        play.now_ms += 1_000;
        assert_eq!(play.run()[0], ("far".to_owned(), "a".to_owned(), SLOW));
        assert_eq!(play.asked(), ["far-a", "far-a", "far-b"], "over whom it was slow, first");
        // One that is only suspected is not looked at beside the copy that is to tell, and one that is over no more.
        for ms in [LINK_AGAIN_BEFORE_MS - 1, 0] {
            let until = play.at().plus_ms(ms);
            play.state.links.insert(server("far"), link(until));
            play.run();
        }
        assert!(play.asked().is_empty());
    }

    #[test]
    fn who_was_found_to_be_fast_again_is_measured_over_like_any_other() {
        let mut play = Play::new(&["a", "b", "c"], |_, _| Some(FAST));
        for (name, bytes_per_s, found, ms) in [("a", SLOW, 1, 60_000), ("b", FAST, 0, 60_000), ("c", SLOW, 1, 0)] {
            let until = play.at().plus_ms(ms);
            play.state.links.insert(server(name), Link { from: Vec::new(), bytes_per_s, until, found });
        }
        play.joins("d", 1);
        let mut over = Vec::new();
        while let Some(peer) = play.survey.peer(&server("d"), play.at(), &play.state, |_| true) {
            over.push(peer.to_string());
            play.survey.servers.get_mut(&server("d")).unwrap().over.push(peer);
        }
        assert_eq!(over, ["b", "c", "a"]);
    }

    #[test]
    fn whose_stream_opens_anew_is_asked_again_over_the_same() {
        let mut play = Play::new(&["a", "b"], |_, _| Some(FAST));
        let ask = play.survey.next(play.now_ms, play.at(), &play.state).unwrap();
        play.survey.closed(&ask.server, true);
        let again = play.survey.next(play.now_ms, play.at(), &play.state).unwrap();
        assert_eq!((&again.server, &again.far_end), (&ask.server, &ask.far_end));
        play.joins(ask.server.as_str(), 1);
        assert_eq!(play.run().len(), 2, "measured after all");
    }

    #[test]
    fn whose_stream_opens_again_and_again_keeps_nobody_waiting() {
        let mut play = Play::new(&["a", "b", "c"], |_, _| Some(FAST));
        let mut asked = Vec::new();
        for _ in 0..=LOST_MAX {
            let ask = play.survey.next(play.now_ms, play.at(), &play.state).unwrap();
            asked.push(ask.server.to_string());
            play.survey.closed(&ask.server, true);
        }
        assert!(asked.iter().all(|server| *server == asked[0]), "{asked:?}");
        let next = play.survey.next(play.now_ms, play.at(), &play.state).unwrap();
        assert_ne!(next.server.as_str(), asked[0]);
    }

    #[test]
    fn the_best_of_two_counts() {
        let mut play = Play::new(&["a", "b"], |_, _| None);
        for (rate, found) in [(SLOW, 0), (FAST, 2)] {
            let ask = play.survey.next(play.now_ms, play.at(), &play.state).unwrap();
            play.survey.answered(play.now_ms, &ask.server, ask.number, Some(rate));
            assert_eq!(play.survey.take_found().len(), found);
        }
    }

    #[test]
    fn who_cannot_be_reached_or_says_nothing_is_not_asked_for_ever() {
        let mut play = Play::new(&["a", "b", "c"], |_, _| None);
        assert_eq!(play.run(), []);
        assert_eq!(play.asked().len(), 3 * PEERS_MAX, "each over each");
        let mut play = Play::new(&["a", "b"], |_, _| None);
        let ask = play.survey.next(play.now_ms, play.at(), &play.state).unwrap();
        assert_eq!(play.survey.next(play.now_ms + ANSWER_MS - 1, play.at(), &play.state), None);
        assert!(play.survey.next(play.now_ms + ANSWER_MS, play.at(), &play.state).is_none_or(|next| next != ask));
        play.survey.answered(play.now_ms, &ask.server, ask.number, Some(SLOW));
        assert_eq!(play.survey.take_found(), [], "too late");
    }

    #[test]
    fn turns_that_tell_nothing_come_ever_more_rarely() {
        let mut play = Play::new(&["a", "b", "c"], |_, _| None);
        play.run();
        play.asked();
        let (mut pauses_ms, mut last_ms) = (Vec::new(), play.now_ms);
        while pauses_ms.len() < 6 {
            play.now_ms += 5_000;
            play.run();
            if play.asked().iter().any(|ask| ask.starts_with("a-")) {
                pauses_ms.push((play.now_ms - last_ms) / 60_000);
                last_ms = play.now_ms;
            }
        }
        assert_eq!(pauses_ms, [4, 9, 19, 38, 60, 60]);
        // Once one tells something the next comes as soon as ever.
        play.carries = |_, _| Some(SLOW);
        play.now_ms += AGAIN_MS;
        assert!(!play.run().is_empty());
        assert!(play.survey.servers.values().all(|surveyed| surveyed.due_ms <= play.now_ms + AGAIN_SLOW_MS));
    }

    #[test]
    fn those_that_somebody_waits_for_are_measured_next_also_if_they_are_known() {
        let mut play = Play::new(&["a", "b", "c", "d"], |_, _| Some(FAST));
        play.run();
        play.asked();
        let until = play.at().plus_ms(LINK_AVOID_MS_MIN);
        play.state.links.insert(server("c"), Link { from: Vec::new(), bytes_per_s: FAST, until, found: 0 });
        play.joins("d", 2);
        let servers = BTreeSet::from(["b", "c"].map(server));
        play.survey.hurry(play.now_ms, &servers);
        assert!(!play.survey.has_measured(&servers));
        let of = |ask: String| ask.split_once('-').unwrap().0.to_owned();
        play.run();
        let asked: Vec<String> = play.asked().into_iter().map(of).collect();
        assert_eq!(asked, ["b", "c", "d"], "before who has just joined, and rather over each other than over that one");
        assert!(play.survey.has_measured(&servers));
    }

    /// As was read of a link of 40 Mbit/s beside a job whose steps waited for it: nothing at first, then 2.5 MB/s over one server and 0.7 over another.
    #[test]
    fn what_is_read_beside_steps_is_tried_again_and_taken_for_one_link_though_it_scatters() {
        let carries = |of: &str, over: &str| match (of, over) {
            ("c", "a") | ("a", "c") => Some(2_508_710),
            ("c", "b") | ("b", "c") => Some(739_916),
            _ => Some(FAST),
        };
        let mut play = Play::new(&["a", "b", "c"], |_, _| Some(FAST));
        play.run();
        play.asked();
        let servers = BTreeSet::from(["c"].map(server));
        play.survey.hurry(play.now_ms, &servers);
        for _ in 1..TRIED_MAX {
            let ask = play.survey.next(play.now_ms, play.at(), &play.state).unwrap();
            play.survey.answered(play.now_ms, &ask.server, ask.number, None);
            assert!(!play.survey.has_measured(&servers));
        }
        play.carries = carries;
        let of_c: Vec<u64> = play.run().into_iter().filter(|(of, ..)| of == "c").map(|(.., rate)| rate).collect();
        assert!(of_c.len() == PEERS_MAX && of_c[0] == of_c[1], "{of_c:?}");
        assert!(play.survey.has_measured(&servers));
    }

    /// As was read there another time: 3.4 MB/s over one server, 0.2 over another, which others reach fast.
    #[test]
    fn two_slow_readings_over_servers_that_are_well_are_of_one_link_however_they_scatter() {
        let carries = |of: &str, over: &str| match (of, over) {
            ("b", "c") | ("c", "b") => Some(3_364_543),
            ("b", _) | (_, "b") => Some(203_236),
            _ => Some(FAST),
        };
        let mut play = Play::new(&["a", "b", "c", "d"], |_, _| Some(FAST));
        play.run();
        play.asked();
        play.carries = carries;
        play.survey.hurry(play.now_ms, &["a", "b", "c", "d"].map(server).into());
        let found = play.run();
        let of_b: Vec<u64> = found.iter().filter(|(of, ..)| of == "b").map(|(.., rate)| *rate).collect();
        assert!(of_b.len() == PEERS_MAX && of_b[0] == of_b[1], "{found:?}");
        let well = ["a", "b", "c", "d"].map(|name| play.survey.is_well(&server(name)));
        assert_eq!(well, [true, false, true, true]);
        let over_b = play.asked().iter().filter(|ask| ask.ends_with("-b")).count();
        assert!(over_b <= MEASURED_MAX as usize, "one at most is measured over who may be slow");
    }

    #[test]
    fn a_new_process_is_measured_anew_and_one_without_a_far_end_never() {
        let mut play = Play::new(&["a", "b"], |_, _| Some(FAST));
        play.run();
        play.asked();
        play.survey.closed(&server("a"), true);
        play.joins("a", 1);
        play.run();
        assert!(play.asked().is_empty(), "another stream of the same process");
        play.joins("a", 2);
        play.run();
        assert_eq!(play.asked(), ["a-b"]);
        play.joins("b", 2);
        play.survey.hello(&server("b"), None);
        play.run();
        assert!(play.asked().is_empty());
    }
}
