//! Certifies that a lowered Host IR program computes what its original computes.

use std::{env, fs, io, process::ExitCode};

use hir_certify::System;

fn main() -> ExitCode {
    let system =
        System { read: &|path| fs::read(path), stdout: &mut io::stdout(), stderr: &mut io::stderr() };
    hir_certify::main_with(env::args_os().skip(1), system).into()
}
