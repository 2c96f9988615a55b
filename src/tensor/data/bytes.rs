//! The bytes of elements, in files, in constants and in the memory of devices.

use super::{Data, Element, UnsupportedDtype, each};
use grammar::DType;

/// The order of the bytes of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    /// The lowest byte is the first one.
    Little,
    /// The highest byte is the first one.
    Big,
}

/// Returns the reason why bytes are no elements of a type: a bool is 0 or 1.
pub fn fault_in_elements(dtype: DType, bytes: &[u8]) -> Option<String> {
    let wrong = bytes.iter().find(|it| **it > 1).filter(|_| dtype == DType::Bool)?;
    Some(format!("a bool has the byte {wrong}, which is neither 0 nor 1"))
}

/// Sets elements to what a file contains. Elements for which the bytes do not suffice stay as they are.
pub fn set_elements(data: &mut Data, bytes: &[u8], order: ByteOrder) {
    fn set<T: Element>(to: &mut [T], bytes: &[u8], order: ByteOrder) {
        let size = T::DTYPE.size();
        for (slot, bytes) in to.iter_mut().zip(bytes.chunks_exact(size)) {
            // A copy of a constant size is one load, and the loop over bytes is not: tensors of 1 GB are read.
            let mut word = [0; 8];
            word[..size].copy_from_slice(&bytes[..size]);
            *slot = T::from_bits(match order {
                ByteOrder::Little => u64::from_le_bytes(word),
                ByteOrder::Big => u64::from_be_bytes(word) >> (64 - 8 * size),
            });
        }
    }
    each!(data, to => set(to, bytes, order));
}

/// Returns the elements with these bytes, each from the lowest to the highest.
///
/// # Errors
/// `Data` does not support the element type.
pub fn of_little_endian(dtype: DType, bytes: &[u8]) -> Result<Data, UnsupportedDtype> {
    let mut data = Data::zeros(dtype, bytes.len() / dtype.size().max(1))?;
    set_elements(&mut data, bytes, ByteOrder::Little);
    Ok(data)
}

/// Returns the bytes of all elements, each from the lowest to the highest.
pub fn little_endian(data: &Data) -> Vec<u8> {
    fn bytes<T: Element>(elements: &[T]) -> Vec<u8> {
        let size = T::DTYPE.size();
        let mut all = Vec::with_capacity(elements.len() * size);
        elements.iter().for_each(|it| all.extend_from_slice(&it.to_bits().to_le_bytes()[..size]));
        all
    }
    each!(data, elements => bytes(elements))
}
