//! Whether the iterations of a loop may run at the same time.
//!
//! Invariant: "yes" is certain; where it is not, the answer names what may be in the way.

use grammar::{
    attr,
    ir::{Axis, BlockId, Expr, ExprId, For, OpStmt, Parallel, Program, Stmt, StmtId, SymbolId, TensorId},
    mentions,
    ops::{Effect, Mode, Op},
    words::CommunicationType,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::{
    accesses::{Storage, stale},
    bindings::symbols_through,
    sharing::may_rearrange,
};

/// Why iterations have to run one after the other.
pub(crate) enum Carried {
    /// What one of them writes to the tensor's storage, another may read or write.
    Storage(TensorId, StmtId),
    /// One of them may wait for what another posted.
    Work(u32, StmtId),
}

/// Which part of which storage a name stands for in an iteration.
#[derive(Clone, PartialEq)]
enum Part {
    /// Storage that the iteration allocates.
    Own,
    /// An index of another name's axis, a different one in every iteration.
    Slice(TensorId, Op, Option<usize>, ExprId),
}

/// How a statement uses storage.
struct Access {
    part: Option<Part>,
    write: bool,
    tensor: TensorId,
    stmt: StmtId,
}

/// How often each name is mentioned in the program.
pub(crate) struct Mentioned(FxHashMap<TensorId, usize>);

impl Mentioned {
    /// Counts.
    pub(crate) fn of(program: &Program) -> Self {
        Self(program.body.map(|body| mentioned(program, body)).unwrap_or_default())
    }
}

/// What is in the way of running the iterations of a loop at the same time, if anything may be.
pub(crate) fn carried(program: &Program, storage: &Storage, all: &Mentioned, it: &For) -> Option<Carried> {
    let bounds = program.constant(it.start).zip(program.constant(it.stop));
    if bounds.is_some_and(|(start, stop)| stop.saturating_sub(start) < 2) {
        return None;
    }
    works(program, it).or_else(|| storages(program, storage, all, it))
}

/// A Wait that comes before the post, or without one, waits for another iteration's.
fn works(program: &Program, it: &For) -> Option<Carried> {
    let mut posts: FxHashMap<u32, usize> = FxHashMap::default();
    let mut waits: Vec<(u32, usize, StmtId)> = Vec::new();
    let mut at = 0;
    program.walk(it.body, &mut |id| {
        at += 1;
        let Stmt::Op(op) = &program.stmts[id] else { return };
        if let (Effect::Communicate | Effect::Group, Some(number)) = (op.op.row().effect, op.number) {
            posts.insert(number, at);
        }
        if let (Effect::Wait, Some(number)) = (op.op.row().effect, op.get(attr::WORK)) {
            waits.push((number, at, id));
        }
    });
    let early = |(number, at, _): &&(u32, usize, StmtId)| posts.get(number).is_none_or(|post| post > at);
    waits.iter().find(early).map(|(number, _, stmt)| Carried::Work(*number, *stmt))
}

fn storages(program: &Program, storage: &Storage, all: &Mentioned, it: &For) -> Option<Carried> {
    let aliases = aliases(program, all, it.body);
    let parts = parts(program, all, it, &aliases);
    let mut accesses: FxHashMap<TensorId, Vec<Access>> = FxHashMap::default();
    let mut order = Vec::new();
    program.walk(it.body, &mut |id| {
        let Stmt::Op(op) = &program.stmts[id] else { return };
        mentions(program, op, &mut |tensor, mode| {
            let write = match mode {
                Mode::Read | Mode::Transfer => false,
                Mode::Write if aliases.contains(&id) => return,
                Mode::Write => true,
                Mode::Bind | Mode::Mention => return,
            };
            let class = storage.class(tensor);
            order.push(class);
            let part = parts.get(&tensor).cloned().or_else(|| at_root(program, it, op, tensor, write));
            accesses.entry(class).or_default().push(Access { part, write, tensor, stmt: id });
        });
    });
    order.iter().find_map(|class| {
        let all = &accesses[class];
        let write = all.iter().find(|it| it.write)?;
        let part = all.first().and_then(|it| it.part.as_ref());
        let apart = part.is_some() && all.iter().all(|it| it.part.as_ref() == part);
        (!apart).then_some(Carried::Storage(write.tensor, write.stmt))
    })
}

/// The names that every iteration binds anew before it uses them, with what it binds them to.
fn parts(
    program: &Program,
    all: &Mentioned,
    it: &For,
    aliases: &FxHashSet<StmtId>,
) -> FxHashMap<TensorId, Part> {
    let renewed = renewed(program, all, it);
    let allocates = |op: &OpStmt| {
        let own = |out| op.op == Op::Allocate || op.get(attr::ALIAS).is_none() && renewed.contains(&out);
        op.op.row().effect == Effect::Allocate && op.out_tensor().is_some_and(own)
    };
    let binding = |id: StmtId| match &program.stmts[id] {
        Stmt::Op(op) if allocates(op) || op.op.row().effect == Effect::View || aliases.contains(&id) => {
            Program::tensors_of(&op.outs).collect()
        }
        Stmt::Op(_) | Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => Vec::new(),
    };
    let stale = stale(program, it.body, &binding);
    let mut parts: FxHashMap<TensorId, Part> = FxHashMap::default();
    let mut unclear: FxHashSet<TensorId> = FxHashSet::default();
    // Names that the loop binds change within it: no base to count indices of.
    let mut bound: FxHashSet<TensorId> = FxHashSet::default();
    program.walk(it.body, &mut |id| {
        if let Stmt::Op(op) = &program.stmts[id] {
            mentions(program, op, &mut |tensor, mode| {
                if mode == Mode::Bind || op.op.row().effect == Effect::Deallocate {
                    bound.insert(tensor);
                }
            });
        }
    });
    program.walk(it.body, &mut |id| {
        let Stmt::Op(op) = &program.stmts[id] else { return };
        let effect = op.op.row().effect;
        let Some(out) = op.out_tensor() else { return };
        let arg = Program::tensors_of(&op.args).next();
        let part = match effect {
            Effect::Allocate if allocates(op) => Some(Part::Own),
            Effect::View => match arg {
                Some(arg) if bound.contains(&arg) => parts.get(&arg).cloned(),
                Some(arg) => slice(program, it, op, arg),
                None => None,
            },
            Effect::Compute if aliases.contains(&id) => match arg.and_then(|arg| parts.get(&arg)) {
                Some(part) => Some(part.clone()),
                // All of what it is a view of.
                None => return,
            },
            // A copy to a name without storage of its own.
            Effect::Compute if stale.contains(&out) && may_rearrange(op.op.row().rule) => {
                unclear.insert(out);
                return;
            }
            Effect::Compute
            | Effect::Map
            | Effect::Allocate
            | Effect::Deallocate
            | Effect::Communicate
            | Effect::Wait
            | Effect::Stream
            | Effect::Group
            | Effect::Share
            | Effect::Unit
            | Effect::Opaque => return,
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
    });
    parts.retain(|tensor, _| !stale.contains(tensor) && !unclear.contains(tensor));
    parts
}

/// Copies to names that have no storage, in this iteration and in every other: nothing else in the program mentions them
/// but the statements up to a Deallocate in the same block. Such a name is a view of what is copied.
fn aliases(program: &Program, all: &Mentioned, block: BlockId) -> FxHashSet<StmtId> {
    let mut found = FxHashSet::default();
    add_aliases(program, block, &all.0, &mut found);
    found
}

fn add_aliases(
    program: &Program,
    block: BlockId,
    all: &FxHashMap<TensorId, usize>,
    found: &mut FxHashSet<StmtId>,
) {
    let mut open: FxHashMap<TensorId, (StmtId, usize)> = FxHashMap::default();
    for stmt in program.block(block) {
        match &program.stmts[*stmt] {
            Stmt::Op(op) => {
                let copies = op.op.row().effect == Effect::Compute && may_rearrange(op.op.row().rule);
                if let (Some(out), true) = (op.out_tensor(), copies) {
                    open.entry(out).or_insert((*stmt, 0));
                }
                mentions(program, op, &mut |tensor, _| {
                    if let Some((copy, count)) = open.get_mut(&tensor) {
                        *count += 1;
                        let dropped = op.op.row().effect == Effect::Deallocate;
                        if dropped && all.get(&tensor) == Some(count) {
                            found.insert(*copy);
                        }
                    }
                });
            }
            Stmt::Let(..) => (),
            Stmt::For(it) => add_aliases(program, it.body, all, found),
            Stmt::If(it) => {
                add_aliases(program, it.then, all, found);
                it.other.iter().for_each(|other| add_aliases(program, *other, all, found));
            }
        }
    }
}

/// Names that every iteration drops and nothing outside of the loop binds: in an iteration, a long ALLOCATE finds them
/// without storage.
fn renewed(program: &Program, all: &Mentioned, it: &For) -> FxHashSet<TensorId> {
    let mut dropped: FxHashSet<TensorId> = FxHashSet::default();
    for stmt in program.block(it.body) {
        if let Stmt::Op(op) = &program.stmts[*stmt]
            && op.op.row().effect == Effect::Deallocate
        {
            dropped.extend(Program::tensors_of(&op.args));
        }
    }
    let inside = mentioned(program, it.body);
    let only_inside = |tensor: &TensorId| all.0.get(tensor) == inside.get(tensor);
    dropped.retain(only_inside);
    dropped
}

/// How often a block mentions names.
fn mentioned(program: &Program, block: BlockId) -> FxHashMap<TensorId, usize> {
    let mut counts = FxHashMap::default();
    program.walk(block, &mut |stmt| {
        if let Stmt::Op(op) = &program.stmts[stmt] {
            mentions(program, op, &mut |tensor, _| *counts.entry(tensor).or_default() += 1);
        }
    });
    counts
}

/// What a reduction writes to one root: a rank is the root in one iteration at most.
fn at_root(program: &Program, it: &For, op: &OpStmt, tensor: TensorId, write: bool) -> Option<Part> {
    let is_reduce = op.get(attr::TYPE) == Some(CommunicationType::Reduce);
    if !is_reduce || !write || op.get(attr::INPUT) == Some(tensor) {
        return None;
    }
    let root = op.get(attr::ROOT)?;
    is_different_in_each(program, it, root).then_some(Part::Slice(tensor, op.op, None, root))
}

/// The part of `base` that a view picks, if no two iterations pick the same.
fn slice(program: &Program, it: &For, op: &OpStmt, base: TensorId) -> Option<Part> {
    let index = op.get(attr::INDEX).or_else(|| op.get(attr::STREAM_INDEX))?;
    let mut dim = None;
    if let Some(axis) = op.get(attr::AXIS) {
        // A reduction is no dimension, and of one with extent 1 every index picks the same.
        dim = Some(program.dimensions(base).position(|it| it == axis)?);
        let Axis { parallel, extent, .. } = program.axes[axis];
        let several = extent == it.stop || program.constant(extent).is_some_and(|extent| extent > 1);
        if matches!(parallel, Parallel::Device(_)) || !several {
            return None;
        }
    }
    is_different_in_each(program, it, index).then_some(Part::Slice(base, op.op, dim, index))
}

/// Whether no two iterations of a loop give an index the same value.
pub(crate) fn is_different_in_each(program: &Program, it: &For, index: ExprId) -> bool {
    let mut symbols = FxHashSet::default();
    symbols_through(program, index, &mut symbols);
    let mut assigned = false;
    program.walk(it.body, &mut |stmt| match &program.stmts[stmt] {
        Stmt::Let(symbol, _) => assigned |= symbols.contains(symbol),
        Stmt::For(inner) => assigned |= symbols.contains(&inner.index),
        Stmt::Op(_) | Stmt::If(_) => (),
    });
    if assigned {
        return false;
    }
    let index = resolved(program, index);
    match &program.exprs[index] {
        Expr::Infix("%", dividend, modulus) => {
            let unit = step(program, *dividend, it.index).is_some_and(|step| step.abs() == 1);
            let start = program.constant(it.start);
            let trip = program.constant(it.stop).zip(start).map(|(stop, start)| stop - start);
            let few = match (trip, program.constant(resolved(program, *modulus))) {
                (Some(trip), Some(modulus)) => trip <= modulus,
                _ => start == Some(0) && resolved(program, it.stop) == resolved(program, *modulus),
            };
            unit && few
        }
        Expr::Int(_)
        | Expr::Bool(_)
        | Expr::Float(..)
        | Expr::Symbol(_)
        | Expr::Prefix(..)
        | Expr::Infix(..)
        | Expr::Call(..) => step(program, index, it.index).is_some_and(|step| step != 0),
    }
}

/// A symbol's definition, as far as definitions lead; any other expression.
fn resolved(program: &Program, mut expr: ExprId) -> ExprId {
    while let Expr::Symbol(symbol) = &program.exprs[expr]
        && let Some(definition) = program.definitions.get(symbol)
    {
        expr = *definition;
    }
    expr
}

/// By how much an expression grows when `index` grows by one, if that is always the same.
fn step(program: &Program, expr: ExprId, index: SymbolId) -> Option<i64> {
    let expr = resolved(program, expr);
    match &program.exprs[expr] {
        Expr::Symbol(symbol) if *symbol == index => return Some(1),
        Expr::Infix(sign @ ("+" | "-"), lhs, rhs) => {
            let (lhs, rhs) = (step(program, *lhs, index)?, step(program, *rhs, index)?);
            return if *sign == "+" { lhs.checked_add(rhs) } else { lhs.checked_sub(rhs) };
        }
        Expr::Infix("*", lhs, rhs) => {
            if let Some(factor) = program.constant(*lhs) {
                return step(program, *rhs, index)?.checked_mul(factor);
            }
            if let Some(factor) = program.constant(*rhs) {
                return step(program, *lhs, index)?.checked_mul(factor);
            }
        }
        Expr::Int(_)
        | Expr::Bool(_)
        | Expr::Float(..)
        | Expr::Symbol(_)
        | Expr::Prefix(..)
        | Expr::Infix(..)
        | Expr::Call(..) => (),
    }
    (!program.depends_on(expr, &|symbol| symbol == index)).then_some(0)
}
