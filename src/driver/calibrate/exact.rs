//! The measurements of what given programs do: products and attentions with their extents, and communications of their sizes.
//!
//! The algorithm that cuBLASLt chooses is no smooth function of the extents, so the time of a product can be far from those of its
//! neighbours. A program is better estimated from its own products.

use grammar::{Algorithm, CommunicationType, DType, P2pProtocol};
use hir_plan::{
    PacketFormat, World,
    timeline::work::{KernelProtocol, KernelTransfer, Work, WorkClass, WorkKind, work_of},
};

use super::{
    entries::{Entry, from_memory},
    first_work,
    programs::{Call, repeated_call},
};

/// Returns the work of the first rank that tables describe, each once, in the order of the program.
pub fn works(world: &World) -> Vec<Work> {
    let mut found: Vec<Work> = Vec::new();
    let all =
        world.first().into_iter().flat_map(|plan| (0..plan.code.len()).filter_map(|at| work_of(plan, at)));
    for work in all {
        if !found.contains(&work) {
            found.push(work);
        }
    }
    found
}

/// Returns the kind of work and its extents, for messages.
pub fn name_of(work: &Work) -> String {
    let extents: Vec<String> = work.extents.iter().map(f64::to_string).collect();
    format!("{} {}", work.kind, extents.join(" x "))
}

/// Returns the measurements of work: none if it is smooth in its extents, as elementwise operations are. A call has the element
/// type bf16.
pub fn measurements(work: &Work, ranks: usize) -> Vec<Entry> {
    let extents: Vec<usize> = work.extents.iter().map(|it| *it as usize).collect();
    match (work.kind, extents.as_slice()) {
        (WorkKind::Product(DType::BFloat), [rows, columns, depth]) => {
            let call = Call::Product([*rows, *columns, *depth]);
            let warm = Entry::of_table(call, WorkClass::Product, ranks);
            std::iter::once(warm).chain(from_memory(call, ranks)).collect()
        }
        (WorkKind::Attention { dtype: DType::BFloat, width: 128, is_causal }, [heads, queries, keys])
            if queries == keys =>
        {
            vec![Entry::of_table(Call::Attention([*heads, *queries], is_causal), WorkClass::Attention, ranks)]
        }
        (kind, [bytes]) => {
            let call = communication(kind, *bytes, ranks);
            call.map(|call| Entry::of_table(call, kind.class(), ranks)).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the call whose work is of this kind and has about as many bytes; `None` if no call is.
fn communication(kind: WorkKind, bytes: usize, ranks: usize) -> Option<Call> {
    let (collective, algorithm) = match kind {
        WorkKind::Get | WorkKind::Put => (None, Algorithm::Nccl),
        WorkKind::Kernel(protocol, transfer) => {
            let [one_shot, two_shot] = match protocol {
                KernelProtocol::Memory => [Algorithm::OneShot, Algorithm::TwoShot],
                KernelProtocol::Packets(PacketFormat::Ll) => [Algorithm::OneShotLl, Algorithm::TwoShotLl],
                KernelProtocol::Packets(PacketFormat::Ll128) => return None,
            };
            match transfer {
                KernelTransfer::Reduce => (Some(CommunicationType::Allreduce), one_shot),
                KernelTransfer::ReduceCopy => (Some(CommunicationType::Allreduce), two_shot),
                KernelTransfer::Copy => (Some(CommunicationType::Allgather), one_shot),
            }
        }
        WorkKind::Nccl(kind) => (Some(kind), Algorithm::Nccl),
        WorkKind::Product(_)
        | WorkKind::Attention { .. }
        | WorkKind::Elementwise
        | WorkKind::Reduction
        | WorkKind::Copy => return None,
    };
    let protocol = if kind == WorkKind::Get { P2pProtocol::Get } else { P2pProtocol::Put };
    let call = |elements: usize| match collective {
        Some(collective) => Call::Collective(collective, algorithm, elements),
        None => Call::PeerCopy(elements, protocol),
    };
    // Bytes are in proportion to the number of elements, which the ranks and the packets of a kernel have to divide.
    let sample = 64 * ranks;
    let of_sample = first_work(&repeated_call(call(sample), 1, ranks), |it| it == kind, ranks)?;
    let elements = sample as f64 * bytes as f64 / of_sample.extents.first()?;
    Some(call((elements as usize).next_multiple_of(sample)))
}

#[cfg(test)]
mod tests {
    use hir_plan::timeline::work::NCCL_TABLES;

    use super::*;

    #[test]
    fn communications_have_the_bytes_that_are_wanted() {
        let kernels = [KernelProtocol::Memory, KernelProtocol::Packets(PacketFormat::Ll)].map(|protocol| {
            [KernelTransfer::Reduce, KernelTransfer::ReduceCopy, KernelTransfer::Copy]
                .map(|transfer| WorkKind::Kernel(protocol, transfer))
        });
        let all = [WorkKind::Get, WorkKind::Put].into_iter().chain(kernels.into_iter().flatten());
        for kind in all.chain(NCCL_TABLES.map(WorkKind::Nccl)) {
            let work = Work { kind, extents: vec![3_072_000.0] };
            let entries = measurements(&work, 2);
            let found = entries.first().and_then(|it| first_work(&it.program, |it| it == kind, 2));
            assert_eq!(found, Some(work));
        }
    }
}
