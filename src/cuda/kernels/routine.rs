//! Routines: elements at places that depend on other elements. Plain kernels, of which each thread computes elements that no
//! other one writes; `scatter` adds in ascending order, as the simulator.

use grammar::dtype::DType;

use super::{
    BLOCK, ComputeType, DeviceView, Kernel, Launch, check_dtypes, float_compute_type, integer_compute_type,
    shape::merge_dims, type_name,
};
use crate::error::Unsupported;
use hir_plan::{GroupedDim, RoutineKind, View};

/// An instance.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RoutineKernel {
    kind: Template,
    /// The element types of the operands, then of the results.
    dtypes: Vec<DType>,
    computed: ComputeType,
}

/// What an instance depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Template {
    Gather { is_part: bool },
    Scatter { accumulates: bool },
    Sort { is_descending: bool },
    GroupedGemm(GroupedDim),
}

/// Returns the launch of a routine; `None` if the result is empty. Of a scatter, the result has the elements of `base`
/// already.
///
/// # Errors
/// The kernels do not support an element type or the number of dimensions.
pub(crate) fn routine_launch(
    kind: RoutineKind,
    inputs: &[DeviceView],
    outs: &[DeviceView],
) -> Result<Option<Launch>, Unsupported> {
    let dtypes: Vec<DType> = inputs.iter().chain(outs).map(|it| it.dtype).collect();
    check_dtypes(dtypes.iter().copied())?;
    let values = match kind {
        RoutineKind::Gather { .. } => vec![inputs[0].dtype, outs[0].dtype],
        RoutineKind::Scatter { .. } => vec![inputs[2].dtype, outs[0].dtype],
        RoutineKind::Sort { .. } => vec![inputs[0].dtype, outs[0].dtype],
        RoutineKind::GroupedGemm(_) => vec![inputs[0].dtype, inputs[1].dtype, outs[0].dtype],
    };
    let types = values.iter().copied();
    let is_whole = values.iter().all(|it| it.is_integral());
    let computed = if is_whole { integer_compute_type(types) } else { float_compute_type(types) };
    let (template, count, params) = match kind {
        RoutineKind::Gather { dim, first } => {
            let ([source, index], [out]) = (inputs, outs) else { return Ok(None) };
            let count = out.view.len();
            let lines = lines(&out.view.shape, None, &[&zeroed(source.view, dim), index.view, out.view])?;
            let mut words = lines.words(&[source, index, out], count);
            let sizes = [source.view.shape[dim], source.view.strides[dim] * source.dtype.size()];
            words.extend(sizes.map(|it| it as u64));
            words.push(first.unwrap_or(0) as u64);
            (Template::Gather { is_part: first.is_some() }, count, words)
        }
        RoutineKind::Scatter { dim, accumulates } => {
            let ([_, index, value], [out]) = (inputs, outs) else { return Ok(None) };
            let count = index.view.len() / index.view.shape[dim].max(1);
            let lines = lines(&index.view.shape, Some(dim), &[index.view, value.view, out.view])?;
            let mut words = lines.words(&[index, value, out], count);
            words.push(index.view.shape[dim] as u64);
            let steps = [index, value, out].map(|it| (it.view.strides[dim] * it.dtype.size()) as u64);
            words.extend(steps);
            words.push(out.view.shape[dim] as u64);
            (Template::Scatter { accumulates }, count, words)
        }
        RoutineKind::Sort { dim, is_descending } => {
            let ([input], [values, indices]) = (inputs, outs) else { return Ok(None) };
            let extent = input.view.shape[dim];
            let count = input.view.len();
            let lines = lines(&input.view.shape, Some(dim), &[input.view, values.view, indices.view])?;
            let mut words = lines.words(&[input, values, indices], count);
            words.extend([extent, values.view.shape[dim]].map(|it| it as u64));
            let steps = [input, values, indices].map(|it| (it.view.strides[dim] * it.dtype.size()) as u64);
            words.extend(steps);
            (Template::Sort { is_descending }, count, words)
        }
        RoutineKind::GroupedGemm(dim) => {
            let ([a, b, ends], [out]) = (inputs, outs) else { return Ok(None) };
            (Template::GroupedGemm(dim), out.view.len(), grouped_words(dim, [a, b, ends, out]))
        }
    };
    if count == 0 {
        return Ok(None);
    }
    let kernel = Kernel::Routine(RoutineKernel { kind: template, dtypes, computed });
    Ok(Some(Launch { kernel, params, blocks: (count as u64).div_ceil(u64::from(BLOCK)) }))
}

