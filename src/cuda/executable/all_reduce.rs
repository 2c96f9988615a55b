//! Lowers all-reduces that the plan marks as one kernel (`Plan::kernels`).

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
    /// Launches one kernel for the marked instructions. Returns `None` and emits nothing if no kernel
    /// supports them; they are then lowered one by one.
    ///
    /// Otherwise, returns the instruction to which the command belongs: the first one that waits, which is
    /// the one that hang reports name.
    pub(super) fn fuse_all_reduce(
        &mut self,
        range: &Range<usize>,
        stream: LogicalStream,
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
                InstKind::Signal { signal } => {
                    let signals = if behind { &mut it.end_signals } else { &mut it.start_signals };
                    signals.push(self.signal_address(signal)?);
                }
                InstKind::WaitSignal { signal } => {
                    if it.start_waits.is_empty() {
                        waits = at;
                    }
                    let signals = if behind { &mut it.end_waits } else { &mut it.start_waits };
                    signals.push(self.signal_address(signal)?);
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
        // Each kernel resets the counter to 0, and a stream runs one kernel after another.
        launch.params[kernels::BLOCK_COUNTER_PARAM] = match self.block_counters.get(&stream.stream) {
            Some(known) => *known,
            None => {
                let counter = self.memory.allocate_scratch(self.device, 8)?;
                self.device.memset(counter, 0, 8, stream.stream)?;
                self.block_counters.insert(stream.stream, counter);
                counter
            }
        };
        self.kernels_read_epoch = true;
        self.push_launch(waits as u32, stream, Some(launch));
        Ok(Some(waits as u32))
    }
}
