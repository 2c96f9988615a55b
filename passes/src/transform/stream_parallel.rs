//! stream-parallel: makes loops over stream axes, whose iterations work on slices.
//!
//! Before:
//! ```text
//! T4[istreamIdx10{8}, iS11{16}] = Set( T0[ideviceIdx.x0{8}, iS1{16}] )
//! T3[istreamIdx6{8}, iS7{16}, iS8{128}] = linear(T4[istreamIdx10{8}, iS11{16}], T1, T2)
//! ```
//! After (`allgather=broadcast`, `style=select`):
//! ```text
//! T4 = ALLOCATE(mem_type=global, zero_init=false)
//! T3 = ALLOCATE(mem_type=global, zero_init=false)
//! FOR streamIdx in istreamIdx10{8}:
//!   T5 = HirAliasSelect( T4, axis = istreamIdx10{8}, index = streamIdx )
//!   Communication 1 (type=Broadcast, team=(0 1 2 3 4 5 6 7), root=streamIdx, input=T0, output=T5, backend=NCCL)
//!   Wait(Communication 1)
//!   T6 = HirAliasSelect( T3, axis = istreamIdx6{8}, index = streamIdx )
//!   T6 = linear(T5, T1, T2)
//! ```
//!
//! Consecutive statements whose results have the same stream axis share a loop, as long as each of them reads
//! only the iteration's slice of what the others compute. If a statement cannot join the loop, the local statements at
//! its end that compute the operands of this statement, and nothing from the rest of the loop, move to the loop of the
//! statement. A statement that reads results of the loop as a whole stands behind it, and later products of slices of the loop
//! still join it, such as the second projection of a gathered tensor.
//! `group` contains the statements of a loop, `slicing` determines what can be sliced, `body`
//! emits an iteration, and `loop_comms` its communications. A resharding statement that does not change the
//! stream axis is sliced like any operator and is left to lower-to-communication. A statement stays outside
//! of the loops if it cannot be sliced, if its result has storage on some paths only, if it makes a view in a program that
//! sets streams, or if it accesses storage with several names that a later statement writes.
//!
//! `style=select` loops over a stream axis that is a whole dimension and selects an index
//! (`FOR streamIdx in …`, HirAliasSelect). `style=shard` takes chunks (`FOR i5 from 0 to n`, ShardByStream),
//! and allocates tensors that only one iteration needs in the iteration. With `allocate=before`, it allocates them
//! before the loop, for all iterations. That takes more memory, but the storage of an iteration is not used again,
//! so that no later iteration has to wait until its communications have ended.

mod all_to_all;
mod body;
mod group;
mod loop_comms;
mod options;
mod slicing;

use grammar::{
    diagnostic::Diagnostic,
    ir::{BlockId, OpStmt, Program, Stmt, StmtId, TensorId},
    ops::{AccessMode, TypeRule},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    analysis::{
        alias_analysis::{OpaqueCallModel, may_alias_operands, names_of_same_storage},
        bindings::{BindingAnalysis, analyze_bindings},
        blocks,
        name_uses::write_counts,
        written_views::written_views,
    },
    pass::{Arguments, Change, Pass, Remarks, module_docs},
    rewrite::builder::IrBuilder,
    transform::lower_to_communication::world_size,
};
use group::{LoopStmt, StmtGroup};
use options::{ALLGATHER, REDUCE_SCATTER};
pub(crate) use options::{ALLOCATE, BACKEND, LoopOptions, OFFSET_BY_RANK, OWN_SLICE, PROTOCOL, STYLE, WAIT};
use slicing::{SliceKind, Slicing};

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "stream-parallel",
    description: "make loops over stream axes, whose iterations compute and communicate slices",
    docs: module_docs(include_str!("stream_parallel.rs")),
    options: &[
        ALLGATHER,
        REDUCE_SCATTER,
        BACKEND,
        PROTOCOL,
        OFFSET_BY_RANK,
        OWN_SLICE,
        WAIT,
        STYLE,
        ALLOCATE,
    ],
    for_one_rank: false,
    run,
};

fn run(program: &mut Program, arguments: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let written = make_loops(program, LoopOptions::of(arguments)?, None);
    Ok(Change::from_flag(!written.is_empty()))
}

/// A loop that the pass has emitted.
pub(crate) struct NewLoop {
    /// The loop.
    pub(crate) stmt: StmtId,
    /// The original statements that the loop computes chunk by chunk.
    pub(crate) members: Vec<StmtId>,
}

/// Returns whether an iteration of a loop can compute a slice of what a statement computes.
pub(crate) fn can_slice(program: &Program, settings: LoopOptions, stmt: StmtId) -> bool {
    matches!(&program.stmts[stmt], Stmt::Op(it) if slicing::slicing(program, settings, it).is_some())
}

