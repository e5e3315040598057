//! One job as an onlooker sees it: its record, read again and again, and its facts, followed. Waits are for something seen, and
//! each has an end.

use crate::HarnessError;
use gateway_api::{Job, Progress};
use gateway_client::{Answer, Client, ClientError, Event, Events, Follower};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Longest wait for any one thing; a machine too slow for it is too slow for what is to be seen.
const WAIT_MAX: Duration = Duration::from_secs(90);
/// How often the record is read while waiting.
const LOOK_EVERY: Duration = Duration::from_millis(40);
/// Events waiting to be looked at; the follower waits when it is full.
const EVENTS_QUEUE_LEN: usize = 1_024;

/// A job being watched.
pub struct WatchedJob<'a> {
    client: Client,
    id: String,
    on_look: Box<dyn FnMut(&Job) + 'a>,
    events: mpsc::Receiver<(Instant, Result<Event, ClientError>)>,
    follower: JoinHandle<()>,
    memberships: Memberships,
    job: Job,
    wait_max: Duration,
}

impl Drop for WatchedJob<'_> {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

impl<'a> WatchedJob<'a> {
    /// Begins to watch; `on_look` is given each record that was read.
    pub fn follow(client: &Client, id: &str, on_look: impl FnMut(&Job) + 'a) -> Self {
        let (sender, events) = mpsc::channel(EVENTS_QUEUE_LEN);
        let mut reader = Follower::new(client.clone(), &Events::of_job(id), None);
        let follower = tokio::spawn(async move {
            loop {
                let next = reader.next().await;
                let ended = next.is_err();
                if sender.send((Instant::now(), next)).await.is_err() || ended {
                    return;
                }
            }
        });
        Self {
            client: client.clone(),
            id: id.to_owned(),
            on_look: Box::new(on_look),
            events,
            follower,
            memberships: Memberships::default(),
            job: Job::default(),
            wait_max: WAIT_MAX,
        }
    }

    /// Waits so long for any one thing instead.
    #[must_use]
    pub fn waiting(mut self, wait_max: Duration) -> Self {
        self.wait_max = wait_max;
        self
    }

    /// Says that something is about to happen: what is done by now must not be done again, and steps from here on are no later ones of the last switch.
    pub fn disturbed(&mut self) {
        self.memberships.disturbed(self.steps());
    }

    /// Waits until so many executors train in lock-step.
    pub async fn until_members(&mut self, members: u16) -> Result<(), HarnessError> {
        let what = format!("{members} executors to train");
        self.until(&what, |it| {
            it.memberships.members == usize::from(members) && it.job.progress.is_some_and(|p| p.members == members)
        })
        .await
    }

    /// Waits until training has gone on by so many steps.
    pub async fn until_steps(&mut self, steps: u64) -> Result<(), HarnessError> {
        self.look().await?;
        let goal = self.steps() + steps;
        self.until("training to go on", |it| it.steps() >= goal).await
    }

    /// Waits until the survivors of a lost member train again; when that was.
    pub async fn until_recovered(&mut self) -> Result<Instant, HarnessError> {
        self.until("the survivors to go on", |it| it.memberships.recovered.is_some()).await?;
        Ok(self.memberships.recovered.unwrap_or_else(Instant::now))
    }

    /// Waits until the job is over; its last record.
    pub async fn until_over(&mut self) -> Result<Job, HarnessError> {
        loop {
            let seen = self.steps();
            let went_on = self.until("training to go on", |it| it.job.is_over() || it.steps() > seen).await;
            if self.job.is_over() {
                return Ok(self.job.clone());
            }
            went_on?;
        }
    }

    /// Pauses of the stayers at every shrinking, in milliseconds.
    pub fn pauses_in_ms(&self) -> Vec<f64> {
        self.memberships.pauses_in_ms.clone()
    }

    /// Pauses of the members at every growth, in milliseconds.
    pub fn pauses_out_ms(&self) -> Vec<f64> {
        self.memberships.pauses_out_ms.clone()
    }

    /// Every growth and shrinking so far: the first step beyond later ones of as many members shows what it cost, also where more of them are faster.
    pub fn switches(&self) -> &[Switch] {
        &self.memberships.switches
    }

    /// Steps that were done and had to be done again.
    pub fn steps_lost(&self) -> u64 {
        self.memberships.steps_lost
    }

    fn steps(&self) -> u64 {
        self.job.progress.map_or(0, |p| p.step)
    }

