//! Lowers collectives that exchange packets (`plan::KernelKind::Packets`).

use std::ops::Range;

use super::{ExecutableBuilder, LogicalStream};
use crate::{
    buffer_assignment::PACKET_EXPANSION,
    error::CudaError,
    kernels::{self, Item, PacketCollective, Source},
};
use hir_plan::{InstKind, PacketFormat, SignalKind, View, ViewOnRank};

/// Only NVLink delivers a store of 128 bytes in the order of addresses.
const NO_NVLINK: &str = "LL128 collectives use packets of 16 bytes: some GPUs are not connected by NVLink, or \
                         `CUDA_VISIBLE_DEVICES` hides them from each other's processes";

impl ExecutableBuilder<'_> {
    /// Launches one kernel for the instructions of a range.
    ///
    /// Returns the instruction to which the command belongs: the first one that waits, which is the one that
    /// hang reports name.
    ///
    /// # Errors
    /// No kernel supports the element type or the operation. There is no fallback, because the other members
    /// send packets.
    pub(super) fn lower_packets(
        &mut self,
        range: &Range<usize>,
        format: PacketFormat,
        stream: LogicalStream,
    ) -> Result<u32, CudaError> {
        let plan = self.plan;
        // The slots have room for both formats.
        let format = match format {
            PacketFormat::Ll128 if !self.memory.has_nvlink() => {
                self.notes.push(NO_NVLINK.to_owned());
                PacketFormat::Ll
            }
            format => format,
        };
        let mut it = PacketCollective {
            format,
            dtype: grammar::dtype::DType::Float,
            op: None,
            items: Vec::new(),
            epoch: self.epoch_address,
            flags_per_run: self.flags_per_run,
            flag: 0,
        };
        let mut waits = None;
        for (at, inst) in plan.code.iter().enumerate().take(range.end).skip(range.start) {
            match &inst.kind {
                InstKind::Copy { from, to } => {
                    it.dtype = self.memory.view_dtype(from.rank, &from.view);
                    self.add_copy(&mut it.items, from, to)?;
                }
                InstKind::PeerReduce { op, parts, out } => {
                    it.op = Some(*op);
                    let sources = parts.iter().map(|part| self.source(part)).collect::<Result<_, _>>()?;
                    let outputs = vec![self.dense_address(plan.rank, out)?];
                    it.items.push(Item { sources, outputs, packets: Vec::new(), count: out.len() });
                    it.dtype = self.memory.view_dtype(plan.rank, out);
                }
                InstKind::Signal { signal } => {
                    if let SignalKind::TeamData(_) = signal.kind {
                        it.flag = signal.index + 1;
                    }
                }
                InstKind::WaitSignal { .. } => {
                    waits.get_or_insert(at);
                }
                kind => return Err(CudaError::Internal(format!("{kind:?} in a packet kernel"))),
            }
        }
        let waits = waits.unwrap_or(range.start) as u32;
        let launch = kernels::packet_launch(&it)
            .map_err(|message| CudaError::unsupported(plan, &plan.code[range.start], message))?;
        self.kernels_read_epoch = true;
        self.push_launch(waits, stream, Some(launch));
        Ok(waits)
    }

    /// Adds a copy. Copies of the same elements to several peers become one item, and so does a reduction
    /// whose result is sent.
    fn add_copy(&self, items: &mut Vec<Item>, from: &ViewOnRank, to: &ViewOnRank) -> Result<(), CudaError> {
        let count = from.view.len();
        let source = self.source(from)?;
        if to.rank == self.plan.rank {
            let outputs = vec![self.dense_address(to.rank, &to.view)?];
            items.push(Item { sources: vec![source], outputs, packets: Vec::new(), count });
            return Ok(());
        }
        let packets = self.packet_address(to)?;
        match items.last_mut() {
            Some(last)
                if last.count == count
                    && (last.sources == [source]
                        || last.outputs.iter().any(|it| source == Source::Memory(*it))) =>
            {
                last.packets.push(packets);
            }
            _ => {
                items.push(Item { sources: vec![source], outputs: Vec::new(), packets: vec![packets], count })
            }
        }
        Ok(())
    }

    fn source(&self, it: &ViewOnRank) -> Result<Source, CudaError> {
        if self.memory.assignment.holds_packets(it.rank, it.view.buffer) {
            Ok(Source::Packets(self.packet_address(it)?))
        } else {
            Ok(Source::Memory(self.dense_address(it.rank, &it.view)?))
        }
    }

    fn dense_address(&self, rank: usize, view: &View) -> Result<u64, CudaError> {
        if view.is_contiguous() {
            self.memory.view_address(rank, view)
        } else {
            Err(CudaError::Internal(format!("{view:?} in a packet kernel is not contiguous")))
        }
    }

    /// Returns the address of the packets of a view in a buffer that holds packets.
    fn packet_address(&self, it: &ViewOnRank) -> Result<u64, CudaError> {
        let begin = self.memory.buffer_address(it.rank, it.view.buffer)?;
        Ok(begin + PACKET_EXPANSION as u64 * (self.dense_address(it.rank, &it.view)? - begin))
    }
}
