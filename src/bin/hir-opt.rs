//! Checks, transforms and prints Host IR programs.

use std::process::ExitCode;

use hir::{
    driver::{commands::opt, session::CommandLine},
    process::out_of_memory::Allocator,
};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator { tool: "hir-opt" };

fn main() -> ExitCode {
    opt::main_with(CommandLine::of_process()).into()
}
