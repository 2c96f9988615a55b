//! The tools: their options, and what they do with them. A tool in `src/bin` calls `main_with` and adds what a process has
//! once, such as the allocator.

use clap::Parser;
use hir_process::exit::Exit;

use crate::{
    session::CommandLine,
    tool::{
        Reporter, flags::DiagnosticFlags, help::parse_arguments, report_usage_error,
        reproducer::crash_reproducer, startup::start_tool,
    },
};

#[cfg(feature = "launch")]
mod calibrate;
mod certify;
mod check;
pub mod dispatch;
mod explain;
mod hang;
mod lsp;
mod mcp;
#[cfg(feature = "launch")]
mod measurement;
pub mod opt;
pub mod reduce;
#[cfg(feature = "launch")]
pub mod run;
#[cfg(feature = "launch")]
mod trace;
#[cfg(feature = "launch")]
mod tune;

/// Runs a tool that has nothing to print beside its result: reads its options and does its work, whose error is an exit code
/// that has been reported. `examples` are those of `--help`.
fn run_tool<O: Parser>(
    tool: &'static str,
    command_line: CommandLine,
    examples: &str,
    diagnostics: fn(&O) -> &DiagnosticFlags,
    work: fn(&O, &Reporter) -> Result<Exit, Exit>,
) -> Exit {
    start_tool(tool, command_line, |session| match parse_arguments::<O>(session, examples) {
        Ok(options) => {
            let screen = diagnostics(&options).reporter(session);
            let exit = crash_reproducer::run_guarded(&screen, None, || {
                work(&options, &screen).unwrap_or_else(|exit| exit)
            });
            screen.finish(exit, true, |_| ())
        }
        Err(error) => report_usage_error(session, &error, |_| ()),
    })
}
