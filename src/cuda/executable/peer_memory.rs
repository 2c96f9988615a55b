//! Lowers collectives over peer memory that the plan marks as one kernel (`Plan::kernels`).

use std::ops::Range;

use super::{ExecutableBuilder, LogicalStream};
use crate::{
    error::CudaError,
    kernels::{self, DeviceView, EndSignals, Launch, PeerCollective, PeerResult},
    peer_phases::{PeerPhases, ResultViews},
};
use hir_plan::{SignalId, View};

impl ExecutableBuilder<'_> {
    /// Launches one kernel for the marked instructions. Returns `None` and emits nothing if no kernel
    /// supports them, or those of another member; they are then lowered one by one.
    ///
    /// Otherwise, returns the instruction to which the command belongs: the first one that waits, which is
    /// the one that hang reports name.
    pub(super) fn lower_peer_memory(
        &mut self,
        range: &Range<usize>,
        stream: LogicalStream,
    ) -> Result<Option<u32>, CudaError> {
        let plan = self.plan;
        let it = PeerPhases::of(plan, range);
        let done = it.as_ref().and_then(|it| it.done.iter().chain(&it.done_waits).next());
        let words = done.and_then(|it| self.memory.assignment.signal(it)).filter(|it| it.is_set_by_blocks);
        // If the kernel waits for the other members at its end, all of them have to run it.
        let Some(it) = it.filter(|it| it.done_waits.is_empty() || words.is_some()) else {
            self.notes.push(format!(
                "{}: several commands instead of one kernel, because views of a member are not contiguous or the team is too \
                 large",
                plan.location(&plan.code[range.start])
            ));
            return Ok(None);
        };
        let result = |it| self.peer_result(it);
        let signals = |list: &[&SignalId]| -> Result<Vec<u64>, CudaError> {
            list.iter().map(|it| self.signal_address(it)).collect()
        };
        let writes_to_peers = it.results.iter().flat_map(|it| &it.outputs).any(|it| it.0 != plan.rank);
        let collective = PeerCollective {
            op: it.op,
            results: it.results.iter().map(result).collect::<Result<_, _>>()?,
            start_signals: signals(&it.ready)?,
            start_waits: signals(&it.ready_waits)?,
            end_signals: signals(&it.done)?,
            end_waits: signals(&it.done_waits)?,
            end_words: words.map_or(1, |it| it.words),
            end: match words {
                Some(_) => EndSignals::OfBlocks { needs_fence: writes_to_peers },
                None => EndSignals::OfLastBlock,
            },
        };
        let launch = kernels::peer_memory_launch(&collective, self.epoch_address)
            .map_err(|message| CudaError::unsupported(plan, &plan.code[range.start], message))?;
        let first_wait = it.first_wait as u32;
        let launch = match words {
            Some(_) => launch,
            None => self.with_block_counter(launch, stream)?,
        };
        self.kernels_read_epoch = true;
        self.push_launch(first_wait, stream, Some(launch));
        Ok(Some(first_wait))
    }

    fn peer_result<'v>(&self, it: &ResultViews<'v>) -> Result<PeerResult<'v>, CudaError> {
        let views = |list: &[(usize, &'v View)]| -> Result<Vec<DeviceView<'v>>, CudaError> {
            list.iter().map(|(rank, view)| self.device_view(*rank, view)).collect()
        };
        Ok(PeerResult { inputs: views(&it.inputs)?, outputs: views(&it.outputs)? })
    }

    /// Passes a kernel the block counter of its stream. Each kernel resets the counter to 0, and a stream runs one kernel
    /// after another.
    fn with_block_counter(&mut self, mut launch: Launch, stream: LogicalStream) -> Result<Launch, CudaError> {
        launch.params[kernels::BLOCK_COUNTER_PARAM] = match self.block_counters.get(&stream.stream) {
            Some(known) => *known,
            None => {
                let counter = self.memory.allocate_scratch(self.device, 8)?;
                self.device.memset(counter, 0, 8, stream.stream)?;
                self.block_counters.insert(stream.stream, counter);
                counter
            }
        };
        Ok(launch)
    }
}
