//! remove-unused-allocations: removes tensors that nothing but their ALLOCATE and Deallocate mentions.
//!
//! Before:
//! ```text
//! T1 = ALLOCATE(mem_type=global, zero_init=false)
//! Deallocate(T1)
//! ```
//! After: no statement.

use std::collections::HashSet;

use grammar::{Diagnostic, OpClass, Program, Stmt, StmtId};
use hir_ir::edit::{StmtEdit, rewrite};
use passes::{
    Arguments, Change, Pass, Remarks, analysis::name_uses::NameUses,
    rewrite::empty_blocks::remove_empty_blocks,
};

/// The pass.
pub static PASS: Pass = Pass::new("remove-unused-allocations", include_str!("unused.rs"), run)
    .about("remove tensors that are only allocated and freed")
    .for_one_rank();

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let uses = NameUses::of(program, body);
    let is_storage = |id: StmtId| match &program.stmts[id] {
        Stmt::Op(it) => matches!(it.op.def().class, OpClass::Allocate | OpClass::Deallocate),
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => false,
    };
    let unused: HashSet<StmtId> = uses
        .uses_by_tensor()
        .filter(|(tensor, stmts)| !uses.is_program_io(*tensor) && stmts.iter().all(|it| is_storage(it.0)))
        .flat_map(|(_, stmts)| stmts.iter().map(|it| it.0))
        .collect();
    let removed = rewrite(program, body, &mut |_, id| {
        if unused.contains(&id) { StmtEdit::Remove } else { StmtEdit::Keep }
    });
    // Loops and branches that contained nothing else.
    let emptied = removed && remove_empty_blocks(program, body);
    Ok(Change::from_flag(removed || emptied))
}
