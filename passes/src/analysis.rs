//! Facts about programs: what statements name, bind, read and write, how tensors are spread, which loops may overlap.
//!
//! Invariant: an analysis changes no program, and uses nothing that does.

pub(crate) mod alias_analysis;
pub(crate) mod bindings;
pub(crate) mod blocks;
pub(crate) mod dependences;
pub(crate) mod dim_equivalence;
pub(crate) mod dim_map;
pub(crate) mod loop_body;
pub(crate) mod loop_carried;
pub(crate) mod memory_effects;
pub(crate) mod name_uses;
pub(crate) mod numbering;
pub(crate) mod propagation;
pub(crate) mod reshard;
pub(crate) mod sharding;
pub(crate) mod stmt_path;
