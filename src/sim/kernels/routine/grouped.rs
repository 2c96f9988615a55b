//! Grouped matrix products.

use grammar::DType;

use crate::{
    kernels::{Exactness, KernelError, Result, gemm},
    memory::{self, BufferData},
};
use hir_plan::{GroupedDim, View};
use hir_tensor::{data::WrittenMask, dense::DenseTensor};

/// Computes one product for each group; `target` is the type and the shape of the result.
pub(super) fn grouped_gemm(
    dim: GroupedDim,
    [a, b]: [&DenseTensor; 2],
    ends: &DenseTensor,
    (dtype, shape): (DType, &[usize]),
    exactness: &mut Exactness,
) -> Result<DenseTensor> {
    let mut out = BufferData::zeroed(dtype, shape.iter().product())?;
    let whole = View::contiguous(0, shape.to_vec());
    let extent = match dim {
        GroupedDim::Rows => a.shape[0],
        GroupedDim::Depth => a.shape[1],
        GroupedDim::Columns => b.shape[1],
    };
    if !ends.written.is_full() {
        out.written = WrittenMask::empty(out.data.len());
    }
    let mut start = 0;
    for (group, end) in ends.data.to_i128().into_iter().enumerate() {
        if !ends.written.is_full() {
            break;
        }
        let own = usize::try_from(end).ok().filter(|it| (start..=extent).contains(it));
        let end = own.ok_or(KernelError::Groups { group, start, end, extent })?;
        let range = (start, end - start);
        let (a, b, to) = match dim {
            GroupedDim::Rows => (narrowed(a, 0, range), selected(b, group), narrow_view(&whole, 0, range)),
            GroupedDim::Depth => (narrowed(a, 1, range), narrowed(b, 0, range), select_view(&whole, group)),
            GroupedDim::Columns => (selected(a, group), narrowed(b, 1, range), narrow_view(&whole, 1, range)),
        };
        start = end;
        if to.is_empty() {
            continue;
        }
        let block = gemm(&a, &b, None, dtype, exactness)?;
        memory::scatter(&mut out, &to, &block);
    }
    let BufferData { data, written, shadow } = out;
    Ok(DenseTensor { shape: shape.to_vec(), data, written, shadow })
}

fn narrow_view(view: &View, dim: usize, (start, count): (usize, usize)) -> View {
    let mut view = view.clone();
    view.offset += start * view.strides[dim];
    view.shape[dim] = count;
    view
}

fn select_view(view: &View, index: usize) -> View {
    let mut view = view.clone();
    view.offset += index * view.strides.remove(0);
    view.shape.remove(0);
    view
}

fn part(it: &DenseTensor, view: &View) -> DenseTensor {
    let (data, written) = (it.data.gather(view), it.written.gather(view));
    DenseTensor {
        data,
        written,
        shadow: it.shadow.as_ref().map(|it| it.gather(view)),
        shape: view.shape.clone(),
    }
}

fn narrowed(it: &DenseTensor, dim: usize, range: (usize, usize)) -> DenseTensor {
    part(it, &narrow_view(&View::contiguous(0, it.shape.clone()), dim, range))
}

fn selected(it: &DenseTensor, index: usize) -> DenseTensor {
    part(it, &select_view(&View::contiguous(0, it.shape.clone()), index))
}
