//! What happens in the demo, in order. Each event waits until the one before has had its whole effect and training has gone on
//! since; each is timed against what the API, the agent and the facts say.

use crate::screen::Screen;
use gateway_api::{NameSlots, Outcome, PublishDemand};
use gateway_client::{Body, Client};
use loadtest_harness::HarnessError;
use loadtest_harness::LOCAL_FLEET;
use loadtest_harness::release::{occupied, until_free};
use loadtest_harness::service::{Service, kill_process};
use loadtest_harness::watched_job::WatchedJob;
use serde_json::{Value, json};
use std::time::Instant;
use workers_agent_client::AgentClient;

/// Steps that training has to go on after an event before the next one.
const STEPS_BETWEEN: u64 = 30;
/// The fleet's need at its peak: one slot is left.
const SPIKE_NEEDED: u32 = 3;

/// The job of the demo: small enough for two cores, long enough for everything that happens to it.
#[must_use]
pub fn job() -> Value {
    json!({
        "name": "tide",
        "model": {"kind": "cnn", "channels": [8, 16], "blocks": 1, "groups": 4},
        "dataset": "digits",
        "evaluation": {"dataset": "digits-test", "every_steps": 400},
        "workers": {"min": 1, "max": 4},
        "batch_size": 16,
        "epochs": 160,
        "seed": 7,
        "optimizer": {"kind": "adamw", "learning_rate": 0.005},
        "schedule": {"kind": "cosine", "warmup_steps": 20},
        "checkpoint": {"every_steps": 400},
    })
}

/// Everything that was measured.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// How the disturbed run ended.
    pub elastic: Outcome,
    /// How the undisturbed run ended.
    pub fixed: Outcome,
    /// Every slot given back: how it was asked for, and the time until it was free.
    pub releases: Vec<(&'static str, f64)>,
    /// Pause of the members at every growth, in milliseconds.
    pub scale_out_pause_ms: Vec<f64>,
    /// Pause of the stayers at every shrinking, in milliseconds.
    pub scale_in_pause_ms: Vec<f64>,
    /// From the kill of an executor until the others train again.
    pub recovery_ms: Vec<f64>,
    /// Steps that were done and had to be done again.
    pub steps_lost: u64,
}

/// The demo on a running service.
pub struct Story<'a> {
    client: Client,
    agent: AgentClient,
    screen: &'a Screen,
    record: Record,
}

impl<'a> Story<'a> {
    /// A story about to be told.
    pub fn new(service: &Service, screen: &'a Screen) -> Result<Self, HarnessError> {
        Ok(Self { client: service.client()?, agent: service.agent()?, screen, record: Record::default() })
    }

    /// Tells it from the first submit to the second model.
    pub async fn tell(mut self) -> Result<Record, HarnessError> {
        self.record.elastic = self.elastic_run().await?;
        self.screen.tell("the same job again, on 4 slots, undisturbed");
        let mut watched = self.submit("fixed").await?;
        self.record.fixed = self.finish(&mut watched).await?;
        Ok(self.record)
    }

    async fn elastic_run(&mut self) -> Result<Outcome, HarnessError> {
        self.screen.tell("submitting a CNN with 4 logical workers on the handwritten digits");
        let mut watched = self.submit("elastic").await?;
        watched.until_members(4).await?;
        watched.until_steps(STEPS_BETWEEN).await?;
        self.spike(&mut watched).await?;
        self.ebb(&mut watched).await?;
        let slot = self.take_back(&mut watched).await?;
        self.lend_again(&mut watched, &slot).await?;
        self.kill(&mut watched).await?;
        self.screen.tell("no more disturbance; training to the end");
        let outcome = self.finish(&mut watched).await?;
        self.record.scale_in_pause_ms = watched.pauses_in_ms();
        self.record.scale_out_pause_ms = watched.pauses_out_ms();
        self.record.steps_lost = watched.steps_lost();
        Ok(outcome)
    }

