//! Reads and writes `.npy` files. Source: numpy's format specification, `numpy.lib.format`.

use std::path::Path;

use grammar::DType;

use super::{IoError, format_error};
use hir_plan::View;
use hir_tensor::data::{
    Data, NdArray,
    bytes::{ByteOrder, fault_in_elements, little_endian, set_elements},
};

mod header;

use header::{BadHeader, Header};

/// The element types that both npy and `Data` support, without the order of their bytes.
const TYPES: [(&str, DType); 12] = [
    ("b1", DType::Bool),
    ("f8", DType::Double),
    ("f4", DType::Float),
    ("f2", DType::Half),
    ("i1", DType::Int8),
    ("i2", DType::Int16),
    ("i4", DType::Int32),
    ("i8", DType::Int64),
    ("u1", DType::UInt8),
    ("u2", DType::UInt16),
    ("u4", DType::UInt32),
    ("u8", DType::UInt64),
];

pub(super) fn read(path: &Path, bytes: &[u8]) -> Result<NdArray, IoError> {
    let broken = |fault: BadHeader| format_error(path, fault.to_string(), "write it again with `numpy.save`");
    let Header { descr, shape, elements, fortran_order, data: bytes } =
        header::parse(bytes).map_err(broken)?;
    let Some((dtype, order)) = dtype(descr) else {
        let fault = format!("element type '{}' is not supported", header::shortened(descr));
        return Err(format_error(path, fault, "save it as a float, integer or bool array"));
    };
    // No memory is allocated for elements that the file does not contain.
    if elements.saturating_mul(dtype.size()) > bytes.len() {
        return Err(broken("the file ends too early".into()));
    }
    let bytes = &bytes[..elements * dtype.size()];
    if let Some(fault) = fault_in_elements(dtype, bytes) {
        return Err(broken(fault.into()));
    }
    let mut data = Data::zeros(dtype, elements)?;
    set_elements(&mut data, bytes, order);
    if fortran_order && elements > 0 {
        let strides = shape.iter().scan(1, |next, extent| {
            let stride = *next;
            *next *= extent;
            Some(stride)
        });
        let view = View { buffer: 0, offset: 0, strides: strides.collect(), shape };
        Ok(NdArray { data: data.gather(&view), shape: view.shape })
    } else {
        Ok(NdArray { shape, data })
    }
}

/// Returns the type that a header states, and the order of the bytes of its elements.
fn dtype(descr: &str) -> Option<(DType, ByteOrder)> {
    let native = if cfg!(target_endian = "big") { ByteOrder::Big } else { ByteOrder::Little };
    let (order, name) = match descr.split_at_checked(1)? {
        ("<", name) => (ByteOrder::Little, name),
        (">", name) => (ByteOrder::Big, name),
        ("=" | "|", name) => (native, name),
        _ => return None,
    };
    TYPES.iter().find(|it| it.0 == name).map(|it| (it.1, order))
}

pub(super) fn bytes_of(path: &Path, tensor: &NdArray) -> Result<Vec<u8>, IoError> {
    let dtype = tensor.data.dtype();
    let name = TYPES.iter().find(|it| it.1 == dtype).map(|it| it.0);
    let name = name.ok_or_else(|| IoError::UnsupportedByFormat { path: path.to_owned(), dtype })?;
    if tensor.shape.len() > header::MAX_DIMENSIONS {
        let fault = format!("{} dimensions do not fit in an npy file", tensor.shape.len());
        return Err(format_error(path, fault, "write a safetensors file"));
    }
    // The order of a single byte is irrelevant, which numpy writes as `|`.
    let order = if dtype.size() == 1 { '|' } else { '<' };
    Ok([header::text(&format!("{order}{name}"), &tensor.shape), little_endian(&tensor.data)].concat())
}
