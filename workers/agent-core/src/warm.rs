//! Which processes with PyTorch imported there are, who waits for one, and when one is given back. A pure machine of its own beside the agent's: nothing of
//! it decides about slots, and whoever is refused starts Python without it.
//!
//! A process is begun when an executor first asks for its key, and kept for a while after the last child that was forked from it has ended.
//! Number, memory, waiting requests and time are bounded; one that is late is ended, and those who wait for it are refused.

use events_schema::Digest;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// Processes at the same time. A server has jobs of a few environments at a time; each process is some 300 MB.
pub const WARM_MAX: usize = 4;
/// Memory of all of them together, less what they share. What frameworks import by themselves is below 1 GB.
pub const WARM_BYTES_MAX: u64 = 4 << 30;
/// How long one without children is kept: a tide that turns within this finds it.
pub const WARM_IDLE_MS: u64 = 600_000;
/// Longest import, on a machine that is busy with others. Executors wait for it, because their own would take as long.
pub const WARM_IMPORT_TIMEOUT_MS: u64 = 60_000;
/// Longest fork: tens of milliseconds, unless the process hangs.
pub const WARM_FORK_TIMEOUT_MS: u64 = 10_000;
/// How long nobody waits for a key whose process could not be made ready.
pub const WARM_AGAIN_AFTER_MS: u64 = 60_000;
/// Requests that wait at the same time; a server has fewer slots than this that start at once.
pub const WARM_WAITING_MAX: usize = 256;
/// Keys that are remembered as unfit.
const UNFIT_MAX: usize = 64;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WarmIn {
    /// An executor wants a child of a process with this key.
    Asked {
        /// Name of the request, not used before.
        request: u64,
        /// Of which process.
        key: Digest,
    },
    /// A process has imported what it is to import.
    Ready {
        /// The process's number.
        process: u64,
        /// Memory that is its own.
        bytes: u64,
    },
    /// A process has forked the child of the oldest request that it was given.
    Forked {
        /// The process's number.
        process: u64,
    },
    /// A child of a process has ended.
    ChildEnded {
        /// The process's number.
        process: u64,
    },
    /// A process is reaped, or could not be started.
    Ended {
        /// The process's number.
        process: u64,
    },
    /// The time that was asked for is there, or another.
    Wake,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WarmOut {
    /// Start a process for the key of this request, which waits for it. Ends in [`WarmIn::Ended`].
    Start {
        /// The process's number.
        process: u64,
        /// Whose key it is for.
        request: u64,
    },
    /// Pass a request on to a process; from then on nobody holds it here.
    Fork {
        /// The process's number.
        process: u64,
        /// The request's number.
        request: u64,
    },
    /// Tell who made a request that it has to start Python itself.
    Refuse {
        /// The request's number.
        request: u64,
        /// What keeps it from a fork.
        why: Cold,
    },
    /// End a process, with what it has started and not given away. What it has forked for executors is in their groups, and lives on.
    End {
        /// The process's number.
        process: u64,
        /// Why it is of no more use.
        why: GivenUp,
    },
}

/// Why an executor has to start Python itself. Displayed as a sentence without a full stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cold {
    /// There was a try a short while ago.
    Unfit,
    /// As many processes as there may be have work.
    Busy,
    /// The process ended, or took too long.
    Lost,
}

impl fmt::Display for Cold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unfit => {
                "a process that was to have PyTorch imported failed a short while ago; its agent's log says why"
            }
            Self::Busy => {
                "the server has as many processes with PyTorch imported as it may, all of them with other work"
            }
            Self::Lost => "the process that was to have PyTorch imported ended, or took too long",
        })
    }
}

/// Why a process is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GivenUp {
    /// Nobody has asked for a while.
    Idle,
    /// Another key is asked for, or there is too little memory.
    Room,
    /// It did not answer in time.
    Late,
}

impl fmt::Display for GivenUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "nobody has asked for a while",
            Self::Room => "its memory or its place is needed",
            Self::Late => "it does not answer",
        })
    }
}

/// The processes of one agent.
#[derive(Debug, Clone, Default)]
pub struct WarmPool {
    processes: BTreeMap<u64, Process>,
    unfit: BTreeMap<Digest, u64>,
    named: u64,
}

#[derive(Debug, Clone)]
struct Process {
    key: Digest,
    state: State,
    bytes: u64,
    used_at: u64,
}

