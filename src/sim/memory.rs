//! What ranks store: every buffer's elements and which of them have been written.
//!
//! Invariant: a copy of an unwritten element is unwritten; nothing else is known about it.

use grammar::dtype::DType;

pub use crate::io::data::Mask;
use crate::{
    io::data::{Data, UnsupportedDtype},
    plan::{Buffer, BufferNo, View},
};

/// The storage of one buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Elements; 0 where unwritten.
    pub data: Data,
    /// Which elements have been written.
    pub written: Mask,
}

impl Cell {
    /// Unwritten storage.
    ///
    /// # Errors
    /// An element type that `Data` does not hold.
    pub fn unwritten(dtype: DType, len: usize) -> Result<Self, UnsupportedDtype> {
        Ok(Self { data: Data::zeros(dtype, len)?, written: Mask::empty(len) })
    }

    /// Storage whose elements are all written.
    pub fn full(data: Data) -> Self {
        Self { written: Mask::full(data.len()), data }
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

/// A dense tensor that a kernel reads or makes.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// Extents, slowest first.
    pub shape: Vec<usize>,
    /// Elements in row-major order.
    pub data: Data,
    /// Which elements come from written storage only.
    pub written: Mask,
}

impl Block {
    /// A block whose elements are all written. The shape must hold as many elements as `data`.
    pub fn full(shape: Vec<usize>, data: Data) -> Self {
        Self { shape, written: Mask::full(data.len()), data }
    }

    /// The same elements, repeated or permuted: `strides` are this block's.
    pub fn view(&self, shape: Vec<usize>, strides: Vec<usize>) -> Self {
        let view = View { buffer: 0, offset: 0, shape, strides };
        Self { data: self.data.gather(&view), written: self.written.gather(&view), shape: view.shape }
    }
}

/// The elements of a view, dense. The view must lie inside the cell.
pub fn gather(cell: &Cell, view: &View) -> Block {
    Block { shape: view.shape.clone(), data: cell.data.gather(view), written: cell.written.gather(view) }
}

/// Writes a block to a view of as many elements; they become unwritten where the block's are. The element type
/// converts. Returns the number of elements that changed by a rounding, 0 when the types agree.
pub fn scatter(cell: &mut Cell, view: &View, block: &Block) -> usize {
    let mut changed = 0;
    if !cell.data.scatter(view, &block.data) {
        // The cell exists, so its type is supported.
        if let Ok((converted, count)) = block.data.convert(cell.data.dtype()) {
            cell.data.scatter(view, &converted);
            changed = count;
        }
    }
    cell.written.scatter(view, &block.written);
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_carry_what_is_unwritten() -> Result<(), UnsupportedDtype> {
        let buffer = |dtype| Buffer { name: "T0".to_owned(), dtype, len: 4 };
        let mut memory = Memory::new(&[buffer(DType::Float), buffer(DType::BFloat)])?;
        let row = View { buffer: 0, offset: 2, shape: vec![2], strides: vec![1] };
        assert_eq!(scatter(memory.cell_mut(0), &row, &Block::full(vec![2], Data::F32(vec![0.1, 3.0]))), 0);
        let block = gather(memory.cell(0), &View::contiguous(0, vec![2, 2]));
        assert_eq!(block.shape, [2, 2]);
        assert_eq!(block.written, Mask::from_flags(vec![false, false, true, true]));

        // 0.1 is not a bf16 number, 3 is; the unwritten half stays unwritten, over what was written before.
        memory.cell_mut(1).written = Mask::full(4);
        assert_eq!(scatter(memory.cell_mut(1), &View::contiguous(1, vec![4]), &block), 1);
        assert_eq!(memory.cell(1).written, block.written);
        assert_eq!(memory.cell(1).data.to_f64(), [0.0, 0.0, 0.10009765625, 3.0]);
        Ok(())
    }

    #[test]
    fn zeroed_storage_is_written() -> Result<(), UnsupportedDtype> {
        assert!(Cell::zeroed(DType::Int32, 3)?.written.is_full());
        assert!(!Cell::unwritten(DType::Int32, 3)?.written.is_full());
        assert!(Memory::new(&[Buffer { name: "T1".to_owned(), dtype: DType::Complex64, len: 1 }]).is_err());
        Ok(())
    }

    #[test]
    fn blocks_repeat_and_permute() {
        let block = Block::full(vec![2, 2], Data::I8(vec![1, 2, 3, 4]));
        assert_eq!(block.view(vec![2, 2], vec![1, 2]).data, Data::I8(vec![1, 3, 2, 4]));
        assert_eq!(block.view(vec![2, 2], vec![0, 1]).data, Data::I8(vec![1, 2, 1, 2]));
    }
}
