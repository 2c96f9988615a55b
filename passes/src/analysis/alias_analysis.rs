//! Computes which names may alias, that is, share storage.
//!
//! Invariant: names that share storage in any execution order are in one class.

use grammar::{Aliasing, BlockId, OpClass, OpStmt, Program, TensorId};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::bindings::BindingAnalysis;

/// A partition of names into alias classes (union-find).
#[derive(Default)]
pub struct AliasClasses {
    /// The parent of a name in the forest. A representative has no parent.
    parents: FxHashMap<TensorId, TensorId>,
}

/// What HostUnits and kernels do with their operands. Their bodies are not analyzed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OpaqueCallModel {
    /// They write into the storage of their outputs, which is allocated before the body runs.
    WriteOutputs,
    /// Their outputs may also alias their inputs.
    MayAlias,
}

impl AliasClasses {
    /// Analyzes all statements of a container. `bindings` are those of the program.
    pub fn of(program: &Program, body: BlockId, bindings: &BindingAnalysis, calls: OpaqueCallModel) -> Self {
        let mut this = Self::default();
        for (stmt, it) in program.ops_in(body) {
            if may_alias_operands(it, bindings.already_bound.contains(&stmt), calls) {
                let mut all = it.mentions(program);
                let first = all.next();
                all.for_each(|it| this.union(first.unwrap_or(it), it));
            }
        }
        let joined: Vec<TensorId> = this.parents.keys().copied().collect();
        joined.into_iter().for_each(|it| _ = this.compress_path(it));
        this
    }

    /// Makes one class of the classes of two names.
    pub fn union(&mut self, a: TensorId, b: TensorId) {
        let (a, b) = (self.compress_path(a), self.compress_path(b));
        if a != b {
            self.parents.insert(a.max(b), a.min(b));
        }
    }

    /// Returns the representative of a tensor, and makes all names on the path to it its direct children.
    fn compress_path(&mut self, tensor: TensorId) -> TensorId {
        let (class, mut at) = (self.alias_class(tensor), tensor);
        while at != class {
            at = self.parents.insert(at, class).unwrap_or(class);
        }
        class
    }

    /// Returns the representative of all names that may share storage with `tensor`.
    pub fn alias_class(&self, tensor: TensorId) -> TensorId {
        let mut tensor = tensor;
        while let Some(parent) = self.parents.get(&tensor) {
            tensor = *parent;
        }
        tensor
    }
}

/// Returns all names that may share storage with one of `tensors`, which are names too.
pub fn names_of_same_storage(
    program: &Program,
    bindings: &BindingAnalysis,
    tensors: impl Iterator<Item = TensorId>,
) -> FxHashSet<TensorId> {
    let Some(body) = program.body else { return tensors.collect() };
    let sharing = AliasClasses::of(program, body, bindings, OpaqueCallModel::MayAlias);
    let classes: FxHashSet<TensorId> = tensors.map(|it| sharing.alias_class(it)).collect();
    program.tensors.ids().filter(|it| classes.contains(&sharing.alias_class(*it))).collect()
}

/// Returns true if an operator may bind its results to the storage of its operands.
pub fn may_alias_operands(it: &OpStmt, is_bound: bool, calls: OpaqueCallModel) -> bool {
    match it.op.def().class {
        OpClass::View | OpClass::Allocate => true,
        // A result that already has storage is copied into.
        OpClass::Compute => can_forward_operand(it) && !is_bound,
        OpClass::HostUnit | OpClass::Opaque => calls == OpaqueCallModel::MayAlias,
        OpClass::Elementwise
        | OpClass::Deallocate
        | OpClass::Communicate
        | OpClass::Wait
        | OpClass::Stream
        | OpClass::Condition
        | OpClass::Coalescing
        | OpClass::ShareHandles => false,
    }
}

/// Returns true if an operator may bind its result to its operand's elements instead of computing new ones.
pub fn can_forward_operand(it: &OpStmt) -> bool {
    it.op.def().class == OpClass::Compute && it.rule().aliasing() != Aliasing::Never
}
