//! Determines whether the statements after two loops rely on the forks of the second loop.
//!
//! A stream that is forked after the first loop waits for all iterations of this loop. In the merged loop, it
//! waits only for the earlier iterations.

use grammar::{
    ir::{For, Operand, Program, Stmt, StmtId, Stream},
    ops::{Op, OpClass},
};

use super::{StreamFrame, have_same_bounds};
use crate::{
    analysis::blocks::any_stmt,
    rewrite::{builder, substitute::Substitution},
};

/// Returns true if the streams of a loop are certainly forked again in `rest` before they are used, or are
/// not used in `rest` and the program ends after it (`is_last`).
pub(super) fn are_forked_again(
    program: &mut Program,
    frame: &StreamFrame,
    first: &For,
    captured: Option<(u32, u32)>,
    rest: &[StmtId],
    is_last: bool,
) -> bool {
    let Some((Op::SetCurrentStream, home)) = frame.end.first().cloned() else { return false };
    let own = frame.stream.iter().map(|it| (Op::Synchronize, it.clone())).next();
    let is_joined = own.is_some_and(|it| frame.end.contains(&it));
    // The names of the stream that the loops return to, which is current after them.
    let mut homes = vec![home];
    homes.extend(captured.map(|(new, _)| Stream::Named(new)));
    for stmt in rest {
        match program.stmts[*stmt].clone() {
            Stmt::Op(it) if it.op == Op::GetCurrentStream => {
                let [Operand::Stream(stream)] = it.outs[..] else { return false };
                homes.push(program.streams[stream].clone());
            }
            Stmt::Op(it) if it.op == Op::SetCurrentStream => {
                let [Operand::Stream(stream)] = it.args[..] else { return false };
                if !homes.contains(&program.streams[stream]) {
                    return false;
                }
            }
            // Other operators run on a stream that waits for more than before, which is correct too.
            Stmt::Op(_) => (),
            Stmt::Let(..) => return false,
            Stmt::If(_) if uses_streams(program, *stmt) => return false,
            Stmt::For(it) if uses_streams(program, *stmt) => {
                let index = builder::symbol(program, first.index);
                let body = Substitution::of_symbol(it.index, index).block(program, it.body);
                let Some(own) = StreamFrame::of(program, body) else { return false };
                let is_fork = |(op, stream): &(Op, Stream)| *op == Op::Synchronize && homes.contains(stream);
                let returns = own.is_only_streams || own.end.first().is_some_and(|it| homes.contains(&it.1));
                if own.stream.is_none() || !own.begin.iter().any(is_fork) || !returns {
                    return false;
                }
                if own.stream == frame.stream && have_same_bounds(program, first, &it) {
                    return is_joined;
                }
                // The loop leaves another stream current.
                if own.is_only_streams {
                    return false;
                }
            }
            Stmt::For(_) | Stmt::If(_) => (),
        }
    }
    is_last
}

/// Returns whether a statement, or one inside it, sets, captures or synchronizes streams.
fn uses_streams(program: &Program, stmt: StmtId) -> bool {
    any_stmt(
        program,
        stmt,
        &|stmt| matches!(&program.stmts[stmt], Stmt::Op(it) if it.op.def().class == OpClass::Stream),
    )
}
