//! The simulator: N ranks' plans in one process. It defines what a plan means.

pub mod kernels;
pub mod memory;
