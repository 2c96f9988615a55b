//! Rewrites the statement lists of a program, innermost blocks first, while they are walked.

use grammar::{BlockId, Diagnostic, Program, StmtId};

/// The edit of a statement.
pub enum StmtEdit {
    /// Keeps the statement unchanged.
    Keep,
    /// Keeps the statement, which was changed in place.
    Changed,
    /// Removes the statement.
    Remove,
    /// Replaces the statement by the statements of this block.
    Splice(BlockId),
}

/// Calls `edit` for every statement of a block, after the statements nested in it, and applies the edits.
/// Returns true if anything changed.
pub fn rewrite(
    program: &mut Program,
    block: BlockId,
    edit: &mut dyn FnMut(&mut Program, StmtId) -> StmtEdit,
) -> bool {
    let stmts = std::mem::take(&mut program.blocks[block]);
    let mut changed = false;
    let mut kept = Vec::with_capacity(stmts.len());
    for stmt in stmts {
        for inner in program.inner_blocks(stmt) {
            changed |= rewrite(program, inner, edit);
        }
        let decision = edit(program, stmt);
        changed |= !matches!(decision, StmtEdit::Keep);
        match decision {
            StmtEdit::Keep | StmtEdit::Changed => kept.push(stmt),
            StmtEdit::Remove => (),
            StmtEdit::Splice(inner) => kept.append(&mut program.blocks[inner]),
        }
    }
    program.blocks[block] = kept;
    changed
}

/// Returns the statements that replace a statement, or `None` to keep it.
pub type Expander<'e> = dyn FnMut(&mut Program, StmtId) -> Result<Option<Vec<StmtId>>, Diagnostic> + 'e;

/// Replaces statements of a block and of all nested blocks by those that `expand_one` returns. Returns true
/// if anything changed.
pub fn expand(
    program: &mut Program,
    block: BlockId,
    expand_one: &mut Expander<'_>,
) -> Result<bool, Diagnostic> {
    let mut changed = false;
    let mut new = Vec::new();
    for stmt in program.blocks[block].clone() {
        for inner in program.inner_blocks(stmt) {
            changed |= expand(program, inner, expand_one)?;
        }
        match expand_one(program, stmt)? {
            Some(mut stmts) => {
                changed = true;
                new.append(&mut stmts);
            }
            None => new.push(stmt),
        }
    }
    program.blocks[block] = new;
    Ok(changed)
}
