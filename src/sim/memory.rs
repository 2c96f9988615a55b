//! The memory of ranks: the elements of every buffer, a mask of written elements, and the f64 shadow.
//!
//! Invariants: a copy of an unwritten element is unwritten, and nothing else is known about such an element.
//! A buffer without a shadow holds values that all orders of summation and all engines produce.

use std::{collections::hash_map::Entry, sync::Arc};

use grammar::DType;
use rustc_hash::FxHashMap;

use hir_plan::{Buffer, BufferNo, View};
pub use hir_tensor::data::{Shadow, WrittenMask};
use hir_tensor::{
    data::{Data, UnsupportedDtype},
    dense::DenseTensor,
};

/// The contents of one buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct BufferData {
    /// The elements; 0 where unwritten.
    pub data: Data,
    /// The mask of written elements.
    pub written: WrittenMask,
    /// The values without rounding, from the first inexact value on.
    pub shadow: Option<Shadow>,
}

impl BufferData {
    /// Returns unwritten contents.
    ///
    /// # Errors
    /// `Data` does not support the element type.
    pub fn unwritten(dtype: DType, len: usize) -> Result<Self, UnsupportedDtype> {
        Ok(Self { data: Data::zeros(dtype, len)?, written: WrittenMask::empty(len), shadow: None })
    }

    /// Returns contents whose elements are all written.
    pub fn full(data: Data) -> Self {
        Self { written: WrittenMask::full(data.len()), data, shadow: None }
    }

    /// Returns contents of zeros, as after an allocation with `zero`.
    ///
    /// # Errors
    /// Like `unwritten`.
    pub fn zeroed(dtype: DType, len: usize) -> Result<Self, UnsupportedDtype> {
        Data::zeros(dtype, len).map(Self::full)
    }
}

/// A tensor as the contents of a buffer, in row-major order.
impl From<DenseTensor> for BufferData {
    fn from(block: DenseTensor) -> Self {
        Self { data: block.data, written: block.written, shadow: block.shadow }
    }
}

/// The buffers of one rank. Ranks with equal contents, as those of a replicated tensor, share them until one of them writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    buffers: Vec<Arc<BufferData>>,
}

/// The unwritten contents that buffers of one type and length share.
#[derive(Default)]
pub struct UnwrittenBuffers(FxHashMap<(DType, usize), Arc<BufferData>>);

impl UnwrittenBuffers {
    /// Returns unwritten storage for every buffer of a plan.
    ///
    /// # Errors
    /// `Data` does not support an element type.
    pub fn memory(&mut self, buffers: &[Buffer]) -> Result<Memory, UnsupportedDtype> {
        let contents = |it: &Buffer| {
            Ok(match self.0.entry((it.dtype, it.len)) {
                Entry::Occupied(known) => Arc::clone(known.get()),
                Entry::Vacant(new) => {
                    Arc::clone(new.insert(Arc::new(BufferData::unwritten(it.dtype, it.len)?)))
                }
            })
        };
        Ok(Memory { buffers: buffers.iter().map(contents).collect::<Result<_, _>>()? })
    }
}

impl Memory {
    /// Returns unwritten storage for every buffer of a plan.
    ///
    /// # Errors
    /// `Data` does not support an element type.
    pub fn new(buffers: &[Buffer]) -> Result<Self, UnsupportedDtype> {
        UnwrittenBuffers::default().memory(buffers)
    }

    /// Returns the number of buffers.
    pub fn len(&self) -> usize {
        self.buffers.len()
    }

    /// Returns true if there are no buffers.
    pub fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    /// Returns the contents of a buffer.
    pub fn buffer(&self, buffer: BufferNo) -> &Arc<BufferData> {
        &self.buffers[buffer as usize]
    }

    /// Returns the mutable contents of a buffer. Other ranks may share them.
    pub fn buffer_mut(&mut self, buffer: BufferNo) -> &mut Arc<BufferData> {
        &mut self.buffers[buffer as usize]
    }
}

