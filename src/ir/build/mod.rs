//! Builds programs, and parts of programs that exist: names, tensors, statements and scalars.
//!
//! Everybody who makes a program or adds to one does it here: front ends with `ProgramBuilder`, passes with `IrBuilder`. Nobody writes a text
//! for the reader.
//!
//! ```
//! use grammar::{dtype::DType, ops::Op};
//! use hir_ir::build::{Dim, ProgramBuilder, apply};
//!
//! let mut it = ProgramBuilder::default();
//! let [input, output] = [(); 2].map(|()| it.tensor(vec![Dim::of(4)], DType::Float, Default::default()));
//! it.assign(output, apply(Op::Relu, [input]));
//! let program = it.finish(&[input], &[output]);
//! assert!(grammar::verify(&program).is_empty());
//! assert!(grammar::print(&program).contains("T1_g_float[iS1{4}]\n     = relu(T0_g_float[iS0{4}]);"));
//! ```

mod fresh;
mod program;
mod scalars;
mod statements;

pub use fresh::IrBuilder;
pub use program::{Dim, ProgramBuilder};
pub use scalars::{infix, rank, symbol};
pub use statements::{
    add, allocate, allocate_alias, apply, assigned, block, collective_permute, deallocate,
    get_current_stream, indexed_stream, numbered, op, select, set_current_stream, synchronize, wait,
};
