//! Analyses of programs: name uses, bindings, memory effects, shardings and loop-carried dependences.
//!
//! Invariant: an analysis does not change the program and does not call code that does.

pub(crate) mod alias_analysis;
pub(crate) mod bindings;
pub(crate) mod blocks;
pub(crate) mod coalescing;
pub(crate) mod dependences;
pub(crate) mod dim_equivalence;
pub(crate) mod dim_map;
pub(crate) mod loop_body;
pub(crate) mod loop_carried;
pub(crate) mod maybe_bound;
pub(crate) mod memory_effects;
pub(crate) mod name_uses;
pub(crate) mod numbering;
pub(crate) mod posted_work;
pub(crate) mod propagation;
pub(crate) mod reshard;
pub(crate) mod sharding;
pub(crate) mod stmt_path;
pub(crate) mod wait_order;
pub(crate) mod written_views;