    async fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<(), HarnessError> {
        let begun = Instant::now();
        let mut over_before = false;
        while begun.elapsed() < self.wait_max {
            self.look().await?;
            if done(self) {
                return Ok(());
            }
            // One more look after the end: its last facts may come after its record.
            if self.job.is_over() && over_before {
                let reason = self.job.failure.clone().unwrap_or_else(|| self.job.phase.to_string());
                return Err(HarnessError::plain(format!(
                    "the job ended ({reason}) before {what}, which was waited for"
                )));
            }
            over_before = self.job.is_over();
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Err(HarnessError::plain(format!(
            "waited {} s for {what}, in vain: the job is {}, {} steps are done",
            self.wait_max.as_secs(),
            self.job.phase,
            self.steps()
        )))
    }

    async fn look(&mut self) -> Result<(), HarnessError> {
        while let Ok((at, event)) = self.events.try_recv() {
            self.memberships.take(&event?, at);
        }
        self.job = self.client.job(&self.id).await.map(Answer::into_typed)?;
        if let Some(progress) = &self.job.progress {
            self.memberships.progressed(progress);
        }
        (self.on_look)(&self.job);
        Ok(())
    }
}

/// A change of membership without a loss, and steps after it, in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Switch {
    /// Whether members came, not went.
    pub is_growth: bool,
    /// The first step of all who are in it.
    pub first_ms: f64,
    /// Later ones of the same members, as far as they were told.
    pub later_ms: Vec<f64>,
}

/// Memberships as the facts tell them.
#[derive(Debug, Default)]
struct Memberships {
    /// Of each generation that was proposed: its number of members, and whether members had been lost.
    proposed: BTreeMap<u64, (usize, bool)>,
    members: usize,
    /// Steps seen done when something last was about to happen.
    floor: u64,
    /// The newest generation in force, and what its coming was: its first step shows what that cost.
    change: Option<(u64, Change)>,
    /// Steps done when the newest generation came into force.
    begun: u64,
    recovered: Option<Instant>,
    pauses_in_ms: Vec<f64>,
    pauses_out_ms: Vec<f64>,
    switches: Vec<Switch>,
    /// Steps done at the newest one that counts as a later one of the last switch, or cannot.
    told: u64,
    /// Whether the members are still those of the last switch, all of them, and nothing was about to happen since.
    is_as_switched: bool,
    steps_lost: u64,
}

/// What the coming of a generation was.
#[derive(Debug, Clone, Copy)]
enum Change {
    Grew,
    Shrank,
    Recovered,
}

impl Memberships {
    fn disturbed(&mut self, steps: u64) {
        (self.floor, self.is_as_switched, self.recovered) = (steps, false, None);
    }

    fn take(&mut self, event: &Event, at: Instant) {
        let data = event.data();
        match event.kind() {
            "dev.ebb.generation.proposed.v1" => {
                let lost = data["entry"] == "recover";
                let members = data["members"].as_array().map_or(0, Vec::len);
                self.proposed.insert(number(&data["generation"]), (members, lost));
            }
            "dev.ebb.generation.active.v1" => self.active(data),
            "dev.ebb.generation.stepped.v1" => self.stepped(data, at),
            "dev.ebb.generation.departed.v1" => {
                self.members = self.members.saturating_sub(1);
                self.is_as_switched = false;
            }
            "dev.ebb.job.restarted.v1" => {
                self.steps_lost += self.floor.saturating_sub(number(&data["from_step"])).max(1)
            }
            _ => {}
        }
    }

    fn active(&mut self, data: &Value) {
        let generation = number(&data["generation"]);
        let Some(&(members, lost)) = self.proposed.get(&generation) else { return };
        // A generation begins at the step that follows the last one done; below what was seen done before, work was lost.
        self.steps_lost += self.floor.saturating_sub(number(&data["step"]));
        let change = if lost {
            Some(Change::Recovered)
        } else if members > self.members && self.members > 0 {
            Some(Change::Grew)
        } else {
            (members < self.members).then_some(Change::Shrank)
        };
        self.change = change.map(|change| (generation, change));
        self.members = members;
        (self.begun, self.is_as_switched) = (number(&data["step"]), false);
    }

    /// A step that was told in between: of the members of the last switch, if no other membership was seen since and it is none of before.
    fn progressed(&mut self, progress: &Progress) {
        let is_later = self.is_as_switched && progress.step > self.told;
        let switch = self.switches.last_mut().filter(|_| is_later && usize::from(progress.members) == self.members);
        if let Some(switch) = switch {
            self.told = progress.step;
            switch.later_ms.push(progress.step_us as f64 / 1e3);
        }
    }

