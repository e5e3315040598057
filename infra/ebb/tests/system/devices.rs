//! Slots that are GPUs, with a library in the driver's place that does what a file says: memory that does not come back, a device that falls off.
//! No GPU is needed: a slot that is one is used by any job.

use crate::gang::until_said;
use crate::support::{LOOK_EVERY, System, WAIT_MAX, finished, job, model_job, plain_digest, submit, text, until};
use gateway_api::PublishDemand;
use gateway_client::Events;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

/// Names of devices.
const GPUS: [&str; 2] = ["GPU-00000000-0000-0000-0000-000000000001", "GPU-00000000-0000-0000-0000-000000000002"];

/// A driver whose file says what it answers.
struct Driver(tempfile::TempDir);

impl Driver {
    fn new() -> Self {
        let driver = Self(tempfile::tempdir().unwrap());
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../workers/device/tests/fake_nvml.c");
        let library = driver.0.path().join("libnvidia-ml.so.1");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(library).args([source, "-ldl"]).status();
        assert!(built.expect("a C compiler `cc` is needed to build the fake driver").success());
        driver.says([3, 3], ["well", "well"]);
        driver
    }

    /// What is taken of each device, in MiB, and how it is.
    fn says(&self, used_mib: [u32; 2], states: [&str; 2]) {
        let line = |at: usize| format!("{} 81920 {} {}\n", GPUS[at], used_mib[at], states[at]);
        // In one piece: an agent may be reading.
        let (file, new) = (self.0.path().join("devices"), self.0.path().join("devices.new"));
        std::fs::write(&new, line(0) + &line(1)).unwrap();
        std::fs::rename(new, file).unwrap();
    }

    async fn service(&self, slots: u16, devices: &str) -> System {
        let folder = text(self.0.path());
        System::start_with_in(slots, &["--devices", devices], &[("LD_LIBRARY_PATH", &folder)]).await
    }
}

