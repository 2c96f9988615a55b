//! Records the communications that a rank skips, with the reason. Other ranks may wait for them forever.
//!
//! A plan contains only what its rank does. The reason why two ranks differ is in a branch, in the bounds of
//! a loop or in a mesh, and these are not part of the plan. Only communications that other ranks may post are
//! recorded.

use std::sync::Arc;

use grammar::{BlockId, For, If, Op, OpClass, OpStmt, P2pType, Stmt, StmtId, attr, expr_text};

use super::context::PlanBuilder;

/// A communication that a rank does not post.
#[derive(Clone, Debug, PartialEq)]
pub struct SkippedComm {
    /// The statement.
    pub stmt: StmtId,
    /// The innermost iteration that encloses the skipped block, an index into `Plan::iterations`.
    pub iteration: Option<u32>,
    /// The part that the rank would have in the communication.
    pub role: SkippedRole,
    /// The reason why it is not posted.
    pub reason: SkipReason,
}

/// The part that a rank would have in a communication that it does not post. The peer is `None` if it depends
/// on the index of a loop inside the skipped block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkippedRole {
    /// A send to a rank.
    Send(Option<usize>),
    /// A receive from a rank.
    Recv(Option<usize>),
    /// The part of a member in a collective.
    Collective,
    /// An exchange of memory handles.
    ShareMemHandles,
}

/// The reason why a communication is not posted.
#[derive(Clone, Debug, PartialEq)]
pub enum SkipReason {
    /// A branch is not taken: the text and line of the branch, and the value of its predicate.
    Branch(Arc<str>, bool),
    /// A loop whose bounds depend on the rank runs only from `start` up to, and not including, `stop`.
    Loop {
        /// The text and line of the loop.
        text: Arc<str>,
        /// The line of the loop.
        line: u32,
        /// The expressions of the first value and of the end.
        bounds: [Arc<str>; 2],
        /// The name of the loop index.
        index: Arc<str>,
        /// The first value of the index.
        start: i64,
        /// The end of the range; it is not included.
        stop: i64,
    },
    /// The rank is outside the mesh of this tensor.
    OutsideMesh(Arc<str>),
}

/// The maximum number of skipped communications that are recorded for a rank. Explanations need few.
pub const MAX_SKIPS: usize = 4_096;

impl PlanBuilder<'_> {
    /// Records the communications in the block of a branch that this rank does not take and other ranks may
    /// take.
    pub(super) fn skip_branch(&mut self, stmt: StmtId, it: &If, taken: bool) {
        let Some(block) = (if taken { it.else_block } else { Some(it.then_block) }) else { return };
        let text = format!("`IF {} {}` ({})", it.kind, expr_text(self.program, it.cond), self.line_of(stmt));
        self.skip_block(block, &SkipReason::Branch(text.into(), taken));
    }

    /// Records the communications in a loop that other ranks may execute with other values of the index.
    pub(super) fn skip_loop(&mut self, stmt: StmtId, it: &For, start: i64, stop: i64) {
        let index = self.program.symbols[it.index].as_str();
        let [from, to] = [it.start, it.stop].map(|bound| expr_text(self.program, bound));
        let text = format!("`FOR {index} from {from} to {to}` ({})", self.line_of(stmt));
        let line = self.lines.line(self.program.stmt_span(stmt).start);
        let bounds = [from.into(), to.into()];
        let why = SkipReason::Loop { text: text.into(), line, bounds, index: index.into(), start, stop };
        self.skip_block(it.body, &why);
    }

    /// Records a communication of a tensor of which this rank holds no part.
    pub(super) fn skip_outside_mesh(&mut self, it: &OpStmt) {
        let (Some(tensor), Some(stmt)) = (it.get(attr::BUFFER), self.current_stmt()) else { return };
        self.skip(stmt, it, &SkipReason::OutsideMesh(self.program.tensor_name(tensor).into()));
    }

    fn skip_block(&mut self, block: BlockId, why: &SkipReason) {
        let program = self.program;
        for stmt in program.block(block) {
            match &program.stmts[*stmt] {
                Stmt::Op(it) => self.skip(*stmt, it, why),
                Stmt::For(it) => self.skip_block(it.body, why),
                // Communications that an inner branch skips are not skipped because of this one.
                Stmt::If(it) => match (self.scalars.truth(it.cond), it.else_block) {
                    (Ok(true), _) => self.skip_block(it.then_block, why),
                    (Ok(false), Some(other)) => self.skip_block(other, why),
                    (Ok(false), None) => (),
                    (Err(_), other) => {
                        [Some(it.then_block), other]
                            .into_iter()
                            .flatten()
                            .for_each(|it| self.skip_block(it, why));
                    }
                },
                // Ranks that execute the block give the scalar another value.
                Stmt::Let(symbol, _) => self.scalars.set_rank_dependence(*symbol, true),
            }
        }
    }

    fn skip(&mut self, stmt: StmtId, it: &OpStmt, why: &SkipReason) {
        let peer = || {
            let peer = self.scalars.int(it.get(attr::PEER)?).ok()?;
            usize::try_from(peer).ok()
        };
        let role = match (it.op.def().class, it.op) {
            (OpClass::ShareHandles, _) => SkippedRole::ShareMemHandles,
            (OpClass::Communicate, Op::P2PCommunication) => match it.get(attr::P2P_TYPE) {
                Some(P2pType::Recv) => SkippedRole::Recv(peer()),
                Some(P2pType::Send) | None => SkippedRole::Send(peer()),
            },
            (OpClass::Communicate, _) => SkippedRole::Collective,
            (
                grammar::local_classes!()
                | OpClass::Wait
                | OpClass::Stream
                | OpClass::Condition
                | OpClass::Coalescing
                | OpClass::HostUnit
                | OpClass::Opaque,
                _,
            ) => return,
        };
        if self.plan.skips.len() >= MAX_SKIPS {
            return;
        }
        self.plan.skips.push(SkippedComm { stmt, iteration: self.iteration, role, reason: why.clone() });
    }

    fn line_of(&self, stmt: StmtId) -> String {
        format!("line {}", self.lines.line(self.program.stmt_span(stmt).start))
    }
}

impl SkippedComm {
    /// Returns the size in bytes, including the texts.
    pub(super) fn bytes(&self) -> usize {
        let why = match &self.reason {
            SkipReason::Branch(text, _) | SkipReason::OutsideMesh(text) => text.len() / 2,
            SkipReason::Loop { text, index, bounds: [from, to], .. } => {
                text.len() / 2 + index.len() + from.len() + to.len()
            }
        };
        size_of::<Self>() + why
    }
}
