//! Certifies that a lowered Host IR program computes what its original computes.

use std::process::ExitCode;

fn main() -> ExitCode {
    hir_certify::main_with(std::env::args_os().skip(1)).into()
}
