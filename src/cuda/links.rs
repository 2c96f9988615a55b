//! Links between GPUs: whether a GPU reaches another one over NVLink.
//!
//! Packets of 128 bytes (`kernels::packets`) rely on stores of 128 bytes that arrive as a whole. NVLink delivers
//! them so, PCIe does not; NCCL makes the same distinction for its protocol LL128. The driver has no attribute for
//! the kind of link, but only NVLink supports native atomic operations between GPUs.

use std::ffi::c_int;

use cudarc::driver::sys;

use super::{
    Result,
    device::Device,
    discover::{self, handle},
};

impl Device {
    /// Returns the UUID of this GPU.
    pub fn uuid(&self) -> Result<[u8; 16]> {
        discover::uuid(self.driver, self.handle)
    }

    /// Returns whether this GPU reaches the GPU with a UUID over NVLink, or is that GPU. Returns false if this
    /// process does not see the other GPU, since the driver then cannot tell.
    pub fn has_nvlink_to(&self, peer: &[u8]) -> Result<bool> {
        if self.uuid()? == peer {
            return Ok(true);
        }
        for ordinal in 0..discover::device_names()?.len() {
            let other = handle(self.driver, ordinal as c_int)?;
            if discover::uuid(self.driver, other)? != peer {
                continue;
            }
            let mut value: c_int = 0;
            let atomics = sys::CUdevice_P2PAttribute_enum::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
            // SAFETY: the pointer is to a live integer and both devices are valid.
            let status =
                unsafe { (self.driver.cuDeviceGetP2PAttribute)(&raw mut value, atomics, self.handle, other) };
            return self.driver.check("cuDeviceGetP2PAttribute", status).map(|()| value != 0);
        }
        Ok(false)
    }
}
