//! When communications run: collectives and reshards at meetings of all members, transfers side by side.

use std::collections::VecDeque;

use super::{
    Fault, InstRef, collective,
    machine::{Condition, Machine, Open, Pair, Progress},
};
use crate::plan::{Communication, CommunicatorNo, Direction, Effect, Side, Transfer};

impl<'a> Machine<'a> {
    /// Puts a communication on its stream and on its queue.
    pub fn issue_on_queue(
        &mut self,
        rank: usize,
        inst: usize,
        communicator: CommunicatorNo,
    ) -> Result<(), Fault> {
        let (group, queue) = self.queue_of(rank, communicator)?;
        if let Effect::Post(Communication::Collective(_)) = self.effect(rank, inst) {
            self.enrol(rank, inst, group)?;
        }
        self.actors[queue].items.push_back((inst, self.issued + 1));
        self.issue(rank, inst);
        Ok(())
    }

    /// Gives a collective or reshard its place among the meetings of its group.
    pub fn enrol(&mut self, rank: usize, inst: usize, group: usize) -> Result<(), Fault> {
        let it = &mut self.groups[group];
        if !it.team.contains(&rank) {
            return Err(Fault::Internal(format!("rank {rank} is not in its team {:?}", it.team)));
        }
        let posted = it.posted.entry(rank).or_insert(0);
        self.tickets.insert(InstRef { rank, inst }, (group, *posted));
        *posted += 1;
        Ok(())
    }

    /// A stream has come to a posting: the queue may run it from now on.
    pub fn post(&mut self, stream: usize, communicator: CommunicatorNo) -> Result<(), Fault> {
        let rank = self.actors[stream].rank;
        let (_, queue) = self.queue_of(rank, communicator)?;
        if let Some((inst, _)) = self.actors[stream].items.pop_front() {
            self.progress[rank][inst] = Progress::Posted;
        }
        self.consider(stream);
        self.consider(queue);
        Ok(())
    }

    /// An actor's head has come to its meeting; the last one makes it ready to be held.
    pub fn meet(&mut self, actor: usize, inst: usize) {
        let Some(&ticket) = self.tickets.get(&InstRef { rank: self.actors[actor].rank, inst }) else {
            return;
        };
        self.actors[actor].open = Some(Open::Meeting);
        let members = self.meetings.entry(ticket).or_default();
        members.push(actor);
        if members.len() == self.groups[ticket.0].team.len() {
            let first = |&it: &usize| (self.head(it), self.actors[it].rank);
            if let Some(it) = self.meetings[&ticket].iter().copied().min_by_key(first) {
                self.make_ready(it);
            }
        }
    }

    /// Holds the meeting of an actor's head.
    pub fn run_meeting(&mut self, actor: usize) -> Result<(), Fault> {
        let here = |it: &Self, actor: usize| {
            it.head(actor).map(|inst| InstRef { rank: it.actors[actor].rank, inst })
        };
        let ticket = here(self, actor).and_then(|it| self.tickets.get(&it).copied());
        let Some((ticket, mut actors)) = ticket.and_then(|it| Some((it, self.meetings.remove(&it)?))) else {
            return Err(Fault::Internal("a meeting is held that was not called".to_owned()));
        };
        let team = &self.groups[ticket.0].team;
        actors.sort_by_key(|&it| team.iter().position(|&rank| rank == self.actors[it].rank));
        let members: Vec<InstRef> = actors.iter().filter_map(|&it| here(self, it)).collect();
        collective::meet(self.plans, &members, &mut self.memories, &mut self.outcome.notes)?;
        for (actor, at) in actors.into_iter().zip(members) {
            self.finish_communication(actor, at);
        }
        Ok(())
    }

