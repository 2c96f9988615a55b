//! common-subexpression: computes equal things once.
//!
//! Before:
//! ```text
//! T2 = HirAliasSelect( T1, axis = iS1{8}, index = i84 )
//! T3 = linear(T0, T2)
//! T4 = HirAliasSelect( T1, axis = iS1{8}, index = i85 )
//! T5 = linear(T0, T4)
//! T6 = T3 + T5
//!
//! Index definitions:
//!   i84 = rank + 1;
//!   i85 = rank + 1;
//! ```
//! After:
//! ```text
//! T2 = HirAliasSelect( T1, axis = iS1{8}, index = i84 )
//! T3 = linear(T0, T2)
//! T6 = T3 + T3
//!
//! Index definitions:
//!   i84 = rank + 1;
//! ```
//!
//! * definitions with equal values, unless statements give their scalars values;
//! * views of the same elements, in one block, with nothing in between that gives the operand or an index another
//!   meaning, of names that nothing else binds;
//! * operators that compute (no copies, no rearrangements, no random numbers), in one block and on one stream, whose
//!   operands nothing may write in between, and whose results only they write, under whatever name. In a loop, both
//!   results need storage that every iteration allocates: otherwise an iteration might overwrite what another reads.
//!
//! Results that the header lists, and what is written in place, are never merged, nor is anything across streams.

mod apply;
mod correspondence;
mod definitions;

use grammar::{
    diagnostic::Diagnostic,
    ir::{AxisId, BlockId, OpStmt, Operand, Program, Stmt, StmtId, Stream, SymbolId, TensorId},
    mentions,
    ops::{Effect, Mode, Op},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    bindings::symbols_through,
    component::computes,
    names::Names,
    pass::{Arguments, Change, Pass, Remarks},
    sharing::may_rearrange,
};
use apply::apply;
use correspondence::correspondence;
use definitions::merge_definitions;

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "common-subexpression",
    description: "compute equal values, views and scalar definitions once",
    options: &[],
    run,
};

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let mut changed = merge_definitions(program);
    let Some(body) = program.body else { return Ok(Change::from_flag(changed)) };
    // Every round drops statements; merged operands make more statements equal.
    loop {
        let mut finder = Finder { program, names: Names::of(program, body), merges: Merges::default() };
        finder.block(body, false);
        let merges = finder.merges;
        if merges.dropped.is_empty() {
            return Ok(Change::from_flag(changed));
        }
        apply(program, body, &merges);
        changed = true;
    }
}

/// What becomes of equal statements.
#[derive(Default)]
struct Merges {
    dropped: FxHashSet<StmtId>,
    tensors: FxHashMap<TensorId, TensorId>,
    axes: FxHashMap<(TensorId, AxisId), AxisId>,
    /// Tensors that a merge of this round speaks of: another one would need to know its outcome.
    taken: FxHashSet<TensorId>,
}

struct Finder<'p> {
    program: &'p Program,
    names: Names,
    merges: Merges,
}

/// A statement whose result later ones can use.
struct Known {
    stmt: StmtId,
    /// What was current, as far as the block tells.
    stream: Current,
    scalars: FxHashSet<SymbolId>,
}

/// The current stream.
#[derive(Clone, PartialEq)]
enum Current {
    /// One that was current when the block, or what stands behind an inner block, was entered.
    Entry(usize),
    Set(Stream),
}

