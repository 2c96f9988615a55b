//! The line of `Domains:` that a tensor with device or stream axes lacks: it states which axes are the results of one
//! split.

use super::Check;
use crate::{
    ir::{AxisId, AxisKind, Expr, Function, ParallelType, TensorId},
    numbering::free_number,
    ops::Op,
    suggest::list_text,
    text::{axis_text, expr_text},
};

/// A device or stream axis and the axis with which it was split from one axis.
#[derive(Clone, Copy)]
struct SplitPair {
    outer: AxisId,
    inner: AxisId,
}

impl Check<'_, '_> {
    /// Returns the help for a tensor that has as many dimensions too many as device and stream axes, and no line in
    /// `Domains:`. `wanted` is the number of dimensions that the statement requires.
    pub(super) fn missing_domain_line(&self, tensor: TensorId, wanted: usize) -> Option<String> {
        let name = self.program.qualified_name(tensor);
        let line = self.domain_line(tensor, wanted)?;
        Some(if self.program.spans.are_domains_inferred {
            format!(
                "state which axes of `{name}` are the results of one split: add a section `Domains:` after the container \
                 with the line `{line}`"
            )
        } else {
            format!("add the line `{line}` to `Domains:`, which has none for `{name}`")
        })
    }

    /// Returns the help for such a tensor if its axes do not determine the line.
    pub(super) fn missing_splits(&self, tensor: TensorId, wanted: usize) -> Option<String> {
        let axes: Vec<String> =
            self.surplus_axes(tensor, wanted)?.iter().map(|it| axis_text(self.program, *it)).collect();
        let (name, axes) =
            (self.program.qualified_name(tensor), list_text(axes.iter().map(String::as_str), 4, "and"));
        Some(format!(
            "if {axes} of `{name}` are the results of splits, add a line to a section `Domains:` after the container that \
             says so: `{name}: logical(…), outer_split(…, …) -> (…, …)`"
        ))
    }

    /// Returns the device and stream axes of a tensor without a line in `Domains:` if it has as many dimensions too many.
    fn surplus_axes(&self, tensor: TensorId, wanted: usize) -> Option<Vec<AxisId>> {
        let p = self.program;
        let is_parallel = |axis: &AxisId| match p.axes[*axis].parallel {
            ParallelType::Device(_) | ParallelType::Stream => true,
            ParallelType::Serial | ParallelType::Kernel(_) => false,
        };
        let dims = self.dims(tensor);
        let parallel: Vec<AxisId> = dims.iter().copied().filter(is_parallel).collect();
        let fits = !parallel.is_empty() && dims.len() - parallel.len() == wanted;
        (fits && p.has_plain_domains(tensor)).then_some(parallel)
    }

    fn domain_line(&self, tensor: TensorId, wanted: usize) -> Option<String> {
        let p = self.program;
        let parallel = self.surplus_axes(tensor, wanted)?;
        let dims = self.dims(tensor);
        let pairs = self.split_pairs(&dims, &parallel, wanted)?;
        let mut number = free_number(p.axes.iter().map(|(_, axis)| axis.number));
        let (mut logical, mut splits) = (Vec::new(), String::new());
        for axis in dims.iter().filter(|it| !parallel.contains(*it)) {
            let text = axis_text(p, *axis);
            let Some(pair) = pairs.iter().find(|it| it.inner == *axis) else {
                logical.push(text);
                continue;
            };
            let whole = format!("iS{number}{{{}}}", self.whole_extent(*pair)?);
            let (outer, factor) = (axis_text(p, pair.outer), expr_text(p, p.axes[pair.outer].extent));
            splits += &format!(", outer_split({whole}, {factor}) -> ({outer}, {text})");
            logical.push(whole);
            number += 1;
        }
        Some(format!("{}: logical({}){splits}", p.qualified_name(tensor), logical.join(", ")))
    }

    /// Returns the axis with which each device or stream axis was split: the one after it, or another one if the extents
    /// of a tensor of the statement show that.
    fn split_pairs(&self, dims: &[AxisId], parallel: &[AxisId], wanted: usize) -> Option<Vec<SplitPair>> {
        let is_inner =
            |it: &&AxisId| !parallel.contains(*it) && self.program.axes[**it].kind == AxisKind::Iteration;
        let mut next = Vec::new();
        for outer in parallel {
            let after = dims.iter().skip_while(|it| *it != outer).filter(is_inner);
            let free = after.copied().find(|it| next.iter().all(|pair: &SplitPair| pair.inner != *it));
            next.extend(free.map(|inner| SplitPair { outer: *outer, inner }));
        }
        let mut all = Vec::new();
        if next.len() == parallel.len() {
            all.push(next);
        }
        if let [outer] = parallel {
            all.extend(
                dims.iter().filter(is_inner).map(|inner| vec![SplitPair { outer: *outer, inner: *inner }]),
            );
        }
        let shapes = self.stmt.tensor_operands().into_iter().chain(self.stmt.out_tensor());
        let shapes: Vec<Vec<AxisId>> =
            shapes.map(|it| self.dims(it)).filter(|it| it.len() == wanted).collect();
        let fits = |pairs: &Vec<SplitPair>| {
            let kept: Vec<AxisId> = dims.iter().copied().filter(|it| !parallel.contains(it)).collect();
            let is_equal = |(own, other): (&AxisId, &AxisId)| {
                let pair = pairs.iter().find(|it| it.inner == *own);
                let extent = match pair {
                    Some(pair) => {
                        let both = self.constant(pair.outer).zip(self.constant(pair.inner));
                        both.and_then(|(outer, inner)| outer.checked_mul(inner))
                    }
                    None => self.constant(*own),
                };
                let other = self.constant(*other);
                extent.is_none() || other.is_none() || other == Some(1) || extent == other
            };
            shapes.iter().all(|shape| kept.iter().zip(shape).all(is_equal))
        };
        let found = all.iter().find(|it| fits(it)).or(all.first());
        found.cloned()
    }

    /// Returns the extent of the axis that was split into two: `x` for an inner extent `ceilDiv(x, d)`.
    fn whole_extent(&self, SplitPair { outer, inner }: SplitPair) -> Option<String> {
        let p = self.program;
        let [a, b] = [outer, inner].map(|it| p.axes[it].extent);
        if let Some((a, b)) = p.constant(a).zip(p.constant(b)) {
            return Some(a.checked_mul(b)?.to_string());
        }
        match &p.exprs[b] {
            Expr::Call(Function::Op(Op::CeilDiv), args) if args.get(1) == Some(&a) => {
                Some(expr_text(p, *args.first()?))
            }
            _ => Some(format!("( {} * {} )", expr_text(p, a), expr_text(p, b))),
        }
    }
}
