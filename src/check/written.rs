//! Tracks the written elements of a buffer as a list of runs.

use super::overlap::{ElementRange, Footprint};
use hir_plan::View;

/// The maximum number of runs that are inserted one by one; more are merged at once.
const MAX_SINGLE_INSERTS: usize = 8;

/// The elements of a buffer that have been written.
#[derive(Clone, Debug, Default)]
pub struct WrittenElements {
    /// Disjoint runs in ascending order; no two are adjacent.
    runs: Vec<ElementRange>,
    /// True if a write had too many pieces to record.
    is_unknown: bool,
}

impl WrittenElements {
    /// Records a write. Returns false if the view has too many runs.
    pub fn write(&mut self, view: &View) -> bool {
        let Some(written) = Footprint::of(view) else { return true };
        let Some(new) = written.runs() else {
            self.is_unknown = true;
            return false;
        };
        match new.as_slice() {
            few if few.len() <= MAX_SINGLE_INSERTS => few.iter().for_each(|run| self.insert(*run)),
            many => self.merge(many),
        }
        true
    }

    /// Inserts a run. Runs usually arrive in ascending order.
    fn insert(&mut self, run: ElementRange) {
        let first = self.runs.partition_point(|it| it.end < run.start);
        let last = self.runs.partition_point(|it| it.start <= run.end);
        let touched = &self.runs[first..last];
        let start = touched.first().map_or(run.start, |it| it.start.min(run.start));
        let end = touched.last().map_or(run.end, |it| it.end.max(run.end));
        self.runs.splice(first..last, [ElementRange { start, end }]);
    }

    /// Removes the elements of a view. Removes all elements if the view has too many pieces.
    pub fn remove(&mut self, view: &View) {
        let Some(gone) = Footprint::of(view) else { return };
        let Some(gone) = gone.runs() else {
            self.runs.clear();
            return;
        };
        for run in gone {
            let first = self.runs.partition_point(|it| it.end <= run.start);
            let last = self.runs.partition_point(|it| it.start < run.end);
            let touched = self.runs[first..last].to_vec();
            let before = touched.first().map(|it| ElementRange { start: it.start, end: run.start });
            let after = touched.last().map(|it| ElementRange { start: run.end, end: it.end });
            let left = before.into_iter().chain(after).filter(|it| it.start < it.end);
            self.runs.splice(first..last, left);
        }
    }

    /// Returns true if some elements of a view are among these.
    pub fn contains_some(&self, view: &View) -> bool {
        match self.missing(view) {
            UnwrittenPart::Nothing => Footprint::of(view).is_some(),
            UnwrittenPart::Some { count, all, .. } => count < all,
            UnwrittenPart::Unknown => false,
        }
    }

    /// Merges many runs at once.
    fn merge(&mut self, new: &[ElementRange]) {
        let mut all = std::mem::take(&mut self.runs);
        all.extend_from_slice(new);
        all.sort_unstable_by_key(|it| it.start);
        for run in all {
            match self.runs.last_mut().filter(|it| run.start <= it.end) {
                Some(last) => last.end = last.end.max(run.end),
                None => self.runs.push(run),
            }
        }
    }

    /// Returns the elements of a view that have not been written.
    pub fn missing(&self, view: &View) -> UnwrittenPart {
        let Some(read) = Footprint::of(view) else { return UnwrittenPart::Nothing };
        let before = self.runs.partition_point(|it| it.start <= read.first);
        if before > 0 && read.last < self.runs[before - 1].end {
            return UnwrittenPart::Nothing;
        }
        let Some(read) = read.runs().filter(|_| !self.is_unknown) else { return UnwrittenPart::Unknown };
        let (mut first, mut count, mut all) = (None, 0, 0);
        for run in read {
            all += run.end - run.start;
            let mut at = run.start;
            let from = self.runs.partition_point(|it| it.end <= run.start);
            let within = self.runs[from..].iter().take_while(|it| it.start < run.end);
            for next in within.copied().chain([ElementRange { start: run.end, end: run.end }]) {
                if at < next.start {
                    let gap = ElementRange { start: at, end: next.start };
                    count += gap.end - gap.start;
                    first.get_or_insert(gap);
                }
                at = at.max(next.end);
            }
        }
        first.map_or(UnwrittenPart::Nothing, |first| UnwrittenPart::Some { first, count, all })
    }
}

/// The unwritten elements of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnwrittenPart {
    /// All elements are written.
    Nothing,
    /// Some elements are unwritten.
    Some {
        /// The first contiguous range of them.
        first: ElementRange,
        /// Number of unwritten elements. Repeated elements count as often as the runs of the view contain
        /// them.
        count: usize,
        /// Number of elements of the view, counted in the same way.
        all: usize,
    },
    /// Unknown: the view, or a recorded write, has too many pieces.
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlap::tests::{elements, random_view};
    use hir_tensor::generate::split_mix;

    #[test]
    fn removed_elements_are_missing() {
        let mut state = 4;
        let mut below = |n: u64| (split_mix(&mut state) % n) as usize;
        for _ in 0..5_000 {
            let mut written = WrittenElements::default();
            let mut known = [false; 128];
            for is_removed in [false, false, true, false, true] {
                let it = random_view(20, &mut below);
                elements(&it).into_iter().for_each(|at| known[at] = !is_removed);
                if is_removed { written.remove(&it) } else { assert!(written.write(&it)) }
            }
            let read = random_view(20, &mut below);
            let expected = elements(&read).into_iter().any(|at| known[at]);
            assert_eq!(written.contains_some(&read), expected, "{read:?}");
        }
    }

    #[test]
    fn missing_elements_are_those_that_no_write_names() {
        let mut state = 3;
        let mut below = |n: u64| (split_mix(&mut state) % n) as usize;
        for _ in 0..5_000 {
            let mut written = WrittenElements::default();
            let mut known = [false; 128];
            for _ in 0..4 {
                let it = random_view(20, &mut below);
                assert!(written.write(&it));
                elements(&it).into_iter().for_each(|at| known[at] = true);
            }
            let read = random_view(20, &mut below);
            let missing: Vec<usize> = elements(&read).into_iter().filter(|at| !known[*at]).collect();
            let found = written.missing(&read);
            assert_ne!(found, UnwrittenPart::Unknown, "few runs");
            match found {
                UnwrittenPart::Nothing => assert!(missing.is_empty(), "{read:?}"),
                UnwrittenPart::Some { first, .. } => {
                    assert!(missing.contains(&first.start), "{read:?} {found:?}")
                }
                UnwrittenPart::Unknown => (),
            }
        }
    }
}
