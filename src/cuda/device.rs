//! One GPU: its context, streams, events and copies. Every call names its stream.
//!
//! Streams, events and memory are created while a plan is prepared, not while it runs. They live until the
//! next plan is prepared.

mod memory;
mod resources;

use std::{
    cell::RefCell,
    ffi::{c_int, c_uint, c_void},
};

use cudarc::driver::sys;

use super::{
    ExecutorError, Result,
    discover::{handle, name},
    library::{self, Driver},
};
pub(super) use memory::Copy2d;
pub(super) use resources::{OwnedResource, ResourceMark};
use resources::{PeerMapping, Pool, Resources};

/// A stream. It is a plain handle that may be copied; the driver owns the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stream(pub sys::CUstream);

impl Stream {
    /// Returns a stream of the process that hir did not create; 0 is the default stream.
    pub fn of_caller(handle: u64) -> Self {
        Self(handle as sys::CUstream)
    }

    /// Returns the handle, for a library of the process.
    pub fn handle(self) -> u64 {
        self.0 as u64
    }
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event(pub sys::CUevent);

/// The size of a kernel's blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BlockShape {
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of shared memory of a block, beyond those that the kernel declares.
    pub shared_bytes: u32,
}

/// A kernel in a loaded module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KernelFunction {
    handle: sys::CUfunction,
    /// The size of its blocks.
    pub block: BlockShape,
}

/// The GPU of this rank. Its context is current on this thread.
pub(super) struct Device {
    pub driver: &'static Driver,
    /// Compute capability as 10 * major + minor: 90 for an H200.
    pub capability: i32,
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    pub handle: sys::CUdevice,
    pub context: sys::CUcontext,
    /// The stream priority of communication.
    high: c_int,
    /// The flags of a wait for a value. See `signals`.
    pub wait_flags: c_uint,
    resources: RefCell<Resources>,
}

impl Device {
    /// Retains the primary context of a GPU that `choose_device` has selected, and makes it current on this
    /// thread.
    ///
    /// # Errors
    /// The GPU does not start or is too old.
    pub fn open(ordinal: usize) -> Result<Self> {
        let driver = library::driver()?;
        let device = handle(driver, ordinal as c_int)?;
        let mut context: sys::CUcontext = std::ptr::null_mut();
        // SAFETY: the device is valid and the pointer is to a live handle; the context is never released.
        unsafe {
            driver.check(
                "cuDevicePrimaryCtxRetain",
                (driver.cuDevicePrimaryCtxRetain)(&raw mut context, device),
            )?;
            driver.check("cuCtxSetCurrent", (driver.cuCtxSetCurrent)(context))?;
        }
        let attribute = |which| {
            let mut value: c_int = 0;
            // SAFETY: the pointer is to a live integer.
            let status = unsafe { (driver.cuDeviceGetAttribute)(&raw mut value, which, device) };
            driver.check("cuDeviceGetAttribute", status).map(|()| value)
        };
        use sys::CUdevice_attribute_enum as Attribute;
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        if major < 8 {
            return Err(ExecutorError::Environment(format!(
                "GPU {ordinal} ({}) has compute capability {major}.{minor}; 8.0 or later is needed",
                name(driver, device)?
            )));
        }
        let processors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.unsigned_abs();
        let at_least = sys::CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_GEQ as c_uint;
        let flush = sys::CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_FLUSH as c_uint;
        let can_flush = attribute(Attribute::CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES)? != 0;
        let wait_flags = if can_flush { at_least | flush } else { at_least };
        let (mut low, mut high) = (0, 0);
        // SAFETY: the pointers are to live integers.
        let status = unsafe { (driver.cuCtxGetStreamPriorityRange)(&raw mut low, &raw mut high) };
        driver.check("cuCtxGetStreamPriorityRange", status)?;
        let resources = RefCell::default();
        Ok(Self {
            driver,
            capability: 10 * major + minor,
            multiprocessors: processors,
            handle: device,
            context,
            high,
            wait_flags,
            resources,
        })
    }

    /// Makes the context current on this thread.
    pub fn make_current(&self) -> Result<()> {
        // SAFETY: the context is never released.
        let status = unsafe { (self.driver.cuCtxSetCurrent)(self.context) };
        self.driver.check("cuCtxSetCurrent", status)
    }

