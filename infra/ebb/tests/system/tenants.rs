//! Two tenants under `--policy antman`: whose quota it is has its slots at once, and whoever used them meanwhile loses no bit.

use crate::support::{System, finished, model_job, plain_digest, submit, until};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_tenants_job_takes_its_quota_from_another_ones_whose_model_stays_the_same() {
    let system = System::start_with(4, &["--policy", "antman"]).await;
    let client = system.client();
    let set = system.ebb_json(&["tenant", "set", "research", "--quota", "3"]).await;
    assert_eq!((&set["name"], &set["quota_slots"]), (&json!("research"), &json!(3)), "{set}");
    let mut idle = model_job("cnn");
    // It has to be there still when it was made smaller; the other one until it is cancelled.
    (idle["tenant"], idle["steps"]) = (json!("labs"), json!(8_000));
    let mut theirs = model_job("mlp");
    (theirs["tenant"], theirs["steps"]) = (json!("research"), json!(1_000_000));
    theirs["workers"] = json!({"min": 3, "max": 3});
    let expected = plain_digest(&client, &system.service.ready().store_url, &idle).await;

    let idle = submit(&client, &idle, "idle").await;
    until(&client, &idle, "all slots", |j| j.progress.is_some_and(|p| p.members == 4 && p.step > 10)).await;
    let theirs = submit(&client, &theirs, "theirs").await;
    until(&client, &theirs, "its quota", |j| j.progress.is_some_and(|p| p.members == 3)).await;
    let shrunk = until(&client, &idle, "what is left", |j| j.progress.is_some_and(|p| p.members == 1)).await;
    assert_eq!((shrunk.slots.len(), shrunk.restarts, shrunk.tenant.as_str()), (1, 0, "labs"));
    let tenants = system.ebb_json(&["tenants"]).await;
    let of_labs = json!({"name": "labs", "quota_slots": null, "jobs": 1, "slots": 1});
    let of_research = json!({"name": "research", "quota_slots": 3, "jobs": 1, "slots": 3});
    assert_eq!(tenants["tenants"], json!([of_labs, of_research]));

    client.cancel(&theirs).await.unwrap();
    until(&client, &idle, "all slots again", |j| j.phase == "finished" || j.slots.len() == 4).await;
    assert_eq!(finished(&client, &idle).await, expected);
}
