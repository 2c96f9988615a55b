//! canonicalize: cleanup that is safe for any program.
//!
//! Before:
//! ```text
//! FOR i5 from 0 to ( 2 * 4 ):
//!   T2 = HirAliasSelect( T1, axis = iS1{8}, index = ( ( 0 + i5 ) % 8 ) )
//!   IF Manual ( i5 == rank ):
//!   ELSE:
//!     P2PCommunication 1 (type=recv, buffer=T2, peer=( i5 * 1 ))
//!   IF Manual ( i5 < 0 ):
//!     T2 = Set( T0 )
//! ```
//! After:
//! ```text
//! FOR i5 from 0 to 8:
//!   T2 = HirAliasSelect( T1, axis = iS1{8}, index = i5 )
//!   IF Manual ( i5 != rank ):
//!     P2PCommunication 1 (type=recv, buffer=T2, peer=i5)
//! ```
//!
//! The pass makes these changes:
//!
//! * It folds scalar expressions: constants, neutral operands, and comparisons and remainders that loop
//!   bounds decide.
//! * It replaces a branch on a constant with the side that is taken. If the THEN of a branch is empty, the
//!   ELSE becomes the THEN.
//! * It removes loops without iterations, and empty loops and branches.
//! * It removes a long ALLOCATE (`Op::AllocateOnce`) of a name that is bound on every path, and a view that
//!   is in effect already.
//! * Outside of loops, it turns a long ALLOCATE of a name that is bound on no path into the short one, which
//!   has the same effect there.
//!
//! A scalar that becomes a constant can reveal an error that the verifier could not see before, such as a
//! root outside its team. The pass then reports the error and rejects the program.
//!
//! The pass keeps unreachable code if the rest of the program would not pass the verifier without it: the
//! verifier requires definitions in the text, whether or not they are reached.

use grammar::{Arena, BlockId, Diagnostic, Op, Program, Stmt, StmtId, SymbolId, TensorId, attr, has_errors};
use hir_ir::edit::{StmtEdit, number_streams, rewrite};
use rustc_hash::FxHashSet;

use crate::{
    analysis::bindings,
    pass::{Arguments, Change, Pass, Remarks},
    rewrite::{
        empty_blocks::remove_empty_blocks,
        fold::{ConstantFolder, negate, truth},
        scalars,
    },
};

/// The pass.
pub(crate) const PASS: Pass = Pass::new("canonicalize", include_str!("canonicalize.rs"), run)
    .for_conditions()
    .about("fold scalar expressions and remove unreachable and redundant statements")
    .for_one_rank();

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let mut changed = false;
    // Each round removes something, so the loop terminates. A removal may enable another one in the next
    // round.
    while simplify_once(program) {
        changed = true;
    }
    if changed {
        number_streams(program);
    }
    Change::verified(program, changed)
}

fn simplify_once(program: &mut Program) -> bool {
    let mut changed = fold_scalars(program);
    if let Some(body) = program.body {
        changed |= drop_unreached(program, body);
        changed |= drop_redundant(program, body);
        changed |= simplify_allocations(program, body);
        changed |= remove_empty_blocks(program, body);
        changed |= invert_empty_then(program, body);
    }
    changed
}

// ---- scalars

fn fold_scalars(program: &mut Program) -> bool {
    let folder = ConstantFolder::default();
    let changed = scalars::rewrite_outside_stmts(program, &mut |program, expr| folder.fold(program, expr));
    let assigned = assigned(program);
    let mut walk = StmtFolder {
        assigned,
        stmts: std::mem::take(&mut program.stmts),
        folder: ConstantFolder::default(),
        program,
        changed,
    };
    let units: Vec<BlockId> = walk.program.units.iter().filter_map(|(_, unit)| unit.body).collect();
    for block in walk.program.body.into_iter().chain(units) {
        walk.block(block);
    }
    let StmtFolder { stmts, changed, program, .. } = walk;
    program.stmts = stmts;
    changed
}

/// Returns the scalars that statements assign. If such a scalar is a loop index, its value may leave the
/// loop's bounds.
fn assigned(program: &Program) -> FxHashSet<SymbolId> {
    let lets = program.stmts.iter().filter_map(|(_, stmt)| match stmt {
        Stmt::Let(symbol, _) => Some(*symbol),
        Stmt::Op(_) | Stmt::For(_) | Stmt::If(_) => None,
    });
    lets.collect()
}

/// Folds the scalar expressions of statements, given the index ranges of the enclosing loops.
struct StmtFolder<'p> {
    /// The program. Its `stmts` are moved into the field `stmts` during the walk.
    program: &'p mut Program,
    stmts: Arena<StmtId, Stmt>,
    assigned: FxHashSet<SymbolId>,
    folder: ConstantFolder,
    changed: bool,
}

