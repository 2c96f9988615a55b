//! hoist-share-mem-handles: exchanges the memory handles of a loop's buffers before the loop.
//!
//! Before:
//! ```text
//! FOR i5 from 0 to 8:
//!   T6 = HirAliasSelect( T4, axis = iS10{8}, index = i84 )
//!   IF Manual ( i84 == rank ):
//!     T6 = Set( T5 )
//!   ELSE:
//!     ShareMemHandles(P2PCommunication 37 (type=recv, buffer=T6, peer=i84, backend=CUDA))
//!     P2PCommunication 37 (type=recv, buffer=T6, peer=i84, backend=CUDA)
//!     Wait(Communication 37)
//! ```
//! After:
//! ```text
//! FOR i5 from 0 to 8:
//!   T9 = HirAliasSelect( T4, axis = iS10{8}, index = i84 )
//!   IF Manual ( i84 == rank ):
//!   ELSE:
//!     ShareMemHandles(P2PCommunication 37 (type=recv, buffer=T9, peer=i84, backend=CUDA))
//! FOR i5 from 0 to 8:
//!   T6 = HirAliasSelect( T4, axis = iS10{8}, index = i84 )
//!   IF Manual ( i84 == rank ):
//!     T6 = Set( T5 )
//!   ELSE:
//!     P2PCommunication 37 (type=recv, buffer=T6, peer=i84, backend=CUDA)
//!     Wait(Communication 37)
//! ```
//!
//! ShareMemHandles blocks the host until the peers, and then all ranks, have reached it, so that inside a
//! loop the host cannot run ahead. A handle is identified by number, peer and memory location, not by name. A
//! loop over the same views under new names therefore exchanges the handles that the transfers need. Every
//! rank reaches the same exchanges in the same order and under the same predicates as before; only the other
//! work between them is gone.
//!
//! The pass rejects a loop that allocates, deallocates or first writes its transfers' buffers inside: such a
//! buffer has another handle in every iteration.

use grammar::{
    AccessMode, BlockId, Code, Diagnostic, For, If, OpClass, OpStmt, Program, Stmt, StmtId, SymbolId,
    TensorId,
};
use hir_ir::{
    build::IrBuilder,
    edit::{StmtEdit, rewrite},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    analysis::{
        bindings,
        memory_effects::{symbols_of, upward_exposed_names},
    },
    pass::{Arguments, Change, Pass, Remarks},
    rewrite::{empty_blocks::remove_empty_blocks_in, substitute::Substitution},
};

/// The pass.
pub(crate) const PASS: Pass =
    Pass::new("hoist-share-mem-handles", include_str!("hoist_share_mem_handles.rs"), run)
        .about("exchange the memory handles of a loop's buffers before the loop");

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let mut split = Vec::new();
    let (mut fresh, lets) = (IrBuilder::of(program), symbol_assignments(program));
    let found = loops_sharing_handles(program, body)?;
    let mut pending = vec![body];
    while let Some(block) = pending.pop() {
        let mut at = 0;
        while at < program.blocks[block].len() {
            let stmt = program.blocks[block][at];
            match program.stmts[stmt].clone() {
                Stmt::Op(_) | Stmt::Let(..) => (),
                Stmt::If(_) => pending.extend(program.inner_blocks(stmt)),
                Stmt::For(for_loop) => {
                    let Some(views) = found.get(&stmt) else {
                        at += 1;
                        continue;
                    };
                    if let Some(first) =
                        split_off_exchange(program, &mut fresh, &lets, views, stmt, &for_loop)?
                    {
                        program.blocks[block].insert(at, first);
                        at += 1;
                        split.push(for_loop.body);
                    }
                }
            }
            at += 1;
        }
    }
    remove_empty_blocks_in(program, &split);
    Ok(Change::from_flag(!split.is_empty()))
}