/// Makes loops of the top-level statements, or of those in `only`.
pub(crate) fn make_loops(
    program: &mut Program,
    settings: LoopOptions,
    only: Option<&FxHashSet<StmtId>>,
) -> Vec<NewLoop> {
    let Some(block) = program.body else { return Vec::new() };
    let bindings = analyze_bindings(program);
    let writes = write_counts(program, &OpStmt::computes);
    let mut parts = part_views(program, &bindings.maybe_bound);
    // A statement that makes a view of a part counts as a write, but writes no elements. If no other statement writes
    // the part (count 2) or a view of it (count 1), the part is not a result of a loop.
    let written: FxHashSet<TensorId> = written_views(program, &bindings).into_values().collect();
    parts.retain(|part, _| match writes.get(part) {
        Some(1) => written.contains(part),
        count => count == Some(&2),
    });
    let several = writes.into_iter().filter(|(tensor, count)| *count > 1 && !parts.contains_key(tensor));
    let mut rewritten: FxHashSet<TensorId> = several.map(|it| it.0).collect();
    // Accesses to storage that is written under several names stay in order, unless the names are parts of a tensor.
    let others = written.into_iter().filter(|view| !parts.contains_key(view));
    rewritten.extend(names_of_same_storage(program, &bindings, others));
    if settings.reads_loops {
        // A loop or branch ends the group, so what only such statements write does not change while a group is made.
        let here = written_by_statements(program, block, &bindings);
        let here = names_of_same_storage(program, &bindings, here.into_iter());
        rewritten.retain(|it| here.contains(it));
    }
    let mut pass = StreamParallel {
        settings,
        fresh: IrBuilder::of(program),
        bindings,
        sets_stream: blocks::sets_stream(program, block),
        uses: use_counts(program),
        world: world_size(program),
        rewritten,
        parts,
        program,
        out: Vec::new(),
        group: None,
        behind: Vec::new(),
        written: Vec::new(),
    };
    for stmt in pass.program.blocks[block].clone() {
        pass.statement(stmt, only.is_none_or(|only| only.contains(&stmt)));
    }
    pass.emit_group();
    let StreamParallel { out, written, .. } = pass;
    program.blocks[block] = out;
    written
}

struct StreamParallel<'p> {
    program: &'p mut Program,
    settings: LoopOptions,
    fresh: IrBuilder,
    /// Which results have storage already.
    bindings: BindingAnalysis,
    /// Whether the program sets streams.
    sets_stream: bool,
    /// The number of statements that mention each tensor; each list of inputs or outputs counts as one more.
    uses: FxHashMap<TensorId, usize>,
    /// The number of ranks that the program needs.
    world: usize,
    /// The tensors that several statements write, under this name or another one.
    rewritten: FxHashSet<TensorId>,
    /// The views of parts of other tensors, with their base tensors.
    parts: FxHashMap<TensorId, TensorId>,
    /// The new body.
    out: Vec<StmtId>,
    /// The statements that will share the next loop.
    group: Option<StmtGroup>,
    /// Statements that read results of the group as a whole, and stand behind its loop. Later statements may still join the loop.
    behind: Vec<StmtId>,
    /// The loops emitted so far.
    written: Vec<NewLoop>,
}

