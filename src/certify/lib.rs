//! Certifies that a lowered Host IR program computes what its original computes, on all ranks.
//!
//! The package reads the texts of the two programs and knows neither the passes nor the planner nor the checker, so that an error in one
//! of them does not hide from it. `unroll` executes the control flow of each rank, which gives a `trace` of steps and of the actions that
//! they begin and end; `order` puts the actions of all ranks in an order and checks that nothing races; `execute` executes them in it on
//! elements of a prime `field`, where `part` says which elements a rank holds, `access` on which elements of its operands an
//! element of a result depends, and `operators` what is computed from them.
//! [Certificates](../../docs/certificates.md) says what a certificate claims.

mod access;
mod certificate;
mod command;
mod execute;
mod field;
mod operators;
mod order;
mod part;
mod trace;
mod unroll;

pub use certificate::{Claim, Fault, Settings, Subject, certify};
pub use command::{command, exit_code, main_with};
