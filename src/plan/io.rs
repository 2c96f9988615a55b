//! Lowers the inputs and outputs of a rank, and collects the tensors that are bound when the program ends.

use grammar::{AccessMode, AxisKind, Code, DType, Diagnostic, Program, TensorId, Transform};

use super::{
    InstKind, IoBinding, Plan, PrintedAxis, Shard,
    context::{OriginNo, PlanBuilder, Result},
    shape::leaf_axes,
};

/// Returns an error for the first rank whose inputs or outputs differ from those of rank 0. Ranks may run
/// different programs, but these must have the same signature.
pub(super) fn signature_mismatch(programs: &[&Program], plans: &[Plan]) -> Vec<(usize, Diagnostic)> {
    let shapes = |ports: &[IoBinding]| -> Vec<(DType, Vec<usize>)> {
        ports.iter().map(|port| (port.dtype, port.shard.layout.shape.clone())).collect()
    };
    let Some(first) = plans.first() else { return Vec::new() };
    let (inputs, outputs) = (shapes(&first.inputs), shapes(&first.outputs));
    let differs = |plan: &&Plan| shapes(&plan.inputs) != inputs || shapes(&plan.outputs) != outputs;
    let fault = |plan: &Plan| {
        let message = format!("the inputs or outputs of rank {} differ from those of rank 0", plan.rank);
        let label = "expected the same header on all ranks";
        (plan.rank, Diagnostic::new(Code::Disagreement, programs[plan.rank].spans.header, message, label))
    };
    plans.iter().find(differs).map(fault).into_iter().collect()
}

