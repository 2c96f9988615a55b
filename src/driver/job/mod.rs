//! Runs programs in jobs with one process for each rank, and on GPUs. It needs the feature `launch`.

mod digests;
mod distributed_check;
pub mod gpu;
pub mod lost_job;
pub mod precheck;
pub mod rank_process;
pub mod timing_report;
pub mod tuning;
