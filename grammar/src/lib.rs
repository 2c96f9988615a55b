//! The Host IR language: text to arena IR and back.
//!
//! A text goes through `parse` (tokens, layout, grammar: what was written) and `resolve` (names, operators, domains: what
//! it means) into one `ir::Program` a container; `verify` judges a program, `print` writes it down.
//!
//! Invariant: this crate knows no pass, no plan and no device.
#![doc = include_str!("../REFERENCE.md")]

pub mod attr;
pub mod ir;
pub mod ops;
pub mod words;

pub mod arena;
pub mod arithmetic;
pub mod dtype;
pub mod span;

pub mod ast;
pub mod layout;
pub mod parse;
pub mod paste;
pub mod tensor;
pub mod token;

pub mod dialect;

mod dependents;
mod dim_map;
mod domains;
mod fix;
mod numbering;
mod operands;
mod print;
mod resolve;
mod verify;

pub mod codes;
pub mod diagnostic;
pub mod render;

pub use dependents::dependents;
pub use dialect::{Dialect, print_as};
pub use dim_map::{
    DimGroup, DimMap, OperandMap, ResultDim, Values, flagged_dims, operand_map, permutation, result_dims,
    selected_dim, takes_all,
};
pub use fix::{fix, is_fixable};
pub use numbering::free_number;
pub use parse::parse;
pub use print::{axis_text, expr_text, print, stream_text, summary, tensor_text, write};
pub use resolve::nearest;
pub use verify::{mentions, verify};

use diagnostic::Diagnostic;
use ir::Program;

/// Reads every container of a text. Programs come back even where there are errors, for what can still be told.
pub fn read(source: &str) -> (Vec<Program>, Vec<Diagnostic>) {
    let mut clean = paste::clean(source);
    let (mut programs, mut diagnostics) = read_clean(&clean.text);
    clean.restore(&mut programs, &mut diagnostics);
    diagnostics.append(&mut clean.diagnostics);
    diagnostics.sort_by_key(Diagnostic::span);
    (programs, diagnostics)
}

/// As `read`, of a text without traces of pasting.
fn read_clean(source: &str) -> (Vec<Program>, Vec<Diagnostic>) {
    let (mut programs, mut diagnostics) = (Vec::new(), Vec::new());
    parse::each_container(source, &mut diagnostics, &mut |laid, diagnostics| {
        programs.extend(resolve::resolve(laid, source, diagnostics));
    });
    (programs, diagnostics)
}

/// Reads a scalar expression in the names of a program's container; `None` where it is none.
pub fn scalar(program: &mut Program, source: &str) -> Option<ir::ExprId> {
    let expr = parse::parse_scalar(source).ok()?;
    resolve::resolve_scalar(program, &expr, source)
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod roundtrip;
