//! What happens before what: the order of the instructions of all ranks, derived from the plans.
//!
//! `walk` visits all instructions of all ranks, each after everything that happens before it, with the clock that it begins with: how
//! many instructions of every actor have ended by then. X happens before Y exactly where the clock of Y says that X has ended.
//! These are vector clocks (Mattern 1989), one number for each *actor*: a stream of a rank, or a rank's queue of one communicator.
//!
//! An order is claimed only where every executor gives it:
//!
//! * the instructions of an actor follow each other;
//! * a queue waits for the posting stream as it is at the posting, `Wait` for the work, `Join` for the event that was
//!   recorded before it, `Await` for the flag;
//! * a communication ends after those have begun whose data it gets, and after nobody else: a broadcast's root waits for
//!   no one, members of an allgather for all, and who gets nothing, or no elements, for no one. The simulator lets all
//!   members meet; NCCL does not;
//! * a `Reshard` ends after all of its team have begun: only the simulator has it;
//! * `Exchange` and `Barrier` order hosts, whose streams run behind them: they give no order, and are not walked.
//!
//! Invariant: a flag is raised once a run (`Slot`); two that raise it would not be told apart.

use std::rc::Rc;

use super::{CommKey, CommMatching, CommNo, InstRef, MatchedComm};
use crate::plan::{Collective, Communication, Direction, Plan, SyncEffect, Transfer};

mod dot;
mod graph;
#[cfg(test)]
mod tests;

pub use graph::{HappensBeforeGraph, Node};

/// Most numbers that the clocks of all actors may hold together: 16,384 actors, 1 GiB. A clock has a number for each actor.
const MAX_CLOCK_ENTRIES: usize = 1 << 28;

/// How far all actors have come, at least.
#[derive(Clone, Debug)]
pub struct Clock {
    /// By actor; that of `actor` is out of date.
    known: Rc<Vec<u32>>,
    actor: u32,
    ended: u32,
}

/// An instruction, where it touches memory: on its stream, or on its communicator's queue.
#[derive(Clone, Debug)]
pub struct Occurrence {
    /// The rank that executes it.
    pub rank: usize,
    /// Its index in the rank's code.
    pub inst: usize,
    /// Who runs it.
    pub actor: u32,
    /// Which of the actor's instructions it is, from 1.
    pub number: u32,
    /// What has ended when it begins.
    pub clock: Clock,
}

/// Why there is no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderError {
    /// Some instructions wait for what never happens.
    Deadlock,
    /// So many actors that their clocks would be too large.
    TooLarge,
}

impl Clock {
    /// How many of an actor's instructions have ended.
    pub fn ended(&self, actor: u32) -> u32 {
        match actor == self.actor {
            true => self.ended,
            false => self.known.get(actor as usize).copied().unwrap_or(0),
        }
    }

    /// Number of actors.
    pub fn actors(&self) -> usize {
        self.known.len()
    }

    /// Stores the actor's own count in the vector, so that other clocks can share the vector.
    fn store_own_count(&mut self) {
        if self.known[self.actor as usize] < self.ended {
            Rc::make_mut(&mut self.known)[self.actor as usize] = self.ended;
        }
    }

