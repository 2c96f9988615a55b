//! Tracks the written elements of a buffer.

use super::overlap::{ElementRange, Footprint};
use hir_plan::View;
use rangemap::RangeSet;

/// The elements of a buffer that have been written.
#[derive(Clone, Debug, Default)]
pub struct WrittenElements {
    runs: RangeSet<usize>,
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
        for run in new {
            self.runs.insert(run.start..run.end);
        }
        true
    }

    /// Removes the elements of a view. Removes all elements if the view has too many pieces.
    pub fn remove(&mut self, view: &View) {
        let Some(gone) = Footprint::of(view) else { return };
        match gone.runs() {
            Some(gone) => gone.into_iter().for_each(|run| self.runs.remove(run.start..run.end)),
            None => self.runs.clear(),
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

    /// Returns the elements of a view that have not been written.
    pub fn missing(&self, view: &View) -> UnwrittenPart {
        let Some(read) = Footprint::of(view) else { return UnwrittenPart::Nothing };
        // The runs of a view can be many; usually one written run contains all.
        if self.runs.get(&read.first).is_some_and(|it| read.last < it.end) {
            return UnwrittenPart::Nothing;
        }
        let Some(read) = read.runs().filter(|_| !self.is_unknown) else { return UnwrittenPart::Unknown };
        let (mut first, mut count, mut all) = (None, 0, 0);
        for run in read {
            all += run.end - run.start;
            for gap in self.runs.gaps(&(run.start..run.end)) {
                count += gap.end - gap.start;
                first.get_or_insert(ElementRange { start: gap.start, end: gap.end });
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
