//! use-local-shard-in-place: reads a rank's own shard in place, and computes it in place, instead of copying it.
//!
//! Before:
//! ```text
//! FOR i5 from 0 to 8:
//!   T6 = HirAliasSelect( T4, axis = iS10{8}, index = i84 )
//!   IF Manual ( i5 == 0 ):
//!     T5 = HirAliasSelect( T0, axis = ideviceIdx.x0{8}, index = 0 )
//!     T6 = Set( T5 )
//!   ELSE:
//!     P2PCommunication 37 (type=recv, buffer=T6, peer=i84, backend=NCCL)
//!     Wait(Communication 37)
//!   T7 = linear(T6, T1)
//! ```
//! After:
//! ```text
//! FOR i5 from 0 to 8:
//!   IF Manual ( i5 == 0 ):
//!     T6 = HirAliasSelect( T0, axis = ideviceIdx.x0{8}, index = 0 )
//!   ELSE:
//!     T6 = HirAliasSelect( T4, axis = iS10{8}, index = i84 )
//!     P2PCommunication 37 (type=recv, buffer=T6, peer=i84, backend=NCCL)
//!     Wait(Communication 37)
//!   T7 = linear(T6, T1)
//! ```
//!
//! The pass does this only if it is not observable: T4 is not an input or output, and the program uses it
//! only as the base of T6, so no other statement reads the slice that is no longer written. T6 is only read
//! after the branch, and not sent. T0 is never written.
//!
//! `results` does the same for a result that one side of a branch copies.

mod results;

use grammar::{
    AccessMode, BlockId, Diagnostic, If, Op, OpClass, OpStmt, Operand, Program, Stmt, StmtId, TensorId, attr,
};
use hir_ir::blocks::nested_blocks;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    analysis::memory_effects::MemoryEffects,
    pass::{Arguments, Change, Pass, Remarks},
};

/// The pass.
pub(crate) const PASS: Pass =
    Pass::new("use-local-shard-in-place", include_str!("use_local_shard_in_place.rs"), run)
        .about("read or compute a rank's own shard in place instead of copying it");

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let mut changed = false;
    let mut uses = UsesByStorage::of(program, body);
    for block in nested_blocks(program, body) {
        let mut at = 0;
        while at < program.blocks[block].len() {
            if let Some(found) = find_shard_copy(program, body, &mut uses, block, at) {
                rebind(program, &mut uses, block, &found);
                changed = true;
            } else if let Some(found) = results::find_result_copy(program, &mut uses, (body, block), at) {
                results::compute_in_place(program, &mut uses, block, &found);
                changed = true;
            } else {
                at += 1;
            }
        }
    }
    Ok(Change::from_flag(changed))
}

/// The statements that mention each storage, by alias class.
struct UsesByStorage {
    storage: MemoryEffects,
    stmts: FxHashMap<TensorId, Vec<StmtId>>,
    /// The alias classes whose statements this pass has changed since.
    stale: FxHashSet<TensorId>,
}

impl UsesByStorage {
    fn of(program: &Program, body: BlockId) -> Self {
        let storage = MemoryEffects::of(program);
        let mut stmts: FxHashMap<TensorId, Vec<StmtId>> = FxHashMap::default();
        for (stmt, it) in program.ops_in(body) {
            for (tensor, _) in it.tensor_uses(program) {
                let all = stmts.entry(storage.alias_class(tensor)).or_default();
                if all.last() != Some(&stmt) {
                    all.push(stmt);
                }
            }
        }
        Self { storage, stmts, stale: FxHashSet::default() }
    }

    /// Collects the statements again if the pass has changed one that mentions the storage of `name`.
    fn refresh(&mut self, program: &Program, body: BlockId, name: TensorId) {
        if self.stale.contains(&self.storage.alias_class(name)) {
            *self = Self::of(program, body);
        }
    }

    fn stmts_of_class(&self, class: TensorId) -> &[StmtId] {
        self.stmts.get(&class).map_or(&[], Vec::as_slice)
    }
}

/// A view that one side of a branch fills by copying a shard.
struct ShardCopy {
    /// The index of the view in the block.
    view: usize,
    /// The side that copies, and the other side.
    side: BlockId,
    other: BlockId,
    /// In `side`: the view of the shard, and the copy.
    shard: StmtId,
    copy: StmtId,
    /// The tensors that the copy writes and reads.
    name: TensorId,
    shard_name: TensorId,
}

/// Finds a copy that can be removed in the branch at index `at`.
fn find_shard_copy(
    program: &Program,
    body: BlockId,
    uses: &mut UsesByStorage,
    block: BlockId,
    at: usize,
) -> Option<ShardCopy> {
    let Stmt::If(it) = &program.stmts[program.blocks[block][at]] else { return None };
    let If { then_block: then, else_block: Some(other), .. } = it else { return None };
    [(*then, *other), (*other, *then)].into_iter().find_map(|(side, other)| {
        let (shard, copy) = shard_and_copy(program, side)?;
        let (name, shard_name) =
            (program.stmts[copy].op()?.out_tensor()?, program.stmts[shard].op()?.out_tensor()?);
        let view = program.block(block)[..at].iter().rposition(|stmt| {
            program.stmts[*stmt].op().is_some_and(|it| is_view(it) && it.out_tensor() == Some(name))
        })?;
        let found = ShardCopy { view, side, other, shard, copy, name, shard_name };
        is_safe(program, body, uses, block, at, &found).then_some(found)
    })
}

