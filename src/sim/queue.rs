//! Communications that run at once for all who take part: a collective or resharding operator once all members have arrived, a message
//! once both sides have. `member` has those whose parts run one by one.
//!
//! `plan::sync` says which instructions are parts of one communication; here their actors arrive, one by one.

use std::collections::VecDeque;

use super::{
    Fault, InstRef, collective,
    machine::{Condition, Machine, Message, Open, OpenSide, Progress},
};
use crate::plan::{
    Communication, CommunicatorNo, Direction, Effect, Side, Transfer,
    sync::{CommNo, Part},
};

impl<'a> Machine<'a> {
    /// Puts a communication on its stream and on its queue.
    pub fn issue_on_queue(
        &mut self,
        rank: usize,
        inst: usize,
        communicator: CommunicatorNo,
    ) -> Result<(), Fault> {
        let queue = self.queue_of(rank, communicator)?;
        self.actors[queue].items.push_back((inst, self.issued + 1));
        self.issue(rank, inst);
        Ok(())
    }

    /// A stream has come to a posting: the queue may run it from now on.
    pub fn post(&mut self, stream: usize, communicator: CommunicatorNo) -> Result<(), Fault> {
        let rank = self.actors[stream].rank;
        let queue = self.queue_of(rank, communicator)?;
        if let Some((inst, _)) = self.actors[stream].items.pop_front() {
            self.progress[rank][inst] = Progress::Posted;
        }
        self.consider(stream);
        self.consider(queue);
        Ok(())
    }

    /// One more part of a communication has arrived. True for the last.
    pub fn arrive(&mut self, comm: CommNo) -> bool {
        let arrived = &mut self.arrived[comm as usize];
        *arrived += 1;
        *arrived as usize == self.matched.expected(self.matched.comm(comm))
    }

    /// The collective or resharding operator at an actor's head arrives; the last one makes the communication ready to run.
    pub fn open_collective(&mut self, actor: usize, inst: usize) {
        let matched = self.matched;
        let Some(&comm) = matched.comms_of(InstRef { rank: self.actors[actor].rank, inst }).first() else {
            return;
        };
        self.actors[actor].open = Some(Open::Collective);
        if self.arrive(comm) {
            let parts = &matched.comm(comm).parts;
            let first = parts.iter().min_by_key(|it| (it.at.inst, it.at.rank));
            if let Some(first) = first.and_then(|it| self.actor_of(it)) {
                self.make_ready(first);
            }
        }
    }

    /// The actor whose head a part of a collective or resharding operator is, once it has arrived.
    pub fn actor_of(&self, part: &Part) -> Option<usize> {
        let InstRef { rank, inst } = part.at;
        match self.effect(rank, inst) {
            Effect::Post(it) => self.queue_of(rank, it.communicator()).ok(),
            Effect::Reshard(_) => Some(self.stream_of(rank, self.plans[rank].code[inst].stream)),
            Effect::Share(_)
            | Effect::Barrier
            | Effect::Compute
            | Effect::Record(_)
            | Effect::Join(_)
            | Effect::Wait(_)
            | Effect::Signal(_)
            | Effect::Await(_)
            | Effect::Finish => None,
        }
    }

    /// Runs the collective or resharding operator at an actor's head, for all its members.
    pub fn run_collective(&mut self, actor: usize) -> Result<(), Fault> {
        let matched = self.matched;
        let rank = self.actors[actor].rank;
        let comm = self.head(actor).and_then(|inst| matched.comms_of(InstRef { rank, inst }).first());
        let Some(comm) = comm.map(|it| matched.comm(*it)) else {
            return Err(Fault::Internal("a collective without members runs".to_owned()));
        };
        let mut parts: Vec<&Part> = comm.parts.iter().collect();
        parts.sort_by_key(|it| it.role);
        let members: Vec<InstRef> = parts.iter().map(|it| it.at).collect();
        collective::run(self.plans, &members, &mut self.memories, &mut self.outcome.notes)?;
        for part in parts {
            if let Some(actor) = self.actor_of(part) {
                self.finish_communication(actor, part.at);
            }
        }
        Ok(())
    }

