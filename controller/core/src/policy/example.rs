//! `longest-wait`, the example that `docs/policies.md` shows: who waits longest starts first, and all share alike.
//!
//! It is built for tests alone, where it is asked what every policy is asked, and no command knows its name.

use super::allotment::{Allotment, ordered};
use super::{Plan, Policy, View};
use std::cmp::Reverse;

/// See the module.
pub struct LongestWait;

impl Policy for LongestWait {
    fn name(&self) -> &'static str {
        "longest-wait"
    }

    fn plan(&self, view: &View) -> Plan {
        let mut allotment = Allotment::new(view);
        // Who runs first: a job has waited for no time at all from when it starts, and would be behind all others at once.
        for job in ordered(view, |job| (view.jobs[job].held == 0, Reverse(view.jobs[job].service.waited_ms))) {
            allotment.start(job, view.jobs[job].min, view.jobs[job].min);
        }
        // The fewer slots a job has, the more it gains by its next useful size.
        allotment.grow_by_gain(|job, from| Some((u64::from(u16::MAX - from), view.speeds(job).next_size(from)?)));
        Plan { shares: allotment.shares, ..Plan::default() }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{ClassView, JobView, ServiceView};
    use super::*;

    fn job(min: u16, max: u16, held: u16, waited_ms: u64) -> JobView {
        let service = ServiceView { waited_ms, ..ServiceView::default() };
        JobView { min, max, held, class: (held > 0).then_some(0), service, ..JobView::default() }
    }

    fn slots(capacity: u32, jobs: &[JobView]) -> Vec<u16> {
        let classes = vec![ClassView { capacity, declared: capacity, ..ClassView::default() }];
        let plan = LongestWait.plan(&View { classes, jobs: jobs.to_vec(), ..View::default() });
        plan.shares.iter().map(|share| share.slots).collect()
    }

    #[test]
    fn who_waits_longest_starts_first_and_who_runs_keeps_its_fewest() {
        assert_eq!(slots(2, &[job(2, 2, 0, 10), job(2, 2, 0, 20)]), [0, 2]);
        assert_eq!(slots(2, &[job(2, 2, 2, 0), job(2, 2, 0, 20)]), [2, 0]);
    }

    #[test]
    fn the_rest_is_shared_alike() {
        assert_eq!(slots(8, &[job(1, 8, 8, 0), job(2, 8, 0, 20)]), [4, 4]);
    }

    #[test]
    fn the_page_shows_this_policy() {
        let file = include_str!("example.rs");
        let code = &file[file.find("use super").unwrap()..file.find("\n#[cfg(test)]").unwrap()];
        let shown: String =
            code.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("    {line}\n") }).collect();
        let page = include_str!("../../../../docs/policies.md");
        assert!(
            page.contains(&shown),
            "docs/policies.md is to show the policy of policy/example.rs, which is\n\n{shown}"
        );
    }
}
