//! All tools in one: `hir check`, `hir hang`, `hir opt` and others.

use std::process::ExitCode;

use hir::{
    driver::{commands::dispatch, session::CommandLine},
    process::out_of_memory::Allocator,
};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator { tool: "hir" };

fn main() -> ExitCode {
    dispatch::main_with(CommandLine::of_process()).into()
}
