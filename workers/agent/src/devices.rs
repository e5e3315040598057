//! Slots that are devices: an executor sees the device of its slot and no other, ends when that is gone, and its slot is not free before what it
//! took of the device is back.
//!
//! Drivers may take long to answer or hang, so they are asked on threads of their own, one question for each executor at a time (one more once it has ended), which
//! nobody waits for at the end. What an answer means is decided in `workers/device/src/settle.rs`. Next file: `process.rs`.

use crate::group::Stat;
use crate::process::Who;
use ebb_telemetry::metrics::{Histogram, seconds};
use events_schema::device::SlotDevice;
use events_schema::slot_type::SlotType;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use workers_agent_core::{ExecutorWord, ProcessEnd};
use workers_device::{Device, Driver, DriverError, Flapping, Ground, Quarantine, Reading, Settling, Uuid, Verdict};

/// Pause between looks at a device that is to be free: what a fleet waits for at most too long.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// The same once it should have been: somebody has to act.
const HELD_LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Pause between looks at a device that is used: how late its loss is seen at most.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for an answer before it counts as none. An executor waits so long at its start.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The devices that are slots, in the order of the slots; slots beyond them have none.
#[derive(Clone)]
pub struct Devices {
    driver: Arc<dyn Driver>,
    version: String,
    /// What the times of quarantines are counted from.
    began: Instant,
    slots: Vec<Slot>,
    settled: Histogram<f64>,
}

/// A slot that is a device.
#[derive(Clone)]
struct Slot {
    place: Arc<Place>,
    flapping: Arc<Mutex<Flapping>>,
}

/// A device, and who is on it: executors of one slot, or of several that share it.
struct Place {
    device: Device,
    users: Mutex<Users>,
}

#[derive(Default)]
struct Users {
    /// Executors whose memory is not known to be back.
    present: usize,
    /// Those of them that run.
    running: usize,
    /// What was taken before the first of those that are present: the least that was seen as one of them began, because what was seen may be of
    /// one who had left by then. Nothing if the driver never said.
    before_bytes: Option<u64>,
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.slots.iter().map(|slot| &slot.place.device)).finish()
    }
}

impl Devices {
    /// Of a driver, those that were chosen. Not from within a runtime's threads: it asks the driver.
    #[must_use]
    pub fn new(driver: Arc<dyn Driver>, chosen: Vec<Device>) -> Self {
        let version = driver.version().unwrap_or_default();
        let mut places: BTreeMap<Uuid, Arc<Place>> = BTreeMap::new();
        let slots = chosen.into_iter().map(|device| {
            let place = places.entry(device.uuid.clone());
            let place = Arc::clone(place.or_insert_with(|| Arc::new(Place { device, users: Mutex::default() })));
            Slot { place, flapping: Arc::default() }
        });
        let what = "Time from an executor's end until what it took of its device was back";
        let settled = seconds("ebb.agent.device.settle", what);
        Self { slots: slots.collect(), driver, version, began: Instant::now(), settled }
    }

    /// How many slots they are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.slots.len()
    }

    /// As a controller is told.
    pub(crate) fn told(&self) -> Vec<SlotDevice> {
        let told = |Slot { place, .. }: &Slot| SlotDevice {
            uuid: place.device.uuid.to_string(),
            name: place.device.name.clone(),
            memory_bytes: place.device.total_bytes,
            driver: self.version.clone(),
        };
        self.slots.iter().map(told).collect()
    }

    /// What all of them are called by their model; none where they are of several.
    pub(crate) fn slot_type(&self) -> Option<SlotType> {
        let mut types = self.slots.iter().map(|slot| SlotType::of_device(&slot.place.device.name));
        let first = types.next()??;
        types.all(|other| other == Some(first)).then_some(first)
    }

    /// That of a slot, if it has one.
    pub(crate) fn of(&self, slot: u16) -> Option<Seat> {
        let Slot { place, flapping } = self.slots.get(usize::from(slot))?.clone();
        Some(Seat {
            driver: Arc::clone(&self.driver),
            place,
            flapping,
            began: self.began,
            settled: self.settled.clone(),
        })
    }
}

/// The device of a slot, or a share in it.
#[derive(Clone)]
pub(crate) struct Seat {
    driver: Arc<dyn Driver>,
    place: Arc<Place>,
    flapping: Arc<Mutex<Flapping>>,
    began: Instant,
    settled: Histogram<f64>,
}

type Answer = Result<Reading, DriverError>;

impl Seat {
    /// What its executor finds as [`workers_torch::VISIBLE_DEVICES_VARIABLE`].
    pub fn visible(&self) -> String {
        self.place.device.uuid.to_string()
    }

