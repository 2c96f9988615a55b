//! Splits an axis into chunks of given sizes.
//!
//! Adjacent chunks of equal size form a part. Each statement that can be chunked (see `chunked_axis`) is
//! repeated for every part, on tensors of the part, which have a stream axis over the chunks of the part. A
//! tensor that a whole statement reads or writes as well is kept, and its parts are slices of it:
//! ```text
//! T1[iS1{8}, iS2{8}] = reshape( T0[iS0{64}] )
//! T4[iS5{3}, iS6{8}] = slice( T1[iS1{8}, iS2{8}], { {0, 3, 1} {0, 8, 1} } )
//! T5[istreamIdx7{1}, iS8{3}, iS9{5}] = linear(T4[iS5{3}, iS6{8}], T2[iS3{5}, iS4{8}])
//! ```

use grammar::{Code, Diagnostic, OpStmt, Program, StmtId, TensorId};
use hir_ir::build::IrBuilder;

use super::{
    chunked_axis::{self, ChunkedAxis, Obstacle},
    groups::GroupWriter,
};
use crate::{analysis::sharding::Sharding, pass::Change};

/// Adjacent chunks of equal size: the elements from `start` to `stop`.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) start: i64,
    pub(super) stop: i64,
    /// The number of chunks.
    pub(super) count: i64,
}

/// Splits dimension `dim` of `tensor`, which the user calls `name`, into chunks of these sizes.
pub(crate) fn chunk_by_sizes(
    program: &mut Program,
    name: &str,
    sizes: &[i64],
    (tensor, dim): (TensorId, usize),
) -> Result<Change, Diagnostic> {
    check_extent(program, name, sizes, (tensor, dim))?;
    let Some(axis) = ChunkedAxis::of(program, tensor, dim).filter(|axis| !axis.stmts.is_empty()) else {
        return match chunked_axis::first_obstacle(program, tensor, dim) {
            Some((stmt, obstacle)) => Err(refused_at(program, stmt, name, &obstacle)),
            None => Ok(Change::Unchanged),
        };
    };
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let mut fresh = IrBuilder::of(program);
    let new = GroupWriter::new(program, &mut fresh, &axis, parts(sizes), body).write();
    program.blocks[body] = new;
    // Each statement of a part has the source location of the statement that it was made from, so the error
    // points there.
    match grammar::verify(program).into_iter().find(Diagnostic::is_error) {
        None => Ok(Change::Changed),
        Some(error) => {
            let message =
                format!("axis `{name}` cannot be split into chunks of the given sizes: {}", error.message);
            let it = Diagnostic { code: Code::NotRewritten, message, ..error };
            Err(it.help("split it into equal chunks with `count=…`, or split another axis"))
        }
    }
}

/// Checks that the sizes add up to the extent of the dimension, and that the dimension is not sharded.
fn check_extent(
    program: &Program,
    name: &str,
    sizes: &[i64],
    (tensor, dim): (TensorId, usize),
) -> Result<(), Diagnostic> {
    let of = program.tensor_name(tensor);
    let refused = |message: String| {
        Diagnostic::new(Code::NotRewritten, program.tensor_span(tensor), message, "not chunked")
    };
    let Some(whole) = Sharding::of(program, tensor).and_then(|it| it.dims.get(dim).cloned()) else {
        let help = "split another axis, or another tensor that has this axis";
        return Err(refused(format!("`{of}` is sharded over the inner part of a split axis")).help(help));
    };
    let Some(extent) = program.constant(whole.extent) else {
        let help = "split it into equal chunks with `count=…`";
        return Err(refused(format!("the extent of axis `{name}` is not a constant")).help(help));
    };
    if whole.devices().next().is_some() {
        let message = format!(
            "axis `{name}` is sharded over devices, and `sizes` can split only an axis that every device holds whole"
        );
        return Err(refused(message).help(
            "split the part of each device with `count=…`, or split the result of a statement that gathers the axis",
        ));
    }
    let sum = sizes.iter().fold(0, |sum: i64, size| sum.saturating_add(*size));
    if sum != extent {
        let message = format!(
            "axis `{name}`: dimension {dim} of `{of}` has extent {extent}, but the sizes add up to {sum}"
        );
        return Err(refused(message).help("use sizes that add up to the extent"));
    }
    Ok(())
}

fn parts(sizes: &[i64]) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut start = 0;
    for size in sizes {
        match parts.last_mut().filter(|part| part.stop - part.start == size * part.count) {
            Some(part) => (part.stop, part.count) = (part.stop + size, part.count + 1),
            None => parts.push(Part { start, stop: start + size, count: 1 }),
        }
        start += size;
    }
    parts
}

fn refused_at(program: &Program, stmt: StmtId, name: &str, obstacle: &Obstacle) -> Diagnostic {
    let message =
        format!("axis `{name}` cannot be split into chunks of the given sizes: {}", obstacle.reason);
    let label = match program.stmts[stmt].op().and_then(OpStmt::out_tensor) {
        Some(out) => format!("computes all of `{}` at once", program.tensor_name(out)),
        None => "not chunked".to_owned(),
    };
    Diagnostic::new(Code::NotRewritten, program.stmt_span(stmt), message, &label).help(obstacle.help)
}