/// Copies the elements of a view to a dense tensor. The view must lie inside the buffer.
pub fn gather(cell: &BufferData, view: &View) -> DenseTensor {
    DenseTensor {
        shape: view.shape.clone(),
        data: cell.data.gather(view),
        written: cell.written.gather(view),
        shadow: cell.shadow.as_ref().map(|it| it.gather(view)),
    }
}

/// Writes a tensor to a view with the same number of elements. Elements that are unwritten in the tensor
/// become unwritten. Returns false and writes nothing if the element types differ.
pub fn scatter(cell: &mut BufferData, view: &View, block: &DenseTensor) -> bool {
    if !cell.data.scatter(view, &block.data) {
        return false;
    }
    cell.written.scatter(view, &block.written);
    match (&mut cell.shadow, &block.shadow) {
        (None, None) => {}
        (slot, _) if is_whole(view, cell.data.len()) => slot.clone_from(&block.shadow),
        (Some(shadow), _) => shadow.scatter(view, &block.shadow()),
        (slot @ None, Some(from)) => {
            // The other elements of the buffer are exact, and those of the view are overwritten.
            slot.insert(Shadow::of(&cell.data)).scatter(view, from);
        }
    }
    true
}

/// Returns true if a view covers the whole buffer in its order.
pub fn is_whole(view: &View, len: usize) -> bool {
    view.len() == len && view.is_contiguous()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Exactness, convert};

    #[test]
    fn copies_carry_what_is_unwritten() -> Result<(), UnsupportedDtype> {
        let buffer = |dtype| Buffer::new("T0", dtype, 4);
        let mut memory = Memory::new(&[buffer(DType::Float), buffer(DType::BFloat)])?;
        let row = View { buffer: 0, offset: 2, shape: vec![2], strides: vec![1] };
        assert!(scatter(
            Arc::make_mut(memory.buffer_mut(0)),
            &row,
            &DenseTensor::full(vec![2], Data::F32(vec![0.1, 3.0]))
        ));
        let block = gather(memory.buffer(0), &View::contiguous(0, vec![2, 2]));
        assert_eq!(block.shape, [2, 2]);
        assert_eq!(block.written, WrittenMask::from_flags(vec![false, false, true, true]));

        // Another type is refused. Copying the unwritten half makes elements unwritten that were written
        // before.
        Arc::make_mut(memory.buffer_mut(1)).written = WrittenMask::full(4);
        assert!(!scatter(Arc::make_mut(memory.buffer_mut(1)), &View::contiguous(1, vec![4]), &block));
        let block = convert(&block, DType::BFloat, &mut Exactness::default()).ok();
        let block = block.unwrap_or(DenseTensor::full(Vec::new(), Data::Bool(Vec::new())));
        assert!(scatter(Arc::make_mut(memory.buffer_mut(1)), &View::contiguous(1, vec![4]), &block));
        assert_eq!(memory.buffer(1).written, block.written);
        // bf16 represents 3 but not 0.1; the shadow keeps 0.1.
        assert_eq!(memory.buffer(1).data.to_f64(), [0.0, 0.0, 0.10009765625, 3.0]);
        let exact = memory.buffer(1).shadow.as_ref().map(|it| it.lane(0).to_vec());
        assert_eq!(exact, Some(vec![0.0, 0.0, f64::from(0.1f32), 3.0]));
        Ok(())
    }

    #[test]
    fn zeroed_storage_is_written() -> Result<(), UnsupportedDtype> {
        assert!(BufferData::zeroed(DType::Int32, 3)?.written.is_full());
        assert!(!BufferData::unwritten(DType::Int32, 3)?.written.is_full());
        assert!(Memory::new(&[Buffer::new("T1", DType::Complex64, 1)]).is_err());
        Ok(())
    }
}
