//! Statements whose results later ones can use.
//!
//! Every lookup and every removal takes constant time per statement: what a change makes invalid is found by what it depends
//! on.

use grammar::{
    attr::AttrName,
    ir::{Attr, BlockId, Operand, SymbolId, TensorId},
    ops::Op,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::CurrentStream;

/// What equal statements have in common.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct ExprKey {
    /// The block that they stand in.
    pub block: BlockId,
    pub op: Op,
    pub args: Vec<Operand>,
    pub attrs: Vec<(AttrName, Attr)>,
    /// What was current, as far as the block says; `None` for views.
    pub stream: Option<CurrentStream>,
}

/// A place in `Known::results`.
type EntryIndex = usize;

/// Results of the statements so far, in the block that is looked at and in those around it.
#[derive(Default)]
pub(super) struct AvailableExprs {
    /// By entry; `None`: it is no longer valid.
    results: Vec<Option<TensorId>>,
    equal: FxHashMap<ExprKey, Vec<EntryIndex>>,
    of_result: FxHashMap<TensorId, Vec<EntryIndex>>,
    of_operand: FxHashMap<TensorId, Vec<EntryIndex>>,
    of_storage: FxHashMap<TensorId, Vec<EntryIndex>>,
    of_scalar: FxHashMap<SymbolId, Vec<EntryIndex>>,
}

impl AvailableExprs {
    /// Results of statements with this key that are valid here.
    pub(super) fn find(&self, key: &ExprKey) -> impl Iterator<Item = TensorId> {
        self.equal.get(key).into_iter().flatten().filter_map(|it| self.results[*it])
    }

    /// Adds a result. It is valid until an operand gets another meaning, the storage of one of the classes in `read` is
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

    /// A name gets another meaning; `written`: the class of storage that is written instead.
    pub(super) fn invalidate_tensor(&mut self, tensor: TensorId, written: Option<TensorId>) {
        let of_operand = self.of_operand.remove(&tensor);
        let others = match written {
            Some(class) => self.of_storage.remove(&class),
            None => self.of_result.remove(&tensor),
        };
        self.invalidate(of_operand.into_iter().chain(others).flatten());
    }

    /// A scalar gets another value.
    pub(super) fn invalidate_symbol(&mut self, symbol: SymbolId) {
        let entries = self.of_scalar.remove(&symbol);
        self.invalidate(entries.into_iter().flatten());
    }

    fn invalidate(&mut self, entries: impl Iterator<Item = EntryIndex>) {
        entries.for_each(|it| self.results[it] = None);
    }
}
