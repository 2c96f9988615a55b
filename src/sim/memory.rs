//! What ranks store: every buffer's elements, which of them have been written, and their f64 shadow.
//!
//! Invariants: a copy of an unwritten element is unwritten; nothing else is known about it. A buffer without a shadow holds
//! values that all orders of summation and all engines give.

use grammar::dtype::DType;

pub use crate::io::data::{Mask, Shadow};
use crate::{
    io::{
        data::{Data, UnsupportedDtype},
        dense::DenseTensor,
    },
    plan::{Buffer, BufferNo, View},
};

/// The storage of one buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Elements; 0 where unwritten.
    pub data: Data,
    /// Which elements have been written.
    pub written: Mask,
    /// The values without rounding, from the first inexact one on.
    pub shadow: Option<Shadow>,
}

impl Cell {
    /// Unwritten storage.
    ///
    /// # Errors
    /// An element type that `Data` does not hold.
    pub fn unwritten(dtype: DType, len: usize) -> Result<Self, UnsupportedDtype> {
        Ok(Self { data: Data::zeros(dtype, len)?, written: Mask::empty(len), shadow: None })
    }

    /// Storage whose elements are all written.
    pub fn full(data: Data) -> Self {
        Self { written: Mask::full(data.len()), data, shadow: None }
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
    cells: Vec<Cell>,
}

impl Memory {
    /// Unwritten storage for every buffer of a plan.
    ///
    /// # Errors
    /// An element type that `Data` does not hold.
    pub fn new(buffers: &[Buffer]) -> Result<Self, UnsupportedDtype> {
        let cells = buffers.iter().map(|it| Cell::unwritten(it.dtype, it.len)).collect::<Result<_, _>>()?;
        Ok(Self { cells })
    }

    /// Number of buffers.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// A buffer's storage.
    pub fn cell(&self, buffer: BufferNo) -> &Cell {
        &self.cells[buffer as usize]
    }

    /// A buffer's storage, to change.
    pub fn cell_mut(&mut self, buffer: BufferNo) -> &mut Cell {
        &mut self.cells[buffer as usize]
    }
}

/// The elements of a view, dense. The view must lie inside the cell.
pub fn gather(cell: &Cell, view: &View) -> DenseTensor {
    DenseTensor {
        shape: view.shape.clone(),
        data: cell.data.gather(view),
        written: cell.written.gather(view),
        shadow: cell.shadow.as_ref().map(|it| it.gather(view)),
    }
}

/// Writes a block of the cell's element type to a view of as many elements; they become unwritten where the block's are.
/// False, and nothing is written, when the types differ.
pub fn scatter(cell: &mut Cell, view: &View, block: &DenseTensor) -> bool {
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
        assert!(scatter(memory.cell_mut(0), &row, &DenseTensor::full(vec![2], Data::F32(vec![0.1, 3.0]))));
        let block = gather(memory.cell(0), &View::contiguous(0, vec![2, 2]));
        assert_eq!(block.shape, [2, 2]);
        assert_eq!(block.written, Mask::from_flags(vec![false, false, true, true]));

        // Another type is refused; the unwritten half stays unwritten, over what was written before.
        memory.cell_mut(1).written = Mask::full(4);
        assert!(!scatter(memory.cell_mut(1), &View::contiguous(1, vec![4]), &block));
        let block = convert(&block, DType::BFloat, &mut Exactness::default()).ok();
        let block = block.unwrap_or(DenseTensor::full(Vec::new(), Data::Bool(Vec::new())));
        assert!(scatter(memory.cell_mut(1), &View::contiguous(1, vec![4]), &block));
        assert_eq!(memory.cell(1).written, block.written);
        // 0.1 is not a bf16 number, 3 is: the shadow keeps it.
        assert_eq!(memory.cell(1).data.to_f64(), [0.0, 0.0, 0.10009765625, 3.0]);
        let exact = memory.cell(1).shadow.as_ref().map(|it| it.lane(0).to_vec());
        assert_eq!(exact, Some(vec![0.0, 0.0, f64::from(0.1f32), 3.0]));
        Ok(())
    }

    #[test]
    fn zeroed_storage_is_written() -> Result<(), UnsupportedDtype> {
        assert!(Cell::zeroed(DType::Int32, 3)?.written.is_full());
        assert!(!Cell::unwritten(DType::Int32, 3)?.written.is_full());
        assert!(Memory::new(&[Buffer { name: "T1".to_owned(), dtype: DType::Complex64, len: 1 }]).is_err());
        Ok(())
    }
}
