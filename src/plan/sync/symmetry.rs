//! Classes of ranks that do the same at the same times, so that an estimate needs one rank of each.
//!
//! Ranks are of one class if
//!
//! 1. their plans are equal in all that an estimate reads: the instructions with their streams, events, works, views and costs,
//!    but not the numbers of ranks, nor the places of views in their buffers; and
//! 2. the parts of communications that an instruction waits for, each taken as its instruction on a rank of some class, are the
//!    same sets for all ranks of the class.
//!
//! Then the time of an instruction is that of the same instruction on any rank of its class. By induction over the order in which instructions begin
//! and end: what it waits for on its own rank has the same times by (1), and what it waits for on other ranks by (2).
//!
//! The classes are the coarsest with this property. They begin with (1), and a class whose ranks differ in (2) is split until
//! none does (partition refinement). Keys are compared as a whole, so that ranks of a class are equal, and not only
//! their hashes are. A rank that differs from all others is in a class of its own, and so is what depends on it in another way.
//!
//! Nothing about races follows from this. The order of a class is not that of its ranks: a path of orders through other ranks may lead to another
//! rank of the class in which it began. `memory_groups` has what is used for races.

use std::hash::{BuildHasher, Hash};

use rustc_hash::{FxBuildHasher, FxHashMap};

use super::{Actor, CommNo, Event, InstRef, WaitOrder, Waits, World};
use crate::{Communication, Plan, SyncEffect};

/// What an instruction waits for on other ranks.
#[derive(Clone, Copy)]
enum RemoteCause {
    /// An instruction, and which of its communications.
    Part(InstRef, u32),
    /// All parts of a communication that arrive.
    AllParts(CommNo),
}

/// The classes of the ranks of a world.
#[derive(Clone, Debug)]
pub struct Symmetry {
    /// By rank: its class.
    class_of: Vec<u32>,
    /// By class: its ranks, ascending.
    classes: Vec<Vec<usize>>,
}

/// The causes of an instruction, by class: each with the class, the index of the instruction and which of its communications.
type Causes = Vec<(u32, u32, u32)>;

impl Symmetry {
    /// Returns the classes of a world without resharding operators; `None` if it has some. `traits` returns numbers
    /// that have to be equal for ranks of one class, besides those of their instructions.
    pub fn of(world: &World, traits: &dyn Fn(&Plan, &mut Vec<u64>)) -> Option<Self> {
        let reshards =
            |plan: &Plan| plan.code.iter().any(|it| matches!(it.kind.effect(), SyncEffect::Reshard(_)));
        if world.iter().any(reshards) {
            return None;
        }
        let mut known: FxHashMap<Vec<u64>, u32> = FxHashMap::default();
        let mut class_of: Vec<u32> = Vec::with_capacity(world.len());
        for plan in world.plans() {
            let mut key = plan_key(world, plan);
            traits(plan, &mut key);
            let next = known.len() as u32;
            class_of.push(*known.entry(key).or_insert(next));
        }
        let mut count = known.len();
        drop(known);
        let causes: Vec<Vec<RemoteCause>> = world
            .iter()
            .map(|plan| remote_causes(world, plan).into_iter().map(|it| it.1).collect())
            .collect();
        loop {
            let refined = refine(world, &class_of, &causes);
            let classes = refined.iter().max().map_or(0, |it| *it as usize + 1);
            class_of = refined;
            if classes == count {
                break;
            }
            count = classes;
        }
        let mut classes = vec![Vec::new(); count];
        class_of.iter().enumerate().for_each(|(rank, class)| classes[*class as usize].push(rank));
        Some(Self { class_of, classes })
    }

    /// Returns the ranks of each class, ascending.
    pub fn classes(&self) -> &[Vec<usize>] {
        &self.classes
    }

    /// Returns what the instructions of a rank wait for on other ranks, each as an instruction of a representative and which of its
    /// communications.
    pub(super) fn causes(&self, world: &World, plan: &Plan) -> Vec<(RemoteWait, Vec<(InstRef, u32)>)> {
        let on_representative = |(class, inst, which): (u32, u32, u32)| {
            (InstRef { rank: self.classes[class as usize][0], inst: inst as usize }, which)
        };
        let causes = remote_causes(world, plan).into_iter();
        let by_class = causes.map(|(wait, cause)| (wait, causes_by_class(world, &self.class_of, cause)));
        by_class.map(|(wait, it)| (wait, it.into_iter().map(on_representative).collect())).collect()
    }
}

/// An instruction that waits for other ranks, before it begins or before it ends, and which of its communications waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemoteWait {
    pub inst: usize,
    pub is_at_end: bool,
    pub which: u32,
}

/// Splits the classes whose ranks wait for different classes.
fn refine(world: &World, class_of: &[u32], causes: &[Vec<RemoteCause>]) -> Vec<u32> {
    let mut sets: FxHashMap<Causes, u32> = FxHashMap::default();
    let mut set_of_comm: FxHashMap<CommNo, u32> = FxHashMap::default();
    let mut known: FxHashMap<Vec<u32>, u32> = FxHashMap::default();
    let mut number = |causes: Causes| {
        let next = sets.len() as u32;
        *sets.entry(causes).or_insert(next)
    };
    let ranks = class_of.iter().zip(causes);
    let class = |(class, causes): (&u32, &Vec<RemoteCause>)| {
        let mut key = vec![*class];
        key.extend(causes.iter().map(|cause| match cause {
            RemoteCause::AllParts(comm) => {
                *set_of_comm.entry(*comm).or_insert_with(|| number(causes_by_class(world, class_of, *cause)))
            }
            RemoteCause::Part(..) => number(causes_by_class(world, class_of, *cause)),
        }));
        let next = known.len() as u32;
        *known.entry(key).or_insert(next)
    };
    ranks.map(class).collect()
}

