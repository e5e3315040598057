//! That whoever is measured costs nobody a slot, as a property over plans of any sort. What it is good for is told in `tests/scenarios/profile.rs`.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::policy::{ClassView, JobView, Share};
use proptest::prelude::*;

/// Jobs of a plan: what they hold, what the plan gives them, and what they are to be measured at, if at all.
fn any_jobs() -> impl Strategy<Value = Vec<(u16, u16, Option<u16>)>> {
    proptest::collection::vec((0u16..6, 0u16..6, proptest::option::of(1u16..12)), 1..6)
}

proptest! {
    #[test]
    fn what_is_measured_is_beside_the_plan(jobs in any_jobs(), spare in 0u32..10, free in 0usize..10) {
        let given: u32 = jobs.iter().map(|(_, slots, _)| u32::from(*slots)).sum();
        let capacity = given + spare;
        let of = |(held, ..): &(u16, u16, Option<u16>)| JobView {
            min: 1, max: 12, held: *held, class: (*held > 0).then_some(0), ..JobView::default()
        };
        let classes = vec![ClassView { capacity, declared: capacity, ..ClassView::default() }];
        let view = View { classes, jobs: jobs.iter().map(of).collect(), ..View::default() };
        let shares: Vec<Share> = jobs.iter().map(|(_, slots, _)| Share { slots: *slots, ..Share::default() }).collect();
        let plan = Plan { shares, ..Plan::default() };
        let sizes = jobs.iter().enumerate().filter_map(|(index, (.., size))| Some((index, (*size)?))).collect();
        let beside = Profiles { sizes, until: None }.beside(&view, &plan, |_, _| free);
        // Everybody else keeps what the plan gives, and so does who is measured on fewer.
        let kept: u32 = jobs.iter().zip(0..).map(|((_, slots, _), index)| {
            u32::from(beside.get(&index).copied().unwrap_or(0).max(*slots))
        }).sum();
        prop_assert!(kept <= capacity, "{kept} of {capacity}: {beside:?}");
        for (index, size) in &beside {
            let (held, slots, wanted) = jobs[*index];
            prop_assert!(Some(*size) == wanted && slots > 0 && held > 0, "who waits or is stopped is not measured");
            prop_assert!(usize::from(size.saturating_sub(held)) <= free, "what is not free yet is not counted on");
        }
    }

    /// What policies are told never adds up to more than there is.
    #[test]
    fn what_policies_are_told_is_there(held in 1u16..8, base in 1u16..12, others in 0u16..8, spare in 0u32..8) {
        let capacity = u32::from(held) + u32::from(others) + spare;
        let mut free = [capacity - u32::from(held) - u32::from(others)];
        let told = as_before(&mut free, Some(0), held, base);
        prop_assert!(u32::from(told) + u32::from(others) <= capacity);
        prop_assert!(told <= base.max(held) && told >= base.min(held));
    }
}
