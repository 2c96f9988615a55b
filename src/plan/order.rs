//! What happens before what: the order that the instructions of all ranks give, told from the plans alone.
//!
//! `walk` goes through all instructions of all ranks, each behind everything that happens before it, and tells of each
//! how far everybody else has come for certain by the time it begins. Who only looks back needs nothing more: X happens
//! before Y exactly where the clock that Y begins with says that X has ended. These are vector clocks (Mattern 1989), one
//! number for each *actor*: a stream of a rank, or a rank's queue of one communicator.
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

use rustc_hash::FxHashMap;

use super::{Backend, Collective, CollectiveKind, Direction, InstKind, Plan, Slot, Transfer};

#[cfg(test)]
mod tests;

/// Most numbers that the clocks of all actors may hold together: 4096 actors. A clock has a number for each actor.
const MOST: usize = 1 << 24;

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
pub struct Moment {
    /// The rank that executes it.
    pub rank: usize,
    /// Its index in the rank's code.
    pub inst: usize,
    /// Who runs it.
    pub actor: u32,
    /// Which of the actor's instructions it is, from 1.
    pub number: u32,
    /// What has ended when it begins.
    pub before: Clock,
}

/// Why there is no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unordered {
    /// Some instructions wait for what never happens.
    Stuck,
    /// So many actors that their clocks would be too large.
    Large,
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

    /// Learns what another knows.
    fn learn(&mut self, other: &Self) {
        if !Rc::ptr_eq(&self.known, &other.known)
            && other.known.iter().zip(self.known.iter()).any(|(theirs, mine)| theirs > mine)
        {
            let known = Rc::make_mut(&mut self.known);
            known.iter_mut().zip(other.known.iter()).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
        }
        if other.actor != self.actor && other.ended > self.ended(other.actor) {
            Rc::make_mut(&mut self.known)[other.actor as usize] = other.ended;
        }
    }
}

impl Moment {
    /// Whether this ends before `other` begins.
    pub fn happens_before(&self, other: &Self) -> bool {
        other.before.ended(self.actor) >= self.number
    }
}

