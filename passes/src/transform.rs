//! The passes, one file each. Helpers of a pass are in a directory of the same name. A pass may call passes
//! that it builds on.

pub(crate) mod allocate_and_deallocate;
pub(crate) mod assign_streams;
pub(crate) mod canonicalize;
pub(crate) mod chunk;
pub(crate) mod coalesce_reductions;
pub(crate) mod common_subexpression;
pub(crate) mod decompose_resharding;
pub(crate) mod double_buffer;
pub(crate) mod fuse_collective_epilogue;
pub(crate) mod hierarchical_collectives;
pub(crate) mod hoist_share_mem_handles;
pub(crate) mod inline_definitions;
pub(crate) mod lower_to_communication;
pub(crate) mod order_communicators;
pub(crate) mod overlap;
pub(crate) mod propagate_shardings;
pub(crate) mod remove_dead_code;
pub(crate) mod remove_redundant_sync;
pub(crate) mod renumber;
pub(crate) mod schedule_communication;
pub(crate) mod select_algorithms;
pub(crate) mod specialize_rank;
pub(crate) mod stream_parallel;
pub(crate) mod swizzle_stream;
pub(crate) mod unroll;
pub(crate) mod use_local_shard_in_place;
