//! Runs a Host IR program and verifies its results.

use std::process::ExitCode;

use hir::{
    driver::{commands::run, session::CommandLine},
    process::out_of_memory::Allocator,
};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator { tool: "hir-run" };

fn main() -> ExitCode {
    run::main_with(CommandLine::of_process()).into()
}
