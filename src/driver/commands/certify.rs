//! `hir certify`: certifies that passes kept the meaning of a program. The command line is that of `hir_certify`.

use hir_certify::System;
use hir_process::exit::Exit;

use crate::{session::CommandLine, tool::startup::start_tool};

/// Runs hir certify.
pub fn main_with(command_line: CommandLine) -> Exit {
    start_tool("hir certify", command_line, |session| {
        let arguments = session.command_line.arguments.iter().cloned();
        let system = System {
            read: &|path| session.files.read(path),
            stdout: &mut &session.stdout,
            stderr: &mut &session.stderr,
        };
        Exit::from_code(hir_certify::main_with(arguments, system))
    })
}
