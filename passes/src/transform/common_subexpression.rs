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
mod available;
mod axis_correspondence;
mod def_use;
mod definitions;

use grammar::{
    attr::AttrName,
    diagnostic::Diagnostic,
    for_each_tensor_use,
    ir::{Attr, AxisId, BlockId, OpStmt, Operand, Program, Stmt, StmtId, Stream, TensorId},
    ops::{AccessMode, Op, OpClass},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    analysis::{alias_analysis::can_forward_operand, bindings::symbols_through, dim_equivalence::computes},
    pass::{Arguments, Change, Pass, Remarks},
};
use apply::apply;
use available::{AvailableExprs, ExprKey};
use axis_correspondence::axis_correspondence;
use def_use::{DefUseInfo, effect};
use definitions::merge_definitions;

/// Most earlier statements that a statement is compared with: equal ones whose results differ in type.
const MAX_CANDIDATES: usize = 8;

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
    // A merge may free what another one needs: a name that only dropped statements bound.
    loop {
        let mut finder = Finder {
            program,
            def_use: DefUseInfo::of(program, body),
            available: AvailableExprs::default(),
            merges: Merges::default(),
        };
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
}

impl Merges {
    /// The operands and attributes of a statement, once what is merged has one name.
    fn renamed(&self, it: &OpStmt) -> (Vec<Operand>, Vec<(AttrName, Attr)>) {
        let first = Program::tensors_of(&it.args).next();
        let tensor = |it: TensorId| self.tensors.get(&it).copied().unwrap_or(it);
        let operand = |it: &Operand| match *it {
            Operand::Tensor(it) => Operand::Tensor(tensor(it)),
            Operand::Scalar(_) | Operand::Stream(_) => *it,
        };
        let attr = |(key, attr): &(AttrName, Attr)| {
            let attr = match attr {
                Attr::Axis(axis) => {
                    let new = first.and_then(|first| self.axes.get(&(first, *axis)));
                    Attr::Axis(new.copied().unwrap_or(*axis))
                }
                Attr::Tensor(it) => Attr::Tensor(tensor(*it)),
                other => other.clone(),
            };
            (*key, attr)
        };
        (it.args.iter().map(operand).collect(), it.attrs.iter().map(attr).collect())
    }
}

struct Finder<'p> {
    program: &'p Program,
    def_use: DefUseInfo,
    available: AvailableExprs,
    merges: Merges,
}

/// The current stream.
#[derive(Clone, PartialEq, Eq, Hash)]
enum CurrentStream {
    /// One that was current when the block, or what stands behind an inner block, was entered.
    Entry(usize),
    Set(Stream),
}

