//! The happens-before order of the instructions of all ranks, derived from the plans.
//!
//! `walk` visits all instructions of all ranks, each after all instructions that happen before it, with its
//! clock: the number of instructions of every actor that have ended when it begins. X happens before Y if and
//! only if the clock of Y counts X as ended. The clocks are vector clocks (Mattern 1989) with one component
//! for each *actor*: a stream of a rank, or a rank's queue of one communicator.
//!
//! The order contains only what every executor guarantees:
//!
//! * The instructions of an actor execute one after another.
//! * A queue waits for the instructions that precede the post on the posting stream. `Wait` waits for the
//!   work, `WaitEvent` for the event recorded before it, and `WaitSignal` for the signal.
//! * A member's part of a communication ends after the parts whose data it receives have begun, and waits for
//!   no others: the root of a broadcast waits for no member, members of an allgather wait for all, and a
//!   member that receives no elements waits for none. The simulator lets all members meet, but NCCL does not.
//! * A `Reshard` ends after all members of its team have begun. Only the simulator executes it.
//! * `ShareMemHandles` and `Barrier` order hosts, and streams run behind their hosts. They add nothing to the
//!   order and are not visited.
//!
//! Invariant: each signal (`SignalId`) is set once in each run. The walk does not distinguish two
//! instructions that set the same signal.

use std::rc::Rc;

use super::{CommKey, CommMatching, CommNo, InstRef, MatchedComm};
use crate::plan::{Collective, Communication, Direction, Plan, SyncEffect, Transfer};

mod dot;
mod graph;
#[cfg(test)]
mod tests;

pub use graph::{HappensBeforeGraph, Node};

/// The maximum number of entries in the clocks of all actors together: 16,384 actors, 1 GiB. Each clock has
/// one entry for each actor.
const MAX_CLOCK_ENTRIES: usize = 1 << 28;

/// A vector clock: a lower bound for the progress of every actor.
#[derive(Clone, Debug)]
pub struct Clock {
    /// By actor: the number of ended instructions. The entry of `actor` itself is out of date.
    known: Rc<Vec<u32>>,
    actor: u32,
    ended: u32,
}

/// An execution of an instruction at the point where it accesses memory: on its stream, or on the queue of
/// its communicator.
#[derive(Clone, Debug)]
pub struct Occurrence {
    /// The rank that executes it.
    pub rank: usize,
    /// Its index in `Plan::code`.
    pub inst: usize,
    /// The actor that executes it.
    pub actor: u32,
    /// Its position among the actor's instructions, from 1.
    pub number: u32,
    /// The instructions that have ended when it begins.
    pub clock: Clock,
}

/// The reason why no order exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderError {
    /// Some instructions wait for something that never happens.
    Deadlock,
    /// There are too many actors: their clocks would be too large.
    TooLarge,
}

impl Clock {
    /// Returns the number of ended instructions of an actor.
    pub fn ended(&self, actor: u32) -> u32 {
        match actor == self.actor {
            true => self.ended,
            false => self.known.get(actor as usize).copied().unwrap_or(0),
        }
    }

    /// Returns the number of actors.
    pub fn actors(&self) -> usize {
        self.known.len()
    }

    /// Stores the actor's own count in the vector, so that other clocks can share the vector.
    fn store_own_count(&mut self) {
        if self.known[self.actor as usize] < self.ended {
            Rc::make_mut(&mut self.known)[self.actor as usize] = self.ended;
        }
    }

