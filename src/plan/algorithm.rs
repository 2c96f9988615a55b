//! Which algorithm a collective gets where its statement names none. Members have to get the same.

use grammar::{
    allreduce_table::{AllreduceTable, MEASURED},
    words::Algorithm,
};

use super::{Backend, CollectiveKind};

/// The algorithm of a collective whose statement may name one: `None` for a library, and for the CUDA backend's own way. `bytes` are
/// those that a member gives.
pub(super) fn chosen_algorithm(
    backend: Option<Backend>,
    kind: CollectiveKind,
    algo: Option<Algorithm>,
    (members, bytes): (usize, usize),
) -> Option<Algorithm> {
    match (backend, algo, kind) {
        (Some(Backend::Cuda), None, CollectiveKind::Allreduce { .. }) => {
            Some(default_allreduce(members, bytes))
        }
        (_, algo, _) => algo,
    }
}

/// The all-reduce of the CUDA backend where the program names none: of a team that was not measured, as for the next larger.
fn default_allreduce(members: usize, bytes: usize) -> Algorithm {
    let team = members.next_power_of_two().clamp(2, 8);
    let measured = AllreduceTable::parse(MEASURED).ok();
    let fastest = measured.and_then(|it| it.choose(team, bytes as u64, |it| it != Algorithm::Nccl));
    fastest.unwrap_or(Algorithm::TwoShot)
}
