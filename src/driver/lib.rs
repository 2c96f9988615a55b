//! What the tools do: reads programs and tensors, runs passes, plans and checks, executes on the simulator or on GPUs, judges
//! the outputs, and shrinks programs that fail. The package owns command lines, files, what is printed, and exit codes. It must not
//! know what a program means: that is a rule of the packages below. It must not know which process it is in either: what a run keeps
//! is in its `session`, and only `src/bin` ends a process.
//!
//! The package is a part of the tools of hir, and its items change with them. The library is the package `hir`.
//!
//! `commands` are the tools. `session` is what one run has of its own: jobs with different sessions run in one process, also at the same time. `source` opens programs and `tensor_file` tensors. `run` is hir-run, with `job` for several processes and GPUs, `reduce` is hir reduce, and `tool` is common to all tools.
//!
//! ```
//! use hir_driver::{commands, session::CommandLine, tensor_file::TensorSource};
//! use hir_process::exit::Exit;
//!
//! // This is `hir explain E0701`.
//! let arguments = vec!["explain".into(), "E0701".into()];
//! let command_line = CommandLine { start: Vec::new(), arguments };
//! assert_eq!(commands::dispatch::main_with(command_line), Exit::Success);
//!
//! // A value of `--input`, as on the command line.
//! let value: TensorSource = "2x2xf32=1 2 3 4".parse().map_err(|_| "not a tensor")?;
//! assert!(matches!(value, TensorSource::Literal(_)));
//! # Ok::<(), &str>(())
//! ```

pub mod auto;
pub mod calibrate;
pub mod commands;
pub mod exit_code;
#[cfg(feature = "launch")]
pub mod job;
pub mod reduce;
pub mod run;
pub mod session;
pub mod source;
pub mod tensor_file;
pub mod tool;
pub mod trace;

/// Makes the program of a tool, whose module is in `commands`: its `main`, and what a process has once. `install_backend` is called
/// first, where the process has one thread.
#[doc(hidden)]
#[macro_export]
macro_rules! program {
    ($tool:literal, $module:ident, $install_backend:path) => {
        #[global_allocator]
        static ALLOCATOR: hir_process::out_of_memory::Allocator<mimalloc::MiMalloc> =
            hir_process::out_of_memory::Allocator { tool: $tool, memory: mimalloc::MiMalloc };

        #[used]
        #[allow(unsafe_code, reason = "nothing safe calls a function before `main`; this one only registers handlers of signals")]
        #[unsafe(link_section = ".init_array.00100")]
        static KEEP_FIRST_SIGNAL: extern "C" fn() = hir_process::interrupt::keep_first_signal;

        fn main() -> std::process::ExitCode {
            $install_backend();
            let line = $crate::session::CommandLine::of_process();
            $crate::commands::$module::main_with(line).into()
        }
    };
}
