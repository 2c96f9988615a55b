//! Lists every pass and every pipeline by name.

use crate::{
    pass::{Pass, Pipeline},
    rewrite::communicator_order::PassOrder,
};

/// All passes in the order of `--list-passes`: lowering, optimization, text.
pub static PASSES: &[Pass] = &[
    crate::transform::propagate_shardings::PASS,
    crate::transform::decompose_resharding::PASS,
    crate::transform::chunk::PASS,
    crate::transform::swizzle_stream::PASS,
    crate::transform::stream_parallel::PASS,
    crate::transform::overlap::PASS,
    crate::transform::coalesce_reductions::PASS,
    crate::transform::lower_to_communication::PASS,
    crate::transform::hierarchical_collectives::PASS,
    crate::transform::assign_streams::PASS,
    crate::transform::allocate_and_deallocate::PASS,
    crate::transform::canonicalize::PASS,
    crate::transform::remove_dead_code::PASS,
    crate::transform::hoist_share_mem_handles::PASS,
    crate::transform::remove_redundant_sync::PASS,
    crate::transform::schedule_communication::PASS,
    crate::transform::order_communicators::PASS,
    crate::transform::use_local_shard_in_place::PASS,
    crate::transform::double_buffer::PASS,
    crate::transform::common_subexpression::PASS,
    crate::transform::unroll::PASS,
    crate::transform::fuse_collective_epilogue::PASS,
    crate::transform::select_algorithms::PASS,
    crate::transform::specialize_rank::PASS,
    crate::transform::inline_definitions::PASS,
    crate::transform::renumber::PASS,
];

/// Returns what a pass does with the order of communicators.
pub(crate) fn order_of(pass: &Pass) -> PassOrder {
    match pass.name {
        name if name == crate::transform::order_communicators::PASS.name => PassOrder::Makes,
        name if name == crate::transform::schedule_communication::PASS.name => PassOrder::Changes,
        _ => PassOrder::Keeps,
    }
}

/// Former names of passes, with the call that each of them stands for.
pub const FORMER_NAMES: &[(&str, &str)] = &[
    ("defer-waits", "schedule-communication{posts=keep,waits=sends}"),
    ("hoist-communication", "schedule-communication{waits=keep}"),
    ("sink-waits", "schedule-communication{posts=keep}"),
];

