//! Emits the copies that reshard a tensor step by step, each at most once.

use std::rc::Rc;

use grammar::{AccessMode, BlockId, Code, Diagnostic, Op, OpStmt, Operand, Program, StmtId, TensorId};
use hir_ir::{build, streams::block_sets_stream};
use rustc_hash::{FxHashMap, FxHashSet};

use super::Decomposer;
use crate::analysis::{
    alias_analysis::{AliasClasses, OpaqueCallModel},
    bindings::analyze_bindings,
    reshard::{self, ReshardStep},
    sharding::Sharding,
    stale_views::stale_views,
};

impl Decomposer<'_> {
    /// Emits copies that reshard `arg` step by step, into `out` or a new tensor. Returns `arg` if there is
    /// nothing to do.
    pub(super) fn reshard(
        &mut self,
        arg: TensorId,
        from: &Sharding,
        to: &Sharding,
        out: Option<TensorId>,
    ) -> Result<TensorId, Diagnostic> {
        if out.is_none() && reshard::step(self.program, from, to) == Some(ReshardStep::Local) {
            return Ok(arg);
        }
        if to.mesh.is_empty() && !from.mesh.is_empty() {
            let name = self.program.tensor_name(arg);
            let message = format!(
                "`{name}` is on the ranks of its mesh only, but the statement needs it on every rank"
            );
            let mut it = Diagnostic::new(Code::NotRewritten, self.span, message, "needed here");
            // A result that may be a view of storage that is written again gets no mesh from its operands.
            let views = self.program.body.map(|body| stale_views(self.program, body)).unwrap_or_default();
            if let Some((view, write)) = out.and_then(|it| Some((it, *views.get(&it)?))) {
                let name = self.program.tensor_name(view);
                let label = format!(
                    "`{name}` may be a view of what is written here, so it gets no mesh from `propagate-shardings`"
                );
                it = it.label(self.program.stmt_span(write), label);
            }
            return Err(it.help("give the result a DeviceMesh"));
        }
        let step = reshard::step(self.program, from, to);
        if let (true, Some(it)) = (step != Some(ReshardStep::Slice), self.generators.get(&arg)) {
            return Ok(self.rematerialize(it.clone(), arg, to, out));
        }
        let path = match step {
            Some(_) => vec![to.clone()],
            None => reshard::intermediate_shardings(self.program, from, to),
        };
        let mut now = arg;
        let count = path.len();
        for (at, sharding) in path.into_iter().enumerate() {
            let known = self.known_copy(arg, &sharding);
            let target = match (out, known) {
                (Some(out), _) if at + 1 == count => out,
                (_, Some(known)) => {
                    now = known;
                    continue;
                }
                (_, None) => self.new_tensor(&sharding, arg),
            };
            self.emit(copy_stmt(known.unwrap_or(now), target));
            self.record_copy(arg, &sharding, target);
            now = target;
        }
        Ok(now)
    }

    /// Emits a copy of the statement that makes `arg` from scalars, with the sharding `to`, so that nothing
    /// is sent.
    pub(super) fn rematerialize(
        &mut self,
        it: OpStmt,
        arg: TensorId,
        to: &Sharding,
        out: Option<TensorId>,
    ) -> TensorId {
        if let (None, Some(known)) = (out, self.known_copy(arg, to)) {
            return known;
        }
        let target = out.unwrap_or_else(|| self.new_tensor(to, arg));
        self.emit(OpStmt { outs: vec![Operand::Tensor(target)], ..it });
        self.record_copy(arg, to, target);
        target
    }

    /// Returns the earlier copy of `arg` with this sharding.
    pub(super) fn known_copy(&self, arg: TensorId, sharding: &Sharding) -> Option<TensorId> {
        self.copies.as_ref()?.find(arg, sharding)
    }

    pub(super) fn record_copy(&mut self, arg: TensorId, sharding: &Sharding, tensor: TensorId) {
        if let Some(copies) = &mut self.copies {
            copies.record(arg, sharding, tensor);
        }
    }
}

/// The resharded copies of each tensor so far: tensors with the same elements and another sharding.
pub(super) struct ReshardedCopies {
    found: FxHashMap<TensorId, Vec<Copy>>,
    /// Tensors whose storage is written again, with its class. A copy has old elements behind such a write, so these copies are
    /// used up to the next write only, and not in loops.
    rewritten: FxHashMap<TensorId, TensorId>,
    /// The body of the program.
    body: BlockId,
    /// The classes that the current statement writes.
    written: FxHashSet<TensorId>,
    /// The blocks around each statement, outermost first.
    blocks: FxHashMap<StmtId, Rc<[BlockId]>>,
    /// The blocks around the current statement.
    current: Rc<[BlockId]>,
}

