//! Applies merges to the program.

use grammar::{Attr, BlockId, Program, Stmt};

use super::Merges;
use hir_ir::edit::{StmtEdit, rewrite};

/// Removes the merged statements, and replaces their results in all other statements.
pub(super) fn apply(program: &mut Program, body: BlockId, merges: &Merges) {
    rewrite(program, body, &mut |_, stmt| {
        if merges.dropped.contains(&stmt) { StmtEdit::Remove } else { StmtEdit::Keep }
    });
    for id in program.stmts.ids() {
        let Stmt::Op(it) = &mut program.stmts[id] else { continue };
        let first = Program::tensors_of(&it.args).next();
        it.tensors_mut(&mut |tensor| *tensor = merges.tensors.get(tensor).copied().unwrap_or(*tensor));
        for (_, attr) in &mut it.attrs {
            if let Attr::Axis(axis) = attr {
                let new = first.and_then(|first| merges.axes.get(&(first, *axis)));
                *axis = new.copied().unwrap_or(*axis);
            }
        }
    }
}
