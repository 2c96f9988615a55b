//! Emits the fork before a group of loops, the streams of their iterations, and the join after them.

use grammar::{
    ExprId, For, If, InfixOp, Op, OpClass, OpStmt, Operand, Program, Span, Stmt, StmtId, StreamId,
};
use hir_ir::build::{self, IrBuilder};

use super::communications::{IterationStreams, SharedStreamOrder, move_to_shared_stream, set, synchronize};
use crate::analysis::memory_effects::MemoryEffects;

/// The number of streams, and where they fork and join.
pub(super) struct ForkJoinStyle {
    /// The number of streams; `None`: one for each iteration.
    pub(super) count: Option<ExprId>,
    pub(super) fork_inline: bool,
    pub(super) join_inline: bool,
    pub(super) inter_stream: bool,
    /// The stream of the communications.
    pub(super) communications: CommStream,
}

/// The stream on which the iterations of a loop communicate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CommStream {
    /// That of the iteration.
    Inline,
    /// One more stream for all iterations.
    Shared,
    /// `Shared`, if no iteration waits for its communications before the loop ends, else `Inline`.
    Auto,
    /// `Shared`, and it waits for each communication before the next one begins.
    Ordered,
}

/// Emits the statements that replace the loops: the capture of the current stream, the forks, the loops and
/// the joins.
pub(super) fn fork_and_join(
    program: &mut Program,
    fresh: &mut IrBuilder,
    (style, storage): (&ForkJoinStyle, &MemoryEffects),
    (loops, shared): (&[(StmtId, For)], Option<StreamId>),
    stmts: &mut Vec<StmtId>,
) {
    let main = fresh.stream(program);
    let first = loops.first().map(|(stmt, _)| program.stmt_span(*stmt)).unwrap_or_default();
    let mut capture = build::op(Op::GetCurrentStream);
    capture.outs.push(Operand::Stream(main));
    stmts.push(build::add(program, capture, first));

    let is_single = style.count.is_some_and(|count| program.constant(count) == Some(1));
    let (mut forks, mut bodies, mut joins) = (Vec::new(), Vec::new(), Vec::new());
    let mut before = 0;
    let mut order = SharedStreamOrder::default();
    for (stmt, it) in loops {
        let span = program.stmt_span(*stmt);
        let mut index = build::symbol(program, it.index);
        if before > 0 {
            let before = program.intern_int(before);
            index = build::infix(program, InfixOp::Add, index, before);
        }
        let worker = match style.count {
            Some(_) if is_single => program.intern_int(0),
            Some(count) => build::infix(program, InfixOp::Rem, index, count),
            None => index,
        };
        let worker = build::indexed_stream(program, worker);
        let mut body = vec![set(program, worker, span)];
        if style.fork_inline {
            body.push(synchronize(program, main, span));
        } else {
            let fork = vec![set(program, worker, span), synchronize(program, main, span)];
            add_for_each_stream(program, is_single, it, fork, &mut forks);
        }
        let waits_behind = !style.fork_inline && style.communications != CommStream::Ordered;
        let joining = waits_behind.then_some(main);
        let streams = shared.map(|shared| IterationStreams { worker, shared, joining });
        let mut own = SharedStreamOrder::default();
        let moved = streams.map(|to| move_to_shared_stream(program, storage, it.body, to, &mut own));
        let keeps_moved = style.communications != CommStream::Auto || !own.inside;
        let mut old = match moved.filter(|_| keeps_moved) {
            Some(moved) => {
                (order.fork, order.join) = (order.fork || own.fork, order.join || own.join);
                moved
            }
            None => program.blocks[it.body].clone(),
        };
        if style.inter_stream
            && let Some(at) = behind_communications(program, &old)
        {
            let sync = inter_stream_sync(program, style, it, index, worker, span);
            old.insert(at, sync);
        }
        body.append(&mut old);
        if style.join_inline {
            body.extend([set(program, main, span), synchronize(program, worker, span)]);
        }
        program.blocks[it.body] = body;
        bodies.push(*stmt);
        if !style.join_inline {
            let join = vec![synchronize(program, worker, span)];
            add_for_each_stream(program, is_single, it, join, &mut joins);
        }
        let bounds = program.constant(it.start).zip(program.constant(it.stop));
        before += bounds.map_or(0, |(start, stop)| stop.saturating_sub(start).max(0));
    }
    // A loop may have no iterations, so statements outside of loops make the captured stream current again.
    if let Some(shared) = shared.filter(|_| order.fork) {
        stmts.push(set(program, shared, first));
        stmts.push(synchronize(program, main, first));
        stmts.push(set(program, main, first));
    }
    stmts.append(&mut forks);
    if is_single && !style.fork_inline {
        stmts.push(set(program, main, first));
    }
    stmts.append(&mut bodies);
    if !style.join_inline {
        stmts.push(set(program, main, first));
    }
    stmts.append(&mut joins);
    if let Some(shared) = shared.filter(|_| order.join) {
        stmts.push(synchronize(program, shared, first));
    }
}

