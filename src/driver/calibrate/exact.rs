//! The measurements of what given programs do: products and attentions with their extents, and communications of their sizes.
//!
//! The algorithm that cuBLASLt chooses is no smooth function of the extents, so the time of a product can be far from those of its
//! neighbours. A program is better estimated from its own products.

use hir_plan::{
    World,
    timeline::work::{Work, work_of},
};

use super::{
    entries::{Entry, Place, from_memory},
    programs::{Call, Collective, PeerProtocol, repeated_call},
    work_of_table,
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
    let entry = |call: Call, table: &'static str, exactly: bool| {
        Entry::of_table(call, table, Place { from_memory: false, exactly }, ranks)
    };
    let extents: Vec<usize> = work.extents.iter().map(|it| *it as usize).collect();
    match (work.kind.as_str(), extents.as_slice()) {
        ("product bf16", [rows, columns, depth]) => {
            let call = Call::Product([*rows, *columns, *depth]);
            [entry(call, "product", true)].into_iter().chain(from_memory(call, ranks, true)).collect()
        }
        ("sdpa bf16 128", [heads, queries, keys]) if queries == keys => {
            vec![entry(Call::Attention([*heads, *queries]), "sdpa", true)]
        }
        (kind, [bytes]) => {
            let table = ["get", "put", "kernel", "nccl"].into_iter().find(|it| kind.starts_with(it));
            let both = table.zip(communication(kind, *bytes, ranks));
            both.map(|(table, call)| entry(call, table, false)).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the call whose work is of this kind and has about as many bytes; `None` if no call is.
fn communication(kind: &str, bytes: usize, ranks: usize) -> Option<Call> {
    let call = |elements: usize| {
        Some(match kind {
            "get" => Call::PeerCopy(elements, PeerProtocol::Get),
            "put" => Call::PeerCopy(elements, PeerProtocol::Put),
            "kernel memory reduce" => Call::Collective(Collective::Allreduce, "one-shot", elements),
            "kernel memory reduce copy" => Call::Collective(Collective::Allreduce, "two-shot", elements),
            "kernel memory copy" => Call::Collective(Collective::Allgather, "one-shot", elements),
            "kernel ll reduce" => Call::Collective(Collective::Allreduce, "one-shot-ll", elements),
            "kernel ll reduce copy" => Call::Collective(Collective::Allreduce, "two-shot-ll", elements),
            "kernel ll copy" => Call::Collective(Collective::Allgather, "one-shot-ll", elements),
            "nccl allreduce" => Call::Collective(Collective::Allreduce, "nccl", elements),
            "nccl allgather" => Call::Collective(Collective::Allgather, "nccl", elements),
            "nccl reduce-scatter" => Call::Collective(Collective::ReduceScatter, "nccl", elements),
            "nccl transfer" => Call::Collective(Collective::AllToAll, "nccl", elements),
            _ => return None,
        })
    };
    // Bytes are in proportion to the number of elements, which the ranks and the packets of a kernel have to divide.
    let sample = 64 * ranks;
    let of_sample = work_of_table(&repeated_call(call(sample)?, 1, ranks), kind, ranks)?;
    let elements = sample as f64 * bytes as f64 / of_sample.extents.first()?;
    call((elements as usize).next_multiple_of(sample))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn communications_have_the_bytes_that_are_wanted() {
        for kind in [
            "get",
            "put",
            "kernel memory reduce",
            "kernel memory reduce copy",
            "kernel memory copy",
            "kernel ll reduce",
            "kernel ll reduce copy",
            "kernel ll copy",
            "nccl allreduce",
            "nccl allgather",
            "nccl reduce-scatter",
            "nccl transfer",
        ] {
            let work = Work { kind: kind.to_owned(), extents: vec![3_072_000.0] };
            let entries = measurements(&work, 2);
            let found = entries.first().and_then(|it| work_of_table(&it.text, kind, 2));
            assert_eq!(found, Some(work));
        }
    }
}
