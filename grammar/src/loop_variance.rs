//! Dependence of expressions and tensors on scalars such as loop indices.

use rustc_hash::FxHashSet;

use crate::ir::{ExprId, For, Program, Stmt, SymbolId, TensorId};

impl Program {
    /// Returns whether an expression depends, directly or through definitions, on a symbol for which `wanted`
    /// returns true.
    pub fn depends_on(&self, expr: ExprId, wanted: &dyn Fn(SymbolId) -> bool) -> bool {
        let mut seen = FxHashSet::default();
        let mut pending = vec![expr];
        while let Some(expr) = pending.pop() {
            let mut symbols = Vec::new();
            self.collect_symbols(expr, &mut symbols);
            for symbol in symbols {
                if wanted(symbol) {
                    return true;
                }
                if seen.insert(symbol) {
                    pending.extend(self.definitions.get(&symbol));
                }
            }
        }
        false
    }
}

/// Returns the tensors that are rebound in each iteration of a loop, in the order of the text: those that statements of
/// the body define from the loop index, directly or through scalars and other tensors.
pub fn loop_variant_tensors(program: &Program, it: &For) -> Vec<TensorId> {
    let mut found: Vec<TensorId> = Vec::new();
    let mut seen: FxHashSet<TensorId> = FxHashSet::default();
    let mut scalars = FxHashSet::from_iter([it.index]);
    loop {
        let before = scalars.len() + found.len();
        for stmt in program.stmts_in(it.body) {
            match &program.stmts[stmt] {
                Stmt::Op(op) => {
                    let mut depends = op.mentions(program).any(|it| seen.contains(&it));
                    op.scalars(&mut |expr| depends |= program.depends_on(expr, &|it| scalars.contains(&it)));
                    if depends {
                        found.extend(Program::tensors_of(&op.outs).filter(|out| seen.insert(*out)));
                    }
                }
                Stmt::Let(symbol, value) => {
                    if program.depends_on(*value, &|it| scalars.contains(&it)) {
                        scalars.insert(*symbol);
                    }
                }
                Stmt::For(_) | Stmt::If(_) => (),
            }
        }
        if scalars.len() + found.len() == before {
            return found;
        }
    }
}
