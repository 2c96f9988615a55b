//! Computes which elements two views of a buffer share.

use hir_plan::View;

/// The maximum number of runs of a view that are enumerated or compared with another view. Views with more
/// runs are not compared.
const MAX_RUNS: usize = 1 << 20;

/// A half-open range of elements of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ElementRange {
    /// The first element.
    pub start: usize,
    /// One past the last element.
    pub end: usize,
}

/// The elements that two views share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// The views are disjoint.
    None,
    /// The first run of elements that both views contain.
    Some(ElementRange),
    /// The views have too many runs to compare.
    Unknown,
}

/// Returns the first run of elements that two views of the same buffer share.
pub fn overlap(a: &Footprint, b: &Footprint) -> Overlap {
    if a.last < b.first || b.last < a.first || a.is_disjoint_modulo_width(b) {
        return Overlap::None;
    }
    let (few, other) = if a.count() <= b.count() { (a, b) } else { (b, a) };
    if few.count() > MAX_RUNS {
        return Overlap::Unknown;
    }
    let first = |run| first_in_range(&other.dims, other.run, other.first, run);
    few.find_run(first).map_or(Overlap::None, Overlap::Some)
}

/// Returns true if `it` certainly contains all elements of `other`: they are equal, or `it` is contiguous and
/// spans `other`.
pub fn covers(it: &Footprint, other: &Footprint) -> bool {
    it == other || (it.first <= other.first && other.last <= it.last && it.dims.is_empty())
}

/// The elements of a view: runs of `run` elements that start at `first + Σ i·stride`, with `i < extent` for
/// each dimension. Views of one buffer with the same elements have the same footprint, unless their
/// dimensions overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// The first element.
    pub first: usize,
    /// The last element.
    pub last: usize,
    /// The greatest common divisor of the strides: the width of the matrix whose columns the view touches. 0
    /// if the view is a single run or its runs are longer than that.
    pub width: usize,
    /// Extent and stride of each dimension, by descending stride. Adjacent dimensions are merged; dimensions
    /// of extent 1 or stride 0 are dropped.
    dims: Vec<(usize, usize)>,
    /// Number of consecutive elements in a run.
    run: usize,
}

impl Footprint {
    /// Returns true if it certainly has elements in common with another footprint of the same buffer.
    pub fn overlaps(&self, other: &Self) -> bool {
        matches!(overlap(self, other), Overlap::Some(_))
    }
    /// Returns the footprint of a view, or `None` if the view is empty.
    pub fn of(view: &View) -> Option<Self> {
        let (first, last) = view.bounds()?;
        if view.is_contiguous() {
            return Some(Self { first, last, width: 0, dims: Vec::new(), run: last - first + 1 });
        }
        let mut dims: Vec<(usize, usize)> = view
            .shape
            .iter()
            .copied()
            .zip(view.strides.iter().copied())
            .filter(|it| it.0 > 1 && it.1 > 0)
            .collect();
        dims.sort_by_key(|it| std::cmp::Reverse(it.1));
        // A dimension that continues the next one is merged with it.
        let mut merged: Vec<(usize, usize)> = Vec::new();
        for (extent, stride) in dims {
            match merged.last_mut() {
                Some(outer) if outer.1 == extent * stride => *outer = (outer.0 * extent, stride),
                _ => merged.push((extent, stride)),
            }
        }
        let run = merged.pop_if(|it| it.1 == 1).map_or(1, |it| it.0);
        let width = Some(common_stride(&merged)).filter(|it| run <= *it).unwrap_or(0);
        Some(Self { first, last, width, dims: merged, run })
    }

    /// Returns the first and the last column that the footprint touches in a matrix with rows of `width`
    /// elements. Returns `None` if it is not a set of whole columns.
    pub fn columns(&self, width: usize) -> Option<(usize, usize)> {
        let run = if self.width == 0 { self.last - self.first + 1 } else { self.run };
        let is_narrow = width > 0 && run <= width && self.width.is_multiple_of(width);
        let start = self.first.checked_rem(width).filter(|start| is_narrow && start + run <= width)?;
        Some((start, start + run - 1))
    }

    /// Returns all runs, ascending unless dimensions overlap, or `None` if there are too many.
    pub fn runs(&self) -> Option<Vec<ElementRange>> {
        if self.count() > MAX_RUNS {
            return None;
        }
        let mut starts = vec![self.first];
        for &(extent, stride) in &self.dims {
            starts =
                starts.into_iter().flat_map(|start| (0..extent).map(move |at| start + at * stride)).collect();
        }
        Some(starts.into_iter().map(|start| ElementRange { start, end: start + self.run }).collect())
    }

