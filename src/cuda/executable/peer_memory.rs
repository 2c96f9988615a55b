//! Lowers collectives over peer memory that the plan marks as one kernel (`Plan::kernels`).

use std::ops::Range;

use super::{ExecutableBuilder, LogicalStream};
use crate::{
    cuda::{
        error::CudaError,
        kernels::{self, PeerCollective, PeerResult},
    },
    plan::{InstKind, View},
};

impl ExecutableBuilder<'_> {
    /// Launches one kernel for the marked instructions. Returns `None` and emits nothing if no kernel
    /// supports them; they are then lowered one by one.
    ///
    /// Otherwise, returns the instruction to which the command belongs: the first one that waits, which is
    /// the one that hang reports name.
    pub(super) fn fuse_peer_memory(
        &mut self,
        range: &Range<usize>,
        stream: LogicalStream,
    ) -> Result<Option<u32>, CudaError> {
        let plan = self.plan;
        let mut it = PeerCollective::default();
        // By result: the view that a following copy reads to copy the result to another member.
        let mut sources: Vec<&View> = Vec::new();
        let mut first_wait = range.start;
        for (at, inst) in plan.code.iter().enumerate().take(range.end).skip(range.start) {
            let has_results = !it.results.is_empty();
            match &inst.kind {
                InstKind::Signal { signal } => {
                    let signals = if has_results { &mut it.end_signals } else { &mut it.start_signals };
                    let (address, words) = self.signal_words(signal)?;
                    signals.push(address);
                    it.blocks_set_signals |= words > 1;
                }
                InstKind::WaitSignal { signal } => {
                    if it.start_waits.is_empty() {
                        first_wait = at;
                    }
                    let signals = if has_results { &mut it.end_waits } else { &mut it.start_waits };
                    let (address, words) = self.signal_words(signal)?;
                    signals.push(address);
                    it.blocks_set_signals |= words > 1;
                }
                InstKind::PeerReduce { op, parts, out } if !has_results => {
                    let inputs = parts.iter().map(|part| self.device_view(part.rank, &part.view));
                    let (inputs, outputs) = (inputs.collect::<Result<_, _>>()?, vec![self.local_view(out)?]);
                    it.op = Some(*op);
                    it.results.push(PeerResult { inputs, outputs });
                    sources.push(out);
                }
                InstKind::Copy { from, to } if from.rank == plan.rank && it.end_signals.is_empty() => {
                    let output = self.device_view(to.rank, &to.view)?;
                    it.writes_to_peers |= to.rank != plan.rank;
                    match sources.iter().position(|view| **view == from.view) {
                        Some(result) => it.results[result].outputs.push(output),
                        None if it.op.is_none() => {
                            let inputs = vec![self.local_view(&from.view)?];
                            it.results.push(PeerResult { inputs, outputs: vec![output] });
                            sources.push(&from.view);
                        }
                        None => return Ok(None),
                    }
                }
                _ => return Ok(None),
            }
        }
        if it.results.is_empty() {
            return Ok(None);
        }
        let launch = kernels::peer_memory_launch(&it, self.epoch_address)
            .map_err(|message| CudaError::unsupported(plan, &plan.code[range.start], message))?;
        let Some(mut launch) = launch else {
            self.notes.push(format!(
                "{}: several commands instead of one kernel, because views are not contiguous or the team is too large",
                plan.location(&plan.code[range.start])
            ));
            return Ok(None);
        };
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
        self.push_launch(first_wait as u32, stream, Some(launch));
        Ok(Some(first_wait as u32))
    }
}
