//! What a member of a gang does next. Pure: it is told what happened and when, and says what is to be done; `mod.rs` does it.
//!
//! A member lives for one membership. It starts its program when it is told the members, and stops it when the gang is to stand still (`park`) or its own
//! slot goes (`Leave`). The leader, whose program is rank 0, then saves the checkpoint folder; the controller lets everybody go once it has
//! heard of that, and starts new executors where the gang goes on.

use events_schema::control::STOPPED_STATUS;
use events_schema::fact::Proposal;
use std::collections::BTreeSet;
use std::time::Duration;

/// How long a program that failed beside others is not yet blamed. Where a member's server or slot goes, the others' programs fail of that, often before
/// anybody has said so: longer than a controller takes to give up a server that is silent.
const SETTLE: Duration = Duration::from_secs(6);
/// Status of an executor whose program failed.
const FAILED_STATUS: i32 = 1;

/// What does not change.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// This executor's number within its job.
    pub me: u32,
    /// From SIGTERM to the kill.
    pub grace: Duration,
    /// How often the leader looks at the checkpoint folder.
    pub save_every: Duration,
}

/// The newest word of the controller.
#[derive(Debug, Clone, Default)]
pub struct Told {
    /// The newest membership.
    pub proposal: Option<Proposal>,
    /// The gang is to stand still.
    pub park: bool,
    /// Other members whose program has ended well.
    pub ended_well: BTreeSet<u32>,
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// With status 0.
    Well,
    /// Otherwise: how, and what it said last.
    Badly(String),
}

/// Why the folder is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// While the program runs; left out if it is being written to.
    Meanwhile,
    /// The program was stopped.
    Stopped,
    /// The program failed.
    Failed,
    /// The gang's programs have all ended well: this is what comes of the job.
    Last,
}

