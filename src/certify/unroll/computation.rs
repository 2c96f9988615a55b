//! Statements that compute on their rank.

use super::*;

impl<'p> Unroller<'p, '_> {
    /// Returns a statement with the parts of its tensors.
    fn statement(&self, stmt: &'p OpStmt, part: impl Fn(TensorId) -> Result<Part>) -> Result<Statement<'p>> {
        let (program, args) = (self.program, stmt.tensor_operands());
        let outs: Vec<TensorId> = Program::tensors_of(&stmt.outs).collect();
        let mut values = FxHashMap::default();
        let mut add = |it| values.extend(self.scalars.eval(it).ok().map(|value| (it, value)));
        stmt.scalars(&mut add);
        for axis in args.iter().chain(&outs).flat_map(|it| program.dimensions(*it)) {
            add(program.axes[axis].expanded.unwrap_or(program.axes[axis].extent));
        }
        let parts = |all: Vec<TensorId>| all.into_iter().map(|it| Ok((it, part(it)?))).collect::<Result<_>>();
        Ok(Statement { program, stmt, args: parts(args)?, outs: parts(outs)?, values })
    }

    pub(super) fn compute(&mut self, stmt: &'p OpStmt) -> Result<()> {
        let (program, def) = (self.program, stmt.op.def());
        let tensors = || stmt.tensor_operands().into_iter().chain(Program::tensors_of(&stmt.outs));
        let Some(out) = stmt.out_tensor().filter(|it| self.holds(*it)) else { return Ok(()) };
        let slice = tensors().find_map(|it| self.slices.get(&it).copied());
        let mut of = self.statement(stmt, |it| self.part(it, slice))?;
        let reads = of.args.iter().map(|(tensor, part)| self.storage(*tensor, part));
        let mut reads = reads.collect::<Result<Vec<_>>>()?;
        // A `select` in loops, or of an index that ranks determine, indexes the part of the rank.
        let is_own =
            self.loops > 0 || stmt.get(attr::INDEX).is_none_or(|it| self.scalars.depends_on_rank(it));
        let (is_shown, is_own) = (def.class == OpClass::View, is_own || stmt.op != Op::Select);
        if is_shown && is_own {
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
            let shape = of.outs[0].1.shape();
            let view = moved.as_ref().zip(reads.first()).and_then(|(it, view)| view.strided(it, &shape));
            let slice = of.args.first().and_then(|it| self.slices.get(&it.0).copied());
            match view {
                Some(view) => {
                    self.bind(out, view, slice);
                    return Ok(());
                }
                None if is_shown => return Err(format!("`{}` shows no view of its operand", stmt.op.name())),
                None => {}
            }
        }
        let mut writes = Vec::new();
        for (tensor, part) in &of.outs {
            self.output_view(*tensor)?;
            writes.push(self.storage(*tensor, part)?);
            slice.into_iter().for_each(|it| _ = self.slices.entry(*tensor).or_insert(it));
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
