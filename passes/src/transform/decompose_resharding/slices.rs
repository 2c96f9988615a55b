//! Creates the tensors of statements that work on one stream's slices.

use grammar::{Code, Diagnostic, Memory, ParallelType, Program, StmtId, TensorId};
use hir_ir::build;

use super::Decomposer;
use crate::{analysis::sharding::Sharding, rewrite::sharded_tensors::allocate_per_stream};

impl Decomposer<'_> {
    /// Creates a tensor with this sharding and the element type of `like`. In a statement on slices, it is a slice if
    /// `like` is one.
    pub(super) fn new_tensor(&mut self, sharding: &Sharding, like: TensorId) -> TensorId {
        let new = sharding.new_tensor(self.program, self.fresh, like, Memory::Global);
        if self.is_on_slices {
            let has_stream = sharding.dims.iter().any(|dim| dim.stream().is_some());
            self.mixes_slices |= has_stream != is_slice(self.program, like);
            if has_stream {
                // Without an ALLOCATE in every iteration, the name would keep the slice of the first one.
                allocate_per_stream(self.program, new);
                let allocate = build::allocate(self.program, new);
                self.emit(allocate);
            }
        }
        new
    }

    /// Returns the error for a statement that needs a whole tensor in place of a slice.
    pub(super) fn slice_error(&self, stmt: StmtId) -> Diagnostic {
        let name = self.program.op(stmt).map_or("the statement", |it| it.op.name());
        let message =
            format!("`{name}` reshards, but it works on one stream's slice where the whole tensor is needed");
        let it = Diagnostic::new(Code::NotRewritten, self.span, message, "not decomposed");
        it.help("run `decompose-resharding` before `stream-parallel`")
    }
}

/// Returns whether a rank holds one stream's slice of the tensor at a time.
pub(super) fn is_slice(program: &Program, tensor: TensorId) -> bool {
    let allocation = program.tensors[tensor].domains.allocation.iter().flatten();
    allocation.into_iter().any(|axis| program.axes[*axis].parallel == ParallelType::Stream)
}

/// Returns whether an operand or result of a statement is one stream's slice.
pub(super) fn mentions_slice(program: &Program, stmt: StmtId) -> bool {
    program.op(stmt).is_some_and(|it| it.mentions(program).any(|it| is_slice(program, it)))
}
