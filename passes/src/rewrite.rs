//! What passes share for building and editing programs: new names and statements, edits of blocks and of scalars.
//!
//! Invariant: a helper uses no pass.

pub(crate) mod blocks;
pub(crate) mod collective;
pub(crate) mod create;
pub(crate) mod fold;
pub(crate) mod mesh;
pub(crate) mod pack;
pub(crate) mod scalars;
#[allow(dead_code, reason = "the passes that use it come with it")]
pub(crate) mod substitute;
