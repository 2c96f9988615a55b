//! Runs plans in a process that uses the GPU for other work, such as PyTorch: in its context, its memory and the order of
//! its streams. A job has one such process for each rank.
//!
//! The runs of one GPU follow each other, also those of different programs: they share streams, communicators and the memory that other ranks
//! access.

use std::{
    rc::Rc,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    ExecutorError, ProcessGroup, Result,
    device::{Device, Stream},
    device_assignment::check_device,
    engine::CallerProgram,
    library_state::LibraryState,
    progress::ProgressWords,
    shared_memory::SharedMemory,
};
use hir_executor::{
    AttentionLibrary, CallerPorts, InProcessDevice, InProcessProgram, LoadOptions, RunProgress,
};
use hir_plan::World;

/// The GPU of this rank.
pub(super) struct InProcessGpu {
    state: Mutex<GpuState>,
}

/// A plan that is ready to run on the GPU of this rank.
pub(super) struct GpuProgram {
    gpu: Arc<InProcessGpu>,
    /// Index in `GpuState::programs`.
    number: usize,
    ports: CallerPorts,
    notes: Vec<String>,
    progress: Arc<ProgressWords>,
}

struct GpuState {
    device: Rc<Device>,
    libraries: LibraryState,
    programs: Vec<CallerProgram>,
    shared: SharedMemory,
}

// SAFETY: a state is behind a mutex and keeps all clones of its `Rc`s; nothing in it refers to a thread. Handles of CUDA,
// cuBLASLt and NCCL may be used by any thread, one after the other, in which the context is current: `lock` sees to this.
// Pointers are to page-locked memory and objects of these libraries.
unsafe impl Send for GpuState {}

impl InProcessGpu {
    /// Opens a GPU, by its ordinal among those that the process sees. All ranks have to call this.
    pub(super) fn open(
        ordinal: usize,
        peers: &dyn ProcessGroup,
        attention: Option<Arc<dyn AttentionLibrary>>,
    ) -> Result<Self> {
        check_device(ordinal, peers)?;
        let device = Rc::new(Device::open(ordinal)?);
        let state = GpuState {
            device,
            libraries: LibraryState::new(attention),
            programs: Vec::new(),
            shared: SharedMemory::default(),
        };
        Ok(Self { state: Mutex::new(state) })
    }

    /// Locks the state and makes its context current on this thread.
    fn lock(&self) -> Result<MutexGuard<'_, GpuState>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.device.make_current()?;
        Ok(state)
    }
}

impl InProcessDevice for InProcessGpu {
    fn load(
        self: Arc<Self>,
        world: &Arc<World>,
        peers: &dyn ProcessGroup,
        options: LoadOptions,
    ) -> Result<Box<dyn InProcessProgram>> {
        let mut guard = self.lock()?;
        let state = &mut *guard;
        // Runs follow each other, so all programs use the same streams.
        state.device.reuse_streams();
        let (device, libraries) = (Rc::clone(&state.device), &mut state.libraries);
        let program = CallerProgram::new(world, peers, device, libraries, options)?;
        let (ports, notes, progress) = (program.ports().clone(), program.notes(), program.progress());
        state.programs.push(program);
        let number = state.programs.len() - 1;
        drop(guard);
        Ok(Box::new(GpuProgram { gpu: self, number, ports, notes, progress }))
    }
}

impl InProcessProgram for GpuProgram {
    fn ports(&self) -> &CallerPorts {
        &self.ports
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn progress(&self) -> (u32, u32) {
        let issued = self.progress.issued_inst().map_or(0, |(run, _)| run + 1);
        (issued, self.progress.completed_runs())
    }

    fn run(&self, addresses: &[u64], stream: u64, peers: &dyn ProcessGroup) -> Result<()> {
        let mut guard = self.gpu.lock()?;
        let state = &mut *guard;
        for (it, address) in self.ports.buffers.iter().zip(addresses) {
            state.device.check_memory(&it.name, *address, it.len * it.dtype.size())?;
        }
        let stream = Stream::of_caller(stream);
        state.device.check_not_captured(stream)?;
        let missing = || ExecutorError::Internal(format!("no program {}", self.number));
        let program = state.programs.get(self.number).ok_or_else(missing)?;
        if !program.is_warm() {
            let wanted = state.programs.iter().map(CallerProgram::shared_bytes).max().unwrap_or(0);
            let is_captured = state.programs.iter().any(CallerProgram::has_graphs);
            let main = program.main_stream();
            state.shared.grow(&state.device, peers, main, (wanted, is_captured))?;
        }
        let program = state.programs.get_mut(self.number).ok_or_else(missing)?;
        if program.shared_bytes() > state.shared.bytes() {
            return Err(ExecutorError::Environment("an earlier program has failed to get memory".to_owned()));
        }
        program.run(addresses, state.shared.addresses(), stream, peers)
    }
}