/// Checks that the pass can rewrite a program.
///
/// # Errors
/// Returns the error of the pass.
pub(crate) fn check(program: &Program) -> Result<(), Diagnostic> {
    let Some(body) = program.body else { return Ok(()) };
    let lets = symbol_assignments(program);
    for (stmt, views) in loops_sharing_handles(program, body)? {
        if let Stmt::For(it) = &program.stmts[stmt] {
            exchange_stmts(program, &lets, &views, it.body, &share_stmts(program, it.body))?;
        }
    }
    Ok(())
}

/// Returns the statements of a loop that an exchange of handles before it needs.
fn exchange_stmts(
    program: &Program,
    lets: &SymbolAssignments,
    views: &FxHashSet<TensorId>,
    body: BlockId,
    shares: &[StmtId],
) -> Result<FxHashSet<StmtId>, Diagnostic> {
    let mut kept: FxHashSet<StmtId> = shares.iter().copied().collect();
    let makes_view = |op: &OpStmt| {
        op.out_tensor().is_some_and(|out| views.contains(&out)) && op.op.def().class == OpClass::View
    };
    kept.extend(program.ops_in(body).filter(|it| makes_view(it.1)).map(|it| it.0));
    keep_scalar_assignments(program, lets, body, &mut kept)?;
    Ok(kept)
}

/// Removes the exchanges from a loop and returns a new loop that performs them. Returns `None` if the loop
/// contains nothing else.
fn split_off_exchange(
    program: &mut Program,
    fresh: &mut IrBuilder,
    lets: &SymbolAssignments,
    views: &FxHashSet<TensorId>,
    stmt: StmtId,
    it: &For,
) -> Result<Option<StmtId>, Diagnostic> {
    let shares = share_stmts(program, it.body);
    let kept = exchange_stmts(program, lets, views, it.body, &shares)?;
    if has_only_kept(program, it.body, &kept) {
        return Ok(None);
    }
    let body = filter_block(program, it.body, &kept);
    let span = program.stmt_span(stmt);
    let exchange = program.add_stmt(Stmt::For(For { body, ..it.clone() }), span);
    let mut names = Substitution::default();
    let mut views: Vec<TensorId> = views.iter().copied().collect();
    views.sort_unstable();
    for view in views {
        let copy = fresh.tensor_copy(program, view);
        names.tensors.insert(view, copy);
    }
    let exchange = names.stmt(program, exchange);
    let shares: FxHashSet<StmtId> = shares.into_iter().collect();
    rewrite(program, it.body, &mut |_, stmt| {
        if shares.contains(&stmt) { StmtEdit::Remove } else { StmtEdit::Keep }
    });
    Ok(Some(exchange))
}

/// Returns the loops that share handles, each with its views of the shared buffers. The buffers have storage
/// before the loop.
fn loops_sharing_handles(
    program: &Program,
    body: BlockId,
) -> Result<FxHashMap<StmtId, FxHashSet<TensorId>>, Diagnostic> {
    let mut found: Vec<(StmtId, SharedBuffers)> = Vec::new();
    let mut pending = vec![body];
    while let Some(block) = pending.pop() {
        for stmt in program.block(block) {
            match &program.stmts[*stmt] {
                Stmt::Op(_) | Stmt::Let(..) => (),
                Stmt::If(_) => pending.extend(program.inner_blocks(*stmt)),
                Stmt::For(it) => {
                    let shares = share_stmts(program, it.body);
                    if !shares.is_empty() {
                        found.push((*stmt, shared_buffers(program, it, &shares)?));
                    }
                }
            }
        }
    }
    // Storage before a loop: names that are bound whether or not the loop runs. A name that the loop
    // deallocates is not one of them.
    let names = |shared: &SharedBuffers| shared.bases.iter().map(|(tensor, _)| *tensor).collect();
    let requested = found.iter().map(|(stmt, shared)| (*stmt, names(shared))).collect();
    let bound = bindings::bound_before(program, &requested);
    for (stmt, shared) in &found {
        let unclear = |(tensor, _): &&(TensorId, StmtId)| {
            shared.dropped.contains(tensor) || !bound.contains(&(*stmt, *tensor))
        };
        if let (Some((tensor, at)), Stmt::For(it)) =
            (shared.bases.iter().find(unclear), &program.stmts[*stmt])
        {
            return Err(hoist_error(program, it, *tensor, *at));
        }
    }
    Ok(found.into_iter().map(|(stmt, shared)| (stmt, shared.views)).collect())
}

