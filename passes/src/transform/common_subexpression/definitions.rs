//! Merges scalar definitions with equal values.

use grammar::{ExprId, Program, SymbolId};
use hir_ir::build;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::rewrite::{scalars, substitute::Substitution};

/// Replaces the scalars of equal definitions by the first of them. Returns whether it removed a definition.
pub(super) fn merge_definitions(program: &mut Program) -> bool {
    let bound = scalars::assigned_symbols(program);
    let mut first: FxHashMap<ExprId, SymbolId> = FxHashMap::default();
    let mut same = Substitution::default();
    let mut dropped = FxHashSet::default();
    for (symbol, value) in program.definitions.clone() {
        let itself = build::symbol(program, symbol);
        same.symbols.insert(symbol, itself);
        if bound.contains(&symbol) {
            continue;
        }
        // The definitions that this one uses come before it.
        let value = same.expr(program, value);
        let kept = *first.entry(value).or_insert(symbol);
        if kept != symbol {
            let kept = build::symbol(program, kept);
            same.symbols.insert(symbol, kept);
            dropped.insert(symbol);
        }
    }
    if dropped.is_empty() {
        return false;
    }
    scalars::rewrite_outside_stmts(program, &mut |program, expr| same.expr(program, expr));
    scalars::rewrite_in_stmts(program, &mut |program, expr| same.expr(program, expr));
    // Axes with the same number keep their texts, and with them their scalars.
    let mut used = Vec::new();
    for (_, axis) in program.axes.iter() {
        let bounds = [Some(axis.extent), axis.start, axis.stop, axis.expanded];
        bounds.into_iter().flatten().for_each(|it| program.collect_symbols(it, &mut used));
    }
    let before = program.definitions.len();
    program.definitions.retain(|symbol, _| !dropped.contains(symbol) || used.contains(symbol));
    program.definitions.len() != before
}
