//! Which elements two views of one buffer have in common.

use crate::plan::View;

/// Most runs of one view that are compared with the other: beyond, nothing is said.
const MAX_RUNS: usize = 1 << 20;

/// Elements of a buffer: the first, and one past the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first element.
    pub start: usize,
    /// One past the last element.
    pub end: usize,
}

/// What two views have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// Nothing.
    None,
    /// The first run of elements that both contain.
    Some(Range),
    /// Too much to compare.
    Unknown,
}

/// The first run of elements that both views contain. The views are of one buffer.
pub fn overlap(a: &View, b: &View) -> Overlap {
    if !a.may_alias(b) {
        return Overlap::None;
    }
    let (a, b) = (Lattice::of(a), Lattice::of(b));
    if a.is_disjoint_modulo_width(&b) {
        return Overlap::None;
    }
    let (few, other) = if a.runs() <= b.runs() { (a, b) } else { (b, a) };
    if few.runs() > MAX_RUNS {
        return Overlap::Unknown;
    }
    few.find_run(|run| other.first_within(run)).map_or(Overlap::None, Overlap::Some)
}

/// Whether a view certainly contains all elements of another: it is the same, or has all elements from its first to its last.
pub fn covers(view: &View, other: &View) -> bool {
    let Some(((start, end), (first, last))) = view.bounds().zip(other.bounds()) else {
        return other.is_empty();
    };
    view == other || (start <= first && last <= end && Lattice::of(view).runs() == 1)
}

/// Where a view lies: its first and last element and, where it is columns of a matrix, which.
#[derive(Clone, Copy, Debug)]
pub struct Footprint {
    /// The first element.
    pub first: usize,
    /// The last element.
    pub last: usize,
    /// The number that all distances between its runs are multiples of; 0: it is one run, or its runs are longer.
    pub width: usize,
    /// Elements of a run.
    run: usize,
}

impl Footprint {
    /// Where a view lies; `None`: it has no elements.
    pub fn of(view: &View) -> Option<Self> {
        let (first, last) = view.bounds()?;
        let lattice = Lattice::of(view);
        let width = lattice.dims.iter().fold(0, |width, it| gcd(it.1, width));
        let width = if lattice.run > width { 0 } else { width };
        Some(Self { first, last, width, run: if width == 0 { last - first + 1 } else { lattice.run } })
    }

    /// The first and the last column of a matrix of this width that it touches, where these are some of them.
    pub fn columns(&self, width: usize) -> Option<(usize, usize)> {
        let is_narrow = width > 0 && self.run <= width && self.width.is_multiple_of(width);
        let start = self.first.checked_rem(width).filter(|start| is_narrow && start + self.run <= width)?;
        Some((start, start + self.run - 1))
    }
}

/// A view as sums of multiples: `offset + Σ i·stride` with `i < extent`, strides descending, neighbours merged.
struct Lattice {
    offset: usize,
    /// Extent and stride of each dimension, without those of one element or stride 0.
    dims: Vec<(usize, usize)>,
    /// Elements of a run: consecutive in memory.
    run: usize,
}

impl Lattice {
    fn of(view: &View) -> Self {
        let mut dims: Vec<(usize, usize)> = view
            .shape
            .iter()
            .copied()
            .zip(view.strides.iter().copied())
            .filter(|it| it.0 > 1 && it.1 > 0)
            .collect();
        dims.sort_by_key(|it| std::cmp::Reverse(it.1));
        // A dimension that continues the next one is one with it.
        let mut merged: Vec<(usize, usize)> = Vec::new();
        for (extent, stride) in dims {
            match merged.last_mut() {
                Some(outer) if outer.1 == extent * stride => *outer = (outer.0 * extent, stride),
                _ => merged.push((extent, stride)),
            }
        }
        let run = match merged.last() {
            Some((extent, 1)) => *extent,
            _ => 1,
        };
        if run > 1 {
            merged.pop();
        }
        Self { offset: view.offset, dims: merged, run }
    }