    /// Returns true if the two footprints are disjoint sets of columns of one matrix: all strides are
    /// multiples of one number, and the runs are disjoint modulo that number. This test is cheap and holds
    /// for most views that do not overlap.
    fn is_disjoint_modulo_width(&self, other: &Self) -> bool {
        let width = gcd(common_stride(&self.dims), common_stride(&other.dims));
        if width == 0 || self.run > width || other.run > width {
            return false;
        }
        let (mine, theirs) = (self.first % width, other.first % width);
        let from = |start: usize, other: usize| (other + width - start) % width;
        from(mine, theirs) >= self.run && from(theirs, mine) >= other.run
    }

    /// Returns the number of runs.
    fn count(&self) -> usize {
        self.dims.iter().fold(1, |count: usize, it| count.saturating_mul(it.0))
    }

    /// Calls `test` for each run, in the order of the dimensions, and returns the first result.
    fn find_run(&self, test: impl Fn(ElementRange) -> Option<ElementRange>) -> Option<ElementRange> {
        let mut index = vec![0; self.dims.len()];
        loop {
            let start = self.first + index.iter().zip(&self.dims).map(|(at, it)| at * it.1).sum::<usize>();
            if let Some(found) = test(ElementRange { start, end: start + self.run }) {
                return Some(found);
            }
            let at = (0..index.len()).rev().find(|at| index[*at] + 1 < self.dims[*at].0)?;
            index[at] += 1;
            index[at + 1..].fill(0);
        }
    }
}

/// Returns the greatest common divisor of all strides, or 0 if there are none.
fn common_stride(dims: &[(usize, usize)]) -> usize {
    dims.iter().fold(0, |width, it| gcd(it.1, width))
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Returns the first elements of `range` among the elements of `dims` from `offset` on, with innermost runs
/// of `run` elements.
fn first_in_range(
    dims: &[(usize, usize)],
    run: usize,
    offset: usize,
    range: ElementRange,
) -> Option<ElementRange> {
    let Some(((extent, stride), inner)) = dims.split_first() else {
        let start = offset.max(range.start);
        let end = (offset + run).min(range.end);
        return (start < end).then_some(ElementRange { start, end });
    };
    let reach: usize = inner.iter().map(|(extent, stride)| (extent - 1) * stride).sum::<usize>() + run;
    // The range of indices whose elements may reach into `range`.
    let first = (range.start + 1).saturating_sub(offset + reach).div_ceil(*stride);
    let last = (range.end.checked_sub(offset + 1)? / stride).min(extent - 1);
    (first..=last).find_map(|at| first_in_range(inner, run, offset + at * stride, range))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use hir_tensor::generate::split_mix;

    /// Returns the elements of a view, each once.
    pub fn elements(view: &View) -> Vec<usize> {
        let mut all = vec![view.offset];
        for (extent, stride) in view.shape.iter().zip(&view.strides) {
            all = all.into_iter().flat_map(|it| (0..*extent).map(move |at| it + at * stride)).collect();
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Returns a view of at most three dimensions with offsets below `offsets`; `below` is the random number
    /// generator.
    pub fn random_view(offsets: u64, below: &mut impl FnMut(u64) -> usize) -> View {
        let dims = below(4);
        View {
            buffer: 0,
            offset: below(offsets),
            shape: (0..dims).map(|_| below(4)).collect(),
            strides: (0..dims).map(|_| below(9)).collect(),
        }
    }

    #[test]
    fn it_is_what_the_elements_say() {
        let mut state = 7;
        let mut below = |n: u64| (split_mix(&mut state) % n) as usize;
        let mut seen = [0; 2];
        for _ in 0..20_000 {
            let (a, b) = (random_view(12, &mut below), random_view(12, &mut below));
            let (left, right) = (elements(&a), elements(&b));
            let common: Vec<usize> = left.into_iter().filter(|it| right.contains(it)).collect();
            let footprints = Footprint::of(&a).zip(Footprint::of(&b));
            let found = footprints.as_ref().map_or(Overlap::None, |(a, b)| overlap(a, b));
            assert_ne!(found, Overlap::Unknown, "few elements");
            match found {
                Overlap::None => assert_eq!(common, [0; 0], "{a:?} {b:?}"),
                Overlap::Some(it) => {
                    assert!((it.start..it.end).all(|at| common.contains(&at)), "{a:?} {b:?} {it:?}");
                }
                Overlap::Unknown => (),
            }
            if footprints.is_some_and(|(a, b)| covers(&a, &b)) {
                assert_eq!(common, right, "{a:?} {b:?}");
            }
            seen[usize::from(common.is_empty())] += 1;
        }
        assert!(seen.iter().all(|it| *it > 1000), "{seen:?}");
    }
}
