//! Statements that compute on their rank, and HostUnits.

use std::rc::Rc;

use grammar::{
    attr,
    ir::{Expr, OpStmt, Operand as Named, Program, Stmt, TensorId},
    ops::TypeRule,
    rules::Aliasing,
    scalars::Value,
};
use rustc_hash::FxHashMap;

use super::{Binding, Result, Unroller};
use crate::{
    operators::rearranged,
    part::{Part, Sharded, contains},
    tape::{Compute, Operand, StepKind},
};

impl Unroller<'_> {
    pub(super) fn is_local(&self, stmt: &OpStmt, args: &[TensorId], out: TensorId) -> Result<bool> {
        if self.rank.is_none() || self.program.tensors[out].unit.is_some() {
            return Ok(true);
        }
        let parts = args.iter().map(|it| Ok((*it, self.part(*it, None)?))).collect::<Result<Vec<_>>>()?;
        let Self { program, scalars, ranks, .. } = self;
        let out = (out, self.part(out, None)?);
        Ok(Sharded { program, scalars, stmt, args: &parts, out: &out, ranks: *ranks }.is_local())
    }

    pub(super) fn compute(&mut self, stmt: &OpStmt) -> Result<()> {
        let (args, outs): (_, Vec<TensorId>) =
            (stmt.tensor_operands(), Program::tensors_of(&stmt.outs).collect());
        let Some(first) = outs.first().copied() else { return Ok(()) };
        let all = || args.iter().chain(&outs);
        let here = all().any(|it| self.holds(*it));
        let is_local = here && self.is_local(stmt, &args, first)?;
        let meshes = || all().map(|it| &self.program.tensors[*it].mesh);
        let team = (here && !is_local).then(|| {
            let everywhere = meshes().any(|it| it.is_empty());
            let is_member = |rank: &usize| everywhere || meshes().any(|it| it.contains(*rank));
            (0..self.ranks).filter(is_member).collect::<Rc<[usize]>>()
        });
        let takes_part = team
            .as_ref()
            .map_or(here && self.holds(first), |it| self.rank.is_some_and(|rank| it.contains(&rank)));
        let slice = all().find_map(|it| self.held_slice(*it));
        if !takes_part {
            let slice = args.iter().find_map(|it| self.held_slice(*it));
            let split = outs.iter().filter(|it| self.program.is_split_by_stream(**it));
            split.zip(slice).for_each(|(out, slice)| _ = self.slices.insert(*out, slice));
            return Ok(());
        }
        let mut operands = Vec::with_capacity(args.len());
        for tensor in &args {
            let held = team.is_none() || self.holds(*tensor);
            let view = if held { Some(self.view(*tensor)?) } else { None };
            let part = match &view {
                Some(view) if self.program.tensors[*tensor].unit.is_some() => Part::all(&view.shape),
                _ => self.part(*tensor, slice)?,
            };
            operands.push(Operand { tensor: *tensor, view, part });
        }
        if team.is_none() && self.is_view(stmt, &mut operands, &outs)? {
            return Ok(());
        }
        let mut results = Vec::with_capacity(outs.len());
        for tensor in &outs {
            let view = if self.holds(*tensor) { Some(self.output_view(*tensor)?) } else { None };
            let keeps_slice = team.is_none() || self.program.is_split_by_stream(*tensor);
            if let (Some(slice), true) = (slice, keeps_slice) {
                match self.bindings.get_mut(tensor) {
                    Some(bound) => bound.stream = bound.stream.or(Some(slice)),
                    None => _ = self.slices.insert(*tensor, slice),
                }
            }
            results.push(Operand { tensor: *tensor, view, part: self.part(*tensor, slice)? });
        }
        let mut values = FxHashMap::default();
        stmt.scalars(&mut |it| values.extend(self.scalars.eval(it).ok().map(|value| (it, value))));
        self.push(StepKind::Compute(Box::new(Compute { args: operands, outs: results, team, values })))?;
        Ok(())
    }

    /// Makes the result of a rearrangement that has no storage a view of its operand. The operand of a copy is first narrowed to the
    /// elements of the result.
    pub(super) fn is_view(
        &mut self,
        stmt: &OpStmt,
        operands: &mut [Operand],
        outs: &[TensorId],
    ) -> Result<bool> {
        let ([Operand { tensor, view: Some(view), part }, ..], [out]) = (operands, outs) else {
            return Ok(false);
        };
        let to =
            if self.program.tensors[*out].unit.is_some() { part.clone() } else { self.part(*out, None)? };
        if stmt.op.def().type_rule == TypeRule::Same && part.whole == to.whole {
            for dim in 0..view.shape.len() {
                if let Some((has, takes)) = part.range(dim).zip(to.range(dim))
                    && has != takes
                    && has.len() == view.shape[dim]
                    && contains(&has, &takes)
                {
                    *view = view.narrow(dim, takes.start - has.start, takes.len());
                }
            }
        }
        if self.bindings.contains_key(out) || !matches!(stmt.rule().aliasing(), Aliasing::View(_)) {
            return Ok(false);
        }
        let shape = self.part(*out, None)?.shape();
        let Some(view) =
            rearranged(self.program, stmt, &|it| self.scalars.eval(it).ok(), view, *tensor, *out, &shape)
        else {
            return Ok(false);
        };
        let stream = self.bindings.get(tensor).and_then(|it| it.stream);
        self.bindings.insert(*out, Binding { view, stream });
        Ok(true)
    }

    /// Executes the statements of a HostUnit, whose names are bound to the operands.
    pub(super) fn host_unit(&mut self, stmt: &OpStmt) -> Result<()> {
        let (Some(unit), Some(inputs), Some(outputs)) =
            (stmt.get(attr::UNIT), stmt.get(attr::INPUTS), stmt.get(attr::OUTPUTS))
        else {
            return Err(self.unknown(stmt.op));
        };
        if !Program::tensors_of(outputs).any(|it| self.holds(it)) {
            return Ok(());
        }
        let (program, unit) = (self.program, &self.program.units[unit]);
        let Some(body) = unit.body else { return Err(self.refuse("the text does not contain the HostUnit")) };
        for (inner, outer) in unit.inputs.iter().zip(inputs) {
            match (inner, outer) {
                (Named::Tensor(inner), Named::Tensor(outer)) => {
                    let view = self.view(*outer)?;
                    for (axis, extent) in program.dimensions(*inner).zip(&view.shape) {
                        if let Expr::Symbol(symbol) = program.exprs[program.axes[axis].extent] {
                            self.scalars.bind(symbol, Some(Value::Int(*extent as i64)));
                        }
                    }
                    self.bindings.insert(*inner, Binding { view, stream: None });
                }
                (Named::Scalar(inner), Named::Scalar(outer)) => {
                    let value = self.need(self.scalars.eval(*outer).ok(), "the operand")?;
                    if let Expr::Symbol(symbol) = program.exprs[*inner] {
                        self.scalars.bind(symbol, Some(value));
                    }
                }
                _ => return Err(self.refuse("the HostUnit has other operands")),
            }
        }
        for (inner, outer) in Program::tensors_of(&unit.outputs).zip(Program::tensors_of(outputs)) {
            let view = self.output_view(outer)?;
            self.bindings.insert(inner, Binding { view, stream: None });
        }
        let (stmt, span) = (self.stmt, self.span);
        self.block(body)?;
        (self.stmt, self.span) = (stmt, span);
        let ports = Program::tensors_of(&unit.inputs).chain(Program::tensors_of(&unit.outputs));
        let mut names: Vec<TensorId> = ports.collect();
        program.walk(body, &mut |id| {
            if let Stmt::Op(it) = &program.stmts[id] {
                names.extend(Program::tensors_of(&it.outs));
            }
        });
        names.iter().for_each(|it| _ = self.bindings.remove(it));
        Ok(())
    }
}