impl StmtFolder<'_> {
    fn block(&mut self, block: BlockId) {
        for at in 0..self.program.blocks[block].len() {
            self.stmt(self.program.blocks[block][at]);
        }
    }

    fn stmt(&mut self, id: StmtId) {
        let Self { program, stmts, folder, .. } = self;
        let fold = &mut |program: &mut Program, expr| folder.fold(program, expr);
        let changed = scalars::rewrite_in_stmt(program, stmts, id, fold);
        let mut inner: [Option<BlockId>; 2] = [None, None];
        let mut index = None;
        let mut listed: Vec<StmtId> = Vec::new();
        match &stmts[id] {
            Stmt::Op(it) => listed.extend(it.get(attr::TRANSFERS).into_iter().flatten()),
            Stmt::Let(..) => (),
            Stmt::For(it) => {
                inner[0] = Some(it.body);
                index = Some((it.index, it.start, it.stop));
            }
            Stmt::If(it) => inner = [Some(it.then_block), it.else_block],
        }
        self.changed |= changed;
        listed.into_iter().for_each(|it| self.stmt(it));
        let outer = index.map(|(symbol, start, stop)| {
            let bounds = self.program.constant(start).zip(self.program.constant(stop));
            let range = bounds.filter(|(start, stop)| start < stop).map(|(start, stop)| (start, stop - 1));
            let range = range.filter(|_| !self.assigned.contains(&symbol));
            (symbol, self.set_range(symbol, range))
        });
        inner.into_iter().flatten().for_each(|block| self.block(block));
        if let Some((symbol, range)) = outer {
            self.set_range(symbol, range);
        }
    }

    fn set_range(&mut self, symbol: SymbolId, range: Option<(i64, i64)>) -> Option<(i64, i64)> {
        match range {
            Some(range) => self.folder.ranges.insert(symbol, range),
            None => self.folder.ranges.remove(&symbol),
        }
    }
}

// ---- control flow

/// Returns how to rewrite a loop or branch whose bounds or condition are constants.
fn control_flow_edit(program: &Program, stmt: StmtId) -> StmtEdit {
    match &program.stmts[stmt] {
        Stmt::Op(_) | Stmt::Let(..) => StmtEdit::Keep,
        Stmt::For(it) => match (program.constant(it.start), program.constant(it.stop)) {
            (Some(start), Some(stop)) if start >= stop && program.loop_condition(it).is_none() => {
                StmtEdit::Remove
            }
            _ => StmtEdit::Keep,
        },
        Stmt::If(it) => match (truth(program, it.cond), it.else_block) {
            (Some(true), _) => StmtEdit::Splice(it.then_block),
            (Some(false), Some(other)) => StmtEdit::Splice(other),
            (Some(false), None) => StmtEdit::Remove,
            (None, _) => StmtEdit::Keep,
        },
    }
}

/// Removes unreachable statements, unless the program does not pass the verifier without them.
fn drop_unreached(program: &mut Program, body: BlockId) -> bool {
    let is_kept = |stmt| matches!(control_flow_edit(program, stmt), StmtEdit::Keep);
    if program.stmts_in(body).all(is_kept) {
        return false;
    }
    let before = program.clone();
    rewrite(program, body, &mut |program, stmt| control_flow_edit(program, stmt));
    let fits = !has_errors(&grammar::verify(program));
    if !fits {
        *program = before;
    }
    fits
}

/// Negates the condition of each branch with an empty THEN, and makes its ELSE the THEN.
fn invert_empty_then(program: &mut Program, body: BlockId) -> bool {
    rewrite(program, body, &mut |program, stmt| {
        let Stmt::If(it) = program.stmts[stmt].clone() else { return StmtEdit::Keep };
        let (true, Some(other)) = (program.blocks[it.then_block].is_empty(), it.else_block) else {
            return StmtEdit::Keep;
        };
        let cond = negate(program, it.cond);
        if let Stmt::If(it) = &mut program.stmts[stmt] {
            (it.cond, it.then_block, it.else_block) = (cond, other, None);
        }
        StmtEdit::Changed
    })
}

// ---- storage and views

/// Removes long ALLOCATEs of bound names, and views that are in effect already.
fn drop_redundant(program: &mut Program, body: BlockId) -> bool {
    let facts = bindings::analyze_bindings(program);
    rewrite(program, body, &mut |program, stmt| match &program.stmts[stmt] {
        Stmt::Op(it) if it.op == Op::AllocateOnce && facts.already_bound.contains(&stmt) => StmtEdit::Remove,
        Stmt::Op(_) if facts.redundant_views.contains(&stmt) => StmtEdit::Remove,
        Stmt::Op(_) | Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => StmtEdit::Keep,
    })
}

/// Turns a long ALLOCATE into a short one if its name is certainly unbound: it is outside of loops, and no
/// statement before it mentions the tensor.
fn simplify_allocations(program: &mut Program, body: BlockId) -> bool {
    let mut seen: FxHashSet<TensorId> = Program::tensors_of(&program.inputs).collect();
    let mut short = Vec::new();
    collect_first_allocations(program, body, &mut seen, &mut short);
    for stmt in &short {
        if let Stmt::Op(it) = &mut program.stmts[*stmt] {
            it.op = Op::Allocate;
            it.attrs.retain(|(key, _)| *key == attr::MEM_TYPE || *key == attr::ZERO_INIT);
        }
    }
    !short.is_empty()
}

fn collect_first_allocations(
    program: &Program,
    block: BlockId,
    seen: &mut FxHashSet<TensorId>,
    short: &mut Vec<StmtId>,
) {
    for stmt in program.block(block) {
        match &program.stmts[*stmt] {
            Stmt::Op(op_stmt) => {
                let plain =
                    op_stmt.get(attr::RESETS_TO_ZERO) != Some(true) && op_stmt.get(attr::ALIAS).is_none();
                let first = op_stmt.out_tensor().is_some_and(|out| !seen.contains(&out));
                if op_stmt.op == Op::AllocateOnce && plain && first {
                    short.push(*stmt);
                }
                seen.extend(op_stmt.mentions(program));
            }
            Stmt::Let(..) => (),
            Stmt::For(it) => seen.extend(program.ops_in(it.body).flat_map(|(_, it)| it.mentions(program))),
            Stmt::If(it) => {
                collect_first_allocations(program, it.then_block, seen, short);
                it.else_block
                    .iter()
                    .for_each(|other| collect_first_allocations(program, *other, seen, short));
            }
        }
    }
}
