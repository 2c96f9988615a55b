//! Calls, loops and branches.

use grammar::{Code, DType, Op};

use super::{Imported, Importer, MAX_CALLS, Results, lift::needed};
use crate::{
    tree::{Block, Operation, Use},
    value::{Scalar, Splat, Value},
};

/// The greatest number of statements of a loop that data end.
const MAX_SELECTED: usize = 100_000;

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
        let depth = self.choices.len();
        let results = self.iterations(op, [condition, body], operands);
        self.choices.truncate(depth);
        results
    }

    /// Imports every iteration of a loop. Where data decide whether one is executed, it is imported up to the bound that the condition
    /// states, and the values are selected with which the loop ends; without such a bound, it stays a loop.
    fn iterations(
        &mut self,
        op: &'m Operation<'s>,
        [condition, body]: [&'m Block<'s>; 2],
        mut values: Vec<Value>,
    ) -> Results {
        let depth = self.choices.len();
        let decisive = decisive(condition, body);
        let limit = self.out.size().saturating_add(MAX_SELECTED);
        // Whether the loop has not ended, and its values if it has.
        let mut ended: Option<(Value, Vec<Value>)> = None;
        // The import before data decide for the first time, and the values of the loop there.
        let mut before: Option<(Box<Self>, Vec<Value>)> = None;
        loop {
            let found = match self.region_with(condition, values.clone()) {
                Err(it) if before.is_some() && it.code == Code::UnboundedLoop => {
                    return self.as_loop(op, [condition, body], before);
                }
                found => found?,
            };
            let [goes_on] = self.operands(op, found)?;
            match goes_on.constant() {
                _ if goes_on.ty() != (&[], DType::Bool) => {
                    return Err(self.bad_module("the condition is not one boolean", "expected `tensor<i1>`"));
                }
                Some(Scalar::Bool(false)) => return Ok(ended.map_or(values, |it| it.1)),
                Some(_) => {}
                None => {
                    if before.is_none() {
                        before = Some((Box::new(self.clone()), values.clone()));
                        if self.unbounded.contains(&op.span) {
                            return self.as_loop(op, [condition, body], before);
                        }
                    }
                    let (is_alive, last) = match ended {
                        Some((is_alive, last)) => (self.binary_values("and", is_alive, goes_on)?, last),
                        None => (goes_on, values.clone()),
                    };
                    self.choices.truncate(depth);
                    self.choices.push(self.choice(op, &is_alive));
                    ended = Some((is_alive, last));
                }
            }
            let next = match self.region_with(body, values.clone()) {
                Err(it) if before.is_some() && it.code == Code::UnboundedLoop => {
                    return self.as_loop(op, [condition, body], before);
                }
                next => next?,
            };
            let is_first = before.as_ref().is_some_and(|it| is_same_state(&it.1, &values));
            if is_first && !self.may_be_bounded(condition, &values, &next) {
                return self.as_loop(op, [condition, body], before);
            }
            if let Some((is_alive, last)) = &mut ended {
                let has_changed = |at: &usize| !is_known_equal(next.get(*at), values.get(*at));
                if self.out.size() > limit || !decisive.iter().any(has_changed) {
                    return self.as_loop(op, [condition, body], before);
                }
                for (next, last) in next.iter().zip(last).filter(|(next, last)| !is_same(next, last)) {
                    [next, &*last].into_iter().for_each(|it| self.store(it));
                    *last = self.select_values(is_alive.clone(), next.clone(), last.clone())?;
                }
            }
            values = next;
        }
    }

    /// Returns whether the condition becomes false where numbers go on as in this iteration, whatever the data are.
    fn may_be_bounded(&mut self, condition: &'m Block<'s>, values: &[Value], next: &[Value]) -> bool {
        let state = self.clone();
        let far = values.iter().zip(next).map(|(value, next)| far(value, next)).collect();
        let found = self.region_with(condition, far);
        *self = state;
        found.map_or(true, |it| it.first().and_then(Value::constant) == Some(&Scalar::Bool(false)))
    }

    /// Imports a loop that no constant bounds as one of the program, from where data decided first.
    fn as_loop(
        &mut self,
        op: &'m Operation<'s>,
        regions: [&'m Block<'s>; 2],
        before: Option<(Box<Self>, Vec<Value>)>,
    ) -> Results {
        let Some((state, values)) = before else { return Err(self.missing(op, "condition")) };
        *self = *state;
        self.unbounded.insert(op.span);
        self.loop_on_data(op, regions, values)
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

/// Returns the values of a loop on which its condition depends, also in later iterations.
fn decisive<'s>(condition: &Block<'s>, body: &Block<'s>) -> Vec<usize> {
    let among = |block: &Block<'s>, wanted: &[Use<'s>]| -> Vec<usize> {
        let needed = needed(block, wanted.iter().map(|it| it.name));
        (0..).zip(&block.arguments).filter(|(_, it)| needed.contains(it.name)).map(|(at, _)| at).collect()
    };
    let [goes_on, next] = [condition, body].map(|it| it.ops.last().map_or(&[][..], |it| &it.operands));
    let mut found = among(condition, goes_on);
    let mut done = 0;
    while let Some(at) = found.get(done) {
        let new = among(body, next.get(*at..=*at).unwrap_or_default());
        let new: Vec<usize> = new.into_iter().filter(|it| !found.contains(it)).collect();
        found.extend(new);
        done += 1;
    }
    found
}

/// Returns whether two values are the same number, or both not known.
fn is_known_equal(a: Option<&Value>, b: Option<&Value>) -> bool {
    match (a, b) {
        (Some(Value::Tensor(_)), Some(Value::Tensor(_))) => true,
        (Some(a), Some(b)) => is_same(a, b),
        _ => false,
    }
}

/// Returns the value of many iterations later, if numbers go on as from one iteration to the next.
fn far(value: &Value, next: &Value) -> Value {
    let (Value::Splat(a), Value::Splat(b)) = (value, next) else { return next.clone() };
    let scalar = match (a.scalar, b.scalar) {
        (Scalar::Int(a), Scalar::Int(b)) => Scalar::Int(
            b.saturating_sub(a).saturating_mul(1 << 20).saturating_add(b).clamp(-(1 << 30), 1 << 30),
        ),
        (Scalar::Float(a), Scalar::Float(b)) => Scalar::Float(b + (b - a) * 1e6),
        (_, other) => other,
    };
    Value::Splat(Splat { scalar, ..b.clone() })
}

fn is_same_state(a: &[Value], b: &[Value]) -> bool {
    a.iter().zip(b).all(|(a, b)| is_same(a, b))
}

fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Splat(a), Value::Splat(b)) => a.scalar == b.scalar,
        (Value::Tensor(a), Value::Tensor(b)) => a.id == b.id,
        _ => false,
    }
}
