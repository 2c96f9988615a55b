//! Runs a Host IR program and verifies its results.

use std::process::ExitCode;

use hir::{
    driver::{commands::run, session::CommandLine},
    process::out_of_memory::Allocator,
};
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: Allocator<MiMalloc> = Allocator { tool: "hir-run", memory: MiMalloc };

fn main() -> ExitCode {
    run::main_with(CommandLine::of_process()).into()
}