struct Copy {
    sharding: Sharding,
    tensor: TensorId,
    /// The block of the statement that makes the copy. It may not run where statements outside the block do.
    block: BlockId,
}

impl ReshardedCopies {
    pub(super) fn of(program: &Program, body: BlockId, rewritten: FxHashMap<TensorId, TensorId>) -> Self {
        let mut blocks = FxHashMap::default();
        add_blocks(program, &[body], block_sets_stream(program, body), &mut blocks);
        Self {
            found: FxHashMap::default(),
            rewritten,
            body,
            written: FxHashSet::default(),
            blocks,
            current: Rc::from([body]),
        }
    }

    /// Makes `stmt` the current statement, and forgets copies of what it writes.
    pub(super) fn enter(&mut self, program: &Program, stmt: StmtId) {
        self.current = self.blocks.get(&stmt).map_or_else(|| Rc::from([]), Rc::clone);
        self.written.clear();
        let uses = program.op(stmt).into_iter().flat_map(|it| it.tensor_uses(program));
        for (tensor, _) in uses.filter(|it| it.1 != AccessMode::Read) {
            self.written.extend(self.rewritten.get(&tensor));
        }
        if !self.written.is_empty() {
            let is_written =
                |it: &TensorId| self.rewritten.get(it).is_some_and(|it| self.written.contains(it));
            self.found.retain(|arg, _| !is_written(arg));
            self.found.values_mut().for_each(|copies| copies.retain(|it| !is_written(&it.tensor)));
        }
    }

    /// Returns whether a statement writes the storage of a tensor again.
    pub(super) fn is_rewritten(&self, tensor: TensorId) -> bool {
        self.rewritten.contains_key(&tensor)
    }

    /// Returns whether a copy of one tensor in the other has the same elements up to the next write that `enter` sees.
    fn may_copy(&self, arg: TensorId, tensor: TensorId) -> bool {
        let classes = || [arg, tensor].into_iter().filter_map(|it| self.rewritten.get(&it));
        classes().next().is_none()
            || *self.current == [self.body] && classes().all(|class| !self.written.contains(class))
    }

    fn find(&self, arg: TensorId, sharding: &Sharding) -> Option<TensorId> {
        let mut copies = self.found.get(&arg)?.iter();
        let is_here = |it: &&Copy| self.current.contains(&it.block) && self.may_copy(arg, it.tensor);
        let copy = copies.find(|it| it.sharding == *sharding && is_here(it))?;
        Some(copy.tensor)
    }

    fn record(&mut self, arg: TensorId, sharding: &Sharding, tensor: TensorId) {
        let Some(block) = self.current.last().copied() else { return };
        if self.may_copy(arg, tensor) {
            let copy = Copy { sharding: sharding.clone(), tensor, block };
            self.found.entry(arg).or_default().push(copy);
        }
    }
}

/// Returns the tensors whose storage is written again, each with the class of its storage.
pub(super) fn rewritten_storage(
    program: &Program,
    body: BlockId,
    write_counts: &FxHashMap<TensorId, usize>,
) -> FxHashMap<TensorId, TensorId> {
    let sharing = AliasClasses::of(program, body, &analyze_bindings(program), OpaqueCallModel::MayAlias);
    let inputs: FxHashSet<TensorId> = Program::tensors_of(&program.inputs).collect();
    let written = write_counts.iter().filter(|(tensor, count)| **count > 1 || inputs.contains(tensor));
    let classes: FxHashSet<TensorId> = written.map(|(tensor, _)| sharing.alias_class(*tensor)).collect();
    let of_class = program.tensors.ids().map(|it| (it, sharing.alias_class(it)));
    of_class.filter(|(_, class)| classes.contains(class)).collect()
}

/// Adds the statements of the last block of a path, and of the blocks in it, unless streams are set: a stream of a loop may not
/// wait for the stream of a copy.
fn add_blocks(
    program: &Program,
    path: &[BlockId],
    sets_streams: bool,
    found: &mut FxHashMap<StmtId, Rc<[BlockId]>>,
) {
    let Some(block) = path.last() else { return };
    let shared: Rc<[BlockId]> = Rc::from(path);
    for stmt in program.block(*block) {
        found.insert(*stmt, Rc::clone(&shared));
        for inner in program.inner_blocks(*stmt).filter(|_| !sets_streams) {
            add_blocks(program, &[path, &[inner]].concat(), sets_streams, found);
        }
    }
}

pub(super) fn copy_stmt(from: TensorId, to: TensorId) -> OpStmt {
    OpStmt { outs: vec![Operand::Tensor(to)], args: vec![Operand::Tensor(from)], ..build::op(Op::Set) }
}
