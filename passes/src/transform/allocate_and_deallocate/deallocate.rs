//! The last use of names, and a Deallocate behind it.

use grammar::{
    attr,
    ir::{BlockId, OpStmt, Operand, Program, Stmt, StmtId, TensorId},
    mentions,
    ops::{Effect, Op},
};
use rustc_hash::FxHashMap;

use super::{Brackets, Insertions, Uses, copies, insert, outside_stale};
use crate::{
    analysis::{accesses::fills, bindings, places::Places},
    rewrite::create,
};

/// Puts a Deallocate behind what uses a name last.
pub(super) fn deallocate(program: &mut Program, body: BlockId) -> bool {
    let places = Places::of(program, body);
    let uses = Uses::of(program, &places);
    let views = Views::of(program, &places, &uses);
    let mut wanted: Vec<(usize, TensorId, BlockId, usize)> = Vec::new();
    let mut queries: FxHashMap<StmtId, Vec<TensorId>> = FxHashMap::default();
    let mut brackets = Brackets::default();
    let names = places.uses.keys().copied();
    let is_ours = |it: &TensorId| {
        !uses.ports.contains(it)
            && !uses.dropped.contains(it)
            && (uses.bound.contains(it) || uses.writes.contains_key(it))
    };
    for tensor in names.filter(is_ours) {
        let (count, stmts) = views.last_uses(&places, tensor);
        let Some(first) = stmts.first().copied() else { continue };
        let depth = places.common(&stmts);
        let binds = |stmt| fresh(program, stmt);
        let mut depth = outside_stale(program, &places, tensor, first, depth, &binds);
        if keeps_handle(program, &places, tensor, &stmts) {
            while let Some(at) = places.loop_around(first, depth) {
                depth = at.saturating_sub(1);
            }
        }
        let place = places.block_at(first, depth).zip(places.span(&stmts, depth));
        let Some((block, (_, last))) = place else { continue };
        let bracket = brackets.around(program, block, last);
        let last = bracket.map_or(last, |(_, end)| end);
        queries.entry(program.block(block)[last]).or_default().push(tensor);
        wanted.push((count, tensor, block, last));
    }
    let certain = bindings::bound_after(program, &queries);
    wanted.retain(|(_, tensor, block, last)| certain.contains(&(program.block(*block)[*last], *tensor)));
    // Views before what they are views of; numbers for a fixed order.
    wanted.sort_by_key(|(count, tensor, ..)| (*count, program.tensors[*tensor].number, *tensor));
    let mut insertions = Insertions::default();
    for (_, tensor, block, last) in wanted {
        let span = program.stmt_span(program.block(block)[last]);
        let new = OpStmt { args: vec![Operand::Tensor(tensor)], ..create::op(Op::Deallocate) };
        let new = create::add(program, new, span);
        insertions.entry(block).or_default().push((last + 1, new));
    }
    insert(program, insertions)
}

/// Whether a long ALLOCATE keeps the storage from one iteration to the next, and its handle with it: dropped in between, it
/// would be other storage, whose handle the peers do not expect.
fn keeps_handle(program: &Program, places: &Places, tensor: TensorId, stmts: &[StmtId]) -> bool {
    let is = |stmt: &StmtId, what: &dyn Fn(&OpStmt) -> bool| match &program.stmts[*stmt] {
        Stmt::Op(it) => what(it),
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => false,
    };
    let allocated = |it: &OpStmt| it.op == Op::AllocateOnce && it.out_tensor() == Some(tensor);
    let shared = |it: &OpStmt| it.op.row().effect == Effect::Share;
    places.uses.get(&tensor).into_iter().flatten().any(|stmt| is(stmt, &allocated))
        && stmts.iter().any(|stmt| is(stmt, &shared))
}

/// The names that a statement binds, or binds or writes as a whole, without a look at what they were.
fn fresh(program: &Program, stmt: StmtId) -> Vec<TensorId> {
    let Stmt::Op(it) = &program.stmts[stmt] else { return Vec::new() };
    if it.op == Op::AllocateOnce {
        return Vec::new();
    }
    let mut fresh = fills(program, stmt);
    if matches!(it.op.row().effect, Effect::View | Effect::Allocate) {
        fresh.extend(it.out_tensor());
    }
    fresh
}

/// What keeps a name's storage in use besides the name.
struct Views {
    /// Names that are views of a name.
    of: FxHashMap<TensorId, Vec<TensorId>>,
    /// Waits for what uses a name.
    waits: FxHashMap<TensorId, Vec<StmtId>>,
}

impl Views {
    fn of(program: &Program, places: &Places, uses: &Uses) -> Self {
        let mut of: FxHashMap<TensorId, Vec<TensorId>> = FxHashMap::default();
        let mut posted: FxHashMap<u32, Vec<TensorId>> = FxHashMap::default();
        let mut bracket: Vec<TensorId> = Vec::new();
        for stmt in &places.order {
            let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
            let mut used = Vec::new();
            mentions(program, it, &mut |tensor, _| used.push(tensor));
            let effect = it.op.row().effect;
            let unbound =
                |out: TensorId| effect == Effect::Compute && !uses.bound.contains(&out) && copies(it);
            match (effect, it.out_tensor()) {
                (Effect::View | Effect::Allocate | Effect::Compute, Some(out))
                    if effect != Effect::Compute || unbound(out) =>
                {
                    for base in used.iter().filter(|base| **base != out) {
                        of.entry(*base).or_default().push(out);
                    }
                }
                (Effect::Communicate, _) => {
                    bracket.extend(&used);
                    if let Some(number) = it.number {
                        posted.entry(number).or_default().extend(used);
                    }
                }
                (Effect::Group, _) => {
                    let sides = std::mem::take(&mut bracket);
                    if let Some(number) = it.number {
                        posted.entry(number).or_default().extend(sides);
                    }
                }
                (
                    Effect::View
                    | Effect::Allocate
                    | Effect::Compute
                    | Effect::Map
                    | Effect::Deallocate
                    | Effect::Wait
                    | Effect::Stream
                    | Effect::Share
                    | Effect::Unit
                    | Effect::Opaque,
                    _,
                ) => (),
            }
        }
        let mut waits: FxHashMap<TensorId, Vec<StmtId>> = FxHashMap::default();
        for stmt in &places.order {
            let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
            if let (Effect::Wait, Some(number)) = (it.op.row().effect, it.get(attr::WORK)) {
                for tensor in posted.get(&number).into_iter().flatten() {
                    waits.entry(*tensor).or_default().push(*stmt);
                }
            }
        }
        Self { of, waits }
    }

    /// Statements after which a name's storage is not in use any more, and how many views it has.
    fn last_uses(&self, places: &Places, tensor: TensorId) -> (usize, Vec<StmtId>) {
        let mut names = vec![tensor];
        let mut at = 0;
        while let Some(name) = names.get(at).copied() {
            at += 1;
            for view in self.of.get(&name).into_iter().flatten() {
                if !names.contains(view) {
                    names.push(*view);
                }
            }
        }
        let mut stmts: Vec<StmtId> = Vec::new();
        for name in &names {
            stmts.extend(places.uses.get(name).into_iter().flatten());
            stmts.extend(self.waits.get(name).into_iter().flatten());
        }
        (names.len(), stmts)
    }
}
