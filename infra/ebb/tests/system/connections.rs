//! More connections than there are file descriptors, which say nothing: nobody else is shut out. Not the API, not the executors' pipes and links, not the
//! agent's listener for take-back.

use crate::support::{EBB, System, finished, model_job, plain_digest, submit, until, until_slot};
use gateway_api::PublishDemand;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::unix::fs::PermissionsExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// What most systems give a process.
const DESCRIPTORS: usize = 1_024;
const SILENT: usize = 1_100;
/// At doors that hold fewer: more than these hold.
const SILENT_ELSEWHERE: usize = 300;

/// The program, on a system that gives it no more descriptors, however it asks.
fn limited() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ebb");
    std::fs::write(&path, format!("#!/bin/sh\nulimit -n {DESCRIPTORS} && exec '{EBB}' \"$@\"\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    (folder, path)
}

/// As many connections as somebody who means harm, or forgot to close them, opens; until this is dropped. The other side closes some to make room, or lets them
/// wait.
fn silent(address: &str, count: usize) -> JoinSet<TcpStream> {
    let address = address.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let connect = |address| async move { TcpStream::connect::<String>(address).await.unwrap() };
    std::iter::repeat_n(address, count).map(connect).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_say_nothing_shut_nobody_out() {
    // This process holds the other ends.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let (_folder, program) = limited();
    let system = System::start_program(program, 4, None).await;
    let (client, agent) = (system.client(), system.agent());
    until_slot(&system, "local/3").await;
    let ready = system.service.ready();
    let mut document = model_job("mlp");
    document["steps"] = 20_000.into();
    let expected = plain_digest(&client, &ready.store_url, &document).await;

    // Each of these may be closed when it has said nothing for some seconds, so all else comes right after.
    let of_take_back = silent(agent.url(), SILENT_ELSEWHERE).join_all().await;
    // The controller's door lets those wait that are too many.
    let of_agents = silent(&ready.controller, SILENT_ELSEWHERE);
    let of_api = silent(&ready.url, SILENT).join_all().await;
    // One that has said nothing since before those may be closed for them, just when it is used again.
    let client = system.client();
    let id = submit(&client, &document, "beside them").await;
    until(&client, &id, "four members that step", |j| j.progress.is_some_and(|p| p.members == 4)).await;
    client.demand("local", &PublishDemand::needed(1)).await.unwrap();
    until(&client, &id, "three members", |j| {
        assert!(!j.is_over(), "the job was over too soon; make it longer");
        j.progress.is_some_and(|p| p.members == 3)
    })
    .await;
    let held = agent.slots().await.unwrap().into_iter().find(|slot| slot.executor.is_some()).unwrap().slot;
    let freed = agent.take_back(std::slice::from_ref(&held), None).await.unwrap();
    assert_eq!((freed.len(), freed[0].slot.as_str()), (1, held.as_str()));
    assert_eq!(finished(&client, &id).await, expected);
    drop((of_api, of_take_back, of_agents));
}
