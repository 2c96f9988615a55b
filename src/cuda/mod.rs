//! One rank on one GPU: runs a plan with streams, events, cuBLASLt, NCCL, peer memory and kernels of its own.
//!
//! A plan becomes an `Executable`, the third representation after `Program` and `Plan`, in stages: `buffer_assignment` says, from
//! the plans alone, where every buffer lies; `executable::stream_assignment` on which CUDA stream each instruction runs;
//! `executable::fusion` which instructions are one kernel; what is left is a list of steps, each one call. `engine` issues them,
//! once, many times, or as a captured graph; `progress` says meanwhile how far they are. Below them, `library` finds what the
//! vendor supplies, `device` is the GPU, `memory` takes memory and maps the peers' part, and `kernels`, `gemm` and `comm` prepare
//! single instructions. `place` finds a GPU for each rank, before all of that, and `session` is
//! what a process keeps of it from plan to plan.
//!
//! Invariant: what can be decided is decided while a plan is prepared. Issuing a step allocates nothing, exchanges nothing
//! and looks nothing up. What an instruction means is what `sim` does for it.

#![expect(unsafe_code, reason = "drives the vendor's libraries; every block says why it is sound")]

pub mod buffer_assignment;
mod comm;
mod comm_order;
mod device;
mod device_assignment;
mod discover;
mod engine;
mod error;
mod executable;
mod graph;
mod kernels;
mod library;
mod library_state;
mod matmul;
mod memory;
mod progress;
mod session;
mod signals;
#[cfg(test)]
mod tests;

pub use device_assignment::assign_device;
pub use discover::device_names;
pub use engine::{CallCost, Engine, HostProfile, LineProfile, Timing, bytes_of, data_of};
pub use error::CudaError;
pub use kernels::instances;
pub use progress::RunProgress;
pub use session::Gpu;

/// The other processes of the job, as far as this room needs them.
pub trait ProcessGroup {
    /// This rank.
    fn rank(&self) -> usize;
    /// Number of ranks.
    fn world(&self) -> usize;
    /// This rank among those of its host: the number of its GPU.
    fn local_rank(&self) -> usize;
    /// What every rank gives, by rank.
    ///
    /// # Errors
    /// A rank that does not answer.
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CudaError>;
    /// Waits for all ranks.
    ///
    /// # Errors
    /// A rank that does not answer.
    fn barrier(&self) -> Result<(), CudaError>;
    /// Says what this rank does now: `compiling kernels`. Whoever guards the job may take it for lost where that lasts.
    fn report_phase(&self, what: &str);
}

/// A job of one process.
#[derive(Clone, Copy, Debug, Default)]
pub struct SingleProcess;

impl ProcessGroup for SingleProcess {
    fn rank(&self) -> usize {
        0
    }

    fn world(&self) -> usize {
        1
    }

    fn local_rank(&self) -> usize {
        0
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CudaError> {
        Ok(vec![mine.to_vec()])
    }

    fn barrier(&self) -> Result<(), CudaError> {
        Ok(())
    }

    fn report_phase(&self, _: &str) {}
}

/// Settings that the vendor's libraries read from the environment when they start.
const ENVIRONMENT: [(&str, &str); 5] = [
    // NVLink multicast stays off.
    ("NCCL_NVLS_ENABLE", "0"),
    // A stream blocked in a wait must not hold back the one that would free it: work and copies have as many queues as there
    // can be.
    ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
    ("CUDA_DEVICE_MAX_COPY_CONNECTIONS", "32"),
    // A host that waits for every launch would wait for what it has yet to issue.
    ("CUDA_LAUNCH_BLOCKING", "0"),
    // binary32 means binary32.
    ("NVIDIA_TF32_OVERRIDE", "0"),
];

/// Queues between the host and the device, as `ENVIRONMENT` asks for them; more streams than that share some.
const CONNECTIONS: usize = 32;

/// Sets what has to be set before a library starts. To be called first thing in `main`.
pub fn set_environment() {
    for (name, value) in ENVIRONMENT {
        // SAFETY: the caller has started no thread yet, so nobody reads the environment meanwhile.
        unsafe { std::env::set_var(name, value) };
    }
}