    /// Runs the collective at a queue's head, or one message of the transfer that it is.
    pub fn run_queue(&mut self, actor: usize) -> Result<(), Fault> {
        let ready = match &mut self.actors[actor].open {
            Some(Open::Transfer { ready, .. }) => ready,
            Some(Open::Sides { .. }) => return self.run_side(actor),
            Some(Open::Member { begun: false }) => return self.begin_member(actor),
            Some(Open::Member { begun: true }) => return self.end_member(actor),
            Some(Open::Collective | Open::Half) | None => return self.run_collective(actor),
        };
        let at = self.ready.pick(ready.len());
        let Some(Message { send, recv }) = ready.remove(at) else {
            self.close_sides(actor, 0);
            return Ok(());
        };
        if let (Some(from), Some(to)) = (self.open_side(send), self.open_side(recv)) {
            let notes = &mut self.outcome.notes;
            let block = collective::send(self.plans, from, &mut self.memories, notes)?;
            collective::receive(self.plans, (from.0, &block), to, &mut self.memories, notes)?;
        }
        self.close_sides(send.queue, 1);
        self.close_sides(recv.queue, 1);
        if let Some(Open::Transfer { ready, .. }) = &self.actors[actor].open
            && !ready.is_empty()
        {
            self.make_ready(actor);
        }
        Ok(())
    }

    /// The transfer at a queue's head begins: its sides arrive at their messages.
    pub fn open_transfer(&mut self, queue: usize, inst: usize, transfer: &'a Transfer) {
        let matched = self.matched;
        let at = InstRef { rank: self.actors[queue].rank, inst };
        self.actors[queue].open = Some(Open::Transfer { left: transfer.sides.len(), ready: VecDeque::new() });
        if transfer.sides.is_empty() {
            self.make_ready(queue);
        }
        for (side, (it, comm)) in transfer.sides.iter().zip(matched.comms_of(at)).enumerate() {
            let own = OpenSide { queue, side };
            if !self.arrive(*comm) {
                self.single_sides.insert(*comm, own);
                continue;
            }
            let Some(other) = self.single_sides.remove(comm) else { continue };
            let message = match it.direction {
                Direction::Send => Message { send: own, recv: other },
                Direction::Recv => Message { send: other, recv: own },
            };
            if let Some(Open::Transfer { ready, .. }) = &mut self.actors[message.send.queue].open {
                ready.push_back(message);
            }
            self.make_ready(message.send.queue);
        }
    }

    /// A side of the transfer at a queue's head, with its place.
    fn open_side(&self, it: OpenSide) -> Option<(InstRef, &'a Side)> {
        let at = InstRef { rank: self.actors[it.queue].rank, inst: self.head(it.queue)? };
        match self.effect(at.rank, at.inst) {
            Effect::Post(Communication::Transfer(transfer)) => Some((at, transfer.sides.get(it.side)?)),
            _ => None,
        }
    }

    /// Sides of the transfer at a queue's head have run; with the last, it is complete.
    fn close_sides(&mut self, actor: usize, count: usize) {
        let Some(Open::Transfer { left, .. }) = &mut self.actors[actor].open else { return };
        *left -= count;
        if *left == 0
            && let Some(inst) = self.head(actor)
        {
            self.finish_communication(actor, InstRef { rank: self.actors[actor].rank, inst });
        }
    }

    /// A communication is complete, and so is its work.
    pub fn finish_communication(&mut self, actor: usize, at: InstRef) {
        if let Effect::Post(it) = self.effect(at.rank, at.inst) {
            self.raise(Condition::Work(at.rank, it.work()));
        }
        self.retire(actor);
    }
}
