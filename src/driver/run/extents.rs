//! Binds symbolic extents to the shapes of input files.
//!
//! A file has the logical or the printed shape of its tensor, or of one rank's part (see `hir_tensor::shape_match`).
//! An axis whose extent is an unbound symbol, or a product or quotient of one and a constant, binds the
//! symbol. The part of one rank binds the extent of the whole axis: the local extent times the extents of the
//! mesh dimensions over which the axis is split.

use grammar::{
    AxisId, AxisKind, Expr, ExprId, Function, InfixOp, Op, ParallelType, Program, SymbolId, TensorId,
    expr_text,
};

use super::{
    RunError,
    inputs::{INPUT, InputFlag},
};
use hir_plan::leaf_axes;
use hir_process::input_file::InputFiles;

/// An axis of an input file.
struct FileAxis {
    /// The extent of the axis in the program text.
    extent: ExprId,
    /// The factor between the file's extent and the extent in the text.
    factor: i64,
    /// The extent that the file must have, if it is known independently of the text.
    known_extent: Option<i64>,
    /// True if a file may omit the axis.
    is_optional: bool,
}

/// Binds the unbound symbols in the extents of inputs to the shapes of input files. A shape that does not
/// match is reported here only if the tensor has unbound extents; otherwise it is reported when the file is
/// loaded.
///
/// # Errors
/// A file cannot be read, or its shape cannot be a shape of its tensor.
pub fn bind_extents(program: &mut Program, given: &[InputFlag], files: &InputFiles) -> Result<(), RunError> {
    for flag in given {
        let found = Program::tensors_of(&program.inputs).find(|id| program.tensor_name(*id) == flag.name);
        let Some(tensor) = found else { continue };
        let rank = program.tensors[tensor].mesh.devices.first().copied().unwrap_or(0);
        let shape = flag.shape(files, rank)?;
        match solve_shape(program, tensor, &shape, flag.local) {
            Some(values) => {
                for (symbol, value) in values {
                    let value = program.intern_int(value);
                    program.definitions.entry(symbol).or_insert(value);
                }
            }
            None if has_unknown_extent(program, tensor) => {
                let name = &flag.name;
                let hint = match (solve_shape(program, tensor, &shape, !flag.local), flag.local) {
                    (None, _) => String::new(),
                    (Some(_), true) => format!("; this is the whole tensor: use `{name}=`"),
                    (Some(_), false) => format!("; this is one rank's part: use `{name}@local=`"),
                };
                let whose = if flag.local { "the whole of " } else { "" };
                let extents =
                    program.dimensions(tensor).map(|axis| expr_text(program, program.axes[axis].extent));
                let fault = format!(
                    "has shape {shape:?}, but {whose}{name} has shape [{}]{hint}",
                    extents.collect::<Vec<_>>().join(", ")
                );
                return Err(flag.shape_error(INPUT, rank, &fault));
            }
            None => (),
        }
    }
    Ok(())
}

/// Returns true if an extent of the tensor contains an unbound symbol.
fn has_unknown_extent(program: &Program, tensor: TensorId) -> bool {
    let mut symbols = Vec::new();
    program
        .dimensions(tensor)
        .for_each(|axis| program.collect_symbols(program.axes[axis].extent, &mut symbols));
    symbols.iter().any(|symbol| !program.definitions.contains_key(symbol))
}

/// Returns the values of symbols for which the tensor has the shape of the file, or `None` if there are none.
fn solve_shape(
    program: &Program,
    tensor: TensorId,
    shape: &[usize],
    local: bool,
) -> Option<Vec<(SymbolId, i64)>> {
    let logical: Vec<FileAxis> =
        program.dimensions(tensor).map(|axis| logical_axis(program, tensor, axis, local)).collect();
    let shown = program.tensors[tensor].loop_domain.iter().copied();
    let shown = shown.filter(|axis| program.axes[*axis].kind != AxisKind::Reduction);
    let printed: Vec<FileAxis> = shown.map(|axis| printed_axis(program, tensor, axis, local)).collect();
    [logical, printed].iter().find_map(|axes| {
        let all: Vec<&FileAxis> = axes.iter().collect();
        let fewer: Vec<&FileAxis> = axes.iter().filter(|it| !it.is_optional).collect();
        solve_all(program, &all, shape).or_else(|| solve_all(program, &fewer, shape))
    })
}

