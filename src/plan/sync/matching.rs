//! Matches communications across ranks: finds the instructions that are parts of one communication. Matching
//! uses the plans only and does not execute them.
//!
//! | communication | matching parts |
//! |---|---|
//! | collective, resharding operator | the n-th that each member posts to the group |
//! | message of a P2P group | the n-th send and the n-th receive between two ranks on the group |
//! | memory handle | both sides of an exchange |
//! | barrier | the n-th of each rank |
//! | signal | the instruction that sets the signal and those that wait for it |
//!
//! The order of posting is the issue order, in which NCCL and UCC match operations on a communicator, and
//! nvFuser matches handles and barriers. `agreement` checks that matched parts are compatible.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    Backend, Communication, CommunicatorNo, Direction, PairOf, Plan, SignalId, SyncEffect, teams::position_in,
};

/// A reference to an instruction of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstRef {
    /// The rank.
    pub rank: usize,
    /// The index in `Plan::code`.
    pub inst: usize,
}

/// An index into `CommMatching::groups`.
pub type GroupNo = u32;
/// An index into `CommMatching::comms`.
pub type CommNo = u32;

/// The ranks that communicate through one queue: a communicator, or the team of a resharding operator.
#[derive(Clone, Debug)]
pub struct CommGroup {
    /// The backend; `None` for the team of a resharding operator, which only the simulator executes.
    pub backend: Option<Backend>,
    /// World ranks in team order.
    pub team: Arc<[usize]>,
}

/// The key that identifies a communication. Its parts have equal keys. Ordinals count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommKey {
    /// A collective or resharding operator: the group, and its ordinal in the group.
    Collective(GroupNo, u32),
    /// A message: the group, the sender, the receiver, and its ordinal among the messages between these.
    Message(GroupNo, usize, usize, u32),
    /// A memory handle: the sender, the receiver, and its ordinal among the handles between these.
    Handle(usize, usize, u32),
    /// A barrier of all hosts, with its ordinal.
    Barrier(u32),
    /// A signal.
    Signal(SignalId),
}

/// The role of a part in its communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CommRole {
    /// A member of the group, with its position in the team; for a barrier, the rank.
    Member(usize),
    /// One side of a message or handle.
    Side(Direction),
    /// Sets the signal.
    Signals,
    /// Waits for the signal.
    WaitsForSignal,
}

impl CommRole {
    /// Returns the number of the part, as in `Event::Arrived`, if others may wait for its arrival.
    pub(super) fn arriving_part(self) -> Option<u32> {
        match self {
            Self::Member(position) => Some(position as u32),
            Self::Side(Direction::Send) | Self::Signals => Some(0),
            Self::Side(Direction::Recv) | Self::WaitsForSignal => None,
        }
    }
}

/// The part of one instruction in a communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommPart {
    /// The instruction.
    pub inst_ref: InstRef,
    /// Its role.
    pub role: CommRole,
}

/// One communication with its matched parts.
#[derive(Clone, Debug)]
pub struct MatchedComm {
    /// The key that its parts have in common.
    pub key: CommKey,
    /// The parts, sorted by rank.
    pub parts: Vec<CommPart>,
}

impl MatchedComm {
    /// Returns the instruction of a rank that has a given role.
    pub fn part(&self, rank: usize, role: CommRole) -> Option<InstRef> {
        let first = self.parts.partition_point(|it| it.inst_ref.rank < rank);
        let own = self.parts[first..].iter().take_while(|it| it.inst_ref.rank == rank);
        own.into_iter().find(|it| it.role == role).map(|it| it.inst_ref)
    }

    /// Returns the part of a rank whose arrival others may wait for, numbered as in `Event::Arrived`: not that of one who only
    /// receives a message or waits for a signal.
    pub(super) fn arriving_part(&self, rank: usize) -> Option<u32> {
        let first = self.parts.partition_point(|it| it.inst_ref.rank < rank);
        let own = self.parts[first..].iter().take_while(|it| it.inst_ref.rank == rank);
        own.into_iter().find_map(|it| it.role.arriving_part())
    }
}

