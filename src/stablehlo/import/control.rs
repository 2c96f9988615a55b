//! Calls, loops and branches.

use grammar::{codes::Code, diagnostic::Diagnostic, dtype::DType, ops::Op};

use super::{Imported, Importer, MAX_CALLS, Results};
use crate::{
    tree::{Block, Operation},
    value::{Scalar, Splat, Value},
};

impl<'m, 's> Importer<'m, 's> {
    pub(crate) fn call(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let function = self.callee(op)?;
        let Some(body) = function.regions.first() else { return Err(self.missing(function, "body")) };
        let results = self.in_call(|it| it.region_with(body, operands))?;
        self.check_function(function, &results)?;
        Ok(results)
    }

    /// Returns the function that an operation calls.
    pub(super) fn callee(&self, op: &'m Operation<'s>) -> Imported<&'m Operation<'s>> {
        let callee = if op.name == "stablehlo.composite" { "decomposition" } else { "callee" };
        let name = op.symbol(callee).ok_or_else(|| self.missing(op, callee))?;
        self.functions.get(name).copied().ok_or_else(|| {
            self.bad_module(
                format!("the module has no function `@{name}`"),
                "expected a function of the module",
            )
        })
    }

    /// Imports the body of a function, which does not know the names of its caller.
    pub(super) fn in_call(&mut self, import: impl FnOnce(&mut Self) -> Results) -> Results {
        if self.calls == MAX_CALLS {
            return Err(self.bad_module(
                format!("more than {MAX_CALLS} calls within each other"),
                "does `@main` call itself?",
            ));
        }
        self.calls += 1;
        let frame = std::mem::replace(&mut self.frame, self.scopes.len());
        let results = import(self);
        self.frame = frame;
        self.calls -= 1;
        results
    }

    pub(crate) fn while_loop(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [condition, body] = &op.regions[..] else { return Err(self.missing(op, "regions")) };
        let mut values = operands;
        loop {
            let goes_on = self.region_with(condition, values.clone())?;
            match goes_on.first().and_then(Value::constant) {
                Some(Scalar::Bool(true)) => values = self.region_with(body, values)?,
                Some(Scalar::Bool(false)) => return Ok(values),
                _ => {
                    let message = "the number of iterations depends on data";
                    let it = Diagnostic::new(
                        Code::UnboundedLoop,
                        op.span,
                        message,
                        "the condition is not a constant",
                    );
                    return Err(Box::new(it.help("use `lax.scan`, or `lax.fori_loop` with constant bounds: hir imports every iteration")));
                }
            }
        }
    }

    /// Imports the branch with a number, which is the last one if there is no such branch. Where the number is computed, all
    /// branches are imported and their results selected.
    pub(crate) fn branches(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [selector] = self.operands(op, operands)?;
        let Some((last, first)) = op.regions.split_last() else { return Err(self.missing(op, "regions")) };
        let is_if = op.name == "stablehlo.if";
        if !selector.shape().is_empty() || is_if && (selector.dtype() != DType::Bool || first.len() != 1) {
            return Err(
                self.bad_module("the condition is not one value", "expected an operand without dimensions")
            );
        }
        if let Some(stated) = selector.constant() {
            let taken =
                (0..first.len()).find(|at| branch_number(op, *at) == *stated).map_or(last, |at| &first[at]);
            return self.region_with(taken, Vec::new());
        }
        let choice = self.choice(op, &selector);
        self.choices.push(choice);
        let results = self.selected_branch(op, &selector, last, first);
        self.choices.pop();
        results
    }

    /// Imports all branches, and selects the results of the one with the number.
    fn selected_branch(
        &mut self,
        op: &'m Operation<'s>,
        selector: &Value,
        last: &'m Block<'s>,
        first: &'m [Block<'s>],
    ) -> Results {
        let mut results = self.region_with(last, Vec::new())?;
        for (at, branch) in first.iter().enumerate() {
            let own = self.region_with(branch, Vec::new())?;
            if own.len() != results.len() {
                return Err(self.bad_module(
                    "the branches return different numbers of values",
                    "expected equal numbers",
                ));
            }
            let number = branch_number(op, at);
            let it = Splat { scalar: number, shape: Vec::new(), dtype: selector.dtype() };
            let is_taken = self.folded_or_mapped(Op::Eq, selector.clone(), Value::Splat(it), DType::Bool)?;
            own.iter().chain(&results).for_each(|it| self.store(it));
            let pairs = own.into_iter().zip(results);
            results = pairs
                .map(|(own, other)| self.select_values(is_taken.clone(), own, other))
                .collect::<Imported<_>>()?;
        }
        Ok(results)
    }

    pub(crate) fn optimization_barrier(&mut self, _: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        Ok(operands)
    }
}

/// Returns the number that selects a branch which is not the last one.
fn branch_number(op: &Operation<'_>, at: usize) -> Scalar {
    if op.name == "stablehlo.if" { Scalar::Bool(at == 0) } else { Scalar::Int(at as i64) }
}