    /// Whether the two are columns of one matrix that have nothing in common: all strides are multiples of one number, and the runs
    /// are apart modulo that number. Quick, and true of most views that do not overlap.
    fn is_disjoint_modulo_width(&self, other: &Self) -> bool {
        let width = self.dims.iter().chain(&other.dims).fold(0, |width, it| gcd(it.1, width));
        if width == 0 || self.run > width || other.run > width {
            return false;
        }
        let (mine, theirs) = (self.offset % width, other.offset % width);
        let from = |start: usize, other: usize| (other + width - start) % width;
        from(mine, theirs) >= self.run && from(theirs, mine) >= other.run
    }

    fn runs(&self) -> usize {
        self.dims.iter().fold(1, |count: usize, it| count.saturating_mul(it.0))
    }

    /// The first result for a run, in the order of the dimensions.
    fn find_run(&self, mut test: impl FnMut(Range) -> Option<Range>) -> Option<Range> {
        let mut index = vec![0; self.dims.len()];
        loop {
            let start = self.offset + index.iter().zip(&self.dims).map(|(at, it)| at * it.1).sum::<usize>();
            if let Some(found) = test(Range { start, end: start + self.run }) {
                return Some(found);
            }
            let at = (0..index.len()).rev().find(|at| index[*at] + 1 < self.dims[*at].0)?;
            index[at] += 1;
            index[at + 1..].fill(0);
        }
    }

    /// The first elements of a range that the lattice contains.
    fn first_within(&self, range: Range) -> Option<Range> {
        within(&self.dims, self.run, self.offset, range)
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The first elements of a range among those of `dims` from `offset` on, whose innermost runs have `run` elements.
fn within(dims: &[(usize, usize)], run: usize, offset: usize, range: Range) -> Option<Range> {
    let Some(((extent, stride), inner)) = dims.split_first() else {
        let start = offset.max(range.start);
        let end = (offset + run).min(range.end);
        return (start < end).then_some(Range { start, end });
    };
    let reach: usize = inner.iter().map(|(extent, stride)| (extent - 1) * stride).sum::<usize>() + run;
    // Indices whose elements may reach into the range.
    let first = (range.start + 1).saturating_sub(offset + reach).div_ceil(*stride);
    let last = (range.end.checked_sub(offset + 1)? / stride).min(extent - 1);
    (first..=last).find_map(|at| within(inner, run, offset + at * stride, range))
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
        all.sort_unstable();
        all.dedup();
        all
    }

    #[test]
    fn it_is_what_the_elements_say() {
        let mut state = 7;
        let mut below = |n: u64| (split_mix(&mut state) % n) as usize;
        let mut seen = [0; 2];
        for _ in 0..20_000 {
            let mut view = || {
                let dims = below(4);
                View {
                    buffer: 0,
                    offset: below(12),
                    shape: (0..dims).map(|_| below(4)).collect(),
                    strides: (0..dims).map(|_| below(9)).collect(),
                }
            };
            let (a, b) = (view(), view());
            let (left, right) = (elements(&a), elements(&b));
            let common: Vec<usize> = left.into_iter().filter(|it| right.contains(it)).collect();
            let found = overlap(&a, &b);
            assert_ne!(found, Overlap::Unknown, "few elements");
            match found {
                Overlap::None => assert_eq!(common, [0; 0], "{a:?} {b:?}"),
                Overlap::Some(it) => {
                    assert!((it.start..it.end).all(|at| common.contains(&at)), "{a:?} {b:?} {it:?}");
                }
                Overlap::Unknown => (),
            }
            if covers(&a, &b) {
                assert_eq!(common, right, "{a:?} {b:?}");
            }
            seen[usize::from(common.is_empty())] += 1;
        }
        assert!(seen.iter().all(|it| *it > 1000), "{seen:?}");
    }
}
