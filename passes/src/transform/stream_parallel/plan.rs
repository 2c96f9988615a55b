//! Decides which statements share a loop.

use grammar::{OpStmt, Program, Stmt, StmtId, TensorId};
use rustc_hash::FxHashSet;

use super::{
    facts::LoopFacts,
    group::{LoopStmt, StmtGroup},
    options::LoopOptions,
    slicing::{self, SliceKind, Slicing},
};
use crate::{
    analysis::alias_analysis::{OpaqueCallModel, may_alias_operands},
    rewrite::collective::is_whole_world,
};
use grammar::TypeRule;

/// The new body of a program.
pub(crate) struct LoopPlan {
    pub(super) items: Vec<PlannedItem>,
}

/// A part of the new body.
pub(super) enum PlannedItem {
    /// A statement that is in no loop.
    Stmt(StmtId),
    /// A loop, with what it needs before and after it.
    Loop(StmtGroup),
}

impl LoopPlan {
    /// Plans loops of the top-level statements, or of those in `only`. `facts` are those of the program.
    pub(crate) fn of(program: &Program, facts: &LoopFacts, only: Option<&FxHashSet<StmtId>>) -> Self {
        let (items, behind) = (Vec::new(), Vec::new());
        let mut planner = Planner { program, facts, items, group: None, behind };
        for stmt in program.body() {
            planner.statement(*stmt, only.is_none_or(|only| only.contains(stmt)));
        }
        planner.end_group();
        Self { items: planner.items }
    }

    /// Returns the loops in their order.
    pub(crate) fn loops(&self) -> impl Iterator<Item = &StmtGroup> {
        self.items.iter().filter_map(|it| match it {
            PlannedItem::Loop(group) => Some(group),
            PlannedItem::Stmt(_) => None,
        })
    }
}

struct Planner<'p> {
    program: &'p Program,
    facts: &'p LoopFacts,
    /// The new body.
    items: Vec<PlannedItem>,
    /// The statements that will share the next loop.
    group: Option<StmtGroup>,
    /// Statements that read results of the group as a whole, and stand behind its loop. Later statements may still join the loop.
    behind: Vec<StmtId>,
}