/// The matched communications of all ranks.
#[derive(Clone, Debug, Default)]
pub struct CommMatching {
    /// The groups of ranks that communicate.
    pub groups: Vec<CommGroup>,
    /// All communications.
    pub comms: Vec<MatchedComm>,
    /// By rank and communicator: the group.
    group_of: Vec<Vec<GroupNo>>,
    /// By rank: the communications of each instruction.
    by_rank: Vec<Parts>,
    /// By rank: the groups of NCCL, with the first instruction that posts to each, ascending by instruction. A barrier posts to that of all
    /// ranks.
    first_posts: Vec<Vec<(usize, GroupNo)>>,
    /// By rank and event: the instruction that records it.
    events: Vec<Vec<Option<usize>>>,
    /// By rank and work: the instruction that posts it.
    works: Vec<Vec<Option<usize>>>,
    /// By rank: the records of events for which its host waits, ascending, each with the next barrier.
    awaited: Vec<Vec<(usize, CommNo)>>,
    /// The barriers that follow such a record: exchanges of handles for views of all shards, which each run repeats.
    host_order: FxHashSet<CommNo>,
    numbers: FxHashMap<GroupKey, GroupNo>,
}

/// What groups differ in: the backend, the process group of which only transfers of a pair run on it, and the team.
type GroupKey<T = Arc<[usize]>> = (Option<Backend>, Option<PairOf>, T);

/// The communications of a rank's instructions, stored as one list.
#[derive(Clone, Debug, Default)]
struct Parts {
    /// By instruction: the start of its communications in `comms`. The last entry is the end of the list.
    first: Vec<u32>,
    comms: Vec<CommNo>,
}

impl CommMatching {
    /// Matches the communications of all ranks.
    pub fn from_plans(plans: &[Plan]) -> Self {
        let mut it = Matcher::default();
        plans.iter().for_each(|plan| it.plan(plan));
        it.matched.add_barriers_to_first_posts(plans.len());
        it.matched
    }

    /// Takes the barrier of an exchange of handles for a post to the communicator of all ranks: it is a communication of NCCL (nvFuser's
    /// `IpcHandleCache::exchangeHandles`).
    fn add_barriers_to_first_posts(&mut self, world: usize) {
        let key = (Some(Backend::Nccl), None, (0..world).collect());
        let barrier = self.comms.iter().find(|it| it.key == CommKey::Barrier(0));
        let Some((barrier, group)) = barrier.zip(self.numbers.get(&key).copied()) else { return };
        for InstRef { rank, inst } in barrier.parts.iter().map(|it| it.inst_ref) {
            let posts = &mut self.first_posts[rank];
            if !posts.iter().any(|(post, of)| *of == group && *post < inst) {
                posts.retain(|(_, of)| *of != group);
                posts.insert(posts.partition_point(|(post, _)| *post < inst), (inst, group));
            }
        }
    }

    /// Returns the communications of an instruction. For a P2P group or a handle exchange, they are in the
    /// order of its sides.
    pub fn comms_of(&self, at: InstRef) -> &[CommNo] {
        let bounds = self
            .by_rank
            .get(at.rank)
            .and_then(|it| Some((it, *it.first.get(at.inst)?, *it.first.get(at.inst + 1)?)));
        bounds.map_or(&[][..], |(it, from, to)| &it.comms[from as usize..to as usize])
    }

    /// Returns a communication.
    pub fn comm(&self, number: CommNo) -> &MatchedComm {
        &self.comms[number as usize]
    }

    /// Returns the group of a rank's communicator.
    pub fn group_of(&self, rank: usize, communicator: CommunicatorNo) -> Option<GroupNo> {
        self.group_of.get(rank)?.get(communicator as usize).copied()
    }

    /// Returns the communicator whose queue a communicator uses. Equal communicators of a rank share the
    /// queue of the first.
    pub fn queue_of(&self, rank: usize, communicator: CommunicatorNo) -> Option<CommunicatorNo> {
        let groups = self.group_of.get(rank)?;
        let group = groups.get(communicator as usize)?;
        groups.iter().position(|it| it == group).map(|it| it as CommunicatorNo)
    }

    /// Returns the group of NCCL to which an instruction posts as the first one of its rank.
    pub(super) fn created_by(&self, at: InstRef) -> Option<GroupNo> {
        let all = self.first_posts.get(at.rank)?;
        all.binary_search_by_key(&at.inst, |it| it.0).ok().map(|it| all[it].1)
    }

    /// Returns the barrier behind which all ranks follow the record of an event, as its host waits for it before the barrier.
    pub(super) fn barrier_behind(&self, at: InstRef) -> Option<CommNo> {
        let all = self.awaited.get(at.rank)?;
        all.binary_search_by_key(&at.inst, |it| it.0).ok().map(|it| all[it].1)
    }

    /// Returns the barrier that an instruction is, if what is issued behind it follows work for which a host has waited before it.
    pub(super) fn ordering_barrier(&self, at: InstRef) -> Option<CommNo> {
        self.comms_of(at).first().copied().filter(|it| self.host_order.contains(it))
    }

