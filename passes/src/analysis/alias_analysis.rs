//! Which names may stand for the same storage.
//!
//! Invariant: names that ever share storage, in whatever order statements run, are in one class.

use grammar::{
    for_each_tensor_use,
    ir::{BlockId, OpStmt, Program, Stmt, TensorId},
    ops::{Op, OpClass, TypeRule},
};
use rustc_hash::FxHashMap;

use crate::analysis::bindings;

/// Names in classes.
#[derive(Default)]
pub(crate) struct AliasClasses {
    /// Another name of the class; none where the name stands for the class.
    parents: FxHashMap<TensorId, TensorId>,
}

/// What units and kernels, whose bodies are not looked at, do with what they are given.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpaqueCallModel {
    /// They write into the storage of their outputs, which these have before the body runs.
    WriteOutputs,
    /// They may hand it out again.
    MayAlias,
}

impl AliasClasses {
    /// Looks at all statements of a container.
    pub(crate) fn of(program: &Program, body: BlockId, calls: OpaqueCallModel) -> Self {
        let mut this = Self::default();
        let bound = bindings::analyze_bindings(program).already_bound;
        program.walk(body, &mut |stmt| {
            if let Stmt::Op(it) = &program.stmts[stmt]
                && may_alias_operands(it, bound.contains(&stmt), calls)
            {
                let mut first = None;
                for_each_tensor_use(program, it, &mut |tensor, _| {
                    this.union(*first.get_or_insert(tensor), tensor)
                });
            }
        });
        let joined: Vec<TensorId> = this.parents.keys().copied().collect();
        joined.into_iter().for_each(|it| _ = this.compress_path(it));
        this
    }

    fn union(&mut self, a: TensorId, b: TensorId) {
        let (a, b) = (self.compress_path(a), self.compress_path(b));
        if a != b {
            self.parents.insert(a.max(b), a.min(b));
        }
    }

    /// The class of a tensor, which all names on the way to it then lead to directly.
    fn compress_path(&mut self, tensor: TensorId) -> TensorId {
        let (class, mut at) = (self.alias_class(tensor), tensor);
        while at != class {
            at = self.parents.insert(at, class).unwrap_or(class);
        }
        class
    }

    /// The name that stands for all that may share storage with `tensor`.
    pub(crate) fn alias_class(&self, tensor: TensorId) -> TensorId {
        let mut tensor = tensor;
        while let Some(parent) = self.parents.get(&tensor) {
            tensor = *parent;
        }
        tensor
    }
}

/// Whether an operator may make its results stand for the storage of its operands.
fn may_alias_operands(it: &OpStmt, is_bound: bool, calls: OpaqueCallModel) -> bool {
    match it.op.def().class {
        OpClass::View | OpClass::Allocate => true,
        // A result that has storage is copied into.
        OpClass::Compute => can_forward_operand(it.op.def().type_rule) && !is_bound && !is_concatenation(it),
        OpClass::HostUnit | OpClass::Opaque => calls == OpaqueCallModel::MayAlias,
        OpClass::Elementwise
        | OpClass::Deallocate
        | OpClass::Communicate
        | OpClass::Wait
        | OpClass::Stream
        | OpClass::Coalescing
        | OpClass::ShareHandles => false,
    }
}

/// Whether an operator copies several tensors into one: no name stands for all of them.
fn is_concatenation(it: &OpStmt) -> bool {
    it.op == Op::Cat && Program::tensors_of(&it.args).count() > 1
}

/// Whether an operator under this rule may give its result's name to its operand's elements instead of copying them.
pub(crate) fn can_forward_operand(rule: TypeRule) -> bool {
    match rule {
        TypeRule::Unchecked
        | TypeRule::Same
        | TypeRule::Pointwise
        | TypeRule::Broadcast
        | TypeRule::Squeeze
        | TypeRule::Permute
        | TypeRule::Reshape
        | TypeRule::Select
        | TypeRule::Slice
        | TypeRule::Shard => true,
        TypeRule::Cast
        | TypeRule::Linear
        | TypeRule::Matmul
        | TypeRule::Reduce
        | TypeRule::Generate
        | TypeRule::Communicate => false,
    }
}
