//! Communications whose parts run one by one. A member of a collective reads its input, and later writes its
//! output. Each send or receive of a P2P group runs separately. Until they are written, the elements that a
//! communication will write have no value.
//!
//! A part waits only for the parts that send data to it. NCCL guarantees no more.

use std::collections::VecDeque;

use rustc_hash::FxHashSet;

use super::{
    InstRef, SimError,
    collective::{self, TeamCollective},
    machine::{InFlight, InFlightCollective, Machine, MemberState, SideRef},
};
use hir_plan::{
    Communication, Direction, P2pGroup, P2pOp, SyncEffect,
    sync::{CommNo, CommRole, acquire_step, deliver_step, next_receives, release_step},
};

impl Machine<'_> {
    /// Starts the collective at a queue's head: the member may read its input.
    pub fn start_member(&mut self, actor: usize) {
        self.actors[actor].in_flight = Some(InFlight::CollectiveMember { has_read_input: false });
        self.make_ready(actor);
    }

    /// Returns the collective at an actor's head, and the index of the member that the actor runs.
    fn membership(&self, actor: usize) -> Result<(CommNo, InstRef, usize), SimError> {
        let rank = self.actors[actor].rank();
        let at = self.head(actor).map(|inst| InstRef { rank, inst });
        let found = at.and_then(|at| {
            let comm = *self.world.matching().comms_of(at).first()?;
            let part = self.world.matching().comm(comm).parts.iter().find(|it| it.inst_ref == at)?;
            if let CommRole::Member(member) = part.role { Some((comm, at, member)) } else { None }
        });
        found.ok_or_else(|| SimError::Internal("a collective without members was started".to_owned()))
    }

    /// Reads the input of a member.
    pub fn read_member_input(&mut self, actor: usize) -> Result<(), SimError> {
        let (comm, at, member) = self.membership(actor)?;
        self.check_given_step(at, 0)?;
        if !self.in_flight_collectives.contains_key(&comm) {
            let mut parts: Vec<_> = self.world.matching().comm(comm).parts.iter().collect();
            parts.sort_by_key(|it| it.role);
            let members: Vec<InstRef> = parts.into_iter().map(|it| it.inst_ref).collect();
            let left = members.len();
            let team = TeamCollective::of(self.world, members)?;
            self.in_flight_collectives
                .insert(comm, InFlightCollective { team, members: vec![MemberState::default(); left], left });
        }
        let Some(it) = self.in_flight_collectives.get_mut(&comm) else { return Ok(()) };
        it.team.read_input(member, &mut self.memories, &mut self.outcome.notes)?;
        it.members[member].has_read_input = true;
        let waiting = std::mem::take(&mut it.members[member].waiting);
        self.actors[actor].in_flight = Some(InFlight::CollectiveMember { has_read_input: true });
        waiting.into_iter().chain([actor]).try_for_each(|it| self.make_ready_if_inputs_read(it))
    }

    /// Makes a member that has read its input ready to write its output, if the members that it receives from
    /// have read theirs.
    fn make_ready_if_inputs_read(&mut self, actor: usize) -> Result<(), SimError> {
        let (comm, _, member) = self.membership(actor)?;
        let Some(it) = self.in_flight_collectives.get_mut(&comm) else { return Ok(()) };
        let givers = it.team.givers(member)?;
        match givers.into_iter().find(|giver| !it.members[*giver].has_read_input) {
            Some(giver) => it.members[giver].waiting.push(actor),
            None => self.make_ready(actor),
        }
        Ok(())
    }

    /// Writes the output of a member.
    pub fn write_member_output(&mut self, actor: usize) -> Result<(), SimError> {
        let (comm, at, member) = self.membership(actor)?;
        self.check_given_step(at, 1)?;
        if let Some(it) = self.in_flight_collectives.get_mut(&comm) {
            if !it.team.givers(member)?.is_empty() {
                it.team.gather_inputs(member, &mut self.memories, &mut self.outcome.notes)?;
                it.team.write_output(member, &mut self.memories, &mut self.outcome.notes)?;
            }
            it.left -= 1;
            if it.left == 0 {
                self.in_flight_collectives.remove(&comm);
            }
        }
        self.retire(actor);
        Ok(())
    }

    /// Starts the P2P group at a queue's head. Its sends may run, and the first receive from each peer may mark the elements
    /// that it will write as unwritten.
    pub fn start_p2p_ops(&mut self, queue: usize, group: &P2pGroup) {
        let next = next_receives(group);
        let later: FxHashSet<usize> = next.iter().flatten().copied().collect();
        let begun = group.ops.iter().enumerate().filter(|(side, _)| !later.contains(side));
        let mut ready: VecDeque<u32> = begun.map(|(side, it)| first_step(side, it)).collect();
        if ready.is_empty() {
            ready.push_back(release_step(0));
        }
        self.actors[queue].in_flight = Some(InFlight::P2pOps { left: group.ops.len(), ready, next });
        self.make_ready(queue);
    }

    /// Runs one step of the P2P group at a queue's head.
    pub fn run_side_step(&mut self, actor: usize) -> Result<(), SimError> {
        let rank = self.actors[actor].rank();
        let Some(inst) = self.head(actor) else { return Ok(()) };
        let at = InstRef { rank, inst };
        let SyncEffect::Post(Communication::P2pGroup(group)) = self.effect(rank, inst) else {
            return Ok(());
        };
        let current = self.ready.current_step();
        let Some(InFlight::P2pOps { ready, .. }) = &mut self.actors[actor].in_flight else {
            return Ok(());
        };
        let place = match current {
            Some(step) => ready.iter().position(|part| *part == step.index),
            None => Some(self.ready.pick(ready.len())),
        };
        let part = place.and_then(|place| ready.remove(place));
        if let (None, Some(step)) = (part, current) {
            return Err(SimError::StepNotReady(step));
        }
        let number = part.map_or(0, |it| it as usize / 2);
        let last = release_step(group.ops.len());
        if part.is_none_or(|it| it == last) {
            self.retire(actor);
            return Ok(());
        }
        if let (Some(part), Some(side), Some(comm)) =
            (part, group.ops.get(number), self.world.matching().comms_of(at).get(number))
        {
            if part == acquire_step(number) {
                collective::mark_unwritten(self.world, at, &side.view, &mut self.memories)?;
                self.expect_message(SideRef { queue: actor, side: number }, *comm);
            } else {
                self.deliver(at, *comm, side)?;
            }
        }
        let Some(InFlight::P2pOps { ready, left, next }) = &mut self.actors[actor].in_flight else {
            return Ok(());
        };
        if part == Some(deliver_step(number)) {
            *left -= 1;
            let next = next.get(number).copied().flatten();
            ready.extend(next.and_then(|side| Some(first_step(side, group.ops.get(side)?))));
        }
        if *left == 0 {
            ready.push_back(last);
        }
        if !ready.is_empty() {
            self.make_ready(actor);
        }
        Ok(())
    }

    /// Makes a receive ready if its message has been sent, or registers it to wait for the message.
    fn expect_message(&mut self, side: SideRef, comm: CommNo) {
        if !self.sent_messages.contains_key(&comm) {
            self.unmatched_sides.insert(comm, side);
        } else if let Some(InFlight::P2pOps { ready, .. }) = &mut self.actors[side.queue].in_flight {
            ready.push_back(deliver_step(side.side));
        }
    }

    /// Runs a send or a receive.
    fn deliver(&mut self, at: InstRef, comm: CommNo, side: &P2pOp) -> Result<(), SimError> {
        let notes = &mut self.outcome.notes;
        match side.direction {
            Direction::Send => {
                let block = collective::read_message(self.world, (at, side), &mut self.memories, notes)?;
                self.sent_messages.insert(comm, block);
                let Some(waiting) = self.unmatched_sides.remove(&comm) else { return Ok(()) };
                if let Some(InFlight::P2pOps { ready, .. }) = &mut self.actors[waiting.queue].in_flight {
                    ready.push_back(deliver_step(waiting.side));
                }
                self.make_ready(waiting.queue);
                Ok(())
            }
            Direction::Recv => {
                let Some(block) = self.sent_messages.remove(&comm) else { return Ok(()) };
                let from = self
                    .world
                    .matching()
                    .comm(comm)
                    .part(side.peer, CommRole::Side(Direction::Send))
                    .unwrap_or(at);
                collective::write_message(self.world, (from, block), (at, side), &mut self.memories, notes)
            }
        }
    }
}

/// Returns the first step of a send or a receive.
fn first_step(side: usize, it: &P2pOp) -> u32 {
    match it.direction {
        Direction::Recv if !it.view.is_empty() => acquire_step(side),
        Direction::Recv | Direction::Send => deliver_step(side),
    }
}
