//! What passes share for building and editing programs: new names and statements, edits of blocks and of scalars.
//!
//! Invariant: nothing here uses a pass.

pub(crate) mod blocks;
pub(crate) mod collective;
pub(crate) mod create;
pub(crate) mod fold;
pub(crate) mod mesh;
pub(crate) mod pack;
pub(crate) mod scalars;
pub(crate) mod sharded;
pub(crate) mod substitute;
