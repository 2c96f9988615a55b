//! Tensors in `.npy` and `.safetensors` files and in flags.
//!
//! A flag's value is `@x.npy`, `@w.safetensors#key` (the key may go where the file holds one tensor) or a literal,
//! `2x2xf32=1 2 3 4`. npy has no bfloat16; safetensors has all types that `Data` holds.

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    path::{Path, PathBuf},
    str::FromStr,
};

use grammar::dtype::{Class, DType};
use npyz::{NpyFile, Order, TypeChar, WriterBuilder};
use safetensors::{SafeTensors, tensor::TensorView};

use crate::{
    io::data::{Data, Element, Tensor, UnsupportedDtype, each},
    plan::View,
};

/// Why a tensor did not come in or go out: where, what is wrong, what to do.
#[derive(Debug, thiserror::Error)]
pub enum IoError {
    /// A flag's value is none of the three forms.
    #[error(
        "`{text}`: {fault}; expected `@FILE.npy`, `@FILE.safetensors#KEY` or a literal like `2x2xf32=1 2 3 4`"
    )]
    Flag {
        /// The value.
        text: String,
        /// What is wrong.
        fault: String,
    },
    /// The operating system does not give the file.
    #[error("cannot read `{}`: {cause}; check the path and its permissions", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// The operating system does not take the file.
    #[error("cannot write `{}`: {cause}; check that the folder exists and has space", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// The file does not hold what its name says, or one place is named twice.
    #[error("`{}`: {fault}; {advice}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        fault: String,
        /// What to do.
        advice: String,
    },
    /// The file's format has no such element type.
    #[error("`{}`: npy has no {}; name a .safetensors file", path.display(), dtype.short_name())]
    Unheld {
        /// The file.
        path: PathBuf,
        /// The type.
        dtype: DType,
    },
    /// The element type is another one, and not both are floats.
    #[error("`{origin}` holds {}, the program wants {}; convert it first (only floats are converted here)",
        found.short_name(), wanted.short_name())]
    Dtype {
        /// The file or `literal`.
        origin: String,
        /// The type it has.
        found: DType,
        /// The type that the tensor has.
        wanted: DType,
    },
    /// The wanted type is not supported.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedDtype),
}

/// A place for one tensor. Displays as the flag's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum File {
    /// numpy's format, one tensor.
    Npy(PathBuf),
    /// Named tensors.
    Safetensors {
        /// The file.
        path: PathBuf,
        /// The tensor's name; `None`: the only one, and `tensor` when written.
        key: Option<String>,
    },
}

/// The value of an input flag.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// A file.
    File(File),
    /// The tensor itself.
    Literal(Tensor),
}

/// A tensor that came in.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The tensor, of the wanted type.
    pub tensor: Tensor,
    /// The float type that it was converted from, when that is another one.
    pub converted: Option<DType>,
}

impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Npy(path) => write!(f, "@{}", path.display()),
            Self::Safetensors { path, key: None } => write!(f, "@{}", path.display()),
            Self::Safetensors { path, key: Some(key) } => write!(f, "@{}#{key}", path.display()),
        }
    }
}

/// `@x.npy` or `@w.safetensors#key`.
impl FromStr for File {
    type Err = IoError;

    fn from_str(text: &str) -> Result<Self, IoError> {
        const SAFETENSORS: &str = ".safetensors";
        let flag = |fault: &str| IoError::Flag { text: text.to_owned(), fault: fault.to_owned() };
        let name = text.strip_prefix('@').ok_or_else(|| flag("a file starts with `@`"))?;
        if let Some((path, key)) = name.rsplit_once(&format!("{SAFETENSORS}#")) {
            return match key {
                "" => Err(flag("there is no key behind `#`")),
                _ => Ok(Self::Safetensors {
                    path: format!("{path}{SAFETENSORS}").into(),
                    key: Some(key.to_owned()),
                }),
            };
        }
        match name {
            _ if name.ends_with(".npy") => Ok(Self::Npy(name.into())),
            _ if name.ends_with(SAFETENSORS) => Ok(Self::Safetensors { path: name.into(), key: None }),
            _ => Err(flag("the file's name tells no format")),
        }
    }
}

/// A file or a literal.
impl FromStr for Source {
    type Err = IoError;

    fn from_str(text: &str) -> Result<Self, IoError> {
        match text.starts_with('@') {
            true => text.parse().map(Self::File),
            false => literal(text)
                .map(Self::Literal)
                .map_err(|fault| IoError::Flag { text: text.to_owned(), fault }),
        }
    }
}

