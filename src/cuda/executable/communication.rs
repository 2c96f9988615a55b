//! Lowers communications. Each communicator has a logical stream. If that is a CUDA stream of its own,
//! posting makes it wait for the posting stream, and `Wait` makes a stream wait for it.

use super::{Command, ExecutableBuilder, LogicalStream};
use crate::{
    ExecutorError,
    comm::{self, DenseBuffer, NcclCall, NcclGroup},
    kernels::{DeviceView, ElementwiseArg, ElementwiseOp, ScalarFunction},
};
use hir_plan::{
    Backend, Collective, CollectiveKind, CommunicatorNo, Direction, Inst, P2pGroup, View, WorkNo,
};

impl ExecutableBuilder<'_> {
    pub(super) fn lower_collective(
        &mut self,
        at: u32,
        inst: &Inst,
        stream: LogicalStream,
        it: &Collective,
    ) -> Result<(), ExecutorError> {
        let communicator = &self.plan.communicators[it.communicator as usize];
        let queue = self.communicator_stream(inst, it.communicator);
        let members = communicator.team.len();
        let me = communicator.team.iter().position(|rank| *rank == self.plan.rank);
        let me =
            me.ok_or_else(|| ExecutorError::Internal("a collective of a team without this rank".to_owned()))?;
        self.wait_for_poster(at, stream, queue)?;
        let (input, output) = (it.input.as_ref(), it.output.as_ref());
        if members == 1 {
            if let (Some(from), Some(to)) = (input, output) {
                let (from, to) = (self.local_view(from)?, self.local_view(to)?);
                self.copy_flat(at, inst, queue, it.kind, &from, &to)?;
            }
        } else {
            let handle = self.comms.handle(communicator);
            let comm =
                handle.ok_or_else(|| ExecutorError::Internal("a team without a communicator".to_owned()))?;
            let from = input.map(|it| self.pack(at, inst, queue, 0, it, true)).transpose()?;
            let to = output.map(|it| self.pack(at, inst, queue, 1, it, false)).transpose()?;
            if let (Some(from), Some(to)) = (from, to) {
                comm::check_collective(it.kind, members, me, from, to)
                    .map_err(|message| ExecutorError::unsupported(self.plan, inst, message))?;
            }
            let calls = comm::nccl_calls(it.kind, members, me, from, to)
                .map_err(|message| ExecutorError::unsupported(self.plan, inst, message))?;
            self.push_nccl_group(at, queue, comm, calls)?;
            if let (Some(view), Some(dense)) = (output, to) {
                self.unpack(at, inst, queue, dense, view)?;
            }
        }
        self.record_completion(at, stream, queue, it.work)
    }

    pub(super) fn lower_p2p_group(
        &mut self,
        at: u32,
        inst: &Inst,
        stream: LogicalStream,
        it: &P2pGroup,
    ) -> Result<(), ExecutorError> {
        let communicator = &self.plan.communicators[it.communicator as usize];
        let queue = self.communicator_stream(inst, it.communicator);
        self.wait_for_poster(at, stream, queue)?;
        let (mut calls, mut arrivals) = (Vec::new(), Vec::new());
        for (number, side) in it.ops.iter().enumerate() {
            let peer = communicator.team.iter().position(|rank| *rank == side.peer);
            let peer = peer.ok_or_else(|| {
                let message = format!("rank {} is outside the team {:?}", side.peer, communicator.team);
                ExecutorError::unsupported(self.plan, inst, message)
            })?;
            let sends = side.direction == Direction::Send;
            let dense = self.pack(at, inst, queue, number, &side.view, sends)?;
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
        comm::check_messages(&calls, me)
            .map_err(|message| ExecutorError::unsupported(self.plan, inst, message))?;
        match self.comms.handle(communicator) {
            Some(comm) => self.push_nccl_group(at, queue, comm, calls)?,
            None => self.loop_back(at, queue, &calls),
        }
        for (dense, view) in arrivals {
            self.unpack(at, inst, queue, dense, view)?;
        }
        self.record_completion(at, stream, queue, it.work)
    }

    /// Returns the logical stream of a communicator.
    fn communicator_stream(&mut self, inst: &Inst, communicator: CommunicatorNo) -> LogicalStream {
        if self.plan.communicators[communicator as usize].backend == Backend::Ucc {
            self.notes.push(format!("{}: backend UCC runs on NCCL", self.plan.location(inst)));
        }
        self.logical_streams[self.plan.streams.len() + communicator as usize]
    }

    /// Makes the communicator's stream wait for the work on the posting stream.
    fn wait_for_poster(
        &mut self,
        at: u32,
        stream: LogicalStream,
        queue: LogicalStream,
    ) -> Result<(), ExecutorError> {
        if stream.stream != queue.stream {
            let posted = self.device.event(false)?;
            self.push(at, stream, Command::RecordEvent(posted));
            self.push(at, queue, Command::WaitEvent(posted));
        }
        Ok(())
    }

    /// Records the completion of a communication on its stream, for streams that wait for it.
    fn record_completion(
        &mut self,
        at: u32,
        stream: LogicalStream,
        queue: LogicalStream,
        work: WorkNo,
    ) -> Result<(), ExecutorError> {
        if stream.stream != queue.stream {
            let done = self.device.event(false)?;
            self.completion_events[work as usize] = Some(done);
            self.push(at, queue, Command::RecordEvent(done));
        }
        Ok(())
    }

    /// Makes a stream wait for a communication.
    pub(super) fn lower_wait(&mut self, at: u32, stream: LogicalStream, work: WorkNo) {
        let command = self.completion_events[work as usize].map_or(Command::NoOp, Command::WaitEvent);
        self.push(at, stream, command);
    }

    /// Issues NCCL calls, behind those of the last communication if communications are serialized.
    fn push_nccl_group(
        &mut self,
        at: u32,
        queue: LogicalStream,
        comm: comm::CommHandle,
        calls: Vec<NcclCall>,
    ) -> Result<(), ExecutorError> {
        if calls.is_empty() {
            return Ok(());
        }
        if let Some((_, done)) = self.last_nccl_group.filter(|(other, _)| *other != queue.stream) {
            self.push(at, queue, Command::WaitEvent(done));
        }
        if self.comms.order.first_uses.contains(&at) {
            self.first_calls.push(self.commands.len());
        }
        self.push(at, queue, Command::NcclGroup(Box::new(NcclGroup { comm, calls })));
        if self.comms.order.is_serialized {
            let done = self.device.event(false)?;
            self.push(at, queue, Command::RecordEvent(done));
            self.last_nccl_group = Some((queue.stream, done));
        }
        Ok(())
    }

    /// Copies sends to receives in a world of one rank, where they match in order.
    fn loop_back(&mut self, at: u32, queue: LogicalStream, calls: &[NcclCall]) {
        let sends = calls.iter().filter_map(|it| match it {
            NcclCall::Send { from, bytes, .. } => Some((*from, *bytes)),
            _ => None,
        });
        let receives = calls.iter().filter_map(|it| match it {
            NcclCall::Recv { to, .. } => Some(*to),
            _ => None,
        });
        for ((from, bytes), to) in sends.zip(receives) {
            self.push(at, queue, Command::Copy { to, from, bytes });
        }
    }

    /// Returns the contiguous elements of a view: the view itself, or scratch memory, into which the view is
    /// copied if `filled` is set. `number` distinguishes the views of one instruction.
    fn pack(
        &mut self,
        at: u32,
        inst: &Inst,
        queue: LogicalStream,
        number: usize,
        view: &View,
        filled: bool,
    ) -> Result<DenseBuffer, ExecutorError> {
        let located = self.local_view(view)?;
        let (count, dtype) = (view.len(), located.dtype);
        if view.is_contiguous() {
            return Ok(DenseBuffer { address: located.address, count, dtype });
        }
        let address = self.scratch_buffer(queue, number, count * dtype.size())?;
        if filled {
            let dense = View::contiguous(0, view.shape.clone());
            let out = DeviceView { address, dtype, view: &dense };
            self.lower_elementwise(
                at,
                inst,
                queue,
                &ElementwiseOp::new(ScalarFunction::Convert, vec![ElementwiseArg::View(located)], out),
            )?;
        }
        Ok(DenseBuffer { address, count, dtype })
    }

    /// Copies contiguous elements to a view that is not contiguous.
    fn unpack(
        &mut self,
        at: u32,
        inst: &Inst,
        queue: LogicalStream,
        dense: DenseBuffer,
        view: &View,
    ) -> Result<(), ExecutorError> {
        if view.is_contiguous() {
            return Ok(());
        }
        let out = self.local_view(view)?;
        let contiguous = View::contiguous(0, view.shape.clone());
        let from = DeviceView { address: dense.address, dtype: dense.dtype, view: &contiguous };
        self.lower_elementwise(
            at,
            inst,
            queue,
            &ElementwiseOp::new(ScalarFunction::Convert, vec![ElementwiseArg::View(from)], out),
        )
    }

    /// Copies elements by their row-major position; the shapes may differ.
    fn copy_flat(
        &mut self,
        at: u32,
        inst: &Inst,
        queue: LogicalStream,
        kind: CollectiveKind,
        from: &DeviceView,
        to: &DeviceView,
    ) -> Result<(), ExecutorError> {
        if from.view.len() != to.view.len() || from.dtype != to.dtype {
            let (given, wanted) = (from.view.len(), to.view.len());
            let message = format!("the collective delivers {given} elements, but the output holds {wanted}");
            return Err(ExecutorError::unsupported(self.plan, inst, message));
        }
        let source = self.pack(at, inst, queue, 0, from.view, true)?;
        let bytes = source.count * source.dtype.size();
        if to.view.is_contiguous() {
            let target = DenseBuffer { address: to.address, ..source };
            comm::check_collective(kind, 1, 0, source, target)
                .map_err(|message| ExecutorError::unsupported(self.plan, inst, message))?;
            if source.address != to.address && bytes > 0 {
                self.push(at, queue, Command::Copy { to: to.address, from: source.address, bytes });
            }
            return Ok(());
        }
        self.unpack(at, inst, queue, source, to.view)
    }
}
