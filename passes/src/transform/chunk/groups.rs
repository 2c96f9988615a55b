//! Emits the statements of the parts: a group of chunked statements for the first part, then for the second
//! part, and so on. Those behind the last communication of a group follow when all parts have communicated.
//!
//! Statements keep their order, except that a whole statement that does not depend on the group before it
//! moves before the group: with fewer groups, more statements share a loop over the chunks of a part.

use std::mem;

use grammar::{
    AccessMode, Attr, BlockId, ExprId, Memory, Op, OpStmt, Operand, ParallelType, Program, Span, Stmt,
    StmtId, TensorId, attr,
};
use hir_ir::build::{self, IrBuilder};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    auto::comm_candidates,
    chunked_axis::{ChunkedAxis, ChunkedStmt},
    sizes::Part,
};
use crate::analysis::{
    alias_analysis::{AliasClasses, OpaqueCallModel},
    bindings::analyze_bindings,
    dim_map,
    sharding::DimPiece,
};

/// Rewrites the body of the program, group by group.
pub(super) struct GroupWriter<'p> {
    program: &'p mut Program,
    fresh: &'p mut IrBuilder,
    axis: &'p ChunkedAxis,
    parts: Vec<Part>,
    /// The tensors that exist as a whole besides their parts.
    whole: FxHashSet<TensorId>,
    /// The names of each tensor's parts, as they are bound after the last statement of `out`.
    names: FxHashMap<TensorId, Vec<TensorId>>,
    /// The statements whose result may have storage already. Chunked statements among them have it on every path.
    bound: FxHashSet<StmtId>,
    sharing: AliasClasses,
    /// The chunked statements that are not emitted yet.
    group: Vec<StmtOperands>,
    /// The new body.
    out: Vec<StmtId>,
    old: Vec<StmtId>,
}

/// The tensors that a statement reads and writes.
struct StmtOperands {
    stmt: StmtId,
    out: TensorId,
    /// The operands of which each part of the statement reads a part.
    cut: Vec<TensorId>,
    /// The operands that the statement reads as a whole.
    whole: Vec<TensorId>,
    /// Whether the statement may write into existing storage.
    in_place: bool,
}

impl<'p> GroupWriter<'p> {
    pub(super) fn new(
        program: &'p mut Program,
        fresh: &'p mut IrBuilder,
        axis: &'p ChunkedAxis,
        parts: Vec<Part>,
        body: BlockId,
    ) -> Self {
        let whole = axis.whole_tensors(program);
        let bindings = analyze_bindings(program);
        let sharing = AliasClasses::of(program, body, &bindings, OpaqueCallModel::MayAlias);
        let bound = bindings.maybe_bound;
        let old = program.blocks[body].clone();
        let (names, group, out) = (FxHashMap::default(), Vec::new(), Vec::new());
        Self { program, fresh, axis, parts, whole, names, bound, sharing, group, out, old }
    }

    /// The new body.
    pub(super) fn write(mut self) -> Vec<StmtId> {
        for stmt in mem::take(&mut self.old) {
            let access = self.access(stmt);
            let depends = access.as_ref().is_none_or(|it| {
                self.group.iter().any(|other| is_ordered_across_parts(&self.sharing, other, it))
            });
            let is_cut = self.axis.stmts.contains_key(&stmt);
            match access {
                Some(access) if is_cut => {
                    if depends {
                        self.emit_group();
                    }
                    self.group.push(access);
                }
                // The statement allocates its own result, so it can move before the group.
                Some(access) if !access.in_place && !depends => self.emit_whole(stmt),
                Some(_) | None => {
                    self.emit_group();
                    self.emit_whole(stmt);
                }
            }
        }
        self.emit_group();
        self.out
    }

    /// Returns what a statement reads and writes; `None` if it does not compute exactly one result.
    fn access(&self, stmt: StmtId) -> Option<StmtOperands> {
        let Stmt::Op(it) = &self.program.stmts[stmt] else { return None };
        let [Operand::Tensor(out)] = it.outs[..] else { return None };
        if !it.computes() {
            return None;
        }
        let in_place = self.bound.contains(&stmt);
        let operands = match self.axis.stmts.get(&stmt) {
            Some(cut) => cut.operands.clone(),
            None => it.tensor_operands().into_iter().map(|arg| (arg, None)).collect(),
        };
        let (cut, whole): (Vec<_>, Vec<_>) = operands.into_iter().partition(|(_, dim)| dim.is_some());
        let tensors = |list: Vec<(TensorId, Option<usize>)>| list.into_iter().map(|(arg, _)| arg).collect();
        Some(StmtOperands { stmt, out, cut: tensors(cut), whole: tensors(whole), in_place })
    }

    /// Emits a whole statement, and removes the part names of every tensor that the statement may bind to
    /// other storage.
    fn emit_whole(&mut self, stmt: StmtId) {
        self.out.push(stmt);
        let program = &*self.program;
        let names = &mut self.names;
        for (_, it) in program.ops_at(stmt) {
            for (tensor, mode) in it.tensor_uses(program) {
                match mode {
                    AccessMode::Write | AccessMode::Bind | AccessMode::Transfer | AccessMode::NoAccess => {
                        _ = names.remove(&tensor)
                    }
                    AccessMode::Read => (),
                }
            }
        }
    }

