//! The machine: hands each input to the part it concerns, then does whatever is due. All parts are plain values; everything they
//! do is in the list that [`CellMachine::handle`] returns.
//!
//! Next file: `take_over.rs` (the beginning), then `lead.rs`.

use crate::checks::Checks;
use crate::clock::Clock;
use crate::deletions::Deletions;
use crate::end::{CellEnd, CellFailure};
use crate::health::{Found, Health, USUAL_MS};
use crate::intake::Due;
use crate::lead::{Around, Lead, Step};
use crate::links::{Links, Word};
use crate::message::{AppendFailure, CellConfig, Committed, In, Out, ReadFailure, Ticket};
use crate::note::Note;
use crate::outbox::{Backoff, Outbox};
use crate::presence::Presence;
use crate::reports::Reports;
use crate::take_over::{Progress, Recovered, Surroundings, TakeOver};
use controller_core::orders::{Touched, touched};
use controller_core::state::Job;
use controller_core::{Input, Interrupt, Policy, State, Survey, Watch};
use events_rule::Stream;
use events_schema::batch::InputStream;
use events_schema::orders::Telemetry;
use events_schema::report::{Report, ReportRecord};
use events_schema::{ExecutorId, Offset, ServerId, Term, TimeMs};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Looks at the clock per lease of an agent: one is given up at most so much of it late, and a standstill of this process shows.
const LOOKS_PER_LEASE: u64 = 10;

/// Longest pause before the state is read back once more, and how long a controller has to lead for the pauses to begin anew.
const RECOVER_PAUSE_MAX_MS: u64 = 1_000;
const STEADY_MS: u64 = 60_000;

/// One cell's controller without its hands. Same inputs at the same times, same outputs.
#[derive(Clone, Debug)]
pub struct CellMachine {
    config: CellConfig,
    policy: SharedPolicy,
    interrupt: Option<Interrupt>,
    now_ms: u64,
    clock: Clock,
    phase: Phase,
    /// What counts, as it was last published.
    committed: Option<Committed>,
    links: Links,
    presence: Presence,
    reports: Reports,
    health: Health,
    /// Since when the log is unwell.
    unwell_since_ms: Option<u64>,
    deletions: Deletions,
    /// Which jobs make no progress.
    watch: Watch,
    /// What the links between servers carry.
    survey: Survey,
    checks: Checks,
    recover_backoff: Backoff,
    wake_ms: Option<u64>,
    /// Whether it asked to be woken at once, because what it is going to decide may be followed by a plan.
    breaks_off: bool,
    out: Outbox,
}

#[derive(Clone)]
struct SharedPolicy(Arc<dyn Policy>);

impl fmt::Debug for SharedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())
    }
}

#[derive(Clone, Debug)]
enum Phase {
    /// Before [`In::Start`].
    Idle,
    TakingOver(Box<TakeOver>),
    Leading(Box<Lead>),
    Ended,
}

impl CellMachine {
    /// Does nothing until [`In::Start`].
    #[must_use]
    pub fn new(config: CellConfig, policy: Arc<dyn Policy>) -> Self {
        Self {
            policy: SharedPolicy(policy),
            interrupt: None,
            now_ms: 0,
            clock: Clock::new(TimeMs(0), 0),
            phase: Phase::Idle,
            committed: None,
            links: Links::new(config.heartbeat_interval_ms),
            presence: Presence::new(config.agent_lease_ms),
            reports: Reports::default(),
            health: Health::default(),
            unwell_since_ms: None,
            deletions: Deletions::default(),
            watch: Watch::default(),
            survey: Survey::default(),
            checks: Checks::default(),
            recover_backoff: Backoff::new(RECOVER_PAUSE_MAX_MS),
            wake_ms: None,
            breaks_off: false,
            out: Outbox::default(),
            config,
        }
    }

    /// Has it abandon a plan when something presses that has not come in yet (`record_presses`, `message_presses`), for a bounded time. It then asks to be woken at once
    /// before it decides anything, so that nothing waits for the plan that it has said, read or asked for. For who cannot do anything else while it plans.
    #[must_use]
    pub fn interrupted_by(self, interrupt: Interrupt) -> Self {
        Self { interrupt: Some(interrupt), ..self }
    }

