//! Communications: each communicator has a lane, its queue. Where that is on a stream of its own, posting makes it wait for
//! the posting stream, and `Wait` makes a stream wait for it.

use super::{Action, Builder, Lane, is_dense};
use crate::{
    cuda::{
        comm::{self, Call, Dense, Group},
        error::CudaError,
        kernels::{Argument, Function, Link, Located},
    },
    plan::{Backend, Collective, CollectiveKind, CommunicatorNo, Direction, Inst, Transfer, View, WorkNo},
};

impl Builder<'_> {
    pub(super) fn collective(
        &mut self,
        at: u32,
        inst: &Inst,
        lane: Lane,
        it: &Collective,
    ) -> Result<(), CudaError> {
        let communicator = &self.plan.communicators[it.communicator as usize];
        let queue = self.queue(inst, it.communicator);
        let members = communicator.team.len();
        let me = communicator.team.iter().position(|rank| *rank == self.plan.rank);
        let me = me.ok_or_else(|| CudaError::Internal("a collective of another team".to_owned()))?;
        self.post(at, lane, queue)?;
        let (input, output) = (it.input.as_ref(), it.output.as_ref());
        if members == 1 {
            if let (Some(from), Some(to)) = (input, output) {
                let (from, to) = (self.here(from)?, self.here(to)?);
                self.move_flat(at, inst, queue, it.kind, &from, &to)?;
            }
        } else {
            let handle = self.comms.find(communicator);
            let comm = handle.ok_or_else(|| CudaError::Internal("a team without communicator".to_owned()))?;
            let from = input.map(|it| self.packed(at, inst, queue, 0, it, true)).transpose()?;
            let to = output.map(|it| self.packed(at, inst, queue, 1, it, false)).transpose()?;
            if let (Some(from), Some(to)) = (from, to) {
                comm::check_collective(it.kind, members, me, from, to)
                    .map_err(|message| CudaError::unsupported(self.plan, inst, message))?;
            }
            let calls = comm::calls(it.kind, members, me, from, to)
                .map_err(|message| CudaError::unsupported(self.plan, inst, message))?;
            self.group(at, queue, comm, calls)?;
            if let (Some(view), Some(dense)) = (output, to) {
                self.unpack(at, inst, queue, dense, view)?;
            }
        }
        self.done(at, lane, queue, it.work)
    }

    pub(super) fn transfer(
        &mut self,
        at: u32,
        inst: &Inst,
        lane: Lane,
        it: &Transfer,
    ) -> Result<(), CudaError> {
        let communicator = &self.plan.communicators[it.communicator as usize];
        let queue = self.queue(inst, it.communicator);
        self.post(at, lane, queue)?;
        let (mut calls, mut arrivals) = (Vec::new(), Vec::new());
        for (number, side) in it.sides.iter().enumerate() {
            let peer = communicator.team.iter().position(|rank| *rank == side.peer);
            let peer = peer.ok_or_else(|| {
                let message = format!("rank {} is outside the team {:?}", side.peer, communicator.team);
                CudaError::unsupported(self.plan, inst, message)
            })?;
            let sends = side.direction == Direction::Send;
            let dense = self.packed(at, inst, queue, number, &side.view, sends)?;
            let bytes = dense.count * dense.dtype.size();
            calls.push(match side.direction {
                Direction::Send => Call::Send { from: dense.address, bytes, peer },
                Direction::Recv => Call::Recv { to: dense.address, bytes, peer },
            });
            if !sends {
                arrivals.push((dense, &side.view));
            }
        }
        let me = communicator.team.iter().position(|rank| *rank == self.plan.rank).unwrap_or(0);
        comm::check_messages(&calls, me)
            .map_err(|message| CudaError::unsupported(self.plan, inst, message))?;
        match self.comms.find(communicator) {
            Some(comm) => self.group(at, queue, comm, calls)?,
            None => self.loop_back(at, queue, &calls),
        }
        for (dense, view) in arrivals {
            self.unpack(at, inst, queue, dense, view)?;
        }
        self.done(at, lane, queue, it.work)
    }

    /// The lane of a communicator.
    fn queue(&mut self, inst: &Inst, communicator: CommunicatorNo) -> Lane {
        if self.plan.communicators[communicator as usize].backend == Backend::Ucc {
            self.notes.push(format!("{}: UCC runs as NCCL", self.plan.place(inst)));
        }
        self.lanes[self.plan.streams.len() + communicator as usize]
    }

    /// The queue waits for what is on the posting stream.
    fn post(&mut self, at: u32, lane: Lane, queue: Lane) -> Result<(), CudaError> {
        if lane.stream != queue.stream {
            let posted = self.device.event(false)?;
            self.push(at, lane, Action::Record(posted));
            self.push(at, queue, Action::Wait(posted));
        }
        Ok(())
    }

    /// All of a communication is on its queue: whoever waits for it may go on behind that.
    fn done(&mut self, at: u32, lane: Lane, queue: Lane, work: WorkNo) -> Result<(), CudaError> {
        if lane.stream != queue.stream {
            let done = self.device.event(false)?;
            self.works[work as usize] = Some(done);
            self.push(at, queue, Action::Record(done));
        }
        Ok(())
    }

    /// A stream waits for a communication.
    pub(super) fn wait(&mut self, at: u32, lane: Lane, work: WorkNo) {
        let action = self.works[work as usize].map_or(Action::Pass, Action::Wait);
        self.push(at, lane, action);
    }

    /// Issues calls, behind those of the last communication where communications take turns.
    fn group(&mut self, at: u32, queue: Lane, comm: comm::Comm, calls: Vec<Call>) -> Result<(), CudaError> {
        if calls.is_empty() {
            return Ok(());
        }
        if let Some((_, done)) = self.last.filter(|(other, _)| *other != queue.stream) {
            self.push(at, queue, Action::Wait(done));
        }
        if self.comms.turns.firsts.contains(&at) {
            self.firsts.push(self.steps.len());
        }
        self.push(at, queue, Action::Group(Box::new(Group { comm, calls })));
        if self.comms.turns.are_taken {
            let done = self.device.event(false)?;
            self.push(at, queue, Action::Record(done));
            self.last = Some((queue.stream, done));
        }
        Ok(())
    }

    /// In a world of one rank every send meets a receive of the same rank, in order.
    fn loop_back(&mut self, at: u32, queue: Lane, calls: &[Call]) {
        let sends = calls.iter().filter_map(|it| match it {
            Call::Send { from, bytes, .. } => Some((*from, *bytes)),
            _ => None,
        });
        let receives = calls.iter().filter_map(|it| match it {
            Call::Recv { to, .. } => Some(*to),
            _ => None,
        });
        for ((from, bytes), to) in sends.zip(receives) {
            self.push(at, queue, Action::Copy { to, from, bytes });
        }
    }

    /// The dense elements of a view: itself, or room of the queue, filled first where it is given; `number` tells the views of
    /// one instruction apart.
    fn packed(
        &mut self,
        at: u32,
        inst: &Inst,
        queue: Lane,
        number: usize,
        view: &View,
        filled: bool,
    ) -> Result<Dense, CudaError> {
        let located = self.here(view)?;
        let (count, dtype) = (view.len(), located.dtype);
        if is_dense(view) {
            return Ok(Dense { address: located.address, count, dtype });
        }
        let address = self.room(queue, number, count * dtype.size())?;
        if filled {
            let dense = View::contiguous(0, view.shape.clone());
            let out = Located { address, dtype, view: &dense };
            self.map(at, inst, queue, &Link::new(Function::Move, vec![Argument::View(located)], out))?;
        }
        Ok(Dense { address, count, dtype })
    }

    /// Puts dense elements where a view wants them, if they are not there.
    fn unpack(
        &mut self,
        at: u32,
        inst: &Inst,
        queue: Lane,
        dense: Dense,
        view: &View,
    ) -> Result<(), CudaError> {
        if is_dense(view) {
            return Ok(());
        }
        let out = self.here(view)?;
        let contiguous = View::contiguous(0, view.shape.clone());
        let from = Located { address: dense.address, dtype: dense.dtype, view: &contiguous };
        self.map(at, inst, queue, &Link::new(Function::Move, vec![Argument::View(from)], out))
    }

    /// Elements move by position in row-major order, whatever the shapes.
    fn move_flat(
        &mut self,
        at: u32,
        inst: &Inst,
        queue: Lane,
        kind: CollectiveKind,
        from: &Located,
        to: &Located,
    ) -> Result<(), CudaError> {
        if from.view.len() != to.view.len() || from.dtype != to.dtype {
            let (given, wanted) = (from.view.len(), to.view.len());
            let message = format!("delivers {given} elements, the output holds {wanted}");
            return Err(CudaError::unsupported(self.plan, inst, message));
        }
        let source = self.packed(at, inst, queue, 0, from.view, true)?;
        let bytes = source.count * source.dtype.size();
        if is_dense(to.view) {
            let target = Dense { address: to.address, ..source };
            comm::check_collective(kind, 1, 0, source, target)
                .map_err(|message| CudaError::unsupported(self.plan, inst, message))?;
            if source.address != to.address && bytes > 0 {
                self.push(at, queue, Action::Copy { to: to.address, from: source.address, bytes });
            }
            return Ok(());
        }
        self.unpack(at, inst, queue, source, to.view)
    }
}
