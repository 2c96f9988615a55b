//! Lowers communications. Each communicator has a logical stream. If that is a CUDA stream of its own,
//! posting makes it wait for the posting stream, and `Wait` makes a stream wait for it.

use super::{Command, ExecutableBuilder, LoopExit, Site};
use crate::{
    ExecutorError, Result,
    comm::{self, DenseBuffer, NcclCall, NcclGroup},
    kernels::{DeviceView, ElementwiseOp},
};
use hir_plan::{
    Backend, Collective, CollectiveKind, CommunicatorNo, Direction, EventNo, P2pGroup, View, WorkNo,
};

impl ExecutableBuilder<'_> {
    pub(super) fn lower_collective(&mut self, site: Site<'_>, it: &Collective) -> Result<()> {
        let communicator = &self.plan.communicators[it.communicator as usize];
        let queue = self.communicator_site(site, it.communicator);
        let members = communicator.team.len();
        let me = communicator.team.iter().position(|rank| *rank == self.plan.rank);
        let me =
            me.ok_or_else(|| ExecutorError::Internal("a collective of a team without this rank".to_owned()))?;
        self.wait_for_poster(site, queue)?;
        let (input, output) = (it.input.as_ref(), it.output.as_ref());
        if members == 1 {
            if let (Some(from), Some(to)) = (input, output) {
                let (from, to) = (self.local_view(from)?, self.local_view(to)?);
                self.copy_flat(queue, it.kind, &from, &to)?;
            }
        } else {
            let handle = self.comms.handle(communicator);
            let comm =
                handle.ok_or_else(|| ExecutorError::Internal("a team without a communicator".to_owned()))?;
            let from = input.map(|it| self.pack(queue, 0, it, true)).transpose()?;
            let to = output.map(|it| self.pack(queue, 1, it, false)).transpose()?;
            if let (Some(from), Some(to)) = (from, to) {
                comm::check_collective(it.kind, members, me, from, to)
                    .map_err(|message| self.unsupported(site, message))?;
            }
            let calls = comm::nccl_calls(it.kind, members, me, from, to)
                .map_err(|message| self.unsupported(site, message))?;
            self.push_nccl_group(queue, comm, calls)?;
            if let (Some(view), Some(dense)) = (output, to) {
                self.unpack(queue, dense, view)?;
            }
        }
        self.record_completion(site, queue, it.work)
    }

    pub(super) fn lower_p2p_group(&mut self, site: Site<'_>, it: &P2pGroup) -> Result<()> {
        let communicator = &self.plan.communicators[it.communicator as usize];
        let queue = self.communicator_site(site, it.communicator);
        self.wait_for_poster(site, queue)?;
        let (mut calls, mut arrivals) = (Vec::new(), Vec::new());
        for (number, side) in it.ops.iter().enumerate() {
            let peer = communicator.team.iter().position(|rank| *rank == side.peer);
            let peer = peer.ok_or_else(|| {
                let message = format!("rank {} is outside the team {:?}", side.peer, communicator.team);
                self.unsupported(site, message)
            })?;
            let sends = side.direction == Direction::Send;
            let dense = self.pack(queue, number, &side.view, sends)?;
            let bytes = dense.count * dense.dtype.size();
            calls.push(match side.direction {
                Direction::Send => NcclCall::Send { from: dense.address, bytes, peer },
                Direction::Recv => NcclCall::Recv { to: dense.address, bytes, peer },
            });
            if !sends {
                arrivals.push((dense, &side.view));
            }
        }
        let me = communicator.team.iter().position(|rank| *rank == self.plan.rank).unwrap_or(0);
        comm::check_messages(&calls, me).map_err(|message| self.unsupported(site, message))?;
        match self.comms.handle(communicator) {
            Some(comm) => self.push_nccl_group(queue, comm, calls)?,
            None => self.loop_back(queue, &calls),
        }
        for (dense, view) in arrivals {
            self.unpack(queue, dense, view)?;
        }
        self.record_completion(site, queue, it.work)
    }

    /// Returns the site on the logical stream of a communicator.
    fn communicator_site<'i>(&mut self, site: Site<'i>, communicator: CommunicatorNo) -> Site<'i> {
        if self.plan.communicators[communicator as usize].backend == Backend::Ucc {
            self.note(site, "backend UCC runs on NCCL");
        }
        Site { stream: self.logical_streams[self.plan.streams.len() + communicator as usize], ..site }
    }

    /// Makes the communicator's stream wait for the work on the posting stream.
    fn wait_for_poster(&mut self, site: Site<'_>, queue: Site<'_>) -> Result<()> {
        if site.stream.stream != queue.stream.stream {
            let posted = self.device.event(false)?;
            self.push(site, Command::RecordEvent(posted));
            self.push(queue, Command::WaitEvent(posted));
        }
        Ok(())
    }

    /// Records the completion of a communication on its stream, for streams that wait for it.
    fn record_completion(&mut self, site: Site<'_>, queue: Site<'_>, work: WorkNo) -> Result<()> {
        if site.stream.stream != queue.stream.stream {
            let done = self.device.event(false)?;
            self.completion_events[work as usize] = Some(done);
            self.push(queue, Command::RecordEvent(done));
        }
        Ok(())
    }

    /// Makes a stream wait for a communication.
    pub(super) fn lower_wait(&mut self, site: Site<'_>, work: WorkNo) {
        let command = self.completion_events[work as usize].map_or(Command::NoOp, Command::WaitEvent);
        self.push(site, command);
    }

    /// Lowers a wait of the host. Where it may leave a loop, it waits for the last NCCL group, too: events of iterations that are not
    /// executed do not order communications.
    pub(super) fn lower_host_wait(&mut self, site: Site<'_>, event: EventNo) -> Result<()> {
        let exit = match self.plan.exit_at(event) {
            Some(exit) => {
                let condition = self.local_view(&exit.condition)?.address;
                let end = exit.end.map(|it| self.events[it as usize]);
                if let Some((_, done)) = self.last_nccl_group {
                    self.push(site, Command::WaitEvent(done));
                }
                Some(LoopExit { condition, end })
            }
            None => None,
        };
        self.push(site, Command::WaitOnHost(exit));
        Ok(())
    }

    /// Issues NCCL calls, behind those of the last communication if communications are serialized.
    fn push_nccl_group(
        &mut self,
        queue: Site<'_>,
        comm: comm::CommHandle,
        calls: Vec<NcclCall>,
    ) -> Result<()> {
        if calls.is_empty() {
            return Ok(());
        }
        if let Some((_, done)) = self.last_nccl_group.filter(|(other, _)| *other != queue.stream.stream) {
            self.push(queue, Command::WaitEvent(done));
        }
        if self.comms.order.first_uses.contains(&queue.at) {
            self.first_calls.push(self.commands.len());
        }
        self.push(queue, Command::NcclGroup(Box::new(NcclGroup { comm, calls })));
        if self.comms.order.is_serialized {
            let done = self.device.event(false)?;
            self.push(queue, Command::RecordEvent(done));
            self.last_nccl_group = Some((queue.stream.stream, done));
        }
        Ok(())
    }

    /// Copies sends to receives in a world of one rank, where they match in order.
    fn loop_back(&mut self, queue: Site<'_>, calls: &[NcclCall]) {
        let sends = calls.iter().filter_map(|it| match it {
            NcclCall::Send { from, bytes, .. } => Some((*from, *bytes)),
            _ => None,
        });
        let receives = calls.iter().filter_map(|it| match it {
            NcclCall::Recv { to, .. } => Some(*to),
            _ => None,
        });
        for ((from, bytes), to) in sends.zip(receives) {
            self.push(queue, Command::Copy { to, from, bytes });
        }
    }

    /// Returns the contiguous elements of a view: the view itself, or scratch memory, into which the view is
    /// copied if `filled` is set. `number` distinguishes the views of one instruction.
    fn pack(&mut self, site: Site<'_>, number: usize, view: &View, filled: bool) -> Result<DenseBuffer> {
        let located = self.local_view(view)?;
        let (count, dtype) = (view.len(), located.dtype);
        if view.is_contiguous() {
            return Ok(DenseBuffer { address: located.address, count, dtype });
        }
        let address = self.scratch_buffer(site, number, count * dtype.size())?;
        if filled {
            let dense = View::contiguous(0, view.shape.clone());
            let out = DeviceView { address, dtype, view: &dense };
            self.lower_elementwise(site, &ElementwiseOp::convert(located, out))?;
        }
        Ok(DenseBuffer { address, count, dtype })
    }

    /// Copies contiguous elements to a view that is not contiguous.
    fn unpack(&mut self, site: Site<'_>, dense: DenseBuffer, view: &View) -> Result<()> {
        if view.is_contiguous() {
            return Ok(());
        }
        let out = self.local_view(view)?;
        let contiguous = View::contiguous(0, view.shape.clone());
        let from = DeviceView { address: dense.address, dtype: dense.dtype, view: &contiguous };
        self.lower_elementwise(site, &ElementwiseOp::convert(from, out))
    }

    /// Copies elements by their row-major position; the shapes may differ.
    fn copy_flat(
        &mut self,
        site: Site<'_>,
        kind: CollectiveKind,
        from: &DeviceView,
        to: &DeviceView,
    ) -> Result<()> {
        if from.view.len() != to.view.len() || from.dtype != to.dtype {
            let (given, wanted) = (from.view.len(), to.view.len());
            let message = format!("the collective delivers {given} elements, but the output holds {wanted}");
            return Err(self.unsupported(site, message));
        }
        let source = self.pack(site, 0, from.view, true)?;
        let bytes = source.count * source.dtype.size();
        if to.view.is_contiguous() {
            let target = DenseBuffer { address: to.address, ..source };
            comm::check_collective(kind, 1, 0, source, target)
                .map_err(|message| self.unsupported(site, message))?;
            if source.address != to.address && bytes > 0 {
                self.push(site, Command::Copy { to: to.address, from: source.address, bytes });
            }
            return Ok(());
        }
        self.unpack(site, source, to.view)
    }
}
