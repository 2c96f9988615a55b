//! Finds views of storage that a program writes after it has made the view.
//!
//! `T4 = slice( T1, … )` makes `T4` a view of `T1` if `T4` has no storage. A statement that writes `T4`, or a view of it,
//! then writes `T1`. A pass that gives `T4` storage of its own, to compute the slice in parts, would leave `T1` unwritten.

use grammar::{AccessMode, OpClass, Program, Stmt, StmtId, TensorId};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::{
    alias_analysis::{AliasClasses, OpaqueCallModel, may_alias_operands},
    bindings::BindingAnalysis,
};

/// Returns the statements that bind their result to the storage of an operand, with the result, if another statement
/// writes into this storage: a later one, or one of the same top-level statement.
pub fn written_views(program: &Program, bindings: &BindingAnalysis) -> FxHashMap<StmtId, TensorId> {
    let Some(body) = program.body else { return FxHashMap::default() };
    let sharing = AliasClasses::of(program, body, bindings, OpaqueCallModel::MayAlias);
    // The storage that the current statement and those behind it write, by alias class.
    let mut written: FxHashSet<TensorId> = FxHashSet::default();
    let mut views = FxHashMap::default();
    let add_writes = |stmt: StmtId, written: &mut FxHashSet<TensorId>| {
        let Stmt::Op(it) = &program.stmts[stmt] else { return };
        // A result without storage gets storage of its own.
        let allocates = it.computes() && !bindings.maybe_bound.contains(&stmt);
        for (tensor, mode) in it.tensor_uses(program) {
            match mode {
                AccessMode::Write | AccessMode::Transfer if !allocates => {
                    written.insert(sharing.alias_class(tensor));
                }
                AccessMode::Write
                | AccessMode::Transfer
                | AccessMode::Read
                | AccessMode::Bind
                | AccessMode::NoAccess => (),
            }
        }
    };
    let mut add_view = |stmt: StmtId, written: &FxHashSet<TensorId>| {
        if let Stmt::Op(it) = &program.stmts[stmt]
            && it.op.def().class != OpClass::Allocate
            // An operator that is always a view binds its result again if it has storage already.
            && may_alias_operands(it, bindings.already_bound.contains(&stmt), OpaqueCallModel::MayAlias)
            && let Some(out) = it.out_tensor().filter(|out| written.contains(&sharing.alias_class(*out)))
        {
            views.insert(stmt, out);
        }
    };
    for top in program.block(body).iter().rev() {
        // A statement of a branch or loop may be followed by any other statement of it.
        let is_block = program.inner_blocks(*top).next().is_some();
        if is_block {
            program.stmts_at(*top).for_each(|stmt| add_writes(stmt, &mut written));
        }
        program.stmts_at(*top).for_each(|stmt| add_view(stmt, &written));
        if !is_block {
            add_writes(*top, &mut written);
        }
    }
    views
}
