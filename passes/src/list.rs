//! Every pass and every pipeline, by name.

use crate::pass::{Pass, Pipeline};

/// All passes, in the order of `--list-passes`: lowering, optimisation, text.
pub static PASSES: &[Pass] = &[
    crate::transform::decompose_resharding::PASS,
    crate::transform::chunk::PASS,
    crate::transform::swizzle_stream::PASS,
    crate::transform::stream_parallel::PASS,
    crate::transform::overlap::PASS,
    crate::transform::lower_to_communication::PASS,
    crate::transform::assign_streams::PASS,
    crate::transform::allocate_and_deallocate::PASS,
    crate::transform::canonicalize::PASS,
    crate::transform::remove_dead_code::PASS,
    crate::transform::hoist_share_mem_handles::PASS,
    crate::transform::remove_redundant_sync::PASS,
    crate::transform::sink_waits::PASS,
    crate::transform::defer_waits::PASS,
    crate::transform::hoist_communication::PASS,
    crate::transform::use_local_shard_in_place::PASS,
    crate::transform::double_buffer::PASS,
    crate::transform::common_subexpression::PASS,
    crate::transform::merge_stream_loops::PASS,
    crate::transform::unroll::PASS,
    crate::transform::fuse_epilogue::PASS,
    crate::transform::select_allreduce::PASS,
    crate::transform::specialize_rank::PASS,
    crate::transform::inline_definitions::PASS,
    crate::transform::renumber::PASS,
];

/// All pipelines.
///
/// Their order matters: operators are made local before loops are made of them, since a loop needs to know what is
/// exchanged; what is left of resharding becomes communication inside the loops. Streams come next, while it is plain that
/// iterations do not share storage; then the own shard is read in place and handles are exchanged once, before the loop.
/// Storage comes late, so that names are dropped where they are used last. What is redundant shows last.
pub static PIPELINES: &[Pipeline] = &[
    Pipeline {
        name: "@default",
        description: "what every program can do with",
        // Folded predicates and dropped branches leave results that nobody reads any more, hence the order.
        passes: "canonicalize,remove-dead-code",
    },
    Pipeline {
        name: "@lower",
        description: "communications in place of resharding operators, without overlap",
        passes: "decompose-resharding,lower-to-communication,allocate-and-deallocate,canonicalize",
    },
    Pipeline {
        name: "@overlap",
        description: "all-gather, reduce-scatter or all-reduce with linear or matmul: CUDA rings, chunks of rows",
        passes: "decompose-resharding,overlap{allgather=p2p-ring,reduce-scatter=p2p-ring,backend=cuda},\
                 lower-to-communication,assign-streams{count=numberOfStreams,dependent=keep},\
                 use-local-shard-in-place,hoist-share-mem-handles,allocate-and-deallocate,\
                 remove-redundant-sync,canonicalize,remove-dead-code",
    },
    Pipeline {
        name: "@overlap-allgather-linear",
        description: "all-gather + linear or matmul: a ring of CUDA gets, the own shard read in place",
        passes: "decompose-resharding,overlap{allgather=p2p-ring,backend=cuda},\
                 lower-to-communication,assign-streams{count=numberOfStreams,dependent=keep},\
                 use-local-shard-in-place,hoist-share-mem-handles,allocate-and-deallocate,\
                 remove-redundant-sync,canonicalize,remove-dead-code",
    },
    Pipeline {
        name: "@overlap-allgather-linear-put",
        description: "the same, as a ring of CUDA puts",
        passes: "decompose-resharding,overlap{allgather=p2p-ring,backend=cuda,protocol=put},\
                 lower-to-communication,assign-streams{count=numberOfStreams,dependent=keep},\
                 use-local-shard-in-place,hoist-share-mem-handles,allocate-and-deallocate,\
                 remove-redundant-sync,canonicalize,remove-dead-code",
    },
    Pipeline {
        name: "@overlap-allgather-linear-broadcast",
        description: "the same, a broadcast a shard",
        passes: "decompose-resharding,overlap{allgather=broadcast},lower-to-communication,\
                 assign-streams{count=numberOfStreams,dependent=keep},allocate-and-deallocate,\
                 remove-redundant-sync,canonicalize,remove-dead-code",
    },
    Pipeline {
        name: "@overlap-allgather-linear-permute",
        description: "the same, as collective permutes of rotated chunks",
        passes: "decompose-resharding,overlap{swizzle,allgather=collective-permute,style=shard},\
                 lower-to-communication,assign-streams{dependent=keep},allocate-and-deallocate,\
                 remove-redundant-sync,canonicalize,remove-dead-code",
    },
    Pipeline {
        name: "@overlap-linear-allreduce",
        description: "row-parallel linear + all-reduce, in chunks of rows",
        passes: "decompose-resharding,overlap{style=shard},lower-to-communication,\
                 assign-streams{dependent=keep},allocate-and-deallocate,\
                 remove-redundant-sync,canonicalize,remove-dead-code",
    },
    Pipeline {
        name: "@overlap-matmul-reduce-scatter",
        description: "matmul + reduce-scatter: partial sums go around a ring, and are added behind it",
        passes: "decompose-resharding,overlap{reduce-scatter=p2p-ring,backend=cuda},\
                 lower-to-communication,assign-streams{count=numberOfStreams,dependent=keep},\
                 hoist-share-mem-handles,allocate-and-deallocate,\
                 remove-redundant-sync,canonicalize,remove-dead-code",
    },
    Pipeline {
        name: "@overlap-pipeline-stages",
        description: "micro-batches through stages on several meshes: a stage computes one while it sends the last",
        passes: "decompose-resharding,overlap{transfer=chunks,style=shard},lower-to-communication,\
                 assign-streams{dependent=keep},allocate-and-deallocate,sink-waits,\
                 remove-redundant-sync,canonicalize,remove-dead-code",
    },
];
