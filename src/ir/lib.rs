//! What is known of a program, how one is built, and how it is edited: facts that passes, the checker, the editor and front ends ask for,
//! and the one builder and the one editor of programs that they share.
//!
//! The package is a part of the tools of hir, and its items change with them. The library is the package `hir`.
//!
//! `dataflow` is the one solver: it follows a program forward or backward through branches and loops. `streams` is the analysis of the
//! current stream over it. `blocks` visits nested blocks. `build` makes programs and parts of them. `edit` edits
//! statements, in a program and in its text. `search` is what searches for better programs have in common.

pub mod blocks;
pub mod build;
pub mod dataflow;
pub mod edit;
pub mod search;
pub mod streams;
