//! Shared code that builds and edits programs: new names and statements, edits of blocks and scalars.
//!
//! Invariant: nothing here uses a pass.

pub(crate) mod blocks;
pub(crate) mod builder;
pub(crate) mod collective;
pub(crate) mod contiguity;
pub(crate) mod fold;
pub(crate) mod mesh;
pub(crate) mod scalars;
pub(crate) mod sharded_tensors;
pub(crate) mod streams;
pub(crate) mod substitute;
