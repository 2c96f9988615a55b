//! Reduces a failing Host IR program while it still fails in the same way.

use std::process::ExitCode;

use hir::{
    driver::{commands::reduce, session::CommandLine},
    process::out_of_memory::Allocator,
};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator { tool: "hir-reduce" };

fn main() -> ExitCode {
    reduce::main_with(CommandLine::of_process()).into()
}
