//! Statements that compute on their rank, and HostUnits.

use super::*;

impl<'p> Unroller<'p, '_> {
    /// Returns whether each rank has the elements that it needs to compute its part of the result: then the statement computes with
    /// the parts of the rank, and else with whole tensors.
    fn is_local(&mut self, stmt: &OpStmt, args: &[TensorId], out: TensorId) -> Result<bool> {
        let (program, Some(id)) = (self.program, self.stmt) else { return Ok(true) };
        // A `select` in loops, or of an index that ranks determine, indexes the part of the rank.
        let is_own =
            self.loops > 0 || stmt.get(attr::INDEX).is_none_or(|it| self.scalars.depends_on_rank(it));
        let is_shown = stmt.op.def().class == OpClass::View && (is_own || stmt.op != Op::Select);
        if program.tensors[out].unit.is_some() || is_shown {
            return Ok(true);
        }
        if let Some(known) = self.trace.local.get(&(id, out)) {
            return Ok(*known);
        }
        let holds = |tensor: TensorId, rank| program.tensors[tensor].mesh.contains(rank);
        let mut is_local = true;
        for rank in program.tensors[out].mesh.devices.iter().copied() {
            let part = |it: &TensorId| self.part_of(*it, Some(rank), None);
            is_local &= args.iter().all(|it| holds(*it, rank))
                && is_aligned(
                    program,
                    stmt,
                    &|it| self.scalars.int(it).ok(),
                    &args.iter().map(part).collect::<Result<Vec<_>>>()?,
                    &part(&out)?,
                );
        }
        self.trace.local.insert((id, out), is_local);
        Ok(is_local)
    }

    pub(super) fn compute(&mut self, stmt: &'p OpStmt) -> Result<()> {
        let (program, args) = (self.program, stmt.tensor_operands());
        let outs: Vec<TensorId> = Program::tensors_of(&stmt.outs).collect();
        let (Some(id), Some(first)) = (self.stmt, outs.first().copied()) else { return Ok(()) };
        let all = || args.iter().chain(&outs);
        let slice = all().find_map(|it| self.slices.get(it).copied());
        let is_here = all().any(|it| self.holds(*it));
        // What ranks would reshard is no view of its operand, although whole tensors have no parts.
        let is_kept = !is_here || self.is_local(stmt, &args, first)?;
        let is_local = is_kept || self.rank.is_none();
        if is_local && !self.holds(first) {
            let of_args = args.iter().find_map(|it| self.slices.get(it).copied());
            for out in outs.into_iter().filter(|it| program.is_split_by_stream(*it)) {
                of_args.into_iter().for_each(|it| _ = self.slices.insert(out, it));
            }
            return Ok(());
        }
        let meshes = || all().map(|it| &program.tensors[*it].mesh);
        let is_member = |rank: &usize| meshes().any(|it| it.contains(*rank));
        let team: Rc<[usize]> = (0..self.ranks).filter(|it| !is_local && is_member(it)).collect();
        let (mut reads, mut operands) = (Vec::new(), Vec::new());
        for (at, tensor) in args.iter().enumerate() {
            let part = self.part(*tensor, slice)?;
            let held = if is_local || self.holds(*tensor) { Some(self.view(*tensor)?) } else { None };
            let (view, part) = match held {
                Some(view) if is_local => (view, part),
                held => {
                    let channel = Channel::Statement(id, at, team.clone());
                    (self.assemble(held, &part, &channel)?, Part::all(&part.whole))
                }
            };
            reads.push(view);
            operands.push((*tensor, part));
        }
        if is_kept && self.is_view(stmt, &mut reads, &operands, &outs)? {
            return Ok(());
        }
        let (mut writes, mut results, mut copies) = (Vec::new(), Vec::new(), Vec::new());
        for tensor in &outs {
            let view = if self.holds(*tensor) { Some(self.output_view(*tensor)?) } else { None };
            if let Some(slice) = slice.filter(|_| is_local || program.is_split_by_stream(*tensor)) {
                if view.is_none() {
                    self.slices.remove(tensor);
                }
                self.slices.entry(*tensor).or_insert(slice);
            }
            let part = self.part(*tensor, slice)?;
            let computed = if is_local { part.clone() } else { Part::all(&part.whole) };
            writes.push(match view {
                Some(view) if is_local => view,
                view => {
                    let whole = self.buffer(&computed.shape());
                    copies.extend(view.map(|it| (View { places: part.places(), buffer: whole.buffer }, it)));
                    whole
                }
            });
            results.push((*tensor, computed));
        }
        let shapes = writes.iter().map(|it| it.places.shape().to_vec()).collect();
        let mut values = FxHashMap::default();
        let mut add = |it| values.extend(self.scalars.eval(it).ok().map(|value| (it, value)));
        stmt.scalars(&mut add);
        for axis in all().flat_map(|it| program.dimensions(*it)).map(|it| &program.axes[it]) {
            add(axis.expanded.unwrap_or(axis.extent));
        }
        let it = Compute { program, stmt, args: operands, outs: results, shapes, values };
        self.push(Some(Box::new(move |algebra, args| it.results(algebra, &args[0]))), reads, writes)?;
        copies.into_iter().try_for_each(|(from, to)| self.push(None, vec![from], vec![to]))
    }

    /// Returns a whole operand, of whose parts each rank of a team holds one. Ranks that hold the same elements have to hold the same values.
    fn assemble(&mut self, input: Option<View>, part: &Part, channel: &Channel) -> Result<View> {
        let len = part.whole.iter().product();
        let me = channel.ranks().iter().position(|it| Some(*it) == self.rank).unwrap_or(0);
        let action = self.meet(channel, me, (Type::Allgather, 0, Combine::Sum, false, len), len)?;
        let buffer = self.trace.actions[action].buffer;
        let own = View { buffer, places: part.places() };
        let (reads, writes) = (Vec::from_iter(input), vec![own]);
        let sources = (0..channel.ranks().len()).collect();
        let member = self.member(None, reads.clone(), writes.clone());
        let mut posted = self.join(action, me, sources, member);
        // What gathers an operand is no memory of a rank.
        posted.0.accesses.truncate(reads.len());
        self.run(self.current, vec![posted])?;
        let is_same: Function<'p> = Box::new(|_, args| match &args[0][..] {
            [all, own] if own.data.iter().ne(&all.data) => {
                Err("ranks hold different values of an operand, which this statement reshards".to_owned())
            }
            _ => Ok(Vec::new()),
        });
        self.push(Some(is_same), [writes, reads].concat(), Vec::new())?;
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
        let (to, def) = (self.part(*out, None)?, stmt.op.def());
        if def.type_rule == TypeRule::Same && part.whole == to.whole {
            for (dim, (has, takes)) in part.held.iter().zip(&to.held).enumerate() {
                let is_narrowed = has != takes && has.len() == view.places.shape()[dim];
                if let Some(taken) = positions(has, takes).filter(|_| is_narrowed) {
                    view.places = view.places.select(Axis(dim), &taken).into_shared();
                }
            }
        }
        let is_shown = def.class == OpClass::View;
        if !is_shown && (self.views.contains_key(out) || !matches!(stmt.rule().aliasing(), Aliasing::View(_)))
        {
            return Ok(false);
        }
        let (found, slice) = (self.rearranged(stmt, view, *tensor, *out)?, self.slices.get(tensor).copied());
        if is_shown && found.is_none() {
            return Err(format!("`{}` shows no view of its operand", stmt.op.name()));
        }
        Ok(found.map(|it| self.bind(*out, it, slice)).is_some())
    }

    /// Executes the statements of a HostUnit, whose names are bound to the operands.
    pub(super) fn host_unit(&mut self, stmt: &OpStmt) -> Result<()> {
        let keys = (stmt.get(attr::UNIT), stmt.get(attr::INPUTS), stmt.get(attr::OUTPUTS));
        let (Some(unit), Some(inputs), Some(outputs)) = keys else { return Err(unknown(stmt.op)) };
        if !Program::tensors_of(outputs).any(|it| self.holds(it)) {
            return Ok(());
        }
        let (program, unit) = (self.program, &self.program.units[unit]);
        let body = unit.body.ok_or("the text does not contain the HostUnit")?;
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
                    let value = self.scalars.eval(*outer).map_err(|_| "the operand has no known value")?;
                    self.bind_scalar(*inner, value);
                }
                _ => return Err("the HostUnit has other operands".to_owned()),
            }
        }
        for (inner, outer) in Program::tensors_of(&unit.outputs).zip(Program::tensors_of(outputs)) {
            let view = self.output_view(outer)?;
            self.bind(inner, view, None);
        }
        self.block(body)?;
        self.views.retain(|it, _| program.tensors[*it].unit.is_none());
        Ok(())
    }

    /// Gives a scalar a value if it is a symbol.
    fn bind_scalar(&mut self, scalar: ExprId, value: Value) {
        if let Expr::Symbol(symbol) = self.program.exprs[scalar] {
            self.scalars.bind(symbol, Some(value));
        }
    }
}
