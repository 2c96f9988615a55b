//! Statements that compute on their rank.

use super::*;

impl<'p> Unroller<'p, '_> {
    /// Returns whether the parts of this rank, or of each rank for whole tensors, suffice to compute its part of the result.
    fn is_local(&self, stmt: &OpStmt, args: &[TensorId], out: TensorId) -> Result<bool> {
        let program = self.program;
        // A `select` in loops, or of an index that ranks determine, indexes the part of the rank.
        let is_own =
            self.loops > 0 || stmt.get(attr::INDEX).is_none_or(|it| self.scalars.depends_on_rank(it));
        if stmt.op.def().class == OpClass::View && (is_own || stmt.op != Op::Select) {
            return Ok(true);
        }
        let mesh = &program.tensors[out].mesh;
        let mut is_local = true;
        for rank in mesh.devices.iter().copied().filter(|it| self.rank.is_none_or(|own| own == *it)) {
            let part = |it: &TensorId| self.part_of(*it, Some(rank), None);
            is_local &= args.iter().all(|it| program.tensors[*it].mesh.contains(rank))
                && is_aligned(
                    program,
                    stmt,
                    &|it| self.scalars.int(it).ok(),
                    &args.iter().map(part).collect::<Result<Vec<_>>>()?,
                    &part(&out)?,
                );
        }
        Ok(is_local)
    }

    pub(super) fn compute(&mut self, stmt: &'p OpStmt) -> Result<()> {
        let (program, args) = (self.program, stmt.tensor_operands());
        let outs: Vec<TensorId> = Program::tensors_of(&stmt.outs).collect();
        let Some(first) = outs.first().copied() else { return Ok(()) };
        let all = || args.iter().chain(&outs);
        let slice = all().find_map(|it| self.slices.get(it).copied());
        if !self.holds(first) {
            return Ok(());
        }
        // What ranks would reshard is no view of its operand, although whole tensors have no parts.
        let is_local = self.is_local(stmt, &args, first)?;
        if !is_local && self.rank.is_some() {
            let name = stmt.op.name();
            return Err(format!("`{name}` needs elements of other ranks, which hir-certify does not gather"));
        }
        let (mut reads, mut operands) = (Vec::new(), Vec::new());
        for tensor in &args {
            reads.push(self.view(*tensor)?);
            operands.push((*tensor, self.part(*tensor, slice)?));
        }
        if is_local && self.is_view(stmt, &mut reads, &operands, &outs)? {
            return Ok(());
        }
        let (mut writes, mut results) = (Vec::new(), Vec::new());
        for tensor in &outs {
            writes.push(self.output_view(*tensor)?);
            slice.into_iter().for_each(|it| _ = self.slices.entry(*tensor).or_insert(it));
            results.push((*tensor, self.part(*tensor, slice)?));
        }
        let shapes = writes.iter().map(|it| it.places.shape().to_vec()).collect();
        let mut values = FxHashMap::default();
        let mut add = |it| values.extend(self.scalars.eval(it).ok().map(|value| (it, value)));
        stmt.scalars(&mut add);
        for axis in all().flat_map(|it| program.dimensions(*it)).map(|it| &program.axes[it]) {
            add(axis.expanded.unwrap_or(axis.extent));
        }
        let it = Compute { program, stmt, args: operands, outs: results, shapes, values };
        self.push(Some(Box::new(move |algebra, args| it.results(algebra, &args[0]))), reads, writes)
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
}
