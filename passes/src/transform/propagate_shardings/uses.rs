//! Finds the tensors whose shardings the pass may determine, and the statements that use them.

use grammar::{BlockId, Op, OpStmt, Program, Stmt, StmtId, SymbolId, TensorId};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::{row_shifts::RowSources, sharding::Sharding, stale_views::stale_views};

/// The tensors whose shardings the pass may determine, and the statements that use them.
pub(super) struct TensorUses {
    /// Intermediates and outputs without a mesh that only operators mention.
    pub(super) candidates: FxHashSet<TensorId>,
    /// Tensors that would be candidates if they were no views of storage that a statement writes again, with this
    /// statement.
    pub(super) views: FxHashMap<TensorId, StmtId>,
    /// The operators that the pass propagates shardings through, in program order.
    pub(super) operators: Vec<StmtId>,
    /// The operators that read or write each tensor.
    pub(super) stmts: FxHashMap<TensorId, Vec<StmtId>>,
    /// Where the rows of slices, cats and pads come from.
    pub(super) rows: RowSources,
}

impl TensorUses {
    pub(super) fn of(program: &Program, body: BlockId) -> Self {
        let (candidates, views) = (FxHashSet::default(), FxHashMap::default());
        let (operators, stmts) = (Vec::new(), FxHashMap::default());
        let mut uses = Self { candidates, views, operators, stmts, rows: RowSources::default() };
        if program.tensors.iter().all(|(_, it)| it.mesh.is_empty()) {
            return uses;
        }
        let dependent = rank_dependent_symbols(program, body);
        let mut blocks = vec![body];
        add_operator_loops(program, body, &dependent, &mut blocks);
        let in_reach: FxHashSet<StmtId> = blocks.iter().flat_map(|it| program.block(*it)).copied().collect();
        let mut excluded: FxHashSet<TensorId> = Program::tensors_of(&program.inputs).collect();
        for (stmt, it) in program.ops_in(body) {
            let is_operator = in_reach.contains(&stmt) && propagates(it);
            if is_operator {
                uses.operators.push(stmt);
            }
            if is_operator {
                it.mentions(program).for_each(|it| uses.stmts.entry(it).or_default().push(stmt));
            } else {
                excluded.extend(it.mentions(program));
            }
            if is_operator && !depends_on_rank(program, it, &dependent) {
                uses.candidates.extend(Program::tensors_of(&it.outs));
            } else {
                excluded.extend(Program::tensors_of(&it.outs));
            }
        }
        uses.candidates.retain(|tensor| {
            let it = &program.tensors[*tensor];
            let is_free = it.mesh.is_empty() && it.unit.is_none() && it.domains.allocation.is_none();
            is_free && !excluded.contains(tensor) && Sharding::of(program, *tensor).is_some()
        });
        if !uses.candidates.is_empty() {
            uses.views = stale_views(program, body);
            uses.views.retain(|tensor, _| uses.candidates.remove(tensor));
            uses.rows = RowSources::of(program, body);
        }
        uses
    }
}

/// Adds the bodies of the loops in a block, and of the loops in them, that contain only operators, scalars and such loops,
/// and that all ranks execute equally often.
fn add_operator_loops(
    program: &Program,
    block: BlockId,
    dependent: &FxHashSet<SymbolId>,
    found: &mut Vec<BlockId>,
) {
    for stmt in program.block(block) {
        if is_operator_loop(program, *stmt, dependent)
            && let Stmt::For(it) = &program.stmts[*stmt]
        {
            found.push(it.body);
            add_operator_loops(program, it.body, dependent, found);
        }
    }
}

fn is_operator_loop(program: &Program, stmt: StmtId, dependent: &FxHashSet<SymbolId>) -> bool {
    let Stmt::For(it) = &program.stmts[stmt] else { return false };
    it.axis.is_none()
        && !dependent.contains(&it.index)
        && program.block(it.body).iter().all(|inner| match &program.stmts[*inner] {
            Stmt::Op(it) => propagates(it),
            Stmt::Let(..) => true,
            Stmt::For(_) => is_operator_loop(program, *inner, dependent),
            Stmt::If(_) => false,
        })
}

/// Returns whether the pass propagates shardings through a statement.
fn propagates(it: &OpStmt) -> bool {
    it.computes() || it.op == Op::Select
}

/// Returns whether a scalar of the statement differs between ranks, or may.
fn depends_on_rank(program: &Program, it: &OpStmt, dependent: &FxHashSet<SymbolId>) -> bool {
    let mut found = false;
    it.scalars(&mut |expr| found |= program.depends_on(expr, &|it| differs(program, it, dependent)));
    found
}

fn differs(program: &Program, symbol: SymbolId, dependent: &FxHashSet<SymbolId>) -> bool {
    let name = program.symbols[symbol].as_str();
    dependent.contains(&symbol) || name == "rank" || name.starts_with("deviceIdx.")
}

/// Returns the scalars of statements and the loop indices whose values differ between ranks, or may.
fn rank_dependent_symbols(program: &Program, body: BlockId) -> FxHashSet<SymbolId> {
    let mut found = FxHashSet::default();
    // A scalar of a branch has a value only on the ranks that take it.
    let branches = program.stmts_in(body).filter(|it| matches!(program.stmts[*it], Stmt::If(_)));
    for stmt in branches.flat_map(|it| program.stmts_at(it)) {
        if let Stmt::Let(symbol, _) = &program.stmts[stmt] {
            found.insert(*symbol);
        }
    }
    // A scalar may depend on one that a later statement of a loop assigns.
    loop {
        let known = found.len();
        for stmt in program.stmts_in(body) {
            let (symbol, values) = match &program.stmts[stmt] {
                Stmt::Let(symbol, value) => (*symbol, vec![*value]),
                Stmt::For(it) => (it.index, vec![it.start, it.stop]),
                Stmt::Op(_) | Stmt::If(_) => continue,
            };
            if values.iter().any(|it| program.depends_on(*it, &|it| differs(program, it, &found))) {
                found.insert(symbol);
            }
        }
        if found.len() == known {
            return found;
        }
    }
}
