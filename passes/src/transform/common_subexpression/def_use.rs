//! Collects where statements bind, use and deallocate each name, in one walk over the container.

use grammar::{AccessMode, BlockId, Op, OpClass, Program, StmtId, TensorId, attr};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::name_uses::NameUses;

/// Where statements bind, use and deallocate each name.
#[derive(Default)]
pub(super) struct DefUseInfo {
    pub names: NameUses,
    /// The inputs and outputs of the program.
    io_tensors: FxHashSet<TensorId>,
    /// The statements that bind each name, each listed once.
    binders: FxHashMap<TensorId, Vec<StmtId>>,
    /// The position of the first Deallocate of each name.
    first_drop: FxHashMap<TensorId, usize>,
    /// The position of the first statement that mentions each name other than to bind or allocate it.
    first_use: FxHashMap<TensorId, usize>,
    /// The position of the last statement that mentions each name other than to deallocate it.
    last_use: FxHashMap<TensorId, usize>,
    /// The block of each statement.
    blocks: FxHashMap<StmtId, BlockId>,
}

impl DefUseInfo {
    pub(super) fn of(program: &Program, body: BlockId) -> Self {
        let listed = Program::tensors_of(&program.inputs).chain(Program::tensors_of(&program.outputs));
        let names = NameUses::of(program, body);
        let mut this = Self { io_tensors: listed.collect(), ..Self::default() };
        for (block, stmts) in program.blocks.iter() {
            this.blocks.extend(stmts.iter().map(|it| (*it, block)));
        }
        for (tensor, mentions) in names.uses_by_tensor() {
            for (stmt, mode) in mentions {
                let (place, effect) =
                    (names.position.get(stmt).copied().unwrap_or_default(), effect(program, *stmt));
                if *mode == AccessMode::Bind {
                    let binders = this.binders.entry(tensor).or_default();
                    if binders.last() != Some(stmt) {
                        binders.push(*stmt);
                    }
                }
                if effect == Some(OpClass::Deallocate) {
                    this.first_drop.entry(tensor).and_modify(|it| *it = place.min(*it)).or_insert(place);
                } else {
                    this.last_use.entry(tensor).and_modify(|it| *it = place.max(*it)).or_insert(place);
                }
                if *mode != AccessMode::Bind && effect != Some(OpClass::Allocate) {
                    this.first_use.entry(tensor).and_modify(|it| *it = place.min(*it)).or_insert(place);
                }
            }
        }
        Self { names, ..this }
    }

    fn binders(&self, tensor: TensorId) -> &[StmtId] {
        self.binders.get(&tensor).map_or(&[], Vec::as_slice)
    }

    /// Returns whether `stmt` is the only statement that binds the name, and no statement deallocates it.
    pub(super) fn is_only_bound_by(&self, tensor: TensorId, stmt: StmtId) -> bool {
        !self.io_tensors.contains(&tensor)
            && self.binders(tensor).iter().all(|other| *other == stmt)
            && !self.first_drop.contains_key(&tensor)
    }

    /// Returns whether `stmt` is the only statement that writes its result, and the result has storage of its
    /// own.
    pub(super) fn is_private_result(
        &self,
        program: &Program,
        tensor: TensorId,
        stmt: StmtId,
        in_loop: bool,
    ) -> bool {
        let op = |stmt: &StmtId| program.stmts[*stmt].op();
        let is_plain = |stmt: &StmtId| {
            op(stmt).is_some_and(|it| it.op.def().class == OpClass::Allocate && it.get(attr::ALIAS).is_none())
        };
        let is_fresh = |it: &StmtId| {
            op(it).is_some_and(|it| it.op == Op::Allocate)
                && self.blocks.get(it) == self.blocks.get(&stmt)
                && self.names.position.get(it) < self.names.position.get(&stmt)
        };
        !self.names.is_program_io(tensor)
            && self.names.writers(tensor).all(|writer| writer == stmt)
            && match self.binders(tensor) {
                [] => !in_loop,
                [only] => is_plain(only) && (!in_loop || is_fresh(only)),
                [_, _, ..] => false,
            }
    }

    /// Returns whether a name is used before a statement.
    pub(super) fn is_used_before(&self, tensor: TensorId, stmt: StmtId) -> bool {
        self.first_use.get(&tensor) < self.names.position.get(&stmt) && self.first_use.contains_key(&tensor)
    }

    /// Returns whether `a` is not deallocated before the last use of `b`.
    pub(super) fn outlives(&self, a: TensorId, b: TensorId) -> bool {
        let (drop, last) = (self.first_drop.get(&a), self.last_use.get(&b));
        drop.is_none_or(|drop| last.is_none_or(|last| last < drop))
    }
}

/// Returns the class of an operator; `None` for other statements.
pub(super) fn effect(program: &Program, stmt: StmtId) -> Option<OpClass> {
    program.stmts[stmt].op().map(|it| it.op.def().class)
}
