//! Which results of a loop are views, and have no storage of their own.
//!
//! A view that only the iteration reads is a view of the slice. Where statements behind the loop read a view as a whole, such as the product
//! for the gradient of a weight, the loop computes the whole operand, and the view is made of it behind the loop; the statements of the loop
//! read views of slices. A copy of each slice would take time, and as much memory again.

use grammar::{Aliasing, OpClass, Program, Stmt, TensorId, TypeRule};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{body::LoopWriter, group::LoopStmt, options::Style, slicing::SliceKind};

/// The results of a loop that are views of operands.
#[derive(Default)]
pub(super) struct LoopViews {
    /// The views of one iteration, with the dimension that is sliced, by the position of the last statement that reads their elements; the
    /// latest first.
    by_last_reader: FxHashMap<usize, Vec<(TensorId, usize)>>,
    /// The views of whole tensors, which are made behind the loop. Those that the loop reads are views of one iteration, too.
    whole: FxHashSet<TensorId>,
    /// The operands of these.
    viewed: FxHashSet<TensorId>,
}

impl LoopViews {
    /// Finds the views of a loop.
    pub(super) fn of(writer: &LoopWriter) -> Self {
        let mut found = Self::default();
        // By tensor: the last statement that reads it or a view of it, if all of these are local.
        let mut last: FxHashMap<TensorId, Option<usize>> = FxHashMap::default();
        for (at, member) in writer.group.members.iter().enumerate().rev() {
            let slicing = &member.slicing;
            let is_local = slicing.kind == SliceKind::Local;
            let readers = last.get(&slicing.out).copied();
            let mut read_at = is_local.then_some(at);
            if let (Some(reader), Some(dim), true) =
                (readers.unwrap_or(Some(at)), slicing.out_dim, is_local && is_view(writer, member))
            {
                let is_whole = found.is_whole_view(writer, member);
                if is_whole {
                    found.whole.insert(slicing.out);
                    found.viewed.extend(slicing.operands.iter().map(|it| it.tensor));
                }
                if is_whole && readers.is_none() {
                    continue;
                }
                if is_whole || writer.is_of_one_iteration(member) && !found.viewed.contains(&slicing.out) {
                    found.by_last_reader.entry(reader).or_default().push((slicing.out, dim));
                    read_at = Some(reader);
                }
            }
            for operand in &slicing.operands {
                let known = last.entry(operand.tensor).or_insert(read_at);
                *known = known.zip(read_at).map(|(a, b)| a.max(b));
            }
        }
        found
    }

    /// Returns whether a view is one of a whole tensor: something outside of the loop needs it, and it may be strided.
    fn is_whole_view(&self, writer: &LoopWriter, member: &LoopStmt) -> bool {
        let (program, slicing) = (&*writer.pass.program, &member.slicing);
        let is_needed = self.viewed.contains(&slicing.out) || writer.escapes(slicing.out);
        let is_output = Program::tensors_of(&program.outputs).any(|it| it == slicing.out);
        let is_part =
            matches!(&program.stmts[member.stmt], Stmt::Op(it) if it.op.def().type_rule == TypeRule::Slice);
        let has_storage = |tensor| !program.is_split_by_stream(tensor);
        let ring_buffer = |it: &LoopStmt| it.slicing.ring_buffer(writer.pass.settings);
        writer.group.style == Style::Shard
            && is_needed
            && !is_output
            && !is_part
            && !writer.pass.facts.bindings.already_bound.contains(&member.stmt)
            && has_storage(slicing.out)
            && slicing.operands.iter().all(|it| has_storage(it.tensor))
            && !writer.group.members.iter().any(|it| ring_buffer(it) == Some(slicing.out))
    }

    /// Returns the views of one iteration that a statement is the last one to read, with the dimension that is sliced.
    pub(super) fn last_read_by(&self, at: usize) -> Vec<(TensorId, usize)> {
        self.by_last_reader.get(&at).cloned().unwrap_or_default()
    }

    /// Returns whether a tensor is a view of one iteration.
    pub(super) fn contains(&self, tensor: TensorId) -> bool {
        self.by_last_reader.values().flatten().any(|it| it.0 == tensor)
    }

    /// Returns whether a tensor is a view of a whole tensor.
    pub(super) fn is_whole(&self, tensor: TensorId) -> bool {
        self.whole.contains(&tensor)
    }

    /// Returns whether a view is made of a whole tensor.
    pub(super) fn is_viewed(&self, tensor: TensorId) -> bool {
        self.viewed.contains(&tensor)
    }
}

/// Returns whether a statement computes no new elements, but a view of its operand.
fn is_view(writer: &LoopWriter, member: &LoopStmt) -> bool {
    matches!(&writer.pass.program.stmts[member.stmt], Stmt::Op(it)
        if it.op.def().class == OpClass::Compute && matches!(it.rule().aliasing(), Aliasing::View(_)))
}
