//! The statements that share a loop.

use grammar::{ExprId, Program, Stmt, StmtId, TensorId};
use rustc_hash::FxHashMap;

use super::{
    options::{LoopOptions, Style},
    slicing::{SliceKind, Slicing},
};
use crate::analysis::sharding::same_extent;

/// The statements of one loop.
pub(crate) struct StmtGroup {
    /// The number of iterations.
    pub(super) count: ExprId,
    pub(super) style: Style,
    pub(super) members: Vec<LoopStmt>,
    /// The results of the statements, with the dimension that is sliced.
    pub(super) produced: FxHashMap<TensorId, usize>,
}

/// A statement of a loop.
pub(super) struct LoopStmt {
    pub(super) stmt: StmtId,
    pub(super) slicing: Slicing,
}

impl StmtGroup {
    /// Creates an empty group.
    pub(super) fn new(count: ExprId, style: Style) -> Self {
        Self { count, style, members: Vec::new(), produced: FxHashMap::default() }
    }

    /// Returns the original statements that the loop computes chunk by chunk.
    pub(crate) fn stmts(&self) -> impl Iterator<Item = StmtId> {
        self.members.iter().map(|it| it.stmt)
    }

    /// Returns the number of iterations, if it is a constant.
    pub(crate) fn trips(&self, program: &Program) -> Option<i64> {
        program.constant(self.count)
    }

    /// Returns whether the loop communicates, whether or not other resharding in it is lowered to communication.
    pub(crate) fn communicates(&self) -> bool {
        self.members.iter().any(|it| it.slicing.kind.device().is_some())
    }

    /// Returns whether the loop computes a matrix product.
    pub(crate) fn has_product(&self, program: &Program) -> bool {
        let is_product = |stmt| matches!(&program.stmts[stmt], Stmt::Op(it) if it.rule().is_matrix_product());
        self.stmts().any(is_product)
    }

    /// Adds statements.
    pub(super) fn extend(&mut self, members: impl IntoIterator<Item = LoopStmt>) {
        for member in members {
            if let Some(dim) = member.slicing.out_dim {
                self.produced.insert(member.slicing.out, dim);
            }
            self.members.push(member);
        }
    }

    /// Removes the local statements at the end that compute an operand of `reader` or of one of them, and returns them.
    pub(super) fn split_off_producers(&mut self, reader: &Slicing) -> Self {
        let reads = |it: &Slicing, tensor| it.operands.iter().any(|operand| operand.tensor == tensor);
        let mut first = self.members.len();
        while let Some(last) = first.checked_sub(1) {
            let it = &self.members[last].slicing;
            let mut readers = self.members[first..].iter().map(|member| &member.slicing).chain([reader]);
            if it.kind != SliceKind::Local || !readers.any(|reader| reads(reader, it.out)) {
                break;
            }
            first = last;
        }
        let mut producers = Self::new(self.count, self.style);
        let taken = self.members.split_off(first);
        taken.iter().for_each(|it| _ = self.produced.remove(&it.slicing.out));
        producers.extend(taken);
        producers
    }

    /// Returns whether a statement can be added to the group: it has the same stream axis, and reads the
    /// results of the loop slice by slice.
    pub(super) fn can_add(&self, program: &Program, settings: LoopOptions, slicing: &Slicing) -> bool {
        // The result of a reduce-scatter is complete only after the loop.
        let unfinished = |tensor: TensorId| {
            self.members.iter().any(|it| it.slicing.out == tensor && it.slicing.out_dim.is_none())
        };
        let sliced = slicing.operands.iter().all(|operand| match self.produced.get(&operand.tensor) {
            Some(dim) => operand.dim == Some(*dim),
            None => !unfinished(operand.tensor),
        });
        let is_new = !self.produced.contains_key(&slicing.out);
        // All ranks have to post the same collectives in each iteration. A rotated statement works on another
        // slice on each rank, and other collectives do not.
        let clash = |a: &Slicing, b: &Slicing| {
            let mesh = |tensor: TensorId| &program.tensors[tensor].mesh;
            // Ranks outside of the ring have no slice of their own.
            let sliced = b.operands.iter().filter(|it| it.dim.is_some()).map(|it| it.tensor);
            let elsewhere = sliced.chain([b.out]).any(|it| mesh(it) != mesh(a.out));
            // Two rings along the same devices use the same slice on each rank.
            let other = b.kind != SliceKind::Local && !(b.rotated && a.kind.device() == b.kind.device());
            // Without the offset, rank `r` exchanges with rank `s` in its iteration `s`, and `s` does so in its
            // iteration `r`. A collective in each iteration would make the earlier of the two wait for the later
            // one. Two such rings are safe: all ranks visit their peers in the same order.
            let collective = b.kind != SliceKind::Local && !b.is_ring_without_offset(settings);
            a.rotated && (other || elsewhere)
                || a.is_ring_without_offset(settings) && collective
                || a.swizzled != b.swizzled
        };
        let agree =
            self.members.iter().all(|it| !clash(&it.slicing, slicing) && !clash(slicing, &it.slicing));
        same_extent(program, self.count, slicing.count)
            && self.style == slicing.style
            && sliced
            && is_new
            && agree
    }
}
