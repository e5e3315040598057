//! Many logical workers on few executors, which come and go: the model is the one of fixed slots, and what an epoch has is read once, however many ranks one
//! executor hosts.

use super::{begin, finish, mlp};
use crate::driver::Driver;
use events_schema::fact::Entry;
use serde_json::json;

const RANKS: u64 = 64;

/// One executor, two, three, the two that came, and the last one alone.
const MEMBERS: [&[u32]; 5] = [&[0], &[0, 1], &[0, 1, 2], &[1, 2], &[2]];

/// Goes through all memberships, each of which steps; who is in none of the later ones has left when this returns.
fn change(driver: &mut Driver) {
    for (before, after) in MEMBERS.iter().zip(&MEMBERS[1..]) {
        let from = driver.active_generation();
        let leavers: Vec<u32> = before.iter().filter(|member| !after.contains(member)).copied().collect();
        let generation = driver.propose(Entry::Switch { from }, after, after[0], &leavers);
        driver.until_active(generation);
    }
}

#[test]
fn sixty_four_ranks_on_one_to_three_executors_that_come_and_go_train_the_plain_loop_s_model() {
    let mut spec = mlp(2_000, RANKS);
    spec["batch_size"] = json!(1);
    let mut driver = begin(spec, 1, 2, 0);
    change(&mut driver);
    finish(driver);
}

/// They are more than is kept for four ranks, and each rank has some blocks of them open: kept for so few, all would be read again at nearly every step.
#[test]
fn sixty_four_ranks_on_one_to_three_executors_read_what_an_epoch_has_once() {
    const IMAGES: u32 = 4_800;
    const IMAGE_BYTES: u32 = 64 << 10;
    const BATCH_SIZE: u64 = 5;
    let spec = json!({
        "name": "images", "dataset": "images", "workers": {"max": RANKS}, "batch_size": BATCH_SIZE, "epochs": 6, "seed": 3,
        "model": {"kind": "synthetic", "gradient_ms": 1}, "optimizer": {"kind": "sgd", "learning_rate": 0.1},
    });
    let mut driver = Driver::images(spec, IMAGES, IMAGE_BYTES);
    let members = driver.ready(3);
    let all = driver.dataset_bytes() as f64;
    let read = |driver: &Driver, number: &u32| driver.file_bytes_read(*number) as f64 / all;
    let mut generation = driver.propose(Entry::Fresh, MEMBERS[0], 0, &[]);
    driver.until_step(u64::from(IMAGES).div_ceil(RANKS * BATCH_SIZE));
    assert!(read(&driver, &0) > 0.9, "its bytes are not counted: {}", read(&driver, &0));
    for members in &MEMBERS[1..3] {
        generation = driver.propose(Entry::Switch { from: generation }, members, 0, &[]);
        driver.until_active(generation);
    }
    driver.until_completed();
    let read: Vec<f64> = members.iter().map(|number| read(&driver, number)).collect();
    assert!(read.iter().all(|times| *times < 1.2), "times what an epoch has: {read:?}");
    driver.stop_all();
}
