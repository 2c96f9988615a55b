//! Statements that compute on their rank.

use super::*;

impl<'p> Unroller<'p, '_> {
    fn bound(&self, stmt: &'p OpStmt, part: impl Fn(TensorId) -> Computed<Part>) -> Computed<Statement<'p>> {
        let parts = |all: Vec<_>| all.into_iter().map(|it| Ok((it, part(it)?))).collect::<Computed<_>>();
        let outs = parts(Program::tensors_of(&stmt.outs).collect())?;
        let (program, scalars, args) = (self.program, self.scalars.clone(), parts(stmt.tensor_operands())?);
        Ok(Statement { program, stmt, scalars, args, outs })
    }

    pub(super) fn compute(&mut self, stmt: &'p OpStmt) -> Computed<()> {
        let (program, name) = (self.program, stmt.op.name());
        let tensors = || stmt.tensor_operands().into_iter().chain(Program::tensors_of(&stmt.outs));
        let Some(out) = stmt.out_tensor().filter(|it| self.holds(*it)) else { return Ok(()) };
        // What is computed from tensors takes the slice of the iteration, if no tensor has one: it is computed from the elements that these have.
        let takes = !stmt.tensor_operands().is_empty() && tensors().any(|it| program.is_split_by_stream(it));
        let slice = tensors().find_map(|it| self.slice(it)).or(self.own.chunk.filter(|_| takes));
        let mut of = self.bound(stmt, |it| self.part(it, slice))?;
        let mut reads = of.args.iter().map(|it| self.view(it.0)).collect::<Computed<Vec<_>>>()?;
        // A `select` in loops, or of an index that ranks determine, indexes the part of the rank.
        let own =
            self.own.loops > 0 || stmt.get(attr::INDEX).is_none_or(|it| self.scalars.depends_on_rank(it));
        let is_shown = stmt.op.def().class == OpClass::View;
        if is_shown && (own || stmt.op != Op::Select) {
            of.args.iter_mut().chain(&mut of.outs).for_each(|(_, part)| *part = Part::all(&part.shape()));
        } else if self.rank.is_some() && slice.is_none() {
            let is_slice = |it| program.is_split_by_stream(it);
            require(!tensors().any(is_slice), "the program does not determine which stream's slice it is")?;
        }
        let is_moved = matches!(stmt.rule().aliasing(), Aliasing::View(_));
        if is_moved {
            let moved = of.moved().map_err(|why| format!("`{name}` is not certified: {why}"))?;
            // What a rank would reshard is no view, although whole tensors have no parts.
            let is_local = |rank: &usize| {
                let part = |it| Part::of(program, &self.scalars, it, Some(*rank), None);
                tensors().all(|it| program.tensors[it].mesh.contains(*rank))
                    && self.bound(stmt, part).is_ok_and(|it| it.moved().is_ok())
            };
            let is_view = self.rank.is_some() || program.tensors[out].mesh.devices.iter().all(is_local);
            if is_view && (is_shown || !self.own.views.contains_key(&out)) {
                if let Some(view) = reads[0].strided(&moved, of.outs[0].1.shape()) {
                    self.own.views.insert(out, (view, self.slice(of.args[0].0).or(slice)));
                    return Ok(());
                }
                require(!is_shown, format!("`{name}` shows no view of its operand"))?;
            }
            // A copy takes the elements of the result.
            reads[0].places = moved.iter().map(|at| reads[0].places[*at]).collect();
        }
        let writes = of.outs.iter().map(|it| self.output_view(it.0, slice)).collect::<Computed<Vec<_>>>()?;
        // A kernel reads and writes in any order, so only element by element it may write to what it reads.
        let written: FxHashSet<_> = writes.iter().flat_map(View::elements).collect();
        let is_pointwise = is_moved || stmt.op.def().class == OpClass::Elementwise;
        let mut reads_of_others = reads.iter().filter(|it| !is_pointwise || it.places != writes[0].places);
        let is_written = reads_of_others.any(|it| it.elements().any(|it| written.contains(&it)));
        require(!is_written, format!("a kernel of `{name}` would read elements that it writes"))?;
        let function = move |algebra: &Algebra, args: &[Vec<Values>]| results(&of, algebra, &args[0]);
        self.push(if is_moved { None } else { Some(Box::new(function)) }, reads, writes)
    }
}