    fn users<T>(&self, change: impl FnOnce(&mut Users) -> T) -> T {
        change(&mut self.place.users.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Its slot is in quarantine from now on; said where that lasts longer than the device is away, because it was so before.
    fn quarantined(&self) -> Quarantine {
        let mut flapping = self.flapping.lock().unwrap_or_else(PoisonError::into_inner);
        let quarantine = flapping.again(ms(self.began.elapsed()));
        if quarantine.steady_ms() > 0 {
            let (device, steady_ms) = (&self.place.device.uuid, quarantine.steady_ms());
            tracing::warn!(%device, steady_ms, "its slot is in quarantine again, and is free only when the device has been as it was for so long");
        }
        quarantine
    }

    /// Somebody is about to use it, and has taken nothing yet.
    pub async fn begin(self) -> Stay {
        // Before the driver is asked: whoever begins meanwhile is not the first.
        self.users(|users| {
            if users.present == 0 {
                users.before_bytes = None;
            }
            users.present += 1;
            users.running += 1;
        });
        let mut question = Question::default();
        let mut gone = None;
        match question.ask(&self).await {
            Ok(Reading { used_bytes, .. }) => {
                let least = |known: Option<u64>| known.map_or(used_bytes, |known| known.min(used_bytes));
                self.users(|users| users.before_bytes = Some(least(users.before_bytes)));
            }
            Err(error) => {
                tracing::error!(device = %self.place.device.uuid, %error, "what is taken of a device is not known as an executor begins");
                gone = lost(&error);
            }
        }
        Stay { seat: self, question, ground: Ground::default(), lost: gone }
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn lost(error: &DriverError) -> Option<String> {
    matches!(error, DriverError::Lost(_)).then(|| error.to_string())
}

/// At most one question to a driver, which may never answer it.
#[derive(Default)]
struct Question(Option<oneshot::Receiver<Answer>>);

impl Question {
    /// The answer, or that there is none yet.
    async fn ask(&mut self, seat: &Seat) -> Answer {
        let silent = |what: &str| Err(DriverError::Failed(what.to_owned()));
        let asked = self.0.get_or_insert_with(|| {
            let (reply, asked) = oneshot::channel();
            let (driver, uuid) = (Arc::clone(&seat.driver), seat.place.device.uuid.clone());
            // Who cannot begin a thread hears nothing, as from a driver that is silent; nobody may hear the answer any more.
            let _ = std::thread::Builder::new()
                .name("device".to_owned())
                .spawn(move || drop(reply.send(driver.read(&uuid))));
            asked
        });
        match timeout(ANSWER_TIMEOUT, asked).await {
            Ok(answer) => {
                self.0 = None;
                answer.unwrap_or_else(|_| silent("it could not be asked"))
            }
            Err(_) => silent("it was asked and says nothing"),
        }
    }
}

/// An executor's time on the device of its slot.
pub(crate) struct Stay {
    seat: Seat,
    question: Question,
    ground: Ground,
    /// Set where the device was gone before anything began.
    pub lost: Option<String>,
}

impl Stay {
    /// Notes which processes of the executor the driver knows, says how much the device computes, and once that it is gone.
    pub async fn watch(&mut self, group: i32, who: &Who) -> Infallible {
        let mut gone = self.lost.clone();
        while gone.is_none() {
            match self.question.ask(&self.seat).await {
                Ok(Reading { processes, busy_percent, .. }) => {
                    let own = |pid: &u32| i32::try_from(*pid).is_ok_and(|pid| is_of(pid, group));
                    self.ground.processes.extend(processes.into_iter().flatten().filter(own));
                    if let Some(percent) = busy_percent {
                        who.say(ExecutorWord::DeviceBusy(percent)).await;
                    }
                }
                Err(error) => gone = lost(&error),
            }
            sleep(if gone.is_some() { Duration::ZERO } else { WATCH_INTERVAL }).await;
        }
        if let Some(reason) = gone {
            who.say(ExecutorWord::DeviceGone(reason)).await;
        }
        std::future::pending().await
    }

    /// All processes of the executor are gone. Returns when what they took is back, however long that lasts, and says the end: at once where
    /// the device does not come back in time.
    pub async fn end(mut self, end: ProcessEnd, who: &Who) {
        let begun = Instant::now();
        let before = self.seat.users(|users| {
            users.running -= 1;
            users.before_bytes
        });
        // Where it is not known, what it was when the agent began counts.
        self.ground.before_bytes = before.unwrap_or(self.seat.place.device.used_bytes);
        // An answer to what was asked while it lived says nothing.
        self.question = Question::default();
        let settling = Settling::new(0, self.ground.clone());
        let (mut reaped, mut held) = (false, None::<Quarantine>);
        loop {
            let answer = self.question.ask(&self.seat).await;
            let shared = self.seat.users(|users| users.running > 0);
            let now_ms = ms(begun.elapsed());
            let seen = settling.look(now_ms, &answer, shared);
            if let Some(quarantine) = &mut held {
                if quarantine.ends(now_ms, &seen) {
                    break;
                }
                sleep(HELD_LOOK_INTERVAL).await;
                continue;
            }
            let (reason, lost) = match seen {
                Verdict::Back => break,
                Verdict::Wait => {
                    if !std::mem::replace(&mut reaped, true) {
                        who.say(ExecutorWord::Reaped).await;
                    }
                    sleep(LOOK_INTERVAL).await;
                    continue;
                }
                Verdict::Held(reason) => (reason, false),
                Verdict::Lost(reason) => (reason, true),
            };
            let reason = format!("device {}: {reason}", self.seat.place.device.uuid);
            held = Some(self.seat.quarantined());
            who.say(ExecutorWord::EndedHolding { end: end.clone(), reason, lost }).await;
            sleep(HELD_LOOK_INTERVAL).await;
        }
        self.seat.users(|users| users.present -= 1);
        self.seat.settled.record(begun.elapsed().as_secs_f64(), &[]);
        who.say(if held.is_some() { ExecutorWord::DeviceBack } else { ExecutorWord::Ended(end) }).await;
    }
}

/// Whether a process is of a group; of one that is gone nobody knows.
fn is_of(pid: i32, group: i32) -> bool {
    Stat::of(pid).ok().flatten().is_some_and(|stat| stat.group == group)
}