    /// Checks that the caller's memory for `name` is memory of this GPU, from its first to its last byte.
    ///
    /// # Errors
    /// It is not.
    pub fn check_memory(&self, name: &str, address: u64, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        for address in [address, address.saturating_add(bytes as u64 - 1)] {
            let mut ordinal: c_int = -1;
            let which = sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
            // SAFETY: the pointer is to an integer, the type of this attribute; any address may be asked about.
            let status =
                unsafe { (self.driver.cuPointerGetAttribute)((&raw mut ordinal).cast(), which, address) };
            if status != 0 || ordinal != self.handle {
                return Err(ExecutorError::Environment(format!(
                    "`{name}` has no {bytes} bytes of GPU {} at {address:#x}",
                    self.handle
                )));
            }
        }
        Ok(())
    }

    /// Checks that a stream of the caller is not being captured: a graph of the caller cannot contain runs, whose signals
    /// have new values each time.
    pub fn check_not_captured(&self, stream: Stream) -> Result<()> {
        let mut state = sys::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the pointer is to a live status; the stream is one of the context.
        let status = unsafe { (self.driver.cuStreamIsCapturing)(stream.0, &raw mut state) };
        self.driver.check("cuStreamIsCapturing", status)?;
        if state != sys::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE {
            return Err(ExecutorError::Environment(
                "the stream is being captured: a CUDA graph cannot contain a run of hir".to_owned(),
            ));
        }
        Ok(())
    }

    /// Returns a non-blocking stream. An `urgent` stream, for communication, has the highest priority.
    pub fn stream(&self, urgent: bool) -> Result<Stream> {
        self.resources.borrow_mut().streams[usize::from(urgent)].take(|| {
            let mut stream = std::ptr::null_mut();
            let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as c_uint;
            let priority = if urgent { self.high } else { 0 };
            // SAFETY: the pointer is to a live handle and a context is current.
            let status =
                unsafe { (self.driver.cuStreamCreateWithPriority)(&raw mut stream, flags, priority) };
            self.driver.check("cuStreamCreateWithPriority", status)?;
            Ok(Stream(stream))
        })
    }

    /// Returns the number of streams created so far, for this plan and earlier ones.
    pub fn stream_count(&self) -> usize {
        self.resources.borrow().streams.iter().map(Pool::len).sum()
    }

    /// Returns an event for ordering; with `timing`, one that also measures time.
    pub fn event(&self, timing: bool) -> Result<Event> {
        self.resources.borrow_mut().events[usize::from(timing)].take(|| {
            let mut event = std::ptr::null_mut();
            let plain = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as c_uint;
            // SAFETY: the pointer is to a live handle and a context is current.
            let status =
                unsafe { (self.driver.cuEventCreate)(&raw mut event, if timing { 0 } else { plain }) };
            self.driver.check("cuEventCreate", status)?;
            Ok(Event(event))
        })
    }

    /// Records an event after the work on the stream.
    pub fn record(&self, event: Event, stream: Stream) -> Result<()> {
        // SAFETY: both handles come from this device and are never destroyed.
        self.driver.check("cuEventRecord", unsafe { (self.driver.cuEventRecord)(event.0, stream.0) })
    }

    /// Makes the stream wait for the last record of the event.
    pub fn wait_event(&self, stream: Stream, event: Event) -> Result<()> {
        // SAFETY: as `record`.
        let status = unsafe { (self.driver.cuStreamWaitEvent)(stream.0, event.0, 0) };
        self.driver.check("cuStreamWaitEvent", status)
    }

    /// Returns the microseconds between two completed events.
    pub fn elapsed_microseconds(&self, from: Event, to: Event) -> Result<f64> {
        let mut milliseconds = 0f32;
        // SAFETY: as `record`; the pointer is to a live float.
        let status = unsafe { (self.driver.cuEventElapsedTime)(&raw mut milliseconds, from.0, to.0) };
        self.driver.check("cuEventElapsedTime", status)?;
        Ok(f64::from(milliseconds) * 1000.0)
    }

    /// Returns true if all work on the stream is complete.
    pub fn is_idle(&self, stream: Stream) -> Result<bool> {
        // SAFETY: the stream comes from this device.
        let status = unsafe { (self.driver.cuStreamQuery)(stream.0) };
        if status == sys::cudaError_enum::CUDA_ERROR_NOT_READY as u32 {
            Ok(false)
        } else {
            self.driver.check("cuStreamQuery", status).map(|()| true)
        }
    }

