//! Decides whether the plans of all ranks deadlock, without executing them.
//!
//! A condition that an actor waits for stays true once it is true, and actors do not compete for resources.
//! All schedules therefore end in the same state, and one schedule decides: every actor runs as far as it
//! can.

use rustc_hash::FxHashMap;

use super::{CommKey, CommMatching, CommNo, CommRole, InstRef, Position, World, WorldState};
use crate::{Plan, SyncEffect};

impl World {
    /// Returns the state in which the ranks deadlock; `None` if all plans run to completion. It is computed once.
    ///
    /// Time and memory are proportional to the number of instructions and of parts of communications.
    pub fn deadlocked_state(&self) -> Option<&WorldState> {
        self.deadlocked.get_or_init(|| find_deadlock(self.plans(), self.matching())).as_ref()
    }
}

fn find_deadlock(plans: &[Plan], matched: &CommMatching) -> Option<WorldState> {
    let mut world = Run::of(plans, matched);
    let mut ready: Vec<usize> = (0..world.actors.len()).rev().collect();
    while let Some(actor) = ready.pop() {
        world.run(actor, &mut ready);
    }
    let done = world.actors.iter().all(|it| it.next == it.items.len());
    (!done).then(|| world.state())
}

/// A host, a stream or a queue, with the instructions that it executes, as indices into the rank's code.
struct Actor {
    rank: usize,
    role: ActorRole,
    items: Vec<u32>,
    next: usize,
    /// Whether the next item has arrived at its communications.
    arrived: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ActorRole {
    Host,
    Stream,
    Queue,
}

/// A condition that an actor waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum WaitCondition {
    /// The host has issued an instruction.
    Issued(InstRef),
    /// The stream has executed or posted an instruction.
    Posted(InstRef),
    /// The queue has completed a communication.
    Complete(InstRef),
    /// All parts of a communication have arrived.
    Comm(CommNo),
    /// A condition that no instruction ever satisfies.
    Never,
}

struct Run<'a> {
    plans: &'a [Plan],
    matched: &'a CommMatching,
    actors: Vec<Actor>,
    /// By rank: its first actor, the host. Its streams follow, and then one queue for each communicator.
    first: Vec<usize>,
    /// By communication: the number of parts that have arrived, and the number of parts that it needs.
    arrived: Vec<(u32, u32)>,
    waiters: FxHashMap<WaitCondition, Vec<usize>>,
}

impl<'a> Run<'a> {
    fn of(plans: &'a [Plan], matched: &'a CommMatching) -> Self {
        let arrived = matched.comms.iter().map(|it| (0, matched.expected_parts(it) as u32)).collect();
        let mut world = Self {
            plans,
            matched,
            actors: Vec::new(),
            first: Vec::new(),
            arrived,
            waiters: FxHashMap::default(),
        };
        for plan in plans {
            let first = world.actors.len();
            world.first.push(first);
            let mut add = |role| {
                world.actors.push(Actor {
                    rank: plan.rank,
                    role,
                    items: Vec::new(),
                    next: 0,
                    arrived: false,
                });
            };
            add(ActorRole::Host);
            plan.streams.iter().for_each(|_| add(ActorRole::Stream));
            plan.communicators.iter().for_each(|_| add(ActorRole::Queue));
            for (inst, it) in plan.code.iter().enumerate() {
                world.actors[first].items.push(inst as u32);
                let effect = it.kind.effect();
                if !effect.runs_on_host() {
                    world.actors[first + 1 + it.stream as usize].items.push(inst as u32);
                }
                if let SyncEffect::Post(it) = effect {
                    let queue = world.queue_of(plan, it.communicator());
                    world.actors[queue].items.push(inst as u32);
                }
            }
        }
        world
    }

    /// Returns the actor of a communicator's queue.
    fn queue_of(&self, plan: &Plan, communicator: u32) -> usize {
        let number = self.matched.queue_of(plan.rank, communicator).unwrap_or(communicator);
        self.first[plan.rank] + 1 + plan.streams.len() + number as usize
    }

    /// Runs an actor as far as it can.
    fn run(&mut self, actor: usize, ready: &mut Vec<usize>) {
        while let Some(inst) = self.actors[actor].items.get(self.actors[actor].next) {
            let at = InstRef { rank: self.actors[actor].rank, inst: *inst as usize };
            if let Some(awaited) = self.wait_condition(actor, at, ready) {
                if awaited != WaitCondition::Never {
                    self.waiters.entry(awaited).or_default().push(actor);
                }
                return;
            }
            let it = &mut self.actors[actor];
            it.next += 1;
            it.arrived = false;
            let event = match it.role {
                ActorRole::Host => WaitCondition::Issued(at),
                ActorRole::Stream => WaitCondition::Posted(at),
                ActorRole::Queue => WaitCondition::Complete(at),
            };
            self.wake(event, ready);
        }
    }

