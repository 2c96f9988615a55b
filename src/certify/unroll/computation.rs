//! Statements that compute on their rank, and HostUnits.

use std::rc::Rc;

use grammar::{
    attr,
    ir::{Expr, ExprId, OpStmt, Operand as Named, Program, TensorId},
    ops::TypeRule,
    rules::Aliasing,
    scalars::Value,
    words::CommunicationType,
};
use ndarray::Axis;
use rustc_hash::FxHashMap;

use super::{Result, Unroller};
use crate::{
    field::Combine,
    part::{Part, Sharded, positions},
    tape::{Channel, Compute, Effect, Function, Kind, Step},
    tensor::{View, array},
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
        let args = stmt.tensor_operands();
        let outs: Vec<TensorId> = Program::tensors_of(&stmt.outs).collect();
        let (Some(id), Some(first)) = (self.stmt, outs.first().copied()) else { return Ok(()) };
        let all = || args.iter().chain(&outs);
        let slice = all().find_map(|it| self.slices.get(it).copied());
        let is_here = all().any(|it| self.holds(*it));
        let is_local = !is_here || self.is_local(stmt, &args, first)?;
        if is_local && !self.holds(first) {
            let slice = args.iter().find_map(|it| self.slices.get(it).copied());
            let split = outs.iter().filter(|it| self.program.is_split_by_stream(**it));
            split.zip(slice).for_each(|(out, slice)| _ = self.slices.insert(*out, slice));
            return Ok(());
        }
        let meshes = || all().map(|it| &self.program.tensors[*it].mesh);
        let is_member = |rank: &usize| meshes().any(|it| it.is_empty() || it.contains(*rank));
        let team: Rc<[usize]> = (0..self.ranks).filter(is_member).collect();
        let (mut reads, mut writes, mut copies) = (Vec::new(), Vec::new(), Vec::new());
        let mut operands: Vec<(TensorId, Part)> = Vec::new();
        for (at, tensor) in args.iter().enumerate() {
            let held = if is_local || self.holds(*tensor) { Some(self.view(*tensor)?) } else { None };
            let part = self.part(*tensor, slice)?;
            match held {
                Some(view) if is_local => {
                    reads.push(view);
                    operands.push((*tensor, part));
                }
                held => {
                    reads.push(self.assemble(held, &part, Channel::Statement(id, at, team.clone()))?);
                    operands.push((*tensor, Part::all(&part.whole)));
                }
            }
        }
        if is_local && self.is_view(stmt, &mut reads, &operands, &outs)? {
            return Ok(());
        }
        let mut results = Vec::new();
        for tensor in &outs {
            let view = if self.holds(*tensor) { Some(self.output_view(*tensor)?) } else { None };
            if let Some(slice) = slice.filter(|_| is_local || self.program.is_split_by_stream(*tensor)) {
                match view {
                    Some(_) => _ = self.slices.entry(*tensor).or_insert(slice),
                    None => _ = self.slices.insert(*tensor, slice),
                }
            }
            let part = self.part(*tensor, slice)?;
            let computed = if is_local { part.clone() } else { Part::all(&part.whole) };
            let to = match &view {
                Some(view) if is_local => view.clone(),
                _ => self.buffer(&computed.shape()),
            };
            if let Some(view) = view.filter(|_| !is_local) {
                copies.push((View { places: part.places(), buffer: to.buffer }, view));
            }
            writes.push(to);
            results.push((*tensor, computed));
        }
        let shapes = writes.iter().map(|it| it.places.shape().to_vec()).collect();
        let mut values = FxHashMap::default();
        let mut add = |it| values.extend(self.scalars.eval(it).ok().map(|value| (it, value)));
        stmt.scalars(&mut add);
        for axis in all().flat_map(|it| self.program.dimensions(*it)) {
            let axis = &self.program.axes[axis];
            add(axis.expanded.unwrap_or(axis.extent));
        }
        let it = Compute { stmt: id, args: operands, outs: results, shapes, values };
        self.push(Function::Statement(Box::new(it)), reads, writes)?;
        copies.into_iter().try_for_each(|(from, to)| self.push(Function::Copy, vec![from], vec![to]))
    }
    /// Returns a whole operand, of whose parts each rank of a team holds one. Ranks that hold the same elements have to hold the same values.
    fn assemble(&mut self, input: Option<View>, part: &Part, channel: Channel) -> Result<View> {
        let len = part.whole.iter().product();
        let (kind, combine) = (CommunicationType::Allgather, Combine::Sum);
        let me = channel.ranks().iter().position(|it| Some(*it) == self.rank).unwrap_or(0);
        let kind = Kind { kind, root: 0, combine, integral: false, len };
        let (meeting, buffer) = self.meet((&channel, me), kind, (1, len))?;
        let mut begin = Step { begins: vec![(meeting, me)], ..Step::default() };
        let sources = (0..channel.ranks().len()).collect();
        let mut end = Step { ends: vec![(meeting, sources)], ..Step::default() };
        if let Some(view) = input {
            let own = View { buffer, places: part.places() };
            let (function, reads, writes) = (Function::Copy, vec![view.clone()], vec![own.clone()]);
            begin.effects.push(Effect { function, reads, writes });
            begin.reads.push(view.clone());
            end.effects.push(Effect {
                function: Function::Equal,
                reads: vec![view, own],
                writes: Vec::new(),
            });
        }
        self.run(self.current, [begin, end])?;
        Ok(View { buffer, places: array(&part.whole, (0..len).collect()) })
    }

    /// Makes the result of a rearrangement that has no storage a view of its operand. The operand of a copy is first narrowed to the
    /// elements of the result.
    fn is_view(
        &mut self,
        stmt: &OpStmt,
        reads: &mut [View],
        operands: &[(TensorId, Part)],
        outs: &[TensorId],
    ) -> Result<bool> {
        let ([view, ..], [(tensor, part), ..], [out]) = (reads, operands, outs) else { return Ok(false) };
        let to = self.part(*out, None)?;
        if stmt.op.def().type_rule == TypeRule::Same && part.whole == to.whole {
            for (dim, (has, takes)) in part.held.iter().zip(&to.held).enumerate() {
                let taken =
                    positions(has, takes).filter(|_| has != takes && has.len() == view.places.shape()[dim]);
                if let Some(taken) = taken {
                    view.places = view.places.select(Axis(dim), &taken).into_shared();
                }
            }
        }
        if self.views.contains_key(out) || !matches!(stmt.rule().aliasing(), Aliasing::View(_)) {
            return Ok(false);
        }
        let found = self.rearranged(stmt, view, *tensor, *out)?;
        let slice = self.slices.get(tensor).copied();
        let is_found = found.is_some();
        found.into_iter().for_each(|it| self.bind(*out, it, slice));
        Ok(is_found)
    }

    /// Executes the statements of a HostUnit, whose names are bound to the operands.
    pub(super) fn host_unit(&mut self, stmt: &OpStmt) -> Result<()> {
        let keys = (stmt.get(attr::UNIT), stmt.get(attr::INPUTS), stmt.get(attr::OUTPUTS));
        let (Some(unit), Some(inputs), Some(outputs)) = keys else { return Err(self.unknown(stmt.op)) };
        if !Program::tensors_of(outputs).any(|it| self.holds(it)) {
            return Ok(());
        }
        let (program, unit) = (self.program, &self.program.units[unit]);
        let Some(body) = unit.body else { return Err(self.refuse("the text does not contain the HostUnit")) };
        for (inner, outer) in unit.inputs.iter().zip(inputs) {
            match (inner, outer) {
                (Named::Tensor(inner), Named::Tensor(outer)) => {
                    let view = self.view(*outer)?;
                    for (axis, extent) in program.dimensions(*inner).zip(view.places.shape()) {
                        self.bind_scalar(program.axes[axis].extent, Value::Int(*extent as i64));
                    }
                    self.bind(*inner, view, None);
                }
                (Named::Scalar(inner), Named::Scalar(outer)) => {
                    let value = self.need(self.scalars.eval(*outer).ok(), "the operand")?;
                    self.bind_scalar(*inner, value);
                }
                _ => return Err(self.refuse("the HostUnit has other operands")),
            }
        }
        for (inner, outer) in Program::tensors_of(&unit.outputs).zip(Program::tensors_of(outputs)) {
            let view = self.output_view(outer)?;
            self.bind(inner, view, None);
        }
        let (stmt, span) = (self.stmt, self.span);
        self.block(body)?;
        (self.stmt, self.span) = (stmt, span);
        let names: Vec<TensorId> = self.views.keys().copied().collect();
        let is_inner = |it: &TensorId| program.tensors[*it].unit.is_some();
        names.into_iter().filter(is_inner).for_each(|it| self.unbind(it));
        Ok(())
    }

    /// Gives a scalar a value if it is a symbol.
    fn bind_scalar(&mut self, scalar: ExprId, value: Value) {
        if let Expr::Symbol(symbol) = self.program.exprs[scalar] {
            self.scalars.bind(symbol, Some(value));
        }
    }
}
