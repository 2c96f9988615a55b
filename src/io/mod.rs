//! Input and output of tensors: elements and their rounding, generated inputs, files, and the shards of
//! ranks.

pub mod data;
pub mod dense;
pub mod file;
pub mod generate;
pub mod shape_match;
pub mod shard;
