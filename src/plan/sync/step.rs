//! The steps in which instructions access memory. A total order of all steps of a world determines the result
//! of a run.
//!
//! Most instructions have one step. Instructions whose intermediate states others can observe have several:
//!
//! * A collective reads this rank's input and acquires its output in step 0, and writes the output and
//!   releases the input in step 1.
//! * A P2P group acquires the elements of each receive (`acquire_step`), sends or receives on each side
//!   (`deliver_step`), and releases all sent elements at its end (`release_step`).
//! * A copy from or to a peer copies one half of its elements in step 0 and the other half in step 1.
//!
//! A communication owns the elements that it accesses from its beginning to its end: elements that it writes
//! are undefined in between, and elements that it reads may be read as late as at the end. NCCL, like MPI,
//! guarantees nothing about the buffers of an incomplete operation.
//!
//! A resharding operator is one step, at the first member of its team. An instruction that accesses no memory
//! has no step and executes as early as possible.

use std::borrow::Cow;

use rustc_hash::FxHashMap;

use super::{CommKey, CommMatching, InstRef, World};
use crate::{Access, Communication, Direction, InstKind, P2pGroup, View, ViewOnRank};

/// A step of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Step {
    /// The instruction.
    pub inst_ref: InstRef,
    /// The index of the step.
    pub index: u32,
}

/// A read or write of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepAccess<'p> {
    /// The rank that owns the memory.
    pub rank: usize,
    /// The accessed elements.
    pub view: Cow<'p, View>,
    /// True if the elements are written, false if they are read.
    pub is_write: bool,
}

impl<'p> From<Access<'p>> for StepAccess<'p> {
    fn from(it: Access<'p>) -> Self {
        Self { rank: it.rank, view: Cow::Borrowed(it.view), is_write: it.is_write }
    }
}

/// Returns the step in which receive `side` of a P2P group acquires its elements.
pub fn acquire_step(side: usize) -> u32 {
    2 * side as u32
}

/// Returns the step in which side `side` of a P2P group sends or receives.
pub fn deliver_step(side: usize) -> u32 {
    2 * side as u32 + 1
}

/// Returns the step in which a P2P group with `sides` sides releases the sent elements.
pub fn release_step(sides: usize) -> u32 {
    2 * sides as u32
}

/// Returns by side of a P2P group: the receive that acquires its elements after this receive has received. Messages between two ranks
/// arrive in the order of their posts.
pub fn next_receives(group: &P2pGroup) -> Vec<Option<usize>> {
    let mut next = vec![None; group.ops.len()];
    let mut latest: FxHashMap<usize, usize> = FxHashMap::default();
    for (side, it) in group.ops.iter().enumerate().filter(|(_, it)| it.direction == Direction::Recv) {
        if let Some(earlier) = latest.insert(it.peer, side) {
            next[earlier] = Some(side);
        }
    }
    next
}

/// Returns the steps at the beginning and at the end of an instruction. The steps of a P2P group's sides are
/// in between.
pub fn begin_end_steps(rank: usize, kind: &InstKind) -> [Option<u32>; 2] {
    match kind.communication() {
        Some(Communication::P2pGroup(it)) => [None, Some(release_step(it.ops.len()))],
        Some(Communication::Collective(_)) => [Some(0), Some(1)],
        None => [Some(0), copy_halves(rank, kind).map(|_| 1)],
    }
}

impl Step {
    /// Returns the reads and writes of the step. A step without any is not a step of the instruction.
    pub fn accesses<'p>(self, world: &'p World) -> Vec<StepAccess<'p>> {
        let InstRef { rank, inst } = self.inst_ref;
        let Some(kind) = world.get(rank).and_then(|it| it.code.get(inst)).map(|it| &it.kind) else {
            return Vec::new();
        };
        let whole = |rank: usize, kind: &'p InstKind| kind.accesses(rank).into_iter().map(StepAccess::from);
        let own = |view: Cow<'p, View>, written: bool| StepAccess { rank, view, is_write: written };
        let mut all: Vec<StepAccess<'p>> = match kind {
            InstKind::Collective(_) if self.index <= 1 => whole(rank, kind).collect(),
            InstKind::P2pGroup(it) if self.index == release_step(it.ops.len()) => {
                whole(rank, kind).filter(|it| !it.is_write).collect()
            }
            InstKind::P2pGroup(it) => {
                let side = it.ops.get(self.index as usize / 2);
                // Only a receive has an acquire step.
                let side = side.filter(|it| it.direction == Direction::Recv || self.index % 2 == 1);
                let touched = side.map(|it| own(Cow::Borrowed(&it.view), it.direction == Direction::Recv));
                touched.into_iter().collect()
            }
            InstKind::Copy { .. } if copy_halves(rank, kind).is_some() => {
                let half = copy_halves(rank, kind).into_iter().flatten().nth(self.index as usize);
                let touched = |it: ViewOnRank, written| StepAccess {
                    rank: it.rank,
                    view: Cow::Owned(it.view),
                    is_write: written,
                };
                half.map_or(Vec::new(), |[from, to]| vec![touched(from, false), touched(to, true)])
            }
            _ if self.index > 0 => Vec::new(),
            InstKind::ReadOutputs => {
                let views = world[rank].outputs.iter().filter_map(|it| it.shard.view.as_ref());
                views.map(|view| own(Cow::Borrowed(view), false)).collect()
            }
            InstKind::Reshard(_) => match collective_members(world.matching(), self.inst_ref) {
                Some(members) if members.first() == Some(&self.inst_ref) => {
                    members.iter().flat_map(|it| whole(it.rank, &world[it.rank].code[it.inst].kind)).collect()
                }
                Some(_) | None => Vec::new(),
            },
            // `InstKind::accesses` is complete for all other instructions.
            kind => whole(rank, kind).collect(),
        };
        all.retain(|it| !it.view.is_empty());
        all
    }
}

/// Returns the members of a collective or resharding operator, sorted by their index in the code of their
/// rank.
pub fn collective_members(matched: &CommMatching, at: InstRef) -> Option<Vec<InstRef>> {
    let comm = matched.comm(*matched.comms_of(at).first()?);
    if !matches!(comm.key, CommKey::Collective(..)) {
        return None;
    }
    let mut members: Vec<InstRef> = comm.parts.iter().map(|it| it.inst_ref).collect();
    members.sort_by_key(|it| (it.inst, it.rank));
    Some(members)
}

/// Returns the source and destination of both halves of a copy from or to a peer's memory; `None` for other
/// instructions, and for copies of one element.
pub fn copy_halves(rank: usize, kind: &InstKind) -> Option<[[ViewOnRank; 2]; 2]> {
    let InstKind::Copy { from, to } = kind else { return None };
    if from.rank == rank && to.rank == rank || from.view.shape != to.view.shape {
        return None;
    }
    let dim = from.view.shape.iter().position(|extent| *extent > 1).filter(|_| !from.view.is_empty())?;
    let middle = from.view.shape[dim] / 2;
    let half = |it: &ViewOnRank, first: usize, extent: usize| {
        let mut view = it.view.clone();
        view.offset += first * view.strides[dim];
        view.shape[dim] = extent;
        ViewOnRank { rank: it.rank, view }
    };
    let both = |first, extent| [half(from, first, extent), half(to, first, extent)];
    Some([both(0, middle), both(middle, from.view.shape[dim] - middle)])
}
