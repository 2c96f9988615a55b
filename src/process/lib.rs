//! What a process of the tools needs from the system: exit codes, signals, memory that is refused, worker threads, and files that
//! are written whole or not at all.
//!
//! The package knows no program and no plan. Its state is that of the process: handlers of signals, the name of the tool, the
//! files that have been read.
//!
//! ```
//! use hir_process::{atomic_file, exit::Exit, input_file};
//!
//! let file = std::env::temp_dir().join(format!("hir-process-{}", std::process::id()));
//! atomic_file::write(&file, b"whole")?;
//! assert_eq!(input_file::read(&file)?, b"whole");
//! std::fs::remove_file(file)?;
//! assert_eq!(Exit::from_code(4), Exit::Hang);
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod atomic_file;
pub mod exit;
pub mod input_file;
pub mod interrupt;
pub mod out_of_memory;
pub mod threads;
pub mod tool_name;
