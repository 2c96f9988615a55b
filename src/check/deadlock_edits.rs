//! The edits by which all ranks make the calls of a team in one order: a call that one branch skips moves before it, and of two calls that a
//! branch swaps, the later one moves before the earlier one. Of two ranks that both send first, or receive first, one gets the other order. If
//! one statement does so on all ranks, it and those behind it become a group.

use grammar::{Op, Stmt, StmtId};
use hir_ir::edit::{Edit, NewStatement, Place};

use super::editable_text::EditableText;

/// Returns the edits that move a call and its Wait before the branch that begins with them; `None` if they are not its first statements.
pub(super) fn move_before_branch(text: &EditableText, call: StmtId) -> Option<Vec<Edit>> {
    let place = text.places().of_stmt(call)?;
    let (block, branch) = text.places().around(call).next()?;
    let Stmt::If(_) = text.program.stmts[branch] else { return None };
    let statements = text.program.block(block);
    if place.position > 0 || statements.get(1) != Some(&wait_of(text, call)?) {
        return None;
    }
    let mut edits = before(text, call, branch)?;
    // The header of the branch is above the call, on a line of its own.
    let is_alone = statements.len() == 2 && text.program.inner_blocks(branch).count() == 1;
    let header = text.line_of(branch).filter(|it| text.line_of(call) == Some(it + 1));
    if is_alone {
        header.filter(|it| text.line(*it).trim_end().ends_with(':'))?;
        edits.push(Edit::Remove(branch));
    }
    Some(edits)
}

/// Returns the edits that swap two calls, each with its Wait directly behind it; `None` if something else is between them.
pub(super) fn swap(text: &EditableText, [first, later]: [StmtId; 2]) -> Option<Vec<Edit>> {
    let [one, other] = [first, later].map(|it| text.places().of_stmt(it));
    let (one, other) = (one?, other?);
    let waited = text.program.block(one.block).get(one.position + 1) == Some(&wait_of(text, first)?);
    (one.block == other.block && waited && other.position == one.position + 2).then_some(())?;
    let behind = text.program.block(other.block).get(other.position + 1);
    (behind == Some(&wait_of(text, later)?)).then_some(())?;
    before(text, later, first)
}

/// Returns the edits that move the side of a transfer which follows another one before it; `None` if something else is between them, or it is
/// not the partner.
pub(super) fn turn(
    text: &EditableText,
    first: StmtId,
    is_partner: impl Fn(StmtId) -> bool,
) -> Option<Vec<Edit>> {
    let place = text.places().of_stmt(first)?;
    let behind = |by: usize| text.program.block(place.block).get(place.position + by).copied();
    let waited = wait_of(text, first).is_some();
    let later = behind(if waited { 2 } else { 1 }).filter(|it| is_partner(*it))?;
    if waited {
        return swap(text, [first, later]);
    }
    Some(vec![Edit::Move { stmt: later, to: Place::Before(first) }])
}

/// Returns the edits that make a group of a send or receive and those directly behind it, with one Wait instead of theirs; `None` if there are no
/// others, or Waits elsewhere.
pub(super) fn group(text: &EditableText, first: StmtId) -> Option<Vec<Edit>> {
    let place = text.places().of_stmt(first)?;
    let block = text.program.block(place.block);
    let is_side = |it: &&StmtId| text.program.op(**it).is_some_and(|it| it.op == Op::P2PCommunication);
    let sides: Vec<StmtId> = block[place.position..].iter().take_while(is_side).copied().collect();
    let last = *sides.last().filter(|_| sides.len() > 1)?;
    let numbers = sides.iter().map(|it| text.program.posted_work(*it)).collect::<Option<Vec<u32>>>()?;
    let waits: Vec<StmtId> = block
        .iter()
        .copied()
        .filter(|it| text.awaited_number(*it).is_some_and(|it| numbers.contains(&it)))
        .collect();
    let all = numbers.iter().map(|it| text.waits_of(*it).len()).sum::<usize>();
    let wait = *waits.first().filter(|_| waits.len() == all)?;
    let ops = text.program.stmts.iter().filter_map(|it| it.1.op()?.number);
    let number = ops.max().map_or(0, |it| it + 1);
    let insert = |statement, at| Edit::Insert { statement, at };
    let mut edits = vec![
        insert(NewStatement::StartCoalescing, Place::Before(first)),
        insert(NewStatement::EndCoalescing(number), Place::After(last)),
        insert(NewStatement::Wait(number), Place::Before(wait)),
    ];
    edits.extend(waits.into_iter().map(Edit::Remove));
    Some(edits)
}

/// Returns the Wait for a communication that directly follows it; `None` if there is none.
fn wait_of(text: &EditableText, call: StmtId) -> Option<StmtId> {
    let place = text.places().of_stmt(call)?;
    let stmt = *text.program.block(place.block).get(place.position + 1)?;
    let posts =
        text.program.op(call).is_some_and(|it| matches!(it.op, Op::Communication | Op::P2PCommunication));
    (posts && text.awaited_number(stmt) == text.program.posted_work(call)).then_some(stmt)
}

fn before(text: &EditableText, call: StmtId, stmt: StmtId) -> Option<Vec<Edit>> {
    let to = Place::Before(stmt);
    Some(vec![Edit::Move { stmt: call, to }, Edit::Move { stmt: wait_of(text, call)?, to }])
}