impl PlanBuilder<'_> {
    pub(super) fn inputs(&mut self) -> Result<()> {
        for tensor in Program::tensors_of(&self.program.inputs).collect::<Vec<_>>() {
            self.span = self.program.tensor_span(tensor);
            let port = if self.holds_part(tensor) {
                let layout = self.layout(tensor)?;
                let view = self.buffer(tensor, layout.local_shape());
                self.bind(tensor, view.clone(), None);
                Shard { view: Some(view), layout }
            } else {
                self.absent_shard(tensor)?
            };
            let port = self.io_binding(tensor, port, false);
            self.plan.inputs.push(port);
        }
        Ok(())
    }

    pub(super) fn outputs(&mut self) -> Result<()> {
        (self.origin, self.iteration) = (OriginNo::Known(0), None);
        for tensor in Program::tensors_of(&self.program.outputs).collect::<Vec<_>>() {
            self.span = self.program.tensor_span(tensor);
            let port = if self.holds_part(tensor) {
                let layout = self.layout(tensor)?;
                let Some(view) = self.binding(tensor).map(|it| it.view.clone()) else {
                    return Err(self.unbound_output(tensor));
                };
                if view.shape != layout.local_shape() {
                    let name = self.program.tensor_name(tensor);
                    let message = format!(
                        "output `{name}` is bound to a view of shape {:?}, but has shape {:?}",
                        view.shape,
                        layout.local_shape()
                    );
                    return Err(self.error(Code::RuntimeShape, message, "declared here"));
                }
                Shard { view: Some(view), layout }
            } else {
                self.absent_shard(tensor)?
            };
            let name = self.program.tensor_name(tensor);
            let is_compared_per_rank = (self.uses.is_compared_per_rank)(self.plan.outputs.len(), &name);
            let port = self.io_binding(tensor, port, is_compared_per_rank);
            self.plan.outputs.push(port);
        }
        self.list_bound_tensors();
        self.free_recorded_at_end();
        self.emit(InstKind::ReadOutputs);
        Ok(())
    }

    /// Returns the error for an output without storage at the end of the program.
    fn unbound_output(&self, tensor: TensorId) -> Box<Diagnostic> {
        let name = self.program.tensor_name(tensor);
        if let Some((stmt, line)) = self.deallocate_of(tensor) {
            let message = format!("`{name}` is an output, and line {line} deallocates it");
            let it = self.error(Code::UndefinedTensor, message, "declared as output here");
            let it = it.label(self.program.stmt_span(stmt), "deallocated here");
            return Box::new(it.help(format!("remove the Deallocate on line {line}")));
        }
        let message = format!("the output `{name}` is never allocated or written");
        let it = self.error(Code::UndefinedTensor, message, "declared here");
        self.with_per_rank_hint(tensor, self.explain_unbound_output(tensor, *it))
    }

    /// Adds to an error about an output without storage what this rank would have to execute.
    fn explain_unbound_output(&self, tensor: TensorId, fault: Diagnostic) -> Box<Diagnostic> {
        let rank = self.rank();
        let name = self.program.tensor_name(tensor);
        let bind = (tensor, AccessMode::Bind);
        let mut ops = self.program.ops();
        let binding = ops.find(|(_, it)| it.tensor_uses(self.program).contains(&bind)).map(|it| it.0);
        let is_executed = |id| {
            self.unbound_by.contains_key(&tensor) || self.plan.origins.iter().any(|it| it.stmt == Some(id))
        };
        let allocate = format!("`{name} = ALLOCATE(mem_type=global, zero_init=false)`");
        Box::new(match binding {
            // A loop may also have unbound the tensor after its statement.
            Some(id) if !is_executed(id) => fault
                .label(self.program.stmt_span(id), format!("rank {rank} does not execute this"))
                .help(format!(
                    "let rank {rank} execute it, too, or insert {allocate} where rank {rank} executes it"
                )),
            Some(_) | None => fault.help(format!("insert {allocate}, or a statement that defines `{name}`")),
        })
    }

    /// Returns the shard of a rank outside the mesh: it has no elements, and the layout is that of a member.
    fn absent_shard(&self, tensor: TensorId) -> Result<Shard> {
        let member = self.program.tensors[tensor].mesh.devices.first().copied().unwrap_or(0);
        Ok(Shard { view: None, layout: self.layout_on(tensor, member)? })
    }

    fn io_binding(&self, tensor: TensorId, shard: Shard, is_compared_per_rank: bool) -> IoBinding {
        let kinds = self.program.dimensions(tensor).map(|axis| self.program.axes[axis].kind);
        IoBinding {
            name: self.program.tensor_name(tensor),
            dtype: self.dtype(tensor),
            shard,
            printed_axes: printed_axes(self.program, tensor),
            is_compared_per_rank,
            broadcast: kinds.map(|kind| kind == AxisKind::Broadcast).collect(),
        }
        .with_parts()
    }

    /// Adds all bound tensors to the plan, so that tools can show more than the outputs.
    fn list_bound_tensors(&mut self) {
        for (tensor, it) in self.program.tensors.iter() {
            let (None, Some(binding)) = (it.unit, self.binding(tensor)) else { continue };
            let Ok(layout) = self.layout(tensor) else { continue };
            let (buffer, shard) = (binding.view.buffer, Shard { view: Some(binding.view.clone()), layout });
            let port = self.io_binding(tensor, shard, false);
            let is_first = || self.plan.bound_at_exit.iter().all(|it| it.name != port.name);
            if self.uses.kept.contains(&port.name.as_str()) && is_first() {
                self.plan.live_out.push(buffer);
            }
            self.plan.bound_at_exit.push(port);
        }
    }
}

/// Returns the dimension and the piece of each printed axis of a tensor; `None` if an axis is swizzled.
fn printed_axes(program: &Program, tensor: TensorId) -> Option<Vec<PrintedAxis>> {
    let it = &program.tensors[tensor];
    if it.domains.transforms.iter().any(|step| matches!(step, Transform::Swizzle1D { .. })) {
        return None;
    }
    let (mut pieces, mut leaves) = (Vec::new(), Vec::new());
    for (dim, axis) in program.dimensions(tensor).enumerate() {
        leaf_axes(program, tensor, axis, &mut leaves);
        let own = leaves.drain(..).enumerate();
        pieces.extend(own.map(|(piece, leaf)| (leaf, PrintedAxis { dim, piece })));
    }
    // The axes are usually printed in the order of the dimensions.
    let mut next = 0;
    let mut find = |axis| {
        let at = (next..pieces.len()).chain(0..next).find(|at| pieces[*at].0 == axis)?;
        next = at + 1;
        Some(pieces[at].1)
    };
    let shown = it.loop_domain.iter().filter(|axis| program.axes[**axis].kind != AxisKind::Reduction);
    let printed: Vec<PrintedAxis> = shown.map(|axis| find(*axis)).collect::<Option<_>>()?;
    (printed.len() == pieces.len()).then_some(printed)
}
