//! What a process keeps from one plan to the next: its GPU, the communicators that it has joined, the handle of cuBLASLt, and
//! compiled kernels.
//!
//! Starting them takes seconds on a host of eight GPUs; a job of many programs pays that once.

use rustc_hash::FxHashMap;

use super::{CudaError, Peers, comm::Joined, device::Device, gemm::Products};

/// The GPU of this rank, which no other rank takes, for one plan after another.
pub struct Gpu {
    /// Its number among those that this process sees.
    ordinal: usize,
    device: Option<Device>,
    libraries: Libraries,
}

/// What libraries have made for this process.
#[derive(Default)]
pub(super) struct Libraries {
    pub joined: Joined,
    pub products: Option<Products>,
    /// What NVRTC has made of sources: a program that runs again, step by step or as a graph, has the same.
    pub cubins: FxHashMap<String, Vec<u8>>,
}

impl Gpu {
    pub(super) fn at(ordinal: usize) -> Self {
        Self { ordinal, device: None, libraries: Libraries::default() }
    }

    /// The GPU with nothing of the last plan on it, and whether there was one. All ranks have to call this.
    ///
    /// # Errors
    /// A GPU that does not start, a rank that does not answer.
    pub(super) fn start(&mut self, peers: &dyn Peers) -> Result<(&Device, &mut Libraries, bool), CudaError> {
        let (device, again) = match self.device.take() {
            None => (Device::open(self.ordinal)?, false),
            Some(device) => {
                device.release(peers)?;
                (device, true)
            }
        };
        Ok((self.device.insert(device), &mut self.libraries, again))
    }
}
