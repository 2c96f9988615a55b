//! Reads and writes `.safetensors` files.

use std::{collections::BTreeMap, path::Path};

use grammar::DType;
use safetensors::{SafeTensors, tensor::TensorView};

use super::{IoError, format_error};
use hir_tensor::data::{
    Data, NdArray, UnsupportedDtype,
    bytes::{ByteOrder, fault_in_elements, little_endian, set_elements},
};

/// The types that both safetensors and `Data` support.
const SAFETENSORS: [(safetensors::Dtype, DType); 15] = [
    (safetensors::Dtype::BOOL, DType::Bool),
    (safetensors::Dtype::F64, DType::Double),
    (safetensors::Dtype::F32, DType::Float),
    (safetensors::Dtype::F16, DType::Half),
    (safetensors::Dtype::BF16, DType::BFloat),
    (safetensors::Dtype::F8_E4M3, DType::E4M3),
    (safetensors::Dtype::F8_E5M2, DType::E5M2),
    (safetensors::Dtype::I8, DType::Int8),
    (safetensors::Dtype::I16, DType::Int16),
    (safetensors::Dtype::I32, DType::Int32),
    (safetensors::Dtype::I64, DType::Int64),
    (safetensors::Dtype::U8, DType::UInt8),
    (safetensors::Dtype::U16, DType::UInt16),
    (safetensors::Dtype::U32, DType::UInt32),
    (safetensors::Dtype::U64, DType::UInt64),
];

/// Maximum number of names that a message lists.
const MAX_LISTED: usize = 16;

pub(super) fn read(path: &Path, bytes: &[u8], key: Option<&str>) -> Result<NdArray, IoError> {
    let file = SafeTensors::deserialize(bytes)
        .map_err(|fault| format_error(path, fault.to_string(), "write it again with `safetensors`"))?;
    let mut names = file.names();
    names.sort_unstable();
    let name = match (key, names.as_slice()) {
        (Some(key), _) => key,
        (None, [only]) => only,
        (None, _) => {
            let fault = format!("it contains {} tensors", names.len());
            return Err(format_error(path, fault, &format!("add `#KEY`, one of {}", listed(&names))));
        }
    };
    let view = file.tensor(name).map_err(|_| {
        format_error(
            path,
            format!("it contains no tensor `{name}`"),
            &format!("its tensors are {}", listed(&names)),
        )
    })?;
    let dtype = SAFETENSORS.iter().find(|it| it.0 == view.dtype()).map(|it| it.1).ok_or_else(|| {
        let fault = format!("element type {:?} of `{name}` is not supported", view.dtype());
        format_error(path, fault, "save it as a real type of 16 bits or more, an integer or bool")
    })?;
    if let Some(fault) = fault_in_elements(dtype, view.data()) {
        return Err(format_error(path, format!("`{name}`: {fault}"), "write it again with `safetensors`"));
    }
    let mut data = Data::zeros(dtype, view.shape().iter().product())?;
    set_elements(&mut data, view.data(), ByteOrder::Little);
    Ok(NdArray { shape: view.shape().to_vec(), data })
}

/// Returns the names for a message; a long list is truncated.
fn listed(names: &[&str]) -> String {
    let more = names.len().saturating_sub(MAX_LISTED);
    let shown = names[..names.len() - more].join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

pub(super) fn bytes_of(path: &Path, named: &BTreeMap<Option<&str>, &NdArray>) -> Result<Vec<u8>, IoError> {
    let broken = |fault: safetensors::SafeTensorError| {
        format_error(path, fault.to_string(), "check the tensor's shape and key")
    };
    let buffers: Vec<Vec<u8>> = named.values().map(|it| little_endian(&it.data)).collect();
    let mut views = Vec::new();
    for ((key, tensor), bytes) in named.iter().zip(&buffers) {
        let found = tensor.data.dtype();
        let dtype =
            SAFETENSORS.iter().find(|it| it.1 == found).map(|it| it.0).ok_or(UnsupportedDtype(found))?;
        let view = TensorView::new(dtype, tensor.shape.clone(), bytes).map_err(broken)?;
        views.push((key.unwrap_or_default(), view));
    }
    safetensors::serialize(views, None).map_err(broken)
}
