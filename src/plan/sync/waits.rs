//! What does an instruction wait for, and what waits for it? The machine, the wait graph and the simulator use this
//! definition. Within a collective or a group, the simulator itself counts which parts have arrived (`sim::queue`,
//! `sim::member`).
//!
//! Hosts, streams and queues are *actors*. Each executes its instructions one after another: an execution begins when its
//! `to_begin` events have happened, then its `begun` events happen, and it ends, and its `ended` events happen, when its
//! `to_end` events have happened. An event stays true once it has happened.
//!
//! | actor | instructions |
//! |---|---|
//! | host | all: it issues them. It waits only in handle exchanges, barriers, for events, and where it creates a communicator |
//! | stream | those issued to it; of a communication, only its posting |
//! | queue | the communications that streams post to its communicator, in issue order |
//!
//! There are four orders, since an executor may wait where it need not:
//!
//! | order | a part of a communication ends after | used for |
//! |---|---|---|
//! | guaranteed | the parts whose data it receives have begun | races, buffers that share memory, timelines |
//! | blocking | all parts have begun | deadlocks, the simulator with the schedule `program` |
//! | of hosts | as blocking, and the host waits in its first post to a communicator for those of all members in theirs, or where NCCL connects ranks | deadlocks by `host_rules` |
//! | connecting | as blocking, and its host waits for the hosts of all parts | jobs that do not proceed |
//!
//! The root of a broadcast, for example, is not guaranteed to wait for any member, but it may wait for all. In the
//! guaranteed order, a wait for an event or a work that is recorded or posted only later has no effect, as in CUDA; in the
//! others it blocks. An instruction that sets a signal waits for nobody in any order. `machine` executes the actors in any order but
//! the connecting one, `wait_graph` describes a state, and the simulator adds memory.

use super::{CommNo, GroupNo, InstRef, World};
use crate::{
    Collective, Communication, CommunicatorNo, Direction, EventNo, StreamNo, SyncEffect, WorkNo,
    teams::position_in,
};

/// A host, stream or queue. It executes one instruction after another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Actor {
    /// The host of a rank.
    Host(usize),
    /// A stream of a rank.
    Stream(usize, StreamNo),
    /// The queue of a communicator of a rank.
    Queue(usize, CommunicatorNo),
}

impl Actor {
    /// Returns the rank of the actor.
    pub fn rank(self) -> usize {
        match self {
            Self::Host(rank) | Self::Stream(rank, _) | Self::Queue(rank, _) => rank,
        }
    }
}

/// Which waits count. The module describes the orders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitOrder {
    /// The waits that every executor guarantees. Streams run behind their hosts, so hosts are left out. What they add is that
    /// work for which a host has waited before an exchange of handles for a mapped view is before what all hosts issue behind it
    /// (`machine::builder`).
    Guaranteed,
    /// The waits that may block, as in the simulator.
    Blocking,
    /// As `Blocking`, and hosts block in calls of NCCL (`host_rules`).
    Hosts {
        /// They create a communicator in its first communication, as PyTorch without eager initialization: all members of its team, also
        /// those that take no part in this communication.
        creates: bool,
        /// They connect with the other parts where a connection is used first.
        connects: bool,
    },
    /// As `Blocking`, and hosts connect when they post, as in the first call of NCCL.
    Connecting,
}

/// Something that happens once in a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// The host has issued an instruction to its stream.
    Issued(InstRef),
    /// The stream has posted a communication to its queue.
    Posted(InstRef),
    /// An event of a rank is recorded.
    Recorded(usize, EventNo),
    /// A posted communication of a rank is complete.
    Complete(usize, WorkNo),
    /// A part of a communication has arrived: the member at this position of the team, or the sender of a message (0).
    Arrived(CommNo, u32),
    /// All parts of a communication have arrived, or a signal is set.
    AllArrived(CommNo),
    /// The hosts of all parts of a communication have issued it.
    AllIssued(CommNo),
    /// The hosts of all members of a group have issued their first communication of the group.
    Created(GroupNo),
}

/// The events around the execution of an instruction by an actor.
#[derive(Clone, Default, Debug)]
pub struct Waits {
    /// Must have happened before it begins.
    pub to_begin: Vec<Event>,
    /// Happen when it begins.
    pub begun: Vec<Event>,
    /// Must have happened before it ends.
    pub to_end: Vec<Event>,
    /// Happen when it ends.
    pub ended: Vec<Event>,
}

impl Waits {
    /// Returns the events around an instruction. The actor must execute the instruction.
    pub fn of(world: &World, order: WaitOrder, actor: Actor, inst: usize) -> Self {
        let mut waits = Self::default();
        waits.set(world, order, actor, inst);
        waits
    }

    /// As `of`, but uses the memory of earlier events again.
    pub fn set(&mut self, world: &World, order: WaitOrder, actor: Actor, inst: usize) {
        self.clear();
        let at = InstRef { rank: actor.rank(), inst };
        let effect = world[at.rank].code[inst].kind.effect();
        match actor {
            Actor::Host(_) => self.of_host(world, order, at, effect),
            Actor::Stream(..) => self.of_stream(world, order, at, effect),
            Actor::Queue(..) => self.of_queue(world, order, at, effect),
        }
    }

    /// Removes all events.
    pub fn clear(&mut self) {
        self.to_begin.clear();
        self.begun.clear();
        self.to_end.clear();
        self.ended.clear();
    }

