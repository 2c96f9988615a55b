//! Passes over Host IR, the list of them, and the driver that runs and checks them.
//!
//! A pass is plain data and a function from program to program (`pass`); `list` holds all of them and the named
//! pipelines, `pipeline` reads `a,b{option=value},@name`, and `driver` runs the result, verifying after every pass;
//! `bisect` finds the pass that is to blame. The rules that every pass keeps:
//!
//! * the program means the same afterwards, on every rank and under every schedule that its synchronisation allows;
//! * a pass has no state but its arguments, so running it twice on equal programs gives equal programs;
//! * analyses are functions that return a value and change nothing.
//!
//! Invariant: this crate knows no plan and no device, and prints nothing: reports go to the caller.

pub mod pass;

pub mod list;
pub mod pipeline;

pub mod bisect;
pub mod driver;
pub mod fault;
pub mod oracle;

mod allocate_and_deallocate;
mod assign_streams;
mod canonicalize;
mod chunk;
mod common_subexpression;
mod decompose_resharding;
mod defer_waits;
mod double_buffer;
mod fuse_epilogue;
mod hoist_communication;
mod hoist_share_mem_handles;
mod inline_definitions;
mod lower_to_communication;
mod merge_stream_loops;
mod overlap;
mod remove_dead_code;
mod remove_redundant_sync;
mod renumber;
mod select_allreduce;
mod sink_waits;
mod specialize_rank;
mod stream_parallel;
mod swizzle_stream;
mod unroll;
mod use_local_shard_in_place;

mod accesses;
mod appearance;
mod bindings;
mod blocks;
mod collective;
mod component;
mod create;
mod dependences;
mod dims;
mod fold;
mod iterations;
mod loop_body;
mod mesh;
mod names;
mod pack;
mod places;
mod propagation;
mod reshard;
mod scalars;
mod sharding;
mod sharing;
#[allow(dead_code, reason = "the passes that use it come with it")]
mod substitute;

#[cfg(test)]
mod tests;

pub use bisect::{Culprit, bisect};
pub use driver::{Event, Settings, Verify, run};
pub use fault::{Failure, Fault};
pub use list::{PASSES, PIPELINES};
pub use oracle::{Meaning, SemanticOracle};
pub use pass::{Arguments, Change, OptionKind, OptionSpec, Pass, Pipeline, Remarks};
pub use pipeline::{PassCall, parse};
