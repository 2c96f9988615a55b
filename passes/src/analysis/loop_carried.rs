//! Decides whether the iterations of a loop may run concurrently.
//!
//! Invariant: the absence of a dependence is certain. Otherwise, the analysis returns a dependence that may
//! exist.

use grammar::{
    AccessMode, Axis, BlockId, CommunicationType, Expr, ExprId, For, InfixOp, Op, OpClass, OpStmt,
    ParallelType, Program, Stmt, StmtId, SymbolId, TensorId, attr,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::{
    alias_analysis::can_forward_operand,
    bindings::symbols_through,
    memory_effects::{MemoryEffects, upward_exposed_names},
};

/// A dependence that forces iterations to run one after the other.
pub enum LoopCarriedDep {
    /// One iteration may read or write storage of the tensor that another one writes.
    Storage(TensorId, StmtId),
    /// One iteration may wait for a communication that another one posted.
    Work(u32, StmtId),
}

/// The part of storage that a name stands for in one iteration.
#[derive(Clone, PartialEq)]
enum IterationRegion {
    /// Storage that the iteration allocates.
    IterationLocal,
    /// One index along an axis of another name, different in every iteration.
    Slice(TensorId, Op, Option<usize>, ExprId),
}

/// An access of a statement to storage.
struct Access {
    region: Option<IterationRegion>,
    write: bool,
    tensor: TensorId,
    stmt: StmtId,
}

/// Number of mentions of each name in the program.
pub struct MentionCounts(FxHashMap<TensorId, usize>);

impl MentionCounts {
    /// Counts the mentions in the program's container.
    pub fn of(program: &Program) -> Self {
        Self(program.body.map(|body| mention_counts(program, body)).unwrap_or_default())
    }
}

/// Returns a dependence that may prevent the iterations of a loop from running concurrently, or `None` if
/// there is none.
pub fn loop_carried_dep(
    program: &Program,
    storage: &MemoryEffects,
    all: &MentionCounts,
    it: &For,
) -> Option<LoopCarriedDep> {
    let bounds = program.constant(it.start).zip(program.constant(it.stop));
    if bounds.is_some_and(|(start, stop)| stop.saturating_sub(start) < 2) {
        return None;
    }
    work_dep(program, it).or_else(|| storage_dep(program, storage, all, it))
}

/// Returns a dependence through a communication. A Wait that comes before the post, or that has no post in
/// the body, waits for the communication of another iteration.
fn work_dep(program: &Program, it: &For) -> Option<LoopCarriedDep> {
    let mut posts: FxHashMap<u32, usize> = FxHashMap::default();
    let mut waits: Vec<(u32, usize, StmtId)> = Vec::new();
    let mut at = 0;
    for id in program.stmts_in(it.body) {
        at += 1;
        let Stmt::Op(op) = &program.stmts[id] else { continue };
        if let (OpClass::Communicate | OpClass::Coalescing, Some(number)) = (op.op.def().class, op.number) {
            posts.insert(number, at);
        }
        if let (OpClass::Wait, Some(number)) = (op.op.def().class, op.get(attr::WORK)) {
            waits.push((number, at, id));
        }
    }
    let early = |(number, at, _): &&(u32, usize, StmtId)| posts.get(number).is_none_or(|post| post > at);
    waits.iter().find(early).map(|(number, _, stmt)| LoopCarriedDep::Work(*number, *stmt))
}

fn storage_dep(
    program: &Program,
    storage: &MemoryEffects,
    all: &MentionCounts,
    it: &For,
) -> Option<LoopCarriedDep> {
    let aliases = aliasing_copies(program, all, it.body);
    let parts = iteration_regions(program, all, it, &aliases);
    let mut accesses: FxHashMap<TensorId, Vec<Access>> = FxHashMap::default();
    let mut order = Vec::new();
    for (id, op) in program.ops_in(it.body) {
        for (tensor, mode) in op.tensor_uses(program) {
            let write = match mode {
                AccessMode::Read | AccessMode::Transfer => false,
                AccessMode::Write if aliases.contains(&id) => continue,
                AccessMode::Write => true,
                AccessMode::Bind | AccessMode::NoAccess => continue,
            };
            let class = storage.alias_class(tensor);
            order.push(class);
            let part =
                parts.get(&tensor).cloned().or_else(|| reduce_root_region(program, it, op, tensor, write));
            accesses.entry(class).or_default().push(Access { region: part, write, tensor, stmt: id });
        }
    }
    order.iter().find_map(|class| {
        let all = &accesses[class];
        let write = all.iter().find(|it| it.write)?;
        let part = all.first().and_then(|it| it.region.as_ref());
        let apart = part.is_some() && all.iter().all(|it| it.region.as_ref() == part);
        (!apart).then_some(LoopCarriedDep::Storage(write.tensor, write.stmt))
    })
}

/// Returns the names that every iteration binds before it uses them, with the region that each is bound to.
fn iteration_regions(
    program: &Program,
    all: &MentionCounts,
    it: &For,
    aliases: &FxHashSet<StmtId>,
) -> FxHashMap<TensorId, IterationRegion> {
    let renewed = deallocated_each_iteration(program, all, it);
    let allocates = |op: &OpStmt| {
        let own = |out| op.op == Op::Allocate || op.get(attr::ALIAS).is_none() && renewed.contains(&out);
        op.op.def().class == OpClass::Allocate && op.out_tensor().is_some_and(own)
    };
    let binding = |id: StmtId| match &program.stmts[id] {
        Stmt::Op(op) if allocates(op) || op.op.def().class == OpClass::View || aliases.contains(&id) => {
            Program::tensors_of(&op.outs).collect()
        }
        Stmt::Op(_) | Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => Vec::new(),
    };
    let stale = upward_exposed_names(program, it.body, &binding);
    let mut parts: FxHashMap<TensorId, IterationRegion> = FxHashMap::default();
    let mut unclear: FxHashSet<TensorId> = FxHashSet::default();
    // A name that the loop binds changes within the loop, so it cannot be the base of a slice.
    let mut bound: FxHashSet<TensorId> = FxHashSet::default();
    for (_, op) in program.ops_in(it.body) {
        let drops = op.op.def().class == OpClass::Deallocate;
        let uses = op.tensor_uses(program).into_iter();
        bound.extend(uses.filter(|it| drops || it.1 == AccessMode::Bind).map(|it| it.0));
    }
    for (id, op) in program.ops_in(it.body) {
        let effect = op.op.def().class;
        let Some(out) = op.out_tensor() else { continue };
        let arg = Program::tensors_of(&op.args).next();
        let part = match effect {
            OpClass::Allocate if allocates(op) => Some(IterationRegion::IterationLocal),
            OpClass::View => match arg {
                Some(arg) if bound.contains(&arg) => parts.get(&arg).cloned(),
                Some(arg) => view_region(program, it, op, arg),
                None => None,
            },
            OpClass::Compute if aliases.contains(&id) => match arg.and_then(|arg| parts.get(&arg)) {
                Some(part) => Some(part.clone()),
                // The copy stands for all of its source.
                None => continue,
            },
            // A copy to a name that may not have storage of its own.
            OpClass::Compute if stale.contains(&out) && can_forward_operand(op) => {
                unclear.insert(out);
                continue;
            }
            grammar::other_classes!()
            | OpClass::Compute
            | OpClass::Elementwise
            | OpClass::Allocate
            | OpClass::Deallocate => continue,
        };
        match (part, parts.get(&out)) {
            (Some(part), None) => {
                parts.insert(out, part);
            }
            (Some(part), Some(known)) if part == *known => (),
            (Some(_) | None, _) => {
                unclear.insert(out);
            }
        }
    }
    parts.retain(|tensor, _| !stale.contains(tensor) && !unclear.contains(tensor));
    parts
}

/// Returns the copies whose result has no storage of its own, in this iteration or any other: nothing else in
/// the program mentions the name except statements up to a Deallocate in the same block. Such a name is an
/// alias of the copied tensor.
fn aliasing_copies(program: &Program, all: &MentionCounts, block: BlockId) -> FxHashSet<StmtId> {
    let mut found = FxHashSet::default();
    add_aliasing_copies(program, block, &all.0, &mut found);
    found
}

fn add_aliasing_copies(
    program: &Program,
    block: BlockId,
    all: &FxHashMap<TensorId, usize>,
    found: &mut FxHashSet<StmtId>,
) {
    let mut open: FxHashMap<TensorId, (StmtId, usize)> = FxHashMap::default();
    for stmt in program.block(block) {
        match &program.stmts[*stmt] {
            Stmt::Op(op) => {
                if let (Some(out), true) = (op.out_tensor(), can_forward_operand(op)) {
                    open.entry(out).or_insert((*stmt, 0));
                }
                for (tensor, _) in op.tensor_uses(program) {
                    if let Some((copy, count)) = open.get_mut(&tensor) {
                        *count += 1;
                        let dropped = op.op.def().class == OpClass::Deallocate;
                        if dropped && all.get(&tensor) == Some(count) {
                            found.insert(*copy);
                        }
                    }
                }
            }
            Stmt::Let(..) => (),
            Stmt::For(it) => add_aliasing_copies(program, it.body, all, found),
            Stmt::If(it) => {
                add_aliasing_copies(program, it.then_block, all, found);
                it.else_block.iter().for_each(|other| add_aliasing_copies(program, *other, all, found));
            }
        }
    }
}

/// Returns the names that every iteration deallocates and that nothing outside the loop mentions.
/// AllocateOnce allocates such a name in every iteration.
fn deallocated_each_iteration(program: &Program, all: &MentionCounts, it: &For) -> FxHashSet<TensorId> {
    let mut dropped: FxHashSet<TensorId> = FxHashSet::default();
    let ops = program.block(it.body).iter().filter_map(|it| program.op(*it));
    for op in ops.filter(|it| it.op.def().class == OpClass::Deallocate) {
        dropped.extend(Program::tensors_of(&op.args));
    }
    let inside = mention_counts(program, it.body);
    let only_inside = |tensor: &TensorId| all.0.get(tensor) == inside.get(tensor);
    dropped.retain(only_inside);
    dropped
}

/// Counts how often a block mentions each name.
fn mention_counts(program: &Program, block: BlockId) -> FxHashMap<TensorId, usize> {
    let mut counts = FxHashMap::default();
    for tensor in program.ops_in(block).flat_map(|(_, op)| op.mentions(program)) {
        *counts.entry(tensor).or_default() += 1;
    }
    counts
}

/// Returns the region that a Reduce writes on its root rank. A rank is the root in at most one iteration.
fn reduce_root_region(
    program: &Program,
    it: &For,
    op: &OpStmt,
    tensor: TensorId,
    write: bool,
) -> Option<IterationRegion> {
    let is_reduce = op.get(attr::TYPE) == Some(CommunicationType::Reduce);
    if !is_reduce || !write || op.get(attr::INPUT) == Some(tensor) {
        return None;
    }
    let root = op.get(attr::ROOT)?;
    differs_per_iteration(program, it, root).then_some(IterationRegion::Slice(tensor, op.op, None, root))
}

/// Returns the region of `base` that a view selects, if no two iterations select the same one.
fn view_region(program: &Program, it: &For, op: &OpStmt, base: TensorId) -> Option<IterationRegion> {
    let index = op.get(attr::INDEX).or_else(|| op.get(attr::STREAM_INDEX))?;
    let mut dim = None;
    if let Some(axis) = op.get(attr::AXIS) {
        // A reduction axis is not a dimension. Along an axis of extent 1, every index selects the same
        // element.
        dim = Some(program.dimensions(base).position(|it| it == axis)?);
        let Axis { parallel, extent, .. } = program.axes[axis];
        let several = extent == it.stop || program.constant(extent).is_some_and(|extent| extent > 1);
        if matches!(parallel, ParallelType::Device(_)) || !several {
            return None;
        }
    }
    differs_per_iteration(program, it, index).then_some(IterationRegion::Slice(base, op.op, dim, index))
}

/// Returns true if no two iterations of a loop give an index the same value.
pub fn differs_per_iteration(program: &Program, it: &For, index: ExprId) -> bool {
    let mut symbols = FxHashSet::default();
    symbols_through(program, index, &mut symbols);
    let assigns = |stmt: StmtId| match &program.stmts[stmt] {
        Stmt::Let(symbol, _) => symbols.contains(symbol),
        Stmt::For(inner) => symbols.contains(&inner.index),
        Stmt::Op(_) | Stmt::If(_) => false,
    };
    if program.stmts_in(it.body).any(assigns) {
        return false;
    }
    let index = resolve_definition(program, index);
    match &program.exprs[index] {
        Expr::Infix(InfixOp::Rem, dividend, modulus) => {
            let unit = step_per_iteration(program, *dividend, it.index).is_some_and(|step| step.abs() == 1);
            let start = program.constant(it.start);
            let trip = program.constant(it.stop).zip(start).map(|(stop, start)| stop - start);
            let few = match (trip, program.constant(resolve_definition(program, *modulus))) {
                (Some(trip), Some(modulus)) => trip <= modulus,
                _ => {
                    start == Some(0)
                        && resolve_definition(program, it.stop) == resolve_definition(program, *modulus)
                }
            };
            unit && few
        }
        Expr::Int(_)
        | Expr::Bool(_)
        | Expr::Float(..)
        | Expr::Symbol(_)
        | Expr::Prefix(..)
        | Expr::Infix(..)
        | Expr::Call(..) => step_per_iteration(program, index, it.index).is_some_and(|step| step != 0),
    }
}

/// Follows the definitions of a symbol to the end. Returns any other expression unchanged.
fn resolve_definition(program: &Program, mut expr: ExprId) -> ExprId {
    while let Expr::Symbol(symbol) = &program.exprs[expr]
        && let Some(definition) = program.definitions.get(symbol)
    {
        expr = *definition;
    }
    expr
}

/// Returns by how much an expression grows when `index` grows by one, if that is a constant.
fn step_per_iteration(program: &Program, expr: ExprId, index: SymbolId) -> Option<i64> {
    let expr = resolve_definition(program, expr);
    match &program.exprs[expr] {
        Expr::Symbol(symbol) if *symbol == index => return Some(1),
        Expr::Infix(op @ (InfixOp::Add | InfixOp::Sub), lhs, rhs) => {
            let (lhs, rhs) =
                (step_per_iteration(program, *lhs, index)?, step_per_iteration(program, *rhs, index)?);
            return if *op == InfixOp::Add { lhs.checked_add(rhs) } else { lhs.checked_sub(rhs) };
        }
        Expr::Infix(InfixOp::Mul, lhs, rhs) => {
            if let Some(factor) = program.constant(*lhs) {
                return step_per_iteration(program, *rhs, index)?.checked_mul(factor);
            }
            if let Some(factor) = program.constant(*rhs) {
                return step_per_iteration(program, *lhs, index)?.checked_mul(factor);
            }
        }
        _ => (),
    }
    (!program.depends_on(expr, &|symbol| symbol == index)).then_some(0)
}
