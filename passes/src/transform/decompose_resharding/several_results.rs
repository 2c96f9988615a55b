//! Operators with several results, such as `topk` and `sdpa`.

use grammar::{Diagnostic, OpStmt, Operand, Program, TensorId, dims_of_first_result};

use super::Decomposer;
use crate::analysis::{
    dim_map, propagation,
    reshard::{self, ReshardStep},
    sharding::Sharding,
};

impl Decomposer<'_> {
    /// Decomposes an operator with several results. It computes them with the sharding of the first one, as far as it can
    /// compute parts; results that are sharded differently are resharded behind it.
    pub(super) fn several_results(
        &mut self,
        it: &OpStmt,
        args: &[TensorId],
        from: &[Sharding],
        goal: &Sharding,
    ) -> Result<bool, Diagnostic> {
        let outs: Vec<TensorId> = Program::tensors_of(&it.outs).collect();
        let goals = outs.iter().map(|out| self.sharding(*out)).collect::<Result<Vec<_>, _>>()?;
        let is_whole = |it: &Sharding| it.is_replicated() && (it.mesh == goal.mesh || it.mesh.is_empty());
        if from.iter().all(|from| from.mesh == goal.mesh && from.is_replicated())
            && goals.iter().all(is_whole)
        {
            return Ok(false);
        }
        let whole =
            |of: &Sharding| Sharding::replicated(goal.mesh.clone(), of.dims.iter().map(|dim| dim.extent));
        let maps = dim_map::dim_maps(self.program, it);
        let (needs, own) = match &maps {
            Some(maps) => {
                let own = propagation::computable_sharding(self.program, it, maps, goal);
                (propagation::operand_shardings(self.program, args, maps, &own), own)
            }
            None => (from.iter().map(whole).collect(), whole(goal)),
        };
        let computed: Vec<Sharding> = goals
            .iter()
            .enumerate()
            .map(|(position, goal)| {
                let mut computed = Sharding { mesh: own.mesh.clone(), ..goal.clone() };
                let of_first = dims_of_first_result(self.program, it, position);
                for (dim, first) in computed.dims.iter_mut().zip(of_first) {
                    dim.pieces =
                        first.and_then(|at| own.dims.get(at)).map_or_else(Vec::new, |it| it.pieces.clone());
                }
                computed
            })
            .collect();
        let is_there =
            |at: &usize| reshard::step(self.program, &computed[*at], &goals[*at]) == Some(ReshardStep::Local);
        let moved: Vec<usize> = (0..outs.len()).filter(|at| !is_there(at)).collect();
        if moved.is_empty() && propagation::is_local(self.program, from, &needs) {
            return Ok(false);
        }
        let mut on_parts = it.clone();
        for at in &moved {
            let of_operands = maps.as_deref().unwrap_or_default();
            let temporary = self.temporary_result(it, &computed[*at], &needs, of_operands, outs[*at]);
            on_parts.outs[*at] = Operand::Tensor(temporary);
        }
        let Some(first) = on_parts.out_tensor() else { return Ok(false) };
        self.emit_on_resharded(&on_parts, args, from, &needs, first)?;
        for at in moved {
            if let Operand::Tensor(temporary) = on_parts.outs[at] {
                self.reshard(temporary, &computed[at], &goals[at], Some(outs[at]))?;
            }
        }
        Ok(true)
    }
}
