//! The repairs that move a statement: a Wait, or a Deallocate down.

use grammar::{Op, Program, Stmt, StmtId};
use hir_ir::edit::{Edit, NewStatement, Place};

use super::insert;
use crate::{
    editable_text::EditableText,
    repair::{InsertionPoint, WaitedStream},
};

impl EditableText {
    /// Moves a Wait. If the Wait would then block another stream, a Synchronize with that stream replaces it at its old position.
    pub(super) fn move_wait(
        &self,
        stmt: StmtId,
        before: &InsertionPoint,
        synchronize: Option<&WaitedStream>,
    ) -> Option<Vec<Edit>> {
        let to = self.place(before)?;
        let mut edits = vec![Edit::Move { stmt, to }];
        match synchronize {
            Some(stream) => {
                let here = InsertionPoint::Before { statement: self.named(stmt), current: None };
                let stream = self.waited_stream(stream, to, Some(&here))?;
                edits.push(insert(NewStatement::Synchronize(stream), Place::After(stmt)));
            }
            None => self.remove_emptied(&mut edits, stmt),
        }
        Some(edits)
    }

    /// Removes the branches and loops that have no other statement than one that leaves them.
    fn remove_emptied(&self, edits: &mut Vec<Edit>, stmt: StmtId) {
        let mut inner = self.line_of(stmt);
        for (block, outer) in self.places().around(stmt) {
            let has_others =
                self.program.block(block).len() > 1 || self.program.inner_blocks(outer).count() > 1;
            let header = self.line_of(outer).filter(|it| inner == Some(it + 1) && !has_others);
            if header.is_none_or(|it| !self.line(it).trim_end().ends_with(':')) {
                return;
            }
            edits.push(Edit::Remove(outer));
            inner = header;
        }
    }

    /// Moves a Deallocate behind a later statement of its block. Returns `None` if a statement between the two binds
    /// one of its tensors again.
    pub(super) fn move_deallocate(&self, stmt: StmtId, after: StmtId) -> Option<Vec<Edit>> {
        let Stmt::Op(deallocate) = &self.program.stmts[stmt] else { return None };
        let [from, to] = [stmt, after].map(|it| self.places().of_stmt(it));
        let (from, to) = (from?, to.filter(|it| Some(it.block) == from.map(|it| it.block))?);
        let mut tensors = Program::tensors_of(&deallocate.args);
        let is_bound = tensors.any(|it| self.is_bound_in(from.block, it, from.position + 1..to.position + 1));
        if deallocate.op != Op::Deallocate || is_bound || to.position < from.position {
            return None;
        }
        self.own_lines(after)?;
        Some(vec![Edit::Move { stmt, to: Place::After(after) }])
    }
}
