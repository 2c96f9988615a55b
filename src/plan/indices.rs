//! The indices of a whole dimension that a rank's part holds.

use super::AxisPiece;

/// The indices of a whole dimension that a rank's part holds.
pub(crate) struct Indices {
    /// The first index.
    first: usize,
    /// The loops that enumerate the other indices, slowest first: the number of iterations, and the global
    /// distance between them.
    steps: Vec<(usize, usize)>,
}

/// Indices with a constant stride, both in the part and in the whole dimension.
pub(crate) struct Run {
    pub local: usize,
    pub local_step: usize,
    pub whole: usize,
    pub whole_step: usize,
    pub count: usize,
}

impl Indices {
    pub fn of(pieces: &[AxisPiece]) -> Self {
        let mut it = Self { first: 0, steps: Vec::new() };
        let mut step = 1;
        for piece in pieces.iter().rev() {
            match (piece.coordinate, it.steps.last_mut()) {
                (Some(at), _) => it.first += at * step,
                (None, Some((count, length))) if *count * *length == step => *count *= piece.extent,
                (None, _) => it.steps.push((piece.extent, step)),
            }
            step *= piece.extent;
        }
        it.steps.reverse();
        it
    }

    /// Returns the indices as the smallest number of runs: one for each combination of the loops other than
    /// the longest.
    pub fn runs(&self) -> Vec<Run> {
        let longest = (0..self.steps.len()).max_by_key(|at| self.steps[*at].0);
        let (mut count, mut whole_step, mut local_step) = (1, 0, 0);
        let mut starts = vec![(0, self.first)];
        let mut inner: usize = self.steps.iter().map(|(count, _)| count).product();
        for (at, (steps, length)) in self.steps.iter().copied().enumerate() {
            inner = inner.checked_div(steps).unwrap_or(0);
            if Some(at) == longest {
                (count, whole_step, local_step) = (steps, length, inner);
                continue;
            }
            let below = |(local, whole): &(usize, usize)| {
                let (local, whole) = (*local, *whole);
                (0..steps).map(move |it| (local + it * inner, whole + it * length))
            };
            starts = starts.iter().flat_map(below).collect();
        }
        let run = |(local, whole)| Run { local, local_step, whole, whole_step, count };
        starts.into_iter().map(run).collect()
    }

    /// Returns all global indices in ascending order.
    pub fn all(&self) -> Vec<usize> {
        let below = |starts: Vec<usize>, (steps, length): &(usize, usize)| {
            starts.iter().flat_map(|start| (0..*steps).map(move |it| start + it * length)).collect()
        };
        self.steps.iter().fold(vec![self.first], below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ShardLayout;

    fn piece(extent: usize, coordinate: Option<usize>) -> AxisPiece {
        AxisPiece { extent, coordinate }
    }

    /// Layouts of one dimension: split by devices outside, inside, on both sides, and not at all.
    fn layouts() -> Vec<Vec<AxisPiece>> {
        vec![
            vec![piece(7, None)],
            vec![piece(2, Some(1)), piece(4, None)],
            vec![piece(4, None), piece(2, Some(1))],
            vec![piece(2, None), piece(3, Some(2)), piece(5, None)],
            vec![piece(3, None), piece(2, Some(0)), piece(2, None), piece(2, Some(1)), piece(2, None)],
            vec![piece(3, None), piece(1, Some(0)), piece(2, None)],
            vec![piece(2, Some(1)), piece(2, Some(0))],
            vec![piece(2, Some(1)), piece(0, None)],
        ]
    }

    #[test]
    fn runs_have_the_indices_of_the_layout() {
        for pieces in layouts() {
            let shape = vec![pieces.iter().map(|it| it.extent).product()];
            let wanted = ShardLayout { shape, pieces: vec![pieces.clone()] }.global_indices();
            let indices = Indices::of(&pieces);
            assert_eq!(indices.all(), wanted);
            let mut found = vec![usize::MAX; wanted.len()];
            for run in indices.runs() {
                (0..run.count)
                    .for_each(|it| found[run.local + it * run.local_step] = run.whole + it * run.whole_step);
            }
            assert_eq!(found, wanted);
        }
    }
}
