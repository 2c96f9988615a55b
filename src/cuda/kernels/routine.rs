//! Routines: elements at places that depend on other elements. Kernels of which each thread computes elements that no other one writes,
//! so that results do not depend on the order of threads; `scatter` adds in ascending order, as the simulator.

use grammar::dtype::DType;

use super::{
    BLOCK, ComputeType, DIMS, DeviceView, Kernel, Launch, MAX_ACCESS_BYTES, MEETING, check_dtypes,
    float_compute_type, integer_compute_type,
    shape::{MergedDims, merge_dims_in_any_order},
    type_name,
};
use crate::error::Unsupported;
use hir_plan::{GroupedDim, ReduceOp, RoutineKind, View};

/// Elements that a block sorts: `ALL` in `sort_in_block`.
const SORTED: usize = 2048;
/// Elements of a line that a block of `scatter_in_block` keeps in shared memory.
const LONGEST_LINE: usize = 4096;
/// Lines from which on blocks of `scatter_rows`, which look for their rows among all indices, are worth while.
const LEAST_LINES: usize = 32;
/// Rows of the result that a block of `scatter_rows` has: `ROWS` in `routine.cu`.
const ROWS: usize = 16;

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
    Gather {
        is_part: bool,
        width: usize,
        has_one_index: bool,
        uses_32_bit_index: bool,
    },
    Scatter {
        accumulates: bool,
    },
    ScatterInBlock {
        accumulates: bool,
        capacity: usize,
    },
    ScatterRows {
        accumulates: bool,
        width: usize,
    },
    /// With a length, a power of two, a block sorts lines of up to so many elements.
    Sort {
        is_descending: bool,
        length: Option<usize>,
    },
    /// With a width, a block has a line.
    Scan {
        op: ReduceOp,
        width: Option<usize>,
    },
    GroupedGemm(GroupedDim),
}

/// Returns the launch of a routine; `None` if the result is empty. Unless `reads_base` is true, the result of a scatter has the elements
/// of `base` already.
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
        RoutineKind::Sort { .. } | RoutineKind::Scan { .. } => vec![inputs[0].dtype, outs[0].dtype],
        RoutineKind::GroupedGemm(_) => vec![inputs[0].dtype, inputs[1].dtype, outs[0].dtype],
    };
    let types = values.iter().copied();
    let is_whole = values.iter().all(|it| it.is_integral());
    let computed = if is_whole { integer_compute_type(types) } else { float_compute_type(types) };
    // The number of threads that have something to do.
    let (template, threads, params) = match kind {
        RoutineKind::Gather { dim, first } => {
            let ([source, index], [out]) = (inputs, outs) else { return Ok(None) };
            gather(dim, first, [source, index, out])?
        }
        RoutineKind::Scatter { dim, accumulates } => {
            let ([base, index, value], [out]) = (inputs, outs) else { return Ok(None) };
            scatter(dim, accumulates, [base, index, value, out])?
        }
        RoutineKind::Sort { dim, is_descending } => {
            let ([input], [values, indices]) = (inputs, outs) else { return Ok(None) };
            let extent = input.view.shape[dim];
            let lines = Lines::along(dim, input.view, &[input, values, indices])?;
            let count = lines.count();
            let mut words = lines.words(1);
            words.extend([extent, values.view.shape[dim]].map(|it| it as u64));
            words.extend([input, values, indices].map(|it| step(it, dim)));
            let length = extent.next_power_of_two().max(2);
            let length = (length <= SORTED).then_some(length);
            let threads = match length {
                Some(length) => count.div_ceil(SORTED / length) * BLOCK as usize,
                None => count * extent,
            };
            (Template::Sort { is_descending, length }, if extent == 0 { 0 } else { threads }, words)
        }
        RoutineKind::Scan { dim, op } => {
            let ([input], [out]) = (inputs, outs) else { return Ok(None) };
            scan(dim, op, [input, out])?
        }
        RoutineKind::GroupedGemm(dim) => {
            let ([a, b, ends], [out]) = (inputs, outs) else { return Ok(None) };
            (Template::GroupedGemm(dim), out.view.len(), grouped_words(dim, [a, b, ends, out]))
        }
    };
    if threads == 0 {
        return Ok(None);
    }
    let kernel = Kernel::Routine(RoutineKernel { kind: template, dtypes, computed });
    Ok(Some(Launch { kernel, params, blocks: (threads as u64).div_ceil(u64::from(BLOCK)) }))
}

