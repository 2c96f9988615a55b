//! Calls and loops.

use grammar::{codes::Code, diagnostic::Diagnostic};

use super::{Imported, Importer, MAX_CALLS};
use crate::{
    tree::Operation,
    value::{Scalar, Value},
};

impl<'m, 's> Importer<'m, 's> {
    pub(crate) fn call(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Imported<Vec<Value>> {
        let name = op.symbol("callee").ok_or_else(|| self.missing(op, "callee"))?;
        let Some(function) = self.functions.get(name).copied() else {
            return Err(self.bad_module(
                format!("the module has no function `@{name}`"),
                "expected a function of the module",
            ));
        };
        let Some(body) = function.regions.first() else { return Err(self.missing(function, "body")) };
        if self.calls == MAX_CALLS {
            return Err(self.bad_module(
                format!("more than {MAX_CALLS} calls within each other"),
                "does `@main` call itself?",
            ));
        }
        self.calls += 1;
        let frame = std::mem::replace(&mut self.frame, self.scopes.len());
        let results = self.region_with(body, operands);
        self.frame = frame;
        self.calls -= 1;
        results
    }

    pub(crate) fn while_loop(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Imported<Vec<Value>> {
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

    pub(crate) fn optimization_barrier(
        &mut self,
        _: &'m Operation<'s>,
        operands: Vec<Value>,
    ) -> Imported<Vec<Value>> {
        Ok(operands)
    }
}
