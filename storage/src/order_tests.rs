//! Tests of `order.rs`: exactly once, whoever asks, the same for ever.
#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn shuffles() -> impl Strategy<Value = Shuffle> {
    prop_oneof![
        Just(Shuffle::None),
        Just(Shuffle::Full),
        (1u32..200).prop_map(|samples| Shuffle::Window { samples }),
        (1u16..12).prop_map(|open| Shuffle::Blocks { open }),
    ]
}

fn all_samples(plan: &Arc<OrderPlan>, epoch: u64) -> Vec<SampleAt> {
    let order = plan.epoch(epoch);
    let mut seen = Vec::new();
    for step in 0..plan.steps_per_epoch() {
        for rank in 0..plan.workers {
            seen.extend(order.samples(Rank(rank), step));
        }
    }
    seen
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn every_sample_once_per_epoch(
        blocks in prop::collection::vec(0u32..60, 1..30), workers in 1u16..40, batch_size in 1u32..50,
        shuffle in shuffles(), drop in any::<bool>(), seed in any::<u64>(), epoch in 0u64..1_000_000,
    ) {
        let tail = if drop { Tail::Drop } else { Tail::Short };
        let plan = Arc::new(OrderPlan::new(blocks.clone(), workers, batch_size, shuffle, tail, seed));
        let seen = all_samples(&plan, epoch);
        let distinct: BTreeSet<SampleAt> = seen.iter().copied().collect();
        prop_assert_eq!(distinct.len(), seen.len(), "a sample came twice");
        prop_assert!(seen.iter().all(|s| s.row < blocks[s.block as usize]), "a sample does not exist");
        if drop {
            prop_assert_eq!(seen.len() as u64, plan.steps_per_epoch() * u64::from(workers) * u64::from(batch_size));
        } else {
            prop_assert_eq!(seen.len() as u64, plan.rows());
        }
    }

    #[test]
    fn any_step_can_be_asked_for_alone(
        blocks in prop::collection::vec(1u32..40, 1..20), workers in 1u16..9, batch_size in 1u32..20, shuffle in shuffles(), seed in any::<u64>(), pick in any::<u64>(),
    ) {
        let plan = Arc::new(OrderPlan::new(blocks, workers, batch_size, shuffle, Tail::Short, seed));
        let (rank, step) = (Rank((pick % u64::from(workers)) as u16), pick % plan.steps_per_epoch());
        let walked = plan.epoch(3);
        for earlier in 0..step {
            let _ = walked.samples(rank, earlier);
        }
        prop_assert_eq!(walked.samples(rank, step), plan.epoch(3).samples(rank, step));
    }

    #[test]
    fn permutations_are_bijections(length in 1u64..5_000, seed in any::<u64>()) {
        let permutation = Permutation::new(length, &mut keyed(seed, Purpose::Full, 0, 0));
        let image: BTreeSet<u64> = (0..length).map(|i| permutation.at(i)).collect();
        prop_assert_eq!(image.len() as u64, length);
        prop_assert!(image.iter().all(|&i| i < length));
    }
}

#[test]
fn large_domains_stay_inside() {
    for length in [1u64 << 40, (1 << 40) + 1, (1 << 33) - 1, u64::from(u32::MAX) * 3] {
        let permutation = Permutation::new(length, &mut keyed(7, Purpose::Full, 0, 0));
        assert!((0..1_000).map(|i| permutation.at(length - 1 - i)).all(|p| p < length));
    }
}

#[test]
fn epochs_and_seeds_differ() {
    for shuffle in [Shuffle::Blocks { open: 4 }, Shuffle::Window { samples: 50 }, Shuffle::Full] {
        let plan = |seed| Arc::new(OrderPlan::new(vec![20; 10], 4, 8, shuffle, Tail::Short, seed));
        assert_ne!(all_samples(&plan(1), 0), all_samples(&plan(1), 1), "{shuffle:?}");
        assert_ne!(all_samples(&plan(1), 0), all_samples(&plan(2), 0), "{shuffle:?}");
        assert_eq!(all_samples(&plan(1), 0), all_samples(&plan(1), 0), "{shuffle:?}");
    }
}

