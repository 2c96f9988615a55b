//! Certifies that a lowered Host IR program computes what its original computes, on all ranks.
//!
//! The package is a part of the tools of hir, and its items change with them. The library is the package `hir`.
//!
//! The package reads the texts of the two programs and knows neither the passes nor the planner nor the checker, so that an error in one
//! of them does not hide from it. `unroll` executes the control flow of each rank, which gives a `trace` of steps and of the actions that
//! they begin and end; `order` puts the actions of all ranks in an order and checks that nothing races; `execute` executes them in it on
//! elements of a prime `field`, each with a `signature` of its `faults`, of which `range` says for which inputs they are finite, where `part` says which elements a rank holds, `access` on which elements of its operands an
//! element of a result depends, and `operators` what is computed from them.
//! [Certificates](../../docs/certificates.md) says what a certificate claims.
//!
//! ```
//! let program = |statements: &str| {
//!     let text = format!("
//! %tensor T0_g_float[iS0{{4}}] (DeviceMesh{{0}})
//! %tensor T1_g_float[iS1{{4}}] (DeviceMesh{{0}})
//! %HostIrContainer {{ (T0) -> (T1) :
//! {statements}
//! }} // %HostIrContainer
//! ");
//!     grammar::read(&text).0.remove(0)
//! };
//! let original = program("  T1 = T0 + T0;");
//! let lowered = program("  T1 = ALLOCATE(mem_type=global, zero_init=false)\n  T1 = T0 + T0;");
//! let wrong = program("  T1 = ALLOCATE(mem_type=global, zero_init=false)\n  T1 = relu(T0);");
//! let settings = hir_certify::Settings { runs: 3, ranks: None, seed: None };
//! let claim = hir_certify::certify(&original, &lowered, &settings).map_err(|it| it.diagnostic.message)?;
//! assert_eq!((claim.ranks, claim.outputs), (1, 1));
//! assert!(hir_certify::certify(&original, &wrong, &settings).is_err());
//! # Ok::<(), String>(())
//! ```
//!
//! The files use the names of this module (`use super::*`), since they all need about the same ones.

mod access;
mod bounds;
mod certificate;
mod command;
mod execute;
mod faults;
mod field;
mod operators;
mod order;
mod part;
mod range;
mod signature;
mod trace;
mod unroll;

use std::{cell::*, collections::*, hash::*, mem, ops::*, rc::Rc};

use grammar::{
    DimMap, OperandMap, attr,
    codes::Code,
    diagnostic::Diagnostic,
    dims_of_first_result,
    dtype::{Class, DType},
    ir::{self, AxisKind, ExprId, OpStmt, Operand, ParallelType, Program, Stmt, TensorId, Transform},
    largest_rank, loop_variant_tensors, operand_map,
    ops::{Op, OpClass, TypeRule},
    rules::Aliasing,
    scalars::{Scalars, Value},
    selected_dim,
    span::Span,
    words::{Algorithm, Backend, CommunicationType, MulticastProtocol, P2pProtocol, P2pType, RedOp},
};
use rustc_hash::{FxHashMap, FxHashSet};

use self::{
    access::*, bounds::*, execute::*, faults::*, field::*, operators::*, order::*, part::*, range::*,
    signature::*, trace::*, unroll::*,
};

pub use certificate::{Claim, Fault, certify};
pub use command::{Settings, System, command, exit_code, information, information_options, main_with};

/// A value, or what is wrong with a program.
type Diagnosed<T> = Result<T, Box<Diagnostic>>;

/// A value, or the reason why a statement is not certified.
type Computed<T> = Result<T, String>;

/// Returns the reason unless a condition holds.
fn require(holds: bool, why: impl Into<String>) -> Computed<()> {
    if holds { Ok(()) } else { Err(why.into()) }
}

/// Returns why a statement is not certified.
fn refused(program: &Program, stmt: Option<ir::StmtId>, why: String, label: String) -> Box<Diagnostic> {
    Box::new(Diagnostic::new(Code::NotCertifiable, place(program, stmt), why, label))
}
