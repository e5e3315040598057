//! Samples of what says who straggles, and why.

use super::{Sample, executor, progress, sample, slot, straggler_cause_kind};
use events_schema::control::{Gradients, Progress};
use events_schema::fact::{Fact, StragglerCause};
use events_schema::report::Report;

/// All that were added after the first.
pub fn all() -> Vec<Sample> {
    let (executor, slot, unit_us, peers_unit_us) = (executor(), slot(1), 90_000, 30_000);
    let cause = Some(StragglerCause::Compute);
    let report = Report::MemberStraggles { executor: executor.clone(), unit_us, peers_unit_us, cause };
    let cause = Some(StragglerCause::Data);
    let of_link = Fact::MemberStraggles {
        executor: executor.clone(),
        slot: slot.clone(),
        unit_us: 7_100_000,
        peers_unit_us: 100_000,
        cause: Some(StragglerCause::Network),
    };
    let fact = Fact::MemberStraggles { executor, slot, unit_us, peers_unit_us, cause };
    let gradients = Gradients { count: 69_000, took_us: 80_000_000, data_us: None };
    let waits = Gradients { data_us: Some(21_000_000), ..gradients };
    let progress = |gradients| Progress { gradients: Some(gradients), ..progress() };
    let kind = |cause| sample(format!("StragglerCause::{}", straggler_cause_kind(&cause)), &cause);
    vec![
        sample("Progress with gradients", &progress(gradients)),
        sample("Progress with waits for rows", &progress(waits)),
        sample("Progress of a busy slot", &Progress { busy_percent: Some(73), ..progress(waits) }),
        sample("Fact(caused)::MemberStraggles", &fact),
        sample("Report(caused)::MemberStraggles", &report),
        kind(StragglerCause::Compute),
        kind(StragglerCause::Data),
        kind(StragglerCause::Network),
        sample("Fact(of a link)::MemberStraggles", &of_link),
    ]
}
