//! Routines: elements at places that depend on other elements.

mod grouped;
mod scan;
mod scatter;
mod sort;

use grammar::DType;

use super::{Exactness, KernelError, Result};
use hir_plan::RoutineKind;
use hir_tensor::{
    data::{Data, Shadow, WrittenMask},
    dense::DenseTensor,
};

/// Runs a routine. `targets` are the types and shapes of its results.
///
/// # Errors
/// An index is outside of its dimension, groups do not ascend, or `Data` does not support a type.
pub fn routine(
    kind: RoutineKind,
    inputs: &[DenseTensor],
    targets: &[(DType, &[usize])],
    exactness: &mut Exactness,
) -> Result<Vec<DenseTensor>> {
    Ok(match (kind, inputs, targets) {
        (RoutineKind::Gather { dim, first }, [source, index], _) => vec![gather(dim, first, source, index)?],
        (RoutineKind::Scatter { dim, accumulates }, [base, index, value], [(dtype, _)]) => {
            vec![scatter::scatter((dim, accumulates), base, index, value, *dtype, exactness)?]
        }
        (RoutineKind::Sort { dim, is_descending }, [input], [(_, shape), (indices, _)]) => {
            sort::sort((dim, is_descending), input, shape, *indices)?
        }
        (RoutineKind::Scan { dim, op }, [input], [(dtype, _)]) => {
            vec![scan::scan((dim, op), input, *dtype, exactness)?]
        }
        (RoutineKind::GroupedGemm(dim), [a, b, ends], [(dtype, shape)]) => {
            vec![grouped::grouped_gemm(dim, [a, b], ends, (*dtype, shape), exactness)?]
        }
        _ => Vec::new(),
    })
}

/// The lines of a tensor along a dimension: for each line, the row-major index of its first element, and the distance of its
/// elements.
fn lines(shape: &[usize], dim: usize) -> (impl Iterator<Item = usize> + use<>, usize) {
    let step: usize = shape[dim + 1..].iter().product();
    let outer: usize = shape[..dim].iter().product();
    let length = shape[dim] * step;
    ((0..outer).flat_map(move |at| (0..step).map(move |inner| at * length + inner)), step)
}

/// Returns the values of an index tensor, -1 where it is unwritten.
fn indices_of(index: &DenseTensor) -> Vec<i128> {
    let mut values = index.data.to_i128();
    if !index.written.is_full() {
        (0..values.len()).filter(|at| !index.written.get(*at)).for_each(|at| values[at] = -1);
    }
    values
}

/// `source` differs from `index` only in the extent of `dim`. Elements of unwritten indices are unwritten.
fn gather(
    dim: usize,
    first: Option<usize>,
    source: &DenseTensor,
    index: &DenseTensor,
) -> Result<DenseTensor> {
    let extent = source.shape[dim];
    let values = indices_of(index);
    let (starts, step) = lines(&index.shape, dim);
    let (source_starts, _) = lines(&source.shape, dim);
    let mut places = vec![None; values.len()];
    for (start, from) in starts.zip(source_starts) {
        for at in (start..).step_by(step.max(1)).take(index.shape[dim]) {
            let value = values[at] - first.unwrap_or(0) as i128;
            let own = usize::try_from(value).ok().filter(|it| *it < extent);
            if own.is_none() && first.is_none() && index.written.get(at) {
                return Err(KernelError::Index { index: values[at], extent, element: at });
            }
            places[at] = own.map(|own| from + own * step);
        }
    }
    let is_written = |(at, place): (usize, &Option<usize>)| {
        index.written.get(at) && place.is_none_or(|it| source.written.get(it))
    };
    let written = WrittenMask::from_flags(places.iter().enumerate().map(is_written).collect());
    // Index 0 stands in for what the source does not have.
    let picked: Vec<usize> = places.iter().map(|it| it.unwrap_or(0)).collect();
    let missing: Vec<bool> = places.iter().map(Option::is_none).collect();
    let all: Vec<usize> = (0..picked.len()).collect();
    let zeros = Data::zeros(source.data.dtype(), picked.len())?;
    let mut data = if extent == 0 { zeros.clone() } else { source.data.pick(&picked) };
    data.put(&all, &missing, &zeros);
    let shadow = source.shadow.as_ref().filter(|_| extent > 0).map(|it| {
        let mut shadow = it.pick(&picked);
        shadow.put(&all, &missing, &Shadow::of(&zeros));
        shadow
    });
    Ok(DenseTensor { shape: index.shape.clone(), data, written, shadow })
}
