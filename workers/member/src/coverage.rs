//! Which stretches of a vector are there, where each element comes once and stretches come in any order.

use std::collections::BTreeMap;
use std::ops::Range;

/// What is there of a vector.
#[derive(Debug, Clone, Default)]
pub(crate) struct Coverage {
    /// Start and end of what is there; neighbours are joined.
    stretches: BTreeMap<usize, usize>,
}

impl Coverage {
    /// Takes a stretch; `false` when a part of it is there already.
    pub fn take(&mut self, range: Range<usize>) -> bool {
        let before = self.stretches.range(..=range.start).next_back().map(|(&start, &end)| start..end);
        let after = self.stretches.range(range.start..).next().map(|(&start, &end)| start..end);
        let overlaps = |other: &Range<usize>| other.start < range.end && range.start < other.end;
        if range.is_empty() || before.iter().chain(&after).any(overlaps) {
            return false;
        }
        let joined_before = before.filter(|b| b.end == range.start);
        let joined_after = after.filter(|a| a.start == range.end);
        let start = joined_before.map_or(range.start, |b| b.start);
        let end = joined_after.map_or(range.end, |a| {
            self.stretches.remove(&a.start);
            a.end
        });
        self.stretches.insert(start, end);
        true
    }

    /// Whether all of a stretch is there.
    pub fn holds(&self, range: &Range<usize>) -> bool {
        let before = self.stretches.range(..=range.start).next_back();
        range.is_empty() || before.is_some_and(|(_, &end)| end >= range.end)
    }

    /// What of the first `len` elements is not there.
    pub fn gaps(&self, len: usize) -> Vec<Range<usize>> {
        let starts = std::iter::once(0).chain(self.stretches.values().copied());
        let ends = self.stretches.keys().map(|&start| start.min(len)).chain(std::iter::once(len));
        starts.zip(ends).filter(|(start, end)| start < end).map(|(start, end)| start..end).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_what_a_list_of_elements_would_be(stretches in proptest::collection::vec((0usize..30, 0usize..9), 0..12),
            len in 0usize..40,
        ) {
            let (mut coverage, mut there) = (Coverage::default(), vec![false; 40]);
            for (start, count) in stretches {
                let range = start..start + count;
                let fits = count > 0 && !there[range.clone()].contains(&true);
                prop_assert_eq!(coverage.take(range.clone()), fits);
                if fits {
                    there[range].fill(true);
                }
            }
            for start in 0..len {
                prop_assert_eq!(coverage.holds(&(start..len)), !there[start..len].contains(&false));
            }
            let missing: Vec<usize> = (0..len).filter(|element| !there[*element]).collect();
            prop_assert_eq!(coverage.gaps(len).into_iter().flatten().collect::<Vec<_>>(), missing);
        }
    }
}