    fn of_host(&mut self, world: &World, order: WaitOrder, at: InstRef, effect: SyncEffect<'_>) {
        let comms = world.matching().comms_of(at);
        match effect {
            SyncEffect::ShareMemHandles(_) | SyncEffect::Barrier => {
                self.meet(comms);
                self.create(world, order, at);
            }
            SyncEffect::HostWait(event) => self.to_begin.push(Event::Recorded(at.rank, event)),
            SyncEffect::Post(_) if order == WaitOrder::Connecting => {
                self.to_end.extend(comms.iter().map(|it| Event::AllIssued(*it)));
            }
            SyncEffect::Post(_) => {
                self.create(world, order, at);
                self.connect(world, order, comms);
            }
            crate::stream_sync_effects!()
            | SyncEffect::Compute
            | SyncEffect::Reshard(_)
            | SyncEffect::ReadOutputs => (),
        }
        self.ended.push(Event::Issued(at));
    }

    fn of_stream(&mut self, world: &World, order: WaitOrder, at: InstRef, effect: SyncEffect<'_>) {
        let (rank, matching) = (at.rank, world.matching());
        let comms = || matching.comms_of(at).iter().map(|it| Event::AllArrived(*it));
        let is_blocking = order != WaitOrder::Guaranteed;
        let counts = |source: Option<usize>| is_blocking || source.is_some_and(|it| it < at.inst);
        if is_blocking {
            self.to_begin.push(Event::Issued(at));
        }
        match effect {
            SyncEffect::RecordEvent(event) => self.ended.push(Event::Recorded(rank, event)),
            SyncEffect::WaitEvent(event) if counts(matching.recording_inst(rank, event)) => {
                self.to_begin.push(Event::Recorded(rank, event));
            }
            SyncEffect::Wait(work) if counts(matching.posting_inst(rank, work)) => {
                self.to_begin.push(Event::Complete(rank, work));
            }
            SyncEffect::Signal(_) => self.ended.extend(comms()),
            SyncEffect::WaitSignal(_) => self.to_begin.extend(comms()),
            SyncEffect::Post(_) => self.ended.push(Event::Posted(at)),
            SyncEffect::Reshard(_) if is_blocking => self.meet(matching.comms_of(at)),
            SyncEffect::Reshard(it) => self.receive(world, at, &it.team, None),
            crate::host_effects!()
            | SyncEffect::WaitEvent(_)
            | SyncEffect::Wait(_)
            | SyncEffect::Compute
            | SyncEffect::ReadOutputs => (),
        }
    }

    fn of_queue(&mut self, world: &World, order: WaitOrder, at: InstRef, effect: SyncEffect<'_>) {
        let SyncEffect::Post(communication) = effect else { return };
        self.to_begin.push(Event::Posted(at));
        match communication {
            _ if order != WaitOrder::Guaranteed => self.meet(world.matching().comms_of(at)),
            Communication::Collective(it) => {
                let team = &world[at.rank].communicators[it.communicator as usize].team;
                self.receive(world, at, team, Some(it));
            }
            Communication::P2pGroup(it) => {
                let messages = world.matching().comms_of(at).iter().zip(&it.ops);
                for (comm, side) in messages.filter(|it| !it.1.view.is_empty()) {
                    let events = match side.direction {
                        Direction::Send => &mut self.begun,
                        Direction::Recv => &mut self.to_end,
                    };
                    events.push(Event::Arrived(*comm, 0));
                }
            }
        }
        self.ended.push(Event::Complete(at.rank, communication.work()));
    }

    /// The host waits for those of the other ranks if it creates a communicator.
    fn create(&mut self, world: &World, order: WaitOrder, at: InstRef) {
        let WaitOrder::Hosts { creates: true, .. } = order else { return };
        let created = world.matching().created_by(at).map(Event::Created);
        self.begun.extend(created);
        self.to_end.extend(created);
    }

    /// The host waits for those of the other parts where NCCL connects them.
    fn connect(&mut self, world: &World, order: WaitOrder, comms: &[CommNo]) {
        let WaitOrder::Hosts { connects: true, .. } = order else { return };
        let new = comms.iter().filter(|it| world.connections().contains(it));
        self.begun.extend(new.clone().map(|it| Event::AllIssued(*it)));
        self.to_end.extend(new.map(|it| Event::AllIssued(*it)));
    }

    /// All parts wait for each other.
    fn meet(&mut self, comms: &[CommNo]) {
        self.begun.extend(comms.iter().map(|it| Event::AllArrived(*it)));
        self.to_end.extend(comms.iter().map(|it| Event::AllArrived(*it)));
    }

    /// A member of a collective, or of a resharding operator if there is none, waits for those whose data it receives.
    fn receive(&mut self, world: &World, at: InstRef, team: &[usize], collective: Option<&Collective>) {
        let comm = world.matching().comms_of(at).first();
        let (Some(comm), Some(me)) = (comm, position_in(team, at.rank)) else { return };
        let arrived = |member: usize| Event::Arrived(*comm, member as u32);
        self.begun.extend([arrived(me), Event::AllArrived(*comm)]);
        let members = team.len();
        if members > 2 && collective.is_none_or(|it| it.receives() && it.kind.receives_from_all(me, members))
        {
            // One event instead of one for each pair of members.
            self.to_end.push(Event::AllArrived(*comm));
        } else {
            let givers = collective.map_or_else(|| (0..members).collect(), |it| it.givers(me, members));
            // The root of a plan made by hand may be no member; planning refuses such programs.
            self.to_end.extend(givers.into_iter().filter(|it| *it != me && *it < members).map(arrived));
        }
    }
}
