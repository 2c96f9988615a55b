//! Converts elements to and from the bytes in device memory.

use grammar::dtype::DType;

use hir_tensor::data::{Data, Element, UnsupportedDtype, each};

/// Returns the bytes of all elements.
pub fn of(data: &Data) -> &[u8] {
    fn all<T: Element>(elements: &[T]) -> &[u8] {
        // SAFETY: elements are plain numbers without padding, bool included; the bytes are borrowed as they
        // are.
        unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
    }
    each!(data, it => all(it))
}

/// Returns the elements with these bytes.
///
/// # Errors
/// `Data` does not support the element type.
pub fn data(dtype: DType, bytes: &[u8]) -> Result<Data, UnsupportedDtype> {
    fn all<T: Element>(elements: &mut [T], bytes: &[u8]) {
        for (slot, bytes) in elements.iter_mut().zip(bytes.chunks_exact(size_of::<T>())) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            *slot = T::from_bits(u64::from_le_bytes(word));
        }
    }
    let mut out = Data::zeros(dtype, bytes.len() / dtype.size().max(1))?;
    each!(&mut out, it => all(it, bytes));
    Ok(out)
}

#[cfg(test)]
mod tests {
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
            assert_eq!(data(it.dtype(), of(&it))?, it);
        }
        Ok(())
    }
}
