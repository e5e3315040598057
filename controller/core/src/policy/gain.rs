//! How fast a job is on p slots: the model behind "least loss" and "most gain".
//!
//! All W logical workers take part in every step, so the member with the most ranks, ⌈W/p⌉, decides the step's time (waste of
//! uneven sizes: EasyScale §3.4, equation 1c). Between steps gradients travel: 2·(p−1)/p of their bytes, taken as a fixed
//! small share of one rank's computation until speeds are measured.

/// Time of the exchange of gradients between many members, in units of one rank's computation.
const EXCHANGE_COST: f64 = 0.05;

/// Steps per unit of time on `slots` members, where one rank's computation takes one unit. 0 slots: 0.
#[must_use]
pub fn speed(workers: u16, slots: u16) -> f64 {
    if slots == 0 {
        return 0.0;
    }
    let slots = slots.min(workers);
    let exchange = EXCHANGE_COST * 2.0 * f64::from(slots - 1) / f64::from(slots);
    1.0 / (f64::from(workers.div_ceil(slots)) + exchange)
}

/// The smallest size with as few ranks on the slowest member as `slots` has: the rest is waste.
#[must_use]
pub fn without_waste(workers: u16, slots: u16) -> u16 {
    if slots == 0 { 0 } else { workers.div_ceil(workers.div_ceil(slots.min(workers))) }
}

/// The next larger size that shortens the step; `None` at one rank per member.
#[must_use]
pub fn next_size(workers: u16, slots: u16) -> Option<u16> {
    if slots == 0 {
        return Some(1);
    }
    let ranks = workers.div_ceil(slots.min(workers));
    (ranks > 1).then(|| workers.div_ceil(ranks - 1))
}

/// The speed at `to` slots as a multiple of that at `from`.
#[must_use]
pub fn ratio(workers: u16, from: u16, to: u16) -> f64 {
    speed(workers, to) / speed(workers, from)
}

/// The share of its speed that a job on `slots` loses with one slot less, in millionths.
#[must_use]
pub fn loss_of_one_micro(workers: u16, slots: u16) -> u64 {
    match slots {
        0 | 1 => 1_000_000,
        // A plateau can only win (fewer members exchange less): no loss.
        _ => ((1.0 - ratio(workers, slots, slots - 1)).max(0.0) * 1e6) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uneven_sizes_waste_what_they_hold_beyond_the_next_even_one() {
        let sizes = |w| (1..=w).map(|p| without_waste(w, p)).collect::<Vec<_>>();
        assert_eq!(sizes(8), [1, 2, 3, 4, 4, 4, 4, 8]);
        assert_eq!(sizes(6), [1, 2, 3, 3, 3, 6]);
        let steps = |w| std::iter::successors(Some(1), |&p| next_size(w, p)).collect::<Vec<_>>();
        assert_eq!(steps(8), [1, 2, 3, 4, 8]);
        assert_eq!(steps(1), [1]);
    }

    #[test]
    fn every_useful_size_is_faster_than_the_one_before() {
        for workers in 1..=256 {
            let mut size = 1;
            while let Some(next) = next_size(workers, size) {
                assert!(next > size && speed(workers, next) > speed(workers, size), "{workers} on {size} to {next}");
                size = next;
            }
            assert_eq!(size, workers);
        }
    }

    #[test]
    fn giving_up_a_wasted_slot_costs_nothing() {
        assert_eq!(loss_of_one_micro(8, 7), 0);
        assert!(loss_of_one_micro(8, 8) > 400_000 && loss_of_one_micro(8, 1) == 1_000_000);
    }
}
