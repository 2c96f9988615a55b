//! The communications that the statements so far may have posted, and those of them for which the current stream may not
//! have waited.
//!
//! Changes are recorded, so that a branch or a loop costs as much as the communications in it, not as much as all that
//! are pending.

use grammar::{BlockId, OpClass, Program, Stmt, StmtId, attr};
use hir_ir::streams::stream_set_by;
use rustc_hash::{FxHashMap, FxHashSet};

/// The state of a communication that may have been posted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WorkState {
    /// The current stream has waited for it.
    Waited,
    /// The current stream may not have waited for it.
    Open,
}

/// The states of all communications at a point of the program.
#[derive(Default)]
pub(super) struct PendingWork {
    states: FxHashMap<u32, WorkState>,
    /// The numbers in the state `Waited`.
    waited: FxHashSet<u32>,
    /// Numbers with the states that they had before each change.
    changes: Vec<(u32, Option<WorkState>)>,
}

impl PendingWork {
    /// Returns the same states without the record of changes.
    pub(super) fn copy(&self) -> Self {
        Self { states: self.states.clone(), waited: self.waited.clone(), changes: Vec::new() }
    }

    /// Returns the open communications without the others, which matter only to a program that sets streams.
    pub(super) fn copy_open(&self) -> Self {
        let states = self.open().map(|number| (number, WorkState::Open)).collect();
        Self { states, ..Self::default() }
    }

    /// Returns the communications for which the current stream may not have waited.
    pub(super) fn open(&self) -> impl Iterator<Item = u32> {
        self.states.iter().filter(|(_, state)| **state == WorkState::Open).map(|(number, _)| *number)
    }

    pub(super) fn is_open(&self, number: u32) -> bool {
        self.states.get(&number) == Some(&WorkState::Open)
    }

    /// Returns the communications that may have been posted.
    pub(super) fn posted(&self) -> impl Iterator<Item = u32> {
        self.states.keys().copied()
    }

    /// Returns the position of the next change in the record.
    pub(super) fn mark(&self) -> usize {
        self.changes.len()
    }

    /// Returns the communications whose state may differ from that at `mark`.
    pub(super) fn changed_since(&self, mark: usize) -> impl Iterator<Item = u32> {
        self.changes[mark..].iter().map(|(number, _)| *number)
    }

    /// Restores the states at `mark`.
    pub(super) fn undo(&mut self, mark: usize) {
        while self.changes.len() > mark
            && let Some((number, state)) = self.changes.pop()
        {
            self.store(number, state);
        }
    }

    /// Applies a statement and the statements nested in it.
    pub(super) fn apply(&mut self, program: &Program, stmt: StmtId) {
        match &program.stmts[stmt] {
            Stmt::Let(..) => (),
            Stmt::Op(op_stmt) => match op_stmt.op.def().class {
                OpClass::Communicate | OpClass::Coalescing => {
                    op_stmt.number.iter().for_each(|it| self.set(*it, Some(WorkState::Open)));
                }
                OpClass::Wait => {
                    let awaited = op_stmt.get(attr::WORK).filter(|it| self.is_open(*it));
                    awaited.iter().for_each(|it| self.set(*it, Some(WorkState::Waited)));
                }
                // The new stream has waited for nothing.
                OpClass::Stream if stream_set_by(program, stmt).is_some() => {
                    let waited = std::mem::take(&mut self.waited);
                    waited.into_iter().for_each(|it| self.set(it, Some(WorkState::Open)));
                }
                grammar::local_classes!()
                | OpClass::Stream
                | OpClass::Condition
                | OpClass::ShareHandles
                | OpClass::HostUnit
                | OpClass::Opaque => (),
            },
            // No iteration, or one after what any iteration leaves open.
            Stmt::For(it) => {
                let mark = self.mark();
                self.apply_block(program, it.body);
                self.add(self.states_at(mark));
            }
            Stmt::If(branch) => {
                let mark = self.mark();
                self.apply_block(program, branch.then_block);
                let changed = self.changed_since(mark);
                let mut then: FxHashMap<u32, Option<WorkState>> =
                    changed.map(|number| (number, self.states.get(&number).copied())).collect();
                self.undo(mark);
                branch.else_block.iter().for_each(|block| self.apply_block(program, *block));
                for (number, before) in self.states_at(mark) {
                    then.entry(number).or_insert(before);
                }
                self.add(then);
            }
        }
    }

    fn apply_block(&mut self, program: &Program, block: BlockId) {
        program.block(block).iter().for_each(|stmt| self.apply(program, *stmt));
    }

    /// Returns the states at `mark` of the communications that have changed since then.
    fn states_at(&self, mark: usize) -> FxHashMap<u32, Option<WorkState>> {
        let mut states = FxHashMap::default();
        for (number, before) in &self.changes[mark..] {
            states.entry(*number).or_insert(*before);
        }
        states
    }

    /// Adds the states at the end of another path.
    fn add(&mut self, other: FxHashMap<u32, Option<WorkState>>) {
        for (number, state) in other {
            let either = state.max(self.states.get(&number).copied());
            self.set(number, either);
        }
    }

    fn set(&mut self, number: u32, state: Option<WorkState>) {
        let before = self.store(number, state);
        if before != state {
            self.changes.push((number, before));
        }
    }

    fn store(&mut self, number: u32, state: Option<WorkState>) -> Option<WorkState> {
        if state == Some(WorkState::Waited) {
            self.waited.insert(number)
        } else {
            self.waited.remove(&number)
        };
        match state {
            Some(state) => self.states.insert(number, state),
            None => self.states.remove(&number),
        }
    }
}
