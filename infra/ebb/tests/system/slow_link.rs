//! A newcomer whose link of 40 Mbit/s carries far less than steps make: as a member it would slow every step to it. It does not come in, the job says why and goes
//! on at its own pace, and is the same model; and if it is on a server of its own, none is asked there at all.
//!
//! The links are the loopback of a network namespace, in which the test runs itself once more; executors send copies, as between machines. Where the kernel lets nobody make one, it says so and
//! tries nothing.

use crate::support::{System, WAIT_MAX, agent_with, finished, plain_digest, steps, submit, until, until_slot};
use gateway_api::{Job, PublishDemand, WaitCause};
use gateway_client::{Client, Events};
use serde_json::{Value, json};
use std::io::Write;
use std::process::Stdio;
use tokio::process::Command;

/// Says that this process is the one in the namespace.
const INSIDE: &str = "EBB_TEST_SLOW_LINK";
/// Packets as long as those of a network: a loopback's own are larger than the burst that makes an even rate.
const MTU: &str = "1500";
/// Of the job: 8.8 million parameters, with AdamW a replica of 106 MB.
const HIDDEN: [u32; 2] = [2_930, 2_930];

/// Enough for some before, and some after each change of its size; each costs tens of milliseconds, and all are done twice.
const STEPS: u64 = 250;

/// What the loopback carries, and what may wait for it: half a second to a second of that, so that nobody's word of life comes late.
struct Link {
    rate: &'static str,
    queue: &'static str,
}

/// Runs a test once more where its links are so slow. Whether it is to be run here, because this is that place.
async fn is_inside(test: &str, link: &Link) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let shaped = format!(
        "ip link set lo up && ip link set lo mtu {MTU} && tc qdisc add dev lo root tbf rate {} burst 32kb limit {}",
        link.rate, link.queue
    );
    let in_namespace = |then: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", "--", "sh", "-c", &format!("{shaped} && {then}"), "sh"]);
        command.kill_on_drop(true);
        command
    };
    for program in ["unshare", "ip", "tc"] {
        let there = Command::new(program).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().await;
        assert!(there.is_ok(), "`{program}` is missing: install the packages iproute2 and util-linux");
    }
    let refused = in_namespace("true").output().await.unwrap();
    if !refused.status.success() {
        let why = String::from_utf8_lossy(&refused.stderr).trim().to_owned();
        // Past the harness, which keeps what passing tests print.
        let said = format!(
            "SKIPPED {test}: no slow link can be made, because this kernel refuses a network namespace of one's own: {why}\n"
        );
        std::io::stderr().write_all(said.as_bytes()).unwrap();
        return false;
    }
    let program = std::env::current_exe().unwrap();
    let mut inside = in_namespace("exec \"$@\"");
    inside.arg(program).args([&format!("slow_link::{test}"), "--exact", "--nocapture"]).env(INSIDE, "1");
    let ended = tokio::time::timeout(2 * WAIT_MAX, inside.status()).await.expect("the test in the namespace ends");
    assert!(ended.unwrap().success(), "the test in the namespace failed; see above");
    false
}

fn document() -> Value {
    json!({
        "name": "large", "model": {"kind": "mlp", "hidden": HIDDEN}, "dataset": "digits", "workers": {"min": 1, "max": 2},
        "batch_size": 8, "steps": STEPS, "seed": 3, "optimizer": {"kind": "adamw", "learning_rate": 0.001},
        "checkpoint": {"every_steps": 1_000_000, "keep": 1},
    })
}

async fn needs(client: &Client, slots: u32) {
    client.demand("local", &PublishDemand::needed(slots)).await.unwrap();
}

/// Events of the job of this type.
async fn said(client: &Client, id: &str, kind: &str) -> Vec<Value> {
    let events = client.all_events(&Events::of_job(id)).await.unwrap_or_else(|e| panic!("{e}"));
    events.into_iter().filter(|event| event["type"] == format!("dev.ebb.{kind}.v1")).collect()
}

