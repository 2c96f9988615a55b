//! Finds the GPUs of this process before any of them is used.

use std::ffi::c_int;

use cudarc::driver::sys;

use super::{
    ExecutorError, Result,
    library::{self, Driver},
};

/// The oldest supported driver version: CUDA 12.3, the first with all functions that are called.
const OLDEST_DRIVER: i32 = 12030;

/// Returns the names of the GPUs that this process may use.
///
/// # Errors
/// There is no driver, it is too old, or it finds no GPU.
pub fn device_names() -> Result<Vec<String>> {
    let driver = library::driver()?;
    let version = driver_version(driver)?;
    if version < OLDEST_DRIVER {
        return Err(ExecutorError::Environment(format!(
            "the driver `{}` supports CUDA {}.{}; 12.3 or later is needed",
            driver.path,
            version / 1000,
            version % 1000 / 10
        )));
    }
    // SAFETY: the only argument is the flags, which have to be 0.
    let status = unsafe { (driver.cuInit)(0) };
    driver.check("cuInit", status).map_err(|it| {
        ExecutorError::Environment(format!("the driver `{}` finds no usable GPU: {it}", driver.path))
    })?;
    let mut count: c_int = 0;
    // SAFETY: the pointer is to a live integer.
    driver.check("cuDeviceGetCount", unsafe { (driver.cuDeviceGetCount)(&raw mut count) })?;
    (0..count).map(|at| name(driver, handle(driver, at)?)).collect()
}

/// Returns the version of CUDA that the driver supports: 13000 for 13.0.
pub(super) fn driver_version(driver: &Driver) -> Result<c_int> {
    let mut version: c_int = 0;
    // SAFETY: the pointer is to a live integer; this function may be called before `cuInit`.
    driver.check("cuDriverGetVersion", unsafe { (driver.cuDriverGetVersion)(&raw mut version) })?;
    Ok(version)
}

/// Returns the handle of a GPU.
pub(super) fn handle(driver: &Driver, ordinal: c_int) -> Result<sys::CUdevice> {
    let mut device: sys::CUdevice = 0;
    // SAFETY: the pointer is to a live handle.
    driver.check("cuDeviceGet", unsafe { (driver.cuDeviceGet)(&raw mut device, ordinal) })?;
    Ok(device)
}

/// Returns the name of a GPU.
pub(super) fn name(driver: &Driver, device: sys::CUdevice) -> Result<String> {
    let mut text = [0u8; 128];
    // SAFETY: the buffer has the length that is passed; the driver terminates what it writes.
    let status = unsafe { (driver.cuDeviceGetName)(text.as_mut_ptr().cast(), text.len() as c_int, device) };
    driver.check("cuDeviceGetName", status)?;
    let end = text.iter().position(|it| *it == 0).unwrap_or(text.len());
    Ok(String::from_utf8_lossy(&text[..end]).into_owned())
}

/// Returns the UUID of a GPU.
pub(super) fn uuid(driver: &Driver, device: sys::CUdevice) -> Result<[u8; 16]> {
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: the device is valid and the pointer is to a live identifier.
    driver.check("cuDeviceGetUuid", unsafe { (driver.cuDeviceGetUuid_v2)(&raw mut uuid, device) })?;
    Ok(uuid.bytes.map(|it| it as u8))
}

/// Chooses the GPU for a rank of this host; with `shared`, ranks share GPUs if there are too few. Returns its
/// ordinal among the GPUs that this process sees, and its UUID.
///
/// # Errors
/// Those of `device_names`, or the host has too few GPUs.
pub(super) fn choose_device(local_rank: usize, shared: bool) -> Result<(usize, String)> {
    let names = device_names()?;
    // A launcher that assigns each process its own GPU makes only that one visible.
    let own = names.len() == 1 && std::env::var_os("CUDA_VISIBLE_DEVICES").is_some();
    let ordinal = match (own, shared) {
        (true, _) => 0,
        (false, true) => local_rank % names.len().max(1),
        (false, false) => local_rank,
    };
    if ordinal >= names.len() {
        return Err(ExecutorError::Environment(format!(
            "a rank needs GPU {ordinal} of its host, which has {} ({}); `CUDA_VISIBLE_DEVICES` may hide some",
            names.len(),
            names.join(", ")
        )));
    }
    device(ordinal)
}

/// Returns the ordinal of a GPU of this process, and its UUID.
///
/// # Errors
/// Those of `device_names`, or there is no such GPU.
pub(super) fn device(ordinal: usize) -> Result<(usize, String)> {
    if ordinal >= device_names()?.len() {
        return Err(ExecutorError::Environment(format!("this process has no GPU {ordinal}")));
    }
    let driver = library::driver()?;
    let uuid = uuid(driver, handle(driver, ordinal as c_int)?)?;
    let digits: String = uuid.iter().map(|it| format!("{it:02x}")).collect();
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    Ok((ordinal, format!("GPU-{}", parts.join("-"))))
}

/// Environment variable that replaces the identity of this host. Ranks with different values treat each other as
/// ranks of different hosts; `NCCL_HOSTID` does the same for NCCL.
const HOST_VARIABLE: &str = "HIR_HOSTID";

/// Returns a string that identifies this host.
pub(super) fn host_id() -> String {
    if let Some(given) = std::env::var(HOST_VARIABLE).ok().filter(|it| !it.is_empty()) {
        return given;
    }
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{} {}", name.trim(), boot.trim())
}
