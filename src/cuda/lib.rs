//! Runs the plan of one rank on one GPU, with streams, events, cuBLASLt, NCCL, peer memory and generated
//! kernels.
//!
//! The package is a part of the tools of hir, and its items change with them. The library is the package `hir`.
//!
//! A plan is lowered to an `Executable`, the third representation after `Program` and `Plan`, in stages.
//! `buffer_assignment` assigns addresses to all buffers from the plans alone. `executable::stream_assignment`
//! assigns instructions to CUDA streams. `executable::fusion` fuses instructions into kernels, and `epilogue` finds those
//! that matrix products can compute. The result is
//! a list of commands, each of them one call. `engine` issues them once, many times, or as a captured graph,
//! while `progress` records how far they are. The layers below are: `library` loads the vendor's libraries,
//! `device` wraps the GPU, `memory` allocates memory and maps that of the peers, and `kernels`, `matmul` and
//! `comm` prepare single instructions. Before all of that, `device_assignment` assigns a GPU to each rank;
//! `session` holds what a process keeps from plan to plan. `in_process` runs plans in a process that uses the GPU for
//! other work.
//!
//! The tools use all of it as a `hir_executor::Backend`, `CUDA`.
//!
//! The package knows no text and no pass.
//!
//! Invariant: decisions are made while a plan is prepared. Issuing a command allocates nothing, exchanges
//! nothing and looks nothing up. `sim` defines the meaning of every instruction.

#![expect(unsafe_code, reason = "calls the vendor's libraries; every block states why it is sound")]

mod backend;
pub mod buffer_assignment;
mod comm;
mod comm_order;
mod cudnn;
mod device;
mod device_assignment;
mod discover;
mod engine;
mod epilogue;
mod exchange;
mod executable;
mod graph;
mod in_process;
mod kernels;
mod library;
mod library_state;
mod links;
mod matmul;
mod memory;
mod peer_kernel;
mod progress;
mod session;
mod shared_memory;
mod signals;
#[cfg(test)]
mod tests;
mod unsupported;

pub use backend::CUDA;
use engine::Engine;
use hir_executor::{ExecutorError, ProcessGroup};

/// What fails with an error of the executor, unless it says otherwise.
type Result<T, E = ExecutorError> = std::result::Result<T, E>;
pub use kernels::instances;
use session::Gpu;

/// Settings that the vendor's libraries read from the environment when they start.
const ENVIRONMENT: [(&str, &str); 5] = [
    // NVLink multicast is off.
    ("NCCL_NVLS_ENABLE", "0"),
    // A stream that is blocked in a wait must not block the stream that it waits for: use the maximum number
    // of hardware queues for work and for copies.
    ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
    ("CUDA_DEVICE_MAX_COPY_CONNECTIONS", "32"),
    // A host that waits for every launch might wait for work that it has not issued yet.
    ("CUDA_LAUNCH_BLOCKING", "0"),
    // No TF32: binary32 is computed as binary32.
    ("NVIDIA_TF32_OVERRIDE", "0"),
];

/// Number of queues between the host and the device, as set in `ENVIRONMENT`. More streams than that share
/// queues.
const CONNECTIONS: usize = 32;

/// Sets the environment of the vendor's libraries if the process has one thread. It has more if a library was loaded into it.
fn set_environment() {
    // Without `/proc`, the call in `main` is trusted.
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads == 1 {
        for (name, value) in ENVIRONMENT {
            // SAFETY: this is the only thread of the process, so no other one reads the environment.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

/// Checks the part of the environment without which a program may block itself, for a process that other libraries share.
fn check_shared_environment() -> Result<()> {
    let number = |name: &str| std::env::var(name).ok().and_then(|it| it.trim().parse::<usize>().ok());
    if number("CUDA_DEVICE_MAX_CONNECTIONS").is_none_or(|it| it < CONNECTIONS) {
        return Err(ExecutorError::Environment(format!(
            "CUDA has started with too few queues: streams that wait for other ranks could block the streams that they wait \
             for. Set `CUDA_DEVICE_MAX_CONNECTIONS={CONNECTIONS}` before CUDA starts"
        )));
    }
    let is_set = |name: &str| number(name).is_some_and(|it| it != 0);
    if let Some(name) = ["CUDA_LAUNCH_BLOCKING", "NVIDIA_TF32_OVERRIDE"].into_iter().find(|it| is_set(it)) {
        return Err(ExecutorError::Environment(format!(
            "unset `{name}`: hir's executor does not run with it"
        )));
    }
    Ok(())
}

/// Checks that the environment is that of `set_environment`: with another one, results may differ, and streams may block
/// each other.
fn check_environment() -> Result<()> {
    let missing = ENVIRONMENT.iter().filter(|(name, value)| std::env::var(name).as_deref() != Ok(*value));
    let missing: Vec<String> = missing.map(|(name, value)| format!("{name}={value}")).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(ExecutorError::Environment(format!(
        "a library that was loaded into the process has started threads, so that the environment of CUDA and NCCL could not \
         be set: set `{}` before the start",
        missing.join(" ")
    )))
}
