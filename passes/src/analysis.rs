//! Facts about programs: what statements name, bind, read and write, how tensors are spread, which loops may overlap.
//!
//! Invariant: an analysis changes no program, and uses nothing that does.

pub(crate) mod accesses;
pub(crate) mod appearance;
pub(crate) mod bindings;
pub(crate) mod blocks;
pub(crate) mod component;
pub(crate) mod dependences;
pub(crate) mod dims;
pub(crate) mod iterations;
pub(crate) mod loop_body;
pub(crate) mod names;
pub(crate) mod places;
pub(crate) mod propagation;
pub(crate) mod reshard;
pub(crate) mod sharding;
pub(crate) mod sharing;
