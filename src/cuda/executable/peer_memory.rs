//! Prepares the kernels of collectives over peer memory (`plan::PeerPhases::Memory`).

use super::{ExecutableBuilder, Site};
use crate::{
    Result,
    buffer_assignment::SignalSlice,
    kernels::{self, EndSignals, Exchange, Launch, PeerCollective, PeerResult},
    peer_kernel::element_count,
};
use hir_plan::{PeerPhases, Phase, SignalId, Transfer, ViewOnRank};

impl ExecutableBuilder<'_> {
    /// Returns the launch of the kernel of a collective that begins at an instruction; `None` if no kernel supports it, or
    /// the part of another member. Its instructions are then lowered one by one.
    pub(super) fn peer_memory_launch(
        &mut self,
        phases: &[Phase; 2],
        site: Site<'_>,
    ) -> Result<Option<Launch>> {
        let [_, access] = phases;
        let words = self.words_of_blocks(access);
        // If the kernel waits for the other members at its end, all of them have to run it.
        if element_count(phases).is_none() || !(access.waits.is_empty() || words.is_some()) {
            self.note(
                site,
                "several commands instead of one kernel, because views of a member are not contiguous or the team is too large",
            );
            return Ok(None);
        }
        let results = access.transfers.iter().map(|it| self.peer_result(it)).collect::<Result<_, _>>()?;
        let collective = self.peer_collective(phases, results, words)?;
        let launch = kernels::peer_memory_launch(&collective, self.epoch_address)
            .map_err(|message| self.unsupported(site, message))?;
        match words {
            Some(_) => Ok(Some(launch)),
            None => self.with_block_counter(launch, site).map(Some),
        }
    }

    /// Returns the launch of the kernel of a collective that handles its rows with an epilogue; `None` if there is none. The
    /// kernel also executes an all-gather of what an operation computes.
    pub(super) fn launch_with_rows(
        &self,
        phases: &PeerPhases,
        rows: &Launch,
        gathered: Option<(&PeerPhases, usize)>,
    ) -> Result<Option<Launch>> {
        let exchange = match phases {
            PeerPhases::Memory(phases) => {
                let Some(words) = self.words_of_blocks(&phases[1]) else { return Ok(None) };
                Exchange::Memory(self.peer_collective(phases, Vec::new(), Some(words))?)
            }
            PeerPhases::Packets { index, phases, .. } => self.packet_exchange(*index, phases)?,
        };
        let gather = match gathered {
            Some((PeerPhases::Packets { index, phases, .. }, step)) => {
                Some(self.gather(*index, phases, step)?)
            }
            Some((PeerPhases::Memory(_), _)) | None => None,
        };
        Ok(kernels::with_exchange(rows, &exchange, gather.as_ref(), self.epoch_address))
    }

    /// Returns the words of the signals with which the members are done, if blocks set them.
    fn words_of_blocks(&self, access: &Phase) -> Option<SignalSlice> {
        let done = access.signals.iter().chain(&access.waits).next()?;
        self.memory.assignment.signal(done).filter(|it| it.is_set_by_blocks)
    }

    fn peer_collective<'v>(
        &self,
        [ready, access]: &[Phase; 2],
        results: Vec<PeerResult<'v>>,
        words: Option<SignalSlice>,
    ) -> Result<PeerCollective<'v>> {
        let signals = |list: &[SignalId]| -> Result<Vec<u64>> {
            list.iter().map(|it| self.signal_address(it)).collect()
        };
        let writes_to_peers =
            access.transfers.iter().flat_map(Transfer::outputs).any(|it| it.rank != self.plan.rank);
        Ok(PeerCollective {
            op: access.transfers.iter().find_map(Transfer::op),
            results,
            start_signals: signals(&ready.signals)?,
            start_waits: signals(&ready.waits)?,
            end_signals: signals(&access.signals)?,
            end_waits: signals(&access.waits)?,
            end_words: words.map_or(1, |it| it.words),
            end: match words {
                Some(_) => EndSignals::OfBlocks { needs_fence: writes_to_peers },
                None => EndSignals::OfLastBlock,
            },
        })
    }

    fn peer_result<'v>(&self, it: &'v Transfer) -> Result<PeerResult<'v>> {
        let view = |it: &'v ViewOnRank| self.device_view(it.rank, &it.view);
        Ok(PeerResult {
            inputs: it.inputs().iter().map(view).collect::<Result<_, _>>()?,
            outputs: it.outputs().map(view).collect::<Result<_, _>>()?,
        })
    }

    /// Passes a kernel the block counter of its stream.
    fn with_block_counter(&mut self, mut launch: Launch, site: Site<'_>) -> Result<Launch> {
        launch.params[kernels::BLOCK_COUNTER_PARAM] = self.counters(site, 1)?;
        Ok(launch)
    }
}
