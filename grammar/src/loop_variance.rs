//! Dependence of expressions and tensors on scalars such as loop indices.

use rustc_hash::FxHashSet;

use crate::ir::{Attr, ExprId, For, Program, Stmt, SymbolId, TensorId};

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

/// Returns the tensors that are rebound in each iteration of a loop, in the order of the text: those whose
/// view or storage an attribute selects by the loop index, and those computed from them.
pub fn loop_variant_tensors(program: &Program, it: &For) -> Vec<TensorId> {
    let mut found: Vec<TensorId> = Vec::new();
    let mut seen: FxHashSet<TensorId> = FxHashSet::default();
    program.walk(it.body, &mut |stmt| {
        let Stmt::Op(op) = &program.stmts[stmt] else { return };
        let depends = |expr: &ExprId| program.depends_on(*expr, &|symbol| symbol == it.index);
        if op.attrs.iter().any(|(_, attr)| matches!(attr, Attr::Scalar(expr) if depends(expr)))
            || Program::tensors_of(&op.args).any(|arg| seen.contains(&arg))
        {
            found.extend(Program::tensors_of(&op.outs).filter(|out| seen.insert(*out)));
        }
    });
    found
}
