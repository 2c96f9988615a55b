//! Arrays of numpy as tensors of hir, and back. Elements of float types of 16 or 8 bits pass as their bits (`uint16`, `uint8`); Python's part
//! knows their type.

use grammar::DType;
use half::{
    bf16, f16,
    vec::{HalfBitsVecExt, HalfFloatVecExt},
};
use hir_tensor::data::{Data, NdArray, SmallFloat};
use numpy::{Element, IntoPyArray, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArrayMethods};
use pyo3::{exceptions::PyTypeError, prelude::*};

/// Copies a contiguous array. `float` is the type of the elements if they are bits of a float type of 16 or 8 bits.
///
/// # Errors
/// The elements have a type that hir does not compute with, or are not contiguous.
pub(crate) fn from_numpy(array: &Bound<'_, PyAny>, float: Option<&str>) -> PyResult<NdArray> {
    fn of<T: Element + Copy>(array: &Bound<'_, PyAny>) -> PyResult<Option<(Vec<usize>, Vec<T>)>> {
        let Ok(array) = array.extract::<PyReadonlyArrayDyn<'_, T>>() else { return Ok(None) };
        let elements = array.as_slice().map_err(|_| PyTypeError::new_err("the array is not contiguous"))?;
        Ok(Some((array.shape().to_vec(), elements.to_vec())))
    }
    let bits = of::<u16>(array)?.map(|(shape, bits)| {
        let data = match float {
            Some("bfloat16") => Data::from(bits.reinterpret_into::<bf16>()),
            Some("float16") => Data::from(bits.reinterpret_into::<f16>()),
            Some(_) | None => Data::from(bits),
        };
        NdArray { shape, data }
    });
    if let Some(it) = bits {
        return Ok(it);
    }
    if let Some((shape, bits)) = of::<u8>(array)? {
        let data = match float {
            Some("float8_e4m3fn") => Data::E4m3(bits.into_iter().map(SmallFloat).collect()),
            Some("float8_e5m2") => Data::E5m2(bits.into_iter().map(SmallFloat).collect()),
            Some(_) | None => Data::from(bits),
        };
        return Ok(NdArray { shape, data });
    }
    macro_rules! first_of {
        ($($type:ty),*) => {
            $(if let Some((shape, elements)) = of::<$type>(array)? {
                return Ok(NdArray { shape, data: Data::from(elements) });
            })*
        };
    }
    first_of!(f32, f64, i64, i32, i16, i8, u64, u32, bool);
    let dtype = array.getattr("dtype")?;
    Err(PyTypeError::new_err(format!("hir has no tensors with elements of the type {dtype}")))
}

/// Returns a tensor as an array that takes over its elements, and `float16` or `bfloat16` if they are the bits of such a type.
pub(crate) fn into_numpy<'py>(
    py: Python<'py>,
    tensor: NdArray,
) -> PyResult<(Bound<'py, PyAny>, Option<&'static str>)> {
    fn shaped<'py, T: Element>(
        py: Python<'py>,
        elements: Vec<T>,
        shape: &[usize],
    ) -> PyResult<Bound<'py, PyAny>> {
        let array: Bound<'py, PyArrayDyn<T>> = elements.into_pyarray(py).reshape(shape)?;
        Ok(array.into_any())
    }
    let float = match tensor.data.dtype() {
        DType::Half => Some("float16"),
        DType::BFloat => Some("bfloat16"),
        _ => None,
    };
    let shape = &tensor.shape;
    let array = match tensor.data {
        Data::Bool(it) => shaped(py, it, shape),
        Data::F64(it) => shaped(py, it, shape),
        Data::F32(it) => shaped(py, it, shape),
        Data::F16(it) => shaped(py, it.reinterpret_into(), shape),
        Data::Bf16(it) => shaped(py, it.reinterpret_into(), shape),
        Data::E4m3(it) => shaped(py, it.into_iter().map(|it| it.0).collect(), shape),
        Data::E5m2(it) => shaped(py, it.into_iter().map(|it| it.0).collect(), shape),
        Data::E8m0(it) => shaped(py, it.into_iter().map(|it| it.0).collect(), shape),
        Data::E2m1(it) => shaped(py, it.into_iter().map(|it| it.0).collect(), shape),
        Data::I8(it) => shaped(py, it, shape),
        Data::I16(it) => shaped(py, it, shape),
        Data::I32(it) => shaped(py, it, shape),
        Data::I64(it) => shaped(py, it, shape),
        Data::U8(it) => shaped(py, it, shape),
        Data::U16(it) => shaped(py, it, shape),
        Data::U32(it) => shaped(py, it, shape),
        Data::U64(it) => shaped(py, it, shape),
    };
    Ok((array?, float))
}
