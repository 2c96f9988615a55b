//! Collectives of all ranks: of the CUDA backend, whose members access the memory of others or push data to their slots, and of NCCL.

use super::{super::sends::RANKS, WIDE, name, parts};
use crate::rng::Rng;

/// A collective.
#[derive(Clone, Copy)]
pub(super) struct Collective {
    pub(super) is_nccl: bool,
    /// Whether its members only write to slots of each other.
    pub(super) pushes: bool,
    kind: Kind,
    pub(super) input: usize,
    output: usize,
}

#[derive(Clone, Copy)]
enum Kind {
    Allreduce,
    Allgather,
    Broadcast { root: usize },
    Reduce { root: usize },
}

/// A read or write of a tensor of a rank.
pub(super) struct MemberAccess {
    pub(super) rank: usize,
    pub(super) tensor: usize,
    pub(super) writes: bool,
}

impl Collective {
    /// Returns a random collective. Its input and its output are different ones of `operands`; the first is not written.
    pub(super) fn random(rng: &mut Rng, operands: &[usize]) -> Self {
        let (of, root) = (operands.len(), rng.below(RANKS));
        let kind = match rng.below(5) {
            0 => Kind::Allreduce,
            1..=2 => Kind::Allgather,
            3 => Kind::Broadcast { root },
            _ => Kind::Reduce { root },
        };
        let output = 1 + rng.below(of - 1);
        let input = operands[(output + 1 + rng.below(of - 1)) % of];
        let output = if matches!(kind, Kind::Allgather) { WIDE } else { operands[output] };
        let is_nccl = rng.below(2) == 0;
        let may_push = !is_nccl && matches!(kind, Kind::Allreduce | Kind::Allgather);
        Self { is_nccl, pushes: may_push && rng.below(2) == 0, kind, input, output }
    }

    /// Returns the statement that posts it.
    pub(super) fn text(self, number: usize) -> String {
        let kind = match self.kind {
            Kind::Allreduce if self.is_nccl => "Allreduce, team=(0 1 2), red_op=SUM".to_owned(),
            Kind::Allreduce if self.pushes => {
                "Allreduce, team=(0 1 2), red_op=SUM, algo=one-shot-ll".to_owned()
            }
            Kind::Allreduce => "Allreduce, team=(0 1 2), red_op=SUM, algo=one-shot".to_owned(),
            Kind::Allgather if self.pushes => "Allgather, team=(0 1 2), algo=one-shot-ll".to_owned(),
            Kind::Allgather => "Allgather, team=(0 1 2)".to_owned(),
            Kind::Broadcast { root } => format!("Broadcast, team=(0 1 2), root={root}"),
            Kind::Reduce { root } => format!("Reduce, team=(0 1 2), root={root}, red_op=SUM"),
        };
        let backend = if self.is_nccl { "NCCL" } else { "CUDA" };
        let (input, output) = (name(self.input), name(self.output));
        format!("Communication {number} (type={kind}, input={input}, output={output}, backend={backend})")
    }

    /// Returns whether it reads or writes a tensor.
    pub(super) fn uses(self, tensor: usize) -> bool {
        [self.input, self.output].contains(&tensor)
    }

    /// Returns whether a member of a collective of the CUDA backend waits for the others, and then accesses their memory or its slots.
    pub(super) fn has_access(self, member: usize) -> bool {
        match self.kind {
            Kind::Allreduce | Kind::Allgather => true,
            Kind::Broadcast { root } | Kind::Reduce { root } => member == root,
        }
    }

    /// Returns the members whose data a member of a collective of NCCL receives.
    pub(super) fn sources(self, member: usize) -> Vec<usize> {
        let all = (0..RANKS).collect();
        match self.kind {
            Kind::Allreduce | Kind::Allgather => all,
            Kind::Reduce { root } if member == root => all,
            Kind::Reduce { .. } => Vec::new(),
            Kind::Broadcast { root } => vec![root],
        }
    }

    /// Returns what a member accesses, besides slots.
    pub(super) fn accesses(self, member: usize) -> Vec<MemberAccess> {
        let read = |rank: usize| MemberAccess { rank, tensor: self.input, writes: false };
        let write = |rank: usize, tensor: usize| MemberAccess { rank, tensor, writes: true };
        let writes_all = parts(self.output).map(|it| write(member, it));
        match (self.is_nccl || self.pushes, self.kind) {
            (true, Kind::Allreduce | Kind::Allgather) => writes_all.chain([read(member)]).collect(),
            (true, Kind::Broadcast { root }) => {
                writes_all.chain((member == root).then(|| read(member))).collect()
            }
            (true, Kind::Reduce { root }) => {
                writes_all.filter(|_| member == root).chain([read(member)]).collect()
            }
            (false, _) if !self.has_access(member) => Vec::new(),
            (false, Kind::Allreduce | Kind::Reduce { .. }) => {
                (0..RANKS).map(read).chain([write(member, self.output)]).collect()
            }
            (false, Kind::Broadcast { .. }) => {
                (0..RANKS).map(|it| write(it, self.output)).chain([read(member)]).collect()
            }
            (false, Kind::Allgather) => {
                (0..RANKS).map(|it| write(it, self.output + member)).chain([read(member)]).collect()
            }
        }
    }
}
