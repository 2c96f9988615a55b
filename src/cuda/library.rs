//! Loads the vendor's libraries and their functions at run time.
//!
//! The program starts without these libraries. It opens them only when a GPU is requested; the error for a
//! missing library lists the places searched. Only types and signatures come from `cudarc`: its own loader
//! panics if a library or a symbol is missing, does not know the name `libnccl.so.2`, and returns status
//! codes as Rust enums, for which the codes of a newer library would be undefined behaviour. The compiler
//! checks our signatures against those of `cudarc`.

#![expect(non_snake_case, reason = "functions keep their names in the libraries")]

use std::{
    ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void},
    sync::OnceLock,
};

use cudarc::{
    cublaslt::sys as cublaslt_sys, cudnn::sys as cudnn_sys, driver::sys as driver_sys, nccl::sys as nccl_sys,
    nvrtc::sys as nvrtc_sys,
};
use libloading::os::unix::Library;

use super::{ExecutorError, Result};
use search::{CUBLASLT, CUDNN, DRIVER, NCCL, NVRTC};

mod search;

/// Declares the functions of a library: a struct of function pointers and its loader.
macro_rules! functions {
    ($(#[$doc:meta])* $name:ident, $sys:ident::$status:ident {
        $($function:ident($($arg:ty),* $(,)?);)*
    } plain {
        $($plain:ident($($plain_arg:ty),* $(,)?) -> $plain_result:ty;)*
    }) => {
        $(#[$doc])*
        pub(super) struct $name {
            $(pub $function: unsafe extern "C" fn($($arg),*) -> u32,)*
            $(pub $plain: unsafe extern "C" fn($($plain_arg),*) -> $plain_result,)*
            /// The path of the library.
            pub path: String,
        }

        $(const _: unsafe fn($($arg),*) -> $sys::$status = $sys::$function;)*

        impl $name {
            fn load((library, path): (Library, String)) -> Result<Self> {
                // The library stays open, so functions outlive every caller.
                let library: &'static Library = Box::leak(Box::new(library));
                Ok(Self {
                    $($function: symbol(library, stringify!($function), &path)?,)*
                    $($plain: symbol(library, stringify!($plain), &path)?,)*
                    path,
                })
            }
        }
    };
}

fn symbol<F: Copy>(library: &'static Library, name: &str, path: &str) -> Result<F> {
    // SAFETY: `functions!` requests each name with the signature of the C declaration; the library is never
    // closed.
    let found = unsafe { library.get::<F>(name) };
    found.map(|it| *it).map_err(|_| {
        ExecutorError::Environment(format!(
            "`{path}` has no function `{name}`: it is older than this program needs"
        ))
    })
}

use driver_sys::*;
functions! {
    /// The CUDA driver API.
    Driver, driver_sys::CUresult {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut CUdevice, c_int);
        cuDeviceGetName(*mut c_char, c_int, CUdevice);
        cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
        cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
        cuDeviceGetP2PAttribute(*mut c_int, CUdevice_P2PAttribute, CUdevice, CUdevice);
        cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
        cuCtxSetCurrent(CUcontext);
        cuCtxSynchronize();
        cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
        cuStreamCreateWithPriority(*mut CUstream, c_uint, c_int);
        cuStreamQuery(CUstream);
        cuStreamSynchronize(CUstream);
        cuStreamWaitEvent(CUstream, CUevent, c_uint);
        cuStreamWriteValue32_v2(CUstream, CUdeviceptr, cuuint32_t, c_uint);
        cuStreamWaitValue32_v2(CUstream, CUdeviceptr, cuuint32_t, c_uint);
        cuStreamBatchMemOp_v2(CUstream, c_uint, *mut CUstreamBatchMemOpParams, c_uint);
        cuStreamIsCapturing(CUstream, *mut CUstreamCaptureStatus);
        cuStreamGetCaptureInfo_v3(
            CUstream, *mut CUstreamCaptureStatus, *mut cuuint64_t, *mut CUgraph, *mut *const CUgraphNode,
            *mut *const CUgraphEdgeData, *mut usize,
        );
        cuStreamUpdateCaptureDependencies_v2(
            CUstream, *mut CUgraphNode, *const CUgraphEdgeData, usize, c_uint,
        );
        cuGraphAddBatchMemOpNode(
            *mut CUgraphNode, CUgraph, *const CUgraphNode, usize, *const CUDA_BATCH_MEM_OP_NODE_PARAMS,
        );
        cuGraphExecBatchMemOpNodeSetParams(CUgraphExec, CUgraphNode, *const CUDA_BATCH_MEM_OP_NODE_PARAMS);
        cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
        cuStreamEndCapture(CUstream, *mut CUgraph);
        cuGraphGetNodes(CUgraph, *mut CUgraphNode, *mut usize);
        cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, u64);
        cuGraphLaunch(CUgraphExec, CUstream);
        cuGraphExecDestroy(CUgraphExec);
        cuGraphDestroy(CUgraph);
        cuEventCreate(*mut CUevent, c_uint);
        cuEventRecord(CUevent, CUstream);
        cuPointerGetAttribute(*mut c_void, CUpointer_attribute, CUdeviceptr);
        cuMemAlloc_v2(*mut CUdeviceptr, usize);
        cuMemFree_v2(CUdeviceptr);
        cuMemGetInfo_v2(*mut usize, *mut usize);
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        cuMemFreeHost(*mut c_void);
        cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
        cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
        cuMemcpyDtoH_v2(*mut c_void, CUdeviceptr, usize);
        cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
        cuMemcpy2DAsync_v2(*const CUDA_MEMCPY2D, CUstream);
        cuMemsetD8Async(CUdeviceptr, c_uchar, usize, CUstream);
        cuModuleLoadData(*mut CUmodule, *const c_void);
        cuModuleUnload(CUmodule);
        cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
        cuFuncSetAttribute(CUfunction, CUfunction_attribute, c_int);
        cuLaunchKernel(
            CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void,
            *mut *mut c_void,
        );
        cuIpcGetMemHandle(*mut CUipcMemHandle, CUdeviceptr);
        cuIpcOpenMemHandle_v2(*mut CUdeviceptr, CUipcMemHandle, c_uint);
        cuIpcCloseMemHandle(CUdeviceptr);
    } plain {
        // CUDA 13 renames this function, but keeps this name for existing binaries.
        cuEventElapsedTime(*mut f32, CUevent, CUevent) -> u32;
        cuGetErrorName(u32, *mut *const c_char) -> u32;
        cuGetErrorString(u32, *mut *const c_char) -> u32;
    }
}

