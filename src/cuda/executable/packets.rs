//! Prepares the kernels of collectives that exchange packets (`plan::PeerPhases::Packets`).

use grammar::DType;

use super::{ExecutableBuilder, Site};
use crate::{
    ExecutorError, Result,
    buffer_assignment::PACKET_EXPANSION,
    kernels::{self, Exchange, Gather, Item, Launch, PacketCollective, Send, Source},
};
use hir_plan::{PacketFormat, Phase, Transfer, View, ViewOnRank};

/// Only NVLink delivers a store of 128 bytes in the order of addresses.
const NO_NVLINK: &str = "LL128 collectives use packets of 16 bytes: some GPUs are not connected by NVLink, or \
                         `CUDA_VISIBLE_DEVICES` hides them from each other's processes";

impl ExecutableBuilder<'_> {
    /// Returns the launch of the kernel of a collective that begins at an instruction. `index` is its number among those of
    /// its team.
    ///
    /// # Errors
    /// No kernel supports the element type or the operation. There is no fallback, because the other members
    /// send packets.
    pub(super) fn packet_launch(
        &mut self,
        (format, index): (PacketFormat, u32),
        phases: &[Phase],
        site: Site<'_>,
    ) -> Result<Launch> {
        // The slots have room for both formats.
        let format = match format {
            PacketFormat::Ll128 if !self.memory.has_nvlink() => {
                self.notes.push(NO_NVLINK.to_owned());
                PacketFormat::Ll
            }
            format => format,
        };
        let transfers = || phases.iter().flat_map(|it| &it.transfers);
        let dtype = |it: &ViewOnRank| self.memory.view_dtype(it.rank, &it.view);
        let it = PacketCollective {
            format,
            dtype: transfers().flat_map(Transfer::inputs).next().map_or(DType::Float, dtype),
            op: transfers().find_map(Transfer::op),
            items: transfers().map(|it| self.item(it)).collect::<Result<_, _>>()?,
            epoch: self.epoch_address,
            flags_per_run: self.flags_per_run,
            flag: index + 1,
        };
        kernels::packet_launch(&it).map_err(|message| self.unsupported(site, message))
    }

    /// Returns what a kernel exchanges that computes the result of a collective by rows.
    pub(super) fn packet_exchange(&self, index: u32, phases: &[Phase]) -> Result<Exchange<'_>> {
        let mut sends = Vec::new();
        for it in phases.first().iter().flat_map(|it| &it.transfers) {
            let [from] = it.inputs() else { continue };
            let from = self.dense_address(from.rank, &from.view)?;
            let to = it.outputs().map(|it| self.packet_address(it)).collect::<Result<_, _>>()?;
            sends.push(Send { from, to });
        }
        Ok(Exchange::Packets { flags_per_run: self.flags_per_run, flag: index + 1, sends })
    }

    /// Returns the all-gather of what operation `step` computes.
    pub(super) fn gather(&self, index: u32, phases: &[Phase], step: usize) -> Result<Gather> {
        let (mut own, mut to, mut received) = (None, Vec::new(), Vec::new());
        let transfers = phases.iter().flat_map(|it| &it.transfers);
        let copies = transfers
            .flat_map(|it| it.inputs().iter().flat_map(|from| it.outputs().map(move |out| (from, out))));
        for (from, out) in copies {
            if out.rank != self.plan.rank {
                to.push(self.packet_address(out)?);
                continue;
            }
            let out = self.dense_address(out.rank, &out.view)?;
            match self.source(from)? {
                Source::Memory(_) => own = Some(out),
                Source::Packets(from) => received.push((from, out)),
            }
        }
        Ok(Gather { step, flags_per_run: self.flags_per_run, flag: index + 1, own, to, received })
    }

    fn item(&self, it: &Transfer) -> Result<Item> {
        let (mut outputs, mut packets) = (Vec::new(), Vec::new());
        for to in it.outputs() {
            if to.rank == self.plan.rank {
                outputs.push(self.dense_address(to.rank, &to.view)?);
            } else {
                packets.push(self.packet_address(to)?);
            }
        }
        let inputs = it.inputs();
        let sources = inputs.iter().map(|it| self.source(it)).collect::<Result<_, _>>()?;
        Ok(Item { sources, outputs, packets, count: inputs.first().map_or(0, |it| it.view.len()) })
    }

    pub(super) fn source(&self, it: &ViewOnRank) -> Result<Source> {
        if self.memory.assignment.holds_packets(it.rank, it.view.buffer) {
            Ok(Source::Packets(self.packet_address(it)?))
        } else {
            Ok(Source::Memory(self.dense_address(it.rank, &it.view)?))
        }
    }

    fn dense_address(&self, rank: usize, view: &View) -> Result<u64> {
        if view.is_contiguous() {
            self.memory.view_address(rank, view)
        } else {
            Err(ExecutorError::Internal(format!("{view:?} in a packet kernel is not contiguous")))
        }
    }

    /// Returns the address of the packets of a view in a buffer that holds packets.
    fn packet_address(&self, it: &ViewOnRank) -> Result<u64> {
        let begin = self.memory.buffer_address(it.rank, it.view.buffer)?;
        Ok(begin + PACKET_EXPANSION as u64 * (self.dense_address(it.rank, &it.view)? - begin))
    }
}
