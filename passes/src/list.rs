//! Every pass and every pipeline, by name.

use crate::pass::{Pass, Pipeline};

/// All passes, in the order of `--list-passes`: lowering, optimisation, text.
pub static PASSES: &[Pass] = &[
    crate::decompose_resharding::PASS,
    crate::chunk::PASS,
    crate::swizzle_stream::PASS,
    crate::stream_parallel::PASS,
    crate::lower_to_communication::PASS,
    crate::assign_streams::PASS,
    crate::allocate_and_deallocate::PASS,
    crate::canonicalize::PASS,
    crate::remove_dead_code::PASS,
    crate::hoist_share_mem_handles::PASS,
    crate::remove_redundant_sync::PASS,
    crate::sink_waits::PASS,
    crate::defer_waits::PASS,
    crate::hoist_communication::PASS,
    crate::use_local_shard_in_place::PASS,
    crate::double_buffer::PASS,
    crate::common_subexpression::PASS,
    crate::merge_stream_loops::PASS,
    crate::unroll::PASS,
    crate::fuse_epilogue::PASS,
    crate::select_allreduce::PASS,
    crate::specialize_rank::PASS,
    crate::inline_definitions::PASS,
    crate::renumber::PASS,
];

/// All pipelines.
///
/// Their order matters: operators are made local before loops are made of them, since a loop needs to know what is
/// exchanged; what is left of resharding becomes communication inside the loops. The own shard is read in place, and
/// handles are exchanged once, while the loop is still as `stream-parallel` wrote it. Storage comes before streams:
/// `assign-streams` asks whether iterations share any. What is redundant shows last.
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
        name: "@overlap-allgather-linear",
        description: "all-gather + linear or matmul: a ring of CUDA gets, the own shard read in place",
        passes: "decompose-resharding,chunk,stream-parallel{allgather=p2p-ring,backend=cuda},\
                 lower-to-communication,use-local-shard-in-place,hoist-share-mem-handles,\
                 allocate-and-deallocate,assign-streams{count=numberOfStreams,dependent=keep},\
                 remove-redundant-sync,canonicalize,remove-dead-code",
    },
    Pipeline {
        name: "@overlap-allgather-linear-put",
        description: "the same, as a ring of CUDA puts",
        passes: "decompose-resharding,chunk,stream-parallel{allgather=p2p-ring,backend=cuda,protocol=put},\
                 lower-to-communication,use-local-shard-in-place,hoist-share-mem-handles,\
                 allocate-and-deallocate,assign-streams{count=numberOfStreams,dependent=keep},\
                 remove-redundant-sync,canonicalize,remove-dead-code",
    },
    Pipeline {
        name: "@overlap-allgather-linear-broadcast",
        description: "the same, a broadcast a shard",
        passes: "decompose-resharding,chunk,stream-parallel{allgather=broadcast},lower-to-communication,\
                 allocate-and-deallocate,assign-streams{count=numberOfStreams,dependent=keep},\
                 remove-redundant-sync,canonicalize,remove-dead-code",
    },
    Pipeline {
        name: "@overlap-allgather-linear-permute",
        description: "the same, as collective permutes of rotated chunks",
        passes: "decompose-resharding,chunk,swizzle-stream,\
                 stream-parallel{allgather=collective-permute,style=shard},lower-to-communication,\
                 allocate-and-deallocate,assign-streams{dependent=keep},\
                 remove-redundant-sync,canonicalize,remove-dead-code",
    },
    Pipeline {
        name: "@overlap-linear-allreduce",
        description: "row-parallel linear + all-reduce, in chunks of rows",
        passes: "decompose-resharding,chunk,stream-parallel{style=shard},lower-to-communication,\
                 allocate-and-deallocate,assign-streams{dependent=keep},\
                 remove-redundant-sync,canonicalize,remove-dead-code",
    },
    Pipeline {
        name: "@overlap-matmul-reduce-scatter",
        description: "matmul + reduce-scatter: partial sums go around a ring, and are added behind it",
        passes: "decompose-resharding,chunk,stream-parallel{reduce-scatter=p2p-ring,backend=cuda},\
                 lower-to-communication,hoist-share-mem-handles,allocate-and-deallocate,\
                 assign-streams{count=numberOfStreams,dependent=keep},\
                 remove-redundant-sync,canonicalize,remove-dead-code",
    },
];
