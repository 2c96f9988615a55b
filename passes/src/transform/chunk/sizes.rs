//! Chunks of given sizes.
//!
//! Neighbouring chunks of one size are a part. Each statement that can be cut (see `cut_axis`) is done once for every part, on
//! tensors of the part, which have a stream axis over its chunks. A tensor that a whole statement reads or writes as well
//! stays, and its parts are slices of it:
//! ```text
//! T1[iS1{8}, iS2{8}] = reshape( T0[iS0{64}] )
//! T4[iS5{3}, iS6{8}] = slice( T1[iS1{8}, iS2{8}], { {0, 3, 1} {0, 8, 1} } )
//! T5[istreamIdx7{1}, iS8{3}, iS9{5}] = linear(T4[iS5{3}, iS6{8}], T2[iS3{5}, iS4{8}])
//! ```

use grammar::{
    codes::{Code, Severity},
    diagnostic::Diagnostic,
    ir::{Program, Stmt, StmtId, TensorId},
};

use super::{
    chunked_axis::{self, ChunkedAxis, Obstacle},
    groups::GroupWriter,
};
use crate::{analysis::sharding::Sharding, pass::Change, rewrite::builder::IrBuilder};

/// Neighbouring chunks of one size.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) start: i64,
    pub(super) stop: i64,
    /// Number of chunks.
    pub(super) count: i64,
}

/// Cuts dimension `dim` of `tensor`, which users call `name`, into chunks of these sizes.
pub(super) fn chunk_by_sizes(
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
    // The statements of the parts stand where those stand that they are made from.
    match grammar::verify(program).into_iter().find(|it| it.severity() == Severity::Error) {
        None => Ok(Change::Changed),
        Some(error) => {
            let message =
                format!("axis `{name}` cannot be cut into chunks of given sizes: {}", error.message);
            let it = Diagnostic { code: Code::NotRewritten, message, ..error };
            Err(it.help("cut it into equal chunks with `count=…`, or cut another axis"))
        }
    }
}

/// Checks that the sizes add up to an extent that all devices have.
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
        let help = "cut another axis, or another tensor that has this one";
        return Err(refused(format!("`{of}` is spread over the inner part of an axis")).help(help));
    };
    let Some(extent) = program.constant(whole.extent) else {
        let help = "cut it into equal chunks with `count=…`";
        return Err(refused(format!("axis `{name}` has no constant extent")).help(help));
    };
    if whole.devices().next().is_some() {
        let message = format!("axis `{name}` is spread over devices, and `sizes` cuts it for all alike");
        return Err(refused(message).help(
            "cut what each device has with `count=…`, or cut the result of a statement that gathers it",
        ));
    }
    let sum = sizes.iter().fold(0, |sum: i64, size| sum.saturating_add(*size));
    if sum != extent {
        let message = format!(
            "axis `{name}`: dimension {dim} of `{of}` has extent {extent}, and the sizes add up to {sum}"
        );
        return Err(refused(message).help("give sizes that add up to the extent"));
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
    let message = format!("axis `{name}` cannot be cut into chunks of given sizes: {}", obstacle.reason);
    let out = match &program.stmts[stmt] {
        Stmt::Op(it) => it.out_tensor(),
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => None,
    };
    let label = match out {
        Some(out) => format!("makes all of `{}` at once", program.tensor_name(out)),
        None => "not chunked".to_owned(),
    };
    Diagnostic::new(Code::NotRewritten, program.stmt_span(stmt), message, &label).help(obstacle.help)
}
