//! Shared code that builds and edits programs: new names and statements, edits of blocks and scalars.
//!
//! | task | module |
//! | --- | --- |
//! | Create axes, tensors, scalars, streams and statements | `hir_ir::build`, `sharded_tensors`, `contiguity`, `collective`, `mesh` |
//! | Replace, insert, move and remove statements, also nested ones | `hir_ir::edit`, `empty_blocks` |
//! | Order communications of several communicators | `communicator_order` |
//! | Fold, simplify and substitute scalars | `fold`, `scalars`, `substitute` |
//!
//! Invariant: nothing here uses a pass.

pub mod collective;
pub mod communicator_order;
pub mod contiguity;
pub mod empty_blocks;
pub mod fold;
pub mod mesh;
pub mod scalars;
pub mod sharded_tensors;
pub mod substitute;
