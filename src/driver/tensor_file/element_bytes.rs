//! The bytes of elements in files.

use hir_tensor::data::{Data, Element, each};

/// The order of the bytes of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteOrder {
    /// The lowest byte is the first one.
    Little,
    /// The highest byte is the first one.
    Big,
}

/// Sets elements to what a file contains. Elements for which the bytes do not suffice stay as they are.
pub(super) fn set_elements(data: &mut Data, bytes: &[u8], order: ByteOrder) {
    fn set<T: Element>(to: &mut [T], bytes: &[u8], order: ByteOrder) {
        let append = |bits: u64, byte: &u8| bits << 8 | u64::from(*byte);
        for (slot, bytes) in to.iter_mut().zip(bytes.chunks_exact(T::DTYPE.size())) {
            *slot = T::from_bits(match order {
                ByteOrder::Little => bytes.iter().rev().fold(0, append),
                ByteOrder::Big => bytes.iter().fold(0, append),
            });
        }
    }
    each!(data, to => set(to, bytes, order));
}

/// Returns the bytes of all elements, each from the lowest to the highest.
pub(super) fn little_endian(data: &Data) -> Vec<u8> {
    fn bytes<T: Element>(elements: &[T]) -> Vec<u8> {
        let size = T::DTYPE.size();
        elements.iter().flat_map(|it| it.to_bits().to_le_bytes().into_iter().take(size)).collect()
    }
    each!(data, elements => bytes(elements))
}
