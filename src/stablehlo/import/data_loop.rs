//! Loops that data end, without a constant bound: they stay loops of the program (`WHILE`).
//!
//! Each value that an iteration changes is a tensor that is allocated before the loop. An iteration computes all new values, copies them, and
//! then writes them: a new value may be a view of an old one.

use grammar::{DType, Op, TensorId};
use hir_ir::build::apply;
use rustc_hash::FxHashMap;

use super::{Imported, Importer, Results, pieces::Pieces, types};
use crate::{
    tree::{Block, Operation, Type},
    value::{AxisSet, Tensor, Value},
};

/// The greatest number of iterations, which `--set` changes: the program names it. A plan has all of them.
const MAX_ITERATIONS: i64 = 1000;

/// What is known of tensors. A loop writes other values into them, and may not execute the statements of its body.
#[derive(Clone)]
struct Facts {
    iotas: FxHashMap<TensorId, usize>,
    complex_parts: FxHashMap<TensorId, ([Value; 2], bool)>,
    joins: FxHashMap<TensorId, Pieces>,
    at_most: FxHashMap<TensorId, i64>,
}

impl<'m, 's> Importer<'m, 's> {
    /// Imports a loop that begins with these values as a loop of the program.
    pub(super) fn loop_on_data(
        &mut self,
        op: &'m Operation<'s>,
        regions: [&'m Block<'s>; 2],
        values: Vec<Value>,
    ) -> Results {
        let all: Vec<Value> = self.scopes.iter().flat_map(|it| it.values().flatten().cloned()).collect();
        for it in all.into_iter().chain(values.iter().cloned()) {
            // What is stored where it is first read might be stored in the loop.
            match it.dtype().part() {
                Some(_) => _ = self.stored(it),
                None => self.store(&it),
            }
        }
        let mut axes: Vec<AxisSet> = values.iter().map(Value::axes).collect();
        loop {
            let before = self.clone();
            let (results, wider) = self.loop_with_axes(op, regions, &values, &axes)?;
            if wider == axes {
                return Ok(results);
            }
            // The values of an iteration differ along more axes than those of the one before.
            (*self, axes) = (before, wider);
        }
    }

    /// Imports a loop whose values differ along these axes at first. Returns also the axes along which they differ in all iterations.
    fn loop_with_axes(
        &mut self,
        op: &'m Operation<'s>,
        [condition, body]: [&'m Block<'s>; 2],
        values: &[Value],
        axes: &[AxisSet],
    ) -> Imported<(Vec<Value>, Vec<AxisSet>)> {
        let next = body.ops.last().map_or(&[][..], |it| &it.operands);
        let results = types::results_of(op);
        let is_kept = |at: usize| {
            results.get(at).is_some_and(Type::is_token)
                || next
                    .get(at)
                    .is_some_and(|it| body.arguments.get(at).is_some_and(|own| own.name == it.name))
        };
        let mut state = values.to_vec();
        let mut variables: Vec<(usize, Tensor, Tensor)> = Vec::new();
        for (at, value) in state.iter_mut().enumerate().filter(|it| !is_kept(it.0)) {
            let first = self.stored(value.clone());
            let [variable, copy] = [(); 2].map(|()| self.variable(axes[at], &first));
            self.write(&variable, first);
            *value = Value::Tensor(variable.clone());
            variables.push((at, variable, copy));
        }
        let goes_on = self.goes_on(op, condition, &state)?;
        let flag = self.variable(goes_on.axes, &goes_on);
        let selector = Value::Tensor(goes_on.clone());
        self.write(&flag, goes_on);
        let choice = self.choice(op, &selector);
        self.choices.push(choice);
        let most = self.out.int(MAX_ITERATIONS);
        let most = self.out.define(false, most);
        let index = format!("iteration{}", self.visited);
        self.out.begin_while(&index, most, flag.id);
        let facts = self.facts();
        let found = self.region_with(body, state.clone())?;
        let mut wider = axes.to_vec();
        for (at, _, copy) in &variables {
            let value = found.get(*at).cloned().ok_or_else(|| self.missing(op, "results"))?;
            let value = self.stored(value);
            wider[*at] |= value.axes;
            if wider == axes {
                self.write(copy, value);
            }
        }
        for (_, variable, copy) in &variables {
            self.write(variable, copy.clone());
        }
        self.set_facts(facts.clone());
        let goes_on = self.goes_on(op, condition, &state)?;
        self.write(&flag, goes_on);
        self.set_facts(facts);
        self.out.end();
        self.choices.pop();
        Ok((state, wider))
    }

    /// Returns the condition for these values.
    fn goes_on(
        &mut self,
        op: &'m Operation<'s>,
        condition: &'m Block<'s>,
        state: &[Value],
    ) -> Imported<Tensor> {
        let facts = self.facts();
        let found = self.region_with(condition, state.to_vec())?;
        let [goes_on] = self.operands(op, found)?;
        if goes_on.ty() != (&[], DType::Bool) {
            return Err(self.bad_module("the condition is not one boolean", "expected `tensor<i1>`"));
        }
        let goes_on = self.stored(goes_on);
        self.set_facts(facts);
        Ok(goes_on)
    }

    fn facts(&self) -> Facts {
        Facts {
            iotas: self.iotas.clone(),
            complex_parts: self.complex_parts.clone(),
            joins: self.joins.clone(),
            at_most: self.at_most.clone(),
        }
    }

    fn set_facts(&mut self, facts: Facts) {
        Facts {
            iotas: self.iotas,
            complex_parts: self.complex_parts,
            joins: self.joins,
            at_most: self.at_most,
        } = facts;
    }

    /// Allocates a tensor for values like this one, which differ along these axes.
    fn variable(&mut self, axes: AxisSet, like: &Tensor) -> Tensor {
        let it = self.tensor(axes, &like.shape, like.dtype);
        self.out.allocate(it.id);
        it
    }

    /// Writes a value into a tensor that has storage.
    fn write(&mut self, to: &Tensor, value: Tensor) {
        let value = self.on_axes(value, to.axes);
        self.out.assign(to.id, apply(Op::Set, [value.id]));
    }
}
