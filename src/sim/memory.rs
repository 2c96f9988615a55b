//! What ranks store: every buffer's elements, which of them have been written, and their f64 shadow.
//!
//! Invariants: a copy of an unwritten element is unwritten; nothing else is known about it. A buffer without a shadow holds
//! values that all orders of summation and all engines give.

use grammar::dtype::DType;

pub use crate::io::data::{Shadow, WrittenMask};
use crate::{
    io::{
        data::{Data, UnsupportedDtype},
        dense::DenseTensor,
    },
    plan::{Buffer, BufferNo, View},
};

/// The storage of one buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct BufferData {
    /// Elements; 0 where unwritten.
    pub data: Data,
    /// Which elements have been written.
    pub written: WrittenMask,
    /// The values without rounding, from the first inexact one on.
    pub shadow: Option<Shadow>,
}

impl BufferData {
    /// Unwritten storage.
    ///
    /// # Errors
    /// An element type that `Data` does not hold.
    pub fn unwritten(dtype: DType, len: usize) -> Result<Self, UnsupportedDtype> {
        Ok(Self { data: Data::zeros(dtype, len)?, written: WrittenMask::empty(len), shadow: None })
    }

    /// Storage whose elements are all written.
    pub fn full(data: Data) -> Self {
        Self { written: WrittenMask::full(data.len()), data, shadow: None }
    }

    /// Storage of zeros, as an allocation with `zero` leaves it.
    ///
    /// # Errors
    /// As `unwritten`.
    pub fn zeroed(dtype: DType, len: usize) -> Result<Self, UnsupportedDtype> {
        Data::zeros(dtype, len).map(Self::full)
    }
}

/// The buffers of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    buffers: Vec<BufferData>,
}

impl Memory {
    /// Unwritten storage for every buffer of a plan.
    ///
    /// # Errors
    /// An element type that `Data` does not hold.
    pub fn new(buffers: &[Buffer]) -> Result<Self, UnsupportedDtype> {
        let cells =
            buffers.iter().map(|it| BufferData::unwritten(it.dtype, it.len)).collect::<Result<_, _>>()?;
        Ok(Self { buffers: cells })
    }

    /// Number of buffers.
    pub fn len(&self) -> usize {
        self.buffers.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    /// A buffer's storage.
    pub fn buffer(&self, buffer: BufferNo) -> &BufferData {
        &self.buffers[buffer as usize]
    }

    /// A buffer's storage, to change.
    pub fn buffer_mut(&mut self, buffer: BufferNo) -> &mut BufferData {
        &mut self.buffers[buffer as usize]
    }
}

/// The elements of a view, dense. The view must lie inside the cell.
pub fn gather(cell: &BufferData, view: &View) -> DenseTensor {
    DenseTensor {
        shape: view.shape.clone(),
        data: cell.data.gather(view),
        written: cell.written.gather(view),
        shadow: cell.shadow.as_ref().map(|it| it.gather(view)),
    }
}

/// Writes a block of the cell's element type to a view of as many elements; they become unwritten where the block's are.
/// False, and nothing is written, when the types differ.
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
            // The cell's other elements are exact; those of the view are written over.
            slot.insert(Shadow::of(&cell.data)).scatter(view, from);
        }
    }
    true
}

/// Whether a view is all of a buffer, in its order.
fn is_whole(view: &View, len: usize) -> bool {
    view.len() == len && View::contiguous(view.buffer, view.shape.clone()).strides == view.strides
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::kernels::{Exactness, convert};

    #[test]
    fn copies_carry_what_is_unwritten() -> Result<(), UnsupportedDtype> {
        let buffer = |dtype| Buffer { name: "T0".to_owned(), dtype, len: 4 };
        let mut memory = Memory::new(&[buffer(DType::Float), buffer(DType::BFloat)])?;
        let row = View { buffer: 0, offset: 2, shape: vec![2], strides: vec![1] };
        assert!(scatter(memory.buffer_mut(0), &row, &DenseTensor::full(vec![2], Data::F32(vec![0.1, 3.0]))));
        let block = gather(memory.buffer(0), &View::contiguous(0, vec![2, 2]));
        assert_eq!(block.shape, [2, 2]);
        assert_eq!(block.written, WrittenMask::from_flags(vec![false, false, true, true]));

        // Another type is refused; the unwritten half stays unwritten, over what was written before.
        memory.buffer_mut(1).written = WrittenMask::full(4);
        assert!(!scatter(memory.buffer_mut(1), &View::contiguous(1, vec![4]), &block));
        let block = convert(&block, DType::BFloat, &mut Exactness::default()).ok();
        let block = block.unwrap_or(DenseTensor::full(Vec::new(), Data::Bool(Vec::new())));
        assert!(scatter(memory.buffer_mut(1), &View::contiguous(1, vec![4]), &block));
        assert_eq!(memory.buffer(1).written, block.written);
        // 0.1 is not a bf16 number, 3 is: the shadow keeps it.
        assert_eq!(memory.buffer(1).data.to_f64(), [0.0, 0.0, 0.10009765625, 3.0]);
        let exact = memory.buffer(1).shadow.as_ref().map(|it| it.lane(0).to_vec());
        assert_eq!(exact, Some(vec![0.0, 0.0, f64::from(0.1f32), 3.0]));
        Ok(())
    }

    #[test]
    fn zeroed_storage_is_written() -> Result<(), UnsupportedDtype> {
        assert!(BufferData::zeroed(DType::Int32, 3)?.written.is_full());
        assert!(!BufferData::unwritten(DType::Int32, 3)?.written.is_full());
        assert!(Memory::new(&[Buffer { name: "T1".to_owned(), dtype: DType::Complex64, len: 1 }]).is_err());
        Ok(())
    }
}
