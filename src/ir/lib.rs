//! What is known of a program: facts that passes, the checker, the editor and front ends ask for, each found in one place.
//!
//! `dataflow` is the one solver: it follows a program forward or backward through branches and loops. `streams` is the analysis of the
//! current stream over it. `blocks` visits nested blocks.

pub mod blocks;
pub mod dataflow;
pub mod streams;
