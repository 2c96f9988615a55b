//! The available expressions: statements whose results later statements can reuse.
//!
//! Lookups and removals take constant time per statement: an index by dependency finds the entries that a
//! change invalidates.

use grammar::{Attr, BlockId, Op, Operand, SymbolId, TensorId, attr::AttrName};
use rustc_hash::{FxHashMap, FxHashSet};

use hir_ir::streams::StreamValue;

/// The properties that equal statements share.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct ExprKey {
    /// The block that contains them.
    pub block: BlockId,
    pub op: Op,
    pub args: Vec<Operand>,
    pub attrs: Vec<(AttrName, Attr)>,
    /// The current stream, as far as the block determines it; `None` for views.
    pub stream: Option<StreamValue>,
}

/// An index into `AvailableExprs::results`.
type EntryIndex = usize;

/// The results of the statements so far, in the current block and the enclosing ones.
#[derive(Default)]
pub(super) struct AvailableExprs {
    /// The result of each entry; `None` if it is no longer valid.
    results: Vec<Option<TensorId>>,
    equal: FxHashMap<ExprKey, Vec<EntryIndex>>,
    of_result: FxHashMap<TensorId, Vec<EntryIndex>>,
    of_operand: FxHashMap<TensorId, Vec<EntryIndex>>,
    of_storage: FxHashMap<TensorId, Vec<EntryIndex>>,
    of_scalar: FxHashMap<SymbolId, Vec<EntryIndex>>,
}

impl AvailableExprs {
    /// Returns the results of statements with this key that are valid here.
    pub(super) fn find(&self, key: &ExprKey) -> impl Iterator<Item = TensorId> {
        self.equal.get(key).into_iter().flatten().filter_map(|it| self.results[*it])
    }

    /// Adds a result. It is valid until an operand is rebound, storage of an alias class in `read` is
    /// written, or a scalar changes.
    pub(super) fn insert(
        &mut self,
        key: ExprKey,
        out: TensorId,
        operands: &[TensorId],
        read: Vec<TensorId>,
        scalars: FxHashSet<SymbolId>,
    ) {
        let entry = self.results.len();
        self.results.push(Some(out));
        let alike = self.equal.entry(key).or_default();
        alike.retain(|it| self.results[*it].is_some());
        alike.push(entry);
        self.of_result.entry(out).or_default().push(entry);
        operands.iter().for_each(|it| self.of_operand.entry(*it).or_default().push(entry));
        read.iter().for_each(|it| self.of_storage.entry(*it).or_default().push(entry));
        scalars.iter().for_each(|it| self.of_scalar.entry(*it).or_default().push(entry));
    }

    /// Invalidates the entries that depend on a name that is rebound. `written` is the alias class of the
    /// storage if the name is written rather than bound.
    pub(super) fn invalidate_tensor(&mut self, tensor: TensorId, written: Option<TensorId>) {
        let of_operand = self.of_operand.remove(&tensor);
        let others = match written {
            Some(class) => self.of_storage.remove(&class),
            None => self.of_result.remove(&tensor),
        };
        self.invalidate(of_operand.into_iter().chain(others).flatten());
    }

    /// Invalidates the entries that depend on a scalar that changes.
    pub(super) fn invalidate_symbol(&mut self, symbol: SymbolId) {
        let entries = self.of_scalar.remove(&symbol);
        self.invalidate(entries.into_iter().flatten());
    }

    fn invalidate(&mut self, entries: impl Iterator<Item = EntryIndex>) {
        entries.for_each(|it| self.results[it] = None);
    }
}
