//! Statements that compute on their rank.

use super::*;

impl<'p> Unroller<'p, '_> {
    /// Returns a statement with the parts of its tensors.
    fn statement(&self, stmt: &'p OpStmt, part: impl Fn(TensorId) -> Result<Part>) -> Result<Statement<'p>> {
        let program = self.program;
        let mut values = FxHashMap::default();
        let mut add = |it| values.extend(self.scalars.eval(it).ok().map(|value| (it, value)));
        stmt.scalars(&mut add);
        let outs: Vec<TensorId> = Program::tensors_of(&stmt.outs).collect();
        let [args, outs] = [stmt.tensor_operands(), outs].map(|all| {
            all.iter().flat_map(|it| program.dimensions(*it)).for_each(|axis| {
                add(program.axes[axis].expanded.unwrap_or(program.axes[axis].extent));
            });
            all.into_iter().map(|it| Ok((it, part(it)?))).collect::<Result<Vec<_>>>()
        });
        Ok(Statement { program, stmt, args: args?, outs: outs?, values })
    }

    pub(super) fn compute(&mut self, stmt: &'p OpStmt) -> Result<()> {
        let (program, def) = (self.program, stmt.op.def());
        let tensors = || stmt.tensor_operands().into_iter().chain(Program::tensors_of(&stmt.outs));
        let Some(out) = stmt.out_tensor().filter(|it| self.holds(*it)) else { return Ok(()) };
        let slice = tensors().find_map(|it| self.slice(it));
        let mut of = self.statement(stmt, |it| self.part(it, slice))?;
        let reads = of.args.iter().map(|(tensor, part)| self.view(*tensor, part));
        let mut reads = reads.collect::<Result<Vec<_>>>()?;
        // A `select` in loops, or of an index that ranks determine, indexes the part of the rank.
        let is_own =
            self.loops > 0 || stmt.get(attr::INDEX).is_none_or(|it| self.scalars.depends_on_rank(it));
        let is_shown = def.class == OpClass::View;
        if is_shown && (is_own || stmt.op != Op::Select) {
            of.args.iter_mut().chain(&mut of.outs).for_each(|(_, part)| *part = Part::all(&part.shape()));
        }
        // What ranks would reshard is no view of its operand, although whole tensors have no parts.
        let is_rearranged = matches!(stmt.rule().aliasing(), Aliasing::View(_));
        let mut is_local = of.is_aligned();
        let is_whole = is_rearranged && self.rank.is_none();
        for rank in program.tensors[out].mesh.devices.iter().filter(|_| is_whole) {
            is_local &= tensors().all(|it| program.tensors[it].mesh.contains(*rank));
            if is_local {
                let of = self.statement(stmt, |it| self.part_of(it, Some(*rank), None))?;
                is_local = of.is_aligned() && of.moved().is_some();
            }
        }
        if !is_local && self.rank.is_some() {
            let name = stmt.op.name();
            return Err(format!("`{name}` needs elements of other ranks, which hir-certify does not gather"));
        }
        let moved = if is_rearranged { of.moved() } else { None };
        if is_local && (is_shown || is_rearranged && !self.views.contains_key(&out)) {
            let (shape, arg) = (of.outs[0].1.shape(), of.args[0].0);
            let view = moved.as_ref().and_then(|it| reads[0].strided(it, &shape));
            if let Some(view) = view {
                self.views.insert(out, (view, self.slice(arg)));
                return Ok(());
            } else if is_shown {
                return Err(format!("`{}` shows no view of its operand", stmt.op.name()));
            }
        }
        let mut writes = Vec::new();
        for (tensor, part) in &of.outs {
            self.output_view(*tensor, slice)?;
            writes.push(self.view(*tensor, part)?);
        }
        // A copy takes the elements of the result.
        let mut function: Option<Function<'p>> = None;
        match moved.filter(|_| def.type_rule == TypeRule::Same) {
            Some(moved) => reads[0].places = moved.iter().map(|at| reads[0].places[*at]).collect(),
            None => function = Some(Box::new(move |algebra, args| results(&of, algebra, &args[0]))),
        }
        self.push(function, reads, writes)
    }
}
