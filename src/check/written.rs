//! Which elements of a buffer have been written, as runs.

use super::overlap::Range;
use crate::plan::View;

/// Most runs that a view may have: of a view with more, nothing is recorded and nothing is known.
const MAX_RUNS: usize = 1 << 20;
/// Runs that are added one by one.
const FEW: usize = 8;

/// The elements of a buffer that have been written.
#[derive(Clone, Debug, Default)]
pub struct Written {
    /// Disjoint, ascending, no two adjacent.
    runs: Vec<Range>,
    /// Whether a write was too fine to record: then every element counts as written.
    unknown: bool,
}

impl Written {
    /// Records a write. False where the view has too many runs.
    pub fn write(&mut self, view: &View) -> bool {
        let Some(new) = runs(view) else {
            self.unknown = true;
            return false;
        };
        match new.as_slice() {
            few if few.len() <= FEW => few.iter().for_each(|run| self.insert(*run)),
            many => self.merge(many),
        }
        true
    }

    /// Adds a run; runs mostly come in ascending order.
    fn insert(&mut self, run: Range) {
        let first = self.runs.partition_point(|it| it.end < run.start);
        let last = self.runs.partition_point(|it| it.start <= run.end);
        let touched = &self.runs[first..last];
        let start = touched.first().map_or(run.start, |it| it.start.min(run.start));
        let end = touched.last().map_or(run.end, |it| it.end.max(run.end));
        self.runs.splice(first..last, [Range { start, end }]);
    }

    /// Adds many runs at once.
    fn merge(&mut self, new: &[Range]) {
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

    /// What of a view has not been written.
    pub fn missing(&self, view: &View) -> Missing {
        let Some((start, end)) = view.bounds() else { return Missing::Nothing };
        let before = self.runs.partition_point(|it| it.start <= start);
        if before > 0 && end < self.runs[before - 1].end {
            return Missing::Nothing;
        }
        let Some(read) = runs(view).filter(|_| !self.unknown) else { return Missing::Unknown };
        let (mut first, mut count, mut all) = (None, 0, 0);
        for run in read {
            all += run.end - run.start;
            let mut at = run.start;
            let from = self.runs.partition_point(|it| it.end <= run.start);
            let within = self.runs[from..].iter().take_while(|it| it.start < run.end);
            for next in within.copied().chain([Range { start: run.end, end: run.end }]) {
                if at < next.start {
                    let gap = Range { start: at, end: next.start };
                    count += gap.end - gap.start;
                    first.get_or_insert(gap);
                }
                at = at.max(next.end);
            }
        }
        first.map_or(Missing::Nothing, |first| Missing::Some { first, count, all })
    }
}

/// What of a view has not been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Nothing.
    Nothing,
    /// Some elements.
    Some {
        /// The first of them.
        first: Range,
        /// How many there are, and how many elements the view has; elements that it repeats count as often as its runs name them.
        count: usize,
        /// All elements of the view.
        all: usize,
    },
    /// The view, or one that was written, has too many pieces.
    Unknown,
}

/// The runs of a view, each once where the view repeats elements, ascending where its strides descend; `None`: too many.
fn runs(view: &View) -> Option<Vec<Range>> {
    if view.is_empty() {
        return Some(Vec::new());
    }
    let mut dims: Vec<(usize, usize)> = view
        .shape
        .iter()
        .copied()
        .zip(view.strides.iter().copied())
        .filter(|it| it.0 > 1 && it.1 > 0)
        .collect();
    dims.sort_by_key(|it| std::cmp::Reverse(it.1));
    let mut len = 1;
    while let Some((extent, _)) = dims.pop_if(|it| it.1 == len) {
        len *= extent;
    }
    let count = dims.iter().fold(1, |count: usize, it| count.saturating_mul(it.0));
    if count > MAX_RUNS {
        return None;
    }
    let mut starts = vec![view.offset];
    for (extent, stride) in dims {
        starts =
            starts.into_iter().flat_map(|start| (0..extent).map(move |at| start + at * stride)).collect();
    }
    Some(starts.into_iter().map(|start| Range { start, end: start + len }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::generate::split_mix;

    fn elements(view: &View) -> Vec<usize> {
        let mut all = vec![view.offset];
        for (extent, stride) in view.shape.iter().zip(&view.strides) {
            all = all.into_iter().flat_map(|it| (0..*extent).map(move |at| it + at * stride)).collect();
        }
        all
    }

    #[test]
    fn missing_elements_are_those_that_no_write_names() {
        let mut state = 3;
        let mut below = |n: u64| (split_mix(&mut state) % n) as usize;
        for _ in 0..5_000 {
            let mut view = || {
                let dims = below(4);
                View {
                    buffer: 0,
                    offset: below(20),
                    shape: (0..dims).map(|_| below(4)).collect(),
                    strides: (0..dims).map(|_| below(9)).collect(),
                }
            };
            let mut written = Written::default();
            let mut known = [false; 128];
            for _ in 0..4 {
                let it = view();
                assert!(written.write(&it));
                elements(&it).into_iter().for_each(|at| known[at] = true);
            }
            let read = view();
            let mut missing: Vec<usize> = elements(&read).into_iter().filter(|at| !known[*at]).collect();
            missing.sort_unstable();
            missing.dedup();
            let found = written.missing(&read);
            assert_ne!(found, Missing::Unknown, "few runs");
            match found {
                Missing::Nothing => assert!(missing.is_empty(), "{read:?}"),
                Missing::Some { first, .. } => assert!(missing.contains(&first.start), "{read:?} {found:?}"),
                Missing::Unknown => (),
            }
        }
    }
}
