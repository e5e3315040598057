//! What executors say, when their silence ends them, and what their end leads to. Next file: `take_back.rs`.

use crate::machine::{Agent, Phase};
use crate::slot::{Claim, LastWords, Quarantine, exit_cause};
use crate::words::{ExecutorWord, KillCause, Note, Out, ProcessEnd};
use events_schema::control::{ALIVE_INTERVAL_MS, FromExecutor, Progress};
use events_schema::report::{ExitCause, Report};
use events_schema::{ExecutorId, JobId, is_guest_index};

/// How often the agent looks which executors have said nothing since it last looked: as often as they say something.
pub const LOOK_INTERVAL_MS: u64 = ALIVE_INTERVAL_MS;

/// Looks in a row without a word after which an executor is taken for hung: three seconds, so that its job trains again within five. Looks
/// are counted, not time, because an agent that was itself held up has not listened meanwhile.
pub const SILENT_LOOKS_MAX: u32 = 6;

impl Agent {
    pub(crate) fn executor(&mut self, slot: u16, executor: &ExecutorId, word: ExecutorWord) {
        if word == ExecutorWord::DeviceBack {
            return self.device_back(slot, executor);
        }
        let Some(occupant) = self.occupant(slot).filter(|occupant| occupant.executor == *executor) else { return };
        match word {
            ExecutorWord::Heard => occupant.heard = true,
            ExecutorWord::Said(frame) => self.said(slot, executor, frame),
            ExecutorWord::Garbage(_) | ExecutorWord::NotReading => self.kill(slot, KillCause::Protocol),
            ExecutorWord::Reaped => occupant.reaped(),
            ExecutorWord::DeviceBusy(percent) => self.device_read(slot, executor, percent),
            ExecutorWord::DeviceGone(reason) => {
                occupant.device_lost = Some(reason);
                self.kill(slot, KillCause::Device);
            }
            ExecutorWord::Ended(end) => self.ended(slot, end, None),
            ExecutorWord::EndedHolding { end, reason, lost } => {
                if lost {
                    occupant.device_lost.get_or_insert_with(|| reason.clone());
                }
                self.ended(slot, end, Some(reason));
            }
            // Said of one that has ended, above.
            ExecutorWord::DeviceBack => {}
        }
    }

    fn said(&mut self, slot: u16, executor: &ExecutorId, frame: FromExecutor) {
        match frame {
            FromExecutor::Report(report) if !concerns(&report, executor) => self.kill(slot, KillCause::Protocol),
            // What a killed executor reported still counts: it was true when it said so.
            FromExecutor::Report(report) => {
                self.note_size(&report);
                if self.phase != Phase::Rejoining {
                    self.report(report);
                }
            }
            FromExecutor::Telemetry(telemetry) if telemetry.job != executor.job => self.kill(slot, KillCause::Protocol),
            FromExecutor::Telemetry(telemetry) => self.keep_telemetry(telemetry),
            FromExecutor::Progress(progress) => {
                let progress = Progress { busy_percent: self.load(slot, executor, &progress), ..progress };
                let now = self.now.ms;
                self.share(slot, |sharing| match is_guest_index(slot) {
                    true => {
                        sharing.guest_said(&progress);
                        None
                    }
                    false => sharing.host_said(now, executor, &progress),
                });
                self.keep_progress(executor, progress);
            }
            FromExecutor::LastWords { said, code_ended } => {
                if let Some(occupant) = self.occupant(slot) {
                    occupant.last_words = Some(LastWords { said, code_ended });
                }
            }
            // The shell's: nothing is decided from them.
            FromExecutor::Alive | FromExecutor::Span(_) => {}
        }
    }

    /// Kills executors that have said nothing for too many looks: hung, and with them their job.
    pub(crate) fn look_for_silence(&mut self) {
        if self.next_look > self.now.ms {
            return;
        }
        self.next_look = self.after(LOOK_INTERVAL_MS);
        for slot in self.numbers() {
            let Some(occupant) = self.occupant(slot) else { continue };
            if occupant.reaped {
                continue;
            }
            let heard = std::mem::take(&mut occupant.heard);
            occupant.silent_looks = if heard { Some(0) } else { occupant.silent_looks.map(|looks| looks + 1) };
            if occupant.silent_looks >= Some(SILENT_LOOKS_MAX) {
                self.kill(slot, KillCause::Silent);
            }
        }
    }