    /// Returns the first instruction of a rank that posts to a group of NCCL.
    pub(super) fn first_post(&self, rank: usize, group: GroupNo) -> Option<InstRef> {
        let (inst, _) = self.first_posts.get(rank)?.iter().find(|it| it.1 == group)?;
        Some(InstRef { rank, inst: *inst })
    }

    /// Returns whether all members of each group of NCCL post to it, if one does.
    pub(super) fn all_members_post(&self) -> bool {
        let mut posting: FxHashMap<GroupNo, usize> = FxHashMap::default();
        for (_, group) in self.first_posts.iter().flatten() {
            *posting.entry(*group).or_default() += 1;
        }
        posting.iter().all(|(group, count)| *count >= self.groups[*group as usize].team.len())
    }

    /// Returns the statement of a part of a communication, as an index into the rank's `Plan::origins`. The
    /// sends and receives of a coalesced P2P group have their own statements.
    pub fn origin(&self, plans: &[Plan], at: InstRef, comm: CommNo) -> u32 {
        let inst = &plans[at.rank].code[at.inst];
        let SyncEffect::Post(Communication::P2pGroup(it)) = inst.kind.effect() else { return inst.origin };
        let side = self.comms_of(at).iter().position(|it| *it == comm).and_then(|which| it.ops.get(which));
        side.map_or(inst.origin, |it| it.origin)
    }

    /// Returns the instruction of a rank that records an event.
    pub fn recording_inst(&self, rank: usize, event: u32) -> Option<usize> {
        self.events.get(rank)?.get(event as usize).copied().flatten()
    }

    /// Returns the instruction of a rank that posts a work.
    pub fn posting_inst(&self, rank: usize, work: u32) -> Option<usize> {
        self.works.get(rank)?.get(work as usize).copied().flatten()
    }

    /// Returns the number of parts that a communication needs to complete. A signal is set by one
    /// instruction.
    pub fn expected_parts(&self, comm: &MatchedComm) -> usize {
        match comm.key {
            CommKey::Collective(group, _) => self.groups[group as usize].team.len(),
            CommKey::Message(..) | CommKey::Handle(..) => 2,
            CommKey::Barrier(_) => self.by_rank.len(),
            CommKey::Signal(_) => 1,
        }
    }
}

/// The state of matching.
#[derive(Default)]
struct Matcher {
    matched: CommMatching,
    by_key: FxHashMap<CommKey, CommNo>,
    /// Teams by address. Teams are long and shared, so each is compared only once.
    by_team: FxHashMap<GroupKey<*const [usize]>, GroupNo>,
}