    /// Joins another clock into this one: takes the maximum for each actor.
    fn join(&mut self, other: &Self) {
        if !Rc::ptr_eq(&self.known, &other.known) {
            let (mut knows_more, mut knows_less) = (false, false);
            for (theirs, mine) in other.known.iter().zip(self.known.iter()) {
                knows_more |= theirs > mine;
                knows_less |= theirs < mine;
            }
            match (knows_more, knows_less) {
                // The members of a collective end with equal clocks and share one vector.
                (true, false) => self.known = Rc::clone(&other.known),
                (true, true) => {
                    let known = Rc::make_mut(&mut self.known);
                    known
                        .iter_mut()
                        .zip(other.known.iter())
                        .for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
                }
                (false, _) => (),
            }
        }
        if other.actor != self.actor && other.ended > self.ended(other.actor) {
            Rc::make_mut(&mut self.known)[other.actor as usize] = other.ended;
        }
    }
}

impl Occurrence {
    /// Returns whether this ends before `other` begins.
    pub fn happens_before(&self, other: &Self) -> bool {
        other.clock.ended(self.actor) >= self.number
    }
}

/// Returns, by rank, the actor of its stream 0. The actors of its other streams follow, and then those of its
/// communicator queues.
pub fn first_actors(plans: &[Plan]) -> Vec<u32> {
    let mut next = 0;
    let first = |plan: &Plan| {
        let actor = next;
        next += (plan.streams.len() + plan.communicators.len()) as u32;
        actor
    };
    plans.iter().map(first).collect()
}

/// Visits every instruction of all ranks except `ShareMemHandles` and `Barrier`, each after all instructions
/// that happen before it. The order of visits is deterministic.
///
/// Time is proportional to the number of instructions, plus the number of actors for each instruction that
/// waits. Memory is proportional to the number of instructions, plus the number of actors for each
/// instruction that others wait for at one time.
///
/// # Errors
/// The plans deadlock (reported after some visits), or the world has too many streams (reported before any
/// visit).
pub fn walk(
    plans: &[Plan],
    matched: &CommMatching,
    visit: &mut dyn FnMut(Occurrence),
) -> Result<(), OrderError> {
    walk_ignoring(plans, matched, &|_| false, visit)
}

/// Like `walk`, but some synchronisation instructions have no effect. `is_dropped` is called for each
/// instruction that records an event, or waits for an event, a work or a signal.
///
/// # Errors
/// As for `walk`.
pub fn walk_ignoring(
    plans: &[Plan],
    matched: &CommMatching,
    is_dropped: &dyn Fn(InstRef) -> bool,
    visit: &mut dyn FnMut(Occurrence),
) -> Result<(), OrderError> {
    let mut world = World::of(plans, matched, is_dropped)?;
    let mut ready: Vec<usize> = (0..world.actors.len()).rev().collect();
    let mut left = world.actors.iter().filter(|it| !it.items.is_empty()).count();
    while let Some(actor) = ready.pop() {
        left -= usize::from(world.run(actor, &mut ready, visit));
    }
    match left {
        0 => Ok(()),
        _ => Err(OrderError::Deadlock),
    }
}

/// A stream or a queue.
struct Actor {
    rank: usize,
    items: Vec<Item>,
    next: usize,
    /// Whether the next item has begun.
    begun: bool,
    clock: Clock,
}

/// An instruction of an actor. `tokens` are the bounds of four consecutive ranges of `World::tokens`: the
/// events that must have happened for it to begin, those that happen when it begins, those that must have
/// happened for it to end, and those that happen when it ends.
struct Item {
    inst: u32,
    /// True if the stream only posts a communication here. The queue's item for the communication is visited
    /// instead.
    is_post: bool,
    tokens: [u32; 5],
}

/// An event that happens once, when all its signalling items have signalled it.
struct Event {
    /// The joined clock of the items that have signalled it, kept as long as an item needs it.
    clock: Option<Clock>,
    /// The number of items that have not signalled it yet.
    missing: u32,
    /// The number of items that still need it.
    uses: u32,
    waiters: Vec<usize>,
}

/// The events that an item needs and signals.
#[derive(Default)]
struct Deps {
    to_begin: Vec<u32>,
    begun: Vec<u32>,
    to_end: Vec<u32>,
    ended: Vec<u32>,
}

