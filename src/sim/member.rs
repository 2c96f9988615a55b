//! Communications whose parts run one by one: a member of a collective reads what it gives, and later writes what it gets; a side of a
//! transfer sends, or receives. In between, what is written later has no value.
//!
//! A part waits for those whose data it gets, and for nobody else. NCCL promises no more.

use std::collections::VecDeque;

use super::{
    Fault, InstRef,
    collective::{self, TeamCollective},
    machine::{Machine, Open, OpenCollective, OpenMember, OpenSide},
};
use crate::plan::{
    Communication, Direction, Effect, Side, Transfer,
    sync::{CommNo, Role, give_back, pass, take},
};

impl Machine<'_> {
    /// The collective at a queue's head may begin: it reads what this member gives.
    pub fn open_member(&mut self, actor: usize) {
        self.actors[actor].open = Some(Open::Member { begun: false });
        self.make_ready(actor);
    }

    /// The collective of an actor's head, and which of its members the actor is.
    fn membership(&self, actor: usize) -> Result<(CommNo, InstRef, usize), Fault> {
        let rank = self.actors[actor].rank;
        let at = self.head(actor).map(|inst| InstRef { rank, inst });
        let found = at.and_then(|at| {
            let comm = *self.matched.comms_of(at).first()?;
            let part = self.matched.comm(comm).parts.iter().find(|it| it.at == at)?;
            if let Role::Member(member) = part.role { Some((comm, at, member)) } else { None }
        });
        found.ok_or_else(|| Fault::Internal("a collective without members runs".to_owned()))
    }

    /// A member reads what it gives.
    pub fn begin_member(&mut self, actor: usize) -> Result<(), Fault> {
        let (comm, at, member) = self.membership(actor)?;
        self.expect_part(at, 0)?;
        if !self.begun.contains_key(&comm) {
            let mut parts: Vec<_> = self.matched.comm(comm).parts.iter().collect();
            parts.sort_by_key(|it| it.role);
            let members: Vec<InstRef> = parts.into_iter().map(|it| it.at).collect();
            let left = members.len();
            let team = TeamCollective::of(self.plans, members)?;
            self.begun
                .insert(comm, OpenCollective { team, members: vec![OpenMember::default(); left], left });
        }
        let Some(it) = self.begun.get_mut(&comm) else { return Ok(()) };
        it.team.begin(member, &mut self.memories, &mut self.outcome.notes)?;
        it.members[member].has_begun = true;
        let waiting = std::mem::take(&mut it.members[member].waiting);
        self.actors[actor].open = Some(Open::Member { begun: true });
        waiting.into_iter().chain([actor]).try_for_each(|it| self.consider_end(it))
    }

    /// A member that has begun may end once those have begun whose data it gets.
    fn consider_end(&mut self, actor: usize) -> Result<(), Fault> {
        let (comm, _, member) = self.membership(actor)?;
        let Some(it) = self.begun.get_mut(&comm) else { return Ok(()) };
        let givers = it.team.givers(member)?;
        match givers.into_iter().find(|giver| !it.members[*giver].has_begun) {
            Some(giver) => it.members[giver].waiting.push(actor),
            None => self.make_ready(actor),
        }
        Ok(())
    }

    /// A member writes what it gets.
    pub fn end_member(&mut self, actor: usize) -> Result<(), Fault> {
        let (comm, at, member) = self.membership(actor)?;
        self.expect_part(at, 1)?;
        if let Some(it) = self.begun.get_mut(&comm) {
            if !it.team.givers(member)?.is_empty() {
                it.team.gather(member, &mut self.memories, &mut self.outcome.notes)?;
                it.team.write(member, &mut self.memories, &mut self.outcome.notes)?;
            }
            it.left -= 1;
            if it.left == 0 {
                self.begun.remove(&comm);
            }
        }
        self.finish_communication(actor, at);
        Ok(())
    }

    /// The transfer at a queue's head begins: its sends may run, and its receives may take the elements that they write later.
    pub fn open_sides(&mut self, queue: usize, transfer: &Transfer) {
        let first = |(side, it): (usize, &Side)| match it.direction {
            Direction::Recv if !it.view.is_empty() => take(side),
            Direction::Recv | Direction::Send => pass(side),
        };
        let mut ready: VecDeque<u32> = transfer.sides.iter().enumerate().map(first).collect();
        if ready.is_empty() {
            ready.push_back(give_back(0));
        }
        self.actors[queue].open = Some(Open::Sides { left: transfer.sides.len(), ready });
        self.make_ready(queue);
    }

    /// Runs one step of the transfer at a queue's head.
    pub fn run_side(&mut self, actor: usize) -> Result<(), Fault> {
        let rank = self.actors[actor].rank;
        let Some(inst) = self.head(actor) else { return Ok(()) };
        let at = InstRef { rank, inst };
        let Effect::Post(Communication::Transfer(transfer)) = self.effect(rank, inst) else { return Ok(()) };
        let current = self.ready.current();
        let Some(Open::Sides { ready, .. }) = &mut self.actors[actor].open else { return Ok(()) };
        let place = match current {
            Some(step) => ready.iter().position(|part| *part == step.part),
            None => Some(self.ready.pick(ready.len())),
        };
        let part = place.and_then(|place| ready.remove(place));
        if let (None, Some(step)) = (part, current) {
            return Err(Fault::Steps(step));
        }
        let number = part.map_or(0, |it| it as usize / 2);
        let last = give_back(transfer.sides.len());
        if part.is_none_or(|it| it == last) {
            self.finish_communication(actor, at);
            return Ok(());
        }
        if let (Some(part), Some(side), Some(comm)) =
            (part, transfer.sides.get(number), self.matched.comms_of(at).get(number))
        {
            if part == take(number) {
                collective::take(self.plans, at, &side.view, &mut self.memories)?;
                self.expect_message(OpenSide { queue: actor, side: number }, *comm);
            } else {
                self.pass(at, *comm, side)?;
            }
        }
        let Some(Open::Sides { ready, left }) = &mut self.actors[actor].open else { return Ok(()) };
        *left -= usize::from(part == Some(pass(number)));
        if *left == 0 {
            ready.push_back(last);
        }
        if !ready.is_empty() {
            self.make_ready(actor);
        }
        Ok(())
    }

    /// A side may receive its message, at once if it has been sent.
    fn expect_message(&mut self, side: OpenSide, comm: CommNo) {
        if !self.sent.contains_key(&comm) {
            self.single_sides.insert(comm, side);
        } else if let Some(Open::Sides { ready, .. }) = &mut self.actors[side.queue].open {
            ready.push_back(pass(side.side));
        }
    }

    /// A side sends its message, or receives it.
    fn pass(&mut self, at: InstRef, comm: CommNo, side: &Side) -> Result<(), Fault> {
        let notes = &mut self.outcome.notes;
        match side.direction {
            Direction::Send => {
                let block = collective::send(self.plans, (at, side), &mut self.memories, notes)?;
                self.sent.insert(comm, block);
                let Some(waiting) = self.single_sides.remove(&comm) else { return Ok(()) };
                if let Some(Open::Sides { ready, .. }) = &mut self.actors[waiting.queue].open {
                    ready.push_back(pass(waiting.side));
                }
                self.make_ready(waiting.queue);
                Ok(())
            }
            Direction::Recv => {
                let Some(block) = self.sent.remove(&comm) else { return Ok(()) };
                let from = self.matched.comm(comm).part(side.peer, Role::Side(Direction::Send)).unwrap_or(at);
                collective::receive(self.plans, (from, &block), (at, side), &mut self.memories, notes)
            }
        }
    }
}
