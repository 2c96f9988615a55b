//! Builds programs, and parts of programs that exist: names, tensors, statements and scalars.
//!
//! Everybody who makes a program or adds to one does it here: front ends and passes. Nobody writes a text for the reader.

mod fresh;
mod scalars;
mod statements;

pub use fresh::IrBuilder;
pub use scalars::{infix, rank, symbol};
pub use statements::{
    add, allocate, allocate_alias, block, collective_permute, deallocate, indexed_stream, op, select,
    set_current_stream, synchronize, wait,
};
