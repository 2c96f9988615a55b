//! common-subexpression: computes equal values, views and scalar definitions once.
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
//! The pass merges:
//!
//! * scalar definitions with equal values, unless statements assign their scalars;
//! * views of the same elements, in one block, if no statement in between rebinds the operand or changes the
//!   index, and no other statement binds the names;
//! * operators that compute (not copies, rearrangements or random numbers), in one block and on one stream,
//!   if no statement in between may write their operands, and only these statements write their results under
//!   any name. In a loop, both results need storage that every iteration allocates: otherwise one iteration
//!   might overwrite what another one reads.
//!
//! The pass never merges inputs or outputs of the program, results that are written in place, or statements
//! on different streams.

mod apply;
mod available;
mod axis_correspondence;
mod def_use;
mod definitions;

use grammar::{
    AccessMode, Attr, AxisId, BlockId, Diagnostic, OpClass, OpStmt, Operand, Program, Stmt, StmtId, TensorId,
    attr::AttrName,
};
use hir_ir::streams::StreamFacts;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    analysis::{alias_analysis::can_forward_operand, bindings::symbols_through},
    pass::{Arguments, Change, Pass, Remarks},
};
use apply::apply;
use available::{AvailableExprs, ExprKey};
use axis_correspondence::axis_correspondence;
use def_use::{DefUseInfo, effect};
use definitions::merge_definitions;

/// The maximum number of earlier statements with the same key that a statement is compared with. Several
/// occur only if their results differ in type.
const MAX_CANDIDATES: usize = 8;

/// The pass.
pub(crate) const PASS: Pass = Pass::new("common-subexpression", include_str!("common_subexpression.rs"), run)
    .about("compute equal values, views and scalar definitions only once");

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let mut changed = merge_definitions(program);
    let Some(body) = program.body else { return Ok(Change::from_flag(changed)) };
    // A merge may enable another one: it may remove the statements that bind a name of the other.
    loop {
        let mut finder = Finder {
            program,
            def_use: DefUseInfo::of(program, body),
            streams: StreamFacts::of(program),
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

/// The statements to remove, and the tensors and axes that replace their results.
#[derive(Default)]
struct Merges {
    dropped: FxHashSet<StmtId>,
    tensors: FxHashMap<TensorId, TensorId>,
    axes: FxHashMap<(TensorId, AxisId), AxisId>,
}

impl Merges {
    /// Returns the operands and attributes of a statement after the merges so far.
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
    streams: StreamFacts,
    available: AvailableExprs,
    merges: Merges,
}

impl Finder<'_> {
    fn block(&mut self, block: BlockId, in_loop: bool) {
        let program = self.program;
        for stmt in program.block(block) {
            match &program.stmts[*stmt] {
                Stmt::Op(op_stmt) => {
                    let key = self.key(block, *stmt, op_stmt, in_loop);
                    let earlier = key.as_ref().and_then(|(key, out)| self.earlier(key, *stmt, *out));
                    self.kill(op_stmt);
                    match (earlier, key) {
                        (Some((earlier, axes)), Some((_, out))) => self.merge(earlier, *stmt, out, axes),
                        (None, Some((key, out))) => self.record(key, out, op_stmt),
                        (_, None) => (),
                    }
                }
                Stmt::Let(symbol, _) => self.available.invalidate_symbol(*symbol),
                Stmt::For(it) => {
                    self.available.invalidate_symbol(it.index);
                    self.block(it.body, true);
                }
                Stmt::If(_it) => {
                    for inner in self.program.inner_blocks(*stmt) {
                        self.block(inner, in_loop);
                    }
                }
            }
        }
    }

    /// Returns the key that equal statements share, and the result; `None` if another statement's result
    /// cannot replace this one.
    fn key(&self, block: BlockId, stmt: StmtId, it: &OpStmt, in_loop: bool) -> Option<(ExprKey, TensorId)> {
        let out = it.out_tensor().filter(|_| is_view(it) || is_computation(it))?;
        let (facts, program) = (&self.def_use, self.program);
        let (fits, stream) = if is_view(it) {
            (facts.is_only_bound_by(out, stmt), None)
        } else {
            (facts.is_private_result(program, out, stmt, in_loop), self.streams.current(stmt))
        };
        let (args, attrs) = fits.then(|| self.merges.renamed(it))?;
        Some((ExprKey { block, op: it.op, args, attrs, stream }, out))
    }

    /// Returns an earlier result that equals the result of a statement, and the correspondence of their axes.
    fn earlier(
        &self,
        key: &ExprKey,
        stmt: StmtId,
        out: TensorId,
    ) -> Option<(TensorId, FxHashMap<AxisId, AxisId>)> {
        // A result that is used before the statement comes from another iteration.
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
        // A view remains valid when its elements change.
        let read =
            operands.iter().filter(|_| !is_view(it)).map(|it| self.def_use.names.alias_class(*it)).collect();
        self.available.insert(key, out, &operands, read, scalars);
    }

    /// Invalidates what an operator changes: computations that read what it writes, and entries that depend
    /// on the names that it binds.
    fn kill(&mut self, it: &OpStmt) {
        let drops = it.op.def().class == OpClass::Deallocate;
        let (facts, known) = (&self.def_use, &mut self.available);
        for (tensor, mode) in it.tensor_uses(self.program) {
            let (binds, writes) = match mode {
                AccessMode::Bind => (true, false),
                // A result without storage gets storage from the write.
                AccessMode::Write | AccessMode::Transfer => (true, true),
                AccessMode::Read | AccessMode::NoAccess => (drops, false),
            };
            if binds {
                known.invalidate_tensor(tensor, writes.then(|| facts.names.alias_class(tensor)));
            }
        }
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

/// Returns whether an operator computes new elements that depend only on its operands.
fn is_computation(it: &OpStmt) -> bool {
    it.computes() && !can_forward_operand(it) && it.outs.len() == 1 && it.number.is_none()
}