    /// Runs the meeting that a queue's head came to, or one pair of the transfer that it is.
    pub fn run_queue(&mut self, actor: usize) -> Result<(), Fault> {
        let Some(Open::Transfer { pairs, .. }) = &mut self.actors[actor].open else {
            return self.run_meeting(actor);
        };
        let at = self.ready.pick(pairs.len());
        let Some(Pair { send, receiver, recv }) = pairs.remove(at) else {
            self.close_sides(actor, 0);
            return Ok(());
        };
        if let (Some(from), Some(to)) = (self.open_side(actor, send), self.open_side(receiver, recv)) {
            collective::pass(self.plans, from, to, &mut self.memories, &mut self.outcome.notes)?;
        }
        self.close_sides(actor, 1);
        self.close_sides(receiver, 1);
        if let Some(Open::Transfer { pairs, .. }) = &self.actors[actor].open
            && !pairs.is_empty()
        {
            self.make_ready(actor);
        }
        Ok(())
    }

    /// Begins the transfer at a queue's head: sides find those partners that are there already.
    pub fn open_transfer(&mut self, actor: usize, group: usize, transfer: &'a Transfer) {
        let rank = self.actors[actor].rank;
        let sides = &transfer.sides;
        self.actors[actor].open = Some(Open::Transfer {
            bound: vec![false; sides.len()],
            left: sides.len(),
            pairs: VecDeque::new(),
        });
        if sides.is_empty() {
            self.make_ready(actor);
        }
        for (at, side) in sides.iter().enumerate() {
            let peer = self.groups[group].queues.get(&side.peer).copied();
            let Some((peer, theirs)) = peer.and_then(|it| Some((it, self.partner(it, rank, side)?))) else {
                continue;
            };
            if !self.bind(actor, at) {
                continue;
            }
            self.bind(peer, theirs);
            let (sender, pair) = match side.direction {
                Direction::Send => (actor, Pair { send: at, receiver: peer, recv: theirs }),
                Direction::Recv => (peer, Pair { send: theirs, receiver: actor, recv: at }),
            };
            if let Some(Open::Transfer { pairs, .. }) = &mut self.actors[sender].open {
                pairs.push_back(pair);
            }
            self.make_ready(sender);
        }
    }

    /// The first side of an open transfer that faces `side` of `rank` and has no partner yet.
    fn partner(&self, actor: usize, rank: usize, side: &Side) -> Option<usize> {
        let Some(Open::Transfer { bound, .. }) = &self.actors[actor].open else { return None };
        let Effect::Post(Communication::Transfer(transfer)) =
            self.effect(self.actors[actor].rank, self.head(actor)?)
        else {
            return None;
        };
        let faces = |it: &Side| it.peer == rank && it.direction != side.direction;
        transfer.sides.iter().zip(bound).position(|(it, bound)| !bound && faces(it))
    }

    /// Gives a side its partner; false where it has one.
    fn bind(&mut self, actor: usize, side: usize) -> bool {
        match &mut self.actors[actor].open {
            Some(Open::Transfer { bound, .. }) => !std::mem::replace(&mut bound[side], true),
            Some(Open::Meeting) | None => false,
        }
    }

    /// A side of the transfer at a queue's head, with its place.
    fn open_side(&self, actor: usize, side: usize) -> Option<(InstRef, &'a Side)> {
        let at = InstRef { rank: self.actors[actor].rank, inst: self.head(actor)? };
        match self.effect(at.rank, at.inst) {
            Effect::Post(Communication::Transfer(it)) => Some((at, it.sides.get(side)?)),
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
    fn finish_communication(&mut self, actor: usize, at: InstRef) {
        if let Effect::Post(it) = self.effect(at.rank, at.inst) {
            self.raise(Condition::Work(at.rank, it.work()));
        }
        self.retire(actor);
    }

    /// The group and the queue of a communicator.
    fn queue_of(&self, rank: usize, communicator: CommunicatorNo) -> Result<(usize, usize), Fault> {
        self.group_numbers[rank]
            .get(communicator as usize)
            .and_then(|&group| Some((group, self.groups[group].queues.get(&rank).copied()?)))
            .ok_or_else(|| Fault::Internal(format!("rank {rank} has no communicator {communicator}")))
    }
}
