//! Tensors: elements and their rounding, elementwise functions, generated inputs, and the shards of ranks.
//!
//! Both executors compute with these types. The package knows plans, because views and shards are theirs, and no file: reading
//! and writing tensors is part of the tools.

pub mod data;
pub mod dense;
pub mod elementwise;
pub mod generate;
pub mod shape_match;
pub mod shard;