    /// The first step of a generation is done: what it took longer than a step before the change, the change cost.
    fn stepped(&mut self, data: &Value, at: Instant) {
        let Some((_, change)) = self.change.take_if(|(of, _)| *of == number(&data["generation"])) else { return };
        let (first_us, usual_us) = (number(&data["first_step_us"]), number(&data["usual_step_us"]));
        let pause_ms = first_us.saturating_sub(usual_us) as f64 / 1e3;
        match change {
            Change::Recovered => {
                self.recovered = Some(at);
                return;
            }
            Change::Grew => self.pauses_out_ms.push(pause_ms),
            Change::Shrank => self.pauses_in_ms.push(pause_ms),
        }
        let (is_growth, first_ms) = (matches!(change, Change::Grew), first_us as f64 / 1e3);
        self.switches.push(Switch { is_growth, first_ms, later_ms: Vec::new() });
        self.told = self.begun + 1;
        // Its event may come after what is about to happen now.
        self.is_as_switched = self.begun >= self.floor;
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(kind: &str, data: Value) -> Event {
        Event { cursor: String::new(), body: json!({"type": kind, "data": data}) }
    }

    fn proposed(generation: u64, members: usize, entry: &str) -> Event {
        let data = json!({"generation": generation, "members": vec![json!({}); members], "entry": entry});
        event("dev.ebb.generation.proposed.v1", data)
    }

    fn active(generation: u64, step: u64) -> Event {
        event("dev.ebb.generation.active.v1", json!({"generation": generation, "step": step, "pause_us": 0}))
    }

    fn stepped(generation: u64, first_step_us: u64) -> Event {
        let data = json!({"generation": generation, "first_step_us": first_step_us, "usual_step_us": 10_000});
        event("dev.ebb.generation.stepped.v1", data)
    }

    #[test]
    fn pauses_go_where_they_belong() {
        let mut seen = Memberships::default();
        let story = [
            proposed(1, 4, "fresh"),
            active(1, 0),
            stepped(1, 9_000),
            proposed(2, 1, "switch"),
            active(2, 10),
            stepped(2, 10_100),
            proposed(3, 4, "switch"),
            active(3, 20),
            stepped(3, 12_500),
            proposed(4, 3, "recover"),
            active(4, 30),
            stepped(4, 60_000),
        ];
        for event in &story {
            seen.take(event, Instant::now());
        }
        assert_eq!(
            (seen.pauses_in_ms.as_slice(), seen.pauses_out_ms.as_slice(), seen.members, seen.steps_lost),
            ([0.1].as_slice(), [2.5].as_slice(), 3, 0)
        );
        assert!(seen.recovered.is_some());
    }

    #[test]
    fn later_steps_of_a_switch_are_of_its_members_alone() {
        let mut seen = Memberships::default();
        let told = |step, members| Progress { step, members, step_us: step * 1_000, ..Progress::default() };
        for event in [proposed(1, 1, "fresh"), active(1, 0), proposed(2, 2, "switch"), active(2, 10)] {
            seen.take(&event, Instant::now());
        }
        seen.progressed(&told(12, 2));
        seen.take(&stepped(2, 12_500), Instant::now());
        for (step, members) in [(11, 2), (12, 1), (13, 2), (13, 2), (14, 2)] {
            seen.progressed(&told(step, members));
        }
        seen.take(&event("dev.ebb.generation.departed.v1", json!({})), Instant::now());
        seen.progressed(&told(15, 1));
        for event in [proposed(3, 2, "switch"), active(3, 16), proposed(4, 1, "switch"), active(4, 20)] {
            seen.take(&event, Instant::now());
        }
        seen.progressed(&told(21, 1));
        seen.take(&stepped(4, 30_000), Instant::now());
        for (step, members) in [(21, 1), (22, 2), (23, 1)] {
            seen.progressed(&told(step, members));
        }
        let switch = |is_growth, first_ms, later_ms| Switch { is_growth, first_ms, later_ms };
        assert_eq!(
            seen.switches,
            [switch(true, 12.5, vec![13.0, 14.0]), switch(false, 30.0, vec![23.0])],
            "neither the step that was the switch's nor one that other members made"
        );
    }

    #[test]
    fn steps_after_the_next_disturbance_are_no_later_ones() {
        let mut seen = Memberships::default();
        let told = |step| Progress { step, members: 1, step_us: step * 1_000, ..Progress::default() };
        for event in [proposed(1, 2, "fresh"), active(1, 0), proposed(2, 1, "switch"), active(2, 10)] {
            seen.take(&event, Instant::now());
        }
        seen.take(&stepped(2, 12_500), Instant::now());
        seen.progressed(&told(12));
        seen.disturbed(12);
        seen.progressed(&told(13));
        for event in [proposed(3, 2, "switch"), active(3, 14), proposed(4, 1, "switch"), active(4, 20)] {
            seen.take(&event, Instant::now());
        }
        seen.disturbed(21);
        seen.take(&stepped(4, 9_000), Instant::now());
        seen.progressed(&told(22));
        let later_ms: Vec<_> = seen.switches.iter().map(|switch| switch.later_ms.as_slice()).collect();
        assert_eq!(
            later_ms,
            [[12.0].as_slice(), &[]],
            "a newcomer starts beside them; also where the switch was told late"
        );
    }

    #[test]
    fn going_back_is_loss() {
        let mut seen = Memberships { floor: 30, ..Memberships::default() };
        seen.take(&proposed(2, 3, "recover"), Instant::now());
        seen.take(&active(2, 25), Instant::now());
        assert_eq!(seen.steps_lost, 5);
        seen.take(&event("dev.ebb.job.restarted.v1", json!({"from_step": 20})), Instant::now());
        assert_eq!(seen.steps_lost, 15);
    }
}