impl Finder<'_> {
    fn block(&mut self, block: BlockId, in_loop: bool) {
        let program = self.program;
        let mut known: FxHashMap<(Op, &[Operand]), Vec<Known>> = FxHashMap::default();
        let (mut current, mut entries) = (Current::Entry(0), 0);
        for stmt in program.block(block) {
            match &program.stmts[*stmt] {
                Stmt::Op(it) => {
                    let key = (it.op, it.args.as_slice());
                    let candidates = known.get(&key).into_iter().flatten();
                    let mut earlier = candidates.filter(|earlier| earlier.stream == current || is_view(it));
                    let found = earlier.find_map(|earlier| {
                        let axes = self.mergeable(earlier.stmt, *stmt, it, in_loop)?;
                        Some((earlier.stmt, axes))
                    });
                    if let Some((earlier, axes)) = found {
                        self.merge(earlier, *stmt, it, axes);
                        continue;
                    }
                    self.kill(it, &mut known);
                    if it.op == Op::SetCurrentStream
                        && let [Operand::Stream(stream)] = it.args[..]
                    {
                        current = Current::Set(program.streams[stream].clone());
                    }
                    if is_view(it) || is_computation(it) {
                        let mut scalars = FxHashSet::default();
                        it.scalars(&mut |expr| symbols_through(program, expr, &mut scalars));
                        let entry = Known { stmt: *stmt, stream: current.clone(), scalars };
                        known.entry(key).or_default().push(entry);
                    }
                }
                Stmt::Let(symbol, _) => {
                    forget(&mut known, *symbol);
                    // The index of the current stream may mean another one now.
                    if let Current::Set(Stream::Index(_)) = current {
                        entries += 1;
                        current = Current::Entry(entries);
                    }
                }
                Stmt::For(it) => {
                    self.inner(it.body, &mut known);
                    forget(&mut known, it.index);
                    self.block(it.body, true);
                    entries += 1;
                    current = Current::Entry(entries);
                }
                Stmt::If(it) => {
                    for inner in [Some(it.then), it.other].into_iter().flatten() {
                        self.inner(inner, &mut known);
                        self.block(inner, in_loop);
                    }
                    entries += 1;
                    current = Current::Entry(entries);
                }
            }
        }
    }

    /// Forgets what a block that runs in between may change.
    fn inner(&self, block: BlockId, known: &mut FxHashMap<(Op, &[Operand]), Vec<Known>>) {
        let program = self.program;
        program.walk(block, &mut |stmt| match &program.stmts[stmt] {
            Stmt::Op(it) => self.kill(it, known),
            Stmt::Let(symbol, _) => forget(known, *symbol),
            Stmt::For(it) => forget(known, it.index),
            Stmt::If(_) => (),
        });
    }

    /// Forgets what an operator changes: computations of what it writes, and everything about names that it binds.
    fn kill(&self, it: &OpStmt, known: &mut FxHashMap<(Op, &[Operand]), Vec<Known>>) {
        let drops = it.op.row().effect == Effect::Deallocate;
        mentions(self.program, it, &mut |tensor, mode| {
            let (binds, writes) = match mode {
                Mode::Bind => (true, false),
                // A result that has no storage yet gets some.
                Mode::Write | Mode::Transfer => (true, true),
                Mode::Read | Mode::Mention => (drops, false),
            };
            if !binds {
                return;
            }
            let class = self.names.class(tensor);
            known.retain(|(_, args), entries| {
                let mut operands = Program::tensors_of(args);
                let hit = operands.any(|arg| arg == tensor || writes && self.names.class(arg) == class);
                entries.retain(|entry| {
                    let Stmt::Op(earlier) = &self.program.stmts[entry.stmt] else { return false };
                    // Views stay the same when their elements change.
                    let own = Program::tensors_of(args).any(|arg| arg == tensor);
                    !(hit && (own || !is_view(earlier))) && (writes || earlier.out_tensor() != Some(tensor))
                });
                !entries.is_empty()
            });
        });
    }

    /// How the axes of two equal statements' results correspond, if one result can stand for both.
    fn mergeable(
        &self,
        earlier: StmtId,
        stmt: StmtId,
        it: &OpStmt,
        in_loop: bool,
    ) -> Option<FxHashMap<AxisId, AxisId>> {
        let Stmt::Op(first) = &self.program.stmts[earlier] else { return None };
        let (a, b) = (first.out_tensor()?, it.out_tensor()?);
        let free = |tensor: TensorId| !self.merges.taken.contains(&tensor);
        let operands = Program::tensors_of(&it.args);
        if a == b || first.attrs != it.attrs || !free(a) || !free(b) || !operands.into_iter().all(free) {
            return None;
        }
        let axes = correspondence(self.program, a, b)?;
        let fits = match is_view(it) {
            true => self.bound_by(a, earlier) && self.bound_by(b, stmt) && self.last_allows(a, b),
            false => {
                self.own_result(a, earlier, in_loop)
                    && self.own_result(b, stmt, in_loop)
                    && self.last_allows(a, b)
            }
        };
        // A result that is mentioned before it is made comes from another iteration.
        let place = |stmt: &StmtId| self.names.place.get(stmt).copied();
        let early = self.names.of_tensor(b).iter().any(|(other, mode)| {
            place(other) < place(&stmt) && !(*mode == Mode::Bind || self.is_allocation(*other))
        });
        (fits && !early).then_some(axes)
    }

    /// Whether one statement alone gives the name a meaning.
    fn bound_by(&self, tensor: TensorId, stmt: StmtId) -> bool {
        let listed =
            Program::tensors_of(&self.program.inputs).chain(Program::tensors_of(&self.program.outputs));
        let mut listed = listed.filter(|port| *port == tensor);
        let mut binders = self.names.of_tensor(tensor).iter().filter(|(_, mode)| *mode == Mode::Bind);
        listed.next().is_none() && binders.all(|(other, _)| *other == stmt) && !self.is_dropped(tensor)
    }

    fn is_dropped(&self, tensor: TensorId) -> bool {
        self.names.of_tensor(tensor).iter().any(|(stmt, _)| self.effect(*stmt) == Some(Effect::Deallocate))
    }

    /// Whether a statement alone writes its result, into storage of its own.
    fn own_result(&self, tensor: TensorId, stmt: StmtId, in_loop: bool) -> bool {
        let binders = self.names.of_tensor(tensor).iter().filter(|(_, mode)| *mode == Mode::Bind);
        let binders: FxHashSet<StmtId> = binders.map(|(stmt, _)| *stmt).collect();
        let fresh =
            |stmt: &StmtId| matches!(&self.program.stmts[*stmt], Stmt::Op(it) if it.op == Op::Allocate);
        let plain =
            |stmt: &StmtId| matches!(&self.program.stmts[*stmt], Stmt::Op(it) if it.attr("alias").is_none());
        !self.names.is_port(tensor)
            && self.names.writers(tensor).all(|writer| writer == stmt)
            && binders.len() <= 1
            && binders.iter().all(|it| self.is_allocation(*it) && plain(it))
            && (!in_loop
                || binders.len() == 1 && binders.iter().all(fresh) && self.same_block(&binders, stmt))
    }

    /// Whether the allocations stand in the block of the statement, before it.
    fn same_block(&self, allocations: &FxHashSet<StmtId>, stmt: StmtId) -> bool {
        let blocks = self.program.blocks.iter();
        let mut holding = blocks.filter(|(_, stmts)| stmts.contains(&stmt));
        holding.any(|(_, stmts)| {
            let at = stmts.iter().position(|it| *it == stmt);
            allocations.iter().all(|it| stmts.iter().position(|other| other == it) < at && stmts.contains(it))
        })
    }

    fn is_allocation(&self, stmt: StmtId) -> bool {
        self.effect(stmt) == Some(Effect::Allocate)
    }

    fn effect(&self, stmt: StmtId) -> Option<Effect> {
        match &self.program.stmts[stmt] {
            Stmt::Op(it) => Some(it.op.row().effect),
            Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => None,
        }
    }

    /// Whether `a` is not dropped as long as `b` is used.
    fn last_allows(&self, a: TensorId, b: TensorId) -> bool {
        let place = |stmt: &StmtId| self.names.place.get(stmt).copied();
        let drops =
            self.names.of_tensor(a).iter().filter(|(stmt, _)| self.effect(*stmt) == Some(Effect::Deallocate));
        let first_drop = drops.map(|(stmt, _)| place(stmt)).min();
        let uses = self.names.of_tensor(b).iter();
        let last_use = uses
            .filter(|(stmt, _)| self.effect(*stmt) != Some(Effect::Deallocate))
            .map(|(stmt, _)| place(stmt))
            .max();
        first_drop.is_none_or(|drop| last_use.is_none_or(|last| last < drop))
    }

    fn merge(&mut self, earlier: StmtId, stmt: StmtId, it: &OpStmt, axes: FxHashMap<AxisId, AxisId>) {
        let Stmt::Op(first) = &self.program.stmts[earlier] else { return };
        let (Some(a), Some(b)) = (first.out_tensor(), it.out_tensor()) else { return };
        self.merges.taken.extend([a, b]);
        self.merges.dropped.insert(stmt);
        for (other, _) in self.names.of_tensor(b) {
            if matches!(self.effect(*other), Some(Effect::Allocate | Effect::Deallocate)) {
                self.merges.dropped.insert(*other);
            }
        }
        self.merges.tensors.insert(b, a);
        self.merges.axes.extend(axes.into_iter().map(|(from, to)| ((b, from), to)));
    }
}

fn forget(known: &mut FxHashMap<(Op, &[Operand]), Vec<Known>>, symbol: SymbolId) {
    known.retain(|_, entries| {
        entries.retain(|entry| !entry.scalars.contains(&symbol));
        !entries.is_empty()
    });
}

fn is_view(it: &OpStmt) -> bool {
    it.op.row().effect == Effect::View
}

/// Whether an operator writes new elements that depend on its operands alone.
fn is_computation(it: &OpStmt) -> bool {
    let row = it.op.row();
    let copies = row.effect == Effect::Compute && may_rearrange(row.rule);
    computes(it) && !copies && it.outs.len() == 1 && it.number.is_none()
}
