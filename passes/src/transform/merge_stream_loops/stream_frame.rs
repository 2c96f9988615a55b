//! The stream statements at the beginning and end of a loop's body.

use grammar::{
    ir::{BlockId, Operand, Program, Stmt, StmtId, Stream},
    ops::{Op, OpClass},
};

/// The stream statements at the beginning and end of a body.
pub(super) struct StreamFrame {
    /// The stream that the body runs on; `None`: the stream that is current before the loop.
    pub(super) stream: Option<Stream>,
    /// The SetCurrentStream at the beginning and the Synchronizes after it.
    pub(super) begin: Vec<(Op, Stream)>,
    /// The SetCurrentStream at the end and the Synchronizes after it.
    pub(super) end: Vec<(Op, Stream)>,
    /// Whether the body contains nothing else.
    pub(super) is_only_streams: bool,
}

impl StreamFrame {
    /// Analyzes a body. Returns `None` if it operates on streams anywhere else.
    pub(super) fn of(program: &Program, body: BlockId) -> Option<Self> {
        let stmts = program.block(body);
        let stream = |stmt: &StmtId| match &program.stmts[*stmt] {
            Stmt::Op(it) if it.op.def().class == OpClass::Stream => match (it.op, &it.args[..]) {
                (op, [Operand::Stream(stream)]) => Some((op, program.streams[*stream].clone())),
                _ => None,
            },
            Stmt::Op(_) | Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => None,
        };
        let begin: Vec<(Op, Stream)> = stmts.iter().map_while(stream).collect();
        let rest = &stmts[begin.len()..];
        let mut end: Vec<(Op, Stream)> = rest.iter().rev().map_while(stream).collect();
        end.reverse();
        let inner = &rest[..rest.len() - end.len()];
        let mut plain = true;
        for stmt in inner {
            let touches = |stmt: StmtId| matches!(&program.stmts[stmt], Stmt::Op(it) if it.op.def().class == OpClass::Stream);
            plain &= !touches(*stmt);
            match &program.stmts[*stmt] {
                Stmt::For(it) => program.walk(it.body, &mut |stmt| plain &= !touches(stmt)),
                Stmt::If(it) => {
                    let blocks = [Some(it.then_block), it.else_block];
                    blocks
                        .into_iter()
                        .flatten()
                        .for_each(|it| program.walk(it, &mut |stmt| plain &= !touches(stmt)));
                }
                Stmt::Op(_) | Stmt::Let(..) => (),
            }
        }
        let sets = |list: &[(Op, Stream)]| list.iter().filter(|(op, _)| *op == Op::SetCurrentStream).count();
        let first = begin.first().cloned();
        let (stream, fits) = match first {
            Some((Op::SetCurrentStream, stream)) => {
                let back = end.is_empty() || matches!(end[0], (Op::SetCurrentStream, _)) && sets(&end) == 1;
                (Some(stream), sets(&begin) == 1 && back)
            }
            // A merged body has no position for joins on the stream around the loop.
            Some(_) => (None, false),
            None => (None, end.is_empty()),
        };
        (plain && fits).then_some(Self { stream, begin, end, is_only_streams: inner.is_empty() })
    }
}
