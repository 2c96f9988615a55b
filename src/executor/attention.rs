//! Attentions that a library of the process computes: PyTorch, in whose process the executor runs, has kernels of its own for them.

use grammar::DType;

use super::ExecutorError;

/// Kernels for attentions. Any thread may use it.
pub trait AttentionLibrary: Send + Sync {
    /// Returns the bytes of memory that the library needs for a task, besides the tensors: 0 if it does not know, or if it cannot use the memory
    /// that a task gives it. The addresses need not be final, but have the alignment of the final ones.
    ///
    /// # Errors
    /// The library does not compute the task.
    fn prepare(&self, task: &AttentionTask) -> Result<usize, ExecutorError>;

    /// Returns the maximum number of kernels and copies that a task launches.
    fn launches(&self, task: &AttentionTask) -> usize;

    /// Issues a task on a stream, a handle of the vendor's library. The stream may be one that is captured, after a first call that was not.
    ///
    /// # Errors
    /// The library fails, in its words.
    fn issue(&self, task: &AttentionTask, stream: u64) -> Result<(), ExecutorError>;
}

impl AttentionTask {
    /// Bytes to which every tensor is aligned.
    pub const ALIGNMENT: usize = 16;
}

/// An attention, or the gradients of one.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionTask {
    /// Query, keys, values and result `[b, h, l, k]`, then the logarithms of the sums of exponentials `[b, h, l]` if they are wanted. For
    /// gradients, all of these are operands, and the gradients of result, query, keys and values follow.
    pub tensors: Vec<DeviceTensor>,
    /// Whether the gradients are computed.
    pub is_gradient: bool,
    /// Whether row `i` attends to the keys 0 to `i` only; there are as many keys as rows then.
    pub is_causal: bool,
    /// The factor of the scores.
    pub scale: f64,
    /// Address and bytes of memory for intermediate values, which nothing else uses meanwhile; 0 bytes if there is none.
    pub workspace: (u64, usize),
}

/// A tensor in the memory of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceTensor {
    /// The address of the first element.
    pub address: u64,
    /// The element type.
    pub dtype: DType,
    /// The extents, slowest dimension first.
    pub shape: Vec<usize>,
    /// The distance of neighbours along each dimension, in elements.
    pub strides: Vec<usize>,
}
