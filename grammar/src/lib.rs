//! The Host IR language: conversion between text and arena IR.
//!
//! The package is a part of the tools of hir, and its items change with them. The library is the package `hir`.
//!
//! `parse` tokenizes and parses a text; `resolve` resolves names, operators and domains and creates one
//! `ir::Program` for each container. `verify` checks a program, and `print` writes its canonical text.
//!
//! ```
//! let text = "%HostIrContainer { (T0_g_float[iS0{4}]) -> (T1_g_float[iS1{4}]) :\n  T1 = relu(T0)\n}";
//! let (programs, diagnostics) = grammar::read(text);
//! assert!(diagnostics.is_empty());
//! assert!(grammar::verify(&programs[0]).is_empty());
//! let canonical = grammar::print(&programs[0]);
//! assert!(canonical.contains("T1_g_float[iS1{4}]\n     = relu(T0_g_float[iS0{4}]);"));
//!
//! let (_, diagnostics) = grammar::read("%HostIrContainer { (T0_g_float[iS0{4}]) -> (T1) : }");
//! assert_eq!(diagnostics[0].code.text(), "E0207");
//! ```
//!
//! Invariant: this package does not depend on passes, plans or devices.
#![doc = include_str!("../REFERENCE.md")]

/// The language reference, as Markdown. Its tables have a row for each operator and each code.
pub const REFERENCE: &str = include_str!("../REFERENCE.md");

pub mod attr;
pub mod ir;
pub mod ops;
pub mod rules;
pub mod words;

pub mod algorithm_table;
pub mod collective;

pub mod arena;
pub mod arithmetic;
pub mod dtype;
pub mod scalars;

pub mod dump_cleanup;
pub mod indentation;
mod invalid_option;
pub mod parse;
pub mod scan;
pub mod tensor;

mod advice;
mod alike;
mod canonical;
mod constant_bytes;
mod dialect;
mod domains;
mod files;
mod fix;
mod fusion_dump;
mod ids;
mod loop_variance;
mod named;
mod numbering;
mod operands;
mod print;
mod raw_bytes;
mod read;
mod resolve;
mod roots;
mod shell_word;
mod suggest;
mod tensor_uses;
mod text;
mod verify;

pub mod codes;
pub mod diagnostic;
pub mod render;
pub mod sarif;
mod scalar_op;

pub mod bindings;
pub mod source;

pub use hir_syntax::{ast, span, token};

// What almost all packages name: programs, their operators and places, and diagnostics.
pub use arena::{Arena, Id};
pub use bindings::{Binding, apply_bindings};
pub use codes::{Code, Severity};
pub use collective::{Contribution, Members};
pub use diagnostic::{Diagnostic, Fix, has_errors};
pub use dtype::DType;
pub use ir::{
    Attr, Axis, AxisId, AxisKind, BlockId, DeviceDim, Domains, Expr, ExprId, For, Function, If, InfixOp,
    Memory, Mesh, OpStmt, Operand, ParallelType, Place, PrefixOp, Program, Stmt, StmtId, Stream, StreamId,
    SymbolId, Tensor, TensorId, Transform, UnitId,
};
pub use ops::{AccessMode, Arity, OPS, Op, OpClass, OpDef, OperandDef, TypeRule};
pub use scalars::Scalars;
pub use source::{Reader, Source};
pub use span::{LineIndex, Span};
pub use words::{
    Algorithm, Backend, CommunicationType, MemoryType, P2pProtocol, P2pType, RedOp, ReductionOp,
};

pub use alike::summarise;
pub use canonical::{print, print_commented, write, write_short};
pub use constant_bytes::bytes_of;
pub use dialect::print_as;
pub use fix::{edited, fix, is_fixable};
pub use invalid_option::InvalidOption;
pub use loop_variance::loop_variant_tensors;
pub use named::Named;
pub use numbering::free_number;
pub use parse::parse;
pub use print::{Dialect, LinePrinter, NO_DOMAINS, summary};
pub use raw_bytes::{decode, encode};
pub use read::{read, read_scalar};
pub use render::{visible_name, visible_text};
pub use resolve::keep_get_protocol;
pub use rules::{
    Aliasing, AxesState, DimGroup, DimMap, OperandMap, OperandView, ResultDim, ScalarEvaluator,
    dims_of_first_result, flagged_dims, operand_map, permutation, result_dims, selected_dim, slice_takes_all,
};
pub use shell_word::shell_word;
pub use suggest::{count_text, escape_control, list_text, nearest, ordinal};
pub use tensor_uses::{largest_rank, ranks_in_meshes};
pub use text::{axis_text, domain_clauses, expr_text, stream_operand_text, stream_text, tensor_text};
pub use verify::verify;
