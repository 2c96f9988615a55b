//! Reads and writes `.npy` files.

use std::{io, path::Path};

use grammar::dtype::DType;
use npyz::{DType as Descr, NpyFile, TypeChar, WriterBuilder};

use super::{IoError, format_error};
use hir_plan::View;
use hir_tensor::data::{Data, NdArray};

mod header;

use header::Header;

pub(super) fn read(path: &Path, bytes: &[u8]) -> Result<NdArray, IoError> {
    fn elements<T: npyz::Deserialize>(file: NpyFile<&[u8]>) -> io::Result<Data>
    where
        Data: From<Vec<T>>,
    {
        file.into_vec::<T>().map(Data::from)
    }
    let broken = |fault: io::Error| {
        let fault = match fault.kind() {
            io::ErrorKind::UnexpectedEof => "the file ends too early".to_owned(),
            _ => fault.to_string(),
        };
        format_error(path, fault, "write it again with `numpy.save`")
    };
    // The header parser of the npyz crate takes time exponential in the number of brackets, and its products
    // overflow.
    let header = header::parse(bytes)
        .map_err(|fault| format_error(path, fault, "write it again with `numpy.save`"))?;
    let Header { shape, elements: count, fortran_order } = header;
    let file = NpyFile::new(bytes).map_err(broken)?;
    let dtype = file.dtype();
    // No memory is allocated for elements that the file does not contain.
    let size = dtype.num_bytes().unwrap_or(1);
    if count.saturating_mul(size) > bytes.len() {
        return Err(broken(io::ErrorKind::UnexpectedEof.into()));
    }
    let plain = match &dtype {
        Descr::Plain(it) => Some((it.type_char(), it.size_field())),
        Descr::Array(..) | Descr::Record(_) => None,
    };
    let data = match plain {
        Some((TypeChar::Bool, _)) => elements::<bool>(file),
        Some((TypeChar::Float, 8)) => elements::<f64>(file),
        Some((TypeChar::Float, 4)) => elements::<f32>(file),
        Some((TypeChar::Float, 2)) => elements::<half::f16>(file),
        Some((TypeChar::Int, 1)) => elements::<i8>(file),
        Some((TypeChar::Int, 2)) => elements::<i16>(file),
        Some((TypeChar::Int, 4)) => elements::<i32>(file),
        Some((TypeChar::Int, 8)) => elements::<i64>(file),
        Some((TypeChar::Uint, 1)) => elements::<u8>(file),
        Some((TypeChar::Uint, 2)) => elements::<u16>(file),
        Some((TypeChar::Uint, 4)) => elements::<u32>(file),
        Some((TypeChar::Uint, 8)) => elements::<u64>(file),
        _ => {
            let fault = format!("element type {} is not supported", dtype.descr());
            return Err(format_error(path, fault, "save it as a float, integer or bool array"));
        }
    };
    let data = data.map_err(broken)?;
    match fortran_order && count > 0 {
        false => Ok(NdArray { shape, data }),
        true => {
            let strides = shape.iter().scan(1, |next, extent| {
                let stride = *next;
                *next *= extent;
                Some(stride)
            });
            let view = View { buffer: 0, offset: 0, strides: strides.collect(), shape };
            Ok(NdArray { data: data.gather(&view), shape: view.shape })
        }
    }
}

pub(super) fn bytes_of(path: &Path, tensor: &NdArray) -> Result<Vec<u8>, IoError> {
    fn bytes<T: npyz::AutoSerialize + Copy>(shape: &[usize], elements: &[T]) -> io::Result<Vec<u8>> {
        let shape: Vec<u64> = shape.iter().map(|&it| it as u64).collect();
        let mut out = Vec::new();
        let mut writer =
            npyz::WriteOptions::new().default_dtype().shape(&shape).writer(&mut out).begin_nd()?;
        writer.extend(elements.iter().copied())?;
        writer.finish()?;
        Ok(out)
    }
    let shape = &tensor.shape;
    let written = match &tensor.data {
        Data::Bool(it) => bytes(shape, it),
        Data::F64(it) => bytes(shape, it),
        Data::F32(it) => bytes(shape, it),
        Data::F16(it) => bytes(shape, it),
        Data::Bf16(_) => {
            return Err(IoError::UnsupportedByFormat { path: path.to_owned(), dtype: DType::BFloat });
        }
        Data::I8(it) => bytes(shape, it),
        Data::I16(it) => bytes(shape, it),
        Data::I32(it) => bytes(shape, it),
        Data::I64(it) => bytes(shape, it),
        Data::U8(it) => bytes(shape, it),
        Data::U16(it) => bytes(shape, it),
        Data::U32(it) => bytes(shape, it),
        Data::U64(it) => bytes(shape, it),
    };
    written.map_err(|cause| IoError::Write { path: path.to_owned(), cause })
}
