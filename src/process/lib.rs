//! What a process of the tools needs from the system: exit codes, signals, memory that is refused, worker threads, and files that
//! are written whole or not at all.
//!
//! The package is a part of the tools of hir, and its items change with them. The library is the package `hir`.
//!
//! The package knows no program and no plan. What the operating system gives only once to a process is process-wide here too,
//! and the tools in `src/bin` install it: handlers of signals (`interrupt`), the memory limit and the allocator (`out_of_memory`),
//! worker threads (`threads`), and the lock that lets a file be completed before the process ends (`atomic_file`). All else is in
//! values, such as the files that a run has read (`input_file::InputFiles`).
//!
//! ```
//! use hir_process::{atomic_file, exit::Exit, input_file::InputFiles};
//!
//! let file = std::env::temp_dir().join(format!("hir-process-{}", std::process::id()));
//! atomic_file::write(&file, b"whole")?;
//! assert_eq!(InputFiles::default().read(&file)?, b"whole");
//! std::fs::remove_file(file)?;
//! assert_eq!(Exit::from_code(4), Exit::Hang);
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod atomic_file;
pub mod exit;
pub mod expected_panic;
pub mod input_file;
pub mod interrupt;
pub mod out_of_memory;
pub mod threads;