use nvrtc_sys::nvrtcProgram;
functions! {
    /// NVRTC, the run-time compiler.
    Nvrtc, nvrtc_sys::nvrtcResult {
        nvrtcVersion(*mut c_int, *mut c_int);
        nvrtcCreateProgram(
            *mut nvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char,
        );
        nvrtcCompileProgram(nvrtcProgram, c_int, *const *const c_char);
        nvrtcGetCUBINSize(nvrtcProgram, *mut usize);
        nvrtcGetCUBIN(nvrtcProgram, *mut c_char);
        nvrtcGetProgramLogSize(nvrtcProgram, *mut usize);
        nvrtcGetProgramLog(nvrtcProgram, *mut c_char);
        nvrtcDestroyProgram(*mut nvrtcProgram);
        nvrtcGetNumSupportedArchs(*mut c_int);
        nvrtcGetSupportedArchs(*mut c_int);
    } plain {
        nvrtcGetErrorString(u32) -> *const c_char;
    }
}

use cublaslt_sys::{
    cublasComputeType_t, cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t, cublasLtMatmulHeuristicResult_t, cublasLtMatmulPreference_t,
    cublasLtMatmulPreferenceAttributes_t, cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t,
    cudaDataType,
};
functions! {
    /// cuBLASLt, for matrix products.
    CublasLt, cublaslt_sys::cublasStatus_t {
        cublasLtCreate(*mut cublasLtHandle_t);
        cublasLtMatmulDescCreate(*mut cublasLtMatmulDesc_t, cublasComputeType_t, cudaDataType);
        cublasLtMatmulDescSetAttribute(
            cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, *const c_void, usize,
        );
        cublasLtMatrixLayoutCreate(*mut cublasLtMatrixLayout_t, cudaDataType, u64, u64, i64);
        cublasLtMatrixLayoutSetAttribute(
            cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, *const c_void, usize,
        );
        cublasLtMatmulPreferenceCreate(*mut cublasLtMatmulPreference_t);
        cublasLtMatmulPreferenceSetAttribute(
            cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, *const c_void, usize,
        );
        cublasLtMatmulAlgoGetHeuristic(
            cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
            cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, c_int,
            *mut cublasLtMatmulHeuristicResult_t, *mut c_int,
        );
        cublasLtMatmulAlgoCheck(
            cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
            cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, *const cublasLtMatmulAlgo_t,
            *mut cublasLtMatmulHeuristicResult_t,
        );
        cublasLtMatmul(
            cublasLtHandle_t, cublasLtMatmulDesc_t, *const c_void, *const c_void, cublasLtMatrixLayout_t,
            *const c_void, cublasLtMatrixLayout_t, *const c_void, *const c_void, cublasLtMatrixLayout_t,
            *mut c_void, cublasLtMatrixLayout_t, *const cublasLtMatmulAlgo_t, *mut c_void, usize,
            cublaslt_sys::cudaStream_t,
        );
    } plain {
        cublasLtGetVersion() -> usize;
        cublasLtGetStatusName(u32) -> *const c_char;
    }
}