fn causes_by_class(world: &World, class_of: &[u32], cause: RemoteCause) -> Causes {
    let part = |at: InstRef, which: u32| (class_of[at.rank], at.inst as u32, which);
    match cause {
        RemoteCause::Part(at, which) => vec![part(at, which)],
        RemoteCause::AllParts(comm) => {
            let parts =
                world.matching().comm(comm).parts.iter().filter(|it| it.role.arriving_part().is_some());
            let mut all: Causes =
                parts.map(|it| part(it.inst_ref, which_of(world, it.inst_ref, comm))).collect();
            all.sort_unstable();
            all.dedup();
            all
        }
    }
}

/// Returns the index of a communication among those of an instruction.
fn which_of(world: &World, at: InstRef, comm: CommNo) -> u32 {
    world.matching().comms_of(at).iter().position(|it| *it == comm).unwrap_or(0) as u32
}

/// Returns what the instructions of a rank wait for on other ranks, in issue order.
fn remote_causes(world: &World, plan: &Plan) -> Vec<(RemoteWait, RemoteCause)> {
    let matching = world.matching();
    let mut found = Vec::new();
    let mut waits = Waits::default();
    for (inst, it) in plan.code.iter().enumerate() {
        let at = InstRef { rank: plan.rank, inst };
        if matching.comms_of(at).is_empty() || it.kind.effect().runs_on_host() {
            continue;
        }
        let actor = match it.kind.communication() {
            Some(posted) => Actor::Queue(plan.rank, posted.communicator()),
            None => Actor::Stream(plan.rank, it.stream),
        };
        waits.set(world, WaitOrder::Guaranteed, actor, inst);
        for (is_at_end, events) in [(false, &waits.to_begin), (true, &waits.to_end)] {
            for event in events {
                let (comm, cause) = match *event {
                    Event::AllArrived(comm) => (comm, Some(RemoteCause::AllParts(comm))),
                    Event::Arrived(comm, part) => {
                        let parts = matching.comm(comm).parts.iter();
                        let source = parts.clone().find(|it| it.role.arriving_part() == Some(part));
                        let at = source.map(|it| it.inst_ref);
                        (comm, at.map(|at| RemoteCause::Part(at, which_of(world, at, comm))))
                    }
                    Event::Issued(_)
                    | Event::Posted(_)
                    | Event::Recorded(..)
                    | Event::Complete(..)
                    | Event::AllIssued(_)
                    | Event::Created(_) => continue,
                };
                let which = which_of(world, at, comm);
                found.extend(cause.map(|cause| (RemoteWait { inst, is_at_end, which }, cause)));
            }
        }
    }
    found
}

/// Returns numbers that are equal for plans which are equal up to the numbers of ranks and the places of views.
fn plan_key(world: &World, plan: &Plan) -> Vec<u64> {
    let hash = |it: &dyn Fn(&mut <FxBuildHasher as BuildHasher>::Hasher)| {
        let mut hasher = FxBuildHasher.build_hasher();
        it(&mut hasher);
        std::hash::Hasher::finish(&hasher)
    };
    let mut key = vec![plan.streams.len() as u64, plan.communicators.len() as u64, plan.code.len() as u64];
    for it in &plan.communicators {
        key.extend([it.team.len() as u64, hash(&|hasher| (it.backend, it.pair_of).hash(hasher))]);
    }
    for it in &plan.code {
        let kind = hash(&|hasher| std::mem::discriminant(&it.kind).hash(hasher));
        key.extend([kind, u64::from(it.stream)]);
        match it.kind.effect() {
            SyncEffect::RecordEvent(number)
            | SyncEffect::WaitEvent(number)
            | SyncEffect::HostWait(number) => {
                key.push(u64::from(number));
            }
            SyncEffect::Wait(work) => key.push(u64::from(work)),
            SyncEffect::Post(posted) => {
                let queue = world.matching().queue_of(plan.rank, posted.communicator());
                key.extend([posted.communicator(), queue.unwrap_or(u32::MAX), posted.work()].map(u64::from));
                if let Communication::Collective(it) = posted {
                    key.push(hash(&|hasher| it.kind.op_name().hash(hasher)));
                }
            }
            SyncEffect::ShareMemHandles(_)
            | SyncEffect::Barrier
            | SyncEffect::Compute
            | SyncEffect::Signal(_)
            | SyncEffect::WaitSignal(_)
            | SyncEffect::Reshard(_)
            | SyncEffect::ReadOutputs => (),
        }
        it.kind.visit_accesses(plan.rank, &mut |access| {
            let is_own = access.rank == plan.rank;
            key.extend([
                u64::from(access.is_write) + 2 * u64::from(is_own),
                u64::from(access.view.buffer),
                access.view.shape.len() as u64,
            ]);
            key.extend(access.view.shape.iter().chain(&access.view.strides).map(|it| *it as u64));
        });
    }
    key
}
