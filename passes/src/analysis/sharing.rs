//! Which names may stand for the same storage.
//!
//! Invariant: names that ever share storage, in whatever order statements run, are in one class.

use grammar::{
    ir::{BlockId, OpStmt, Program, Stmt, TensorId},
    mentions,
    ops::{Effect, Op, Rule},
};
use rustc_hash::FxHashMap;

use crate::analysis::bindings;

/// Names in classes.
#[derive(Default)]
pub(crate) struct Sharing {
    /// Another name of the class; none where the name stands for the class.
    parents: FxHashMap<TensorId, TensorId>,
}

/// What units and kernels, whose bodies are not looked at, do with what they are given.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Calls {
    /// They write into the storage of their outputs, which these have before the body runs.
    Write,
    /// They may hand it out again.
    HandOut,
}

impl Sharing {
    /// Looks at all statements of a container.
    pub(crate) fn of(program: &Program, body: BlockId, calls: Calls) -> Self {
        let mut this = Self::default();
        let bound = bindings::facts(program).bound;
        program.walk(body, &mut |stmt| {
            if let Stmt::Op(it) = &program.stmts[stmt]
                && shares(it, bound.contains(&stmt), calls)
            {
                let mut first = None;
                mentions(program, it, &mut |tensor, _| this.join(*first.get_or_insert(tensor), tensor));
            }
        });
        let joined: Vec<TensorId> = this.parents.keys().copied().collect();
        joined.into_iter().for_each(|it| _ = this.shortened(it));
        this
    }

    fn join(&mut self, a: TensorId, b: TensorId) {
        let (a, b) = (self.shortened(a), self.shortened(b));
        if a != b {
            self.parents.insert(a.max(b), a.min(b));
        }
    }

    /// The class of a tensor, which all names on the way to it then lead to directly.
    fn shortened(&mut self, tensor: TensorId) -> TensorId {
        let (class, mut at) = (self.class(tensor), tensor);
        while at != class {
            at = self.parents.insert(at, class).unwrap_or(class);
        }
        class
    }

    /// The name that stands for all that may share storage with `tensor`.
    pub(crate) fn class(&self, tensor: TensorId) -> TensorId {
        let mut tensor = tensor;
        while let Some(parent) = self.parents.get(&tensor) {
            tensor = *parent;
        }
        tensor
    }
}

/// Whether an operator may make its results stand for the storage of its operands.
fn shares(it: &OpStmt, is_bound: bool, calls: Calls) -> bool {
    match it.op.row().effect {
        Effect::View | Effect::Allocate => true,
        // A result that has storage is copied into.
        Effect::Compute => may_rearrange(it.op.row().rule) && !is_bound && !joins(it),
        Effect::Unit | Effect::Opaque => calls == Calls::HandOut,
        Effect::Map
        | Effect::Deallocate
        | Effect::Communicate
        | Effect::Wait
        | Effect::Stream
        | Effect::Group
        | Effect::Share => false,
    }
}

/// Whether an operator copies several tensors into one: no name stands for all of them.
fn joins(it: &OpStmt) -> bool {
    it.op == Op::Cat && Program::tensors_of(&it.args).count() > 1
}

/// Whether an operator under this rule may give its result's name to its operand's elements instead of copying them.
pub(crate) fn may_rearrange(rule: Rule) -> bool {
    match rule {
        Rule::Free
        | Rule::Same
        | Rule::Pointwise
        | Rule::Broadcast
        | Rule::Squeeze
        | Rule::Permute
        | Rule::Reshape
        | Rule::Select
        | Rule::Slice
        | Rule::Shard => true,
        Rule::Cast | Rule::Linear | Rule::Matmul | Rule::Reduce | Rule::Generate | Rule::Communicate => false,
    }
}
