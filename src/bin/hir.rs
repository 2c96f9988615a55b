//! All tools in one: `hir check`, `hir hang`, `hir opt` and others.

use std::process::ExitCode;

use hir::{
    driver::{commands::dispatch, session::CommandLine},
    process::out_of_memory::Allocator,
};
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: Allocator<MiMalloc> = Allocator { tool: "hir", memory: MiMalloc };

fn main() -> ExitCode {
    dispatch::main_with(CommandLine::of_process()).into()
}
