//! The operations of a fused kernel over rows, and the views with one value for each row.

use hir_plan::{Reduce, View};

use crate::kernels::{DeviceView, elementwise::ElementwiseOp, shape::split_dims};

/// An operation on rows.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum RowOp<'a> {
    /// An elementwise operation on all elements.
    Map(ElementwiseOp<'a>),
    /// An elementwise operation on one value for each row of a reduction.
    MapRows(ElementwiseOp<'a>, &'a Reduce),
    /// A reduction of each row.
    Reduce(RowReduction<'a>),
}

/// A reduction of each row to one value.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct RowReduction<'a> {
    pub reduce: &'a Reduce,
    pub input: DeviceView<'a>,
    pub out: DeviceView<'a>,
    /// Whether the result is stored in memory. If not, only later operations of the kernel use it.
    pub is_stored: bool,
}

impl<'a> RowOp<'a> {
    /// Returns the result.
    pub fn out(&self) -> &DeviceView<'a> {
        match self {
            Self::Map(it) | Self::MapRows(it, _) => &it.out,
            Self::Reduce(it) => &it.out,
        }
    }

    /// Returns the shape of the elements of all rows.
    pub fn shape(&self) -> &'a [usize] {
        match self {
            Self::Map(it) => &it.out.view.shape,
            Self::MapRows(_, reduce) => &reduce.input.shape,
            Self::Reduce(it) => &it.input.view.shape,
        }
    }

    /// Returns whether the result is stored.
    pub fn is_stored(&self) -> bool {
        match self {
            Self::Map(it) | Self::MapRows(it, _) => it.is_stored,
            Self::Reduce(it) => it.is_stored,
        }
    }

    /// Returns the operands that are views.
    pub fn views(&self) -> Vec<&DeviceView<'a>> {
        match self {
            Self::Map(it) | Self::MapRows(it, _) => it.views().collect(),
            Self::Reduce(it) => vec![&it.input],
        }
    }

    /// Returns true if a view has the elements of the result. One value for each row may be repeated along the row.
    pub fn defines(&self, view: &DeviceView) -> bool {
        let (out, reduce) = match self {
            Self::Map(it) => return it.out.has_same_elements(view),
            Self::MapRows(it, reduce) => (&it.out, *reduce),
            Self::Reduce(it) => (&it.out, it.reduce),
        };
        let strides = |it: &DeviceView| value_strides(it.view, &reduce.input.shape, &reduce.axes);
        let (outer_shape, _) = split_dims(&reduce.axes, &reduce.input.shape);
        let is_same = |a: Vec<usize>, b: Vec<usize>| {
            a.iter().zip(&b).zip(&outer_shape).all(|((a, b), extent)| *extent == 1 || a == b)
        };
        view.address == out.address
            && view.dtype == out.dtype
            && strides(view).zip(strides(out)).is_some_and(|(a, b)| is_same(a, b))
    }
}

/// Returns the strides over rows of a view that has one value for each row, `None` if it has other elements. `axes` are the
/// dimensions of a row in `shape`; the view may have them with a stride of 0 or an extent of 1, or lack them.
pub(super) fn value_strides(view: &View, shape: &[usize], axes: &[usize]) -> Option<Vec<usize>> {
    let (outer_shape, row_shape) = split_dims(axes, shape);
    if view.shape == outer_shape {
        return Some(view.strides.clone());
    }
    let (outer, row) = split_dims(axes, &view.shape);
    let (outer_strides, row_strides) = split_dims(axes, &view.strides);
    let is_one = |((extent, whole), stride): ((&usize, &usize), &usize)| {
        *extent == 1 || (extent == whole && *stride == 0)
    };
    (view.shape.len() == shape.len()
        && outer == outer_shape
        && row.iter().zip(&row_shape).zip(&row_strides).all(is_one))
    .then_some(outer_strides)
}

/// Replaces the elementwise operations on one value for each row of a reduction among the operations by `MapRows`.
pub(crate) fn with_row_maps<'a>(ops: Vec<RowOp<'a>>) -> Vec<RowOp<'a>> {
    let reductions = ops.iter().filter_map(|it| match it {
        RowOp::Reduce(it) => Some(it.reduce),
        RowOp::Map(_) | RowOp::MapRows(..) => None,
    });
    let Some(reduce) = reductions.into_iter().next() else { return ops };
    let has_values = |it: &DeviceView| value_strides(it.view, &reduce.input.shape, &reduce.axes).is_some();
    let map = |it: RowOp<'a>| match it {
        RowOp::Map(op)
            if op.out.view.shape != reduce.input.shape
                && has_values(&op.out)
                && op.views().all(has_values) =>
        {
            RowOp::MapRows(op, reduce)
        }
        other => other,
    };
    ops.into_iter().map(map).collect()
}

/// Returns the index of the last of the `earlier` operations that defines a view.
pub(crate) fn defining_row_op(earlier: &[RowOp], view: &DeviceView) -> Option<usize> {
    earlier.iter().rposition(|it| it.defines(view))
}