impl Planner<'_> {
    /// Returns the options for a statement. A ring of only some ranks permutes slices, so it has the offset.
    fn settings_of(&self, it: &OpStmt) -> LoopOptions {
        let devices = it.out_tensor().map(|out| &self.program.tensors[out].mesh.devices);
        let is_of_all = devices.is_none_or(|it| is_whole_world(it, self.facts.world));
        let settings = self.facts.settings;
        LoopOptions { offset: settings.offset || !is_of_all, ..settings }
    }

    /// Adds a top-level statement to the current group or a new one if a loop can contain it, and to the body
    /// otherwise.
    fn statement(&mut self, stmt: StmtId, may_loop: bool) {
        let slicing = match &self.program.stmts[stmt] {
            // Whether the loop has to allocate the result must be certain.
            Stmt::Op(it)
                if may_loop
                    && !self.is_part_view(it)
                    && self.facts.bindings.already_bound.contains(&stmt)
                        == self.facts.bindings.maybe_bound.contains(&stmt)
                    && !self.is_view_on_streams(stmt, it) =>
            {
                slicing::slicing(self.program, self.settings_of(it), it)
            }
            Stmt::Op(_) | Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => None,
        };
        let values = |it: &Slicing| it.operands.iter().all(|operand| self.is_written_once(operand.tensor));
        // Of two parts of one tensor, an iteration could overwrite what a later one reads.
        let overlaps = |it: &Slicing| it.operands.iter().any(|operand| self.meets(operand.tensor, it.out));
        let slicing = slicing.filter(|it| self.is_written_once(it.out) && values(it) && !overlaps(it));
        let Some(slicing) = slicing else {
            // A statement that is independent of the loop goes before it, and one that reads its results behind it. Neither
            // ends the group.
            if self.behind.is_empty() && self.is_independent(stmt) {
                self.items.push(PlannedItem::Stmt(stmt));
            } else if self.group.is_some() && self.may_move(stmt) {
                self.behind.push(stmt);
            } else {
                self.end_group();
                self.items.push(PlannedItem::Stmt(stmt));
            }
            return;
        };
        let can_add = |group: &StmtGroup| {
            self.is_disjoint(group, &slicing)
                && group.can_add(self.program, self.facts.settings, &slicing)
                && (self.behind.is_empty() || self.is_product_of(group, stmt, &slicing))
        };
        if !self.group.as_ref().is_some_and(can_add) {
            let producers = self.take_producers(&slicing);
            self.end_group();
            // If no loop computes the partial sums, they are reduced as a whole, outside of a loop. So are the elements of an
            // all-to-all.
            if producers.members.is_empty() && slicing.out_dim.is_none() {
                self.items.push(PlannedItem::Stmt(stmt));
                return;
            }
            self.group = Some(producers);
        }
        if let Some(group) = &mut self.group {
            group.extend([LoopStmt { stmt, slicing }]);
        }
    }

    /// Splits the statements that compute the operands of `slicing` off the end of the group, so that they share a loop
    /// with it. It is called if `slicing` cannot join the group: without the split, the loop of `slicing` would wait for
    /// the whole loop before it. Nothing is split off if one of these statements reads a result of the rest of the
    /// group, or if `slicing` cannot join them either. The result is then empty.
    fn take_producers(&mut self, slicing: &Slicing) -> StmtGroup {
        // What stands behind the loop may read the results of these statements.
        if let Some(mut group) = self.group.take_if(|_| self.behind.is_empty()) {
            let producers = group.split_off_producers(slicing);
            let reads_from_group =
                |it: &LoopStmt| it.slicing.operands.iter().any(|it| group.produced.contains_key(&it.tensor));
            let shares = !group.members.is_empty()
                && !producers.members.iter().any(reads_from_group)
                && self.is_disjoint(&producers, slicing)
                && producers.can_add(self.program, self.facts.settings, slicing);
            if shares {
                self.group = Some(group);
                return producers;
            }
            group.extend(producers.members);
            self.group = Some(group);
        }
        StmtGroup::new(slicing.count, slicing.style)
    }

    /// Returns whether a statement makes a view of a part of a tensor that another statement writes, and so
    /// moves no elements. The part may be the whole tensor.
    fn is_part_view(&self, it: &OpStmt) -> bool {
        let out = it.out_tensor();
        it.op.def().type_rule == TypeRule::Slice && out.is_some_and(|out| self.facts.parts.contains_key(&out))
    }

    /// Returns whether a statement makes a view in a program that sets streams. A view does not wait for the stream that writes
    /// its elements, but a copy in a loop would have to.
    fn is_view_on_streams(&self, stmt: StmtId, it: &OpStmt) -> bool {
        self.facts.sets_stream
            && may_alias_operands(
                it,
                self.facts.bindings.already_bound.contains(&stmt),
                OpaqueCallModel::MayAlias,
            )
    }

    /// Returns whether at most one statement writes the tensor. A tensor that is written again may alias
    /// another name, as a copy without storage does.
    fn is_written_once(&self, tensor: TensorId) -> bool {
        !self.facts.rewritten.contains(&tensor)
    }

    /// Returns whether neither the statement nor the loop of the group writes a tensor that the other
    /// accesses under another name, as another part of the same base tensor.
    fn is_disjoint(&self, group: &StmtGroup, slicing: &Slicing) -> bool {
        let reads =
            |it: &Slicing, tensor| it.operands.iter().any(|operand| self.meets(operand.tensor, tensor));
        !group.members.iter().any(|member| {
            let it = &member.slicing;
            self.meets(it.out, slicing.out) || reads(it, slicing.out) || reads(slicing, it.out)
        })
    }

    /// Returns whether two names denote parts of one tensor.
    fn meets(&self, a: TensorId, b: TensorId) -> bool {
        a != b && self.base_tensor(a) == self.base_tensor(b)
    }

    /// Returns the base tensor of a part, or the tensor itself.
    fn base_tensor(&self, tensor: TensorId) -> TensorId {
        self.facts.parts.get(&tensor).copied().unwrap_or(tensor)
    }

    /// Returns whether a statement can run before the loop of the group: it computes into storage of its own,
    /// from tensors that the loop does not write.
    fn is_independent(&self, stmt: StmtId) -> bool {
        let (Some(group), Stmt::Op(it)) = (&self.group, &self.program.stmts[stmt]) else { return false };
        let touched = |tensor: TensorId| {
            let members = group.members.iter().map(|member| &member.slicing);
            let is = |other: TensorId| self.base_tensor(other) == self.base_tensor(tensor);
            let reads = |it: &Slicing| it.operands.iter().any(|operand| is(operand.tensor));
            members.clone().any(|it| is(it.out))
                || Program::tensors_of(&it.outs).any(is) && members.clone().any(reads)
        };
        self.may_move(stmt) && !it.mentions(self.program).any(touched)
    }

    /// Returns whether a statement computes into storage of its own, from elements that no other statement changes, so that
    /// it can run anywhere between its operands and the readers of its results.
    fn may_move(&self, stmt: StmtId) -> bool {
        let Stmt::Op(it) = &self.program.stmts[stmt] else { return false };
        it.computes()
            && !self.facts.bindings.maybe_bound.contains(&stmt)
            && it.mentions(self.program).all(|it| self.is_written_once(it))
    }

    /// Returns whether a statement is a product of a result of the group, and of nothing that stands behind its loop.
    fn is_product_of(&self, group: &StmtGroup, stmt: StmtId, slicing: &Slicing) -> bool {
        matches!(&self.program.stmts[stmt], Stmt::Op(it) if it.rule().is_matrix_product())
            && slicing.kind == SliceKind::Local
            && slicing.operands.iter().any(|it| group.produced.contains_key(&it.tensor))
            && !self.meets_behind(stmt)
    }

    /// Returns whether a statement mentions a result of those behind the loop.
    fn meets_behind(&self, stmt: StmtId) -> bool {
        let Stmt::Op(it) = &self.program.stmts[stmt] else { return true };
        let results: FxHashSet<TensorId> = self
            .behind
            .iter()
            .filter_map(|stmt| self.program.stmts[*stmt].op())
            .flat_map(|it| Program::tensors_of(&it.outs))
            .map(|it| self.base_tensor(it))
            .collect();
        it.mentions(self.program).any(|it| results.contains(&self.base_tensor(it)))
    }

    /// Adds the loop of the group, if there is one, and what stands behind it.
    fn end_group(&mut self) {
        self.items.extend(self.group.take().map(PlannedItem::Loop));
        self.items.extend(self.behind.drain(..).map(PlannedItem::Stmt));
    }
}
