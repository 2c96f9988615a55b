//! Operations on one value of each row, such as the mean in a layer norm: in a kernel over rows, they work on all elements of the rows,
//! as those that use their results do. And reductions of a few parts, such as the partial sums of two ranks: they are elementwise
//! operations on these parts, as those that use their results are.

use hir_plan::{Arg, Inst, InstKind, Reduce, ReduceOp, StreamNo, View};
use rustc_hash::FxHashMap;

use crate::kernels::{DeviceView, ElementwiseArg, ElementwiseOp, RowOp, ScalarFunction};

/// Largest number of parts whose reduction is an elementwise operation.
const MOST_PARTS: usize = 4;

/// The views of an instruction: each repeated along the rows of the reduction before it, or the parts that it reduces.
pub(super) struct WideViews {
    args: Vec<View>,
    out: View,
}

impl WideViews {
    /// Returns, by instruction, the views of those that work on one value of each row.
    pub fn of(rank: usize, code: &[Inst]) -> Vec<Option<Self>> {
        let mut reductions: FxHashMap<StreamNo, &Reduce> = FxHashMap::default();
        let wide = |inst: &Inst, rows: Option<&&Reduce>| {
            let rows = rows?;
            let (args, out): (Vec<&View>, &View) = match &inst.kind {
                InstKind::Map { args, out, .. } => {
                    let views = args.iter().filter_map(|it| match it {
                        Arg::View(it) => Some(it),
                        Arg::Number(_) => None,
                    });
                    (views.collect(), out)
                }
                InstKind::Copy { from, to } if (from.rank, to.rank) == (rank, rank) => {
                    (vec![&from.view], &to.view)
                }
                _ => return None,
            };
            let args = args.into_iter().map(|it| repeated(it, rows)).collect::<Option<_>>()?;
            Some(Self { args, out: repeated(out, rows)? })
        };
        let each = code.iter().map(|inst| {
            if let InstKind::Reduce(it) = &inst.kind {
                let parts = parts(it);
                if parts.is_none() {
                    reductions.insert(inst.stream, it);
                }
                return parts;
            }
            wide(inst, reductions.get(&inst.stream))
        });
        each.collect()
    }

    /// Returns the operation on all elements of the rows, or on the parts.
    pub fn apply<'a>(&'a self, op: &RowOp<'a>) -> Option<RowOp<'a>> {
        let op = match op {
            RowOp::Map(it) => it,
            RowOp::Reduce(it) => {
                let start = it.input.view.offset;
                let part = |view: &'a View| {
                    let bytes = (view.offset - start) * it.input.dtype.size();
                    ElementwiseArg::View(DeviceView {
                        address: it.input.address + bytes as u64,
                        view,
                        ..it.input
                    })
                };
                let args =
                    [ElementwiseArg::Number(it.reduce.init)].into_iter().chain(self.args.iter().map(part));
                let out = DeviceView { view: &self.out, ..it.out };
                return Some(RowOp::Map(ElementwiseOp::new(
                    ScalarFunction::Reduce(it.reduce.op),
                    args.collect(),
                    out,
                )));
            }
            RowOp::MapRows(..) => return None,
        };
        let (mut op, mut views) = (op.clone(), self.args.iter());
        for arg in &mut op.args {
            if let ElementwiseArg::View(it) = arg {
                *it = DeviceView { view: views.next()?, ..*it };
            }
        }
        op.out = DeviceView { view: &self.out, ..op.out };
        Some(RowOp::Map(op))
    }
}

/// Returns the views of a reduction of few parts; `None` for other reductions.
fn parts(it: &Reduce) -> Option<WideViews> {
    let count = *it.input.shape.first()?;
    // The average divides by the number of operands, of which the initial value would be one.
    let is_small = it.axes == [0] && (1..=MOST_PARTS).contains(&count) && it.op != ReduceOp::Avg;
    let View { buffer, offset, shape, strides } = &it.input;
    let part = |at| View {
        buffer: *buffer,
        offset: offset + at * strides[0],
        shape: shape[1..].to_vec(),
        strides: strides[1..].to_vec(),
    };
    is_small.then(|| WideViews { args: (0..count).map(part).collect(), out: it.out.clone() })
}

/// Repeats a view with one element for each row; `None` if it has another shape.
fn repeated(view: &View, rows: &Reduce) -> Option<View> {
    let shape = &rows.input.shape;
    let kept = (0..shape.len()).filter(|dim| !rows.axes.contains(dim));
    let has_ones = view.shape.len() == shape.len();
    let mut strides = vec![0; shape.len()];
    for (at, dim) in kept.enumerate() {
        let own = if has_ones { dim } else { at };
        if view.shape.get(own) != Some(&shape[dim]) {
            return None;
        }
        strides[dim] = view.strides[own];
    }
    let is_row_value = has_ones && rows.axes.iter().all(|dim| view.shape[*dim] == 1)
        || view.shape.len() + rows.axes.len() == shape.len();
    is_row_value.then(|| View { shape: shape.clone(), strides, ..view.clone() })
}
