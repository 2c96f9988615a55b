//! What a vendor's executor offers to the tools, and the one with which a program is linked.

use std::sync::{Arc, OnceLock};

use super::{AttentionLibrary, Executor, ExecutorError, InProcessDevice, Machine, ProcessGroup};
use hir_plan::{World, timeline::cost::FusedInsts};

/// The devices of this host, and what their executor makes of plans.
pub trait Backend: Sync {
    /// Sets the environment of the vendor's libraries for the whole process, unless it is set. A tool calls it first, where the
    /// process has one thread. If it has more, the environment stays as it is, and `assign_device` refuses to use devices.
    fn set_environment(&self);

    /// Returns the names of the devices that this process may use.
    ///
    /// # Errors
    /// There is no driver, it is too old, or it finds no device.
    fn device_names(&self) -> Result<Vec<String>, ExecutorError>;

    /// Assigns a device to each rank. All ranks have to call this, and all get the same error.
    ///
    /// # Errors
    /// A rank has no driver or no device, its environment is not that of `set_environment`, two ranks have the same device, or a
    /// rank does not answer.
    fn assign_device(&self, peers: &dyn ProcessGroup) -> Result<Box<dyn RankDevice>, ExecutorError>;

    /// Opens a device that the process uses for other work, by its ordinal among those that the process sees; `attention` computes what it
    /// can. All ranks have to call this.
    ///
    /// # Errors
    /// A library or the device is missing, the environment does not allow runs beside other work, two ranks use one device, or a
    /// rank does not answer.
    fn open_in_process(
        &self,
        ordinal: usize,
        peers: &dyn ProcessGroup,
        attention: Option<Arc<dyn AttentionLibrary>>,
    ) -> Result<Arc<dyn InProcessDevice>, ExecutorError>;

    /// Describes the memory of the devices of all ranks, without a device.
    ///
    /// # Errors
    /// A buffer has no size in bytes, in words.
    fn memory_report(&self, world: &World) -> Result<Vec<String>, String>;

    /// Returns, by rank, the instructions that run in the kernel of another one, without a device: by the index of each, that of
    /// the other one.
    fn fused_instructions(&self, world: &World) -> Vec<FusedInsts>;
}

/// The device of this rank, which runs one plan after another. No other rank uses it.
pub trait RankDevice {
    /// Returns what describes the machine of this rank. The device need not have started.
    ///
    /// # Errors
    /// A library is missing, or a call of the driver fails.
    fn machine(&self) -> Result<Machine, ExecutorError>;

    /// Returns an executor for the plans of all ranks, ready to run this rank's plan. All ranks have to call
    /// this.
    ///
    /// # Errors
    /// The device does not start, the plan requires something that the executor does not support, or a rank
    /// does not answer.
    fn executor(
        &mut self,
        world: &Arc<World>,
        peers: &dyn ProcessGroup,
    ) -> Result<&mut dyn Executor, ExecutorError>;
}

/// The backend with which the program is linked. It is code, so it is the same for all sessions of a process.
static BACKEND: OnceLock<&'static dyn Backend> = OnceLock::new();

/// Makes the tools and all estimates of this process use a backend, unless they have one.
pub fn install_backend(backend: &'static dyn Backend) {
    let _ = BACKEND.set(backend);
}

/// Returns the backend of this process.
///
/// # Errors
/// The program is linked without one.
pub fn backend() -> Result<&'static dyn Backend, ExecutorError> {
    let none = || ExecutorError::Environment("this program was built without an executor of GPUs".to_owned());
    BACKEND.get().copied().ok_or_else(none)
}
