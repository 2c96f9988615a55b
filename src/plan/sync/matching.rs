//! Which instructions of the ranks are parts of one communication: told from the plans, before anything runs.
//!
//! | communication | parts that belong together |
//! |---|---|
//! | collective, resharding operator | the n-th that each member posts to the group |
//! | message of a transfer | the n-th send and the n-th receive between two ranks on the group |
//! | memory handle | both sides of an exchange |
//! | barrier | the n-th of each rank |
//! | signal | the instruction that raises the flag and those that wait for it |
//!
//! The order of posting is the order of issue: NCCL's and UCC's communicators match in that order, and nvFuser's handles
//! and barriers do. Whether matched parts mean the same is `agreement`'s question.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::plan::{Backend, Communication, CommunicatorNo, Direction, Plan, SignalId, SyncEffect};

/// An instruction of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstRef {
    /// The rank.
    pub rank: usize,
    /// The index in its code.
    pub inst: usize,
}

/// An index into `Matched::groups`.
pub type GroupNo = u32;
/// An index into `Matched::comms`.
pub type CommNo = u32;

/// The ranks that communicate by a queue of their own: a communicator, or the team of resharding operators.
#[derive(Clone, Debug)]
pub struct CommGroup {
    /// `None`: the team of resharding operators, which only the simulator runs.
    pub backend: Option<Backend>,
    /// World ranks, in team order.
    pub team: Arc<[usize]>,
}

/// What the parts of a communication have in common. Ordinals count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommKey {
    /// A collective or resharding operator: the group, and which of the group's.
    Collective(GroupNo, u32),
    /// A message: the group, sender, receiver, and which between the two.
    Message(GroupNo, usize, usize, u32),
    /// A memory handle: sender, receiver, and which between the two.
    Handle(usize, usize, u32),
    /// A barrier of all hosts.
    Barrier(u32),
    /// A flag.
    Signal(SignalId),
}

/// What a part does in its communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CommRole {
    /// It is the part of a member of the group, by its place in the team; of a barrier, by its rank.
    Member(usize),
    /// It is one side of a message or handle.
    Side(Direction),
    /// It raises the flag.
    Signals,
    /// It waits for the flag.
    WaitsForSignal,
}

/// An instruction's part in a communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommPart {
    /// The instruction.
    pub inst_ref: InstRef,
    /// What it does.
    pub role: CommRole,
}

/// One communication.
#[derive(Clone, Debug)]
pub struct MatchedComm {
    /// What its parts have in common.
    pub key: CommKey,
    /// Its parts, by rank.
    pub parts: Vec<CommPart>,
}

impl MatchedComm {
    /// The instruction of a rank that plays a role.
    pub fn part(&self, rank: usize, role: CommRole) -> Option<InstRef> {
        let first = self.parts.partition_point(|it| it.inst_ref.rank < rank);
        let own = self.parts[first..].iter().take_while(|it| it.inst_ref.rank == rank);
        own.into_iter().find(|it| it.role == role).map(|it| it.inst_ref)
    }
}

/// The communications of all ranks.
#[derive(Clone, Debug, Default)]
pub struct CommMatching {
    /// Who communicates with whom.
    pub groups: Vec<CommGroup>,
    /// All communications.
    pub comms: Vec<MatchedComm>,
    /// By rank and communicator: its group.
    group_of: Vec<Vec<GroupNo>>,
    /// By rank: the communications of its instructions.
    by_rank: Vec<Parts>,
    /// By rank and event: the instruction that sets it.
    events: Vec<Vec<Option<usize>>>,
    /// By rank and work: the instruction that posts it.
    works: Vec<Vec<Option<usize>>>,
    numbers: FxHashMap<(Option<Backend>, Arc<[usize]>), GroupNo>,
}

/// The communications of a rank's instructions, those of one behind those of the other.
#[derive(Clone, Debug, Default)]
struct Parts {
    /// By instruction: where its list begins; one more number for the end of the last.
    first: Vec<u32>,
    comms: Vec<CommNo>,
}

impl CommMatching {
    /// Matches the communications of all ranks.
    pub fn from_plans(plans: &[Plan]) -> Self {
        let mut it = Matcher::default();
        plans.iter().for_each(|plan| it.plan(plan));
        it.matched
    }

    /// The communications that an instruction takes part in; of a transfer or an exchange, in the order of its sides.
    pub fn comms_of(&self, at: InstRef) -> &[CommNo] {
        let bounds = self
            .by_rank
            .get(at.rank)
            .and_then(|it| Some((it, *it.first.get(at.inst)?, *it.first.get(at.inst + 1)?)));
        bounds.map_or(&[][..], |(it, from, to)| &it.comms[from as usize..to as usize])
    }

    /// A communication.
    pub fn comm(&self, number: CommNo) -> &MatchedComm {
        &self.comms[number as usize]
    }

    /// The group of a rank's communicator.
    pub fn group_of(&self, rank: usize, communicator: CommunicatorNo) -> Option<GroupNo> {
        self.group_of.get(rank)?.get(communicator as usize).copied()
    }

    /// The communicator whose queue a rank's communicator uses: equal communicators have one queue, that of the first.
    pub fn queue_of(&self, rank: usize, communicator: CommunicatorNo) -> Option<CommunicatorNo> {
        let groups = self.group_of.get(rank)?;
        let group = groups.get(communicator as usize)?;
        groups.iter().position(|it| it == group).map(|it| it as CommunicatorNo)
    }

