//! Copies inputs to a plan's memory and outputs from it.

use std::sync::Arc;

use grammar::dtype::Class;

use super::{Engine, Input, bytes};
use crate::{
    ExecutorError, ProcessGroup, Result,
    device::Stream,
    kernels::{BLOCK, CommonKernel},
};
use hir_plan::View;
use hir_tensor::{
    data::{Data, bytes::of_little_endian},
    dense::DenseTensor,
};

/// Maximum number of blocks that negate an input: enough to use the bandwidth of the memory.
const NEGATE_BLOCKS: usize = 1024;

impl Engine {
    /// Poisons all memory and uploads the inputs: for each input, this rank's part in row-major order.
    ///
    /// # Errors
    /// An input does not fit, or a call fails.
    pub(super) fn load_inputs(&mut self, inputs: &[Arc<Data>], peers: &dyn ProcessGroup) -> Result<()> {
        let rank = self.plan().rank;
        // Signals only increase, so they keep their values.
        let signal_bytes = self.memory.assignment.signal_bytes;
        let segment = self.memory.symmetric[rank] + signal_bytes as u64;
        self.device.memset(
            segment,
            0xff,
            self.memory.assignment.symmetric_bytes - signal_bytes,
            self.main_stream,
        )?;
        let (private, bytes) = self.memory.private_segment();
        self.device.memset(private, 0xff, bytes, self.main_stream)?;
        if inputs.len() != self.inputs.len() {
            return Err(ExecutorError::Internal(format!(
                "{} inputs were passed, {} are expected",
                inputs.len(),
                self.inputs.len()
            )));
        }
        for (input, data) in self.inputs.iter().zip(inputs) {
            let Some(it) = input else { continue };
            let bytes = bytes::of(data);
            if bytes.len() != it.bytes {
                return Err(ExecutorError::Internal(format!(
                    "{} bytes were passed for an input of {} bytes",
                    bytes.len(),
                    it.bytes
                )));
            }
            self.device.upload(it.address, bytes, self.main_stream)?;
            if let Some(backup) = it.backup {
                self.device.upload(backup, bytes, self.main_stream)?;
            }
        }
        self.device.synchronize(self.main_stream)?;
        peers.barrier()
    }

    /// Returns the outputs of the last run from host memory.
    pub(super) fn read_outputs(&self) -> Result<Vec<Option<DenseTensor>>> {
        let mut blocks = Vec::with_capacity(self.outputs.len());
        for output in &self.outputs {
            blocks.push(match output {
                None => None,
                Some(it) => {
                    // SAFETY: `host_buffer` has this many bytes, and the copies to it are complete.
                    let bytes = unsafe { std::slice::from_raw_parts(it.host_buffer, it.bytes) };
                    let whole = of_little_endian(it.dtype, bytes)
                        .map_err(|it| ExecutorError::Internal(format!("cannot read an output: {it}")))?;
                    Some(DenseTensor::full(it.view.shape.clone(), whole.gather(&it.view)))
                }
            });
        }
        Ok(blocks)
    }

    /// Reads views of this rank after the last run. Their host memory is not page-locked: locking takes
    /// longer than the copy.
    ///
    /// # Errors
    /// A view lies outside its buffer, or a call fails.
    pub(super) fn read_views(&self, views: &[&View]) -> Result<Vec<DenseTensor>> {
        let rank = self.plan().rank;
        let mut blocks = Vec::with_capacity(views.len());
        for view in views {
            self.memory.view_address(rank, view)?;
            let mut bytes = vec![0; self.memory.assignment.ranks[rank].buffers[view.buffer as usize].bytes];
            self.device.read(&mut bytes, self.memory.buffer_address(rank, view.buffer)?)?;
            let whole = of_little_endian(self.memory.view_dtype(rank, view), &bytes)
                .map_err(|it| ExecutorError::Internal(format!("cannot read a tensor: {it}")))?;
            blocks.push(DenseTensor::full(view.shape.clone(), whole.gather(view)));
        }
        Ok(blocks)
    }

    /// Copies the outputs to the host after the work on a stream.
    pub(super) fn copy_outputs_to_host(&self, stream: Stream) -> Result<()> {
        self.outputs
            .iter()
            .flatten()
            .try_for_each(|it| self.device.download(it.host_buffer, it.address, it.bytes, stream))
    }

    /// Overwrites the outputs that the program writes to, so that elements that a run does not write become
    /// visible.
    pub(super) fn poison(&self) -> Result<()> {
        self.outputs
            .iter()
            .flatten()
            .filter(|it| it.is_written)
            .try_for_each(|it| self.device.memset(it.address, 0xff, it.bytes, self.main_stream))
    }

    /// Negates the floating-point elements of the inputs for which `is_chosen` returns true.
    pub(super) fn negate_inputs(&self, is_chosen: impl Fn(&Input) -> bool) -> Result<()> {
        let kernel = self.executable.common_kernel(CommonKernel::Negate);
        for (input, port) in self.inputs.iter().zip(&self.plan().inputs) {
            let Some(it) = input.as_ref().filter(|it| it.bytes > 0 && is_chosen(it)) else { continue };
            if port.dtype.class() != Class::Float {
                continue;
            }
            let count = it.bytes / port.dtype.size();
            let blocks = count.div_ceil(BLOCK as usize).min(NEGATE_BLOCKS) as u32;
            let words = [self.executable.epoch_address, it.address, count as u64, port.dtype.size() as u64];
            self.device.launch(kernel, blocks, BLOCK, &words, self.main_stream)?;
        }
        Ok(())
    }

    /// Restores the inputs that the program has written to.
    pub(super) fn restore(&self) -> Result<()> {
        for it in self.inputs.iter().flatten() {
            if let Some(backup) = it.backup.filter(|_| it.bytes > 0) {
                self.device.copy(it.address, backup, it.bytes, self.main_stream)?;
            }
        }
        Ok(())
    }
}
