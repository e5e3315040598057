//! The same job on one thread with membership compiled out: no session, no network, no reduction, one loop. What the elastic loop is measured
//! against, and what its result must equal bit for bit.

use crate::buffers::{Buffer, Pool};
use crate::program::{Program, ProgramError};
use crate::replica::Replica;
use crate::store_wait::StorePatience;
use crate::sums::Sums;
use events_schema::control::TorchHost;
use events_schema::job::Determinism;
use events_schema::orders::JobOrder;
use events_schema::report::Metrics;
use events_schema::stride::Stride;
use events_schema::{Digest, JobId, Rank, Step};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use workers_member::Action;
use workers_member::work::{Followed, Work};
use workers_session::{NodeSums, RankMetrics};
use workers_torch::ComputingProcess;
pub use workers_torch::StartTimes;

/// What a plain run gives.
#[derive(Debug, Clone)]
pub struct PlainRun {
    /// Digest of the final parameters.
    pub model_digest: Digest,
    /// Digest of the final replica.
    pub replica_digest: Digest,
    /// The final parameters and moments.
    pub replica: Vec<f32>,
    /// Mean training loss of every step.
    pub losses: Vec<f64>,
    /// Every evaluation, by step.
    pub evaluations: Vec<(Step, Metrics)>,
    /// Duration of every step, data included, evaluation not.
    pub step_times: Vec<Duration>,
    /// Of each step, what was not spent waiting for the Python process of a model in PyTorch: all of it for other models.
    pub own_times: Vec<Duration>,
}

/// Trains the whole job of an order on this thread. Neither checkpoints nor the final model are written.
pub fn train_plain(
    job: &JobId,
    order: &JobOrder,
    store_url: &str,
    torch: Option<&TorchHost>,
) -> Result<PlainRun, ProgramError> {
    train_plain_steps(job, order, store_url, torch, u64::MAX)
}

/// The first `steps_max` steps of a job.
pub fn train_plain_steps(
    job: &JobId,
    order: &JobOrder,
    store_url: &str,
    torch: Option<&TorchHost>,
    steps_max: u64,
) -> Result<PlainRun, ProgramError> {
    let mut program =
        Program::open(job.clone(), order, store_url, torch, StorePatience::default(), ComputingProcess::default())?;
    let workers = program.workers();
    let ranks: Vec<Rank> = (0..workers).map(Rank).collect();
    // As a job of one executor.
    let each: Vec<&[Rank]> = match program.spec.determinism {
        Determinism::D1 => ranks.chunks(1).collect(),
        Determinism::None => vec![&ranks],
    };
    let mut replica = Replica::new(&program.workload, program.workload.pool());
    replica.load(program.workload.initial_replica()?);
    replica.adopt();
    let (mut losses, mut evaluations) = (Vec::new(), Vec::new());
    let (mut step_times, mut own_times) = (Vec::new(), Vec::new());
    let mut sums = Sums::new(program.workload.pool(), Pool::of_pieces(), program.workload.reads_one_vector());
    let end = Step(program.steps_total.min(steps_max));
    for step in (0..end.0).map(Step) {
        evaluate(&mut program, step, &replica, &mut evaluations)?;
        let (began, waited) = (Instant::now(), program.workload.waited());
        program.prefetch(&ranks, (step, Stride::ONE))?;
        let view = replica.view();
        let total = sum_step(each.len() as u16, &ranks[..each.len()], &mut sums, |rank, buffer| {
            let workers = each[usize::from(rank.0)];
            program
                .gradient(rank, workers, (step, Stride::ONE), view, buffer, (None, &|| {}))
                .map(|s| (s.weight, s.loss))
        })?;
        let mut gradient = sums.take_total();
        program.workload.make_mean(&mut gradient, total.weight);
        replica.keep_gradient(gradient);
        replica.apply(&mut program.workload, (step, Stride::ONE))?;
        losses.push(total.loss / total.weight.max(f64::MIN_POSITIVE));
        let took = began.elapsed();
        own_times.push(took.saturating_sub(program.workload.waited().saturating_sub(waited)));
        step_times.push(took);
    }
    evaluate(&mut program, end, &replica, &mut evaluations)?;
    let (_, model_digest) = program.workload.export(replica.view(), &[])?;
    let replica = replica.shared(&mut program.workload)?.to_vec();
    let replica_digest = storage::checkpoint::replica_digest(&replica);
    Ok(PlainRun { model_digest, replica_digest, replica, losses, evaluations, step_times, own_times })
}

/// What an executor does before its first step.
#[derive(Debug, Clone, Copy)]
pub struct ColdStart {
    /// All until the model is built and checked: code fetched, Python started, and [`ColdStart::python`].
    pub open: Duration,
    /// What of that the Python process says of itself.
    pub python: Option<StartTimes>,
    /// Reading the replica, as for a newcomer or a checkpoint.
    pub replica_out: Duration,
    /// Taking one over, as a newcomer does.
    pub replica_in: Duration,
    /// Bytes of the replica.
    pub replica_bytes: u64,
    /// Bytes of a gradient, with what travels along.
    pub gradient_bytes: u64,
}

/// Starts as an executor does, and ends.
pub fn cold_start(
    job: &JobId,
    order: &JobOrder,
    store_url: &str,
    torch: Option<&TorchHost>,
) -> Result<ColdStart, ProgramError> {
    let begun = Instant::now();
    let mut program =
        Program::open(job.clone(), order, store_url, torch, StorePatience::default(), ComputingProcess::default())?;
    let open = begun.elapsed();
    let begun = Instant::now();
    let mut replica = Replica::new(&program.workload, program.workload.pool());
    replica.load(program.workload.initial_replica()?);
    let replica_out = begun.elapsed();
    replica.adopt();
    let begun = Instant::now();
    program.workload.hold(replica.view())?;
    let lengths = program.lengths();
    Ok(ColdStart {
        open,
        python: program.workload.start_times(),
        replica_out,
        replica_in: begun.elapsed(),
        replica_bytes: lengths.replica as u64 * 4,
        gradient_bytes: lengths.gradient as u64 * 4,
    })
}

/// The sum over all ranks, into the whole sum of `sums`; gives its scalars.
fn sum_step<E>(
    workers: u16,
    ranks: &[Rank],
    sums: &mut Sums,
    mut gradient: impl FnMut(Rank, &mut Buffer) -> Result<(f64, f64), E>,
) -> Result<NodeSums, E> {
    let (mut work, _) = Work::new(workers, ranks, BTreeMap::new());
    sums.begin(true);
    loop {
        match work.follow() {
            Some(Followed::Join(node)) => sums.join(node),
            Some(Followed::Whole(total)) => {
                sums.reduce(Action::Whole(total.node), &mut drop);
                return Ok(total);
            }
            None => {
                let rank = work.next().unwrap_or(Rank(0));
                let mut buffer = sums.room();
                let (weight, loss) = gradient(rank, &mut buffer)?;
                sums.computed(rank, buffer);
                work.computed(weight, loss);
            }
        }
    }
}

fn evaluate(
    program: &mut Program,
    step: Step,
    replica: &Replica,
    evaluations: &mut Vec<(Step, Metrics)>,
) -> Result<(), ProgramError> {
    if program.evaluates_at(step) {
        let workers = program.workers();
        let metrics =
            (0..workers).map(|r| program.evaluate(Rank(r), replica.view())).collect::<Result<Vec<RankMetrics>, _>>()?;
        evaluations.extend(RankMetrics::total(workers, &metrics).map(|m| (step, m)));
    }
    Ok(())
}