    /// The group of a collective, transfer or resharding operator.
    pub fn group_at(&self, plans: &[Plan], at: InstRef) -> Option<GroupNo> {
        match plans.get(at.rank)?.code.get(at.inst)?.kind.effect() {
            SyncEffect::Post(it) => self.group_of(at.rank, it.communicator()),
            SyncEffect::Reshard(it) => self.numbers.get(&(None, Arc::clone(&it.team))).copied(),
            SyncEffect::ShareMemHandles(_)
            | SyncEffect::Barrier
            | SyncEffect::Compute
            | SyncEffect::RecordEvent(_)
            | SyncEffect::WaitEvent(_)
            | SyncEffect::Wait(_)
            | SyncEffect::Signal(_)
            | SyncEffect::WaitSignal(_)
            | SyncEffect::ReadOutputs => None,
        }
    }

    /// The statement behind a part of a communication, as an index into the rank's `Plan::origins`: of a side of a transfer its own.
    pub fn origin(&self, plans: &[Plan], at: InstRef, comm: CommNo) -> u32 {
        let inst = &plans[at.rank].code[at.inst];
        let SyncEffect::Post(Communication::Transfer(it)) = inst.kind.effect() else { return inst.origin };
        let side = self.comms_of(at).iter().position(|it| *it == comm).and_then(|which| it.ops.get(which));
        side.map_or(inst.origin, |it| it.origin)
    }

    /// The instruction of a rank that sets an event.
    pub fn recording_inst(&self, rank: usize, event: u32) -> Option<usize> {
        self.events.get(rank)?.get(event as usize).copied().flatten()
    }

    /// The instruction of a rank that posts a work.
    pub fn posting_inst(&self, rank: usize, work: u32) -> Option<usize> {
        self.works.get(rank)?.get(work as usize).copied().flatten()
    }

    /// How many parts have to be there before a communication is complete. A flag is raised by one.
    pub fn expected_parts(&self, comm: &MatchedComm) -> usize {
        match comm.key {
            CommKey::Collective(group, _) => self.groups[group as usize].team.len(),
            CommKey::Message(..) | CommKey::Handle(..) => 2,
            CommKey::Barrier(_) => self.by_rank.len(),
            CommKey::Signal(_) => 1,
        }
    }
}

/// What is known while plans are read.
#[derive(Default)]
struct Matcher {
    matched: CommMatching,
    by_key: FxHashMap<CommKey, CommNo>,
    /// Teams are long and shared: each is compared once.
    by_team: FxHashMap<(Option<Backend>, *const [usize]), GroupNo>,
}

impl Matcher {
    fn plan(&mut self, plan: &Plan) {
        let rank = plan.rank;
        let groups: Vec<GroupNo> =
            plan.communicators.iter().map(|it| self.group(Some(it.backend), &it.team)).collect();
        let place = |team: &[usize]| team.iter().position(|it| *it == rank);
        let places: Vec<Option<usize>> = plan.communicators.iter().map(|it| place(&it.team)).collect();
        let mut parts = Parts { first: Vec::with_capacity(plan.code.len() + 1), comms: Vec::new() };
        let mut events = vec![None; plan.event_count];
        let mut works = vec![None; plan.work_count];
        let mut barriers = 0;
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
                SyncEffect::Signal(slot) => join(self, CommKey::Signal(slot), CommRole::Signals),
                SyncEffect::WaitSignal(slot) => join(self, CommKey::Signal(slot), CommRole::WaitsForSignal),
                SyncEffect::Barrier => {
                    join(self, CommKey::Barrier(barriers), CommRole::Member(rank));
                    barriers += 1;
                }
                SyncEffect::ShareMemHandles(handles) => {
                    for handle in handles {
                        let (from, to, index) = handle.exchange_key(rank);
                        join(self, CommKey::Handle(from, to, index), CommRole::Side(handle.direction));
                    }
                }
                SyncEffect::Reshard(it) => {
                    let group = self.group(None, &it.team);
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
                SyncEffect::Post(Communication::Transfer(it)) => {
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
        }
        parts.first.push(parts.comms.len() as u32);
        self.matched.group_of.push(groups);
        self.matched.by_rank.push(parts);
        self.matched.events.push(events);
        self.matched.works.push(works);
    }

    fn group(&mut self, backend: Option<Backend>, team: &Arc<[usize]>) -> GroupNo {
        if let Some(known) = self.by_team.get(&(backend, Arc::as_ptr(team))) {
            return *known;
        }
        let next = self.matched.groups.len() as GroupNo;
        let number = *self.matched.numbers.entry((backend, Arc::clone(team))).or_insert(next);
        if number == next {
            self.matched.groups.push(CommGroup { backend, team: Arc::clone(team) });
        }
        self.by_team.insert((backend, Arc::as_ptr(team)), number);
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

/// Counts one more of a kind; which it is, from 0.
fn next<K: std::hash::Hash + Eq>(counts: &mut FxHashMap<K, u32>, key: K) -> u32 {
    let count = counts.entry(key).or_default();
    *count += 1;
    *count - 1
}

/// The first instruction that provides something is the one that counts.
fn set(all: &mut [Option<usize>], number: u32, inst: usize) {
    if let Some(it) = all.get_mut(number as usize) {
        it.get_or_insert(inst);
    }
}
