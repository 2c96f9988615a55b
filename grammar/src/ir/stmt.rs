//! Statements: operators, scalar definitions, loops and branches, and the walk over the statements of a
//! block.

use super::{Attr, AxisId, BlockId, ExprId, Operand, Program, StmtId, SymbolId, TensorId};
use crate::{
    attr::AttrName,
    ops::{Op, OpClass},
};

/// One statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Stmt {
    /// An operator of the table.
    Op(OpStmt),
    /// A scalar definition such as `i84 = i82 % 8`, executed in program order.
    Let(SymbolId, ExprId),
    /// A loop.
    For(For),
    /// A branch.
    If(If),
}

/// An operator with its operands and attributes.
#[derive(Clone, Debug, PartialEq)]
pub struct OpStmt {
    /// The operator.
    pub op: Op,
    /// The expression number (`Communication 35`).
    pub number: Option<u32>,
    /// Results, left of `=`.
    pub outs: Vec<Operand>,
    /// Positional operands.
    pub args: Vec<Operand>,
    /// Keyed operands and attributes, in the order of the operator's definition.
    pub attrs: Vec<(AttrName, Attr)>,
}

impl OpStmt {
    /// Returns the first tensor among the results.
    pub fn out_tensor(&self) -> Option<TensorId> {
        self.outs.iter().find_map(|out| out.tensor())
    }
}

/// A loop; `index` runs from `start` up to, but not including, `stop`.
#[derive(Clone, Debug, PartialEq)]
pub struct For {
    /// The loop index.
    pub index: SymbolId,
    /// The axis of the `in` form, which determines the extent.
    pub axis: Option<AxisId>,
    /// First index, inclusive.
    pub start: ExprId,
    /// Last index, exclusive.
    pub stop: ExprId,
    /// The body.
    pub body: BlockId,
}

/// A branch.
#[derive(Clone, Debug, PartialEq)]
pub struct If {
    /// The kind of predicate; `If::MANUAL` in host programs.
    pub kind: String,
    /// The predicate.
    pub cond: ExprId,
    /// Statements executed if the predicate is true; may be empty.
    pub then_block: BlockId,
    /// Statements executed if the predicate is false; `None` without `ELSE:`.
    pub else_block: Option<BlockId>,
}

impl If {
    /// The kind of predicate that the host evaluates. nvFuser has others inside kernels.
    pub const MANUAL: &str = "Manual";
}

impl Stmt {
    /// Returns the statement as an operator; `None` if it is another one.
    pub const fn op(&self) -> Option<&OpStmt> {
        match self {
            Self::Op(it) => Some(it),
            Self::Let(..) | Self::For(_) | Self::If(_) => None,
        }
    }
}

impl Program {
    /// Returns the number of the work that a statement posts, by which a Wait can refer to it.
    pub fn posted_work(&self, stmt: StmtId) -> Option<u32> {
        let posts = |it: &&OpStmt| it.op.def().class == OpClass::Communicate || it.op == Op::EndCoalescing;
        self.stmts[stmt].op().filter(posts)?.number
    }

    /// Returns a statement as an operator; `None` if it is another one.
    pub fn op(&self, stmt: StmtId) -> Option<&OpStmt> {
        self.stmts[stmt].op()
    }

    /// Returns the blocks directly inside a statement.
    pub fn inner_blocks(&self, stmt: StmtId) -> impl DoubleEndedIterator<Item = BlockId> + use<> {
        let blocks = match &self.stmts[stmt] {
            Stmt::Op(_) | Stmt::Let(..) => [None, None],
            Stmt::For(it) => [Some(it.body), None],
            Stmt::If(it) => [Some(it.then_block), it.else_block],
        };
        blocks.into_iter().flatten()
    }

    /// Returns the container's block, and those of its HostUnits.
    pub fn bodies(&self) -> impl Iterator<Item = BlockId> {
        self.body.into_iter().chain(self.units.iter().filter_map(|(_, unit)| unit.body))
    }

    /// Returns a statement and the statements of its nested blocks, in program order.
    pub fn stmts_at(&self, stmt: StmtId) -> impl Iterator<Item = StmtId> {
        std::iter::once(stmt).chain(self.inner_blocks(stmt).flat_map(|it| self.stmts_in(it)))
    }

    /// Returns the statements of a block and of its nested blocks, in program order.
    pub fn stmts_in(&self, block: BlockId) -> impl Iterator<Item = StmtId> {
        let mut open = vec![self.block(block).iter()];
        std::iter::from_fn(move || {
            let stmt = loop {
                match open.last_mut()?.next() {
                    Some(stmt) => break *stmt,
                    None => _ = open.pop(),
                }
            };
            open.extend(self.inner_blocks(stmt).rev().map(|it| self.block(it).iter()));
            Some(stmt)
        })
    }

    /// Returns the operators among the statements of a block and of its nested blocks, in program order.
    pub fn ops_in(&self, block: BlockId) -> impl Iterator<Item = (StmtId, &OpStmt)> {
        self.stmts_in(block).filter_map(|it| Some((it, self.op(it)?)))
    }

    /// Returns the operators among a statement and the statements of its nested blocks, in program order.
    pub fn ops_at(&self, stmt: StmtId) -> impl Iterator<Item = (StmtId, &OpStmt)> {
        self.stmts_at(stmt).filter_map(|it| Some((it, self.op(it)?)))
    }

    /// Returns the operators of the container, in program order.
    pub fn ops(&self) -> impl Iterator<Item = (StmtId, &OpStmt)> {
        self.body.into_iter().flat_map(|it| self.ops_in(it))
    }
}