fn gather(
    dim: usize,
    first: Option<usize>,
    [source, index, out]: [&DeviceView; 3],
) -> Result<(Template, usize, Vec<u64>), Unsupported> {
    let mut lines = Lines::of(out.view, &[source, index, out]);
    // The dimension of the source is addressed by the index.
    lines.views[0].strides[dim] = 0;
    let lines = lines.merged()?;
    let last = lines.dims.extents.len() - 1;
    let [of_source, of_index, _] = [0, 1, 2].map(|at| lines.dims.strides[at][last]);
    let has_one_index = of_index == 0;
    let rows = source.view.strides[dim];
    let mut width = lines.width(if has_one_index { &[0, 2] } else { &[0, 1, 2] });
    while has_one_index && width > 1 && (of_source != 1 || !rows.is_multiple_of(width)) {
        width /= 2;
    }
    let count = lines.count() / width;
    let mut words = lines.words(width);
    words.push(source.view.shape[dim] as u64);
    words.extend([step(source, dim), first.unwrap_or(0) as u64]);
    words.push((of_source * source.dtype.size()) as u64);
    let template = Template::Gather {
        is_part: first.is_some(),
        width,
        has_one_index,
        uses_32_bit_index: count < 1 << 31,
    };
    Ok((template, count, words))
}

/// Returns whether the kernel of a scatter reads the base itself.
pub(crate) fn reads_base(kind: RoutineKind, inputs: &[DeviceView], outs: &[DeviceView]) -> bool {
    let (RoutineKind::Scatter { dim, .. }, [_, index, _], [out]) = (kind, inputs, outs) else { return false };
    scatters_rows(dim, index) || scatters_in_block(dim, index, out)
}

/// Returns whether all of many lines along a dimension have one index.
fn scatters_rows(dim: usize, index: &DeviceView) -> bool {
    if index.view.len() < LEAST_LINES * index.view.shape[dim] {
        return false;
    }
    let mut dims = index.view.shape.iter().zip(&index.view.strides).enumerate();
    dims.all(|(at, (extent, stride))| at == dim || *extent == 1 || *stride == 0)
}

/// Returns whether a block handles a line: the elements of a line, and not neighbouring lines, are neighbours.
fn scatters_in_block(dim: usize, index: &DeviceView, out: &DeviceView) -> bool {
    index.view.strides[dim] == 1 && index.view.shape[dim] >= 32 && out.view.shape[dim] <= LONGEST_LINE
}

fn scatter(
    dim: usize,
    accumulates: bool,
    [base, index, value, out]: [&DeviceView; 4],
) -> Result<(Template, usize, Vec<u64>), Unsupported> {
    let (length, extent) = (index.view.shape[dim], out.view.shape[dim]);
    let steps = |all: &[&DeviceView]| all.iter().map(|it| step(it, dim)).collect::<Vec<u64>>();
    if scatters_rows(dim, index) {
        let rows = Lines::along(dim, value.view, &[base, value, out])?;
        let mut width = rows.width(&[0, 1, 2]);
        let last = rows.dims.extents.len() - 1;
        let is_contiguous = rows.dims.strides.iter().all(|it| it[last] == 1);
        let is_aligned = |it: &&DeviceView, width: usize| it.view.strides[dim].is_multiple_of(width);
        while width > 1 && !(is_contiguous && [base, value, out].iter().all(|it| is_aligned(it, width))) {
            width /= 2;
        }
        let packs = (rows.count() / width).div_ceil(BLOCK as usize) * BLOCK as usize;
        let mut words = rows.words(width);
        words.extend([index.address, step(index, dim), length as u64]);
        words.extend(steps(&[base, value, out]));
        words.push(extent as u64);
        let template = Template::ScatterRows { accumulates, width };
        return Ok((template, packs * extent.div_ceil(ROWS), words));
    }
    if scatters_in_block(dim, index, out) {
        let lines = Lines::along(dim, index.view, &[base, index, value, out])?;
        let mut words = lines.words(1);
        words.extend([length as u64, extent as u64]);
        words.extend(steps(&[base, index, value, out]));
        let capacity = extent.next_power_of_two().max(256);
        let template = Template::ScatterInBlock { accumulates, capacity };
        return Ok((template, lines.count() * BLOCK as usize, words));
    }
    let lines = Lines::along(dim, index.view, &[index, value, out])?;
    let mut words = lines.words(1);
    words.push(length as u64);
    words.extend(steps(&[index, value, out]));
    words.push(extent as u64);
    let threads = if length == 0 { 0 } else { lines.count() };
    Ok((Template::Scatter { accumulates }, threads, words))
}