/// All actors, and the events between them.
struct World {
    actors: Vec<Actor>,
    tokens: Vec<u32>,
    events: Vec<Event>,
}

/// The state while the actors are built from plans.
struct WorldBuilder<'m> {
    matched: &'m CommMatching,
    /// By communication: the event of its first part. A collective has one event for each member, in team
    /// order, followed by one that all members signal.
    tokens: Vec<u32>,
    events: Vec<Event>,
}

impl Event {
    fn with_signals(missing: u32) -> Self {
        Self { clock: None, missing, uses: 0, waiters: Vec::new() }
    }
}

impl World {
    fn of(
        plans: &[Plan],
        matched: &CommMatching,
        is_dropped: &dyn Fn(InstRef) -> bool,
    ) -> Result<Self, OrderError> {
        let count = plans.iter().map(|it| it.streams.len() + it.communicators.len()).sum::<usize>();
        if count.saturating_mul(count) > MAX_CLOCK_ENTRIES {
            return Err(OrderError::TooLarge);
        }
        let known = Rc::new(vec![0; count]);
        let mut world = Self { actors: Vec::with_capacity(count), tokens: Vec::new(), events: Vec::new() };
        let mut reader = WorldBuilder::new(matched);
        for (plan, first) in plans.iter().zip(first_actors(plans)) {
            let first = first as usize;
            for actor in first..first + plan.streams.len() + plan.communicators.len() {
                let clock = Clock { known: Rc::clone(&known), actor: actor as u32, ended: 0 };
                world.actors.push(Actor { rank: plan.rank, items: Vec::new(), next: 0, begun: false, clock });
            }
            reader.plan(plan, first, is_dropped, &mut world);
        }
        world.events = reader.events;
        for it in &world.actors {
            for item in &it.items {
                for needed in [item.tokens[0]..item.tokens[1], item.tokens[2]..item.tokens[3]] {
                    for token in needed {
                        world.events[world.tokens[token as usize] as usize].uses += 1;
                    }
                }
            }
        }
        Ok(world)
    }

    fn push(&mut self, actor: usize, inst: usize, posts: bool, deps: &Deps) {
        let mut tokens = [self.tokens.len() as u32; 5];
        for (at, some) in [&deps.to_begin, &deps.begun, &deps.to_end, &deps.ended].into_iter().enumerate() {
            self.tokens.extend(some);
            tokens[at + 1] = self.tokens.len() as u32;
        }
        self.actors[actor].items.push(Item { inst: inst as u32, is_post: posts, tokens });
    }

    /// Runs an actor as far as possible. Returns true if the actor has finished.
    fn run(&mut self, at: usize, ready: &mut Vec<usize>, visit: &mut dyn FnMut(Occurrence)) -> bool {
        while let Some(item) = self.actors[at].items.get(self.actors[at].next) {
            let (inst, posts, [start, begin, middle, end, stop]) =
                (item.inst as usize, item.is_post, item.tokens);
            if !self.actors[at].begun {
                if !self.acquire_events(at, start, begin) {
                    return false;
                }
                let it = &mut self.actors[at];
                it.begun = true;
                if !posts {
                    let (rank, before) = (it.rank, it.clock.clone());
                    visit(Occurrence {
                        rank,
                        inst,
                        actor: at as u32,
                        number: before.ended + 1,
                        clock: before,
                    });
                }
                self.signal_events(at, begin, middle, ready);
            }
            if !self.acquire_events(at, middle, end) {
                return false;
            }
            let it = &mut self.actors[at];
            it.begun = false;
            it.next += 1;
            it.clock.ended += 1;
            self.signal_events(at, end, stop, ready);
        }
        self.actors[at].next == self.actors[at].items.len() && self.actors[at].next > 0
    }

