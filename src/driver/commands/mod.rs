//! The tools: their options, and what they do with them. A tool in `src/bin` calls `main_with` and adds what a process has
//! once, such as the allocator.

pub mod hang;
pub mod opt;
pub mod reduce;
#[cfg(all(feature = "cuda", feature = "launch"))]
pub mod run;
