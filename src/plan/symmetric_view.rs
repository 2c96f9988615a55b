//! Plans `SymmetricContiguousView`. nvFuser maps the memory of all ranks into one range of addresses (`mapped_views`). hir gathers the
//! shards where the statement is. A program that writes a shard or the view later, which the other name would show, is refused.

use std::sync::Arc;

use grammar::{CommunicationType, OpStmt, TensorId};
use rustc_hash::FxHashMap;

use super::{
    AxisPiece, Backend, BufferNo, Collective, CollectiveKind, InstKind, ReduceOp,
    context::{PlanBuilder, Result},
    posted::{GatheredView, Request},
};

impl PlanBuilder<'_> {
    /// Binds `out` to a copy of the shards of all ranks of the mesh of `input`.
    pub(super) fn gather_shards(&mut self, stmt: &OpStmt, out: TensorId, input: TensorId) -> Result<()> {
        let team: Arc<[usize]> = Arc::clone(self.teams.world());
        let devices = &self.program.tensors[input].mesh.devices;
        if devices[..] != team[..] {
            let why = "the mesh of its operand is not all ranks in their order";
            return Err(self.unsupported(stmt.op, why));
        }
        let known = self.plan.allocations.len();
        let (shard, view) = (self.view(input)?, self.output_view(out)?);
        // nvFuser maps the view, and hir's executors never reuse the storage of the copy.
        self.plan.allocations.iter_mut().skip(known).for_each(|it| it.is_empty = true);
        // The device axis is the outermost one, so that the shards follow each other in the result.
        let layout = self.layout(input)?;
        let is_outermost = |(dim, pieces): (usize, &Vec<AxisPiece>)| {
            let is_fixed = |it: &AxisPiece| it.coordinate.is_some() && it.extent > 1;
            !pieces.iter().skip(usize::from(dim == 0)).any(is_fixed)
        };
        if !layout.pieces.iter().enumerate().all(is_outermost) {
            return Err(self.unsupported(stmt.op, "the device axis of its operand is not the outermost one"));
        }
        let rest = shard.shape.get(1..).unwrap_or_default();
        let rows = shard.shape.first().copied().unwrap_or(1);
        if view.shape != [&[rows * team.len()], rest].concat()
            && view.shape != [&[team.len()], &shard.shape[..]].concat()
        {
            return Err(self.shape_mismatch(stmt.op, &shard.shape, &view.shape));
        }
        let [shard, view] = [(shard, input), (view, out)].map(|(it, of)| it.with_parts(self.dtype(of)));
        let buffers = [shard.buffer, view.buffer];
        let communicator = self.communicator(Backend::Nccl, team);
        let work = self.new_work(None, Request::default());
        self.plan.gathered_views.push(super::GatheredView { work, shard: shard.clone(), view: view.clone() });
        let kind = CollectiveKind::new(CommunicationType::Allgather, 0, ReduceOp::Sum);
        let (input, output) = (Some(shard), Some(view));
        self.emit(InstKind::Collective(Box::new(Collective { communicator, kind, input, output, work })));
        self.emit(InstKind::Wait { work });
        let end = self.plan.code.len();
        self.gathered.push(GatheredView { end, buffers, span: self.span, stmt: stmt.clone() });
        Ok(())
    }

    /// Reports a view of shards that a later instruction changes.
    pub(super) fn check_gathered_views(&mut self) -> Result<()> {
        let gathered = std::mem::take(&mut self.gathered);
        let mut last_writes: FxHashMap<BufferNo, usize> =
            gathered.iter().flat_map(|it| it.buffers.map(|buffer| (buffer, 0))).collect();
        if last_writes.is_empty() {
            return Ok(());
        }
        let rank = self.rank();
        for (at, inst) in self.plan.code.iter().enumerate() {
            inst.kind.visit_accesses(rank, &mut |it| {
                if let Some(last) =
                    last_writes.get_mut(&it.view.buffer).filter(|_| it.is_write && it.rank == rank)
                {
                    *last = at;
                }
            });
        }
        for it in gathered {
            let later = it.buffers.iter().filter_map(|buffer| last_writes.get(buffer)).max();
            if let Some(later) = later.filter(|later| **later >= it.end) {
                let line = self.plan.origins[self.plan.code[*later].origin as usize].line;
                self.span = it.span;
                let why = format!(
                    "hir copies the shards of all ranks, and line {line} writes a shard or the view afterwards"
                );
                return Err(self.unsupported(it.stmt.op, &why));
            }
        }
        Ok(())
    }
}