    /// Joins the clocks of all events of a range into the actor's clock. Returns false and changes nothing if
    /// an event has not happened; the event then wakes the actor up.
    fn acquire_events(&mut self, at: usize, from: u32, to: u32) -> bool {
        let tokens = &self.tokens[from as usize..to as usize];
        if let Some(missing) = tokens.iter().find(|it| self.events[**it as usize].missing > 0) {
            self.events[*missing as usize].waiters.push(at);
            return false;
        }
        for token in tokens {
            let event = &mut self.events[*token as usize];
            if let Some(clock) = &event.clock {
                self.actors[at].clock.join(clock);
            }
            event.uses -= 1;
            if event.uses == 0 {
                event.clock = None;
            }
        }
        true
    }

    /// Signals all events of a range.
    fn signal_events(&mut self, at: usize, from: u32, to: u32, ready: &mut Vec<usize>) {
        for token in &self.tokens[from as usize..to as usize] {
            let event = &mut self.events[*token as usize];
            // A signal that is set a second time is ignored.
            if event.uses == 0 || event.missing == 0 {
                continue;
            }
            let clock = &self.actors[at].clock;
            event.missing -= 1;
            match &mut event.clock {
                None => event.clock = Some(clock.clone()),
                Some(all) => {
                    all.join(clock);
                    // All members will share this vector.
                    if event.missing == 0 {
                        all.store_own_count();
                    }
                }
            }
            if event.missing == 0 {
                ready.append(&mut event.waiters);
            }
        }
    }
}

impl<'m> WorldBuilder<'m> {
    fn new(matched: &'m CommMatching) -> Self {
        let mut count = 0;
        let mut first = |comm: &MatchedComm| {
            let before = count;
            count += match comm.key {
                CommKey::Collective(group, _) => matched.groups[group as usize].team.len() as u32 + 1,
                // One event: the send has begun, or the signal is set.
                CommKey::Message(..) | CommKey::Signal(_) => 1,
                CommKey::Handle(..) | CommKey::Barrier(_) => 0,
            };
            before
        };
        let tokens: Vec<u32> = matched.comms.iter().map(&mut first).collect();
        let mut events: Vec<Event> = (0..count).map(|_| Event::with_signals(1)).collect();
        for (comm, first) in matched.comms.iter().zip(&tokens) {
            if let CommKey::Collective(group, _) = comm.key {
                let members = matched.groups[group as usize].team.len() as u32;
                events[(first + members) as usize] = Event::with_signals(members);
            }
        }
        Self { matched, tokens, events }
    }

