//! Communications that run at once for all participants: a collective or resharding operator when all members
//! have arrived, a message when both sides have. `member` handles those whose parts run one by one.
//!
//! `plan::sync` determines which instructions belong to one communication. Here, their actors arrive one by
//! one.

use std::collections::VecDeque;

use super::{
    InstRef, SimError, collective,
    machine::{InFlight, InstState, Machine, Message, SideRef},
};
use hir_plan::{
    Communication, CommunicatorNo, Direction, P2pGroup, P2pOp, SyncEffect,
    sync::{CommNo, CommPart},
};

impl<'a> Machine<'a> {
    /// Issues a communication to its stream and to its queue.
    pub fn issue_on_queue(
        &mut self,
        rank: usize,
        inst: usize,
        communicator: CommunicatorNo,
    ) -> Result<(), SimError> {
        let queue = self.queue_of(rank, communicator)?;
        self.actors[queue].items.push_back((inst, self.issued + 1));
        self.issue(rank, inst);
        Ok(())
    }

    /// Posts the communication at a stream's head, so that the queue may run it.
    pub fn post(&mut self, stream: usize, communicator: CommunicatorNo) -> Result<(), SimError> {
        let rank = self.actors[stream].rank();
        let queue = self.queue_of(rank, communicator)?;
        if let Some((inst, _)) = self.actors[stream].items.pop_front() {
            self.inst_states[rank][inst] = InstState::Posted;
        }
        self.update_readiness(stream);
        self.update_readiness(queue);
        Ok(())
    }

    /// Counts one more arrived part of a communication. Returns true for the last one.
    pub fn arrive(&mut self, comm: CommNo) -> bool {
        let arrived = &mut self.arrived[comm as usize];
        *arrived += 1;
        *arrived as usize == self.world.matching().expected_parts(self.world.matching().comm(comm))
    }

    /// Marks the collective or resharding operator at an actor's head as arrived. The last arrival makes the
    /// communication ready to run.
    pub fn start_collective(&mut self, actor: usize, inst: usize) {
        let matched = self.world.matching();
        let Some(&comm) = matched.comms_of(InstRef { rank: self.actors[actor].rank(), inst }).first() else {
            return;
        };
        self.actors[actor].in_flight = Some(InFlight::Collective);
        if self.arrive(comm) {
            let parts = &matched.comm(comm).parts;
            let first = parts.iter().min_by_key(|it| (it.inst_ref.inst, it.inst_ref.rank));
            if let Some(first) = first.and_then(|it| self.actor_of(it)) {
                self.make_ready(first);
            }
        }
    }

    /// Returns the actor whose head is this part of a collective or resharding operator, once the part has
    /// arrived.
    pub fn actor_of(&self, part: &CommPart) -> Option<usize> {
        let InstRef { rank, inst } = part.inst_ref;
        let effect = self.effect(rank, inst);
        if let SyncEffect::Post(it) = effect {
            self.queue_of(rank, it.communicator()).ok()
        } else if let SyncEffect::Reshard(_) = effect {
            Some(self.stream_of(rank, self.world[rank].code[inst].stream))
        } else {
            None
        }
    }

    /// Runs the collective or resharding operator at an actor's head for all its members.
    pub fn run_collective(&mut self, actor: usize) -> Result<(), SimError> {
        let matched = self.world.matching();
        let rank = self.actors[actor].rank();
        let comm = self.head(actor).and_then(|inst| matched.comms_of(InstRef { rank, inst }).first());
        let Some(comm) = comm.map(|it| matched.comm(*it)) else {
            return Err(SimError::Internal("a collective without members was started".to_owned()));
        };
        let mut parts: Vec<&CommPart> = comm.parts.iter().collect();
        parts.sort_by_key(|it| it.role);
        let members: Vec<InstRef> = parts.iter().map(|it| it.inst_ref).collect();
        collective::run(self.world, &members, &mut self.memories, &mut self.outcome.notes)?;
        for part in parts {
            if let Some(actor) = self.actor_of(part) {
                self.retire(actor);
            }
        }
        Ok(())
    }

