//! Finds what prevents new axes of a tensor: other parts of the program that name its old ones.

use grammar::{AxisId, Code, Diagnostic, Expr, ExprId, ParallelType, Program, Span, TensorId};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{axis_users::AxisUsers, loop_axes_of};

/// Returns the tensors that share their number with another tensor of the container, as in some dumps. The reader
/// takes both for one tensor if only one of them gets new axes.
pub(super) fn tensors_of_shared_numbers(program: &Program) -> FxHashSet<TensorId> {
    let mut by_number: FxHashMap<u32, Vec<TensorId>> = FxHashMap::default();
    for (id, it) in program.tensors.iter().filter(|(_, it)| it.unit.is_none()) {
        by_number.entry(it.number).or_default().push(id);
    }
    by_number.into_values().filter(|all| all.len() > 1).flatten().collect()
}

/// Returns whether the allocation domain of a tensor names parts of dimension `dim`.
pub(super) fn allocates_parts(program: &Program, tensor: TensorId, dim: usize) -> bool {
    let Some(axis) = program.dimensions(tensor).nth(dim) else { return false };
    let (leaves, _) = loop_axes_of(program, tensor, axis);
    let allocation = &program.tensors[tensor].domains.allocation;
    // An axis of the allocation domain is a loop axis, or the logical axis, which the new one replaces, unless it is
    // itself a stream axis, of chunks of one element.
    let is_part = |it: &AxisId| *it != axis || program.axes[axis].parallel == ParallelType::Stream;
    allocation.iter().flatten().any(|it| is_part(it) && leaves.contains(it))
}

/// Returns the reason why a tensor cannot get new axes in dimension `dim`, which the user calls `name`.
pub(super) fn obstacle_to_new_axes(
    program: &Program,
    (shared_numbers, users): (&FxHashSet<TensorId>, &AxisUsers),
    name: &str,
    (tensor, dim): (TensorId, usize),
) -> Option<Diagnostic> {
    let of = program.tensor_name(tensor);
    let refuse = |span: Span, why: String, label: &str| {
        let message = format!("axis `{name}` cannot be split into chunks: {why}");
        Diagnostic::new(Code::NotRewritten, span, message, label)
    };
    if shared_numbers.contains(&tensor) {
        let why = format!("two tensors of the program are named `{of}`");
        let it = refuse(program.tensor_span(tensor), why, "not chunked");
        return Some(it.help("run `renumber` first, or give each tensor a number of its own"));
    }
    let leaves = program.dimensions(tensor).nth(dim).map(|axis| loop_axes_of(program, tensor, axis).0);
    if let Some((stmt, why)) = users.of_stream_axis(tensor, &leaves.unwrap_or_default()) {
        let it = refuse(program.stmt_span(stmt), format!("{why} `{of}`"), "depends on the number of chunks");
        return Some(it.help("run `chunk` before `stream-parallel`, or split another axis"));
    }
    if allocates_parts(program, tensor, dim) {
        let why = format!("the allocation domain of `{of}` names parts of dimension {dim}");
        let it = refuse(program.tensor_span(tensor), why, "not chunked");
        return Some(it.help("run `chunk` before `stream-parallel`, which sets allocation domains"));
    }
    None
}

/// Returns the value of an extent: a number, or a scalar that a definition or `--set` gives a number.
pub(crate) fn known_extent(program: &Program, extent: ExprId) -> Option<i64> {
    let mut extent = extent;
    // Definitions are not circular, so a chain has at most one step for each.
    for _ in 0..=program.definitions.len() {
        match program.exprs[extent] {
            Expr::Symbol(symbol) => extent = *program.definitions.get(&symbol)?,
            _ => return program.constant(extent),
        }
    }
    None
}
