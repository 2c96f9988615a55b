//! What goes into a plan's memory and what comes out of it.

use super::{Engine, bytes};
use crate::{
    cuda::{CudaError, ProcessGroup, device::Stream},
    io::data::Data,
    io::dense::DenseTensor,
    plan::View,
};

impl Engine {
    /// Poisons all memory and puts the inputs into it, row-major parts by input.
    ///
    /// # Errors
    /// Inputs that do not fit, a failed call.
    pub fn load_inputs(&mut self, inputs: &[Data], peers: &dyn ProcessGroup) -> Result<(), CudaError> {
        let rank = self.plan().rank;
        // Flags only ever grow: they keep their values.
        let flags = self.memory.assignment.signal_bytes;
        let segment = self.memory.symmetric[rank] + flags as u64;
        self.device.memset(
            segment,
            0xff,
            self.memory.assignment.symmetric_bytes - flags,
            self.main_stream,
        )?;
        let (private, bytes) = self.memory.private_segment();
        self.device.memset(private, 0xff, bytes, self.main_stream)?;
        if inputs.len() != self.inputs.len() {
            return Err(CudaError::Internal(format!("{} inputs for {}", inputs.len(), self.inputs.len())));
        }
        for (input, data) in self.inputs.iter().zip(inputs) {
            let Some(it) = input else { continue };
            let bytes = bytes::of(data);
            if bytes.len() != it.bytes {
                return Err(CudaError::Internal(format!(
                    "{} bytes for an input of {}",
                    bytes.len(),
                    it.bytes
                )));
            }
            self.device.upload(it.address, bytes, self.main_stream)?;
            if let Some(kept) = it.backup {
                self.device.upload(kept, bytes, self.main_stream)?;
            }
        }
        self.device.synchronize(self.main_stream)?;
        peers.barrier()
    }

    /// The outputs as the last run has left them on the host.
    pub(super) fn read_outputs(&self) -> Result<Vec<Option<DenseTensor>>, CudaError> {
        let mut blocks = Vec::with_capacity(self.outputs.len());
        for output in &self.outputs {
            blocks.push(match output {
                None => None,
                Some(it) => {
                    // SAFETY: `host` has so many bytes, and the copies to it are done.
                    let bytes = unsafe { std::slice::from_raw_parts(it.host_buffer, it.bytes) };
                    let whole = bytes::data(it.dtype, bytes)
                        .map_err(|it| CudaError::Internal(format!("an output: {it}")))?;
                    Some(DenseTensor::full(it.view.shape.clone(), whole.gather(&it.view)))
                }
            });
        }
        Ok(blocks)
    }

    /// What views of this rank hold after the last run. Host memory for it is not page-locked, which takes longer than to copy.
    ///
    /// # Errors
    /// Views outside memory, a failed call.
    pub fn read_views(&self, views: &[&View]) -> Result<Vec<DenseTensor>, CudaError> {
        let rank = self.plan().rank;
        let mut blocks = Vec::with_capacity(views.len());
        for view in views {
            self.memory.view_address(rank, view)?;
            let mut bytes = vec![0; self.memory.assignment.ranks[rank].buffers[view.buffer as usize].bytes];
            self.device.read(&mut bytes, self.memory.buffer_address(rank, view.buffer)?)?;
            let whole = bytes::data(self.memory.view_dtype(rank, view), &bytes)
                .map_err(|it| CudaError::Internal(format!("a tensor to be written: {it}")))?;
            blocks.push(DenseTensor::full(view.shape.clone(), whole.gather(view)));
        }
        Ok(blocks)
    }

    /// Copies the outputs to the host after what is on a stream.
    pub(super) fn copy_outputs_to_host(&self, stream: Stream) -> Result<(), CudaError> {
        self.outputs
            .iter()
            .flatten()
            .try_for_each(|it| self.device.download(it.host_buffer, it.address, it.bytes, stream))
    }

    /// Overwrites the outputs that the program writes to: what a run leaves out shows.
    pub(super) fn poison(&self) -> Result<(), CudaError> {
        self.outputs
            .iter()
            .flatten()
            .filter(|it| it.is_written)
            .try_for_each(|it| self.device.memset(it.address, 0xff, it.bytes, self.main_stream))
    }

    /// Puts back the inputs that the program has written to.
    pub(super) fn restore(&self) -> Result<(), CudaError> {
        for it in self.inputs.iter().flatten() {
            if let Some(kept) = it.backup.filter(|_| it.bytes > 0) {
                self.device.copy(it.address, kept, it.bytes, self.main_stream)?;
            }
        }
        Ok(())
    }
}
