//! inline-definitions: substitutes the scalars of `Index definitions:` where they are used.
//!
//! Before:
//! ```text
//!   T2 = HirAliasSelect( T1, axis = iS1{i84}, index = i85 )
//!
//! Index definitions:
//!   i84 = 2 * 4;
//!   i85 = ( rank + 1 ) % i84;
//!   i86 = i84 * 2;
//! ```
//! After:
//! ```text
//!   T2 = HirAliasSelect( T1, axis = iS1{( 2 * 4 )}, index = ( ( rank + 1 ) % ( 2 * 4 ) ) )
//! ```
//!
//! The pass substitutes them in statements, streams, bounds, predicates, extents and options. It keeps a
//! definition if a statement assigns its scalar, which hides the definition, and if two axes with the same
//! number would get the same text.

use grammar::{Code, Diagnostic, Expr, ExprId, Operand, Program, Stmt, Stream, SymbolId, TensorId};
use hir_ir::build;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    pass::{Arguments, Change, Pass, Remarks},
    rewrite::{scalars, substitute::Substitution},
};

/// The pass.
pub(crate) const PASS: Pass = Pass::new("inline-definitions", include_str!("inline_definitions.rs"), run)
    .about("substitute scalar definitions where they are used")
    .for_one_rank();

/// The maximum number of parts of an inlined definition.
const MAX_DEFINITION_PARTS: usize = 10_000;

/// The maximum number of parts of all definitions at all their uses in statements: tens of megabytes of text.
const MAX_TOTAL_PARTS: usize = 10_000_000;

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let hidden = scalars::assigned_symbols(program);
    let mut written = Substitution::default();
    let mut sizes = FxHashMap::default();
    // A definition comes before the definitions that use it.
    for (symbol, value) in program.definitions.clone() {
        let value = if hidden.contains(&symbol) {
            build::symbol(program, symbol)
        } else {
            written.expr(program, value)
        };
        if size(program, value, &mut sizes) > MAX_DEFINITION_PARTS {
            return Err(too_large_error(program, symbol));
        }
        written.symbols.insert(symbol, value);
    }
    if inlined_parts(program, &mut written, &mut sizes) > MAX_TOTAL_PARTS {
        let message =
            format!("the definitions, inlined at every use, have more than {MAX_TOTAL_PARTS} parts");
        let it = Diagnostic::new(Code::TooLarge, program.spans.header, message, "in this program");
        return Err(it.help("keep the definitions, or fold them first with `canonicalize`"));
    }
    let mut rewrite = |program: &mut Program, expr| written.expr(program, expr);
    let mut changed = scalars::rewrite_outside_stmts(program, &mut rewrite);
    changed |= scalars::rewrite_in_stmts(program, &mut rewrite);
    let mut used = Vec::new();
    for (_, axis) in program.axes.iter() {
        let bounds = [Some(axis.extent), axis.start, axis.stop, axis.expanded];
        bounds.into_iter().flatten().for_each(|it| program.collect_symbols(it, &mut used));
    }
    let used: FxHashSet<SymbolId> = used.into_iter().collect();
    let before = program.definitions.len();
    program.definitions.retain(|symbol, _| hidden.contains(symbol) || used.contains(symbol));
    changed |= program.definitions.len() != before;
    Change::verified(program, changed)
}

fn too_large_error(program: &Program, symbol: SymbolId) -> Diagnostic {
    let message =
        format!("`{}`, inlined, has more than {MAX_DEFINITION_PARTS} parts", program.symbols[symbol]);
    let span = program.symbol_span(symbol);
    Diagnostic::new(Code::TooLarge, span, message, "too large to repeat at every use")
        .help("keep the definitions, or fold them first with `canonicalize`")
}

/// Returns the number of expression parts that inlining adds to the printed statements.
fn inlined_parts(
    program: &mut Program,
    written: &mut Substitution,
    sizes: &mut FxHashMap<ExprId, usize>,
) -> usize {
    let mut known: FxHashMap<ExprId, usize> = FxHashMap::default();
    let mut grown = |program: &mut Program, expr: ExprId| {
        if let Some(size) = known.get(&expr) {
            return *size;
        }
        let new = written.expr(program, expr);
        let size = if new == expr { 0 } else { size(program, new, sizes) };
        known.insert(expr, size);
        size
    };
    let mut tensors: FxHashMap<TensorId, usize> = FxHashMap::default();
    let mut total = 0usize;
    for id in program.stmts.ids() {
        let mut stmt = program.stmts[id].clone();
        let mut scalars = Vec::new();
        match &mut stmt {
            Stmt::Op(it) => {
                it.scalars_mut(&mut |expr| scalars.push(*expr));
                for operand in it.outs.iter().chain(&it.args) {
                    match operand {
                        Operand::Stream(stream) => {
                            if let Stream::Index(index) = program.streams[*stream] {
                                scalars.push(index);
                            }
                        }
                        Operand::Tensor(tensor) => {
                            if !tensors.contains_key(tensor) {
                                let axes = program.tensors[*tensor].loop_domain.clone();
                                let sizes =
                                    axes.iter().map(|axis| grown(program, program.axes[*axis].extent));
                                let size = sizes.fold(0usize, usize::saturating_add);
                                tensors.insert(*tensor, size);
                            }
                            total = total.saturating_add(tensors[tensor]);
                        }
                        Operand::Scalar(_) => (),
                    }
                }
            }
            Stmt::Let(_, value) => scalars.push(*value),
            Stmt::For(it) => scalars.extend([it.start, it.stop]),
            Stmt::If(it) => scalars.push(it.cond),
        }
        for expr in scalars {
            total = total.saturating_add(grown(program, expr));
        }
    }
    total
}

/// Returns the number of parts of an expression as printed. A shared part counts at every occurrence.
fn size(program: &Program, expr: ExprId, known: &mut FxHashMap<ExprId, usize>) -> usize {
    if let Some(size) = known.get(&expr) {
        return *size;
    }
    let parts: Vec<ExprId> = match &program.exprs[expr] {
        Expr::Int(_) | Expr::Bool(_) | Expr::Float(..) | Expr::Symbol(_) => Vec::new(),
        Expr::Prefix(_, operand) => vec![*operand],
        Expr::Infix(_, lhs, rhs) => vec![*lhs, *rhs],
        Expr::Call(_, args) => args.clone(),
    };
    let size = parts.iter().fold(1, |sum: usize, part| sum.saturating_add(size(program, *part, known)));
    known.insert(expr, size);
    size
}
