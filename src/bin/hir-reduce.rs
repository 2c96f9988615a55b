//! Reduces a failing Host IR program while it still fails in the same way.

use std::process::ExitCode;

use hir::{
    driver::{commands::reduce, session::CommandLine},
    process::out_of_memory::Allocator,
};
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: Allocator<MiMalloc> = Allocator { tool: "hir-reduce", memory: MiMalloc };

fn main() -> ExitCode {
    reduce::main_with(CommandLine::of_process()).into()
}