/// The iteration over elements, or over lines along a dimension.
struct Lines {
    extents: Vec<u64>,
    /// Strides in elements, by operand.
    strides: Vec<Vec<usize>>,
    dims: usize,
}

impl Lines {
    /// The addresses, the extents, the strides in bytes, then the numbers of dimensions and of elements or lines.
    fn words(&self, views: &[&DeviceView; 3], count: usize) -> Vec<u64> {
        let mut words: Vec<u64> = views.iter().map(|it| it.address).collect();
        words.extend(&self.extents);
        for (strides, view) in self.strides.iter().zip(views) {
            let mut bytes: Vec<u64> = strides.iter().map(|it| (it * view.dtype.size()) as u64).collect();
            bytes.resize(super::DIMS, 0);
            words.extend(bytes);
        }
        words.extend([self.dims as u64, count as u64]);
        words
    }
}

/// Merges the dimensions of `shape`, without `dim`.
fn lines(shape: &[usize], dim: Option<usize>, views: &[&View; 3]) -> Result<Lines, Unsupported> {
    let without = |values: &[usize]| -> Vec<usize> {
        let kept = values.iter().enumerate().filter(|(at, _)| Some(*at) != dim);
        kept.map(|(_, it)| *it).collect()
    };
    let strides = views.map(|it| without(&it.strides));
    let [a, b, c] = &strides;
    let merged = merge_dims(&without(shape), &[a, b, c]).checked()?;
    let (extents, dims) = (merged.extent_words(1), merged.extents.len());
    Ok(Lines { extents, strides: merged.strides, dims })
}

/// Returns a view with stride 0 along a dimension.
fn zeroed(view: &View, dim: usize) -> View {
    let mut view = view.clone();
    view.strides[dim] = 0;
    view
}

/// The addresses, the step of the ends, then for each of `a`, `b` and the result the distance in bytes of groups, rows and
/// columns, then the numbers of groups, rows, terms and columns.
fn grouped_words(dim: GroupedDim, [a, b, ends, out]: [&DeviceView; 4]) -> Vec<u64> {
    let steps = |it: &DeviceView| {
        let bytes: Vec<u64> = it.view.strides.iter().map(|step| (step * it.dtype.size()) as u64).collect();
        match bytes[..] {
            [row, column] => [0, row, column],
            [group, row, column] => [group, row, column],
            _ => [0; 3],
        }
    };
    let mut words = vec![a.address, b.address, ends.address, out.address];
    words.push((ends.view.strides[0] * ends.dtype.size()) as u64);
    for it in [a, b, out] {
        words.extend(steps(it));
    }
    let last = |it: &DeviceView, back: usize| it.view.shape[it.view.shape.len() - back];
    let rows = last(out, 2);
    let groups = match dim {
        GroupedDim::Depth => out.view.shape[0],
        GroupedDim::Rows | GroupedDim::Columns => ends.view.shape[0],
    };
    words.extend([groups, rows, last(a, 1), last(out, 1), out.view.len()].map(|it| it as u64));
    words
}

/// Returns the type of the parameters.
pub(super) fn parameters(it: &RoutineKernel) -> &'static str {
    match it.kind {
        Template::Gather { .. } => "Gather",
        Template::Scatter { .. } => "Scatter",
        Template::Sort { .. } => "Sort",
        Template::GroupedGemm(_) => "GroupedGemm",
    }
}

/// Returns the body of an instance.
pub(super) fn body(RoutineKernel { kind, dtypes, computed }: &RoutineKernel) -> String {
    let names: Vec<&str> = dtypes.iter().map(|it| type_name(*it)).collect();
    let computed = computed.name();
    match (kind, &names[..]) {
        (Template::Gather { is_part }, [source, index, out]) => {
            format!("  gather<{source}, {index}, {out}, {computed}, {is_part}>(p);\n")
        }
        (Template::Scatter { accumulates }, [_, index, value, out]) => {
            format!("  scatter<{index}, {value}, {out}, {computed}, {accumulates}>(p);\n")
        }
        (Template::Sort { is_descending }, [input, out, indices]) => {
            format!("  sort<{input}, {out}, {indices}, {computed}, {is_descending}>(p);\n")
        }
        (Template::GroupedGemm(dim), [a, b, ends, out]) => {
            let dim = match dim {
                GroupedDim::Rows => 0,
                GroupedDim::Depth => 1,
                GroupedDim::Columns => 2,
            };
            format!("  grouped_gemm<{a}, {b}, {ends}, {out}, {computed}, {dim}>(p);\n")
        }
        _ => String::new(),
    }
}

/// The templates.
pub(super) const TEMPLATE: &str = include_str!("routine.cu");
