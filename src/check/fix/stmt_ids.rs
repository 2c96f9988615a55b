//! Numbers of statements that stay the same in all edited texts.

use grammar::{Id, Program, StmtId};
use hir_ir::edit::{Edit, apply, corresponding};
use hir_plan::Plan;
use rustc_hash::FxHashMap;

/// The numbers of the statements of a program.
#[derive(Clone, Debug)]
pub(super) struct StmtIds {
    by_stmt: FxHashMap<StmtId, u32>,
    /// The number of the next statement that an edit inserts.
    pub next: u32,
}

impl StmtIds {
    /// Numbers the statements of the first text.
    pub fn of(program: &Program) -> Self {
        let by_stmt = program.stmts.ids().map(|it| (it, it.index() as u32)).collect();
        Self { by_stmt, next: program.stmts.len() as u32 }
    }

    /// Returns the numbers in `next`, the program of the edited text. Returns `None` if it differs from `before` not only by the edits: an
    /// inserted line may change how the reader interprets other lines.
    pub fn after(&self, before: &Program, edits: &[Edit], next: &Program) -> Option<Self> {
        let mut edited = before.clone();
        apply(&mut edited, edits);
        let count = before.stmts.len();
        let number = |it: StmtId| match it.index().checked_sub(count) {
            None => self.by_stmt.get(&it).copied(),
            Some(inserted) => Some(self.next + inserted as u32),
        };
        let pairs = corresponding(&edited, next)?.into_iter();
        let by_stmt = pairs.filter_map(|(old, new)| Some((new, number(old)?))).collect();
        Some(Self { by_stmt, next: self.next + (edited.stmts.len() - count) as u32 })
    }

    /// Returns the number of a statement.
    pub fn number(&self, stmt: StmtId) -> Option<u32> {
        self.by_stmt.get(&stmt).copied()
    }

    /// Returns the number of the statement of an origin.
    pub fn of_origin(&self, plan: &Plan, origin: u32) -> Option<u32> {
        self.number(plan.origins[origin as usize].stmt?)
    }

    /// Returns the statements by their numbers.
    pub fn stmts(&self) -> FxHashMap<u32, StmtId> {
        self.by_stmt.iter().map(|(stmt, number)| (*number, *stmt)).collect()
    }
}