    /// Joins another clock to this one: the maximum for each actor.
    fn join(&mut self, other: &Self) {
        if !Rc::ptr_eq(&self.known, &other.known) {
            let (mut knows_more, mut knows_less) = (false, false);
            for (theirs, mine) in other.known.iter().zip(self.known.iter()) {
                knows_more |= theirs > mine;
                knows_less |= theirs < mine;
            }
            match (knows_more, knows_less) {
                // The members of a collective end with equal clocks: they share one vector.
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
    /// Whether this ends before `other` begins.
    pub fn happens_before(&self, other: &Self) -> bool {
        other.clock.ended(self.actor) >= self.number
    }
}

/// By rank, the actor of its stream 0: its other streams follow, and then its communicators' queues.
pub fn first_actors(plans: &[Plan]) -> Vec<u32> {
    let mut next = 0;
    let first = |plan: &Plan| {
        let actor = next;
        next += (plan.streams.len() + plan.communicators.len()) as u32;
        actor
    };
    plans.iter().map(first).collect()
}

/// Visits every instruction of all ranks but `Exchange` and `Barrier`, each after all that happen before it. The same plans
/// are always visited in the same order.
///
/// Time grows with the number of instructions, and with the number of actors for each that waits; memory with the number
/// of instructions, and with that of actors for each that is waited for at one time.
///
/// # Errors
/// Plans that never end, after some visits; a world of too many streams, before any.
pub fn walk(
    plans: &[Plan],
    matched: &CommMatching,
    visit: &mut dyn FnMut(Occurrence),
) -> Result<(), OrderError> {
    walk_ignoring(plans, matched, &|_| false, visit)
}

/// As `walk`, of plans in which instructions that order others have no effect: `is_dropped` is asked for each that records an event, or
/// waits for an event, a work or a flag.
///
/// # Errors
/// As `walk`.
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

/// A stream, or a queue.
struct Actor {
    rank: usize,
    items: Vec<Item>,
    next: usize,
    /// Whether the next item has begun.
    begun: bool,
    clock: Clock,
}

/// An instruction of an actor: what it needs and gives, as ranges of `World::tokens` one behind the other: needed to
/// begin, given when it has begun, needed to end, given when it has ended.
struct Item {
    inst: u32,
    /// Whether it only posts a communication: the queue's item of it is the one to visit.
    is_post: bool,
    tokens: [u32; 5],
}

/// An event that happens once: when all that signal it have done so.
struct Event {
    /// The joined clock of those that have signalled it, as long as an item needs it.
    clock: Option<Clock>,
    /// How many have not signalled it yet.
    missing: u32,
    /// How many items still need it.
    uses: u32,
    waiters: Vec<usize>,
}

/// What an item needs and gives.
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

/// What is known while plans are read.
struct WorldBuilder<'m> {
    matched: &'m CommMatching,
    /// By communication: the token of its first part that others wait for. A collective has one for each member, in team order, and then
    /// one that all members signal.
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

    /// Runs an actor as far as it comes; whether that is its end.
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

    /// Learns from all events of a range; false, and nothing learnt, where one has not happened: then it wakes the actor up.
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

    /// All events of a range have happened.
    fn signal_events(&mut self, at: usize, from: u32, to: u32, ready: &mut Vec<usize>) {
        for token in &self.tokens[from as usize..to as usize] {
            let event = &mut self.events[*token as usize];
            // A flag that is raised a second time is ignored.
            if event.uses == 0 || event.missing == 0 {
                continue;
            }
            let clock = &self.actors[at].clock;
            event.missing -= 1;
            match &mut event.clock {
                None => event.clock = Some(clock.clone()),
                Some(all) => {
                    all.join(clock);
                    // All members will share it.
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
                // The send has begun, the flag is raised.
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

    /// Gives a rank's instructions to its actors: streams from `first` on, then queues.
    fn plan(&mut self, plan: &Plan, first: usize, is_dropped: &dyn Fn(InstRef) -> bool, world: &mut World) {
        let rank = plan.rank;
        let queue = |number: u32| {
            first + plan.streams.len() + self.matched.queue_of(rank, number).unwrap_or(number) as usize
        };
        let queues: Vec<usize> = (0..plan.communicators.len() as u32).map(queue).collect();
        // What has been set so far: nothing waits for what is set later.
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

    /// A collective or resharding operator begins, and ends after `givers` have begun; all count within the team.
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
        // A member that needs all others waits for one event with their joined clock: n tokens for a team of n, and not n². Each member
        // signals that event exactly once.
        let others = givers.iter().filter(|it| **it != me).count();
        if others > 1 && others + 1 == members {
            deps.to_end.push(token(members));
            return;
        }
        deps.to_end.extend(givers.iter().filter(|it| **it != me).map(|it| token(*it)));
    }

    /// A transfer begins, and ends after the sends have begun that its receives match.
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

/// The members of a collective whose data a rank gets.
fn source_members(it: &Collective, team: &[usize], rank: usize) -> Vec<usize> {
    let Some(me) = team.iter().position(|it| *it == rank) else { return Vec::new() };
    if it.output.as_ref().is_none_or(|view| view.is_empty()) {
        return Vec::new();
    }
    it.kind.source_members(me, team.len())
}
