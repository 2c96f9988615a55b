//! Communications that a rank goes past without posting them, and why: what other ranks may wait for and never get.
//!
//! A plan holds what a rank does; where ranks differ in that, the cause stands in a branch, in the bounds of a loop, or in
//! a mesh, of which the plan holds nothing else. Only those are listed that other ranks may not go past.

use std::sync::Arc;

use grammar::{
    attr, expr_text,
    ir::{BlockId, For, If, OpStmt, Stmt, StmtId},
    ops::{Op, OpClass},
    words::P2pType,
};

use super::context::{OriginNo, PlanBuilder};

/// A communication that a rank does not post.
#[derive(Clone, Debug, PartialEq)]
pub struct SkippedComm {
    /// The statement.
    pub stmt: StmtId,
    /// The innermost iteration around what skips it, an index into `Plan::frames`.
    pub iteration: Option<u32>,
    /// What it would have been.
    pub role: SkippedRole,
    /// Why it is not posted.
    pub reason: SkipReason,
}

/// What a communication that is not posted would have been. A peer that is not known is one that an inner loop decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkippedRole {
    /// A send to a rank.
    Send(Option<usize>),
    /// A receive from a rank.
    Recv(Option<usize>),
    /// A member's part in a collective.
    Collective,
    /// An exchange of handles.
    ShareMemHandles,
}

/// Why a communication is not posted.
#[derive(Clone, Debug, PartialEq)]
pub enum SkipReason {
    /// A branch that is not taken: its text and line, and what its predicate is.
    Branch(Arc<str>, bool),
    /// A loop whose bounds depend on the rank runs only from `start` up to `stop`: its text and line, and its index.
    Loop {
        /// The loop's text and line.
        text: Arc<str>,
        /// The loop's index.
        index: Arc<str>,
        /// Its first value.
        start: i64,
        /// The value behind its last.
        stop: i64,
    },
    /// The rank is in no mesh of this tensor.
    OutsideMesh(Arc<str>),
}

/// Most communications of a rank that are listed: explanations need few.
pub const MAX_SKIPS: usize = 4_096;

impl PlanBuilder<'_> {
    /// Lists what stands in the block of a branch that this rank does not take, where others may take it.
    pub(super) fn skip_branch(&mut self, stmt: StmtId, it: &If, taken: bool) {
        let Some(block) = (if taken { it.else_block } else { Some(it.then_block) }) else { return };
        let text = format!("`IF {} {}` ({})", it.kind, expr_text(self.program, it.cond), self.line_of(stmt));
        self.skip_block(block, &SkipReason::Branch(text.into(), taken));
    }

    /// Lists what stands in a loop that other ranks may run for other values of its index.
    pub(super) fn skip_loop(&mut self, stmt: StmtId, it: &For, start: i64, stop: i64) {
        let index = self.program.symbols[it.index].as_str();
        let [from, to] = [it.start, it.stop].map(|bound| expr_text(self.program, bound));
        let text = format!("`FOR {index} from {from} to {to}` ({})", self.line_of(stmt));
        let why = SkipReason::Loop { text: text.into(), index: index.into(), start, stop };
        self.skip_block(it.body, &why);
    }

    /// Lists a communication of a tensor that this rank holds no part of.
    pub(super) fn skip_outside_mesh(&mut self, it: &OpStmt) {
        let (Some(tensor), Some(stmt)) = (it.get(attr::BUFFER), self.statement()) else { return };
        self.skip(stmt, it, &SkipReason::OutsideMesh(self.program.tensor_name(tensor).into()));
    }

    fn skip_block(&mut self, block: BlockId, why: &SkipReason) {
        let program = self.program;
        for stmt in program.block(block) {
            match &program.stmts[*stmt] {
                Stmt::Op(it) => self.skip(*stmt, it, why),
                Stmt::For(it) => self.skip_block(it.body, why),
                // What a branch inside keeps from being posted is not this one's doing.
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
                Stmt::Let(..) => (),
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
            _ => return,
        };
        if self.plan.skips.len() >= MAX_SKIPS {
            return;
        }
        self.plan.skips.push(SkippedComm { stmt, iteration: self.iteration, role, reason: why.clone() });
    }

    /// The statement under the cursor.
    fn statement(&self) -> Option<StmtId> {
        match self.origin {
            OriginNo::Known(origin) => self.plan.origins.get(origin as usize)?.stmt,
            OriginNo::New(it) => it.stmt,
        }
    }

    fn line_of(&self, stmt: StmtId) -> String {
        format!("line {}", self.lines.line(self.program.stmt_span(stmt).start))
    }
}

impl SkippedComm {
    /// The bytes that it takes, texts included.
    pub(super) fn bytes(&self) -> usize {
        let why = match &self.reason {
            SkipReason::Branch(text, _) | SkipReason::OutsideMesh(text) => text.len() / 2,
            SkipReason::Loop { text, index, .. } => text.len() / 2 + index.len(),
        };
        size_of::<Self>() + why
    }
}