fn scan(
    dim: usize,
    op: ReduceOp,
    [input, out]: [&DeviceView; 2],
) -> Result<(Template, usize, Vec<u64>), Unsupported> {
    let length = input.view.shape[dim];
    let lines = Lines::along(dim, input.view, &[input, out])?;
    let fits = |width: usize| {
        [input, out].iter().zip(&lines.dims.strides).all(|(it, strides)| {
            it.view.strides[dim] == 1
                && it.address.is_multiple_of((width * it.dtype.size()) as u64)
                && strides.iter().all(|it| it.is_multiple_of(width))
        }) && length.is_multiple_of(width)
    };
    let most = MAX_ACCESS_BYTES / input.dtype.size().max(out.dtype.size());
    let width = (0..=most.ilog2()).rev().map(|it| 1 << it).find(|it| fits(*it)).filter(|_| length >= 64);
    let mut words = lines.words(1);
    words.push(length as u64);
    words.extend([input, out].map(|it| step(it, dim)));
    let threads = lines.count() * if width.is_some() { BLOCK as usize } else { 1 };
    Ok((Template::Scan { op, width }, if length == 0 { 0 } else { threads }, words))
}

/// Returns the bytes between neighbours along a dimension.
fn step(it: &DeviceView, dim: usize) -> u64 {
    (it.view.strides[dim] * it.dtype.size()) as u64
}

/// The iteration over elements, or over lines along a dimension: addresses, sizes and views of operands of one shape.
struct Lines {
    shape: Vec<usize>,
    addresses: Vec<u64>,
    sizes: Vec<usize>,
    views: Vec<View>,
    dims: MergedDims,
}

impl Lines {
    /// Iterates over the shape of `like`.
    fn of(like: &View, operands: &[&DeviceView]) -> Self {
        Self {
            shape: like.shape.clone(),
            addresses: operands.iter().map(|it| it.address).collect(),
            sizes: operands.iter().map(|it| it.dtype.size()).collect(),
            views: operands.iter().map(|it| it.view.clone()).collect(),
            dims: MergedDims { extents: Vec::new(), strides: Vec::new() },
        }
    }

    /// Iterates over the lines along a dimension; `like` has the other extents.
    fn along(dim: usize, like: &View, operands: &[&DeviceView]) -> Result<Self, Unsupported> {
        let mut it = Self::of(like, operands);
        it.shape.remove(dim);
        it.views.iter_mut().for_each(|view| _ = view.strides.remove(dim));
        it.merged()
    }

    fn merged(mut self) -> Result<Self, Unsupported> {
        let strides: Vec<&[usize]> = self.views.iter().map(|it| it.strides.as_slice()).collect();
        self.dims = merge_dims_in_any_order(&self.shape, &strides).checked()?;
        Ok(self)
    }

    fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the widest access that the operands at these positions allow.
    fn width(&self, operands: &[usize]) -> usize {
        let of = |values: &[usize]| -> Vec<usize> { operands.iter().map(|at| values[*at]).collect() };
        let sizes = of(&self.sizes);
        let addresses: Vec<u64> = operands.iter().map(|at| self.addresses[*at]).collect();
        let strides = operands.iter().map(|at| self.dims.strides[*at].clone()).collect();
        let dims = MergedDims { extents: self.dims.extents.clone(), strides };
        dims.width(MAX_ACCESS_BYTES / sizes.iter().max().copied().unwrap_or(1).max(1), &addresses, &sizes)
    }

