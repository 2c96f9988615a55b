//! Storage for what statements write.

use grammar::{
    ir::{BlockId, Program, Stmt, StmtId, TensorId},
    mentions,
    ops::Mode,
};
use rustc_hash::FxHashSet;

use super::{Brackets, Insertions, Uses, copies, insert, outside_stale};
use crate::{
    analysis::{
        accesses::{before_fork, fills},
        places::Places,
    },
    rewrite::create,
};

/// The names that a statement writes, as far as it runs on this rank.
fn written(program: &Program, stmt: StmtId) -> Vec<TensorId> {
    let mut written = Vec::new();
    if let Stmt::Op(it) = &program.stmts[stmt] {
        mentions(program, it, &mut |tensor, mode| {
            if mode == Mode::Write {
                written.push(tensor);
            }
        });
    }
    written
}

/// Puts an ALLOCATE in front of what writes a name without storage.
pub(super) fn allocate(program: &mut Program, body: BlockId) -> bool {
    let places = Places::of(program, body);
    let uses = Uses::of(program, &places);
    let mut insertions = Insertions::default();
    let mut brackets = Brackets::default();
    let mut done: FxHashSet<TensorId> = uses.bound.clone();
    for stmt in &places.order {
        for tensor in written(program, *stmt) {
            if !done.insert(tensor) || stays_view(program, &places, &uses, tensor) {
                continue;
            }
            let mentioned = &places.uses[&tensor];
            let mut depth = match uses.outputs.contains(&tensor) {
                true => 0,
                false => places.common(mentioned),
            };
            depth = outside_stale(program, &places, tensor, *stmt, depth, &|stmt| fills(program, stmt));
            let place = places.block_at(*stmt, depth).zip(places.span(mentioned, depth));
            let Some((block, (first, _))) = place else { continue };
            let bracket = brackets.around(program, block, first);
            let at = before_fork(program, block, bracket.map_or(first, |(start, _)| start));
            let span = program.stmt_span(*stmt);
            let new = create::allocate(program, tensor);
            let new = create::add(program, new, span);
            insertions.entry(block).or_default().push((at, new));
        }
    }
    insert(program, insertions)
}

/// Whether a name without storage of its own is better a view of what is copied to it, or has to be one.
fn stays_view(program: &Program, places: &Places, uses: &Uses, tensor: TensorId) -> bool {
    let writes = &uses.writes[&tensor];
    let copies = |stmt: &&StmtId| matches!(&program.stmts[**stmt], Stmt::Op(it) if copies(it));
    let Some(copy) = writes.iter().find(copies) else { return false };
    match writes.len() {
        1 => {
            let depth = places.paths[copy].len() - 1;
            places.loop_around(*copy, depth).is_none() || uses.dropped.contains(&tensor)
        }
        // What is written after the copy goes to the operand's storage too, unless only one of the two runs.
        _ => writes.iter().filter(|it| *it != copy).any(|other| {
            let pair = [*copy, *other];
            places.span(&pair, places.common(&pair)).is_some_and(|(first, last)| first != last)
        }),
    }
}
