//! On which communicator NCCL runs sends and receives that are in no group.
//!
//! Plans post them to that of all ranks. PyTorch without eager initialization has a communicator, and so a stream, for
//! each pair of ranks; groups run on that of all ranks in both cases. Source: PyTorch, `ProcessGroupNCCL::pointToPoint`.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::World;
use crate::{Backend, Communicator, CommunicatorNo, InstKind, P2pGroup, Plan};

/// The communicator of sends and receives that are in no group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum P2pQueues {
    /// That of all ranks: nvFuser, PyTorch with eager initialization, hir-run.
    #[default]
    Communicator,
    /// One for each pair of ranks: PyTorch without eager initialization.
    Pair,
}

impl P2pQueues {
    /// All values.
    pub const ALL: [Self; 2] = [Self::Communicator, Self::Pair];

    /// Returns the name, as command lines contain it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Communicator => "communicator",
            Self::Pair => "pair",
        }
    }

    /// Returns the note of a finding that needs it, unless it is the default.
    pub fn note(self) -> Option<&'static str> {
        match self {
            Self::Communicator => None,
            Self::Pair => Some(
                "with `--p2p=pair`: PyTorch without eager initialization runs sends and receives that are in no group on a \
                 communicator and a stream for each pair of ranks",
            ),
        }
    }
}

impl World {
    /// Returns the world in which each pair of ranks has a communicator for its sends and receives that are in no group.
    /// Instructions keep their numbers. Returns `None` if the program has none of these.
    pub fn with_pair_communicators(&self) -> Option<Self> {
        let is_single =
            |plan: &Plan, it: &InstKind| matches!(it, InstKind::P2pGroup(it) if is_single(plan, it));
        let has_single = |plan: &Plan| plan.code.iter().any(|it| is_single(plan, &it.kind));
        let has_any = self.iter().any(has_single);
        has_any.then(|| Self::new(self.iter().map(plan_with_pairs).collect()))
    }

    /// Returns whether the two sides of each transfer also meet in `pairs`, which `with_pair_communicators` has returned.
    /// They do not if one side is in a group and the other is not.
    pub fn meets_as_in(&self, pairs: &Self) -> bool {
        let of = |it: super::CommPart, number: super::CommNo| {
            let at = self.matching().comms_of(it.inst_ref).iter().position(|it| *it == number)?;
            pairs.matching().comms_of(it.inst_ref).get(at).copied()
        };
        (0..).zip(&self.matching().comms).all(|(number, it)| match it.parts[..] {
            [one, other] => of(one, number) == of(other, number),
            _ => true,
        })
    }
}

fn is_single(plan: &Plan, it: &P2pGroup) -> bool {
    !it.is_coalesced && plan.communicators[it.communicator as usize].backend == Backend::Nccl
}

fn plan_with_pairs(plan: &Plan) -> Plan {
    let mut result = plan.clone();
    let mut known: FxHashMap<usize, CommunicatorNo> = FxHashMap::default();
    for inst in &mut result.code {
        let InstKind::P2pGroup(group) = &mut inst.kind else { continue };
        let Some(side) = group.ops.first().filter(|_| is_single(plan, group)) else { continue };
        group.communicator = *known.entry(side.peer).or_insert_with(|| {
            let mut team = vec![plan.rank.min(side.peer), plan.rank.max(side.peer)];
            team.dedup();
            let team: Arc<[usize]> = team.into();
            result.communicators.push(Communicator { backend: Backend::Nccl, team, is_of_pair: true });
            result.communicators.len() as CommunicatorNo - 1
        });
    }
    result
}