#[derive(Debug, Clone)]
enum State {
    /// It imports until then at most; these requests wait.
    Importing { until: u64, waiting: VecDeque<u64> },
    /// It forks; when each fork that it was told of has to be done, and how many children live.
    Ready { forking: VecDeque<u64>, children: usize },
    /// It was told to end, or killed.
    Ending,
}

impl Process {
    fn is_idle(&self) -> bool {
        matches!(&self.state, State::Ready { forking, children: 0 } if forking.is_empty())
    }

    fn waiting(&self) -> usize {
        match &self.state {
            State::Importing { waiting, .. } => waiting.len(),
            State::Ready { forking, .. } => forking.len(),
            State::Ending => 0,
        }
    }

    /// When something has to be done about it.
    fn due(&self) -> Option<u64> {
        match &self.state {
            State::Importing { until, .. } => Some(*until),
            State::Ready { forking, .. } if !forking.is_empty() => forking.front().copied(),
            State::Ready { .. } if self.is_idle() => Some(self.used_at.saturating_add(WARM_IDLE_MS)),
            State::Ready { .. } | State::Ending => None,
        }
    }
}

impl WarmPool {
    /// Takes what happened at a time on a clock that only goes forward; what is to be done about it, in order.
    pub fn handle(&mut self, now: u64, input: WarmIn) -> Vec<WarmOut> {
        let mut outs = Vec::new();
        match input {
            WarmIn::Asked { request, key } => self.asked(now, request, key, &mut outs),
            WarmIn::Ready { process, bytes } => self.ready(now, process, bytes, &mut outs),
            WarmIn::Forked { process } => {
                if let Some(State::Ready { forking, children }) = self.state(process) {
                    *children += usize::from(forking.pop_front().is_some());
                }
                self.used(now, process);
            }
            WarmIn::ChildEnded { process } => {
                if let Some(State::Ready { children, .. }) = self.state(process) {
                    *children = children.saturating_sub(1);
                }
                self.used(now, process);
            }
            WarmIn::Ended { process } => self.ended(now, process, &mut outs),
            WarmIn::Wake => {}
        }
        self.end_what_is_due(now, &mut outs);
        while self.processes.values().map(|of| of.bytes).sum::<u64>() > WARM_BYTES_MAX && self.make_room(&mut outs) {}
        outs
    }

    /// When it has to be woken.
    #[must_use]
    pub fn alarm(&self) -> Option<u64> {
        self.processes.values().filter_map(Process::due).min()
    }

    fn state(&mut self, process: u64) -> Option<&mut State> {
        self.processes.get_mut(&process).map(|of| &mut of.state)
    }

    fn used(&mut self, now: u64, process: u64) {
        if let Some(of) = self.processes.get_mut(&process) {
            of.used_at = now;
        }
    }

    fn asked(&mut self, now: u64, request: u64, key: Digest, outs: &mut Vec<WarmOut>) {
        self.unfit.retain(|_, until| *until > now);
        if self.unfit.contains_key(&key) {
            return outs.push(WarmOut::Refuse { request, why: Cold::Unfit });
        }
        if self.processes.values().map(Process::waiting).sum::<usize>() >= WARM_WAITING_MAX {
            return outs.push(WarmOut::Refuse { request, why: Cold::Busy });
        }
        let alive = |of: &Process| !matches!(of.state, State::Ending);
        if let Some((name, of)) = self.processes.iter_mut().find(|(_, of)| of.key == key && alive(of)) {
            of.used_at = now;
            match &mut of.state {
                State::Importing { waiting, .. } => waiting.push_back(request),
                State::Ready { forking, .. } => {
                    forking.push_back(now.saturating_add(WARM_FORK_TIMEOUT_MS));
                    outs.push(WarmOut::Fork { process: *name, request });
                }
                State::Ending => {}
            }
            return;
        }
        if self.processes.values().filter(|of| alive(of)).count() >= WARM_MAX && !self.make_room(outs) {
            return outs.push(WarmOut::Refuse { request, why: Cold::Busy });
        }
        self.named += 1;
        let state = State::Importing { until: now.saturating_add(WARM_IMPORT_TIMEOUT_MS), waiting: [request].into() };
        self.processes.insert(self.named, Process { key, state, bytes: 0, used_at: now });
        outs.push(WarmOut::Start { process: self.named, request });
    }

