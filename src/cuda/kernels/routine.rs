//! Routines: elements at places that depend on other elements. Kernels of which each thread computes elements that no other one writes,
//! so that results do not depend on the order of threads; `scatter` adds in ascending order, as the simulator.

mod gather;
mod scan;
mod scatter;
mod sort;

use grammar::DType;

use super::{
    BLOCK, ComputeType, DIMS, DeviceView, Kernel, Launch, MAX_ACCESS_BYTES, MEETING, check_dtypes,
    float_compute_type, integer_compute_type,
    shape::{MergedDims, merge_dims_in_any_order},
    type_name,
};
use crate::unsupported::Unsupported;
use hir_plan::{GroupedDim, ReduceOp, RoutineKind, View};

pub(crate) use scan::exchanged_bytes;
pub(crate) use scatter::reads_base;

/// Lines from which on blocks that have one index for all of them are worth while.
const LEAST_LINES: usize = 32;

/// An instance.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RoutineKernel {
    kind: Template,
    /// The element types of the operands, then of the results.
    dtypes: Vec<DType>,
    computed: ComputeType,
}

/// Returns the type in which elements of these types are computed.
fn compute_type(values: &[DType]) -> ComputeType {
    let types = values.iter().copied();
    if values.iter().all(|it| it.is_integral()) {
        integer_compute_type(types)
    } else {
        float_compute_type(types)
    }
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
    /// With the elements of an access to the source and to the result.
    GatherInBlock {
        is_part: bool,
        capacity: usize,
        widths: [usize; 2],
    },
    Scatter {
        accumulates: bool,
    },
    /// With the elements of an access to indices and values, and to the base and the result.
    ScatterInBlock {
        accumulates: bool,
        capacity: usize,
        widths: [usize; 2],
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
    /// With the elements of a thread.
    SortInWarp {
        is_descending: bool,
        of_thread: usize,
    },
    /// With the elements of a thread and of an access.
    TopInWarp {
        is_descending: bool,
        of_thread: usize,
        width: usize,
    },
    /// With a width, a block has a line.
    Scan {
        op: ReduceOp,
        width: Option<usize>,
    },
    ScanByRows {
        op: ReduceOp,
        width: usize,
    },
    GroupedGemm(GroupedDim),
}

/// Returns the launch of a routine; `None` if the result is empty. Unless `reads_base` is true, the result of a scatter has the elements
/// of `base` already. `exchanged` is the address of as many bytes as `exchanged_bytes` returns, which are 0.
///
/// # Errors
/// The kernels do not support an element type or the number of dimensions.
pub(crate) fn routine_launch(
    kind: RoutineKind,
    inputs: &[DeviceView],
    outs: &[DeviceView],
    exchanged: u64,
) -> Result<Option<Launch>, Unsupported> {
    let dtypes: Vec<DType> = inputs.iter().chain(outs).map(|it| it.dtype).collect();
    check_dtypes(dtypes.iter().copied())?;
    let values = match kind {
        RoutineKind::Gather { .. } => vec![inputs[0].dtype, outs[0].dtype],
        RoutineKind::Scatter { .. } => vec![inputs[2].dtype, outs[0].dtype],
        RoutineKind::Sort { .. } | RoutineKind::Scan { .. } => vec![inputs[0].dtype, outs[0].dtype],
        RoutineKind::GroupedGemm(_) => vec![inputs[0].dtype, inputs[1].dtype, outs[0].dtype],
    };
    let computed = compute_type(&values);
    // The number of threads that have something to do.
    let (template, threads, params) = match kind {
        RoutineKind::Gather { dim, first } => {
            let ([source, index], [out]) = (inputs, outs) else { return Ok(None) };
            gather::gather(dim, first, [source, index, out])?
        }
        RoutineKind::Scatter { dim, accumulates } => {
            let ([base, index, value], [out]) = (inputs, outs) else { return Ok(None) };
            scatter::scatter(dim, accumulates, computed, [base, index, value, out])?
        }
        RoutineKind::Sort { dim, is_descending } => {
            let ([input], [values, indices]) = (inputs, outs) else { return Ok(None) };
            sort::sort(dim, is_descending, computed, [input, values, indices])?
        }
        RoutineKind::Scan { dim, op } => {
            let ([input], [out]) = (inputs, outs) else { return Ok(None) };
            scan::scan(dim, op, (computed, exchanged), [input, out])?
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

/// Returns the bytes between neighbours along a dimension.
fn step(it: &DeviceView, dim: usize) -> u64 {
    (it.view.strides[dim] * it.dtype.size()) as u64
}

/// Returns the widest access along the lines of a dimension, up to `most` elements, that the operands at these positions allow.
fn widest(lines: &Lines, operands: &[usize], most: usize) -> usize {
    let fits = |width: usize| {
        operands.iter().all(|at| {
            let (length, step) = lines.along[*at];
            width == 1
                || step == 1
                    && width * lines.sizes[*at] <= MAX_ACCESS_BYTES
                    && length.is_multiple_of(width)
                    && lines.addresses[*at].is_multiple_of((width * lines.sizes[*at]) as u64)
                    && lines.dims.strides[*at].iter().all(|it| it.is_multiple_of(width))
        })
    };
    let mut width = most.next_power_of_two();
    while width > 1 && !(width <= most && fits(width)) {
        width /= 2;
    }
    width
}

/// The iteration over elements, or over lines along a dimension: addresses, sizes and views of operands of one shape.
struct Lines {
    shape: Vec<usize>,
    addresses: Vec<u64>,
    sizes: Vec<usize>,
    views: Vec<View>,
    /// The extent and the stride of the dimension of the lines, by operand.
    along: Vec<(usize, usize)>,
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
            along: Vec::new(),
            dims: MergedDims { extents: Vec::new(), strides: Vec::new() },
        }
    }

    /// Iterates over the lines along a dimension; `like` has the other extents.
    fn along(dim: usize, like: &View, operands: &[&DeviceView]) -> Result<Self, Unsupported> {
        let mut it = Self::of(like, operands);
        it.along = operands.iter().map(|it| (it.view.shape[dim], it.view.strides[dim])).collect();
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
        Template::GatherInBlock { .. } => "Elementwise<2, 5>",
        Template::Scatter { .. }
        | Template::Sort { .. }
        | Template::SortInWarp { .. }
        | Template::TopInWarp { .. } => "Elementwise<3, 5>",
        Template::ScatterInBlock { .. } => "Elementwise<4, 6>",
        Template::ScatterRows { .. } => "Elementwise<3, 7>",
        Template::Scan { .. } => "Elementwise<2, 3>",
        Template::ScanByRows { .. } => "Elementwise<2, 4>",
        Template::GroupedGemm(_) => "routine::GroupedGemm",
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
        (
            Template::GatherInBlock { is_part, capacity, widths: [of_source, of_out] },
            [source, index, out],
        ) => {
            format!(
                "gather_in_block<{source}, {index}, {out}, {computed}, {capacity}, {of_source}, {of_out}, {is_part}>"
            )
        }
        (Template::Scatter { accumulates }, [_, index, value, out]) => {
            format!("scatter<{index}, {value}, {out}, {computed}, {accumulates}>")
        }
        (
            Template::ScatterInBlock { accumulates, capacity, widths: [of_index, of_out] },
            [base, index, value, out],
        ) => {
            let types = format!("{base}, {index}, {value}, {out}, {computed}");
            format!("scatter_in_block<{types}, {capacity}, {of_index}, {of_out}, {accumulates}>")
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
        (Template::SortInWarp { is_descending, of_thread }, [input, out, indices]) => {
            format!("sort_in_warp<{input}, {out}, {indices}, {of_thread}, {is_descending}>")
        }
        (Template::TopInWarp { is_descending, of_thread, width }, [input, out, indices]) => {
            format!("top_in_warp<{input}, {out}, {indices}, {of_thread}, {width}, {is_descending}>")
        }
        (Template::ScanByRows { op, width }, [input, out]) => {
            let (rows, op) = (scan::ROWS_OF_THREAD, combination(*op));
            format!("scan_by_rows<{input}, {out}, {computed}, {width}, {rows}, {op}>")
        }
        (Template::Scan { op, width }, [input, out]) => {
            let number = combination(*op);
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
    let meets = match kind {
        Template::GatherInBlock { .. }
        | Template::ScatterRows { .. }
        | Template::ScatterInBlock { .. }
        | Template::SortInWarp { .. }
        | Template::TopInWarp { .. }
        | Template::ScanByRows { .. } => true,
        Template::Sort { length, .. } => length.is_some(),
        Template::Scan { width, .. } => width.is_some(),
        Template::Gather { .. } | Template::Scatter { .. } | Template::GroupedGemm(_) => false,
    };
    format!("{}  routine::{call}(p);\n", if meets { MEETING } else { "" })
}

/// Returns the number of an operation in `combine`.
fn combination(op: ReduceOp) -> usize {
    match op {
        ReduceOp::Min => 1,
        ReduceOp::Max => 2,
        ReduceOp::FMin => 3,
        ReduceOp::FMax => 4,
        _ => 0,
    }
}

/// The templates.
pub(super) const TEMPLATE: &str = concat!(
    include_str!("routine.cu"),
    include_str!("routine/scatter.cu"),
    include_str!("routine/sort.cu"),
    include_str!("routine/scan.cu"),
    "#undef EACH\n"
);
