//! Computations whose elements are at places that depend on other elements: indexing, sorting, grouped products; and scans.

use super::{Computation, computation::list};
use crate::{ReduceOp, View};

/// A routine on views of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Routine {
    /// What it computes.
    pub kind: RoutineKind,
    /// The operands, in the order that the kind says.
    pub inputs: Vec<View>,
    /// The results. They overlap neither each other nor the operands, except that the base of a scatter may be its result.
    pub outs: Vec<View>,
}

/// What a routine computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RoutineKind {
    /// `out[i] = source[i with i[dim] replaced by index[i] - first]`, of `source` and `index`. All have the same dimensions, and
    /// extents differ only in `source` along `dim`. An index outside of `source` is an error; if the source is a part of a
    /// larger one, the element is 0 instead.
    Gather {
        /// The dimension.
        dim: usize,
        /// The index of the first element of the source; `Some` if the source is a part.
        first: Option<usize>,
    },
    /// `out = base`, then `out[i with i[dim] replaced by index[i]]` becomes `value[i]`, or is increased by it, for all `i` in
    /// ascending order; of `base`, `index` and `value`. `index` and `value` have the same shape, which differs from that of
    /// `base` only along `dim`.
    Scatter {
        /// The dimension.
        dim: usize,
        /// Whether values are added.
        accumulates: bool,
    },
    /// Sorts along a dimension: the results are the first elements in the order, and their indices. Equal elements keep
    /// their order, and NaN is larger than all numbers.
    Sort {
        /// The dimension.
        dim: usize,
        /// Whether the largest element is the first.
        is_descending: bool,
    },
    /// Each element is what the elements up to it, along a dimension, reduce to. Sums are added in any order.
    Scan {
        /// The dimension.
        dim: usize,
        /// What combines two elements: a sum, a minimum or a maximum.
        op: ReduceOp,
    },
    /// A matrix product for each group, of `a`, `b` and `ends`: a dimension is divided into groups, and group `g` ends
    /// before index `ends[g]` of it. What no group computes is 0.
    GroupedGemm(GroupedDim),
}

/// The dimension of a grouped matrix product that is divided into groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupedDim {
    /// The rows: `a[m, k] · b[g, k, n]` is `[m, n]`.
    Rows,
    /// The summed dimension: `a[m, k] · b[k, n]` is `[g, m, n]`.
    Depth,
    /// The columns: `a[g, m, k] · b[k, n]` is `[m, n]`.
    Columns,
}

impl Computation for Routine {
    fn name(&self) -> &'static str {
        match self.kind {
            RoutineKind::Gather { .. } => "gather",
            RoutineKind::Scatter { .. } => "scatter",
            RoutineKind::Sort { .. } => "sort",
            RoutineKind::Scan { .. } => "scan",
            RoutineKind::GroupedGemm(_) => "grouped_gemm",
        }
    }

    fn text(&self, view: &dyn Fn(&View) -> String) -> String {
        let options = match self.kind {
            RoutineKind::Gather { dim, first: None } => format!(", dim {dim}"),
            RoutineKind::Gather { dim, first: Some(first) } => format!(", dim {dim}, part from {first}"),
            RoutineKind::Scatter { dim, accumulates: false } => format!(", dim {dim}"),
            RoutineKind::Scatter { dim, accumulates: true } => format!(", dim {dim}, add"),
            RoutineKind::Sort { dim, is_descending: false } => format!(", dim {dim}"),
            RoutineKind::Sort { dim, is_descending: true } => format!(", dim {dim}, descending"),
            RoutineKind::Scan { dim, op } => format!(", dim {dim}, {}", op.name()),
            RoutineKind::GroupedGemm(GroupedDim::Rows) => ", groups of rows".to_owned(),
            RoutineKind::GroupedGemm(GroupedDim::Depth) => ", groups of terms".to_owned(),
            RoutineKind::GroupedGemm(GroupedDim::Columns) => ", groups of columns".to_owned(),
        };
        format!("{} {} <- {}{options}", self.name(), list(&self.outs, view), list(&self.inputs, view))
    }

    fn visit_views<'p>(&'p self, visit: &mut dyn FnMut(&'p View, bool)) {
        self.inputs.iter().for_each(|it| visit(it, false));
        self.outs.iter().for_each(|it| visit(it, true));
    }

    fn change_views(&mut self, change: &mut dyn FnMut(&mut View)) {
        self.inputs.iter_mut().chain(&mut self.outs).for_each(change);
    }

    fn moved_bytes(&self, bytes: &dyn Fn(&View) -> f64) -> f64 {
        let written = self.outs.iter().map(bytes).sum::<f64>();
        // A gather reads those elements of its source that it selects.
        let most = if matches!(self.kind, RoutineKind::Gather { .. }) { written } else { f64::INFINITY };
        let [source, others @ ..] = self.inputs.as_slice() else { return 0.0 };
        let read = bytes(source).min(most) + others.iter().map(bytes).sum::<f64>();
        read + written
    }

    fn multiplications(&self) -> usize {
        let depth = self.inputs.first().and_then(|it| it.shape.last()).copied().unwrap_or(0);
        let out = self.outs.first().map_or(0, View::len);
        match self.kind {
            RoutineKind::GroupedGemm(GroupedDim::Depth) => {
                let groups = self.outs.first().and_then(|it| it.shape.first()).copied().unwrap_or(1);
                (out / groups.max(1)).saturating_mul(depth)
            }
            RoutineKind::GroupedGemm(GroupedDim::Rows | GroupedDim::Columns) => out.saturating_mul(depth),
            RoutineKind::Gather { .. }
            | RoutineKind::Scatter { .. }
            | RoutineKind::Sort { .. }
            | RoutineKind::Scan { .. } => 0,
        }
    }

    fn longest_sum(&self) -> usize {
        match self.kind {
            RoutineKind::GroupedGemm(_) => {
                self.inputs.first().and_then(|it| it.shape.last()).copied().unwrap_or(1)
            }
            RoutineKind::Scatter { dim, accumulates: true } => {
                self.inputs.get(1).and_then(|it| it.shape.get(dim)).map_or(1, |it| it + 1)
            }
            RoutineKind::Scan { dim, op: ReduceOp::Sum } => {
                self.inputs.first().and_then(|it| it.shape.get(dim)).copied().unwrap_or(1)
            }
            RoutineKind::Scatter { .. }
            | RoutineKind::Gather { .. }
            | RoutineKind::Sort { .. }
            | RoutineKind::Scan { .. } => 1,
        }
    }
}
