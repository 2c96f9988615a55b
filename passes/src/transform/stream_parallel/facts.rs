//! What a program says about which statements may share a loop, and how a loop is written.

use grammar::{AccessMode, BlockId, OpStmt, Program, Stmt, StmtId, TensorId, TypeRule};
use hir_ir::streams::block_sets_stream;
use rustc_hash::{FxHashMap, FxHashSet};

use super::options::LoopOptions;
use crate::{
    analysis::{
        alias_analysis::names_of_same_storage,
        bindings::{BindingAnalysis, analyze_bindings},
        name_uses::write_counts,
        written_views::written_views,
    },
    second_thread::both,
    transform::lower_to_communication::world_size,
};

/// Facts about a program that has no loops of the pass yet.
pub(crate) struct LoopFacts {
    pub(super) settings: LoopOptions,
    /// Which results have storage already.
    pub(super) bindings: BindingAnalysis,
    /// Whether the program sets streams.
    pub(super) sets_stream: bool,
    /// The number of statements that mention each tensor; each list of inputs or outputs counts as one more.
    pub(super) uses: FxHashMap<TensorId, usize>,
    /// The number of ranks that the program needs.
    pub(super) world: usize,
    /// The tensors that several statements write, under this name or another one.
    pub(super) rewritten: FxHashSet<TensorId>,
    /// The views of parts of other tensors, with their base tensors.
    pub(super) parts: FxHashMap<TensorId, TensorId>,
}

impl LoopFacts {
    /// Analyzes a program.
    pub(crate) fn of(program: &Program, settings: LoopOptions) -> Self {
        let counts = || (write_counts(program, &OpStmt::computes), use_counts(program), world_size(program));
        let ((writes, uses, world), bindings) = both(program, counts, || analyze_bindings(program));
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
        if let (true, Some(block)) = (settings.reads_loops, program.body) {
            // A loop or branch ends the group, so what only such statements write does not change while a group is made.
            let here = written_by_statements(program, block, &bindings);
            let here = names_of_same_storage(program, &bindings, here.into_iter());
            rewritten.retain(|it| here.contains(it));
        }
        Self {
            settings,
            bindings,
            sets_stream: program.body.is_some_and(|block| block_sets_stream(program, block)),
            uses,
            world,
            rewritten,
            parts,
        }
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
        for (tensor, mode) in it.tensor_uses(program) {
            match mode {
                AccessMode::Write | AccessMode::Transfer => _ = written.insert(tensor),
                AccessMode::Read | AccessMode::Bind | AccessMode::NoAccess => (),
            }
        }
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
    for (_, it) in program.ops() {
        it.mentions(program).collect::<FxHashSet<_>>().into_iter().for_each(&mut count);
    }
    uses
}
