//! All-reduces that the plan marks as one kernel (`Plan::kernels`).

use std::ops::Range;

use super::{ExecutableBuilder, LogicalStream};
use crate::{
    cuda::{
        error::CudaError,
        kernels::{self, AllReduce},
    },
    plan::{InstKind, ReduceOp, View},
};

impl ExecutableBuilder<'_> {
    /// Launches the kernel that does the marked instructions. `None`, and nothing done, where no kernel does:
    /// then each runs by itself.
    ///
    /// Returns the instruction whose step the kernel is: the first that waits, which reports of what does not go on name.
    pub(super) fn fuse_all_reduce(
        &mut self,
        range: &Range<usize>,
        lane: LogicalStream,
    ) -> Result<Option<u32>, CudaError> {
        let plan = self.plan;
        let mut it = AllReduce {
            op: ReduceOp::Sum,
            inputs: Vec::new(),
            outputs: Vec::new(),
            start_signals: Vec::new(),
            start_waits: Vec::new(),
            end_signals: Vec::new(),
            end_waits: Vec::new(),
        };
        let mut combined: Option<&View> = None;
        let mut waits = range.start;
        for (at, inst) in plan.code.iter().enumerate().take(range.end).skip(range.start) {
            let behind = combined.is_some();
            match &inst.kind {
                InstKind::Signal { signal: slot } => {
                    let flags = if behind { &mut it.end_signals } else { &mut it.start_signals };
                    flags.push(self.signal_address(slot)?);
                }
                InstKind::WaitSignal { signal: slot } => {
                    if it.start_waits.is_empty() {
                        waits = at;
                    }
                    let flags = if behind { &mut it.end_waits } else { &mut it.start_waits };
                    flags.push(self.signal_address(slot)?);
                }
                InstKind::PeerReduce { op, parts, out } if !behind => {
                    it.op = *op;
                    for part in parts {
                        it.inputs.push(self.device_view(part.rank, &part.view)?);
                    }
                    it.outputs.push(self.local_view(out)?);
                    combined = Some(&**out);
                }
                InstKind::Copy { from, to }
                    if from.rank == plan.rank
                        && Some(&from.view) == combined
                        && it.end_signals.is_empty() =>
                {
                    it.outputs.push(self.device_view(to.rank, &to.view)?);
                }
                _ => return Ok(None),
            }
        }
        if combined.is_none() {
            return Ok(None);
        }
        let launch = kernels::all_reduce_launch(&it, self.epoch_address)
            .map_err(|message| CudaError::unsupported(plan, &plan.code[range.start], message))?;
        let Some(mut launch) = launch else { return Ok(None) };
        // Kernels leave it at 0, and a stream runs one after another.
        launch.params[kernels::BLOCK_COUNTER_PARAM] = match self.block_counters.get(&lane.stream) {
            Some(known) => *known,
            None => {
                let counter = self.memory.allocate_scratch(self.device, 8)?;
                self.device.memset(counter, 0, 8, lane.stream)?;
                self.block_counters.insert(lane.stream, counter);
                counter
            }
        };
        self.kernels_read_epoch = true;
        self.push_launch(waits as u32, lane, Some(launch));
        Ok(Some(waits as u32))
    }
}