    /// Distributes a rank's instructions over its actors: the streams from `first` on, then the queues.
    fn plan(&mut self, plan: &Plan, first: usize, is_dropped: &dyn Fn(InstRef) -> bool, world: &mut World) {
        let rank = plan.rank;
        let queue = |number: u32| {
            first + plan.streams.len() + self.matched.queue_of(rank, number).unwrap_or(number) as usize
        };
        let queues: Vec<usize> = (0..plan.communicators.len() as u32).map(queue).collect();
        // The events and works that precede the current instruction. A wait for a later one has no effect.
        let mut events: Vec<Option<u32>> = vec![None; plan.event_count];
        let mut works: Vec<Option<u32>> = vec![None; plan.work_count];
        for (inst, it) in plan.code.iter().enumerate() {
            let stream = first + it.stream as usize;
            let comms = self.matched.comms_of(InstRef { rank, inst });
            let mut deps = Deps::default();
            let queued = match it.kind.effect() {
                SyncEffect::ShareMemHandles(_) | SyncEffect::Barrier => continue,
                SyncEffect::Compute | SyncEffect::ReadOutputs => None,
                SyncEffect::RecordEvent(_)
                | SyncEffect::WaitEvent(_)
                | SyncEffect::Wait(_)
                | SyncEffect::WaitSignal(_)
                    if is_dropped(InstRef { rank, inst }) =>
                {
                    None
                }
                SyncEffect::RecordEvent(event) => {
                    let token = self.event();
                    events[event as usize] = Some(token);
                    deps.ended.push(token);
                    None
                }
                SyncEffect::WaitEvent(event) => {
                    deps.to_begin.extend(events[event as usize]);
                    None
                }
                SyncEffect::Wait(work) => {
                    deps.to_begin.extend(works[work as usize]);
                    None
                }
                SyncEffect::Signal(_) => {
                    deps.ended.extend(comms.iter().map(|it| self.tokens[*it as usize]));
                    None
                }
                SyncEffect::WaitSignal(_) => {
                    deps.to_begin.extend(comms.iter().map(|it| self.tokens[*it as usize]));
                    None
                }
                SyncEffect::Reshard(it) => {
                    let me = it.team.iter().position(|it| *it == rank);
                    self.add_collective_deps(
                        comms,
                        me,
                        it.team.len(),
                        &(0..it.team.len()).collect::<Vec<_>>(),
                        &mut deps,
                    );
                    None
                }
                SyncEffect::Post(it) => {
                    match it {
                        Communication::Collective(it) => {
                            let team = &plan.communicators[it.communicator as usize].team;
                            let me = team.iter().position(|it| *it == rank);
                            self.add_collective_deps(
                                comms,
                                me,
                                team.len(),
                                &source_members(it, team, rank),
                                &mut deps,
                            );
                        }
                        Communication::Transfer(it) => self.add_transfer_deps(comms, it, &mut deps),
                    }
                    let done = self.event();
                    works[it.work() as usize] = Some(done);
                    deps.ended.push(done);
                    Some(queues[it.communicator() as usize])
                }
            };
            if let Some(queue) = queued {
                let posted = self.event();
                world.push(stream, inst, true, &Deps { ended: vec![posted], ..Deps::default() });
                deps.to_begin.push(posted);
                world.push(queue, inst, false, &deps);
            } else {
                world.push(stream, inst, false, &deps);
            }
        }
    }

    fn event(&mut self) -> u32 {
        self.events.push(Event::with_signals(1));
        self.events.len() as u32 - 1
    }

    /// Adds the dependences of a collective or resharding operator: it begins, and ends after `givers` have
    /// begun. Members are positions in the team.
    fn add_collective_deps(
        &self,
        comms: &[CommNo],
        me: Option<usize>,
        members: usize,
        givers: &[usize],
        deps: &mut Deps,
    ) {
        let (Some(comm), Some(me)) = (comms.first(), me) else { return };
        let token = |member: usize| self.tokens[*comm as usize] + member as u32;
        deps.begun.extend([token(me), token(members)]);
        // A member that needs all others waits for the one event that all members signal, so that a team of n
        // needs n tokens instead of n². Each member signals that event exactly once.
        let others = givers.iter().filter(|it| **it != me).count();
        if others > 1 && others + 1 == members {
            deps.to_end.push(token(members));
            return;
        }
        deps.to_end.extend(givers.iter().filter(|it| **it != me).map(|it| token(*it)));
    }

    /// Adds the dependences of a transfer: it begins, and ends after the sends that match its receives have
    /// begun.
    fn add_transfer_deps(&self, comms: &[CommNo], transfer: &Transfer, deps: &mut Deps) {
        for (comm, side) in comms.iter().zip(&transfer.ops).filter(|it| !it.1.view.is_empty()) {
            let deps = match side.direction {
                Direction::Send => &mut deps.begun,
                Direction::Recv => &mut deps.to_end,
            };
            deps.push(self.tokens[*comm as usize]);
        }
    }
}

/// Returns the members of a collective whose data a rank receives.
fn source_members(it: &Collective, team: &[usize], rank: usize) -> Vec<usize> {
    let Some(me) = team.iter().position(|it| *it == rank) else { return Vec::new() };
    if it.output.as_ref().is_none_or(|view| view.is_empty()) {
        return Vec::new();
    }
    it.kind.source_members(me, team.len())
}