    async fn submit(&self, run: &str) -> Result<WatchedJob<'a>, HarnessError> {
        let job = self.client.submit(&Body::json(&job()), &format!("demo-{run}")).await?;
        let screen = self.screen;
        Ok(WatchedJob::follow(&self.client, &job.id, |job| screen.update(job)))
    }

    async fn finish(&self, watched: &mut WatchedJob<'_>) -> Result<Outcome, HarnessError> {
        let job = watched.until_over().await?;
        match job.outcome {
            Some(outcome) if job.phase == "finished" => Ok(outcome),
            _ => Err(HarnessError::NoModel { job: job.id, phase: job.phase.to_string(), reason: job.failure }),
        }
    }

    /// The fleet's demand rises: three of four slots go back.
    async fn spike(&mut self, watched: &mut WatchedJob<'_>) -> Result<(), HarnessError> {
        self.screen.tell(&format!("a spike: the fleet needs {SPIKE_NEEDED} slots, 4 → 1"));
        watched.disturbed();
        let before = occupied(&self.agent.slots().await?);
        let accepted = self.demand(SPIKE_NEEDED).await?;
        let free_after = until_free(&self.agent, &before, SPIKE_NEEDED as usize, accepted).await?;
        for ms in &free_after {
            self.screen.detail(&format!("a slot is free {ms:.0} ms after the demand was accepted"));
        }
        self.record.releases.extend(free_after.into_iter().map(|ms| ("demand", ms)));
        watched.until_members(1).await?;
        watched.until_steps(STEPS_BETWEEN).await
    }

    /// The fleet's demand falls: all slots are lent again.
    async fn ebb(&self, watched: &mut WatchedJob<'_>) -> Result<(), HarnessError> {
        self.screen.tell("the spike is over: the fleet needs none, 1 → 4 slots");
        watched.disturbed();
        self.demand(0).await?;
        watched.until_members(4).await?;
        watched.until_steps(STEPS_BETWEEN).await
    }

    /// One slot is taken back directly at its agent; which.
    async fn take_back(&mut self, watched: &mut WatchedJob<'_>) -> Result<String, HarnessError> {
        let slots = self.agent.slots().await?;
        let slot = slots
            .iter()
            .rev()
            .find(|s| s.executor.is_some())
            .ok_or_else(|| HarnessError::plain("no slot is in use"))?
            .slot
            .clone();
        self.screen.tell(&format!("slot {slot} is taken back directly at its agent, 4 → 3 slots"));
        watched.disturbed();
        for freed in self.agent.take_back(std::slice::from_ref(&slot), None).await? {
            self.screen.detail(&format!(
                "{} is free after {} ms{}",
                freed.slot,
                freed.elapsed_ms,
                if freed.killed { " (killed)" } else { "" }
            ));
            self.record.releases.push(("take-back", freed.elapsed_ms as f64));
        }
        watched.until_members(3).await?;
        watched.until_steps(STEPS_BETWEEN).await?;
        Ok(slot)
    }

    /// A slot that was taken back by name is lent again by name: its fleet's demand did not change.
    async fn lend_again(&self, watched: &mut WatchedJob<'_>, slot: &str) -> Result<(), HarnessError> {
        self.screen.tell(&format!("the fleet lends {slot} again, 3 → 4 slots"));
        watched.disturbed();
        self.client.offer(LOCAL_FLEET, &NameSlots { slots: vec![slot.to_owned()] }).await?;
        watched.until_members(4).await?;
        watched.until_steps(STEPS_BETWEEN).await
    }

    /// One executor is killed; its slot stays lent, so a new one takes its place.
    async fn kill(&mut self, watched: &mut WatchedJob<'_>) -> Result<(), HarnessError> {
        let slots = self.agent.slots().await?;
        let victim = slots
            .iter()
            .find_map(|s| s.pid.zip(s.executor.clone()))
            .ok_or_else(|| HarnessError::plain("no executor runs on any slot"))?;
        self.screen.tell(&format!(
            "kill -9 of executor {} (process {})",
            victim.1.rsplit('/').next().unwrap_or_default(),
            victim.0
        ));
        watched.disturbed();
        let killed = Instant::now();
        kill_process(victim.0)?;
        let recovered = watched.until_recovered().await?;
        let ms = recovered.duration_since(killed).as_secs_f64() * 1e3;
        self.screen.detail(&format!("the others train again after {ms:.0} ms"));
        self.record.recovery_ms.push(ms);
        watched.until_members(4).await?;
        watched.until_steps(STEPS_BETWEEN).await
    }

    /// Publishes the fleet's need; when it was accepted.
    async fn demand(&self, needed: u32) -> Result<Instant, HarnessError> {
        self.client.demand(LOCAL_FLEET, &PublishDemand::needed(needed)).await?;
        let accepted = Instant::now();
        self.screen.demand(needed);
        Ok(accepted)
    }
}