impl StreamParallel<'_> {
    /// Adds a top-level statement to the current group or a new one if a loop can contain it, and to the body
    /// otherwise.
    fn statement(&mut self, stmt: StmtId, may_loop: bool) {
        let slicing = match &self.program.stmts[stmt] {
            // Whether the loop has to allocate the result must be certain.
            Stmt::Op(it)
                if may_loop
                    && !self.is_part_view(it)
                    && self.bindings.already_bound.contains(&stmt)
                        == self.bindings.maybe_bound.contains(&stmt)
                    && !self.is_view_on_streams(stmt, it) =>
            {
                slicing::slicing(self.program, self.settings, it)
            }
            Stmt::Op(_) | Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => None,
        };
        let values = |it: &Slicing| it.operands.iter().all(|operand| self.is_written_once(operand.tensor));
        // Of two parts of one tensor, an iteration could overwrite what a later one reads.
        let overlaps = |it: &Slicing| it.operands.iter().any(|operand| self.meets(operand.tensor, it.out));
        let slicing = slicing.filter(|it| self.is_written_once(it.out) && values(it) && !overlaps(it));
        let Some(slicing) = slicing else {
            // A statement that is independent of the loop goes before it, and one that reads its results behind it. Neither
            // ends the group.
            if self.behind.is_empty() && self.is_independent(stmt) {
                self.out.push(stmt);
            } else if self.group.is_some() && self.may_move(stmt) {
                self.behind.push(stmt);
            } else {
                self.emit_group();
                self.out.push(stmt);
            }
            return;
        };
        let can_add = |group: &StmtGroup| {
            self.is_disjoint(group, &slicing)
                && group.can_add(self.program, self.settings, &slicing)
                && (self.behind.is_empty() || self.is_product_of(group, stmt, &slicing))
        };
        if !self.group.as_ref().is_some_and(can_add) {
            let producers = self.take_producers(&slicing);
            self.emit_group();
            // If no loop computes the partial sums, they are reduced as a whole, outside of a loop. So are the elements of an
            // all-to-all.
            if producers.members.is_empty() && slicing.out_dim.is_none() {
                self.out.push(stmt);
                return;
            }
            self.group = Some(producers);
        }
        if let Some(group) = &mut self.group {
            group.extend([LoopStmt { stmt, slicing }]);
        }
    }

    /// Splits the statements that compute the operands of `slicing` off the end of the group, so that they share a loop
    /// with it. It is called if `slicing` cannot join the group: without the split, the loop of `slicing` would wait for
    /// the whole loop before it. Nothing is split off if one of these statements reads a result of the rest of the
    /// group, or if `slicing` cannot join them either. The result is then empty.
    fn take_producers(&mut self, slicing: &Slicing) -> StmtGroup {
        // What stands behind the loop may read the results of these statements.
        if let Some(mut group) = self.group.take_if(|_| self.behind.is_empty()) {
            let producers = group.split_off_producers(slicing);
            let reads_from_group =
                |it: &LoopStmt| it.slicing.operands.iter().any(|it| group.produced.contains_key(&it.tensor));
            let shares = !group.members.is_empty()
                && !producers.members.iter().any(reads_from_group)
                && self.is_disjoint(&producers, slicing)
                && producers.can_add(self.program, self.settings, slicing);
            if shares {
                self.group = Some(group);
                return producers;
            }
            group.extend(producers.members);
            self.group = Some(group);
        }
        StmtGroup::new(slicing.count, slicing.style)
    }

    /// Returns whether a statement makes a view of a part of a tensor that another statement writes, and so
    /// moves no elements. The part may be the whole tensor.
    fn is_part_view(&self, it: &OpStmt) -> bool {
        let out = it.out_tensor();
        it.op.def().type_rule == TypeRule::Slice && out.is_some_and(|out| self.parts.contains_key(&out))
    }

    /// Returns whether a statement makes a view in a program that sets streams. A view does not wait for the stream that writes
    /// its elements, but a copy in a loop would have to.
    fn is_view_on_streams(&self, stmt: StmtId, it: &OpStmt) -> bool {
        self.sets_stream
            && may_alias_operands(it, self.bindings.already_bound.contains(&stmt), OpaqueCallModel::MayAlias)
    }

    /// Returns whether at most one statement writes the tensor. A tensor that is written again may alias
    /// another name, as a copy without storage does.
    fn is_written_once(&self, tensor: TensorId) -> bool {
        !self.rewritten.contains(&tensor)
    }

    /// Returns whether neither the statement nor the loop of the group writes a tensor that the other
    /// accesses under another name, as another part of the same base tensor.
    fn is_disjoint(&self, group: &StmtGroup, slicing: &Slicing) -> bool {
        let reads =
            |it: &Slicing, tensor| it.operands.iter().any(|operand| self.meets(operand.tensor, tensor));
        !group.members.iter().any(|member| {
            let it = &member.slicing;
            self.meets(it.out, slicing.out) || reads(it, slicing.out) || reads(slicing, it.out)
        })
    }

    /// Returns whether two names denote parts of one tensor.
    fn meets(&self, a: TensorId, b: TensorId) -> bool {
        a != b && self.base_tensor(a) == self.base_tensor(b)
    }

    /// Returns the base tensor of a part, or the tensor itself.
    fn base_tensor(&self, tensor: TensorId) -> TensorId {
        self.parts.get(&tensor).copied().unwrap_or(tensor)
    }

    /// Returns whether a statement can run before the loop of the group: it computes into storage of its own,
    /// from tensors that the loop does not write.
    fn is_independent(&self, stmt: StmtId) -> bool {
        let (Some(group), Stmt::Op(it)) = (&self.group, &self.program.stmts[stmt]) else { return false };
        let touched = |tensor: TensorId| {
            let members = group.members.iter().map(|member| &member.slicing);
            let is = |other: TensorId| self.base_tensor(other) == self.base_tensor(tensor);
            let reads = |it: &Slicing| it.operands.iter().any(|operand| is(operand.tensor));
            members.clone().any(|it| is(it.out))
                || Program::tensors_of(&it.outs).any(is) && members.clone().any(reads)
        };
        let mut free = self.may_move(stmt);
        grammar::for_each_tensor_use(self.program, it, &mut |tensor, _| free &= !touched(tensor));
        free
    }

    /// Returns whether a statement computes into storage of its own, from elements that no other statement changes, so that
    /// it can run anywhere between its operands and the readers of its results.
    fn may_move(&self, stmt: StmtId) -> bool {
        let Stmt::Op(it) = &self.program.stmts[stmt] else { return false };
        let mut free = it.computes() && !self.bindings.maybe_bound.contains(&stmt);
        grammar::for_each_tensor_use(self.program, it, &mut |tensor, _| free &= self.is_written_once(tensor));
        free
    }

    /// Returns whether a statement is a product of a result of the group, and of nothing that stands behind its loop.
    fn is_product_of(&self, group: &StmtGroup, stmt: StmtId, slicing: &Slicing) -> bool {
        matches!(&self.program.stmts[stmt], Stmt::Op(it) if it.rule().is_matrix_product())
            && slicing.kind == SliceKind::Local
            && slicing.operands.iter().any(|it| group.produced.contains_key(&it.tensor))
            && !self.meets_behind(stmt)
    }

    /// Returns whether a statement mentions a result of those behind the loop.
    fn meets_behind(&self, stmt: StmtId) -> bool {
        let Stmt::Op(it) = &self.program.stmts[stmt] else { return true };
        let results: FxHashSet<TensorId> = self
            .behind
            .iter()
            .filter_map(|stmt| self.program.stmts[*stmt].op())
            .flat_map(|it| Program::tensors_of(&it.outs))
            .map(|it| self.base_tensor(it))
            .collect();
        let mut meets = false;
        grammar::for_each_tensor_use(self.program, it, &mut |tensor, _| {
            meets |= results.contains(&self.base_tensor(tensor));
        });
        meets
    }

    /// Emits the loop of the group, if there is one.
    fn emit_group(&mut self) {
        if let Some(group) = self.group.take() {
            let stmt = body::LoopWriter::new(self, &group).write();
            let members = group.members.iter().map(|it| it.stmt).collect();
            self.written.push(NewLoop { stmt, members });
        }
        self.out.append(&mut self.behind);
    }
}

