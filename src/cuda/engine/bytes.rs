//! The bytes of elements as they are uploaded to device memory.

use hir_tensor::data::{Data, Element, each};

/// Returns the bytes of all elements.
pub(super) fn of(data: &Data) -> &[u8] {
    fn all<T: Element>(elements: &[T]) -> &[u8] {
        // SAFETY: elements are plain numbers without padding, bool included; the bytes are borrowed as they
        // are.
        unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
    }
    each!(data, it => all(it))
}

#[cfg(test)]
mod tests {
    use hir_tensor::data::{UnsupportedDtype, bytes::of_little_endian};

    use super::*;

    #[test]
    fn elements_come_back() -> Result<(), UnsupportedDtype> {
        for it in [
            Data::I32(vec![-1, 0, 7]),
            Data::F64(vec![0.5, f64::INFINITY]),
            Data::Bool(vec![true, false, true]),
            Data::U8(vec![255]),
            Data::Bf16(vec![half::bf16::from_f32(-2.5); 3]),
        ] {
            assert_eq!(of_little_endian(it.dtype(), of(&it))?, it);
        }
        Ok(())
    }
}