fn is_deallocate(program: &Program, stmt: StmtId) -> bool {
    program.stmts[stmt].op().is_some_and(|it| it.op.def().class == OpClass::Deallocate)
}

fn is_view(it: &OpStmt) -> bool {
    it.op.def().class == OpClass::View
}

/// Returns the first two statements of a side that makes a view of a shard and copies it, and otherwise only
/// deallocates names.
fn shard_and_copy(program: &Program, side: BlockId) -> Option<(StmtId, StmtId)> {
    let stmts = program.block(side);
    let (shard, copy) = (*stmts.first()?, *stmts.get(1)?);
    let (from, to) = (program.stmts[shard].op()?, program.stmts[copy].op()?);
    let same = is_view(from) && to.op == Op::Set && Program::tensors_of(&to.args).eq(from.out_tensor());
    (same && stmts[2..].iter().all(|stmt| is_deallocate(program, *stmt))).then_some((shard, copy))
}

fn is_safe(
    program: &Program,
    body: BlockId,
    uses: &mut UsesByStorage,
    block: BlockId,
    at: usize,
    found: &ShardCopy,
) -> bool {
    let view = program.block(block)[found.view];
    let Some(whole) = program.stmts[view].op().and_then(|it| Program::tensors_of(&it.args).next()) else {
        return false;
    };
    let (name, shard) = (&program.tensors[found.name], &program.tensors[found.shard_name]);
    if (name.dtype, &name.mesh) != (shard.dtype, &shard.mesh) {
        return false;
    }
    let ports = || Program::tensors_of(&program.inputs).chain(Program::tensors_of(&program.outputs));
    // The statements that may access the slices.
    let stmts = program.block(block);
    let own: FxHashSet<StmtId> = FxHashSet::from_iter([view, found.copy]);
    let inside = |stmts: &[StmtId]| -> FxHashSet<StmtId> {
        stmts.iter().flat_map(|it| program.stmts_at(*it)).collect()
    };
    let (between, behind) = (inside(&stmts[found.view + 1..at]), inside(&stmts[at + 1..]));
    let other = inside(program.block(found.other));
    let names = [found.shard_name, whole];
    names.iter().for_each(|name| uses.refresh(program, body, *name));
    let storage = &uses.storage;
    let [shards, slices] = names.map(|name| storage.alias_class(name));
    // The caller reads the outputs, whichever view of the slices they are.
    if shards == slices || ports().any(|port| storage.alias_class(port) == slices) {
        return false;
    }
    let mut safe = true;
    for stmt in uses.stmts_of_class(shards).iter().chain(uses.stmts_of_class(slices)).copied() {
        let Some(it) = program.stmts[stmt].op() else { continue };
        let effect = it.op.def().class;
        for (tensor, mode) in it.tensor_uses(program) {
            let class = storage.alias_class(tensor);
            if class == shards && matches!(mode, AccessMode::Write | AccessMode::Transfer) {
                safe = false;
            }
            if class != slices || own.contains(&stmt) || other.contains(&stmt) && tensor == found.name {
                continue;
            }
            let dropped = effect == OpClass::Deallocate;
            let allocated = effect == OpClass::Allocate && tensor == whole && it.get(attr::ALIAS).is_none();
            // Sharing the handles of the slices does not read them. Another loop does it with views of its own; after the
            // view in this block, the name is that of the view.
            let shared = effect == OpClass::ShareHandles
                && !(tensor == found.name && (between.contains(&stmt) || behind.contains(&stmt)));
            let viewed = effect == OpClass::View && it.out_tensor() != Some(found.name);
            let read = tensor == found.name
                && behind.contains(&stmt)
                && (dropped
                    || mode == AccessMode::Read && matches!(effect, OpClass::Compute | OpClass::Elementwise));
            safe &= allocated || viewed || read || shared || dropped && tensor != found.name;
        }
    }
    safe
}

/// Makes the tensor a view of the shard on one side, and moves its old view to the other side.
fn rebind(program: &mut Program, uses: &mut UsesByStorage, block: BlockId, found: &ShardCopy) {
    let view = program.blocks[block].remove(found.view);
    program.blocks[found.other].insert(0, view);
    let of_class = uses.stmts_of_class(uses.storage.alias_class(found.shard_name)).iter();
    let ops = of_class.filter_map(|it| program.op(*it)).filter(|it| it.op.def().class != OpClass::Deallocate);
    let mentioned = ops.flat_map(|it| it.mentions(program)).filter(|it| *it == found.shard_name).count();
    for name in [found.name, found.shard_name] {
        uses.stale.insert(uses.storage.alias_class(name));
    }
    let span = program.stmt_span(found.copy);
    let Some(shard) = program.stmts[found.shard].op().cloned() else { return };
    let new = OpStmt { outs: vec![Operand::Tensor(found.name)], ..shard };
    let new = program.add_stmt(Stmt::Op(new), span);
    let side: Vec<StmtId> = program.blocks[found.side].clone();
    let mut stmts = Vec::new();
    // If only the copy reads the view of the shard, the view is not needed any more.
    let unused = mentioned == 2;
    for stmt in side {
        let drops = unused
            && program.stmts[stmt].op().is_some_and(|it| {
                it.op.def().class == OpClass::Deallocate
                    && Program::tensors_of(&it.args).any(|tensor| tensor == found.shard_name)
            });
        if stmt == found.copy {
            stmts.push(new);
        } else if !(drops || unused && stmt == found.shard) {
            stmts.push(stmt);
        }
    }
    program.blocks[found.side] = stmts;
}