/// Visits every instruction of all ranks but `Exchange` and `Barrier`, each after all that happen before it. The same plans
/// are always visited in the same order.
///
/// Time grows with the number of instructions, and with the number of actors for each that waits; memory with the number
/// of instructions, and with that of actors for each that is waited for at one time.
///
/// # Errors
/// Plans that never end, after some visits; a world of too many streams, before any.
pub fn walk(plans: &[Plan], visit: &mut dyn FnMut(Moment)) -> Result<(), Unordered> {
    let mut world = World::of(plans)?;
    let mut ready: Vec<usize> = (0..world.actors.len()).rev().collect();
    let mut left = world.actors.iter().filter(|it| !it.items.is_empty()).count();
    while let Some(actor) = ready.pop() {
        left -= usize::from(world.run(actor, &mut ready, visit));
    }
    match left {
        0 => Ok(()),
        _ => Err(Unordered::Stuck),
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
    posts: bool,
    tokens: [u32; 5],
}

/// Something that happens once.
#[derive(Default)]
struct Event {
    /// The clock when it did, as long as someone needs it.
    clock: Option<Clock>,
    /// How many items still need it.
    uses: u32,
    waiters: Vec<usize>,
}

/// What an item needs and gives.
#[derive(Default)]
struct Ties {
    to_begin: Vec<u32>,
    begun: Vec<u32>,
    to_end: Vec<u32>,
    ended: Vec<u32>,
}

/// All actors, and what they tell each other.
struct World {
    actors: Vec<Actor>,
    tokens: Vec<u32>,
    events: Vec<Event>,
}

/// What members of a group find each other by.
#[derive(PartialEq, Eq, Hash)]
enum Meeting {
    /// Group, which of its collectives, rank.
    Collective(usize, u32, usize),
    /// Group, sender, receiver, which message.
    Message(usize, usize, usize, u32),
}

/// What is known while plans are read.
#[derive(Default)]
struct Reader<'p> {
    groups: FxHashMap<(Option<Backend>, &'p [usize]), usize>,
    slots: FxHashMap<Slot, u32>,
    meetings: FxHashMap<Meeting, u32>,
    events: Vec<Event>,
}

impl World {
    fn of(plans: &[Plan]) -> Result<Self, Unordered> {
        let count = plans.iter().map(|it| it.streams.len() + it.communicators.len()).sum::<usize>();
        if count.saturating_mul(count) > MOST {
            return Err(Unordered::Large);
        }
        let known = Rc::new(vec![0; count]);
        let mut world = Self { actors: Vec::with_capacity(count), tokens: Vec::new(), events: Vec::new() };
        let mut reader = Reader::default();
        for plan in plans {
            let first = world.actors.len();
            for actor in first..first + plan.streams.len() + plan.communicators.len() {
                let clock = Clock { known: Rc::clone(&known), actor: actor as u32, ended: 0 };
                world.actors.push(Actor { rank: plan.rank, items: Vec::new(), next: 0, begun: false, clock });
            }
            reader.plan(plan, first, &mut world);
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

    fn push(&mut self, actor: usize, inst: usize, posts: bool, ties: &Ties) {
        let mut tokens = [self.tokens.len() as u32; 5];
        for (at, some) in [&ties.to_begin, &ties.begun, &ties.to_end, &ties.ended].into_iter().enumerate() {
            self.tokens.extend(some);
            tokens[at + 1] = self.tokens.len() as u32;
        }
        self.actors[actor].items.push(Item { inst: inst as u32, posts, tokens });
    }

    /// Runs an actor as far as it comes; whether that is its end.
    fn run(&mut self, at: usize, ready: &mut Vec<usize>, visit: &mut dyn FnMut(Moment)) -> bool {
        while let Some(item) = self.actors[at].items.get(self.actors[at].next) {
            let (inst, posts, [start, begin, middle, end, stop]) =
                (item.inst as usize, item.posts, item.tokens);
            if !self.actors[at].begun {
                if !self.take(at, start, begin) {
                    return false;
                }
                let it = &mut self.actors[at];
                it.begun = true;
                if !posts {
                    let (rank, before) = (it.rank, it.clock.clone());
                    visit(Moment { rank, inst, actor: at as u32, number: before.ended + 1, before });
                }
                self.give(at, begin, middle, ready);
            }
            if !self.take(at, middle, end) {
                return false;
            }
            let it = &mut self.actors[at];
            it.begun = false;
            it.next += 1;
            it.clock.ended += 1;
            self.give(at, end, stop, ready);
        }
        self.actors[at].next == self.actors[at].items.len() && self.actors[at].next > 0
    }

    /// Learns from all events of a range; false, and nothing learnt, where one has not happened: then it wakes the actor up.
    fn take(&mut self, at: usize, from: u32, to: u32) -> bool {
        let tokens = &self.tokens[from as usize..to as usize];
        if let Some(missing) = tokens.iter().find(|it| self.events[**it as usize].clock.is_none()) {
            self.events[*missing as usize].waiters.push(at);
            return false;
        }
        for token in tokens {
            let event = &mut self.events[*token as usize];
            if let Some(clock) = &event.clock {
                self.actors[at].clock.learn(clock);
            }
            event.uses -= 1;
            if event.uses == 0 {
                event.clock = None;
            }
        }
        true
    }

    /// All events of a range have happened.
    fn give(&mut self, at: usize, from: u32, to: u32, ready: &mut Vec<usize>) {
        for token in &self.tokens[from as usize..to as usize] {
            let event = &mut self.events[*token as usize];
            if event.uses > 0 && event.clock.is_none() {
                event.clock = Some(self.actors[at].clock.clone());
                ready.append(&mut event.waiters);
            }
        }
    }
}

impl<'p> Reader<'p> {
    /// Gives a rank's instructions to its actors: streams from `first` on, then queues.
    fn plan(&mut self, plan: &'p Plan, first: usize, world: &mut World) {
        let mut groups: Vec<usize> = Vec::with_capacity(plan.communicators.len());
        for it in &plan.communicators {
            let group = self.group(Some(it.backend), &it.team);
            groups.push(group);
        }
        // Equal communicators are one queue.
        let queue = |group: usize| {
            groups.iter().position(|it| *it == group).map_or(first, |at| first + plan.streams.len() + at)
        };
        // What has been set so far: nothing waits for what is set later.
        let mut events: Vec<Option<u32>> = vec![None; plan.events];
        let mut works: Vec<Option<u32>> = vec![None; plan.works];
        let mut met: FxHashMap<usize, u32> = FxHashMap::default();
        let mut passed: FxHashMap<(usize, usize, Direction), u32> = FxHashMap::default();
        for (inst, it) in plan.code.iter().enumerate() {
            let stream = first + it.stream as usize;
            let mut ties = Ties::default();
            let queued = match &it.kind {
                InstKind::Alloc { .. }
                | InstKind::Copy { .. }
                | InstKind::Fill { .. }
                | InstKind::Iota { .. }
                | InstKind::Gemm(_)
                | InstKind::Map { .. }
                | InstKind::Reduce(_)
                | InstKind::Combine { .. }
                | InstKind::Finish => None,
                InstKind::Exchange { .. } | InstKind::Barrier => continue,
                InstKind::Record { event } => {
                    let token = self.event();
                    events[*event as usize] = Some(token);
                    ties.ended.push(token);
                    None
                }
                InstKind::Join { event } => {
                    ties.to_begin.extend(events[*event as usize]);
                    None
                }
                InstKind::Wait { work } => {
                    ties.to_begin.extend(works[*work as usize]);
                    None
                }
                InstKind::Signal { slot } => {
                    ties.ended.push(self.slot(*slot));
                    None
                }
                InstKind::Await { slot } => {
                    ties.to_begin.push(self.slot(*slot));
                    None
                }
                InstKind::Reshard(it) => {
                    let group = self.group(None, &it.team);
                    let all = (0..it.team.len()).collect();
                    self.meet(group, &it.team, plan.rank, all, &mut met, &mut ties);
                    None
                }
                InstKind::Collective(it) => {
                    let team = &plan.communicators[it.communicator as usize].team;
                    let group = groups[it.communicator as usize];
                    self.meet(group, team, plan.rank, givers(it, team, plan.rank), &mut met, &mut ties);
                    works[it.work as usize] = Some(self.event());
                    ties.ended.extend(works[it.work as usize]);
                    Some(queue(group))
                }
                InstKind::Transfer(it) => {
                    let group = groups[it.communicator as usize];
                    self.pass(group, plan.rank, it, &mut passed, &mut ties);
                    works[it.work as usize] = Some(self.event());
                    ties.ended.extend(works[it.work as usize]);
                    Some(queue(group))
                }
            };
            if let Some(queue) = queued {
                let posted = self.event();
                world.push(stream, inst, true, &Ties { ended: vec![posted], ..Ties::default() });
                ties.to_begin.push(posted);
                world.push(queue, inst, false, &ties);
            } else {
                world.push(stream, inst, false, &ties);
            }
        }
    }

    fn event(&mut self) -> u32 {
        self.events.push(Event::default());
        self.events.len() as u32 - 1
    }

    fn group(&mut self, backend: Option<Backend>, team: &'p [usize]) -> usize {
        let next = self.groups.len();
        *self.groups.entry((backend, team)).or_insert(next)
    }

    fn slot(&mut self, slot: Slot) -> u32 {
        if let Some(known) = self.slots.get(&slot) {
            return *known;
        }
        let token = self.event();
        self.slots.insert(slot, token);
        token
    }

    fn meeting(&mut self, meeting: Meeting) -> u32 {
        if let Some(known) = self.meetings.get(&meeting) {
            return *known;
        }
        let token = self.event();
        self.meetings.insert(meeting, token);
        token
    }

    /// A collective or reshard begins, and ends after `givers` have begun, who count within the team.
    fn meet(
        &mut self,
        group: usize,
        team: &[usize],
        rank: usize,
        givers: Vec<usize>,
        met: &mut FxHashMap<usize, u32>,
        ties: &mut Ties,
    ) {
        let which = met.entry(group).or_default();
        ties.begun.push(self.meeting(Meeting::Collective(group, *which, rank)));
        for giver in givers.into_iter().filter_map(|it| team.get(it)).filter(|it| **it != rank) {
            ties.to_end.push(self.meeting(Meeting::Collective(group, *which, *giver)));
        }
        *which += 1;
    }

    /// A transfer begins, and ends after the sends have begun that its receives match: the first between two ranks the
    /// first, and so on.
    fn pass(
        &mut self,
        group: usize,
        rank: usize,
        transfer: &Transfer,
        passed: &mut FxHashMap<(usize, usize, Direction), u32>,
        ties: &mut Ties,
    ) {
        for side in &transfer.sides {
            let (from, to, ties) = match side.direction {
                Direction::Send => (rank, side.peer, &mut ties.begun),
                Direction::Recv => (side.peer, rank, &mut ties.to_end),
            };
            let count = passed.entry((group, side.peer, side.direction)).or_default();
            let message = Meeting::Message(group, from, to, *count);
            *count += 1;
            if !side.view.is_empty() {
                ties.push(self.meeting(message));
            }
        }
    }
}

/// The members of a collective whose data a rank gets.
fn givers(it: &Collective, team: &[usize], rank: usize) -> Vec<usize> {
    let Some(me) = team.iter().position(|it| *it == rank) else { return Vec::new() };
    if it.output.as_ref().is_none_or(|view| view.is_empty()) {
        return Vec::new();
    }
    match it.kind {
        CollectiveKind::Broadcast { root } | CollectiveKind::Scatter { root } => vec![root],
        CollectiveKind::Gather { root } | CollectiveKind::Reduce { root, .. } if me != root => Vec::new(),
        CollectiveKind::Gather { .. }
        | CollectiveKind::Reduce { .. }
        | CollectiveKind::Allgather
        | CollectiveKind::Allreduce { .. }
        | CollectiveKind::ReduceScatter { .. }
        | CollectiveKind::AllToAll => (0..team.len()).collect(),
        CollectiveKind::SendRecv { root } if me == usize::from(root == 0) => vec![root],
        CollectiveKind::SendRecv { .. } => Vec::new(),
        CollectiveKind::Permute { recv_peer, .. } => vec![recv_peer],
    }
}
