//! Scalar definitions with equal values.

use grammar::ir::{ExprId, Program, SymbolId};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::rewrite::{builder, scalars, substitute::Substitution};

/// Gives the scalars of equal definitions one name; false where there is nothing to do.
pub(super) fn merge_definitions(program: &mut Program) -> bool {
    let bound = scalars::assigned_symbols(program);
    let mut first: FxHashMap<ExprId, SymbolId> = FxHashMap::default();
    let mut same = Substitution::default();
    let mut dropped = FxHashSet::default();
    for (symbol, value) in program.definitions.clone() {
        let itself = builder::symbol(program, symbol);
        same.symbols.insert(symbol, itself);
        if bound.contains(&symbol) {
            continue;
        }
        // Definitions that this one names stand before it.
        let value = same.expr(program, value);
        let kept = *first.entry(value).or_insert(symbol);
        if kept != symbol {
            let kept = builder::symbol(program, kept);
            same.symbols.insert(symbol, kept);
            dropped.insert(symbol);
        }
    }
    if dropped.is_empty() {
        return false;
    }
    scalars::rewrite_outside_stmts(program, &mut |program, expr| same.expr(program, expr));
    scalars::rewrite_in_stmts(program, &mut |program, expr| same.expr(program, expr));
    // Axes of one number keep their texts, and with them their scalars.
    let mut used = Vec::new();
    for (_, axis) in program.axes.iter() {
        let bounds = [Some(axis.extent), axis.start, axis.stop, axis.expanded];
        bounds.into_iter().flatten().for_each(|it| program.collect_symbols(it, &mut used));
    }
    let before = program.definitions.len();
    program.definitions.retain(|symbol, _| !dropped.contains(symbol) || used.contains(symbol));
    program.definitions.len() != before
}
