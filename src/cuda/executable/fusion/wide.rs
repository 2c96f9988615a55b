//! Operations on one value of each row, such as the mean in a layer norm: in a kernel over rows, they work on all elements of the rows,
//! as those that use their results do.

use hir_plan::{Arg, Inst, InstKind, Reduce, StreamNo, View};
use rustc_hash::FxHashMap;

use crate::kernels::{DeviceView, ElementwiseArg, RowOp};

/// The views of an instruction, each repeated along the rows of the reduction before it.
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
                reductions.insert(inst.stream, it);
            }
            wide(inst, reductions.get(&inst.stream))
        });
        each.collect()
    }

    /// Returns the operation on all elements of the rows.
    pub fn apply<'a>(&'a self, op: &RowOp<'a>) -> Option<RowOp<'a>> {
        let RowOp::Map(op) = op else { return None };
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