impl Source {
    /// The tensor as `dtype`. Floats are converted to another float type, rounding to nearest, halves to even.
    ///
    /// # Errors
    /// A file that cannot be read or holds something else; a type that is not the wanted one, unless both are floats.
    pub fn load(&self, dtype: DType) -> Result<Loaded, IoError> {
        let (tensor, origin) = match self {
            Self::File(file) => (file.read()?, file.to_string()),
            Self::Literal(tensor) => (tensor.clone(), "literal".to_owned()),
        };
        let (found, wanted) = (tensor.data.dtype(), Data::zeros(dtype, 0)?.dtype());
        if found == wanted {
            return Ok(Loaded { tensor, converted: None });
        }
        if found.class() != Class::Float || wanted.class() != Class::Float {
            return Err(IoError::Dtype { origin, found, wanted });
        }
        let (data, _) = tensor.data.convert(wanted)?;
        Ok(Loaded { tensor: Tensor { shape: tensor.shape, data }, converted: Some(found) })
    }
}

impl File {
    /// The file's path.
    pub fn path(&self) -> &Path {
        match self {
            Self::Npy(path) | Self::Safetensors { path, .. } => path,
        }
    }

    /// That the file's format has an element type.
    ///
    /// # Errors
    /// bfloat16 in npy.
    pub fn holds(&self, dtype: DType) -> Result<(), IoError> {
        match self {
            Self::Npy(path) if dtype == DType::BFloat => Err(IoError::Unheld { path: path.clone(), dtype }),
            Self::Npy(_) | Self::Safetensors { .. } => Ok(()),
        }
    }

    /// The tensor in the file, of the type that it has there.
    ///
    /// # Errors
    /// A file that cannot be read, is not of its format, or holds a type that `Data` does not.
    pub fn read(&self) -> Result<Tensor, IoError> {
        let path = self.path();
        let bytes = fs::read(path).map_err(|cause| IoError::Read { path: path.to_owned(), cause })?;
        match self {
            Self::Npy(_) => read_npy(path, &bytes),
            Self::Safetensors { key, .. } => read_safetensors(path, &bytes, key.as_deref()),
        }
    }
}

/// Writes tensors; those of one safetensors file go there together. A file that exists is replaced.
///
/// # Errors
/// bfloat16 to npy; a file or key that is named twice; a file that cannot be written.
pub fn save(tensors: &[(File, &Tensor)]) -> Result<(), IoError> {
    let mut files: BTreeMap<&Path, Vec<(&File, &Tensor)>> = BTreeMap::new();
    for (file, tensor) in tensors {
        files.entry(file.path()).or_default().push((file, tensor));
    }
    for (path, tensors) in files {
        let keys = tensors.iter().map(|(file, tensor)| match file {
            File::Npy(_) => (None, *tensor),
            File::Safetensors { key, .. } => (Some(key.as_deref().unwrap_or("tensor")), *tensor),
        });
        let mut named = BTreeMap::new();
        for (key, tensor) in keys {
            if named.insert(key, tensor).is_some() {
                let fault = "two tensors go to the same place".to_owned();
                return Err(format_error(path, fault, "name another file, or keys in a .safetensors file"));
            }
        }
        let bytes = match named.get(&None) {
            Some(tensor) => npy(path, tensor)?,
            None => safetensors(path, &named)?,
        };
        fs::write(path, bytes).map_err(|cause| IoError::Write { path: path.to_owned(), cause })?;
    }
    Ok(())
}

fn format_error(path: &Path, fault: String, advice: &str) -> IoError {
    IoError::Format { path: path.to_owned(), fault, advice: advice.to_owned() }
}

