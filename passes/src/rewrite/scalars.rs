//! Rewrites the scalar expressions of a program.

use grammar::{
    Arena, Axis, AxisId, BlockId, ExprId, Operand, Program, Stmt, StmtId, Stream, SymbolId, Transform, attr,
};
use rustc_hash::{FxHashMap, FxHashSet};

/// Returns the replacement of an expression. It may be asked twice for the same one.
pub type ExprRewrite<'r> = &'r mut dyn FnMut(&mut Program, ExprId) -> ExprId;

/// Rewrites scalars outside of statements: extents, definitions, options and stream indices. Returns true if
/// anything changed.
pub fn rewrite_outside_stmts(program: &mut Program, rewrite: ExprRewrite<'_>) -> bool {
    let mut changed = axes(program, rewrite);
    let mut visit = |program: &mut Program, expr: ExprId| {
        let new = rewrite(program, expr);
        changed |= new != expr;
        new
    };
    for symbol in program.definitions.keys().copied().collect::<Vec<_>>() {
        if let Some(new) = program.definitions.get(&symbol).copied().map(|it| visit(program, it)) {
            program.definitions.insert(symbol, new);
        }
    }
    for key in program.options.keys().cloned().collect::<Vec<_>>() {
        if let Some(new) = program.options.get(&key).copied().map(|it| visit(program, it)) {
            program.options.insert(key, new);
        }
    }
    for id in program.streams.ids() {
        if let Stream::Index(index) = program.streams[id] {
            program.streams[id] = Stream::Index(visit(program, index));
        }
    }
    changed
}

/// Rewrites extents. Two axes with the same number must remain distinct, because their text distinguishes
/// tensors.
fn axes(program: &mut Program, rewrite: ExprRewrite<'_>) -> bool {
    let mut changed = false;
    let mut numbers: Option<FxHashMap<u32, Vec<AxisId>>> = None;
    for id in program.axes.ids() {
        let Axis { extent, start, stop, expanded, .. } = program.axes[id];
        let new_extent = rewrite(program, extent);
        let bounds = [start, stop, expanded];
        let new_bounds = bounds.map(|bound| bound.map(|it| rewrite(program, it)));
        if (extent, bounds) == (new_extent, new_bounds) {
            continue;
        }
        let [start, stop, expanded] = new_bounds;
        let axis = Axis { extent: new_extent, start, stop, expanded, ..program.axes[id].clone() };
        let numbers = numbers.get_or_insert_with(|| axes_by_number(program));
        let others = numbers.get(&axis.number).into_iter().flatten();
        if others.into_iter().all(|other| program.axes[*other] != axis) {
            program.axes[id] = axis;
            changed = true;
        }
    }
    for tensor in program.tensors.ids() {
        for at in 0..program.tensors[tensor].domains.transforms.len() {
            let Transform::Split { factor, .. } = program.tensors[tensor].domains.transforms[at] else {
                continue;
            };
            let new = rewrite(program, factor);
            if new != factor
                && let Transform::Split { factor, .. } = &mut program.tensors[tensor].domains.transforms[at]
            {
                (*factor, changed) = (new, true);
            }
        }
    }
    changed
}

fn axes_by_number(program: &Program) -> FxHashMap<u32, Vec<AxisId>> {
    let mut numbers: FxHashMap<u32, Vec<AxisId>> = FxHashMap::default();
    for (id, axis) in program.axes.iter() {
        numbers.entry(axis.number).or_default().push(id);
    }
    numbers
}

/// Rewrites scalars in all statements, including those of HostUnits. Returns true if anything changed.
pub fn rewrite_in_stmts(program: &mut Program, rewrite: ExprRewrite<'_>) -> bool {
    let mut stmts: Arena<StmtId, Stmt> = std::mem::take(&mut program.stmts);
    let mut changed = false;
    for id in stmts.ids() {
        changed |= rewrite_in_stmt(program, &mut stmts, id, rewrite);
    }
    program.stmts = stmts;
    changed
}

/// Rewrites the scalars of a statement of `stmts`, without those of nested blocks and of streams. Returns true if anything changed.
pub fn rewrite_in_stmt(
    program: &mut Program,
    stmts: &mut Arena<StmtId, Stmt>,
    id: StmtId,
    rewrite: ExprRewrite<'_>,
) -> bool {
    let mut changed = false;
    let mut visit = |expr: ExprId| changed |= rewrite(program, expr) != expr;
    match &stmts[id] {
        Stmt::Op(it) => it.scalars(&mut visit),
        Stmt::Let(_, value) => visit(*value),
        Stmt::For(it) => [it.start, it.stop].into_iter().for_each(visit),
        Stmt::If(it) => visit(it.cond),
    }
    // Mutable access would copy a statement that copies of the program share.
    if changed {
        let visit = |expr: &mut ExprId| *expr = rewrite(program, *expr);
        scalars_mut(&mut stmts[id], visit);
    }
    changed
}

/// Visits the scalars of a statement, without those of nested blocks and of streams.
fn scalars_mut(stmt: &mut Stmt, mut visit: impl FnMut(&mut ExprId)) {
    match stmt {
        Stmt::Op(it) => it.scalars_mut(&mut visit),
        Stmt::Let(_, value) => visit(value),
        Stmt::For(it) => [&mut it.start, &mut it.stop].into_iter().for_each(visit),
        Stmt::If(it) => visit(&mut it.cond),
    }
}

/// Rewrites scalars in the statements of a block and of all nested blocks. Statements with rewritten stream
/// indices get new streams.
pub fn rewrite_in_block(program: &mut Program, block: BlockId, rewrite: ExprRewrite<'_>) {
    let mut stmts: Vec<StmtId> = program.stmts_in(block).collect();
    while let Some(id) = stmts.pop() {
        let mut stmt = program.stmts[id].clone();
        let mut visit = |expr: &mut ExprId| *expr = rewrite(program, *expr);
        match &mut stmt {
            Stmt::Op(it) => {
                it.scalars_mut(&mut visit);
                for operand in it.outs.iter_mut().chain(&mut it.args) {
                    let Operand::Stream(stream) = operand else { continue };
                    let Stream::Index(index) = program.streams[*stream] else { continue };
                    let new = rewrite(program, index);
                    if new != index {
                        *stream = program.streams.push(Stream::Index(new));
                    }
                }
                if let Some(listed) = it.get(attr::TRANSFERS) {
                    stmts.extend(listed);
                }
            }
            Stmt::Let(_, value) => visit(value),
            Stmt::For(it) => [&mut it.start, &mut it.stop].into_iter().for_each(&mut visit),
            Stmt::If(it) => visit(&mut it.cond),
        }
        program.stmts[id] = stmt;
    }
}

/// Returns the scalars that statements assign, loop indices included.
pub fn assigned_symbols(program: &Program) -> FxHashSet<SymbolId> {
    let symbols = program.stmts.iter().filter_map(|(_, stmt)| match stmt {
        Stmt::Let(symbol, _) => Some(*symbol),
        Stmt::For(it) => Some(it.index),
        Stmt::Op(_) | Stmt::If(_) => None,
    });
    symbols.collect()
}
