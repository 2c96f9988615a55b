//! On which communicator NCCL runs sends and receives that are in no group.
//!
//! Plans post them to that of all ranks, and a SendRecv, which is a send and a receive of the process group of its team, to that of
//! this team. PyTorch without eager initialization has a communicator, and so a stream, for each pair of ranks of a process group; groups
//! of sends and receives run on that of all ranks in both cases. Source: PyTorch, `ProcessGroupNCCL::pointToPoint`; nvFuser, `postSendRecv`
//! (`csrc/multidevice/communication.cpp`).

use std::sync::Arc;

use grammar::CommunicationType;
use rustc_hash::FxHashMap;

use super::World;
use crate::{Backend, Communicator, CommunicatorNo, InstKind, PairOf, Plan};

grammar::named_enum! {
    /// The communicator of sends and receives that are in no group.
    /// The names are those of command lines.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum P2pQueues {
        /// That of all ranks, or of the team of a SendRecv: nvFuser, PyTorch with eager initialization, hir-run.
        #[default]
        Communicator = "communicator",
        /// One for each pair of ranks of a process group: PyTorch without eager initialization.
        Pair = "pair",
    }
}

impl P2pQueues {
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
    /// Returns the world in which each pair of ranks has communicators for its sends and receives that are in no group.
    /// Instructions keep their numbers. Returns `None` if the program has none of these.
    pub fn with_pair_communicators(&self) -> Option<Self> {
        let has_single = |plan: &Plan| plan.code.iter().any(|it| pair(plan, &it.kind).is_some());
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

/// Returns the two ranks on whose communicator an instruction sends or receives outside of a group, and their process group.
fn pair(plan: &Plan, inst: &InstKind) -> Option<(PairOf, [usize; 2])> {
    let of_nccl =
        |it: CommunicatorNo| Some(&plan.communicators[it as usize]).filter(|it| it.backend == Backend::Nccl);
    match inst {
        InstKind::P2pGroup(it) => {
            of_nccl(it.communicator)?;
            let side = it.ops.first().filter(|_| !it.is_coalesced)?;
            Some((PairOf::World, [plan.rank.min(side.peer), plan.rank.max(side.peer)]))
        }
        InstKind::Collective(it) if it.kind.of == CommunicationType::SendRecv => {
            // One rank alone copies.
            let [one, other] = of_nccl(it.communicator)?.team[..] else { return None };
            let of = if (plan.world, one) == (2, 0) { PairOf::World } else { PairOf::Team };
            Some((of, [one, other]))
        }
        _ => None,
    }
}

fn plan_with_pairs(plan: &Plan) -> Plan {
    let mut result = plan.clone();
    let mut known: FxHashMap<(PairOf, [usize; 2]), CommunicatorNo> = FxHashMap::default();
    for inst in &mut result.code {
        let Some(pair) = pair(plan, &inst.kind) else { continue };
        let communicator = match &mut inst.kind {
            InstKind::P2pGroup(it) => &mut it.communicator,
            InstKind::Collective(it) => &mut it.communicator,
            _ => continue,
        };
        *communicator = *known.entry(pair).or_insert_with(|| {
            let mut team = pair.1.to_vec();
            team.dedup();
            let team: Arc<[usize]> = team.into();
            result.communicators.push(Communicator { backend: Backend::Nccl, team, pair_of: Some(pair.0) });
            result.communicators.len() as CommunicatorNo - 1
        });
    }
    result
}