/// Returns the tensors with storage that top-level statements write, without those that only loops and branches write.
fn written_by_statements(
    program: &Program,
    block: BlockId,
    bindings: &BindingAnalysis,
) -> FxHashSet<TensorId> {
    let mut written = FxHashSet::default();
    for stmt in program.block(block) {
        let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
        // A result without storage gets storage of its own, or is a view and writes no elements.
        if it.computes() && !bindings.maybe_bound.contains(stmt) {
            continue;
        }
        grammar::for_each_tensor_use(program, it, &mut |tensor, mode| match mode {
            AccessMode::Write | AccessMode::Transfer => _ = written.insert(tensor),
            AccessMode::Read | AccessMode::Bind | AccessMode::NoAccess => (),
        });
    }
    written
}

/// Returns the names that a `slice` without storage makes views of parts of tensors, with their base tensors.
/// The base of a part of a part is the whole tensor.
fn part_views(program: &Program, maybe_bound: &FxHashSet<StmtId>) -> FxHashMap<TensorId, TensorId> {
    let mut parts: FxHashMap<TensorId, TensorId> = FxHashMap::default();
    let mut twice: FxHashSet<TensorId> = FxHashSet::default();
    for stmt in program.body() {
        let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
        if it.op.def().type_rule != TypeRule::Slice || maybe_bound.contains(stmt) {
            continue;
        }
        if let (Some(out), Some(arg)) = (it.out_tensor(), Program::tensors_of(&it.args).next()) {
            let whole = parts.get(&arg).copied().unwrap_or(arg);
            if parts.insert(out, whole).is_some() {
                twice.insert(out);
            }
        }
    }
    parts.retain(|part, _| !twice.contains(part));
    parts
}

/// Returns the number of statements that mention each tensor. Occurrences in the lists of inputs and outputs
/// count too.
fn use_counts(program: &Program) -> FxHashMap<TensorId, usize> {
    let mut uses: FxHashMap<TensorId, usize> = FxHashMap::default();
    let mut count = |tensor| *uses.entry(tensor).or_default() += 1;
    Program::tensors_of(&program.inputs).for_each(&mut count);
    Program::tensors_of(&program.outputs).for_each(&mut count);
    if let Some(body) = program.body {
        program.walk(body, &mut |stmt| {
            if let Stmt::Op(it) = &program.stmts[stmt] {
                let mut seen = Vec::new();
                grammar::for_each_tensor_use(program, it, &mut |tensor, _| {
                    if !seen.contains(&tensor) {
                        seen.push(tensor);
                        count(tensor);
                    }
                });
            }
        });
    }
    uses
}