    /// Blocks the host until the stream is complete.
    pub fn synchronize(&self, stream: Stream) -> Result<()> {
        // SAFETY: the stream comes from this device.
        self.driver.check("cuStreamSynchronize", unsafe { (self.driver.cuStreamSynchronize)(stream.0) })
    }

    /// Registers a resource that `release` destroys before the next program or the next plan.
    pub(super) fn track(&self, it: OwnedResource) {
        self.resources.borrow_mut().owned.push(it);
    }

    /// Loads a module and returns its kernels in the order of `kernels`.
    pub fn load_kernels(
        &self,
        cubin: &[u8],
        kernels: &[(String, BlockShape)],
    ) -> Result<Vec<KernelFunction>> {
        let mut module = std::ptr::null_mut();
        // SAFETY: the image is a complete cubin from NVRTC; the driver copies it.
        let status = unsafe { (self.driver.cuModuleLoadData)(&raw mut module, cubin.as_ptr().cast()) };
        self.driver.check("cuModuleLoadData", status)?;
        self.track(OwnedResource::Module(module));
        let mut functions = Vec::with_capacity(kernels.len());
        for (name, block) in kernels {
            let text = std::ffi::CString::new(name.as_str())
                .map_err(|_| ExecutorError::Internal(format!("kernel name `{name}` contains a NUL byte")))?;
            let mut function = std::ptr::null_mut();
            // SAFETY: the module is loaded and the name is terminated.
            let status =
                unsafe { (self.driver.cuModuleGetFunction)(&raw mut function, module, text.as_ptr()) };
            self.driver.check("cuModuleGetFunction", status)?;
            if block.shared_bytes > 0 {
                let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                // SAFETY: the function is loaded.
                let status =
                    unsafe { (self.driver.cuFuncSetAttribute)(function, which, block.shared_bytes as c_int) };
                self.driver.check("cuFuncSetAttribute", status)?;
            }
            functions.push(KernelFunction { handle: function, block: *block });
        }
        Ok(functions)
    }

    /// Launches a kernel whose only parameter is a structure with this content.
    pub fn launch(
        &self,
        function: KernelFunction,
        grid: u32,
        block: u32,
        parameters: &[u64],
        stream: Stream,
    ) -> Result<()> {
        let mut pointers: [*mut c_void; 1] = [parameters.as_ptr().cast_mut().cast()];
        // SAFETY: the kernel takes one structure, and `parameters` holds all of it (the sources of the
        // kernels and the functions that fill the words are in the same files). The driver copies it before
        // the call returns.
        let status = unsafe {
            (self.driver.cuLaunchKernel)(
                function.handle,
                grid,
                1,
                1,
                block,
                1,
                1,
                function.block.shared_bytes,
                stream.0,
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        self.driver.check("cuLaunchKernel", status)
    }

    /// Returns the CUDA IPC handle by which other processes of the host map an allocation.
    pub fn export_ipc(&self, address: u64) -> Result<[u8; 64]> {
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the address is the start of an allocation and the pointer is to a live handle.
        let status = unsafe { (self.driver.cuIpcGetMemHandle)(&raw mut handle, address) };
        self.driver.check("cuIpcGetMemHandle", status)?;
        Ok(handle.reserved.map(|it| it as u8))
    }

    /// Maps an allocation of another rank by CUDA IPC; `theirs` is its address on that rank.
    pub fn import_ipc(&self, rank: usize, theirs: u64, handle: [u8; 64]) -> Result<u64> {
        let mut resources = self.resources.borrow_mut();
        if let Some(it) = resources.mapped.iter().find(|it| (it.rank, it.peer_address) == (rank, theirs)) {
            return Ok(it.address);
        }
        let handle = sys::CUipcMemHandle { reserved: handle.map(|it| it as std::ffi::c_char) };
        let flags = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as c_uint;
        let mut address = 0;
        // SAFETY: the handle was exported by a process of this host that keeps the allocation alive.
        let status = unsafe { (self.driver.cuIpcOpenMemHandle_v2)(&raw mut address, handle, flags) };
        self.driver.check("cuIpcOpenMemHandle", status)?;
        resources.mapped.push(PeerMapping { rank, peer_address: theirs, address });
        Ok(address)
    }
}
