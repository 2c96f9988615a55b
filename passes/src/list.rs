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
pub static PIPELINES: &[Pipeline] = &[Pipeline {
    name: "@default",
    description: "what every program can do with",
    // Folded predicates and dropped branches leave results that nobody reads any more, hence the order.
    passes: "canonicalize,remove-dead-code",
}];
