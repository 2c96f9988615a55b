//! What a process of the tools needs from the system: exit codes, signals, memory that is refused, worker threads, and files that
//! are written whole or not at all.
//!
//! The package knows no program and no plan. Its state is that of the process: handlers of signals, the name of the tool, the
//! files that have been read.

pub mod atomic_file;
pub mod exit;
pub mod input_file;
pub mod interrupt;
pub mod out_of_memory;
pub mod threads;
pub mod tool_name;