    /// Emits the statements of the group once for every part, and empties the group.
    fn emit_group(&mut self) {
        let group = mem::take(&mut self.group);
        for member in &group {
            let span = self.program.stmt_span(member.stmt);
            for tensor in &member.cut {
                self.name_parts(*tensor, span);
            }
            if self.whole.contains(&member.out) && !member.in_place {
                let allocate = build::allocate(self.program, member.out);
                self.out.push(build::add(self.program, allocate, span));
            }
            self.name_parts(member.out, span);
        }
        // What reads the results of communications comes behind those of all parts, so that no part waits for the one before.
        let communicates = |it: &StmtOperands| !comm_candidates(self.program, it.stmt).is_empty();
        let exchanged = group.iter().rposition(communicates).map_or(0, |last| last + 1);
        let (before, behind) = group.split_at(exchanged);
        for members in [before, behind] {
            for part in 0..self.parts.len() {
                for member in members {
                    let copy = self.copy(member.stmt, part);
                    self.out.push(copy);
                }
            }
        }
    }

    /// Creates names for a tensor's parts. The parts of a tensor that exists as a whole are slices of it.
    fn name_parts(&mut self, tensor: TensorId, span: Span) {
        let Some(cut) = self.axis.tensors.get(&tensor).filter(|_| !self.names.contains_key(&tensor)) else {
            return;
        };
        let is_written = self.axis.stmts.values().any(|stmt| stmt.out == tensor);
        let mut names = Vec::new();
        for part in self.parts.clone() {
            let mut sharding = cut.sharding.without_streams();
            sharding.dims[cut.dim].extent = self.program.intern_int(part.stop - part.start);
            if is_written {
                let count = self.program.intern_int(part.count);
                sharding.dims[cut.dim].pieces =
                    vec![DimPiece { parallel: ParallelType::Stream, count, swizzled: false }];
            }
            let name = sharding.resharded_tensor(self.program, self.fresh, tensor, Memory::Local, None);
            if self.whole.contains(&tensor) {
                let slice = self.slice(tensor, name, cut.dim, part);
                self.out.push(build::add(self.program, slice, span));
            }
            names.push(name);
        }
        self.names.insert(tensor, names);
    }

    /// Returns `name = slice( tensor, {…} )`. The result is a view, since `name` has no storage of its own.
    fn slice(&mut self, tensor: TensorId, name: TensorId, dim: usize, part: Part) -> OpStmt {
        let extents: Vec<ExprId> =
            (0..).map_while(|dim| dim_map::extent(self.program, tensor, dim)).collect();
        let (zero, one) = (self.program.intern_int(0), self.program.intern_int(1));
        let (start, stop) = (self.program.intern_int(part.start), self.program.intern_int(part.stop));
        let range = |(at, extent): (usize, ExprId)| {
            if at == dim { [start, stop, one] } else { [zero, extent, one] }
        };
        let ranges = extents.into_iter().enumerate().map(range).collect();
        OpStmt {
            outs: vec![Operand::Tensor(name)],
            args: vec![Operand::Tensor(tensor)],
            attrs: vec![attr::RANGES.with(ranges)],
            ..build::op(Op::Slice)
        }
    }

    /// Returns the copy of a chunked statement for one part.
    fn copy(&mut self, stmt: StmtId, part: usize) -> StmtId {
        let (Stmt::Op(mut it), Some(cut)) = (self.program.stmts[stmt].clone(), self.axis.stmts.get(&stmt))
        else {
            return stmt;
        };
        let span = self.program.stmt_span(stmt);
        let Part { start, stop, .. } = self.parts[part];
        let name = |tensor: TensorId| {
            let names = self.names.get(&tensor);
            names.and_then(|names| names.get(part)).copied().unwrap_or(tensor)
        };
        it.outs = vec![Operand::Tensor(name(cut.out))];
        let mut operands = cut.operands.iter();
        let keyed = it.attrs.iter_mut().filter_map(|(_, attr)| match attr {
            Attr::Tensor(tensor) => Some(tensor),
            _ => None,
        });
        let listed = it.args.iter_mut().filter_map(|arg| match arg {
            Operand::Tensor(tensor) => Some(tensor),
            Operand::Scalar(_) | Operand::Stream(_) => None,
        });
        for tensor in listed.chain(keyed) {
            if let Some((_, Some(_))) = operands.next() {
                *tensor = name(*tensor);
            }
        }
        if let Some(out) = self.axis.tensors.get(&cut.out) {
            let range = [0, stop - start, 1].map(|value| self.program.intern_int(value));
            ChunkedStmt::resize(&mut it, out.dim, range);
        }
        build::add(self.program, it, span)
    }
}

/// Returns whether all parts of one statement have to run before the first part of the other.
fn is_ordered_across_parts(sharing: &AliasClasses, a: &StmtOperands, b: &StmtOperands) -> bool {
    let clash = |writer: &StmtOperands, other: &StmtOperands| {
        let meets =
            |it: TensorId| writer.in_place && sharing.alias_class(it) == sharing.alias_class(writer.out);
        // Parts under one name are disjoint. Under another name of the same storage, they may be other
        // ranges.
        let renames = |it: TensorId| it != writer.out && meets(it);
        other.whole.iter().any(|it| *it == writer.out || meets(*it))
            || other.cut.iter().any(|it| renames(*it))
            || renames(other.out)
    };
    clash(a, b) || clash(b, a)
}
