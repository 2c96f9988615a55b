//! Checks that an iteration has finished with a buffer before a later iteration overwrites it.

use grammar::{
    BlockId, Code, Diagnostic, Expr, ExprId, For, InfixOp, Op, OpClass, Program, Stmt, StmtId, Stream,
    StreamId,
};
use hir_ir::streams::{sets_stream, stream_set_by};

use super::LoopBuffer;
use crate::analysis::wait_order::awaited_work;

/// Checks that an iteration has finished with its buffer before a later iteration overwrites it.
pub(super) fn check_in_order(
    program: &Program,
    it: &For,
    buffer: &LoopBuffer,
    count: i64,
) -> Result<(), Diagnostic> {
    let bounds = program.constant(it.start).zip(program.constant(it.stop));
    if program.constant(it.start).is_none_or(|start| start < 0) {
        return Err(double_buffer_error(
            program,
            it,
            buffer,
            buffer.allocate,
            "the index of the loop may be negative",
        ));
    }
    if let Some(stmt) = sharing_stmt(program, it.body, buffer) {
        let why = "its memory handle is shared once, but each copy of the buffer would have to be shared";
        return Err(double_buffer_error(program, it, buffer, stmt, why));
    }
    if bounds.is_some_and(|(start, stop)| stop.saturating_sub(start) <= count) {
        return Ok(());
    }
    check_waits(program, it.body, buffer).map_err(|stmt| {
        let why = "the iteration that posts this communication does not wait for it";
        double_buffer_error(program, it, buffer, stmt, why)
    })?;
    let choices = program.stmts_in(it.body).filter(|it| stream_set_by(program, *it).is_some()).count();
    if choices == 0 {
        return Ok(());
    }
    let stmts = program.block(it.body);
    let uses = |stmt: &StmtId| mentions_buffer(program, *stmt, buffer);
    let first = stmts.iter().position(|stmt| *stmt != buffer.allocate && uses(stmt));
    let last = stmts.iter().rposition(|stmt| *stmt != buffer.allocate && uses(stmt));
    let Some((first, last)) = first.zip(last) else { return Ok(()) };
    let several = "several streams use it";
    if let Some(stmt) = stmts[first..=last].iter().find(|stmt| sets_stream(program, **stmt)) {
        return Err(double_buffer_error(program, it, buffer, *stmt, several));
    }
    let choice = stmts[..first].iter().rev().find(|stmt| sets_stream(program, **stmt));
    let stream = choice.and_then(|stmt| stream_set_by(program, *stmt));
    let period = stream.and_then(|index| stream_period(program, it, index));
    match (choice, period) {
        (Some(_), Some(period)) if period > 0 && count % period == 0 => Ok(()),
        (Some(stmt), _) => {
            let why = format!(
                "iterations i and i + {count} use the same copy, but may run on different streams, so the second may overwrite it while the first still reads it"
            );
            Err(double_buffer_error(program, it, buffer, *stmt, &why))
        }
        (None, _) => Err(double_buffer_error(program, it, buffer, buffer.allocate, several)),
    }
}

fn double_buffer_error(
    program: &Program,
    it: &For,
    buffer: &LoopBuffer,
    stmt: StmtId,
    why: &str,
) -> Diagnostic {
    let (name, index) = (program.tensor_name(buffer.tensor), &program.symbols[it.index]);
    let message = format!("cannot double-buffer `{name}` of the loop over `{index}`: {why}");
    Diagnostic::new(Code::NotRewritten, program.stmt_span(stmt), message, "here").help(
        "wait for its communications in the iteration that posts them, and use it only on `Stream ( i % n )` with a `count` that is a multiple of n",
    )
}

/// Returns a ShareMemHandles that lists the buffer. Its handle is exchanged once; several buffers would need
/// one exchange each, on both sides in the same iterations.
fn sharing_stmt(program: &Program, block: BlockId, buffer: &LoopBuffer) -> Option<StmtId> {
    let mut shares = program.ops_in(block).filter(|(_, op)| op.op.def().class == OpClass::ShareHandles);
    shares.find(|(stmt, _)| mentions_buffer(program, *stmt, buffer)).map(|it| it.0)
}

/// Checks that a Wait in the same block follows every communication of the buffer. Returns the first
/// statement without a Wait as the error.
fn check_waits(program: &Program, block: BlockId, buffer: &LoopBuffer) -> Result<(), StmtId> {
    let stmts = program.block(block);
    let mut bracket = None;
    let mut posted: Vec<(u32, StmtId)> = Vec::new();
    for stmt in stmts {
        match &program.stmts[*stmt] {
            Stmt::Op(op) => match op.op.def().class {
                OpClass::Communicate if mentions_buffer(program, *stmt, buffer) => match &mut bracket {
                    Some(uses) => *uses = true,
                    None => posted.push((op.number.ok_or(*stmt)?, *stmt)),
                },
                OpClass::Coalescing if op.op == Op::StartCoalescing => bracket = Some(false),
                OpClass::Coalescing => {
                    if bracket.take() == Some(true) {
                        posted.push((op.number.ok_or(*stmt)?, *stmt));
                    }
                }
                OpClass::Wait => {
                    let number = awaited_work(program, *stmt);
                    posted.retain(|(posted, _)| Some(*posted) != number);
                }
                OpClass::Stream if stream_set_by(program, *stmt).is_some() => {
                    if let Some((_, post)) = posted.first() {
                        return Err(*post);
                    }
                }
                grammar::local_classes!()
                | OpClass::Communicate
                | OpClass::Stream
                | OpClass::Condition
                | OpClass::ShareHandles
                | OpClass::HostUnit
                | OpClass::Opaque => (),
            },
            Stmt::Let(..) => (),
            Stmt::For(it) => check_waits(program, it.body, buffer)?,
            Stmt::If(it) => {
                check_waits(program, it.then_block, buffer)?;
                it.else_block.map_or(Ok(()), |other| check_waits(program, other, buffer))?;
            }
        }
    }
    posted.first().map_or(Ok(()), |(_, stmt)| Err(*stmt))
}

/// Returns whether a statement, or one inside it, mentions the buffer.
pub(super) fn mentions_buffer(program: &Program, stmt: StmtId, buffer: &LoopBuffer) -> bool {
    program.ops_at(stmt).flat_map(|(_, op)| op.mentions(program)).any(|it| it == buffer.tensor)
}

/// Returns the number of iterations after which a stream recurs; 1 for a stream that does not change.
fn stream_period(program: &Program, it: &For, stream: StreamId) -> Option<i64> {
    let Stream::Index(index) = program.streams[stream] else { return Some(1) };
    let number = |expr: ExprId| match &program.exprs[expr] {
        Expr::Symbol(symbol) => {
            let option = program.options.get(&program.symbols[*symbol]);
            program.definitions.get(symbol).or(option).and_then(|it| program.constant(*it))
        }
        Expr::Int(value) => Some(*value),
        _ => None,
    };
    match &program.exprs[index] {
        Expr::Int(_) => Some(1),
        Expr::Infix(InfixOp::Rem, lhs, rhs) if program.exprs[*lhs] == Expr::Symbol(it.index) => number(*rhs),
        _ => None,
    }
}