impl Matcher {
    fn plan(&mut self, plan: &Plan) {
        let rank = plan.rank;
        let groups: Vec<GroupNo> =
            plan.communicators.iter().map(|it| self.group(Some(it.backend), it.pair_of, &it.team)).collect();
        let place = |team: &[usize]| position_in(team, rank);
        let places: Vec<Option<usize>> = plan.communicators.iter().map(|it| place(&it.team)).collect();
        let mut parts = Parts { first: Vec::with_capacity(plan.code.len() + 1), comms: Vec::new() };
        let mut events = vec![None; plan.event_count];
        let mut works = vec![None; plan.work_count];
        let mut barriers = 0;
        // What the host has waited for since the last exchange of handles for a view of all shards.
        let (mut waited, mut awaited) = (Vec::new(), Vec::new());
        let exchanges: FxHashSet<usize> = plan.mapped_views.iter().filter_map(|it| it.exchange).collect();
        let mut first_posts = Vec::new();
        let mut used: FxHashSet<GroupNo> = FxHashSet::default();
        let mut collectives: FxHashMap<GroupNo, u32> = FxHashMap::default();
        let mut messages: FxHashMap<(GroupNo, usize, Direction), u32> = FxHashMap::default();
        for (inst, it) in plan.code.iter().enumerate() {
            parts.first.push(parts.comms.len() as u32);
            let mut join = |this: &mut Self, key, role| {
                parts.comms.push(this.add(key, CommPart { inst_ref: InstRef { rank, inst }, role }));
            };
            match it.kind.effect() {
                SyncEffect::Compute
                | SyncEffect::WaitEvent(_)
                | SyncEffect::Wait(_)
                | SyncEffect::ReadOutputs => (),
                SyncEffect::RecordEvent(event) => set(&mut events, event, inst),
                SyncEffect::HostWait(event) => {
                    waited.extend(events.get(event as usize).copied().flatten());
                }
                SyncEffect::Signal(signal) => join(self, CommKey::Signal(signal), CommRole::Signals),
                SyncEffect::WaitSignal(signal) => {
                    join(self, CommKey::Signal(signal), CommRole::WaitsForSignal)
                }
                SyncEffect::Barrier => {
                    join(self, CommKey::Barrier(barriers), CommRole::Member(rank));
                    barriers += 1;
                    if exchanges.contains(&inst) {
                        let barrier = parts.comms[parts.comms.len() - 1];
                        awaited.extend(waited.drain(..).map(|at| (at, barrier)));
                    }
                }
                SyncEffect::ShareMemHandles(handles) => {
                    for handle in handles {
                        let (from, to, index) = handle.exchange_key(rank);
                        join(self, CommKey::Handle(from, to, index), CommRole::Side(handle.direction));
                    }
                }
                SyncEffect::Reshard(it) => {
                    let group = self.group(None, None, &it.team);
                    if let Some(place) = place(&it.team) {
                        join(
                            self,
                            CommKey::Collective(group, next(&mut collectives, group)),
                            CommRole::Member(place),
                        );
                    }
                }
                SyncEffect::Post(Communication::Collective(it)) => {
                    set(&mut works, it.work, inst);
                    let (group, place) = (groups[it.communicator as usize], places[it.communicator as usize]);
                    if let Some(place) = place {
                        join(
                            self,
                            CommKey::Collective(group, next(&mut collectives, group)),
                            CommRole::Member(place),
                        );
                    }
                }
                SyncEffect::Post(Communication::P2pGroup(it)) => {
                    set(&mut works, it.work, inst);
                    let group = groups[it.communicator as usize];
                    for side in &it.ops {
                        let (from, to) = match side.direction {
                            Direction::Send => (rank, side.peer),
                            Direction::Recv => (side.peer, rank),
                        };
                        let which = next(&mut messages, (group, side.peer, side.direction));
                        join(self, CommKey::Message(group, from, to, which), CommRole::Side(side.direction));
                    }
                }
            }
            // A group without sends and receives uses no communicator.
            let is_empty = parts.comms.len() == parts.first[inst] as usize;
            if let Some(posted) = it.kind.communication().filter(|_| !is_empty) {
                let number = posted.communicator() as usize;
                if plan.communicators[number].backend == Backend::Nccl && used.insert(groups[number]) {
                    first_posts.push((inst, groups[number]));
                }
            }
        }
        parts.first.push(parts.comms.len() as u32);
        self.matched.first_posts.push(first_posts);
        awaited.sort_unstable();
        self.matched.host_order.extend(awaited.iter().map(|it| it.1));
        self.matched.awaited.push(awaited);
        self.matched.group_of.push(groups);
        self.matched.by_rank.push(parts);
        self.matched.events.push(events);
        self.matched.works.push(works);
    }

    fn group(&mut self, backend: Option<Backend>, pair_of: Option<PairOf>, team: &Arc<[usize]>) -> GroupNo {
        if let Some(known) = self.by_team.get(&(backend, pair_of, Arc::as_ptr(team))) {
            return *known;
        }
        let next = self.matched.groups.len() as GroupNo;
        let number = *self.matched.numbers.entry((backend, pair_of, Arc::clone(team))).or_insert(next);
        if number == next {
            self.matched.groups.push(CommGroup { backend, team: Arc::clone(team) });
        }
        self.by_team.insert((backend, pair_of, Arc::as_ptr(team)), number);
        number
    }

    fn add(&mut self, key: CommKey, part: CommPart) -> CommNo {
        let next = self.matched.comms.len() as CommNo;
        let number = *self.by_key.entry(key).or_insert(next);
        if number == next {
            self.matched.comms.push(MatchedComm { key, parts: Vec::new() });
        }
        self.matched.comms[number as usize].parts.push(part);
        number
    }
}

/// Returns the current count of a key, starting from 0, and increments it.
fn next<K: std::hash::Hash + Eq>(counts: &mut FxHashMap<K, u32>, key: K) -> u32 {
    let count = counts.entry(key).or_default();
    *count += 1;
    *count - 1
}

/// Sets an entry unless it is already set: if several instructions provide the same thing, the first one
/// counts.
fn set(all: &mut [Option<usize>], number: u32, inst: usize) {
    if let Some(it) = all.get_mut(number as usize) {
        it.get_or_insert(inst);
    }
}