    fn wake(&mut self, event: WaitCondition, ready: &mut Vec<usize>) {
        ready.extend(self.waiters.remove(&event).into_iter().flatten());
    }

    /// Returns the condition that an actor waits for before it can pass an instruction; `None` if there is
    /// none. If the actor can begin the instruction, this registers its parts in communications as arrived.
    fn wait_condition(&mut self, actor: usize, at: InstRef, ready: &mut Vec<usize>) -> Option<WaitCondition> {
        let host = self.first[at.rank];
        let plan = &self.plans[at.rank];
        let inst = &plan.code[at.inst];
        let role = self.actors[actor].role;
        // An instruction must be issued and posted before it runs.
        if role != ActorRole::Host && self.actors[host].next <= at.inst {
            return Some(WaitCondition::Issued(at));
        }
        let stream = &self.actors[host + 1 + inst.stream as usize];
        if role == ActorRole::Queue && stream.items.get(stream.next).is_some_and(|it| *it as usize <= at.inst)
        {
            return Some(WaitCondition::Posted(at));
        }
        let own = |of: usize, inst: Option<usize>, event: fn(InstRef) -> WaitCondition| match inst {
            None => Some(WaitCondition::Never),
            Some(inst) => {
                let it = &self.actors[of];
                let waits = it.items.get(it.next).is_some_and(|next| *next as usize <= inst);
                waits.then(|| event(InstRef { rank: at.rank, inst }))
            }
        };
        match (role, inst.kind.effect()) {
            (ActorRole::Host, SyncEffect::ShareMemHandles(_) | SyncEffect::Barrier)
            | (
                ActorRole::Stream,
                SyncEffect::Signal(_) | SyncEffect::WaitSignal(_) | SyncEffect::Reshard(_),
            )
            | (ActorRole::Queue, SyncEffect::Post(_)) => self.arrive(actor, at, ready),
            (ActorRole::Stream, SyncEffect::WaitEvent(event)) => {
                let recorded = self.matched.recording_inst(at.rank, event);
                let of = recorded.map_or(actor, |it| host + 1 + plan.code[it].stream as usize);
                own(of, recorded, WaitCondition::Posted)
            }
            (ActorRole::Stream, SyncEffect::Wait(work)) => {
                let posted = self.matched.posting_inst(at.rank, work);
                let communication = posted.and_then(|it| plan.code[it].kind.communication());
                let of = communication.map_or(actor, |it| self.queue_of(plan, it.communicator()));
                own(of, posted, WaitCondition::Complete)
            }
            (ActorRole::Host | ActorRole::Stream | ActorRole::Queue, _) => None,
        }
    }

    /// Registers the arrival of an instruction at its communications, once, and returns the first incomplete
    /// one that it waits for. Setting a signal does not wait.
    fn arrive(&mut self, actor: usize, at: InstRef, ready: &mut Vec<usize>) -> Option<WaitCondition> {
        let matched = self.matched;
        let comms = matched.comms_of(at);
        if !std::mem::replace(&mut self.actors[actor].arrived, true) {
            for number in comms {
                // Sides arrive one at a time: a P2P group may contain both sides of a message to its own rank.
                if self.role(*number, at) != Some(CommRole::WaitsForSignal) {
                    self.arrived[*number as usize].0 += 1;
                    if self.is_complete(*number) {
                        self.wake(WaitCondition::Comm(*number), ready);
                    }
                }
            }
        }
        let missing =
            comms.iter().find(|it| !self.is_complete(**it) && self.role(**it, at) != Some(CommRole::Signals));
        missing.map(|it| WaitCondition::Comm(*it))
    }

    fn is_complete(&self, number: CommNo) -> bool {
        let (here, expected) = self.arrived[number as usize];
        here >= expected
    }

    /// Returns the role of an instruction for a signal; `None` for other communications.
    fn role(&self, number: CommNo, at: InstRef) -> Option<CommRole> {
        let comm = self.matched.comm(number);
        match comm.key {
            CommKey::Signal(_) => comm.parts.iter().find(|it| it.inst_ref == at).map(|it| it.role),
            CommKey::Collective(..) | CommKey::Message(..) | CommKey::Handle(..) | CommKey::Barrier(_) => {
                None
            }
        }
    }

    /// Returns the positions of all ranks.
    fn state(&self) -> WorldState {
        let next =
            |it: &Actor, end: usize| it.items.get(it.next).map_or(end, |inst| (*inst as usize).min(end));
        let position = |plan: &Plan| {
            let first = self.first[plan.rank];
            let issued = self.actors[first].next;
            let range = |from: usize, count: usize| {
                self.actors[from..from + count].iter().map(|it| next(it, issued)).collect()
            };
            let streams = range(first + 1, plan.streams.len());
            let queues = range(first + 1 + plan.streams.len(), plan.communicators.len());
            Some(Position { round: 0, issued, streams, queues })
        };
        self.plans.iter().map(position).collect()
    }
}