/// Returns the ShareMemHandles of a block.
fn share_stmts(program: &Program, block: BlockId) -> Vec<StmtId> {
    let shares = program.ops_in(block).filter(|(_, it)| it.op.def().class == OpClass::ShareHandles);
    shares.map(|it| it.0).collect()
}

/// The buffers whose handles a loop shares.
struct SharedBuffers {
    /// The views of the buffers that the loop makes.
    views: FxHashSet<TensorId>,
    /// The tensors that they are views of, each with a statement that shares it.
    bases: Vec<(TensorId, StmtId)>,
    /// The names that the loop deallocates.
    dropped: FxHashSet<TensorId>,
}

/// Returns the views that the loop makes of the buffers that it shares, and the underlying tensors.
fn shared_buffers(program: &Program, it: &For, shares: &[StmtId]) -> Result<SharedBuffers, Diagnostic> {
    let mut names: Vec<(TensorId, StmtId)> = Vec::new();
    for share in shares {
        let mentioned = program.op(*share).into_iter().flat_map(|op| op.mentions(program));
        names.extend(mentioned.map(|tensor| (tensor, *share)));
    }
    let mut bound_inside: FxHashMap<TensorId, Vec<StmtId>> = FxHashMap::default();
    let mut dropped: FxHashSet<TensorId> = FxHashSet::default();
    for (stmt, op) in program.ops_in(it.body) {
        for (tensor, mode) in op.tensor_uses(program) {
            if mode == AccessMode::Bind {
                bound_inside.entry(tensor).or_default().push(stmt);
            }
            if op.op.def().class == OpClass::Deallocate {
                dropped.insert(tensor);
            }
        }
    }
    let is_view =
        |stmt: &StmtId| matches!(&program.stmts[*stmt], Stmt::Op(op) if op.op.def().class == OpClass::View);
    let stale = upward_exposed_names(program, it.body, &|stmt| match &program.stmts[stmt] {
        Stmt::Op(op) if op.op.def().class == OpClass::View => Program::tensors_of(&op.outs).collect(),
        Stmt::Op(_) | Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => Vec::new(),
    });
    let mut views: FxHashSet<TensorId> = FxHashSet::default();
    let mut bases: Vec<(TensorId, StmtId)> = Vec::new();
    while let Some((tensor, at)) = names.pop() {
        let Some(binders) = bound_inside.get(&tensor) else {
            bases.push((tensor, at));
            continue;
        };
        if !binders.iter().all(is_view) || stale.contains(&tensor) {
            return Err(hoist_error(program, it, tensor, at));
        }
        if views.insert(tensor) {
            for binder in binders {
                if let Stmt::Op(op) = &program.stmts[*binder] {
                    names.extend(Program::tensors_of(&op.args).map(|arg| (arg, at)));
                }
            }
        }
    }
    Ok(SharedBuffers { views, bases, dropped })
}

fn hoist_error(program: &Program, it: &For, tensor: TensorId, share: StmtId) -> Diagnostic {
    let (name, index) = (program.tensor_name(tensor), &program.symbols[it.index]);
    let message = format!(
        "the handle of `{name}` cannot be exchanged before the loop over `{index}`: it may change in every iteration"
    );
    Diagnostic::new(Code::NotRewritten, program.stmt_span(share), message, "shared here")
        .help("allocate it before the loop, and make views of it in the loop")
}

/// The statements that assign each scalar.
type SymbolAssignments = FxHashMap<SymbolId, Vec<StmtId>>;