/// What happened.
#[derive(Debug, Clone)]
pub enum In {
    /// A newer order.
    Told(Told),
    /// The slot goes, after so long.
    Leave(Duration),
    /// The folder is what the membership begins with.
    Restored,
    /// The program ended.
    Ended(End),
    /// The folder is in the store, or need not be.
    Saved(Purpose),
    /// It cannot be saved, for this reason.
    NotSaved(Purpose, String),
    /// Time passed.
    Wake,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Out {
    /// Restore the folder that this membership begins with. Another one that was asked for before is not wanted any more.
    Restore(Box<Proposal>),
    /// Start the program in this membership.
    Begin(Box<Proposal>),
    /// Ask the program to end, with SIGTERM.
    Terminate,
    /// End it, with SIGKILL.
    Kill,
    /// Save the folder.
    Save(Purpose),
    /// End this process.
    Exit {
        /// With this status.
        status: i32,
        /// And this word about it.
        why: Option<String>,
    },
}

#[derive(Debug, Clone)]
enum State {
    /// For its first membership.
    Waiting,
    /// For the store, however long that takes; nothing of its program runs.
    Restoring,
    Running {
        save_at: Duration,
        saving: bool,
    },
    /// Told to end.
    Stopping {
        kill_at: Duration,
        killed: bool,
    },
    /// The program failed; others may be the cause.
    Failing {
        until: Duration,
        why: String,
    },
    /// The program ended well; the leader waits for the others.
    EndedWell,
    /// The program has ended, and what it left is written.
    Saving(Purpose),
    /// Only the controller says what comes next.
    Still,
}

/// One member.
#[derive(Debug)]
pub struct Machine {
    config: Config,
    state: State,
    told: Told,
    /// The membership it runs its program in.
    membership: Option<Proposal>,
    /// Its slot is not its own any more then.
    leave_by: Option<Duration>,
    /// Why it fails, once that is certain.
    why: String,
}

impl Machine {
    /// A member that is ready.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            state: State::Waiting,
            told: Told::default(),
            membership: None,
            leave_by: None,
            why: String::new(),
        }
    }

    /// Takes what happened at this time; gives what is to be done about it, in order.
    pub fn handle(&mut self, now: Duration, input: In) -> Vec<Out> {
        let mut outs = Vec::new();
        match input {
            In::Told(told) => self.told = told,
            In::Leave(within) => {
                let by = now + within;
                self.leave_by = Some(self.leave_by.map_or(by, |known| known.min(by)));
            }
            In::Restored => self.restored(now, &mut outs),
            In::Ended(end) => self.ended(now, end, &mut outs),
            In::Saved(purpose) => self.saved(purpose, None, &mut outs),
            In::NotSaved(purpose, why) => self.saved(purpose, Some(why), &mut outs),
            In::Wake => {}
        }
        self.act(now, &mut outs);
        outs
    }

    /// When it wants to be woken at the latest.
    #[must_use]
    pub fn wake_at(&self) -> Option<Duration> {
        match &self.state {
            State::Running { save_at, saving: false } if self.leads() => Some(*save_at),
            State::Stopping { kill_at, killed: false } => Some(*kill_at),
            State::Failing { until, .. } => Some(*until),
            _ => None,
        }
    }

    /// Whether its program is rank 0.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.membership.as_ref().is_some_and(|membership| membership.leader.number == self.config.me)
    }

    /// Whether the program runs.
    #[must_use]
    pub fn runs(&self) -> bool {
        matches!(self.state, State::Running { .. } | State::Stopping { .. })
    }

    /// Whether what the program begins with is being read.
    #[must_use]
    pub fn restores(&self) -> bool {
        matches!(self.state, State::Restoring)
    }

    /// Whether what the program left is being written.
    #[must_use]
    pub fn saves(&self) -> bool {
        matches!(self.state, State::Saving(_))
    }

    fn must_stop(&self) -> bool {
        self.told.park || self.leave_by.is_some()
    }

    fn others(&self) -> impl Iterator<Item = u32> + '_ {
        let members = self.membership.iter().flat_map(|membership| &membership.members);
        members.map(|member| member.executor.number).filter(|number| *number != self.config.me)
    }

    /// A membership of this executor that is newer than the one it knows.
    fn newer(&self) -> Option<&Proposal> {
        let known = self.membership.as_ref().map(|membership| membership.generation);
        let newer = self.told.proposal.as_ref().filter(|proposal| Some(proposal.generation) > known)?;
        newer.members.iter().any(|member| member.executor.number == self.config.me).then_some(newer)
    }

    fn begin(&mut self, proposal: Proposal, outs: &mut Vec<Out>) {
        self.state = State::Restoring;
        self.membership = Some(proposal.clone());
        outs.push(Out::Restore(Box::new(proposal)));
    }

    fn restored(&mut self, now: Duration, outs: &mut Vec<Out>) {
        let State::Restoring = self.state else { return };
        match self.membership.clone() {
            // Others may run already: the leader says with its folder where the gang stands.
            _ if self.must_stop() => self.stopped(outs),
            Some(membership) => {
                self.state = State::Running { save_at: now + self.config.save_every, saving: false };
                outs.push(Out::Begin(Box::new(membership)));
            }
            None => {}
        }
    }

    fn ended(&mut self, now: Duration, end: End, outs: &mut Vec<Out>) {
        match (&self.state, end) {
            (State::Running { .. }, End::Well) => self.state = State::EndedWell,
            (State::Running { .. }, End::Badly(why)) => {
                // Alone it can only have failed by itself.
                let until = if self.others().next().is_some() { now + SETTLE } else { now };
                self.state = State::Failing { until, why };
            }
            // However it ended, it was asked to: that is no failure.
            (State::Stopping { .. }, _) => self.stopped(outs),
            _ => {}
        }
    }

    /// The program does not run any more because it was not to.
    fn stopped(&mut self, outs: &mut Vec<Out>) {
        if self.newer().is_some() {
            // Its start was given up, and there is another.
            self.state = State::Waiting;
        } else if self.leads() {
            self.save(Purpose::Stopped, outs);
        } else {
            self.state = State::Still;
        }
    }

    fn save(&mut self, purpose: Purpose, outs: &mut Vec<Out>) {
        self.state = State::Saving(purpose);
        outs.push(Out::Save(purpose));
    }

    fn saved(&mut self, purpose: Purpose, failure: Option<String>, outs: &mut Vec<Out>) {
        match (&mut self.state, purpose, failure) {
            // The next one may do better.
            (State::Running { saving, .. }, Purpose::Meanwhile, _) => *saving = false,
            (State::Saving(Purpose::Failed), Purpose::Failed, _) => {
                outs.push(Out::Exit { status: FAILED_STATUS, why: Some(self.why.clone()) });
            }
            (State::Saving(wanted), purpose, Some(why)) if *wanted == purpose => {
                outs.push(Out::Exit { status: FAILED_STATUS, why: Some(why) });
            }
            (State::Saving(wanted), purpose, None) if *wanted == purpose => self.state = State::Still,
            _ => {}
        }
    }

    /// What is due, whatever led to it.
    fn act(&mut self, now: Duration, outs: &mut Vec<Out>) {
        let (stop, leads) = (self.must_stop(), self.leads());
        match self.state.clone() {
            State::Waiting | State::Restoring if self.leave_by.is_some() => {
                outs.push(Out::Exit { status: STOPPED_STATUS, why: None });
            }
            State::Waiting | State::Restoring => {
                if let Some(proposal) = self.newer().cloned() {
                    self.begin(proposal, outs);
                }
            }
            State::Running { .. } if self.newer().is_some() => {
                self.state = State::Stopping { kill_at: now, killed: true };
                outs.push(Out::Kill);
            }
            State::Running { .. } if stop => {
                self.state = State::Stopping { kill_at: self.kill_at(now), killed: false };
                outs.push(Out::Terminate);
            }
            State::Running { save_at, saving: false } if leads && now >= save_at => {
                self.state = State::Running { save_at: now + self.config.save_every, saving: true };
                outs.push(Out::Save(Purpose::Meanwhile));
            }
            State::Stopping { kill_at, killed: false } => {
                let kill_at = kill_at.min(self.kill_at(now));
                self.state = State::Stopping { kill_at, killed: now >= kill_at };
                if now >= kill_at {
                    outs.push(Out::Kill);
                }
            }
            State::Failing { .. } if stop => self.stopped(outs),
            State::Failing { until, why } if now >= until => {
                self.why = why.clone();
                if leads {
                    self.save(Purpose::Failed, outs);
                } else {
                    outs.push(Out::Exit { status: FAILED_STATUS, why: Some(why) });
                }
            }
            State::EndedWell if !leads => outs.push(Out::Exit { status: 0, why: None }),
            State::EndedWell if self.others().all(|number| self.told.ended_well.contains(&number)) => {
                self.save(Purpose::Last, outs);
            }
            State::EndedWell if stop => self.stopped(outs),
            // Where the gang is to go on after all, it goes on without this one, whose program has ended; the leader has said so with its folder.
            State::Still if self.leave_by.is_some() || !stop && !leads => {
                outs.push(Out::Exit { status: STOPPED_STATUS, why: None });
            }
            State::Running { .. }
            | State::Stopping { .. }
            | State::Failing { .. }
            | State::EndedWell
            | State::Saving(_)
            | State::Still => {}
        }
        // A start that was given up may be followed by another at once.
        if matches!(self.state, State::Waiting) && self.newer().is_some() && self.leave_by.is_none() {
            self.act(now, outs);
        }
    }

    /// The end of the grace from now on: half of what a slot's deadline leaves is for what is done afterwards.
    fn kill_at(&self, now: Duration) -> Duration {
        let left = self.leave_by.map(|by| by.saturating_sub(now) / 2);
        now + left.map_or(self.config.grace, |left| left.min(self.config.grace))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::fact::{Entry, Member};
    use events_schema::stride::Stride;
    use events_schema::{ExecutorId, Generation, JobId, TimeMs};

    const GRACE: Duration = Duration::from_secs(30);
    const EVERY: Duration = Duration::from_secs(60);

    fn proposal(generation: u64, members: u32) -> Proposal {
        let executor = |number| ExecutorId { job: JobId::parse("job-a").unwrap(), number };
        let member = |number| Member { executor: executor(number), address: String::new(), ranks: Vec::new() };
        Proposal {
            generation: Generation(generation),
            entry: Entry::Fresh,
            members: (0..members).map(member).collect(),
            leader: executor(0),
            deadline: TimeMs(0),
            stride: Stride::ONE,
        }
    }

    fn told(proposal: Proposal, park: bool, ended_well: &[u32]) -> In {
        In::Told(Told { proposal: Some(proposal), park, ended_well: ended_well.iter().copied().collect() })
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn restore(generation: u64, members: u32) -> Vec<Out> {
        vec![Out::Restore(Box::new(proposal(generation, members)))]
    }

    fn begin(generation: u64, members: u32) -> Vec<Out> {
        vec![Out::Begin(Box::new(proposal(generation, members)))]
    }

    fn exit(status: i32) -> Vec<Out> {
        vec![Out::Exit { status, why: None }]
    }

    /// Executor `me` of two, whose program runs since second 0.
    fn running(me: u32, members: u32) -> Machine {
        let mut machine = Machine::new(Config { me, grace: GRACE, save_every: EVERY });
        let outs = machine.handle(at(0), told(proposal(1, members), false, &[]));
        assert_eq!(outs, restore(1, members));
        assert_eq!(machine.handle(at(0), In::Restored), begin(1, members));
        machine
    }

    fn badly() -> In {
        In::Ended(End::Badly("exited with status 1".to_owned()))
    }

    #[test]
    fn a_parked_gang_stops_saves_once_and_stands_still() {
        let mut leader = running(0, 2);
        assert_eq!(leader.handle(at(1), told(proposal(1, 2), true, &[])), [Out::Terminate]);
        assert_eq!(leader.wake_at(), Some(at(31)));
        assert_eq!(leader.handle(at(2), badly()), [Out::Save(Purpose::Stopped)], "asked to end, it did not fail");
        assert_eq!(leader.handle(at(3), In::Saved(Purpose::Stopped)), []);
        let mut other = running(1, 2);
        assert_eq!(other.handle(at(1), told(proposal(1, 2), true, &[])), [Out::Terminate]);
        assert_eq!(other.handle(at(2), In::Ended(End::Well)), [], "the leader saves");
        assert_eq!((other.wake_at(), other.runs()), (None, false));
    }

    #[test]
    fn a_deaf_program_is_killed_at_the_end_of_its_grace_or_half_of_what_is_left() {
        let mut leader = running(0, 1);
        leader.handle(at(1), told(proposal(1, 1), true, &[]));
        assert_eq!(leader.handle(at(30), In::Wake), []);
        assert_eq!(leader.handle(at(31), In::Wake), [Out::Kill]);
        assert_eq!(leader.handle(at(32), In::Wake), [], "once");
        let mut leaver = running(1, 2);
        assert_eq!(leaver.handle(at(1), In::Leave(at(4))), [Out::Terminate]);
        assert_eq!(leaver.wake_at(), Some(at(3)));
        assert_eq!(leaver.handle(at(3), In::Wake), [Out::Kill]);
        assert_eq!(leaver.handle(at(3), badly()), exit(STOPPED_STATUS));
        let mut parked = running(0, 2);
        parked.handle(at(1), told(proposal(1, 2), true, &[]));
        assert_eq!(parked.handle(at(2), In::Leave(at(10))), []);
        assert_eq!(parked.wake_at(), Some(at(7)), "a deadline that comes later on shortens the grace");
        parked.handle(at(7), badly());
        assert_eq!(
            parked.handle(at(8), In::Saved(Purpose::Stopped)),
            exit(STOPPED_STATUS),
            "it saves before it leaves"
        );
    }

    #[test]
    fn whose_program_ends_well_leaves_and_the_leader_waits_for_all() {
        let mut other = running(1, 3);
        assert_eq!(other.handle(at(1), In::Ended(End::Well)), exit(0));
        let mut leader = running(0, 3);
        assert_eq!(leader.handle(at(1), In::Ended(End::Well)), []);
        assert_eq!(leader.handle(at(2), told(proposal(1, 3), false, &[2])), []);
        assert_eq!(leader.handle(at(3), told(proposal(1, 3), false, &[1, 2])), [Out::Save(Purpose::Last)]);
        assert_eq!(leader.handle(at(4), In::Saved(Purpose::Last)), []);
        let mut late = running(0, 2);
        late.handle(at(1), In::Ended(End::Well));
        // The other one goes instead of ending well: all begin anew, from what there is.
        assert_eq!(late.handle(at(2), told(proposal(1, 2), true, &[])), [Out::Save(Purpose::Stopped)]);
        assert_eq!(running(0, 1).handle(at(1), In::Ended(End::Well)), [Out::Save(Purpose::Last)]);
    }

    #[test]
    fn a_failure_is_the_programs_once_nobody_else_can_be_its_cause() {
        let failed = || vec![Out::Exit { status: FAILED_STATUS, why: Some("exited with status 1".to_owned()) }];
        let mut other = running(1, 2);
        assert_eq!(other.handle(at(1), badly()), []);
        assert_eq!(other.wake_at(), Some(at(1) + SETTLE));
        assert_eq!(other.handle(at(1) + SETTLE, In::Wake), failed());
        let mut excused = running(1, 2);
        excused.handle(at(1), badly());
        assert_eq!(
            excused.handle(at(2), told(proposal(1, 2), true, &[])),
            [],
            "the gang stands still: another one went"
        );
        assert_eq!(excused.handle(at(60), In::Wake), []);
        let mut leader = running(0, 1);
        assert_eq!(leader.handle(at(1), badly()), [Out::Save(Purpose::Failed)], "alone it is the cause");
        assert_eq!(leader.handle(at(2), In::NotSaved(Purpose::Failed, "no disk".to_owned())), failed());
    }

    #[test]
    fn the_folder_is_saved_meanwhile_one_after_the_other_by_the_leader_alone() {
        let mut leader = running(0, 2);
        assert_eq!(leader.wake_at(), Some(EVERY));
        assert_eq!(leader.handle(EVERY, In::Wake), [Out::Save(Purpose::Meanwhile)]);
        assert_eq!((leader.wake_at(), leader.handle(3 * EVERY, In::Wake)), (None, Vec::new()));
        assert_eq!(leader.handle(3 * EVERY, In::Saved(Purpose::Meanwhile)), [Out::Save(Purpose::Meanwhile)]);
        assert_eq!(leader.handle(4 * EVERY, told(proposal(1, 2), true, &[])), [Out::Terminate]);
        assert_eq!(leader.handle(4 * EVERY, In::Saved(Purpose::Meanwhile)), []);
        assert_eq!(leader.handle(4 * EVERY, In::Ended(End::Well)), [Out::Save(Purpose::Stopped)]);
        let cannot = leader.handle(5 * EVERY, In::NotSaved(Purpose::Stopped, "no disk".to_owned()));
        assert_eq!(cannot, [Out::Exit { status: FAILED_STATUS, why: Some("no disk".to_owned()) }]);
        assert_eq!(running(1, 2).wake_at(), None);
    }

    #[test]
    fn who_is_to_stand_still_before_its_program_runs_does_not_start_it() {
        let mut other = Machine::new(Config { me: 1, grace: GRACE, save_every: EVERY });
        assert_eq!(other.handle(at(0), told(proposal(1, 2), true, &[])), restore(1, 2));
        assert_eq!(other.handle(at(50), In::Restored), []);
        assert_eq!((other.runs(), other.wake_at()), (false, None));
        let mut leader = Machine::new(Config { me: 0, grace: GRACE, save_every: EVERY });
        assert_eq!(leader.handle(at(0), told(proposal(1, 2), false, &[])), restore(1, 2));
        assert_eq!(leader.handle(at(1), told(proposal(1, 2), true, &[])), []);
        assert_eq!(leader.handle(at(50), In::Restored), [Out::Save(Purpose::Stopped)], "another one may have begun");
    }

    #[test]
    fn whose_slot_goes_while_it_waits_for_the_store_leaves_at_once() {
        let mut machine = Machine::new(Config { me: 0, grace: GRACE, save_every: EVERY });
        assert_eq!(machine.handle(at(0), told(proposal(1, 1), false, &[])), restore(1, 1));
        assert_eq!(machine.handle(at(1), In::Leave(at(5))), exit(STOPPED_STATUS));
    }

    #[test]
    fn a_membership_that_comes_while_another_is_restored_takes_its_place() {
        let mut machine = Machine::new(Config { me: 1, grace: GRACE, save_every: EVERY });
        assert_eq!(machine.handle(at(0), told(proposal(1, 2), false, &[])), restore(1, 2));
        assert_eq!(machine.handle(at(1), told(proposal(2, 3), false, &[])), restore(2, 3));
        assert_eq!(machine.handle(at(2), In::Restored), begin(2, 3));
    }

    #[test]
    fn whose_program_was_stopped_leaves_where_the_gang_is_to_go_on() {
        let mut other = running(1, 2);
        other.handle(at(1), told(proposal(1, 2), true, &[]));
        assert_eq!(other.handle(at(2), In::Ended(End::Well)), []);
        assert_eq!(other.handle(at(3), told(proposal(1, 2), false, &[])), exit(STOPPED_STATUS));
        let mut slow = running(1, 2);
        slow.handle(at(1), told(proposal(1, 2), true, &[]));
        assert_eq!(slow.handle(at(2), told(proposal(1, 2), false, &[])), [], "it is stopping already");
        assert_eq!(slow.handle(at(3), badly()), exit(STOPPED_STATUS));
    }

    #[test]
    fn a_start_that_was_given_up_is_followed_by_another() {
        let mut machine = running(1, 2);
        assert_eq!(machine.handle(at(1), told(proposal(2, 2), false, &[])), [Out::Kill]);
        assert_eq!(machine.handle(at(2), badly()), restore(2, 2));
        assert_eq!(machine.handle(at(2), In::Restored), begin(2, 2));
        assert_eq!(machine.handle(at(3), told(proposal(1, 2), false, &[])), [], "an older word is none");
        let mut early = Machine::new(Config { me: 1, grace: GRACE, save_every: EVERY });
        assert_eq!(early.handle(at(0), In::Told(Told::default())), []);
        assert_eq!(early.handle(at(1), In::Leave(at(2))), exit(STOPPED_STATUS));
    }
}
