//! Checks, transforms and prints Host IR programs.

use std::process::ExitCode;

use hir::{
    driver::{commands::opt, session::CommandLine},
    process::out_of_memory::Allocator,
};
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: Allocator<MiMalloc> = Allocator { tool: "hir-opt", memory: MiMalloc };

fn main() -> ExitCode {
    opt::main_with(CommandLine::of_process()).into()
}
