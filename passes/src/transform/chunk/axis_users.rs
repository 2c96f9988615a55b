//! The statements that name axes, so that a pass that replaces many axes does not search the program for each of them.

use grammar::{Attr, AxisId, Op, Program, Stmt, StmtId, TensorId};
use rustc_hash::FxHashMap;

/// The statements that name axes, or depend on the number of parts of a stream axis.
#[derive(Default)]
pub(crate) struct AxisUsers {
    /// By axis and its tensor, because tensors share axes: the statements with an attribute that names it.
    named: FxHashMap<(TensorId, AxisId), Vec<StmtId>>,
    /// By tensor: its first ShardByStream, and its position in the program.
    shards: FxHashMap<TensorId, (usize, StmtId)>,
    /// By axis: the first loop over it, and its position in the program.
    loops: FxHashMap<AxisId, (usize, StmtId)>,
}

impl AxisUsers {
    pub(crate) fn of(program: &Program) -> Self {
        let mut found = Self::default();
        for (id, stmt) in program.stmts.iter() {
            let Stmt::Op(it) = stmt else { continue };
            for (_, attr) in &it.attrs {
                if let Attr::Axis(axis) = attr {
                    let mut tensors = Program::tensors_of(&it.args).chain(Program::tensors_of(&it.outs));
                    if let Some(it) = tensors.find(|it| program.tensors[*it].domains.logical.contains(axis)) {
                        found.named.entry((it, *axis)).or_default().push(id);
                    }
                }
            }
        }
        let Some(body) = program.body else { return found };
        let mut position = 0;
        for id in program.stmts_in(body) {
            position += 1;
            match &program.stmts[id] {
                Stmt::Op(it) if it.op == Op::ShardByStream => {
                    for tensor in Program::tensors_of(&it.outs).chain(Program::tensors_of(&it.args)) {
                        found.shards.entry(tensor).or_insert((position, id));
                    }
                }
                Stmt::For(it) => {
                    it.axis
                        .into_iter()
                        .for_each(|axis| _ = found.loops.entry(axis).or_insert((position, id)));
                }
                Stmt::Op(_) | Stmt::Let(..) | Stmt::If(_) => (),
            }
        }
        found
    }

    /// Makes the statements that name an axis of a tensor, such as `select( T2, axis = iS8{8}, … )`, name another one.
    pub(super) fn rename(&mut self, program: &mut Program, tensor: TensorId, old: AxisId, new: AxisId) {
        let users = self.named.remove(&(tensor, old)).unwrap_or_default();
        for id in &users {
            let Stmt::Op(it) = &mut program.stmts[*id] else { continue };
            for (_, attr) in &mut it.attrs {
                if let Attr::Axis(named) = attr
                    && *named == old
                {
                    *named = new;
                }
            }
        }
        self.named.entry((tensor, new)).or_default().extend(users);
    }

    /// Returns the first statement that depends on the number of parts of a stream axis of a tensor. `leaves` are the loop axes of
    /// the dimension.
    pub(super) fn of_stream_axis(
        &self,
        tensor: TensorId,
        leaves: &[AxisId],
    ) -> Option<(StmtId, &'static str)> {
        let shard =
            self.shards.get(&tensor).map(|it| (*it, "ShardByStream makes slices along the stream axis of"));
        let loops = leaves.iter().filter_map(|axis| self.loops.get(axis));
        let loops = loops.map(|it| (*it, "a loop iterates over the stream axis of"));
        let first = shard.into_iter().chain(loops).min_by_key(|it| it.0.0);
        first.map(|((_, stmt), why)| (stmt, why))
    }
}
