//! All-reduces that the plan marks as one kernel (`Plan::kernels`).

use std::ops::Range;

use super::{Builder, Lane};
use crate::{
    cuda::{
        error::CudaError,
        kernels::{self, AllReduce},
    },
    plan::{InstKind, ReduceOp, View},
};

impl Builder<'_> {
    /// Launches the kernel that does the marked instructions. `None`, and nothing done, where no kernel does:
    /// then each runs by itself.
    ///
    /// Returns the instruction whose step the kernel is: the first that waits, which reports of what does not go on name.
    pub(super) fn one_kernel(&mut self, range: &Range<usize>, lane: Lane) -> Result<Option<u32>, CudaError> {
        let plan = self.plan;
        let mut it = AllReduce {
            op: ReduceOp::Sum,
            inputs: Vec::new(),
            outputs: Vec::new(),
            ready: Vec::new(),
            expected: Vec::new(),
            done: Vec::new(),
            ended: Vec::new(),
        };
        let mut combined: Option<&View> = None;
        let mut waits = range.start;
        for (at, inst) in plan.code.iter().enumerate().take(range.end).skip(range.start) {
            let behind = combined.is_some();
            match &inst.kind {
                InstKind::Signal { slot } => {
                    let flags = if behind { &mut it.done } else { &mut it.ready };
                    flags.push(self.flag(slot)?);
                }
                InstKind::Await { slot } => {
                    if it.expected.is_empty() {
                        waits = at;
                    }
                    let flags = if behind { &mut it.ended } else { &mut it.expected };
                    flags.push(self.flag(slot)?);
                }
                InstKind::Combine { op, parts, out } if !behind => {
                    it.op = *op;
                    for part in parts {
                        it.inputs.push(self.located(part.rank, &part.view)?);
                    }
                    it.outputs.push(self.here(out)?);
                    combined = Some(&**out);
                }
                InstKind::Copy { from, to }
                    if from.rank == plan.rank && Some(&from.view) == combined && it.done.is_empty() =>
                {
                    it.outputs.push(self.located(to.rank, &to.view)?);
                }
                _ => return Ok(None),
            }
        }
        if combined.is_none() {
            return Ok(None);
        }
        let launch = kernels::all_reduce(&it, self.counter)
            .map_err(|message| CudaError::unsupported(plan, &plan.code[range.start], message))?;
        let Some(mut launch) = launch else { return Ok(None) };
        // Kernels leave it at 0, and a stream runs one after another.
        launch.words[kernels::ARRIVED] = match self.block_counters.get(&lane.stream) {
            Some(known) => *known,
            None => {
                let counter = self.memory.scratch(self.device, 8)?;
                self.device.set(counter, 0, 8, lane.stream)?;
                self.block_counters.insert(lane.stream, counter);
                counter
            }
        };
        self.reads_counter = true;
        self.launch(waits as u32, lane, Some(launch));
        Ok(Some(waits as u32))
    }
}