/// Returns the stream of the communications of all iterations: the one behind those of the iterations.
pub(super) fn shared_stream(
    program: &mut Program,
    style: &ForkJoinStyle,
    loops: &[(StmtId, For)],
    trips: Option<i64>,
) -> StreamId {
    // Without a number of streams, iteration `i` of a loop runs on the stream of `i` plus the iterations of the loops
    // before it.
    let last = loops.last().and_then(|(_, it)| program.constant(it.stop).zip(program.constant(it.start)));
    let index = match (style.count, trips, last, loops) {
        (Some(count), ..) => count,
        (None, Some(trips), Some((stop, start)), _) => {
            program.intern_int(trips.max(0) + start.min(stop).max(0))
        }
        (None, _, _, [(_, first), ..]) => first.stop,
        (None, _, _, []) => program.intern_int(0),
    };
    build::indexed_stream(program, index)
}

/// Adds a loop with the index and bounds of `it`, whose body does something with the stream of an iteration. If all
/// iterations of all loops have one stream, adds the statements of the first loop alone.
fn add_for_each_stream(
    program: &mut Program,
    is_single: bool,
    it: &For,
    stmts: Vec<StmtId>,
    to: &mut Vec<StmtId>,
) {
    if !is_single {
        let span = stmts.first().map(|it| program.stmt_span(*it)).unwrap_or_default();
        let body = build::block(program, stmts);
        to.push(program.add_stmt(Stmt::For(For { body, ..it.clone() }), span));
    } else if to.is_empty() {
        to.extend(stmts);
    }
}

/// Returns the index after the last statement that communicates and the Waits that follow it.
fn behind_communications(program: &Program, stmts: &[StmtId]) -> Option<usize> {
    let posts =
        |(_, it): (StmtId, &OpStmt)| matches!(it.op.def().class, OpClass::Communicate | OpClass::Coalescing);
    let last = stmts.iter().rposition(|stmt| program.ops_at(*stmt).any(posts))?;
    let is_wait = |it: &OpStmt| it.op.def().class == OpClass::Wait;
    let waits = stmts[last + 1..].iter().take_while(|stmt| program.op(**stmt).is_some_and(is_wait));
    Some(last + 1 + waits.count())
}

fn inter_stream_sync(
    program: &mut Program,
    style: &ForkJoinStyle,
    it: &For,
    index: ExprId,
    worker: StreamId,
    span: Span,
) -> StmtId {
    let one = program.intern_int(1);
    let next = build::infix(program, InfixOp::Add, index, one);
    let bound = style.count.unwrap_or(it.stop);
    let cond = build::infix(program, InfixOp::Lt, next, bound);
    let next = build::indexed_stream(program, next);
    let then =
        [build::set_current_stream(next), build::synchronize(worker), build::set_current_stream(worker)];
    let then = then.into_iter().map(|it| build::add(program, it, span)).collect();
    let then = build::block(program, then);
    program.add_stmt(
        Stmt::If(If { kind: If::MANUAL.to_owned(), cond, then_block: then, else_block: None }),
        span,
    )
}