/// The first of these events, as soon as there is one.
async fn until_event(client: &Client, events: Events) -> Value {
    let begun = std::time::Instant::now();
    loop {
        let said = client.all_events(&events).await.unwrap_or_else(|e| panic!("{e}"));
        if let Some(first) = said.into_iter().next() {
            return first;
        }
        assert!(begun.elapsed() < WAIT_MAX, "nothing says {events:?}");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}

/// The job on one slot, after its first steps, and a second slot lent to it. Its id and the digest that it has to have.
async fn grown(system: &System) -> (String, String) {
    let client = system.client();
    let document = document();
    let expected = plain_digest(&client, &system.service.ready().store_url, &document).await;
    needs(&client, 1).await;
    let id = submit(&client, &document, "large").await;
    until(&client, &id, "steps on one slot", |j| steps(j) > 3).await;
    needs(&client, 0).await;
    (id, expected)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newcomer_whose_link_is_slower_than_the_steps_stays_out_and_nobody_waits_for_it() {
    let link = Link { rate: "40mbit", queue: "3mb" };
    if !is_inside("a_newcomer_whose_link_is_slower_than_the_steps_stays_out_and_nobody_waits_for_it", &link).await {
        return;
    }
    let system = System::start_with(2, &["--gradient-memory", "copied"]).await;
    let client = system.client();
    let (id, expected) = grown(&system).await;
    let paused = until_event(&client, Events::of_job(&id).of_types(&["job.growth_paused.*"])).await;
    assert_eq!(paused["data"]["cause"], "slow", "{paused}");
    let then = steps(&crate::support::job(&client, &id).await);
    until(&client, &id, "steps of the one that was there", |j| steps(j) > then).await;
    // The slot stays its fleet's from now on, so that it is not tried again.
    needs(&client, 1).await;
    assert_eq!(finished(&client, &id).await, expected);
    let record = crate::support::job(&client, &id).await;
    assert_eq!((record.restarts, said(&client, &id, "job.stalled").await), (0, Vec::new()));
}

/// The second server is an agent of its own; what it is sent comes over the same loopback. The agents find that out, and no slot of it is ever lent.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_link_is_too_slow_for_a_job_is_never_lent_to_it_and_the_job_says_so() {
    let link = Link { rate: "40mbit", queue: "3mb" };
    if !is_inside("a_server_whose_link_is_too_slow_for_a_job_is_never_lent_to_it_and_the_job_says_so", &link).await {
        return;
    }
    let system = System::start_with(1, &["--gradient-memory", "copied", "--speeds", "measured"]).await;
    let client = system.client();
    let (_far, _) = agent_with(&system, 1, &[("EBB_AGENT_GRADIENT_MEMORY", "copied")]).await;
    until_slot(&system, "far/0").await;
    system.ebb_json(&["fleet", "put", "distant", "--server", "far", "--slots", "1"]).await;
    client.demand("distant", &PublishDemand::needed(1)).await.unwrap();
    let measured = until_event(&client, Events::all().of_types(&["server.link_measured.*"]).about("far")).await;
    assert_eq!(measured["data"]["from"], json!(["local"]), "{measured}");
    let document = document();
    let expected = plain_digest(&client, &system.service.ready().store_url, &document).await;
    let id = submit(&client, &document, "large").await;
    until(&client, &id, "steps on one slot", |j| steps(j) > 3).await;
    client.demand("distant", &PublishDemand::needed(0)).await.unwrap();
    let link_of = |j: &Job| match j.reason.as_ref()?.waits.clone()? {
        WaitCause::Link(link) => Some(link),
        _ => None,
    };
    let waiting = until(&client, &id, "the link that keeps it from more", |j| link_of(j).is_some()).await;
    let link = link_of(&waiting).unwrap();
    assert!(["far", "local"].contains(&link.server.as_str()), "either end may be the slow one: {link:?}");
    assert!(link.beta_milli < 1_100 && link.bytes_per_s < link.gradient_bytes_per_s, "{link:?}");
    assert_eq!(finished(&client, &id).await, expected);
    let record = crate::support::job(&client, &id).await;
    assert_eq!((record.restarts, said(&client, &id, "job.stalled").await), (0, Vec::new()));
    let planned = said(&client, &id, "job.planned").await;
    let larger = planned.iter().filter(|event| event["data"]["slots"].as_array().is_some_and(|slots| slots.len() > 1));
    assert_eq!(larger.count(), 0, "{planned:?}");
    let borrowed = client.all_events(&Events::of_fleet("distant").of_types(&["slot.borrowed.*"])).await.unwrap();
    assert_eq!(borrowed, Vec::<Value>::new());
}