fn logical_axis(program: &Program, tensor: TensorId, axis: AxisId, local: bool) -> FileAxis {
    let mut leaves = Vec::new();
    leaf_axes(program, tensor, axis, &mut leaves);
    let devices: Vec<i64> =
        leaves.iter().filter_map(|leaf| mesh_extent(program, tensor, *leaf)).filter(|_| local).collect();
    let is_device = !devices.is_empty() && devices.len() == leaves.len();
    FileAxis {
        extent: extent(program, axis),
        factor: devices.iter().product(),
        known_extent: is_device.then_some(1),
        is_optional: is_device || is_unit_broadcast(program, axis),
    }
}

fn printed_axis(program: &Program, tensor: TensorId, axis: AxisId, local: bool) -> FileAxis {
    let device = mesh_extent(program, tensor, axis).filter(|_| local);
    FileAxis {
        extent: extent(program, axis),
        factor: device.unwrap_or(1),
        known_extent: device.map(|_| 1),
        is_optional: device.is_some() || is_unit_broadcast(program, axis),
    }
}

/// Returns the extent of the mesh along a device axis, or `None` for other axes.
fn mesh_extent(program: &Program, tensor: TensorId, axis: AxisId) -> Option<i64> {
    match program.axes[axis].parallel {
        ParallelType::Device(dim) => Some(program.tensors[tensor].mesh.extent(dim) as i64),
        ParallelType::Serial | ParallelType::Stream | ParallelType::Kernel(_) => None,
    }
}

pub(super) fn extent(program: &Program, axis: AxisId) -> ExprId {
    let it = &program.axes[axis];
    it.expanded.unwrap_or(it.extent)
}

fn is_unit_broadcast(program: &Program, axis: AxisId) -> bool {
    let it = &program.axes[axis];
    it.kind == AxisKind::Broadcast && program.constant(extent(program, axis)) == Some(1)
}

fn solve_all(program: &Program, axes: &[&FileAxis], shape: &[usize]) -> Option<Vec<(SymbolId, i64)>> {
    if axes.len() != shape.len() {
        return None;
    }
    let mut values = Vec::new();
    for (axis, found) in axes.iter().zip(shape) {
        let found = i64::try_from(*found).ok()?;
        if axis.known_extent.is_some_and(|own| own != found) {
            return None;
        }
        solve(program, axis.extent, found.checked_mul(axis.factor)?, &mut values)?;
    }
    // A symbol must not have two values.
    let clash =
        |(symbol, value): &(SymbolId, i64)| values.iter().any(|(it, other)| it == symbol && other != value);
    (!values.iter().any(clash)).then_some(values)
}

/// Adds the value of the symbol for which `expr` equals `value`. Returns `None` if `expr` cannot have this
/// value. Expressions that cannot be solved are skipped.
fn solve(program: &Program, expr: ExprId, value: i64, values: &mut Vec<(SymbolId, i64)>) -> Option<()> {
    match &program.exprs[expr] {
        Expr::Int(known) => (*known == value).then_some(()),
        Expr::Symbol(symbol) => {
            if !program.definitions.contains_key(symbol) {
                values.push((*symbol, value));
            }
            Some(())
        }
        Expr::Infix(InfixOp::Mul, a, b) => match (program.constant(*a), program.constant(*b)) {
            (Some(by), None) | (None, Some(by)) if by != 0 => {
                let rest = if program.constant(*a).is_some() { *b } else { *a };
                (value % by == 0).then_some(())?;
                solve(program, rest, value / by, values)
            }
            _ => Some(()),
        },
        Expr::Infix(InfixOp::Div, a, b) => solve_quotient(program, *a, *b, value, values),
        Expr::Call(Function::Op(Op::CeilDiv), args) => match args.as_slice() {
            [a, b] => solve_quotient(program, *a, *b, value, values),
            _ => Some(()),
        },
        _ => Some(()),
    }
}

/// Solves `a / by == value`, assuming that the division is exact.
fn solve_quotient(
    program: &Program,
    a: ExprId,
    by: ExprId,
    value: i64,
    values: &mut Vec<(SymbolId, i64)>,
) -> Option<()> {
    match program.constant(by) {
        Some(by) => solve(program, a, value.checked_mul(by)?, values),
        None => Some(()),
    }
}
