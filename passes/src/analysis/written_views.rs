//! Finds views of storage that a program writes after it has made the view.
//!
//! `T4 = slice( T1, … )` makes `T4` a view of `T1` if `T4` has no storage. A statement that writes `T4`, or a view of it,
//! then writes `T1`. A pass that gives `T4` storage of its own, to compute the slice in parts, would leave `T1` unwritten.

use grammar::{
    for_each_tensor_use,
    ir::{Program, Stmt, StmtId, TensorId},
    ops::{AccessMode, OpClass},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::{
    alias_analysis::{AliasClasses, OpaqueCallModel, may_alias_operands},
    bindings, blocks,
};

/// Returns the top-level statements that bind their result to the storage of an operand, with the result, if a later
/// statement writes into this storage.
pub(crate) fn written_views(program: &Program) -> FxHashMap<StmtId, TensorId> {
    let Some(body) = program.body else { return FxHashMap::default() };
    let bound = bindings::analyze_bindings(program).already_bound;
    let sharing = AliasClasses::of(program, body, OpaqueCallModel::MayAlias);
    // The storage that the statements behind the current one write, by alias class.
    let mut written: FxHashSet<TensorId> = FxHashSet::default();
    let mut views = FxHashMap::default();
    for stmt in program.block(body).iter().rev() {
        if let Stmt::Op(it) = &program.stmts[*stmt]
            && it.op.def().class != OpClass::Allocate
            // An operator that is always a view binds its result again if it has storage already.
            && may_alias_operands(it, bound.contains(stmt), OpaqueCallModel::MayAlias)
            && let Some(out) = it.out_tensor().filter(|out| written.contains(&sharing.alias_class(*out)))
        {
            views.insert(*stmt, out);
        }
        blocks::walk(program, *stmt, &mut |stmt| {
            let Stmt::Op(it) = &program.stmts[stmt] else { return };
            // A result without storage gets storage of its own.
            let allocates = it.computes() && !bound.contains(&stmt);
            for_each_tensor_use(program, it, &mut |tensor, mode| match mode {
                AccessMode::Write | AccessMode::Transfer if !allocates => {
                    written.insert(sharing.alias_class(tensor));
                }
                AccessMode::Write
                | AccessMode::Transfer
                | AccessMode::Read
                | AccessMode::Bind
                | AccessMode::NoAccess => (),
            });
        });
    }
    views
}