impl Finder<'_> {
    fn block(&mut self, block: BlockId, in_loop: bool) {
        let program = self.program;
        let (mut current, mut entries) = (CurrentStream::Entry(0), 0);
        for stmt in program.block(block) {
            match &program.stmts[*stmt] {
                Stmt::Op(it) => {
                    let key = self.key(block, *stmt, it, in_loop, &current);
                    let earlier = key.as_ref().and_then(|(key, out)| self.earlier(key, *stmt, *out));
                    self.kill(it);
                    match (earlier, key) {
                        (Some((earlier, axes)), Some((_, out))) => self.merge(earlier, *stmt, out, axes),
                        (None, Some((key, out))) => self.record(key, out, it),
                        (_, None) => (),
                    }
                    if it.op == Op::SetCurrentStream
                        && let [Operand::Stream(stream)] = it.args[..]
                    {
                        current = CurrentStream::Set(program.streams[stream].clone());
                    }
                }
                Stmt::Let(symbol, _) => {
                    self.available.invalidate_symbol(*symbol);
                    // The index of the current stream may mean another one now.
                    if let CurrentStream::Set(Stream::Index(_)) = current {
                        entries += 1;
                        current = CurrentStream::Entry(entries);
                    }
                }
                Stmt::For(it) => {
                    self.available.invalidate_symbol(it.index);
                    self.block(it.body, true);
                    entries += 1;
                    current = CurrentStream::Entry(entries);
                }
                Stmt::If(it) => {
                    for inner in [Some(it.then_block), it.else_block].into_iter().flatten() {
                        self.block(inner, in_loop);
                    }
                    entries += 1;
                    current = CurrentStream::Entry(entries);
                }
            }
        }
    }

    /// What equal statements have in common, and the result, where one such result can stand for another.
    fn key(
        &self,
        block: BlockId,
        stmt: StmtId,
        it: &OpStmt,
        in_loop: bool,
        current: &CurrentStream,
    ) -> Option<(ExprKey, TensorId)> {
        let out = it.out_tensor().filter(|_| is_view(it) || is_computation(it))?;
        let (facts, program) = (&self.def_use, self.program);
        let (fits, stream) = match is_view(it) {
            true => (facts.is_only_bound_by(out, stmt), None),
            false => (facts.is_private_result(program, out, stmt, in_loop), Some(current.clone())),
        };
        let (args, attrs) = fits.then(|| self.merges.renamed(it))?;
        Some((ExprKey { block, op: it.op, args, attrs, stream }, out))
    }

    /// An earlier result that the result of a statement equals, and how their axes correspond.
    fn earlier(
        &self,
        key: &ExprKey,
        stmt: StmtId,
        out: TensorId,
    ) -> Option<(TensorId, FxHashMap<AxisId, AxisId>)> {
        // A result that is mentioned before it is made comes from another iteration.
        if self.def_use.is_used_before(out, stmt) {
            return None;
        }
        self.available.find(key).take(MAX_CANDIDATES).find_map(|earlier| {
            let allowed = earlier != out && self.def_use.outlives(earlier, out);
            let axes = allowed.then(|| axis_correspondence(self.program, earlier, out))??;
            Some((earlier, axes))
        })
    }

    fn record(&mut self, key: ExprKey, out: TensorId, it: &OpStmt) {
        let mut scalars = FxHashSet::default();
        it.scalars(&mut |expr| symbols_through(self.program, expr, &mut scalars));
        let operands = Program::tensors_of(&it.args).chain(Program::tensors_of(&key.args));
        let mut operands: Vec<TensorId> = operands.collect();
        operands.sort_unstable();
        operands.dedup();
        // Views stay the same when their elements change.
        let read =
            operands.iter().filter(|_| !is_view(it)).map(|it| self.def_use.names.alias_class(*it)).collect();
        self.available.insert(key, out, &operands, read, scalars);
    }

    /// Forgets what an operator changes: computations of what it writes, and everything about names that it binds.
    fn kill(&mut self, it: &OpStmt) {
        let drops = it.op.def().class == OpClass::Deallocate;
        let (facts, known) = (&self.def_use, &mut self.available);
        for_each_tensor_use(self.program, it, &mut |tensor, mode| {
            let (binds, writes) = match mode {
                AccessMode::Bind => (true, false),
                // A result that has no storage yet gets some.
                AccessMode::Write | AccessMode::Transfer => (true, true),
                AccessMode::Read | AccessMode::NoAccess => (drops, false),
            };
            if binds {
                known.invalidate_tensor(tensor, writes.then(|| facts.names.alias_class(tensor)));
            }
        });
    }

    fn merge(&mut self, earlier: TensorId, stmt: StmtId, out: TensorId, axes: FxHashMap<AxisId, AxisId>) {
        self.merges.dropped.insert(stmt);
        for (other, _) in self.def_use.names.uses_of(out) {
            if matches!(effect(self.program, *other), Some(OpClass::Allocate | OpClass::Deallocate)) {
                self.merges.dropped.insert(*other);
            }
        }
        self.merges.tensors.insert(out, earlier);
        self.merges.axes.extend(axes.into_iter().map(|(from, to)| ((out, from), to)));
    }
}

fn is_view(it: &OpStmt) -> bool {
    it.op.def().class == OpClass::View
}

/// Whether an operator writes new elements that depend on its operands alone.
fn is_computation(it: &OpStmt) -> bool {
    let row = it.op.def();
    let copies = row.class == OpClass::Compute && can_forward_operand(row.type_rule);
    computes(it) && !copies && it.outs.len() == 1 && it.number.is_none()
}
