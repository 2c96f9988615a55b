//! Lowers one instruction to commands.

use super::{Command, ExecutableBuilder, Site, elementwise::elementwise_op};
use crate::{
    ExecutorError, Result,
    kernels::{self, ElementwiseArg, ElementwiseOp},
    signals::{SignalBatch, SignalOp},
    unsupported::Unsupported,
};
use hir_plan::{InstKind, SignalId};

impl ExecutableBuilder<'_> {
    pub(super) fn lower_inst(&mut self, site: Site<'_>) -> Result<()> {
        let (plan, inst) = (self.plan, site.inst);
        let refuse = |reason: Unsupported| ExecutorError::unsupported(plan, inst, reason);
        match &inst.kind {
            InstKind::Alloc { buffer, zeroed } => {
                if zeroed.is_some() {
                    let to = self.memory.buffer_address(self.plan.rank, *buffer)?;
                    let bytes = self.memory.assignment.ranks[self.plan.rank].buffers[*buffer as usize].bytes;
                    self.push(site, Command::Memset { to, byte: 0, bytes });
                }
            }
            InstKind::Copy { from, to } => return self.lower_copy(site, from, to),
            InstKind::Fill { .. } | InstKind::Iota { .. } | InstKind::Map { .. } => {
                if let Some(op) = elementwise_op(self.plan.rank, inst, &|view| self.local_view(view))? {
                    return self.lower_elementwise(site, &op);
                }
            }
            InstKind::Constant { to, bytes } => return self.lower_constant(site, to, bytes),
            InstKind::Gemm(it) => return self.lower_matmul(site, it, None).map(|_| ()),
            InstKind::OpaqueCall(it) => return Err(refuse(it.reason().into())),
            InstKind::Routine(it) => return self.lower_routine(site, it),
            InstKind::Attention(it) => return self.lower_attention(site, it),
            InstKind::AttentionGradient(it) => return self.lower_attention_gradient(site, it),
            InstKind::Reduce(it) => {
                let (input, out) = (self.local_view(&it.input)?, self.local_view(&it.out)?);
                if input.may_partially_overlap(&out) {
                    return Err(refuse("the result of a reduction overlaps its operand".into()));
                }
                let scratch = match kernels::reduce_scratch_bytes(it, &input, &out).map_err(refuse)? {
                    0 => 0,
                    bytes => self.scratch_buffer(site, 0, bytes)?,
                };
                for launch in kernels::reduce_launches(it, &input, &out, scratch).map_err(refuse)? {
                    self.push_launch(site, Some(launch));
                }
            }
            InstKind::PeerReduce { op, parts, out } => {
                let mut operands = Vec::new();
                for it in parts {
                    operands.push(ElementwiseArg::View(self.device_view(it.rank, &it.view)?));
                }
                return self.lower_elementwise(
                    site,
                    &ElementwiseOp::new(
                        kernels::ScalarFunction::Reduce(*op),
                        operands,
                        self.local_view(out)?,
                    ),
                );
            }
            InstKind::Collective(it) => return self.lower_collective(site, it),
            InstKind::P2pGroup(it) => return self.lower_p2p_group(site, it),
            InstKind::Wait { work } => self.lower_wait(site, *work),
            InstKind::Signal { signal } => self.lower_signal(site, SignalOp::Write, signal)?,
            InstKind::WaitSignal { signal } => self.lower_signal(site, SignalOp::Wait, signal)?,
            InstKind::RecordEvent { event } => {
                let event = self.events[*event as usize];
                self.push(site, Command::RecordEvent(event));
            }
            InstKind::WaitEvent { event } => {
                let event = self.events[*event as usize];
                self.push(site, Command::WaitEvent(event));
            }
            InstKind::HostWait { event } => return self.lower_host_wait(site, *event),
            // All memory is mapped before the first run. A barrier between hosts orders nothing: streams run
            // asynchronously.
            InstKind::ShareMemHandles { .. } | InstKind::Barrier => {}
            InstKind::Reshard(_) => {
                return Err(refuse(
                    "a resharding operator runs on the simulator only: lower it to communications first, with \
                     `--passes @lower`"
                        .into(),
                ));
            }
            InstKind::ReadOutputs => self.push(site, Command::ReadOutputs),
        }
        Ok(())
    }

    /// Sets or awaits a signal. Consecutive operations on a stream become one command. Signals of several words are set and
    /// awaited in kernels only (`peer_memory`).
    fn lower_signal(&mut self, site: Site<'_>, op: SignalOp, signal: &SignalId) -> Result<()> {
        let address = self.signal_address(signal)?;
        let joins = match self.last_command(site.stream.stream) {
            Some(Command::Signals(last, batch)) if *last == op => batch.add(address),
            _ => false,
        };
        if !joins {
            self.push(site, Command::Signals(op, Box::new(SignalBatch::new(address))));
        }
        Ok(())
    }
}