    fn ready(&mut self, now: u64, process: u64, bytes: u64, outs: &mut Vec<WarmOut>) {
        let Some(of) = self.processes.get_mut(&process) else { return };
        let State::Importing { waiting, .. } = &mut of.state else { return };
        let requests = std::mem::take(waiting);
        let until = now.saturating_add(WARM_FORK_TIMEOUT_MS);
        of.state = State::Ready { forking: requests.iter().map(|_| until).collect(), children: 0 };
        (of.bytes, of.used_at) = (bytes, now);
        outs.extend(requests.into_iter().map(|request| WarmOut::Fork { process, request }));
    }

    /// Ends the one without work that was not used for longest, if there is one.
    fn make_room(&mut self, outs: &mut Vec<WarmOut>) -> bool {
        let idle = self.processes.iter().filter(|(_, of)| of.is_idle());
        let Some(name) = idle.min_by_key(|(_, of)| of.used_at).map(|(name, _)| *name) else { return false };
        self.end(name, GivenUp::Room, outs);
        true
    }

    fn end(&mut self, process: u64, why: GivenUp, outs: &mut Vec<WarmOut>) {
        let Some(of) = self.processes.get_mut(&process) else { return };
        let before = std::mem::replace(&mut of.state, State::Ending);
        of.bytes = 0;
        if let State::Importing { waiting, .. } = before {
            outs.extend(waiting.into_iter().map(|request| WarmOut::Refuse { request, why: Cold::Lost }));
        }
        // Those that it was to fork learn of it from the connection, which ends with it.
        outs.push(WarmOut::End { process, why });
    }

    fn ended(&mut self, now: u64, process: u64, outs: &mut Vec<WarmOut>) {
        let Some(of) = self.processes.remove(&process) else { return };
        if let State::Importing { waiting, .. } = of.state {
            self.is_unfit(now, of.key);
            outs.extend(waiting.into_iter().map(|request| WarmOut::Refuse { request, why: Cold::Lost }));
        }
    }

    fn is_unfit(&mut self, now: u64, key: Digest) {
        if self.unfit.len() >= UNFIT_MAX {
            self.unfit.pop_first();
        }
        self.unfit.insert(key, now.saturating_add(WARM_AGAIN_AFTER_MS));
    }