/// All pipelines.
///
/// The order of passes matters. `propagate-shardings` comes first, because the other passes need the
/// sharding of every tensor. `decompose-resharding` makes operators local, because `overlap` must know
/// what is exchanged before it makes loops. `lower-to-communication` then turns the remaining resharding
/// inside the loops into communications. Before `lower-to-communication`, `coalesce-reductions` joins the
/// small reductions that are in no loop; behind it, `hierarchical-collectives` divides those of several hosts, if it is told
/// where the hosts are. Communications that are in no loop overlap with what stands around
/// them, so they are scheduled before allocations are between the statements;
/// `order-communicators` then adds the order that NCCL asks for. Streams are assigned next, while
/// it is evident that iterations do not share storage. Then the rank's own shard is read in place, and handles are exchanged once
/// before the loop. Allocation comes late, so that names are deallocated after their last use. Redundant
/// synchronization can only be removed at the end.
pub static PIPELINES: &[Pipeline] = &[
    Pipeline {
        name: "@default",
        description: "cleanup that is safe for any program",
        // Folded predicates, removed branches and merged values leave dead results, so dead code is removed afterwards.
        passes: "canonicalize,common-subexpression,remove-dead-code",
    },
    Pipeline {
        name: "@normal-form",
        description: "the same text for programs that differ only in numbers and scalar definitions",
        passes: "canonicalize,inline-definitions,renumber",
    },
    Pipeline {
        name: "@one-rank",
        description: "the statements that one rank executes, without loops and branches: specialize-rank.rank=2",
        passes: "unroll,specialize-rank",
    },
    Pipeline {
        name: "@lower",
        description: "lower resharding operators to communications, without overlap",
        passes: "propagate-shardings,decompose-resharding,coalesce-reductions,lower-to-communication,\
                 hierarchical-collectives,order-communicators,allocate-and-deallocate,canonicalize",
    },
    Pipeline {
        name: "@overlap",
        description: "overlap all-gather, reduce-scatter or all-reduce with linear or matmul: CUDA rings, chunks of rows",
        passes: "propagate-shardings,decompose-resharding,\
                 overlap{allgather=p2p-ring,reduce-scatter=p2p-ring,backend=cuda},\
                 coalesce-reductions,lower-to-communication,hierarchical-collectives,schedule-communication,order-communicators,\
                 assign-streams{count=numberOfStreams,communications=auto,dependent=keep},\
                 use-local-shard-in-place,hoist-share-mem-handles,allocate-and-deallocate,\
                 remove-redundant-sync,canonicalize,remove-dead-code",
    },
    Pipeline {
        name: "@overlap-allgather-linear",
        description: "all-gather + linear or matmul: a ring of CUDA gets; the rank's own shard is read in place",
        passes: "propagate-shardings,decompose-resharding,overlap{allgather=p2p-ring,backend=cuda},\
                 lower-to-communication,schedule-communication,order-communicators,assign-streams{count=numberOfStreams,dependent=keep},\
                 use-local-shard-in-place,hoist-share-mem-handles,allocate-and-deallocate,\
                 remove-redundant-sync,canonicalize,remove-dead-code",
    },
    Pipeline {
        name: "@overlap-allgather-linear-put",
        description: "all-gather + linear or matmul: a ring of CUDA puts",
        passes: "propagate-shardings,decompose-resharding,overlap{allgather=p2p-ring,backend=cuda,protocol=put},\
                 lower-to-communication,schedule-communication,order-communicators,assign-streams{count=numberOfStreams,dependent=keep},\
                 use-local-shard-in-place,hoist-share-mem-handles,allocate-and-deallocate,\
                 remove-redundant-sync,canonicalize,remove-dead-code",
    },
    Pipeline {
        name: "@overlap-allgather-linear-broadcast",
        description: "all-gather + linear or matmul: one broadcast per shard",
        passes: "propagate-shardings,decompose-resharding,overlap{allgather=broadcast},lower-to-communication,schedule-communication,order-communicators,\
                 assign-streams{count=numberOfStreams,dependent=keep},allocate-and-deallocate,\
                 remove-redundant-sync,canonicalize,remove-dead-code",
    },
    Pipeline {
        name: "@overlap-allgather-linear-permute",
        description: "all-gather + linear or matmul: collective permutes of rotated chunks",
        passes: "propagate-shardings,decompose-resharding,overlap{swizzle,allgather=collective-permute,style=shard},\
                 lower-to-communication,schedule-communication,order-communicators,assign-streams{dependent=keep},allocate-and-deallocate,\
                 remove-redundant-sync,canonicalize,remove-dead-code",
    },
    Pipeline {
        name: "@overlap-linear-allreduce",
        description: "row-parallel linear + all-reduce, in chunks of rows",
        passes: "propagate-shardings,decompose-resharding,overlap{style=shard,allocate=before},\
                 lower-to-communication,schedule-communication,order-communicators,\
                 assign-streams{count=auto,communications=auto,dependent=keep},\
                 allocate-and-deallocate,remove-redundant-sync,canonicalize,remove-dead-code",
    },
    Pipeline {
        name: "@overlap-linear-allreduce-copy",
        description: "row-parallel linear + all-reduce, in chunks of rows: copy engines move the partial sums",
        passes: "propagate-shardings,decompose-resharding,overlap{style=shard,allocate=before,count=8},\
                 lower-to-communication,schedule-communication,select-algorithms{table=Allreduce/*=two-shot-copy},order-communicators,\
                 assign-streams{count=auto,communications=auto,dependent=keep},\
                 allocate-and-deallocate,remove-redundant-sync,canonicalize,remove-dead-code",
    },
    Pipeline {
        name: "@overlap-linear-allreduce-decreasing",
        description: "row-parallel linear + all-reduce, in chunks of 8, 5, 2 and 1 sixteenths of the rows: copy engines move the partial sums, and a kernel those of chunks up to 8 MiB",
        passes: "propagate-shardings,decompose-resharding,\
                 overlap{style=shard,allocate=before,ratio=8,5,2,1},lower-to-communication,schedule-communication,\
                 select-algorithms{table=Allreduce/*:8M=two-shot;Allreduce/*=two-shot-copy},order-communicators,\
                 assign-streams{count=auto,communications=auto,dependent=keep},\
                 allocate-and-deallocate,remove-redundant-sync,canonicalize,remove-dead-code",
    },
    Pipeline {
        name: "@overlap-matmul-reduce-scatter",
        description: "matmul + reduce-scatter: each rank sends partial sums to their owners, and adds those that it receives after the loop",
        passes: "propagate-shardings,decompose-resharding,overlap{reduce-scatter=p2p-ring,backend=cuda},\
                 lower-to-communication,schedule-communication,order-communicators,\
                 assign-streams{count=numberOfStreams,communications=auto,dependent=keep},\
                 use-local-shard-in-place,hoist-share-mem-handles,allocate-and-deallocate,\
                 remove-redundant-sync,canonicalize,remove-dead-code",
    },
    Pipeline {
        name: "@overlap-pipeline-stages",
        description: "micro-batches through stages on several meshes: a stage computes one while it sends the previous one",
        passes: "propagate-shardings,decompose-resharding,overlap{transfer=chunks,style=shard},lower-to-communication,schedule-communication,order-communicators,\
                 assign-streams{dependent=keep},allocate-and-deallocate,\
                 remove-redundant-sync,canonicalize,remove-dead-code",
    },
];