/// The order decides every model: a change of it is a change of every digest. These numbers were printed once and must stay.
#[test]
fn golden_order() {
    let digest = |shuffle| {
        let plan = Arc::new(OrderPlan::new(vec![7, 90, 33, 90, 1, 90, 64], 5, 16, shuffle, Tail::Short, 42));
        let bytes: Vec<u8> =
            all_samples(&plan, 3).iter().flat_map(|s| [s.block.to_le_bytes(), s.row.to_le_bytes()].concat()).collect();
        events_schema::Digest::of(&bytes).to_string()[..16].to_owned()
    };
    let found =
        [Shuffle::Blocks { open: 3 }, Shuffle::Window { samples: 100 }, Shuffle::Full, Shuffle::None].map(digest);
    assert_eq!(found, GOLDEN);
}

const GOLDEN: [&str; 4] = ["f72ecc65f4124a0c", "b810d24403ea0dc9", "bdd23dab023d632c", "17b694672f361169"];

#[test]
fn data_sorted_by_class_still_mixes() {
    // 10 classes stored one after the other in 4 blocks each; one rank, 8 open blocks, batches of 32.
    let plan = Arc::new(OrderPlan::new(vec![100; 40], 1, 32, Shuffle::Blocks { open: 8 }, Tail::Short, 5));
    let order = plan.epoch(0);
    let classes_per_batch: Vec<usize> = (0..plan.steps_per_epoch())
        .map(|step| order.samples(Rank(0), step).iter().map(|s| s.block / 4).collect::<BTreeSet<_>>().len())
        .collect();
    let mean = classes_per_batch.iter().sum::<usize>() as f64 / classes_per_batch.len() as f64;
    assert!(mean > 4.0, "a batch sees {mean} classes");
}

#[test]
fn small_permutations_are_close_to_uniform() {
    // 6 elements, 720 permutations, 72,000 keys: chi-square with 719 degrees of freedom has mean 719 and deviation 38.
    let mut counts = std::collections::BTreeMap::<Vec<u64>, u32>::new();
    for key in 0..72_000 {
        let permutation = Permutation::new(6, &mut keyed(key, Purpose::Open, 0, 0));
        *counts.entry((0..6).map(|i| permutation.at(i)).collect()).or_default() += 1;
    }
    let chi_square: f64 = counts.values().map(|&n| (f64::from(n) - 100.0).powi(2) / 100.0).sum::<f64>()
        + 100.0 * (720 - counts.len()) as f64;
    assert!(
        counts.len() == 720 && chi_square < 719.0 + 5.0 * 38.0,
        "{} permutations, chi-square {chi_square}",
        counts.len()
    );
}

#[test]
fn steps_are_counted() {
    assert_eq!(steps_per_epoch(1_437, 4, 32, Tail::Short), 12);
    assert_eq!(steps_per_epoch(1_437, 4, 32, Tail::Drop), 11);
    assert_eq!(steps_per_epoch(3, 4, 32, Tail::Short), 1);
    assert_eq!(steps_per_epoch(3, 4, 32, Tail::Drop), 0);
    let spec = |extra: &str| {
        let text = format!(
            r#"{{"name":"t","model":{{"kind":"mlp"}},"dataset":"d","workers":{{"max":4}},"batch_size":32,{extra}}}"#
        );
        events_schema::job::JobSpec::parse(&serde_json::from_str(&text).unwrap()).unwrap()
    };
    assert_eq!(steps_total(&spec(r#""epochs":3"#), 1_437), Ok(36));
    assert_eq!(steps_total(&spec(r#""steps":77"#), 1_437), Ok(77));
    assert_eq!(steps_total(&spec(r#""steps":77"#), 0), Err(OrderError::NoRows));
    assert!(matches!(
        steps_total(&spec(r#""steps":77,"tail":"drop""#), 100),
        Err(OrderError::NoFullStep { needed: 128, .. })
    ));
    let plan = OrderPlan::training(&spec(r#""epochs":3"#), vec![1_437]);
    assert_eq!(plan.locate(Step(25)), Some((2, 1)));
}

#[test]
fn a_short_last_step_may_leave_ranks_without_samples() {
    let plan = Arc::new(OrderPlan::new(vec![3], 5, 4, Shuffle::Full, Tail::Short, 1));
    let order = plan.epoch(0);
    let counts: Vec<usize> = (0..6).map(|rank| order.samples(Rank(rank), 0).len()).collect();
    assert_eq!(counts, [1, 1, 1, 0, 0, 0]);
    assert!(order.samples(Rank(0), 1).is_empty());
}