    fn end_what_is_due(&mut self, now: u64, outs: &mut Vec<WarmOut>) {
        let due = self.processes.iter().filter(|(_, of)| of.due().is_some_and(|at| at <= now));
        let due: Vec<(u64, Digest, bool)> = due.map(|(name, of)| (*name, of.key, of.is_idle())).collect();
        for (name, key, idle) in due {
            if !idle {
                self.is_unfit(now, key);
            }
            self.end(name, if idle { GivenUp::Idle } else { GivenUp::Late }, outs);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MEGABYTE: u64 = 1 << 20;

    fn key(number: u8) -> Digest {
        Digest::of(&[number])
    }

    fn asked(request: u64, of: u8) -> WarmIn {
        WarmIn::Asked { request, key: key(of) }
    }

    /// A pool with these processes ready and idle since 0, each of its own key.
    fn pool(processes: u8) -> WarmPool {
        let mut pool = WarmPool::default();
        for number in 0..processes {
            let request = 100 + u64::from(number);
            let process = request - 99;
            assert_eq!(pool.handle(0, asked(request, number)), [WarmOut::Start { process, request }]);
            assert_eq!(
                pool.handle(0, WarmIn::Ready { process, bytes: 300 * MEGABYTE }),
                [WarmOut::Fork { process, request }]
            );
            pool.handle(0, WarmIn::Forked { process });
            pool.handle(0, WarmIn::ChildEnded { process });
        }
        pool
    }

    #[test]
    fn the_first_starts_a_process_and_the_others_wait_for_the_same() {
        let mut pool = WarmPool::default();
        assert_eq!(pool.handle(0, asked(1, 7)), [WarmOut::Start { process: 1, request: 1 }]);
        assert_eq!(pool.handle(10, asked(2, 7)), []);
        let forks = [WarmOut::Fork { process: 1, request: 1 }, WarmOut::Fork { process: 1, request: 2 }];
        assert_eq!(pool.handle(20, WarmIn::Ready { process: 1, bytes: MEGABYTE }), forks);
        assert_eq!(pool.handle(30, asked(3, 7)), [WarmOut::Fork { process: 1, request: 3 }]);
    }

    #[test]
    fn one_that_is_late_is_ended_and_nobody_waits_for_its_key_for_a_while() {
        let mut pool = WarmPool::default();
        pool.handle(0, asked(1, 7));
        assert_eq!(pool.alarm(), Some(WARM_IMPORT_TIMEOUT_MS));
        let refused = WarmOut::Refuse { request: 1, why: Cold::Lost };
        let end = WarmOut::End { process: 1, why: GivenUp::Late };
        assert_eq!(pool.handle(WARM_IMPORT_TIMEOUT_MS, WarmIn::Wake), [refused, end]);
        assert_eq!(
            pool.handle(WARM_IMPORT_TIMEOUT_MS + 1, asked(2, 7)),
            [WarmOut::Refuse { request: 2, why: Cold::Unfit }]
        );
        pool.handle(WARM_IMPORT_TIMEOUT_MS + 2, WarmIn::Ended { process: 1 });
        let later = WARM_IMPORT_TIMEOUT_MS + WARM_AGAIN_AFTER_MS;
        assert_eq!(pool.handle(later, asked(3, 7)), [WarmOut::Start { process: 2, request: 3 }]);
    }

    #[test]
    fn one_that_hangs_at_a_fork_is_ended() {
        let mut pool = pool(1);
        pool.handle(50, asked(1, 0));
        pool.handle(60, asked(2, 0));
        pool.handle(70, WarmIn::Forked { process: 1 });
        assert_eq!(pool.alarm(), Some(60 + WARM_FORK_TIMEOUT_MS), "the second fork is not done");
        let end = [WarmOut::End { process: 1, why: GivenUp::Late }];
        assert_eq!(pool.handle(60 + WARM_FORK_TIMEOUT_MS, WarmIn::Wake), end);
        assert_eq!(pool.alarm(), None, "once is enough");
    }

    #[test]
    fn one_that_dies_while_it_imports_refuses_those_who_wait() {
        let mut pool = WarmPool::default();
        pool.handle(0, asked(1, 7));
        assert_eq!(pool.handle(5, WarmIn::Ended { process: 1 }), [WarmOut::Refuse { request: 1, why: Cold::Lost }]);
        assert_eq!(pool.handle(6, asked(2, 7)), [WarmOut::Refuse { request: 2, why: Cold::Unfit }]);
    }

    #[test]
    fn one_that_is_killed_later_is_begun_anew_at_once() {
        let mut pool = pool(1);
        assert_eq!(pool.handle(5, WarmIn::Ended { process: 1 }), []);
        assert_eq!(pool.handle(6, asked(1, 0)), [WarmOut::Start { process: 2, request: 1 }]);
    }

    #[test]
    fn idle_ones_are_given_back_and_those_with_children_are_not() {
        let mut pool = pool(2);
        pool.handle(0, asked(1, 1));
        pool.handle(0, WarmIn::Forked { process: 2 });
        let end = [WarmOut::End { process: 1, why: GivenUp::Idle }];
        assert_eq!(pool.handle(WARM_IDLE_MS, WarmIn::Wake), end);
        assert_eq!(pool.alarm(), None);
        pool.handle(WARM_IDLE_MS + 5, WarmIn::ChildEnded { process: 2 });
        assert_eq!(pool.alarm(), Some(2 * WARM_IDLE_MS + 5));
    }

    #[test]
    fn another_key_takes_the_place_of_the_one_that_was_used_least_lately() {
        let mut full = pool(WARM_MAX as u8);
        full.handle(9, asked(1, 0));
        full.handle(9, WarmIn::Forked { process: 1 });
        let outs = full.handle(10, asked(2, 99));
        assert_eq!(outs, [WarmOut::End { process: 2, why: GivenUp::Room }, WarmOut::Start { process: 5, request: 2 }]);
        let mut all_at_work = pool(WARM_MAX as u8);
        for number in 0..WARM_MAX as u8 {
            all_at_work.handle(9, asked(u64::from(number), number));
        }
        assert_eq!(all_at_work.handle(10, asked(9, 99)), [WarmOut::Refuse { request: 9, why: Cold::Busy }]);
    }

    #[test]
    fn memory_is_bounded_by_giving_back_what_is_idle() {
        let mut pool = pool(2);
        pool.handle(1, asked(1, 50));
        let outs = pool.handle(2, WarmIn::Ready { process: 3, bytes: WARM_BYTES_MAX - 400 * MEGABYTE });
        assert_eq!(outs, [WarmOut::Fork { process: 3, request: 1 }, WarmOut::End { process: 1, why: GivenUp::Room }]);
    }
}