fn read_npy(path: &Path, bytes: &[u8]) -> Result<Tensor, IoError> {
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
    let file = NpyFile::new(bytes).map_err(broken)?;
    let shape: Vec<usize> = file.shape().iter().map(|&it| it as usize).collect();
    let (dtype, order) = (file.dtype(), file.order());
    // Nothing is reserved for elements that are not there.
    let size = dtype.num_bytes().unwrap_or(1);
    if file.len().saturating_mul(size as u64) > bytes.len() as u64 {
        return Err(broken(io::ErrorKind::UnexpectedEof.into()));
    }
    let plain = match &dtype {
        npyz::DType::Plain(it) => Some((it.type_char(), it.size_field())),
        npyz::DType::Array(..) | npyz::DType::Record(_) => None,
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
    match order {
        Order::C => Ok(Tensor { shape, data }),
        Order::Fortran => {
            let strides = shape.iter().scan(1, |next, extent| {
                let stride = *next;
                *next *= extent;
                Some(stride)
            });
            let view = View { buffer: 0, offset: 0, strides: strides.collect(), shape };
            Ok(Tensor { data: data.gather(&view), shape: view.shape })
        }
    }
}

fn npy(path: &Path, tensor: &Tensor) -> Result<Vec<u8>, IoError> {
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
        Data::Bf16(_) => return Err(IoError::Unheld { path: path.to_owned(), dtype: DType::BFloat }),
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

/// The types that safetensors and `Data` share.
const SAFETENSORS: [(safetensors::Dtype, DType); 13] = [
    (safetensors::Dtype::BOOL, DType::Bool),
    (safetensors::Dtype::F64, DType::Double),
    (safetensors::Dtype::F32, DType::Float),
    (safetensors::Dtype::F16, DType::Half),
    (safetensors::Dtype::BF16, DType::BFloat),
    (safetensors::Dtype::I8, DType::Int8),
    (safetensors::Dtype::I16, DType::Int16),
    (safetensors::Dtype::I32, DType::Int32),
    (safetensors::Dtype::I64, DType::Int64),
    (safetensors::Dtype::U8, DType::UInt8),
    (safetensors::Dtype::U16, DType::UInt16),
    (safetensors::Dtype::U32, DType::UInt32),
    (safetensors::Dtype::U64, DType::UInt64),
];

fn read_safetensors(path: &Path, bytes: &[u8], key: Option<&str>) -> Result<Tensor, IoError> {
    fn elements<T: Element>(to: &mut [T], bytes: &[u8]) {
        let size = T::DTYPE.size();
        for (slot, bytes) in to.iter_mut().zip(bytes.chunks_exact(size)) {
            *slot = T::from_bits(bytes.iter().rev().fold(0, |bits, &it| bits << 8 | u64::from(it)));
        }
    }
    let file = SafeTensors::deserialize(bytes)
        .map_err(|fault| format_error(path, fault.to_string(), "write it again with `safetensors`"))?;
    let mut names = file.names();
    names.sort_unstable();
    let name = match (key, names.as_slice()) {
        (Some(key), _) => key,
        (None, [only]) => only,
        (None, _) => {
            let fault = format!("it holds {} tensors", names.len());
            return Err(format_error(path, fault, &format!("add `#KEY`, one of {}", names.join(", "))));
        }
    };
    let view = file.tensor(name).map_err(|_| {
        format_error(path, format!("it holds no tensor `{name}`"), &format!("it has {}", names.join(", ")))
    })?;
    let dtype = SAFETENSORS.iter().find(|it| it.0 == view.dtype()).map(|it| it.1).ok_or_else(|| {
        let fault = format!("element type {:?} of `{name}` is not supported", view.dtype());
        format_error(path, fault, "save it as a real type of 16 bits or more, an integer or bool")
    })?;
    let mut data = Data::zeros(dtype, view.shape().iter().product())?;
    each!(&mut data, to => elements(to, view.data()));
    Ok(Tensor { shape: view.shape().to_vec(), data })
}

fn safetensors(path: &Path, named: &BTreeMap<Option<&str>, &Tensor>) -> Result<Vec<u8>, IoError> {
    fn bytes<T: Element>(elements: &[T]) -> Vec<u8> {
        let size = T::DTYPE.size();
        elements.iter().flat_map(|it| it.to_bits().to_le_bytes().into_iter().take(size)).collect()
    }
    let broken = |fault: safetensors::SafeTensorError| {
        format_error(path, fault.to_string(), "check the tensor's shape and key")
    };
    let buffers: Vec<Vec<u8>> = named.values().map(|it| each!(&it.data, v => bytes(v))).collect();
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

/// `2x2xf32=1 2 3 4`; `f32=1` has no dimension. Values are separated by blanks or commas.
fn literal(text: &str) -> Result<Tensor, String> {
    let (head, values) = text
        .split_once('=')
        .ok_or("a file starts with `@`, and a literal has its shape and type before `=`")?;
    let (mut shape, mut name) = (Vec::new(), head);
    // Names of types start with a letter, so every number before an `x` is an extent.
    while let Some((extent, rest)) = name.split_once('x') {
        let Ok(extent) = extent.parse() else { break };
        shape.push(extent);
        name = rest;
    }
    let known = DType::ALL.iter().copied().find(|it| it.short_name() == name);
    let dtype = known.ok_or_else(|| format!("`{name}` is no element type"))?;
    let values: Vec<&str> =
        values.split(|it: char| it == ',' || it.is_whitespace()).filter(|it| !it.is_empty()).collect();
    let len = shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
    if len != Some(values.len()) {
        return Err(format!("the shape {shape:?} does not hold {} values", values.len()));
    }
    let mut data = Data::zeros(dtype, values.len()).map_err(|it| it.to_string())?;
    each!(&mut data, to => parse_values(to, &values))?;
    Ok(Tensor { shape, data })
}

fn parse_values<T: Element>(to: &mut [T], values: &[&str]) -> Result<(), String> {
    for (slot, text) in to.iter_mut().zip(values) {
        let value = match T::DTYPE.class() {
            Class::Bool => match *text {
                "true" | "1" => Some(T::from_i128(1).0),
                "false" | "0" => Some(T::from_i128(0).0),
                _ => None,
            },
            Class::Int => {
                text.parse().ok().map(T::from_i128).and_then(|(it, wrapped)| (!wrapped).then_some(it))
            }
            Class::Float | Class::SmallFloat | Class::Complex | Class::Composite => {
                text.parse().ok().map(|it| T::from_f64(it).0)
            }
        };
        *slot = value.ok_or_else(|| format!("`{text}` is no {}", T::DTYPE.short_name()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    /// A folder of one test, removed at its end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Result<Self, IoError> {
            let path = std::env::temp_dir().join(format!("hir-io-{test}-{}", std::process::id()));
            fs::create_dir_all(&path).map_err(|cause| IoError::Write { path: path.clone(), cause })?;
            Ok(Self(path))
        }

        fn file(&self, name: &str) -> Result<File, IoError> {
            format!("@{}/{name}", self.0.display()).parse()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn tensors() -> Vec<Tensor> {
        let shaped = |data| Tensor { shape: vec![2, 1], data };
        vec![
            shaped(Data::Bool(vec![true, false])),
            shaped(Data::F64(vec![0.1, f64::NAN])),
            shaped(Data::F32(vec![0.1, f32::NEG_INFINITY])),
            shaped(Data::F16(vec![f16::from_f32(0.1), f16::MAX])),
            shaped(Data::I8(vec![-1, 1])),
            shaped(Data::I16(vec![i16::MIN, 1])),
            shaped(Data::I32(vec![i32::MIN, 1])),
            shaped(Data::I64(vec![i64::MIN, 1])),
            shaped(Data::U8(vec![u8::MAX, 1])),
            shaped(Data::U16(vec![u16::MAX, 1])),
            shaped(Data::U32(vec![u32::MAX, 1])),
            shaped(Data::U64(vec![u64::MAX, 1])),
            Tensor { shape: vec![], data: Data::I64(vec![7]) },
            Tensor { shape: vec![0, 3], data: Data::F32(vec![]) },
        ]
    }

    fn message<T>(result: Result<T, IoError>) -> String {
        result.err().map(|it| it.to_string()).unwrap_or_default()
    }

    #[test]
    fn npy_round_trip() -> Result<(), IoError> {
        let folder = Folder::new("npy")?;
        let file = folder.file("x.npy")?;
        for tensor in tensors() {
            save(&[(file.clone(), &tensor)])?;
            assert_eq!(file.read()?, tensor);
        }
        let bf16s = Tensor { shape: vec![1], data: Data::Bf16(vec![bf16::ONE]) };
        assert!(message(save(&[(file, &bf16s)])).ends_with("npy has no bf16; name a .safetensors file"));
        Ok(())
    }

    #[test]
    fn safetensors_round_trip() -> Result<(), IoError> {
        let folder = Folder::new("safetensors")?;
        let mut all = tensors();
        all.push(Tensor {
            shape: vec![3],
            data: Data::Bf16([0.1, -2.0, f32::NAN].map(bf16::from_f32).to_vec()),
        });
        let name = |at| folder.file(&format!("x.safetensors#t{at}"));
        let named = all.iter().enumerate().map(|(at, it)| Ok((name(at)?, it)));
        save(&named.collect::<Result<Vec<_>, IoError>>()?)?;
        for (at, tensor) in all.iter().enumerate() {
            assert_eq!(name(at)?.read()?, *tensor);
        }
        assert!(
            message(folder.file("x.safetensors")?.read())
                .contains("it holds 15 tensors; add `#KEY`, one of t0, t1")
        );
        assert!(
            message(folder.file("x.safetensors#y")?.read()).contains("it holds no tensor `y`; it has t0, t1")
        );
        let one = folder.file("y.safetensors")?;
        save(&[(one.clone(), &all[0])])?;
        assert_eq!(one.read()?, all[0]);
        assert!(message(save(&[(one.clone(), &all[0]), (one, &all[1])])).contains("same place"));
        Ok(())
    }

    #[test]
    fn fortran_order_and_big_endian() -> Result<(), IoError> {
        let folder = Folder::new("fortran")?;
        let file = folder.file("x.npy")?;
        let mut header = "{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }".to_owned();
        header.push_str(&" ".repeat(128 - 10 - header.len() - 1));
        header.push('\n');
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        // Column by column: [[0, 1, 2], [3, 4, 5]].
        [0i16, 3, 1, 4, 2, 5].iter().for_each(|it| bytes.extend(it.to_be_bytes()));
        let write = |bytes: &[u8]| {
            fs::write(file.path(), bytes)
                .map_err(|cause| IoError::Write { path: file.path().to_owned(), cause })
        };
        write(&bytes)?;
        assert_eq!(file.read()?, Tensor { shape: vec![2, 3], data: Data::I16(vec![0, 1, 2, 3, 4, 5]) });
        write(&bytes[..bytes.len() - 1])?;
        assert!(message(file.read()).ends_with("write it again with `numpy.save`"));
        write(b"hello")?;
        assert!(message(file.read()).ends_with("write it again with `numpy.save`"));
        assert!(message(folder.file("none.npy")?.read()).starts_with("cannot read `"));
        Ok(())
    }

    #[test]
    fn floats_are_converted_and_nothing_else() -> Result<(), IoError> {
        let load = |text: &str, dtype| text.parse::<Source>()?.load(dtype);
        let loaded = load("2xf32=0.1 3", DType::BFloat)?;
        assert_eq!(loaded.converted, Some(DType::Float));
        assert_eq!(loaded.tensor.data.to_f64(), [0.10009765625, 3.0]);
        assert_eq!(load("2xf32=0.1 3", DType::Float)?.converted, None);
        assert_eq!(load("1xindex=5", DType::Int64)?.tensor.data, Data::I64(vec![5]));
        let error =
            "`literal` holds i32, the program wants f32; convert it first (only floats are converted here)";
        assert_eq!(message(load("1xi32=5", DType::Float)), error);
        assert!(matches!(load("1xf32=5", DType::E4M3), Err(IoError::Unsupported(_))));
        Ok(())
    }

    #[test]
    fn flags() -> Result<(), IoError> {
        let parse = |text: &str| text.parse::<Source>();
        let npy = File::Npy("a/x.npy".into());
        assert_eq!(parse("@a/x.npy")?, Source::File(npy));
        let keyed = File::Safetensors { path: "w.safetensors".into(), key: Some("layer.0".to_owned()) };
        assert_eq!(parse("@w.safetensors#layer.0")?, Source::File(keyed.clone()));
        assert_eq!(keyed.to_string(), "@w.safetensors#layer.0");
        let shaped = |shape: &[usize], data| Source::Literal(Tensor { shape: shape.to_vec(), data });
        assert_eq!(parse("2x2xi8=1,-2, 3 4")?, shaped(&[2, 2], Data::I8(vec![1, -2, 3, 4])));
        assert_eq!(parse("bool=true")?, shaped(&[], Data::Bool(vec![true])));
        assert_eq!(
            parse("3xf64=nan inf -1e3")?,
            shaped(&[3], Data::F64(vec![f64::NAN, f64::INFINITY, -1e3]))
        );
        assert_eq!(parse("0xf32=")?, shaped(&[0], Data::F32(vec![])));
        let fault = |text: &str| message(parse(text));
        assert!(
            fault("@x.bin").starts_with("`@x.bin`: the file's name tells no format; expected `@FILE.npy`")
        );
        assert!(fault("@x.safetensors#").contains("no key"));
        assert!(fault("4xf32=1 2 3").contains("the shape [4] does not hold 3 values"));
        assert!(fault("1xu8=256").contains("`256` is no u8"));
        assert!(fault("2xq7=1 2").contains("`q7` is no element type"));
        assert!(fault("1xf8e4m3=1").contains("`f8e4m3` is not supported"));
        Ok(())
    }
}
