//! Tensors in and out: elements and their rounding, generated inputs, files, and the parts that ranks hold.

pub mod data;
pub mod dense;
pub mod file;
pub mod generate;
pub mod shape_match;
pub mod shard;
