//! The storage and the views that names refer to while a plan is built.
//!
//! Statements bind names to views in program order, exactly as nvFuser's interpreter does: an operator whose
//! result is already bound writes into the bound view, and an operator whose result is not bound allocates a
//! new buffer.

use grammar::{AccessMode, Code, Diagnostic, For, Id, Program, Stmt, StmtId, TensorId, expr_text};

use rustc_hash::FxHashMap;

use super::{
    BufferNo, InstKind, IoBinding, Unbound, View,
    context::{Binding, PlanBuilder, Result},
};

impl PlanBuilder<'_> {
    /// Returns whether this rank holds a part of the tensor.
    pub(super) fn holds_part(&self, tensor: TensorId) -> bool {
        self.program.tensors[tensor].mesh.contains(self.rank())
    }

    pub(super) fn binding(&self, tensor: TensorId) -> Option<&Binding> {
        self.bindings[tensor.index()].as_ref()
    }

    /// Returns the view of a tensor.
    ///
    /// # Errors
    /// The tensor is not bound.
    pub(super) fn view(&self, tensor: TensorId) -> Result<View> {
        match self.binding(tensor) {
            Some(binding) => {
                self.check_complex_storage(tensor, &binding.view)?;
                Ok(binding.view.clone())
            }
            None => {
                let name = self.program.tensor_name(tensor);
                if let Some((stmt, line)) = self.deallocate_of(tensor) {
                    let message = format!("`{name}` is used after line {line} deallocates it");
                    let it = self.error(Code::UseAfterDeallocate, message, "used here");
                    let it = it.label(self.program.stmt_span(stmt), "deallocated here");
                    // A use in front of the Deallocate, or the Deallocate itself, is in a later iteration.
                    let help = if self.span.start <= self.program.stmt_span(stmt).start {
                        "move the Deallocate behind the loop".to_owned()
                    } else {
                        format!("move the Deallocate behind the last use of `{name}`")
                    };
                    return Err(Box::new(it.help(help)));
                }
                let message = format!("`{name}` is used before a statement allocates or computes it");
                let it = self.error(Code::UndefinedTensor, message, "used here");
                match self.unbound_by.get(&tensor).map(|it| &self.program.stmts[*it]) {
                    Some(Stmt::For(around)) => Err(self.with_loop_hint(tensor, around, *it)),
                    Some(Stmt::Op(_) | Stmt::Let(..) | Stmt::If(_)) | None => {
                        Err(self.with_per_rank_hint(tensor, it))
                    }
                }
            }
        }
    }

    /// Reports a complex tensor in storage of real numbers, in which an element has no imaginary part.
    fn check_complex_storage(&self, tensor: TensorId, view: &View) -> Result<()> {
        let len = self.plan.buffers[view.buffer as usize].len;
        let is_real = view.bounds().is_some_and(|(_, last)| last + 1 >= len);
        if self.dtype(tensor).part().is_none() || !is_real {
            return Ok(());
        }
        let name = self.program.tensor_name(tensor);
        let message = format!("`{name}` is {}, but it is bound to real numbers", self.dtype(tensor));
        Err(self.error(Code::RuntimeShape, message, "expected complex numbers"))
    }

    /// Returns the Deallocate that unbound a tensor last, and its line; `None` if no Deallocate did.
    pub(super) fn deallocate_of(&self, tensor: TensorId) -> Option<(StmtId, u32)> {
        let stmt = *self.unbound_by.get(&tensor)?;
        let is_op = matches!(self.program.stmts[stmt], Stmt::Op(_));
        is_op.then(|| (stmt, self.lines.line(self.program.stmt_span(stmt).start)))
    }

    /// Says that a loop over an axis has unbound a tensor.
    fn with_loop_hint(&self, tensor: TensorId, around: &For, fault: Diagnostic) -> Box<Diagnostic> {
        let (name, index) = (self.program.tensor_name(tensor), &self.program.symbols[around.index]);
        let [start, stop] = [around.start, around.stop].map(|it| expr_text(self.program, it));
        let note = format!(
            "each iteration of the loop over `{index}` unbinds `{name}`, because the loop computes `{name}` from `{index}`"
        );
        let help = format!(
            "write `FOR {index} from {start} to {stop}:`, which keeps `{name}` from one iteration to the next"
        );
        Box::new(fault.help(help).note(note))
    }

    /// Adds a help text to an error about a tensor without a value: the program of another rank may define
    /// it, since nvFuser can print one program for each rank.
    pub(super) fn with_per_rank_hint(&self, tensor: TensorId, fault: Box<Diagnostic>) -> Box<Diagnostic> {
        let defines = |(it, mode)| it == tensor && matches!(mode, AccessMode::Write | AccessMode::Bind);
        let defined = Program::tensors_of(&self.program.inputs).any(|it| it == tensor)
            || self.program.ops().flat_map(|(_, it)| it.tensor_uses(self.program)).any(defines);
        if defined || self.plan.world < 2 || self.program.tensors[tensor].unit.is_some() {
            fault
        } else {
            let ranks: Vec<String> =
                (0..self.plan.world.min(4)).map(|it| format!("{it}=rank{it}.hir")).collect();
            let more = if self.plan.world > 4 { ",…" } else { "" };
            let own = fault.help.as_ref().map(|it| format!("{it}; ")).unwrap_or_default();
            Box::new(fault.help(format!(
                    "{own}if this is the program of one rank, pass the programs of all ranks: `--program {}{more}`",
                    ranks.join(",")
                )))
        }
    }

    pub(super) fn bind(&mut self, tensor: TensorId, view: View, stream: Option<usize>) {
        *self.name_counts.entry(view.buffer).or_default() += 1;
        let before = self.bindings[tensor.index()].replace(Binding { view, stream, copied_by: None });
        self.drop_name(before);
    }

    /// Removes the binding of a tensor.
    pub(super) fn unbind(&mut self, tensor: TensorId) {
        let before = self.bindings[tensor.index()].take();
        self.drop_name(before);
    }

    /// Releases the buffer of a removed binding.
    pub(super) fn drop_name(&mut self, before: Option<Binding>) {
        let Some(buffer) = before.map(|it| it.view.buffer) else { return };
        let count = |of: &FxHashMap<BufferNo, usize>| of.get(&buffer).copied().unwrap_or_default();
        if count(&self.name_counts) == count(&self.hold_counts) + 1 {
            let at = Unbound { origin: self.origin_no(), current: self.current };
            if let Some(it) = self.allocator.live(&mut self.plan.allocations, buffer) {
                it.unbound = Some(at);
            }
        }
        self.release(buffer);
        self.release_early(buffer);
        self.leave_to_works(buffer);
    }

    /// Drops one reference to a buffer and frees the buffer if none is left, unless it belongs to an input.
    pub(super) fn release(&mut self, buffer: BufferNo) {
        let Some(count) = self.name_counts.get_mut(&buffer) else { return };
        *count -= 1;
        let is_input = |it: &IoBinding| it.shard.view.as_ref().is_some_and(|view| view.buffer == buffer);
        if *count == 0 && !self.plan.inputs.iter().any(is_input) {
            let freed = (self.origin_no(), self.current);
            self.free_recorded(buffer, freed);
            self.allocator.free(&mut self.plan.allocations, buffer, freed);
        }
    }

    /// Returns the view that an operator writes to: the bound one, or that of a new buffer.
    ///
    /// # Errors
    /// The bound view repeats elements.
    pub(super) fn output_view(&mut self, tensor: TensorId) -> Result<View> {
        let Some(view) = self.binding(tensor).map(|it| it.view.clone()) else {
            return self.allocate(tensor, false);
        };
        self.check_written(tensor, &view)?;
        Ok(view)
    }

    /// Like `output_view`, but the dimensions of storage that only this name has get the order that those of `like` have in memory, as results
    /// of attentions in PyTorch do: what follows brings the heads of a row together again, which is a view then.
    pub(super) fn output_view_like(&mut self, tensor: TensorId, like: &View) -> Result<View> {
        let view = self.output_view(tensor)?;
        if !self.is_only_name_of_storage(&view) {
            return Ok(view);
        }
        let Some(ordered) = view.in_order_of(like) else { return Ok(view) };
        let stream = self.binding(tensor).and_then(|it| it.stream);
        self.bind(tensor, ordered.clone(), stream);
        Ok(ordered)
    }

    /// Returns whether a view is a whole row-major buffer that this rank has allocated, no other rank accesses, and no other name refers to.
    fn is_only_name_of_storage(&mut self, view: &View) -> bool {
        let has = |counts: &FxHashMap<BufferNo, usize>, count| {
            counts.get(&view.buffer).copied().unwrap_or(0) == count
        };
        let is_whole = *view == View::contiguous(view.buffer, view.shape.clone())
            && view.len() == self.plan.buffers[view.buffer as usize].len;
        is_whole
            && has(&self.name_counts, 1)
            && has(&self.hold_counts, 0)
            && self.allocator.live(&mut self.plan.allocations, view.buffer).is_some_and(|it| !it.is_symmetric)
    }

    /// Reports a write through a view that repeats elements.
    pub(super) fn check_written(&self, tensor: TensorId, view: &View) -> Result<()> {
        if !view.repeats_elements() {
            return Ok(());
        }
        let name = self.program.tensor_name(tensor);
        let message = format!("`{name}` is a view that repeats elements, and each would get several values");
        let it = self.error(Code::RepeatedElements, message, "writes to an expanded view");
        Err(Box::new(it.help(format!(
            "give `{name}` storage of its own, as in `{name} = ALLOCATE(mem_type=global, zero_init=false)`, or write to the tensor that is expanded"
        ))))
    }

    /// Allocates a buffer of the tensor's local shape and binds the tensor to it.
    pub(super) fn allocate(&mut self, tensor: TensorId, zero: bool) -> Result<View> {
        let shape = self.layout(tensor)?.local_shape();
        let view = self.buffer(tensor, shape);
        self.allocate_buffer(view.buffer, zero);
        self.bind(tensor, view.clone(), None);
        Ok(view)
    }

    /// Allocates a buffer on the current stream.
    pub(super) fn allocate_buffer(&mut self, buffer: BufferNo, zero: bool) {
        let it = &self.plan.buffers[buffer as usize];
        let (len, bytes) = (it.len, it.bytes());
        let zeroed = zero.then(|| View::contiguous(buffer, vec![len]).into());
        self.emit(InstKind::Alloc { buffer, zeroed });
        self.allocator.allocate(&mut self.plan.allocations, buffer, bytes, self.current);
    }
}