    /// Its processes are gone; what is wrong with the device of the slot, if anything is.
    fn ended(&mut self, slot: u16, end: ProcessEnd, holding: Option<String>) {
        let index = self.place(slot);
        let Some(occupant) = self.slots[index].occupant.take() else { return };
        self.share(slot, |sharing| match is_guest_index(slot) {
            true => {
                sharing.guest_ends();
                None
            }
            false => sharing.host_ends(),
        });
        let exit = exit_cause(end, occupant.ending, occupant.last_words);
        let killed = matches!(exit, ExitCause::Killed | ExitCause::Silent);
        // What failed on a device that is gone failed of that; who left before left.
        let exit = match occupant.device_lost {
            Some(reason) if exit != ExitCause::Left => ExitCause::DeviceLost(reason),
            _ => exit,
        };
        self.ended.insert(occupant.executor.clone());
        if self.phase != Phase::Rejoining {
            // First whose the slot is, then that it is free: the other way round it could be used in between.
            if self.slots[index].claim == Claim::TakenBack {
                self.report_taken_back(index, occupant.asked);
            }
            let slot = self.slots[index].id.clone();
            if let Some(reason) = &holding {
                self.report(Report::SlotQuarantined { slot: slot.host(), reason: reason.clone() });
            }
            self.report(Report::ExecutorGone { executor: occupant.executor.clone(), slot, exit });
        }
        match holding {
            Some(reason) => {
                self.outs
                    .push(Out::Note(Note::Quarantined { slot: self.slots[index].id.host(), reason: reason.clone() }));
                self.slots[index].quarantine = Some(Quarantine { executor: occupant.executor, reason, killed });
            }
            None => self.freed(slot, killed),
        }
        self.start_missing();
    }

    /// The device that an executor left is as it was before it: now the slot is free.
    fn device_back(&mut self, slot: u16, executor: &ExecutorId) {
        let index = self.place(slot);
        let place = self.slots.get_mut(index);
        let left = place.and_then(|place| place.quarantine.take_if(|left| left.executor == *executor));
        let Some(left) = left else { return };
        let id = self.slots[index].id.host();
        // What somebody else left on the same device may not be back yet.
        if self.pair(slot).all(|place| place.quarantine.is_none()) {
            self.outs.push(Out::Note(Note::Recovered { slot: id.clone() }));
            if self.phase != Phase::Rejoining {
                self.report(Report::SlotRecovered { slot: id });
            }
        }
        self.freed(slot, left.killed);
        self.start_missing();
    }
}

/// Whether an executor may report this: its own readiness and its own job, never the agent's matters.
fn concerns(report: &Report, executor: &ExecutorId) -> bool {
    let own_job = |job: &JobId| *job == executor.job;
    match report {
        Report::AgentJoined { .. }
        | Report::AgentGone
        | Report::ExecutorGone { .. }
        | Report::SlotTakenBack { .. }
        | Report::SlotQuarantined { .. }
        | Report::SlotRecovered { .. }
        | Report::JobStalled { .. }
        | Report::MemberStraggles { .. }
        | Report::MemberKeepsUp { .. }
        | Report::TypesMeasured { .. }
        | Report::LoadMeasured { .. }
        | Report::LinkSurveyed { .. }
        | Report::ObjectsSwept { .. } => false,
        Report::ExecutorReady { executor: ready, .. } => ready == executor,
        Report::GenerationActive { job, .. }
        | Report::MemberDeparted { job, .. }
        | Report::CheckpointWritten { job, .. }
        | Report::CheckpointSaved { job, .. }
        | Report::CheckpointDamaged { job, .. }
        | Report::CheckpointUnreadable { job, .. }
        | Report::JobCompleted { job, .. }
        | Report::JobBroken { job, .. }
        | Report::Evaluated { job, .. }
        | Report::PeerLost { job, .. }
        | Report::GenerationStepped { job, .. }
        | Report::ThroughputMeasured { job, .. } => own_job(job),
        Report::PeersMissing { job, by, .. } => own_job(job) && by == executor,
        Report::ReplicasDiffer { by, .. } | Report::NewcomerFallsBehind { by, .. } => by == executor,
        Report::ReplicaHeld { executor: of, .. } | Report::LinkMeasured { executor: of, .. } => of == executor,
    }
}
