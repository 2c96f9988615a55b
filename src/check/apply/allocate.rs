//! The repairs that give each iteration of a loop storage of its own.

use grammar::{Backend, MemoryType, Op, OpClass, Stmt, StmtId, TensorId, attr};
use hir_ir::edit::Edit;

use crate::{editable_text::EditableText, repair::InsertionPoint};

impl EditableText {
    /// Converts a long-form ALLOCATE into the short form. Returns `None` if the ALLOCATE zeroes the buffer or
    /// if other tensors are views of it: a later iteration may read what an earlier one wrote.
    pub(super) fn shorten_allocate(&self, stmt: StmtId) -> Option<Vec<Edit>> {
        let Stmt::Op(it) = &self.program.stmts[stmt] else { return None };
        if it.op != Op::AllocateOnce || self.is_viewed(self.plain_allocate(stmt)?) {
            return None;
        }
        Some(vec![Edit::Shorten(stmt)])
    }

    /// Moves an ALLOCATE into the loop that contains `user`, before the first statement there that uses the tensor. Returns `None` if the
    /// tensor is used elsewhere, if it has views, if peers may access its memory, or if the ALLOCATE zeroes.
    pub(super) fn move_allocate(&self, stmt: StmtId, user: StmtId) -> Option<Vec<Edit>> {
        let (program, places) = (&self.program, self.places());
        let tensor = self.plain_allocate(stmt).filter(|it| !self.is_viewed(*it))?;
        let is_shared = |outer: StmtId| places.around(stmt).any(|it| it.1 == outer);
        let (body, looped) = places.around(user).take_while(|it| !is_shared(it.1)).last()?;
        let is_loop = matches!(program.stmts[looped], Stmt::For(_));
        let is_inside = |it: StmtId| places.around(it).any(|it| it.1 == looped);
        let is_bound = program.inputs.iter().chain(&program.outputs).any(|it| it.tensor() == Some(tensor));
        let uses = || program.stmts.ids().filter(|it| *it != stmt && self.uses(*it, tensor));
        if !is_loop || is_bound || !uses().all(|it| is_inside(it) && self.is_local_use(it)) {
            return None;
        }
        let first = program.block(body).iter().copied().find(|it| self.contains_use(*it, tensor))?;
        let before = InsertionPoint::Before { statement: self.named(first), current: None };
        let is_long = program.stmts[stmt].op().is_some_and(|it| it.op == Op::AllocateOnce);
        let moved = Edit::Move { stmt, to: self.place(&before)? };
        Some(std::iter::once(moved).chain(is_long.then_some(Edit::Shorten(stmt))).collect())
    }

    /// Returns the tensor of an ALLOCATE that does not zero.
    fn plain_allocate(&self, stmt: StmtId) -> Option<TensorId> {
        let it = self.program.stmts[stmt].op()?;
        let is_plain = matches!(it.op, Op::Allocate | Op::AllocateOnce)
            && it.get(attr::ZERO_INIT) != Some(true)
            && it.get(attr::RESETS_TO_ZERO) != Some(true)
            && it.get(attr::MEM_TYPE) != Some(MemoryType::Symmetric);
        it.out_tensor().filter(|_| is_plain)
    }

    fn uses(&self, stmt: StmtId, tensor: TensorId) -> bool {
        self.program.op(stmt).is_some_and(|it| it.mentions(&self.program).any(|it| it == tensor))
    }

    /// Returns whether a statement lets no peer access the memory of its tensors directly.
    fn is_local_use(&self, stmt: StmtId) -> bool {
        self.program.stmts[stmt].op().is_none_or(|it| match it.op.def().class {
            OpClass::Communicate => it.get(attr::BACKEND) != Some(Backend::Cuda),
            OpClass::ShareHandles => false,
            grammar::local_classes!()
            | OpClass::Wait
            | OpClass::Stream
            | OpClass::Condition
            | OpClass::Coalescing
            | OpClass::HostUnit
            | OpClass::Opaque => true,
        })
    }

    fn contains_use(&self, stmt: StmtId, tensor: TensorId) -> bool {
        self.program.stmts_at(stmt).any(|it| self.uses(it, tensor))
    }
}
