//! Lowers routines to one kernel.

use super::{Command, ExecutableBuilder, Site, elementwise::elementwise_op};
use crate::{
    Result,
    kernels::{exchanged_bytes, reads_base, routine_launch},
};
use hir_plan::{Computation, Inst, InstKind, Routine, RoutineKind, ViewOnRank};

impl ExecutableBuilder<'_> {
    pub(super) fn lower_routine(&mut self, site: Site<'_>, it: &Routine) -> Result<()> {
        let inputs = it.inputs.iter().map(|view| self.local_view(view)).collect::<Result<Vec<_>, _>>()?;
        let outs = it.outs.iter().map(|view| self.local_view(view)).collect::<Result<Vec<_>, _>>()?;
        let is_base = |at: usize| matches!(it.kind, RoutineKind::Scatter { .. }) && at == 0;
        let overlaps = outs.iter().any(|out| {
            let mut all = inputs.iter().enumerate();
            all.any(
                |(at, input)| {
                    if is_base(at) { input.may_partially_overlap(out) } else { input.may_alias(out) }
                },
            )
        });
        if overlaps {
            let message = format!("a result of `{}` overlaps an operand", it.name());
            return Err(self.unsupported(site, message));
        }
        if let (RoutineKind::Scatter { .. }, [base, ..], [out]) = (it.kind, &it.inputs[..], &it.outs[..])
            && !reads_base(it.kind, &inputs, &outs)
        {
            let place =
                |view: &hir_plan::View| Box::new(ViewOnRank { rank: self.plan.rank, view: view.clone() });
            let copy = Inst { kind: InstKind::Copy { from: place(base), to: place(out) }, ..*site.inst };
            if let Some(op) = elementwise_op(self.plan.rank, &copy, &|view| self.local_view(view))? {
                self.lower_elementwise(site, &op)?;
            }
        }
        let mut exchanged = 0;
        let bytes = exchanged_bytes(it.kind, &inputs, &outs);
        if bytes > 0 {
            exchanged = self.scratch_buffer(site, 0, bytes)?;
            self.push(site, Command::Memset { to: exchanged, byte: 0, bytes });
        }
        let launch = routine_launch(it.kind, &inputs, &outs, exchanged);
        let launch = launch.map_err(|it| self.unsupported(site, it))?;
        self.push_launch(site, launch);
        Ok(())
    }
}