use nccl_sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};
functions! {
    /// NCCL, for communication.
    Nccl, nccl_sys::ncclResult_t {
        ncclGetVersion(*mut c_int);
        ncclGetUniqueId(*mut ncclUniqueId);
        ncclCommInitRank(*mut ncclComm_t, c_int, ncclUniqueId, c_int);
        ncclCommDestroy(ncclComm_t);
        ncclGroupStart();
        ncclGroupEnd();
        ncclSend(*const c_void, usize, ncclDataType_t, c_int, ncclComm_t, nccl_sys::cudaStream_t);
        ncclRecv(*mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, nccl_sys::cudaStream_t);
        ncclBroadcast(
            *const c_void, *mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, nccl_sys::cudaStream_t,
        );
        ncclAllGather(*const c_void, *mut c_void, usize, ncclDataType_t, ncclComm_t, nccl_sys::cudaStream_t);
        ncclAllReduce(
            *const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t,
            nccl_sys::cudaStream_t,
        );
        ncclReduce(
            *const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, c_int, ncclComm_t,
            nccl_sys::cudaStream_t,
        );
        ncclReduceScatter(
            *const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t,
            nccl_sys::cudaStream_t,
        );
    } plain {
        ncclCommGetAsyncError(ncclComm_t, *mut u32) -> u32;
        ncclGetErrorString(u32) -> *const c_char;
        ncclGetLastError(ncclComm_t) -> *const c_char;
    }
}

use cudnn_sys::{
    cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, cudnnBackendDescriptor_t,
    cudnnBackendDescriptorType_t, cudnnHandle_t,
};
functions! {
    /// The graph interface of cuDNN, for attention.
    Cudnn, cudnn_sys::cudnnStatus_t {
        cudnnCreate(*mut cudnnHandle_t);
        cudnnSetStream(cudnnHandle_t, cudnn_sys::cudaStream_t);
        cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t, *mut cudnnBackendDescriptor_t);
        cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t);
        cudnnBackendSetAttribute(
            cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, i64,
            *const c_void,
        );
        cudnnBackendGetAttribute(
            cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, i64, *mut i64,
            *mut c_void,
        );
        cudnnBackendFinalize(cudnnBackendDescriptor_t);
        cudnnBackendExecute(cudnnHandle_t, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t);
    } plain {
        cudnnGetVersion() -> usize;
        cudnnGetErrorString(u32) -> *const c_char;
        cudnnGetLastErrorString(*mut c_char, usize) -> ();
    }
}

