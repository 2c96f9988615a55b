//! inline-definitions: writes `Index definitions:` out where they are used.
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
//! Statements, streams, bounds, predicates, extents, options: all of them. A definition stays where a statement gives
//! its scalar another value, which hides the definition, and where two axes of one number would become the same text.

use grammar::{
    codes::Code,
    diagnostic::Diagnostic,
    ir::{Expr, ExprId, Program, SymbolId},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    blocks::rejected,
    create,
    pass::{Arguments, Change, Pass, Remarks},
    scalars,
    substitute::Substitution,
};

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "inline-definitions",
    description: "write scalar definitions out where they are used",
    options: &[],
    run,
};

/// The most parts of a definition that is written out.
const LARGEST: usize = 10_000;

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let hidden = scalars::bound(program);
    let mut written = Substitution::default();
    let mut sizes = FxHashMap::default();
    // Those that others name come first.
    for (symbol, value) in program.definitions.clone() {
        let value = match hidden.contains(&symbol) {
            true => create::symbol(program, symbol),
            false => written.expr(program, value),
        };
        if size(program, value, &mut sizes) > LARGEST {
            return Err(too_large(program, symbol));
        }
        written.symbols.insert(symbol, value);
    }
    let mut rewrite = |program: &mut Program, expr| written.expr(program, expr);
    let mut changed = scalars::outside(program, &mut rewrite);
    changed |= scalars::inside(program, &mut rewrite);
    let mut used = Vec::new();
    for (_, axis) in program.axes.iter() {
        let bounds = [Some(axis.extent), axis.start, axis.stop, axis.expanded];
        bounds.into_iter().flatten().for_each(|it| program.symbols_of(it, &mut used));
    }
    let used: FxHashSet<SymbolId> = used.into_iter().collect();
    let before = program.definitions.len();
    program.definitions.retain(|symbol, _| hidden.contains(symbol) || used.contains(symbol));
    changed |= program.definitions.len() != before;
    match rejected(program).filter(|_| changed) {
        Some(fault) => Err(fault),
        None => Ok(Change::from_flag(changed)),
    }
}

fn too_large(program: &Program, symbol: SymbolId) -> Diagnostic {
    let message = format!("`{}` written out has more than {LARGEST} parts", program.symbols[symbol]);
    let span = program.symbol_span(symbol);
    Diagnostic::new(Code::TooLarge, span, message, "too large to repeat at every use")
        .help("keep the definitions, or fold them first with `canonicalize`")
}

/// The number of an expression's parts as they are printed, those that are shared counted every time.
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