    /// The words of `Elementwise` in `prelude.cu`, without constants.
    fn words(&self, width: usize) -> Vec<u64> {
        let mut words = self.addresses.clone();
        let strides = self.sizes.iter().enumerate();
        words.extend(strides.flat_map(|(at, size)| self.dims.stride_words(at, *size, width)));
        words.extend(self.dims.extent_words(width));
        words.extend([self.dims.extents.len() as u64, (self.count() / width) as u64]);
        debug_assert_eq!(words.len(), self.sizes.len() * (DIMS + 1) + DIMS + 2);
        words
    }
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
        Template::Gather { .. } => "Elementwise<3, 4>",
        Template::Scatter { .. } | Template::Sort { .. } => "Elementwise<3, 5>",
        Template::ScatterInBlock { .. } => "Elementwise<4, 6>",
        Template::ScatterRows { .. } => "Elementwise<3, 7>",
        Template::Scan { .. } => "Elementwise<2, 3>",
        Template::GroupedGemm(_) => "GroupedGemm",
    }
}

/// Returns the body of an instance.
pub(super) fn body(RoutineKernel { kind, dtypes, computed }: &RoutineKernel) -> String {
    let names: Vec<&str> = dtypes.iter().map(|it| type_name(*it)).collect();
    let computed = computed.name();
    let call = match (kind, &names[..]) {
        (Template::Gather { is_part, width, has_one_index, uses_32_bit_index }, [source, index, out]) => {
            let number = if *uses_32_bit_index { "u32" } else { "u64" };
            format!(
                "gather<{source}, {index}, {out}, {computed}, {number}, {width}, {is_part}, {has_one_index}>"
            )
        }
        (Template::Scatter { accumulates }, [_, index, value, out]) => {
            format!("scatter<{index}, {value}, {out}, {computed}, {accumulates}>")
        }
        (Template::ScatterInBlock { accumulates, capacity }, [base, index, value, out]) => {
            let types = format!("{base}, {index}, {value}, {out}, {computed}");
            format!("scatter_in_block<{types}, {capacity}, {accumulates}>")
        }
        (Template::ScatterRows { accumulates, width }, [base, index, value, out]) => {
            let types = format!("{base}, {index}, {value}, {out}, {computed}");
            format!("scatter_rows<{types}, {width}, {accumulates}>")
        }
        (Template::Sort { is_descending, length: None }, [input, out, indices]) => {
            format!("sort<{input}, {out}, {indices}, {computed}, {is_descending}>")
        }
        (Template::Sort { is_descending, length: Some(length) }, [input, out, indices]) => {
            format!("sort_in_block<{input}, {out}, {indices}, {computed}, {length}, {is_descending}>")
        }
        (Template::Scan { op, width }, [input, out]) => {
            let number = match op {
                ReduceOp::Min => 1,
                ReduceOp::Max => 2,
                ReduceOp::FMin => 3,
                ReduceOp::FMax => 4,
                _ => 0,
            };
            match width {
                Some(width) => format!("scan_by_block<{input}, {out}, {computed}, {width}, {number}>"),
                None => format!("scan<{input}, {out}, {computed}, {number}>"),
            }
        }
        (Template::GroupedGemm(dim), [a, b, ends, out]) => {
            let dim = match dim {
                GroupedDim::Rows => 0,
                GroupedDim::Depth => 1,
                GroupedDim::Columns => 2,
            };
            format!("grouped_gemm<{a}, {b}, {ends}, {out}, {computed}, {dim}>")
        }
        _ => return String::new(),
    };
    let meets = matches!(
        kind,
        Template::ScatterRows { .. }
            | Template::ScatterInBlock { .. }
            | Template::Sort { length: Some(_), .. }
            | Template::Scan { width: Some(_), .. }
    );
    format!("{}  {call}(p);\n", if meets { MEETING } else { "" })
}

/// The templates.
pub(super) const TEMPLATE: &str = include_str!("routine.cu");