fn symbol_assignments(program: &Program) -> SymbolAssignments {
    let mut lets = SymbolAssignments::default();
    program.stmts.iter().for_each(|(id, stmt)| {
        if let Stmt::Let(symbol, _) = stmt {
            lets.entry(*symbol).or_default().push(id);
        }
    });
    lets
}

/// Adds the statements that assign the scalars that kept statements, and the loops and branches around them,
/// use.
fn keep_scalar_assignments(
    program: &Program,
    lets: &SymbolAssignments,
    body: BlockId,
    kept: &mut FxHashSet<StmtId>,
) -> Result<(), Diagnostic> {
    let mut around = FxHashMap::default();
    collect_stmts_around(program, body, None, &mut around);
    let mut stmts: Vec<StmtId> = kept.iter().copied().filter(|it| around.contains_key(it)).collect();
    let (mut visited, mut known) = (FxHashSet::default(), FxHashSet::default());
    while let Some(stmt) = stmts.pop() {
        if !visited.insert(stmt) {
            continue;
        }
        stmts.extend(around.get(&stmt).copied().flatten());
        let mut symbols = FxHashSet::default();
        symbols_of(program, stmt, &mut symbols);
        for symbol in symbols.into_iter().filter(|it| known.insert(*it)) {
            let all = lets.get(&symbol).map_or(&[][..], Vec::as_slice);
            let Some(stmt) = all.iter().find(|stmt| around.contains_key(stmt)) else { continue };
            if all.len() > 1 {
                let message = format!("`{}` is assigned more than once", program.symbols[symbol]);
                let label = "cannot determine which value an exchange before the loop needs";
                return Err(Diagnostic::new(Code::NotRewritten, program.stmt_span(*stmt), message, label));
            }
            kept.insert(*stmt);
            stmts.push(*stmt);
        }
    }
    Ok(())
}

/// Collects the statements of a block and of all nested blocks, each with the loop or branch inside the block around it.
fn collect_stmts_around(
    program: &Program,
    block: BlockId,
    around: Option<StmtId>,
    found: &mut FxHashMap<StmtId, Option<StmtId>>,
) {
    for stmt in program.block(block) {
        found.insert(*stmt, around);
        for inner in program.inner_blocks(*stmt) {
            collect_stmts_around(program, inner, Some(*stmt), found);
        }
    }
}

/// Returns whether a block contains only kept statements.
fn has_only_kept(program: &Program, block: BlockId, kept: &FxHashSet<StmtId>) -> bool {
    program.block(block).iter().all(|stmt| match &program.stmts[*stmt] {
        Stmt::Op(_) | Stmt::Let(..) => kept.contains(stmt),
        Stmt::For(it) => has_only_kept(program, it.body, kept),
        Stmt::If(it) => {
            has_only_kept(program, it.then_block, kept)
                && it.else_block.is_none_or(|other| has_only_kept(program, other, kept))
        }
    })
}

/// Returns a new block with the kept statements and the branches and loops around them.
fn filter_block(program: &mut Program, block: BlockId, kept: &FxHashSet<StmtId>) -> BlockId {
    let mut stmts = Vec::new();
    for stmt in program.blocks[block].clone() {
        let span = program.stmt_span(stmt);
        match program.stmts[stmt].clone() {
            Stmt::Op(_) | Stmt::Let(..) => {
                if kept.contains(&stmt) {
                    stmts.push(stmt);
                }
            }
            Stmt::For(it) => {
                let body = filter_block(program, it.body, kept);
                if !program.blocks[body].is_empty() {
                    stmts.push(program.add_stmt(Stmt::For(For { body, ..it }), span));
                }
            }
            Stmt::If(it) => {
                let then = filter_block(program, it.then_block, kept);
                let other = it.else_block.map(|other| filter_block(program, other, kept));
                let other = other.filter(|other| !program.blocks[*other].is_empty());
                if other.is_some() || !program.blocks[then].is_empty() {
                    stmts.push(
                        program.add_stmt(Stmt::If(If { then_block: then, else_block: other, ..it }), span),
                    );
                }
            }
        }
    }
    program.blocks.push(stmts)
}