/// A slot as `ebb slots` shows it, once it is as wanted.
async fn slot_until(system: &System, slot: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let slots = system.ebb_json(&["slots"]).await;
        let shown = slots["slots"].as_array().unwrap().iter().find(|shown| shown["slot"] == slot).cloned();
        if let Some(shown) = shown.filter(|shown| wanted(shown)) {
            return shown;
        }
        assert!(begun.elapsed() < WAIT_MAX, "waited until {slot} is {what}: {slots}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn events(system: &System, kind: &str) -> Vec<Value> {
    let all = system.client().all_events(&Events::all()).await.unwrap();
    let is_kind = |event: &Value| event["type"].as_str().is_some_and(|name| name == format!("dev.ebb.{kind}.v1"));
    all.iter().map(|event| serde_json::to_value(event).unwrap()).filter(is_kind).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_sees_the_device_of_its_slot_and_no_other() {
    let driver = Driver::new();
    let system = driver.service(3, "auto").await;
    let slots = system.ebb_json(&["slots"]).await;
    let device = |at: usize| slots["slots"][at]["device"]["uuid"].as_str();
    assert_eq!([device(0), device(1), device(2)], [Some(GPUS[0]), Some(GPUS[1]), None]);
    let folder = system.path("sees");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("run.sh"), "echo \"$RANK sees [$CUDA_VISIBLE_DEVICES]\"\n").unwrap();
    // Two plain slots are not to be had, and who did not ask for GPUs sees none on them either.
    let none = |count: usize| (0..count).map(|rank| format!("{rank} sees []")).collect::<Vec<_>>();
    let gpus = GPUS.map(|gpu| format!("sees [{gpu}]")).to_vec();
    for (slots, device, seen) in [(1, "cpu", none(1)), (2, "cpu", none(2)), (2, "cuda", gpus)] {
        let job = format!(
            "name: sees\nengine: command\ncommand: sh run.sh\nworkers: {{min: {slots}, max: {slots}}}\ndevice: {device}\nenvironment: {{CUDA_VISIBLE_DEVICES: \"7\"}}\n"
        );
        std::fs::write(folder.join("job.yaml"), job).unwrap();
        let done = system.ebb_json(&["submit", &text(&folder.join("job.yaml")), "--wait"]).await;
        assert_eq!(done["phase"], "finished", "{done}");
        // They are written when the executors have ended, which is after the job.
        for line in seen {
            until_said(&system, done["id"].as_str().unwrap(), &line).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_is_told_free_when_the_memory_of_the_device_is_back_and_not_before() {
    let driver = Driver::new();
    let system = driver.service(2, "0,1").await;
    let (client, agent) = (system.client(), system.agent());
    let mut document = model_job("cnn");
    document["steps"] = json!(1_000_000);
    let id = submit(&client, &document, "devices").await;
    until(&client, &id, "two executors", |j| j.progress.is_some_and(|p| p.members == 2 && p.step > 5)).await;

    // A context that does not go away: its executor leaves, and what it took stays taken.
    driver.says([40_000, 3], ["well", "well"]);
    let asked = tokio::spawn(async move { agent.take_back(&["local/0".to_owned()], None).await });
    let held = slot_until(&system, "local/0", "in quarantine", |slot| slot["state"] == "quarantined").await;
    let why = held["quarantined"].as_str().unwrap();
    assert!(why.contains("40000 MiB") && why.contains(GPUS[0]), "{held}");
    assert!(!asked.is_finished(), "its processes are gone, and it is not free");
    driver.says([3, 3], ["well", "well"]);
    let freed = asked.await.unwrap().unwrap();
    assert_eq!((freed.len(), freed[0].slot.as_str()), (1, "local/0"));
    slot_until(&system, "local/0", "its fleet's", |slot| slot["state"] == "unoffered").await;
    assert_eq!(
        (events(&system, "slot.quarantined").await.len(), events(&system, "slot.recovered").await.len()),
        (1, 1)
    );

    // One that never does: who asks is told so when the time is over.
    driver.says([3, 40_000], ["well", "well"]);
    until(&client, &id, "one executor", |j| j.progress.is_some_and(|p| p.members == 1)).await;
    let refused = system.agent().take_back(&["local/1".to_owned()], None).await.unwrap_err().to_string();
    assert!(refused.contains("not free"), "{refused}");
    let slots = system.agent().slots().await.unwrap();
    assert!(slots.iter().any(|slot| slot.slot == "local/1" && slot.state == "quarantined"), "{slots:?}");
    assert_eq!(job(&client, &id).await.phase, "queued", "nobody waits for it");
    driver.says([3, 3], ["well", "well"]);
    slot_until(&system, "local/1", "its fleet's", |slot| slot["state"] == "unoffered").await;
    // What a fleet took back itself stays with it until it needs less than before.
    for needed in [2, 0] {
        client.demand("local", &PublishDemand::needed(needed)).await.unwrap();
    }
    until(&client, &id, "two executors again", |j| j.progress.is_some_and(|p| p.members == 2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_goes_on_without_a_device_that_falls_off() {
    let driver = Driver::new();
    let system = driver.service(2, "auto").await;
    let client = system.client();
    let mut document = model_job("cnn");
    document["steps"] = json!(4_000);
    let expected = plain_digest(&client, &system.service.ready().store_url, &document).await;
    let id = submit(&client, &document, "devices").await;
    until(&client, &id, "two executors", |j| j.progress.is_some_and(|p| p.members == 2 && p.step > 5)).await;
    driver.says([3, 3], ["well", "lost"]);
    slot_until(&system, "local/1", "in quarantine", |slot| slot["state"] == "quarantined").await;
    assert_eq!(finished(&client, &id).await, expected);
    let gone = events(&system, "executor.gone").await;
    let of_it: Vec<&Value> = gone.iter().filter(|event| event["data"]["exit"] == "device_lost").collect();
    assert!(of_it.len() == 1 && of_it[0]["data"]["slot"] == "local/1", "{gone:?}");
    assert_eq!(job(&client, &id).await.restarts, 0, "it never went back to a checkpoint");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_for_a_gpu_waits_where_there_is_none_and_says_so() {
    let system = System::start(1).await;
    let client = system.client();
    let folder = system.path("cuda");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("train.py"), "").unwrap();
    let file: PathBuf = folder.join("job.yaml");
    std::fs::write(
        &file,
        "name: cuda\nengine: torch\nentry: train:Job\ndevice: cuda\ndataset: digits\nbatch_size: 8\nsteps: 1\n",
    )
    .unwrap();
    let id = system.ebb_json(&["submit", &text(&file)]).await["id"].as_str().unwrap().to_owned();
    let waits = system.ebb_json(&["job", &id]).await;
    assert_eq!((&waits["phase"], &waits["reason"]["waits"]), (&json!("queued"), &json!("device")), "{waits}");
    let other = submit(&client, &model_job("mlp"), "other").await;
    until(&client, &other, "a start", |j| j.progress.is_some_and(|p| p.step > 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_that_are_not_there_are_named() {
    let driver = Driver::new();
    let folder = tempfile::tempdir().unwrap();
    let run = |devices: &str| {
        let mut command = Command::new(crate::support::EBB);
        command.args(["up", "--listen", "127.0.0.1:0", "--slots", "1", "--devices", devices, "--data"]);
        let output = command.arg(folder.path()).env("LD_LIBRARY_PATH", driver.0.path()).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let missing = run("GPU-00000000-0000-0000-0000-000000000003");
    assert!(missing.contains("000000000003 is not on this server") && missing.contains(GPUS[1]), "{missing}");
    let fewer = run("0,1");
    assert!(fewer.contains("--slots is 1, and --devices names 2 slots"), "{fewer}");
    driver.says([3, 3], ["cut", "well"]);
    let cut = run("auto");
    assert!(cut.contains("is in MIG mode") && cut.contains(&format!("--devices {}", GPUS[1])), "{cut}");
    driver.says([3, 3], ["well", "unreachable"]);
    let unreachable = run("1");
    assert!(unreachable.contains("/dev/nvidia4095") && unreachable.contains("nvidia-modprobe"), "{unreachable}");
    let no_name = run("gpu");
    assert!(no_name.contains("`gpu` names no device"), "{no_name}");
}
