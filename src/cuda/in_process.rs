//! Runs plans in a process that uses the GPU for other work, such as PyTorch: in its context, its memory and the order of
//! its streams. A job has one such process for each rank.
//!
//! The runs of one GPU follow each other, also those of different programs: they share streams and communicators.

use std::{
    rc::Rc,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    CudaError, ProcessGroup,
    device::{Device, Stream},
    device_assignment::check_device,
    engine::{CallerPorts, CallerProgram},
    library_state::LibraryState,
    progress::RunProgress,
};
use hir_plan::World;

/// The GPU of this rank. Any thread may use it.
pub struct InProcessGpu {
    state: Mutex<GpuState>,
}

/// A plan that is ready to run on the GPU of this rank.
pub struct InProcessProgram {
    gpu: Arc<InProcessGpu>,
    /// Index in `GpuState::programs`.
    number: usize,
    ports: CallerPorts,
    notes: Vec<String>,
    progress: Arc<RunProgress>,
}

struct GpuState {
    device: Rc<Device>,
    libraries: LibraryState,
    programs: Vec<CallerProgram>,
}

// SAFETY: a state is behind a mutex and keeps all clones of its `Rc`s; nothing in it refers to a thread. Handles of CUDA,
// cuBLASLt and NCCL may be used by any thread, one after the other, in which the context is current: `lock` sees to this.
// Pointers are to page-locked memory and objects of these libraries.
unsafe impl Send for GpuState {}

impl InProcessGpu {
    /// Opens a GPU, by its ordinal among those that the process sees. All ranks have to call this.
    ///
    /// # Errors
    /// A library or the GPU is missing, the environment does not allow runs beside other work, two ranks use one GPU, or a
    /// rank does not answer.
    pub fn open(ordinal: usize, peers: &dyn ProcessGroup) -> Result<Arc<Self>, CudaError> {
        check_device(ordinal, peers)?;
        let device = Rc::new(Device::open(ordinal)?);
        let state = GpuState { device, libraries: LibraryState::default(), programs: Vec::new() };
        Ok(Arc::new(Self { state: Mutex::new(state) }))
    }

    /// Prepares this rank's plan. With `captures`, runs whose addresses repeat become CUDA graphs. All ranks have to call this
    /// with the same plans, in the same order.
    ///
    /// # Errors
    /// The plan requires something that this executor does not support, or a rank does not answer.
    pub fn load(
        self: &Arc<Self>,
        world: &Arc<World>,
        peers: &dyn ProcessGroup,
        captures: bool,
    ) -> Result<InProcessProgram, CudaError> {
        let mut guard = self.lock()?;
        let state = &mut *guard;
        // Runs follow each other, so all programs use the same streams.
        state.device.reuse_streams();
        let (device, libraries) = (Rc::clone(&state.device), &mut state.libraries);
        let program = CallerProgram::new(world, peers, device, libraries, captures)?;
        let (ports, notes, progress) = (program.ports().clone(), program.notes(), program.progress());
        state.programs.push(program);
        let number = state.programs.len() - 1;
        Ok(InProcessProgram { gpu: Arc::clone(self), number, ports, notes, progress })
    }

    /// Locks the state and makes its context current on this thread.
    fn lock(&self) -> Result<MutexGuard<'_, GpuState>, CudaError> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.device.make_current()?;
        Ok(state)
    }
}

impl InProcessProgram {
    /// Returns the memory that a run needs.
    pub fn ports(&self) -> &CallerPorts {
        &self.ports
    }

    /// Returns notes for the user.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the numbers of runs that were issued and that are complete, without waiting for a run that is being issued.
    pub fn progress(&self) -> (u32, u32) {
        let issued = self.progress.issued_inst().map_or(0, |(run, _)| run + 1);
        (issued, self.progress.completed_runs())
    }

    /// Issues a run behind the work on a stream of the context; later work on the stream waits for it. All ranks have to
    /// issue the same runs in the same order.
    ///
    /// `addresses` has one for each buffer of `ports`, of device memory that is large enough and aligned to 256 bytes; that
    /// of a buffer without elements is not used. The memory has to stay allocated until the run is complete. `stream` is a
    /// handle of CUDA, 0 for the default stream.
    ///
    /// # Errors
    /// An address is not that of device memory, a rank does not answer in the first run, or a call fails.
    pub fn run(&self, addresses: &[u64], stream: u64, peers: &dyn ProcessGroup) -> Result<(), CudaError> {
        let mut guard = self.gpu.lock()?;
        let state = &mut *guard;
        for (it, address) in self.ports.buffers.iter().zip(addresses) {
            state.device.check_memory(&it.name, *address, it.len * it.dtype.size())?;
        }
        let stream = Stream::of_caller(stream);
        state.device.check_not_captured(stream)?;
        let program = state
            .programs
            .get_mut(self.number)
            .ok_or_else(|| CudaError::Internal(format!("no program {}", self.number)))?;
        program.run(addresses, stream, peers)
    }
}
