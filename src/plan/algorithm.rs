//! Selects the algorithm of an Allreduce of the CUDA backend whose statement has no `algo=`. All members must
//! select the same algorithm. The table in `transport` lists who selects the others.

use grammar::{
    Algorithm, CommunicationType,
    algorithm_table::{AlgorithmTable, DEFAULT_RULES},
};

use super::{Backend, CollectiveKind};

/// Returns the algorithm of a collective, given the `algo=` of its statement. `None` stands for the library's
/// own algorithm, or for the CUDA backend's default transport. `bytes` is the size of one member's input.
pub(super) fn chosen_algorithm(
    backend: Option<Backend>,
    kind: CollectiveKind,
    algo: Option<Algorithm>,
    (members, bytes): (usize, usize),
) -> Option<Algorithm> {
    match (backend, algo, kind.of) {
        (Some(Backend::Cuda), None, CommunicationType::Allreduce) => Some(default_allreduce(members, bytes)),
        (_, algo, _) => algo,
    }
}

/// Returns the CUDA backend's all-reduce algorithm for a statement without `algo=`. The table has
/// rules for 2, 4 (measured) and 8 members (extrapolated); other team sizes use the next larger of these, and teams of more than
/// 8 use the rules for 8.
fn default_allreduce(members: usize, bytes: usize) -> Algorithm {
    let team = members.next_power_of_two().clamp(2, 8);
    let table = AlgorithmTable::parse(DEFAULT_RULES).ok();
    let kind = CommunicationType::Allreduce;
    let fastest = table.and_then(|it| it.choose(kind, (team, bytes as u64), |it| it != Algorithm::Nccl));
    fastest.unwrap_or(Algorithm::TwoShot)
}
