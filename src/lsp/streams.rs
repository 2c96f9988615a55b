//! The stream on which each statement is issued, as far as the text of the program determines it.

use grammar::{
    ir::{BlockId, Operand, Program, Stmt, StmtId},
    ops::{Op, OpClass},
    stream_text,
};
use rustc_hash::FxHashMap;

/// A stream that is current at a statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CurrentStream {
    /// The stream that is current when the program begins.
    Entry,
    /// A stream, with the statement that has made it current.
    Set(String, StmtId),
    /// One of several.
    Unknown,
}

/// Returns the stream that is current at each statement of the container that works on one.
pub(crate) fn current_streams(program: &Program) -> FxHashMap<StmtId, CurrentStream> {
    let mut walk = Walk { program, found: FxHashMap::default() };
    if let Some(body) = program.body {
        walk.block(body, CurrentStream::Entry);
    }
    walk.found
}

struct Walk<'p> {
    program: &'p Program,
    found: FxHashMap<StmtId, CurrentStream>,
}

impl Walk<'_> {
    /// Follows the statements of a block. Returns the stream that is current behind it.
    fn block(&mut self, block: BlockId, mut current: CurrentStream) -> CurrentStream {
        for stmt in self.program.block(block) {
            match &self.program.stmts[*stmt] {
                Stmt::Op(it) if it.op == Op::SetCurrentStream => {
                    if let Some(Operand::Stream(stream)) = it.args.first() {
                        current = CurrentStream::Set(stream_text(self.program, *stream), *stmt);
                    }
                }
                Stmt::Op(it) => {
                    if works_on_a_stream(it.op.def().class) {
                        self.found.insert(*stmt, current.clone());
                    }
                }
                Stmt::Let(..) => (),
                Stmt::For(it) => {
                    // A later iteration begins with the stream with which the one before it has ended.
                    let end = self.block(it.body, current.clone());
                    if end != current {
                        self.block(it.body, CurrentStream::Unknown);
                        current = CurrentStream::Unknown;
                    }
                }
                Stmt::If(it) => {
                    let then = self.block(it.then_block, current.clone());
                    let other = match it.else_block {
                        Some(other) => self.block(other, current.clone()),
                        None => current,
                    };
                    current = if then == other { then } else { CurrentStream::Unknown };
                }
            }
        }
        current
    }
}

/// Returns whether an operator of a class is issued on the current stream, or makes it wait.
fn works_on_a_stream(class: OpClass) -> bool {
    match class {
        OpClass::Compute
        | OpClass::Elementwise
        | OpClass::Communicate
        | OpClass::Wait
        | OpClass::HostUnit
        | OpClass::Opaque
        | OpClass::Allocate => true,
        OpClass::View
        | OpClass::Deallocate
        | OpClass::Stream
        | OpClass::Coalescing
        | OpClass::ShareHandles => false,
    }
}