/// Defines a function that opens a library once in the process.
macro_rules! once {
    ($(#[$doc:meta])* $function:ident, $type:ident, $wanted:expr) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// The library or one of its functions is missing.
        pub(super) fn $function() -> Result<&'static $type> {
            static FOUND: OnceLock<Result<$type>> = OnceLock::new();
            FOUND.get_or_init(|| $wanted.open().and_then($type::load)).as_ref().map_err(Clone::clone)
        }
    };
}

once! {
    /// Returns the CUDA driver.
    driver, Driver, DRIVER
}
once! {
    /// Returns NVRTC.
    nvrtc, Nvrtc, NVRTC
}
once! {
    /// Returns cuBLASLt.
    cublaslt, CublasLt, CUBLASLT
}
once! {
    /// Returns cuDNN.
    cudnn, Cudnn, CUDNN
}
once! {
    /// Returns NCCL.
    nccl, Nccl, NCCL
}

impl Driver {
    /// Converts a status to a result.
    pub fn check(&self, function: &str, status: u32) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        let (mut name, mut text) = (std::ptr::null(), std::ptr::null());
        // SAFETY: both functions set the pointer to a static string, or to null for a code that they do not
        // know.
        unsafe {
            (self.cuGetErrorName)(status, &raw mut name);
            (self.cuGetErrorString)(status, &raw mut text);
        }
        Err(ExecutorError::failed_call(function, status, &format!("{}: {}", string(name), string(text))))
    }
}

impl Nvrtc {
    /// Converts a status to a result.
    pub fn check(&self, function: &str, status: u32) -> Result<()> {
        // SAFETY: the function returns a static string for any number.
        let text = || string(unsafe { (self.nvrtcGetErrorString)(status) });
        if status == 0 { Ok(()) } else { Err(ExecutorError::failed_call(function, status, &text())) }
    }
}

impl CublasLt {
    /// Converts a status to a result.
    pub fn check(&self, function: &str, status: u32) -> Result<()> {
        // SAFETY: the function returns a static string for any number.
        let text = || string(unsafe { (self.cublasLtGetStatusName)(status) });
        if status == 0 { Ok(()) } else { Err(ExecutorError::failed_call(function, status, &text())) }
    }
}

impl Cudnn {
    /// Converts a status to a result.
    pub fn check(&self, function: &str, status: u32) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        let mut last: [c_char; 512] = [0; 512];
        // SAFETY: the first function returns a static string for any number; the second one writes a terminated string of at most the given
        // size.
        let name = unsafe {
            (self.cudnnGetLastErrorString)(last.as_mut_ptr(), last.len());
            string((self.cudnnGetErrorString)(status))
        };
        Err(ExecutorError::failed_call(function, status, &format!("{name}: {}", string(last.as_ptr()))))
    }
}

impl Nccl {
    /// Converts a status to a result.
    pub fn check(&self, function: &str, status: u32) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: both functions return strings that NCCL owns; the second accepts a null communicator.
        let (text, last) = unsafe {
            (string((self.ncclGetErrorString)(status)), string((self.ncclGetLastError)(std::ptr::null_mut())))
        };
        Err(ExecutorError::failed_call(function, status, &format!("{text}; {last}")))
    }
}

/// Returns a version that a library gives as one number: major version times 10000, minor version times 100, and patch level.
pub(super) fn version_text(version: usize) -> String {
    format!("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100)
}

/// Converts a C string; returns `?` for null.
fn string(text: *const c_char) -> String {
    if text.is_null() {
        return "?".to_owned();
    }
    // SAFETY: not null, and the callers pass terminated strings that are alive.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned()
}