    /// Takes an input at a time of the monotonic clock, and says what to do, in order. After [`Out::StandDown`] it does nothing.
    #[must_use]
    pub fn handle(&mut self, now_ms: u64, input: In) -> Vec<Out> {
        if matches!(self.phase, Phase::Ended) {
            return Vec::new();
        }
        self.now_ms = self.now_ms.max(now_ms);
        self.wake_up();
        self.take(input);
        self.go_on();
        if let Some(next_ms) = self.next_ms() {
            let next_ms = if self.breaks_off { self.now_ms } else { next_ms.max(self.now_ms + 1) };
            if self.wake_ms.replace(next_ms) != Some(next_ms) {
                self.out.push(Out::WakeAt(next_ms));
            }
        }
        self.out.take()
    }

    /// What counts, as it was last published.
    #[must_use]
    pub fn committed(&self) -> Option<&Committed> {
        self.committed.as_ref()
    }

    /// Whether the cell is this controller's, as far as it knows.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        matches!(self.phase, Phase::Leading(_))
    }

    /// Whether the log answers in its usual time: while it does not, no loan is renewed and no agent given up.
    #[must_use]
    pub fn is_log_well(&self) -> bool {
        self.health.is_well(self.now_ms)
    }

    /// Controller time.
    #[must_use]
    pub fn at(&self) -> TimeMs {
        self.clock.at(self.now_ms)
    }

    /// How often each of the core's invariants was found broken.
    #[must_use]
    pub fn violations(&self) -> &BTreeMap<&'static str, u64> {
        self.checks.counts()
    }

    fn wake_up(&mut self) {
        let look_ms = self.look_interval_ms();
        if let Some(ms) = self.presence.awake(self.now_ms, look_ms)
            && self.committed.is_some()
        {
            self.out.note(Note::StoodStill { ms });
            self.presence.forgive(self.now_ms, 0);
            self.watch.forgive(self.now_ms);
            self.links.forgive(self.now_ms);
        }
    }

    fn look_interval_ms(&self) -> u64 {
        (self.config.agent_lease_ms / LOOKS_PER_LEASE).max(1)
    }

    fn take(&mut self, input: In) {
        let now_ms = self.now_ms;
        match input {
            In::Start { wall } => {
                if matches!(self.phase, Phase::Idle) {
                    self.clock = Clock::new(wall, now_ms);
                    self.phase = Phase::TakingOver(Box::new(TakeOver::first(self.config.cell, now_ms)));
                }
            }
            In::Wake => self.wake_ms = None,
            In::Read { ticket, records } => match &mut self.phase {
                Phase::TakingOver(_) => self.take_over(|take_over, around| take_over.read(ticket, &records, around)),
                _ => self.lead(|lead, around| lead.read(ticket, records, around)),
            },
            In::ReadFailed { ticket, failure } => match &mut self.phase {
                Phase::TakingOver(_) => {
                    self.take_over(|take_over, around| take_over.read_failed(ticket, failure, around));
                }
                _ => self.lead(|lead, around| lead.read_failed(ticket, failure, around)),
            },
            In::End { ticket, end } => self.end_is_known(ticket, Ok(end)),
            In::EndFailed { ticket, failure } => self.end_is_known(ticket, Err(failure)),
            In::Appended { ticket, offset } => {
                if let Some(Found::Shortened { stream, end, known }) = self.health.appended(ticket, offset) {
                    return self.shortened(stream, end, known);
                }
                if !self.report_is_answered(ticket, Ok(offset)) {
                    self.take_over(|take_over, around| take_over.appended(ticket, offset, around));
                    self.lead(|lead, around| lead.appended(ticket, offset, around));
                }
            }
            In::AppendFailed { ticket, failure } => self.append_failed(ticket, failure),
            In::LinkOpened { link, server } => self.links.opened(link, server, now_ms, &mut self.out),
            In::Said { link, message } => {
                let word = self.links.said(link, message, now_ms, &mut self.presence, &mut self.out);
                word.into_iter().for_each(|word| self.hear(word));
            }
            In::LinkClosed { link } => {
                if let Some(server) = self.links.closed(link) {
                    let known = self.committed.as_ref().map(|committed| committed.state.server(&server).is_some());
                    self.survey.closed(&server, known == Some(true));
                    if known == Some(false) {
                        self.presence.forget(&server);
                    }
                }
            }
            In::Deleted { number } => self.deletions.deleted(number),
            In::DeleteFailed { number } => self.deletions.failed(number, now_ms, &mut self.out),
        }
    }

    fn hear(&mut self, word: Word) {
        match word {
            Word::Hello(link, server, far_end) => {
                self.reports.hello(&server);
                self.survey.hello(&server, far_end);
                self.links.greet(link, self.renewing(), &mut self.out);
                if let Some(committed) = &self.committed {
                    self.links.tell(link, committed, self.clock.at(self.now_ms), &mut self.out);
                }
            }
            Word::Report(record) => {
                let known = self.committed.as_ref().and_then(|committed| committed.state.reports_taken(&record.server));
                // What counts already need not stand in the log once more.
                let taken = known.is_some_and(|(incarnation, through)| {
                    incarnation == record.incarnation && record.number <= through
                });
                if !taken {
                    self.reports.push(record, self.now_ms, &mut self.health, &mut self.out);
                }
            }
            Word::Telemetry(server, telemetry) => {
                if self.runs_on(&server, &telemetry) {
                    self.out.push(Out::Telemetry(telemetry));
                }
            }
            Word::Progress(server, executor, progress) => {
                let on_it = |committed: &Committed| {
                    committed.state.executor(&executor).is_some_and(|executor| executor.slot.server == server)
                };
                if self.committed.as_ref().is_some_and(on_it) {
                    self.watch.heard(self.now_ms, &executor, progress);
                }
            }
            Word::LinkMeasured(server, number, bytes_per_s) => {
                self.survey.answered(self.now_ms, &server, number, bytes_per_s);
            }
        }
    }

    /// Progress is believed of jobs that run on the server; what an agent says of others is not.
    fn runs_on(&self, server: &ServerId, telemetry: &Telemetry) -> bool {
        self.committed.as_ref().is_some_and(|committed| {
            committed.state.executors_of(&telemetry.job).any(|(_, executor)| executor.slot.server == *server)
        })
    }

    fn append_failed(&mut self, ticket: Ticket, failure: AppendFailure) {
        let written_later = matches!(failure, AppendFailure::Unknown(_) | AppendFailure::Unavailable(_));
        if let (
            Some(stream),
            AppendFailure::Unknown(reason) | AppendFailure::Unavailable(reason) | AppendFailure::Stopped(reason),
        ) = (self.health.append_ended(ticket, !written_later), &failure)
        {
            self.out.note(Note::AppendWaits { stream, reason: reason.clone() });
        }
        if !self.report_is_answered(ticket, Err(failure.clone())) {
            self.take_over(|take_over, around| take_over.append_failed(ticket, failure.clone(), around));
            self.lead(|lead, around| lead.append_failed(ticket, failure, around));
        }
    }

    fn report_is_answered(&mut self, ticket: Ticket, appended: Result<Offset, AppendFailure>) -> bool {
        let answered = self.reports.answered(ticket, appended, self.now_ms, &mut self.health, &mut self.out);
        if let Some(Some(server)) = &answered {
            self.links.renew(server, &mut self.out);
        }
        answered.is_some()
    }

    fn end_is_known(&mut self, ticket: Ticket, end: Result<Offset, ReadFailure>) {
        if matches!(self.phase, Phase::TakingOver(_)) {
            self.take_over(|take_over, around| take_over.end(ticket, end, around));
            return;
        }
        match self.health.found(ticket, end) {
            None | Some(Found::Nothing) => {}
            Some(Found::End(Stream::Events, end, _)) => self.lead(|lead, around| {
                lead.events_end(end, around);
                Step::Stay
            }),
            Some(Found::End(Stream::Reports, end, asked_ms)) => self.have_lost_reports_said_again(end, asked_ms),
            Some(Found::End(..)) => {}
            Some(Found::Unreadable(stream, reason)) => self.out.note(Note::ReadWaits { stream, reason }),
            Some(Found::Stopped(stream, reason)) => self.fail(CellFailure::Read { stream, reason }),
            Some(Found::Shortened { stream, end, known }) => self.shortened(stream, end, known),
        }
    }

    /// What an agent said, and the log has lost or was passed over there, is said again: on a new stream it says whatever was not taken.
    fn have_lost_reports_said_again(&mut self, end: Offset, asked_ms: u64) {
        let Phase::Leading(lead) = &self.phase else { return };
        let taken = lead.fold.positions.of(InputStream::Reports);
        for (server, incarnation, number) in self.reports.lost(&lead.fold.state, taken, (end, asked_ms)) {
            if self.links.speaks(&server, incarnation) {
                self.links.renew(&server, &mut self.out);
                self.out.note(Note::ReportLost { server, number });
            }
        }
    }

    fn shortened(&mut self, stream: Stream, end: Offset, known: Offset) {
        self.fail(match stream {
            Stream::Events => CellFailure::EventsShortened { end, known },
            stream => CellFailure::InputShortened { stream, end, taken: known },
        });
    }

    fn fail(&mut self, failure: CellFailure) {
        self.end(CellEnd::Failed(failure));
    }

    fn end(&mut self, end: CellEnd) {
        self.phase = Phase::Ended;
        self.out.push(Out::StandDown(end));
    }

    /// Lets the take-over take an answer, if there is one in progress.
    fn take_over(&mut self, step: impl FnOnce(&mut TakeOver, &mut Surroundings<'_>) -> Progress) {
        let Phase::TakingOver(take_over) = &mut self.phase else { return };
        let around = &mut Surroundings {
            config: &self.config,
            now_ms: self.now_ms,
            health: &mut self.health,
            out: &mut self.out,
        };
        match step(take_over, around) {
            Progress::Waiting => {}
            Progress::Recovered(recovered) => self.begin(*recovered),
            Progress::End(end) => self.end(end),
        }
    }

    /// The cell is ours.
    fn begin(&mut self, recovered: Recovered) {
        let fold = &recovered.fold;
        let (term, jobs) = (recovered.term, fold.state.live_len());
        self.out.note(Note::TookOver { term, jobs, skipped: fold.counter.skipped().total() });
        self.clock.go_on_from(fold.at, self.now_ms);
        // Whoever is there was waiting for us, and who is not gets time to find us.
        self.presence.forgive(self.now_ms, self.config.agent_lease_ms);
        self.watch.forgive(self.now_ms);
        self.links.forgive(self.now_ms);
        self.health.forget_looks();
        let lead = Lead::new(recovered, &self.config, self.now_ms);
        note_read(&mut self.health, &lead);
        self.phase = Phase::Leading(Box::new(lead));
        self.reports.open(self.now_ms, &mut self.health, &mut self.out);
        self.publish(None);
        self.links.hurry();
    }

    /// Lets the leader take an answer, if this controller leads.
    fn lead(&mut self, step: impl FnOnce(&mut Lead, &mut Around<'_>) -> Step) {
        let Phase::Leading(lead) = &mut self.phase else { return };
        let around = &mut Around {
            config: &self.config,
            policy: &*self.policy.0,
            interrupt: self.interrupt.as_ref(),
            links: &self.links,
            now_ms: self.now_ms,
            at: self.clock.at(self.now_ms),
            health: &mut self.health,
            out: &mut self.out,
        };
        match step(lead, around) {
            Step::Stay => {}
            Step::Committed => {
                let before = self.committed.as_ref().map(|committed| committed.state.clone());
                self.publish(before);
            }
            Step::Recover(reason) => {
                let led_ms = self.now_ms.saturating_sub(lead.since_ms);
                // What it knows was read or acknowledged; what was decided since is dropped. What was published stays true.
                let fold = lead.fold.clone();
                if led_ms > STEADY_MS {
                    self.recover_backoff = Backoff::new(RECOVER_PAUSE_MAX_MS);
                }
                let at_ms = self.now_ms + self.recover_backoff.pause_ms();
                self.phase = Phase::TakingOver(Box::new(TakeOver::again(fold, at_ms)));
                self.reports.close();
                self.health.forget_looks();
                self.out.note(Note::Recovering { reason });
            }
            Step::End(end) => self.end(end),
        }
    }

    /// Makes known what counts. `before` is what counted until now, if the change is to be looked at.
    fn publish(&mut self, before: Option<State>) {
        let Phase::Leading(lead) = &self.phase else { return };
        let committed = Committed {
            state: lead.fold.state.clone(),
            term: lead.term,
            position: lead.fold.known,
            inputs: lead.fold.positions,
            installation: lead.fold.installation,
        };
        let touched = before.as_ref().map_or(Touched::All, |before| touched(before, &committed.state));
        self.out.push(Out::Committed(Box::new(committed.clone())));
        self.links.publish(&committed, &touched, self.clock.at(self.now_ms), &mut self.out);
        if let Some(before) = before {
            self.checks.look(&before, &committed.state, &mut self.out);
        }
        self.committed = Some(committed);
    }

    /// The term, if the word that this controller lives may renew loans: a fleet can reach it.
    fn renewing(&self) -> Option<Term> {
        match &self.phase {
            Phase::Leading(lead) if self.health.is_well(self.now_ms) => Some(lead.term),
            _ => None,
        }
    }

    /// Does whatever is due.
    fn go_on(&mut self) {
        let well = self.health.is_well(self.now_ms);
        self.note_health(well);
        self.take_over(|take_over, around| {
            take_over.go_on(around);
            Progress::Waiting
        });
        if let Phase::Leading(lead) = &self.phase {
            self.health.look(self.now_ms, |stream| lead.known(stream), &mut self.out);
        }
        self.lead(|lead, around| {
            lead.read_on(around);
            Step::Stay
        });
        if !self.break_off() {
            let due = self.due(well);
            self.lead(|lead, around| {
                lead.go_on(&due, around);
                Step::Stay
            });
        }
        if let Phase::Leading(lead) = &self.phase {
            note_read(&mut self.health, lead);
            let at = self.clock.at(self.now_ms);
            let asked = well.then(|| self.survey.next(self.now_ms, at, &lead.fold.state)).flatten();
            asked.into_iter().for_each(|ask| self.links.have_measured(ask, &mut self.out));
        }
        self.reports.go_on(self.now_ms, &mut self.health, &mut self.out);
        let renews = self.renewing();
        self.links.go_on(self.now_ms, self.presence.lease_ms(), renews, &mut self.out);
        if let Some(committed) = &self.committed {
            self.deletions.go_on(&committed.state, self.now_ms, &mut self.out);
        }
    }

    /// Whether to be woken at once instead of deciding now: what is said, read and asked for until then is on its way while a plan is made. Once: what comes
    /// instead of the word to wake up changes nothing about that.
    fn break_off(&mut self) -> bool {
        let decides = |lead: &Lead| lead.decides(&self.config, self.now_ms);
        let decides = matches!(&self.phase, Phase::Leading(lead) if decides(lead));
        self.breaks_off = self.interrupt.is_some() && decides && !self.breaks_off;
        self.breaks_off
    }

    /// After a trouble of the log that agents can have had a part in, every one of them has a whole lease. One that was over sooner
    /// explains no silence: with a log that is slow now and then for ever, the dead would never be given up.
    fn note_health(&mut self, well: bool) {
        match (self.unwell_since_ms, well) {
            (None, false) => self.unwell_since_ms = Some(self.now_ms),
            (Some(since_ms), true) => {
                self.unwell_since_ms = None;
                if self.now_ms.saturating_sub(since_ms) + USUAL_MS >= self.presence.lease_ms() / 2 {
                    self.presence.forgive(self.now_ms, 0);
                    self.watch.forgive(self.now_ms);
                }
            }
            (None, true) | (Some(_), false) => return,
        }
        self.out.note(Note::Log { well });
        self.links.hurry();
    }

    /// What is to be decided besides inputs. Nobody is given up while the log is unwell: what agents say could not be written
    /// down, and what was seen of them may be as old as the trouble.
    fn due(&mut self, well: bool) -> Due {
        let Phase::Leading(lead) = &self.phase else { return Due::default() };
        if !lead.tick_is_due(&self.config, self.now_ms) {
            return Due::default();
        }
        let mut seen = Vec::new();
        for (server, known) in lead.fold.state.servers().filter(|(_, known)| well && known.connected) {
            let silent_ms = self.presence.silence_ms(server, self.now_ms);
            if silent_ms >= self.presence.lease_ms() {
                self.out.note(Note::AgentSilent { server: server.clone(), silent_ms });
                let (server, incarnation, at) = (server.clone(), known.incarnation, self.clock.at(self.now_ms));
                let report = Report::AgentGone;
                let record = ReportRecord { server, incarnation, number: 0, at, report, trace: None, after: None };
                seen.push(Input::Report(record));
            }
        }
        let (mut seen_by_watch, state, at) = (Vec::new(), &lead.fold.state, self.clock.at(self.now_ms));
        if well {
            seen_by_watch.extend(self.watch.look(self.now_ms, state));
            seen_by_watch.extend(self.watch.look_at_hosts(self.now_ms, state));
            seen_by_watch.extend(self.watch.look_at_links(self.now_ms, at, state, &mut self.survey));
        }
        let mut found = self.survey.take_found();
        for report in seen_by_watch {
            let (Report::JobStalled { job, .. }
            | Report::MemberStraggles { executor: ExecutorId { job, .. }, .. }
            | Report::MemberKeepsUp { executor: ExecutorId { job, .. } }
            | Report::LoadMeasured { executor: ExecutorId { job, .. }, .. }
            | Report::TypesMeasured { job, .. }) = &report
            else {
                continue;
            };
            // A job that starts has no leader, and that of one that lost it is gone: whoever is there speaks for it.
            let leader = lead.fold.state.job(job).and_then(Job::active).map(|active| active.leader.clone());
            let of_leader = leader.and_then(|leader| lead.fold.state.executor(&leader));
            let any = || lead.fold.state.executors_of(job).next().map(|(_, executor)| executor);
            let Some(server) = of_leader.or_else(any).map(|executor| executor.slot.server.clone()) else { continue };
            found.push((server, report));
        }
        for (server, report) in found {
            let Some(incarnation) = lead.fold.state.server(&server).map(|known| known.incarnation) else { continue };
            let at = self.clock.at(self.now_ms);
            let record = ReportRecord { server, incarnation, number: 0, at, report, trace: None, after: None };
            seen.push(Input::Report(record));
        }
        Due { tick: true, seen }
    }

    /// When something is due, at the latest.
    fn next_ms(&self) -> Option<u64> {
        let look = Some(self.now_ms + self.look_interval_ms());
        let phase = match &self.phase {
            Phase::Idle | Phase::Ended => return None,
            Phase::TakingOver(take_over) => take_over.next_ms(),
            Phase::Leading(lead) => {
                let next_look_ms = self.health.next_look_ms();
                lead.next_ms(&self.config).map_or(Some(next_look_ms), |next_ms| Some(next_ms.min(next_look_ms)))
            }
        };
        let parts = [phase, look, self.links.next_ms(), self.reports.next_ms(), self.deletions.next_ms()];
        parts.into_iter().flatten().min()
    }
}

/// What is appended from now on comes to stand behind what was read of the inputs.
fn note_read(health: &mut Health, lead: &Lead) {
    InputStream::ALL.map(Stream::from).into_iter().for_each(|input| health.has_read(input, lead.known(input)));
}
