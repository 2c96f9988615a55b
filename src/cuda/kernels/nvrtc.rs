//! Compiles kernels with NVRTC. This needs no GPU.

use std::ffi::{CString, c_char, c_int};

use cudarc::nvrtc::sys;

use crate::{ExecutorError, Result, library};

/// Compiles the source of kernels, which `names` describes, to machine code for one compute capability (90 for 9.0).
///
/// # Errors
/// NVRTC is missing, does not support the capability, or rejects the source. The error then contains the description and the log.
pub(crate) fn compile(source: &str, capability: i32, names: &str) -> Result<Vec<u8>> {
    let nvrtc = library::nvrtc()?;
    let supported = capabilities()?;
    if !supported.contains(&capability) {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the pointers are to live integers.
        nvrtc.check("nvrtcVersion", unsafe { (nvrtc.nvrtcVersion)(&raw mut major, &raw mut minor) })?;
        return Err(ExecutorError::Environment(format!(
            "NVRTC {major}.{minor} (`{}`) does not compile for compute capability {}.{}",
            nvrtc.path,
            capability / 10,
            capability % 10
        )));
    }
    let text = CString::new(source)
        .map_err(|_| ExecutorError::Internal("a kernel source contains a NUL byte".to_owned()))?;
    let mut program: sys::nvrtcProgram = std::ptr::null_mut();
    // SAFETY: the source is terminated, the name is a terminated string, and there are no headers.
    let status = unsafe {
        (nvrtc.nvrtcCreateProgram)(
            &raw mut program,
            text.as_ptr(),
            c"hir".as_ptr(),
            0,
            std::ptr::null(),
            std::ptr::null(),
        )
    };
    nvrtc.check("nvrtcCreateProgram", status)?;
    // With the suffix, instructions that only this architecture has are allowed: `attention.cu` uses those of 9.0.
    let suffix = if capability == 90 { "a" } else { "" };
    let architecture =
        CString::new(format!("--gpu-architecture=sm_{capability}{suffix}")).unwrap_or_default();
    // Without fused multiply-add, a product and a sum are rounded separately, as in the simulator. Warnings, of values that an
    // instance does not use, would hide the errors in the log.
    let options: [*const c_char; 4] = [
        architecture.as_ptr(),
        c"--std=c++17".as_ptr(),
        c"--fmad=false".as_ptr(),
        c"--disable-warnings".as_ptr(),
    ];
    // SAFETY: the program is live and the options are terminated strings.
    let status = unsafe { (nvrtc.nvrtcCompileProgram)(program, options.len() as c_int, options.as_ptr()) };
    let result = match status {
        0 => cubin(nvrtc, program),
        _ => {
            let text = format!("{names} does not compile: {}", log(nvrtc, program));
            Err(ExecutorError::failed_call("nvrtcCompileProgram", status, &text))
        }
    };
    // SAFETY: the program is live, and this is its last use.
    let destroyed = unsafe { (nvrtc.nvrtcDestroyProgram)(&raw mut program) };
    let bytes = result?;
    nvrtc.check("nvrtcDestroyProgram", destroyed).map(|()| bytes)
}

/// Returns the compute capabilities that NVRTC compiles for.
///
/// # Errors
/// NVRTC is missing.
pub(crate) fn capabilities() -> Result<Vec<i32>> {
    let nvrtc = library::nvrtc()?;
    let mut count: c_int = 0;
    // SAFETY: the pointer is to a live integer.
    let status = unsafe { (nvrtc.nvrtcGetNumSupportedArchs)(&raw mut count) };
    nvrtc.check("nvrtcGetNumSupportedArchs", status)?;
    let mut list = vec![0 as c_int; count.max(0) as usize];
    // SAFETY: the list has the length that the library has returned.
    nvrtc.check("nvrtcGetSupportedArchs", unsafe { (nvrtc.nvrtcGetSupportedArchs)(list.as_mut_ptr()) })?;
    Ok(list)
}

fn cubin(nvrtc: &library::Nvrtc, program: sys::nvrtcProgram) -> Result<Vec<u8>> {
    let mut size = 0;
    // SAFETY: the program is compiled and the pointer is to a live integer.
    nvrtc.check("nvrtcGetCUBINSize", unsafe { (nvrtc.nvrtcGetCUBINSize)(program, &raw mut size) })?;
    let mut bytes = vec![0u8; size];
    // SAFETY: the buffer has the size that the library has returned.
    nvrtc.check("nvrtcGetCUBIN", unsafe { (nvrtc.nvrtcGetCUBIN)(program, bytes.as_mut_ptr().cast()) })?;
    Ok(bytes)
}

fn log(nvrtc: &library::Nvrtc, program: sys::nvrtcProgram) -> String {
    let mut size = 0;
    // SAFETY: the program is live and the pointer is to a live integer.
    if unsafe { (nvrtc.nvrtcGetProgramLogSize)(program, &raw mut size) } != 0 {
        return "no log".to_owned();
    }
    let mut bytes = vec![0u8; size];
    // SAFETY: the buffer has the size that the library has returned.
    unsafe { (nvrtc.nvrtcGetProgramLog)(program, bytes.as_mut_ptr().cast()) };
    String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned()
}