    /// Runs the collective at a queue's head, or one message of the P2P group there.
    pub fn run_queue(&mut self, actor: usize) -> Result<(), SimError> {
        let ready = match &mut self.actors[actor].in_flight {
            Some(InFlight::P2pGroup { ready, .. }) => ready,
            Some(InFlight::P2pOps { .. }) => return self.run_side_step(actor),
            Some(InFlight::CollectiveMember { has_read_input: false }) => {
                return self.read_member_input(actor);
            }
            Some(InFlight::CollectiveMember { has_read_input: true }) => {
                return self.write_member_output(actor);
            }
            Some(InFlight::Collective | InFlight::HalfCopy) | None => return self.run_collective(actor),
        };
        let at = self.ready.pick(ready.len());
        // Messages between two ranks arrive in the order of their posts.
        let pair = |it: &Message| (it.send.queue, it.recv.queue);
        let picked = ready.get(at).map(pair);
        let alike = ready.iter().enumerate().filter(|(_, it)| Some(pair(it)) == picked);
        let at = alike.min_by_key(|(_, it)| it.send.side).map_or(at, |it| it.0);
        let Some(Message { send, recv }) = ready.remove(at) else {
            self.complete_sides(actor, 0);
            return Ok(());
        };
        if let (Some(from), Some(to)) = (self.side_at(send), self.side_at(recv)) {
            let notes = &mut self.outcome.notes;
            let block = collective::read_message(self.world, from, &mut self.memories, notes)?;
            collective::write_message(self.world, (from.0, block), to, &mut self.memories, notes)?;
        }
        self.complete_sides(send.queue, 1);
        self.complete_sides(recv.queue, 1);
        if let Some(InFlight::P2pGroup { ready, .. }) = &self.actors[actor].in_flight
            && !ready.is_empty()
        {
            self.make_ready(actor);
        }
        Ok(())
    }

    /// Starts the P2P group at a queue's head: its sends and receives arrive at their messages.
    pub fn start_p2p_group(&mut self, queue: usize, inst: usize, group: &'a P2pGroup) {
        let matched = self.world.matching();
        let at = InstRef { rank: self.actors[queue].rank(), inst };
        self.actors[queue].in_flight =
            Some(InFlight::P2pGroup { left: group.ops.len(), ready: VecDeque::new() });
        if group.ops.is_empty() {
            self.make_ready(queue);
        }
        for (side, (it, comm)) in group.ops.iter().zip(matched.comms_of(at)).enumerate() {
            let own = SideRef { queue, side };
            if !self.arrive(*comm) {
                self.unmatched_sides.insert(*comm, own);
                continue;
            }
            let Some(other) = self.unmatched_sides.remove(comm) else { continue };
            let message = match it.direction {
                Direction::Send => Message { send: own, recv: other },
                Direction::Recv => Message { send: other, recv: own },
            };
            if let Some(InFlight::P2pGroup { ready, .. }) = &mut self.actors[message.send.queue].in_flight {
                ready.push_back(message);
            }
            self.make_ready(message.send.queue);
        }
    }

    /// Returns a send or a receive of the P2P group at a queue's head, with the instruction.
    fn side_at(&self, it: SideRef) -> Option<(InstRef, &'a P2pOp)> {
        let at = InstRef { rank: self.actors[it.queue].rank(), inst: self.head(it.queue)? };
        match self.effect(at.rank, at.inst) {
            SyncEffect::Post(Communication::P2pGroup(group)) => Some((at, group.ops.get(it.side)?)),
            _ => None,
        }
    }

    /// Marks `count` sends or receives of the P2P group at a queue's head as complete. The last one completes
    /// the group.
    fn complete_sides(&mut self, actor: usize, count: usize) {
        let Some(InFlight::P2pGroup { left, .. }) = &mut self.actors[actor].in_flight else { return };
        *left -= count;
        if *left == 0 {
            self.retire(actor);
        }
    }
}
